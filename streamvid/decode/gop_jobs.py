"""Splits slices into the jobs of the persistent decode sessions, at the pictures across which nothing refers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, repeat

import numpy as np

from streamvid.arrays import Int32
from streamvid.bitstream.annexb import NAL_SYNTAX, dpb_requirement, parameter_sets
from streamvid.bitstream.mpeg4 import headers_of
from streamvid.bitstream.packet_info import classifier
from streamvid.bitstream.packets import Packets
from streamvid.bitstream.session_fault import has_headers, session_fault
from streamvid.decode.decode_job import NOT_SHOWN, NOT_WANTED, GopJob, JobGroup
from streamvid.decode.session_key import session_key, stream_headers, version_group
from streamvid.decode.surface_target import SurfaceTarget
from streamvid.errors import VideoError
from streamvid.video.codec_context import reorder_depth
from streamvid.video.packet_selection import EncodedSlice


def split_at_idr(
    slices: Sequence[EncodedSlice],
    targets: Sequence[SurfaceTarget],
    *,
    native: bool = False,
    joined: JobGroup | None = None,
) -> list[GopJob]:
    """Split the slices of a batch at their IDR pictures, so that a few long slices keep all NVDEC engines busy, too.

    Args:
        slices: the slices of one batch.
        targets: the destination of each slice's frames.
        native: whether the native module decodes the jobs.
        joined: the group that the jobs join; default: a new one.

    Returns:
        the jobs, in order.

    Raises:
        VideoError: packets are not NAL units, or a wanted frame has no packet.
    """
    group = joined or JobGroup(1)
    jobs = [
        job
        for encoded, target in zip(slices, targets, strict=True)
        for job in _closed_gops(encoded, target, group, native=native)
    ]
    group.add(len(jobs))
    if joined is None:
        group.finish()
    return jobs


@dataclass(frozen=True)
class _Stream:
    """The packets of a slice, and what their codec says of them.

    Attributes:
        header: the headers before the first packet.
        packets: all packets.
        units: for H.264 and HEVC, the `leading_units` of packets at which decoding may start.
        hidden: packets that give no frame.
        untimed: packets whose frame may not have their timestamp, as in `GopJob.timed`.
    """

    header: bytes
    packets: Packets
    units: dict[int, list[tuple[int, memoryview]]]
    hidden: set[int]
    untimed: set[int]


def _stream(encoded: EncodedSlice) -> _Stream:
    """Raises ValueError or IndexError for damaged packets."""
    codec = encoded.codec
    if (syntax := NAL_SYNTAX.get(codec)) is not None:
        settings = parameter_sets(codec, encoded.stsd)
        packets = Packets.checked(encoded.data, encoded.sizes, length_size=settings.length_size)
        starts = {0, *encoded.starts.tolist()}
        units = {n: syntax.leading_units(packets.stored(n), settings.length_size) for n in starts}
        return _Stream(settings.annex_b, packets, units, set(), set())
    header, packets = stream_headers(codec, encoded.stsd), Packets.checked(encoded.data, encoded.sizes)
    # For MPEG-4, NVDEC outputs a picture for every packet: for a VOP that is not coded, the previous one again.
    if codec == "mpeg4":
        return _Stream(header, packets, {}, set(), set())
    kind_of = classifier(codec, encoded.stsd)
    kinds = [kind_of(memoryview(packet)) for packet in packets]
    hidden = {n for n, kind in enumerate(kinds) if kind.hidden}
    untimed = hidden | {n for n, kind in enumerate(kinds) if kind.superframe or kind.show_existing}
    return _Stream(header, packets, {}, hidden, untimed)


def _rows(encoded: EncodedSlice, hidden: set[int]) -> Int32:
    """`GopJob.rows` of all packets of a slice."""
    # Lists, because NumPy's searches release the GIL, and may take milliseconds to get it back.
    ranks, row_of = encoded.display_order.tolist(), dict(zip(encoded.frames.tolist(), count()))
    rows = [*map(row_of.get, ranks, repeat(NOT_WANTED))]
    for n in hidden:
        rows[n] = NOT_SHOWN
    if missing := len(row_of) - len({*rows} - {NOT_WANTED, NOT_SHOWN}):
        raise VideoError(
            f"clip {encoded.name} has no packet for {missing} of its frames: check it with `streamvid verify`"
        )
    return np.array(rows, dtype=np.int32)


def _closed_gops(encoded: EncodedSlice, target: SurfaceTarget, group: JobGroup, *, native: bool) -> list[GopJob]:
    try:
        stream = _stream(encoded)
    except (ValueError, IndexError) as error:
        raise VideoError(f"clip {encoded.name} is damaged ({error}): check it with `streamvid verify`") from error
    rows, ranks, syntax = _rows(encoded, stream.hidden), encoded.display_order.tolist(), NAL_SYNTAX.get(encoded.codec)
    # No cut at a CRA picture: its leading pictures may refer to frames before it.
    idr = {n for n, units in stream.units.items() if syntax.is_idr(units)} if syntax else {0, *encoded.starts.tolist()}
    cuts = sorted({0} | idr)
    stated, required = session_key(encoded.codec, encoded.stsd, encoded.width, encoded.height)
    key, need, in_band = stated, required, b""
    jobs = []
    for start, end in zip(cuts, [*cuts[1:], len(stream.packets)], strict=True):
        if syntax is not None and (sets := syntax.in_band_parameter_sets(stream.units[start])):
            in_band = sets
            # These replace the parameter sets of the sample description.
            has_sps = syntax.sequence_parameter_sets(sets)
            need = dpb_requirement(encoded.codec, sets) if has_sps else required
            key = stated if need is required else stated._replace(group=need.group)
        headers = headers_of(stream.packets[start]) if encoded.codec == "mpeg4" else in_band
        if headers and (problem := session_fault(encoded.codec, headers, encoded.width, encoded.height, native=native)):
            raise VideoError(f"clip {encoded.name} cannot be decoded by NVDEC: {problem}")
        known = not syntax and has_headers(encoded.codec, headers)  # the packet has its own headers
        header = b"" if known else stream.header
        if encoded.codec == "mpeg4":
            key = stated._replace(group=version_group(headers if known else header))
        jobs.append(
            GopJob(
                encoded=encoded,
                target=target,
                packets=stream.packets.part(start, end, header=header + in_band),
                starts_with_idr=start in idr,
                display_order=encoded.display_order[start:end],
                rows=rows[start:end],
                key=key,
                dpb_frames=need.frames,
                in_order=reorder_depth(ranks[start:end]) <= need.reorder,
                timed=stream.untimed.isdisjoint(range(start, end)),
                group=group,
            )
        )
    return jobs
