"""The frame index of a clip, from the packets of its MP4."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import av
import numpy as np

from streamvid.arrays import Bool, Int64
from streamvid.bitstream import mpeg4, packet_info
from streamvid.bitstream.chroma_location import location_name
from streamvid.bitstream.packet_kind import PacketKind, StatedColors
from streamvid.checksum import crc32c
from streamvid.color.tags import container_tags, mean_alike, settled_tags, tag_names, usual_siting
from streamvid.mp4.sample_entry import sample_description
from streamvid.video.frame_index import DISPOSABLE, HIDDEN, LEADING, RANDOM_ACCESS, FrameIndex
from streamvid.video.mapped import mapped
from streamvid.video.packet_times import PacketTimes
from streamvid.video.picture_damage import checking_classifier
from streamvid.video.probe import CannotCopyError, FrameFormat, VideoFile
from streamvid.video.stored_clip import UNORDERED, StoredClip

LEAD_IN: Final = "lead-in"
"""A trait: see docs/format.md."""
BROKEN: Final = "broken"
"""The trait of a cut, or of a video that is only cut, with a packet that decoders refuse (`PacketKind.broken`). No
stored clip has it."""


def index_clip(
    target: Path, codec: str, profile: str, frame_format: FrameFormat, scan: PacketTimes, *, cut_only: bool = False
) -> StoredClip:
    """Read a written MP4 back, and index it: positions of its packets, and their classification.

    Args:
        target: an MP4 with exactly the packets of `scan`.
        scan: presentation times of its packets, and which are hidden.
        cut_only: as in `build_clip`.

    Raises:
        CannotCopyError: the MP4 could not keep the times, or has several sample descriptions.
        ValueError: no frame of it can be decoded.
    """
    pts, hidden = scan.pts, scan.hidden
    data = mapped(target).data
    try:
        stsd = sample_description(data)
    except ValueError as error:  # the source's parameter sets changed outside of its packets
        raise CannotCopyError(str(error)) from error
    with VideoFile(target).open(apply_edits=False) as (container, stream):
        base = stream.time_base
        assert base is not None
        rows = ((p.pts, p.pos, p.size) for p in container.demux(stream) if p.size)
        raw, offset, size = np.fromiter(rows, dtype=np.dtype((np.int64, 3))).T
    stored = raw - raw[np.flatnonzero(~hidden)[np.argmin(pts[~hidden])]] if len(raw) == len(pts) else raw
    wanted = (pts - pts[~hidden].min()) * scan.time_base[0] * base.denominator
    if len(raw) != len(pts) or np.any(
        np.abs(stored * scan.time_base[1] * base.numerator - wanted) >= scan.time_base[1] * base.numerator
    ):
        raise CannotCopyError("its timestamps cannot be kept in an MP4")

    of, kinds, crcs = checking_classifier(codec, stsd), list[PacketKind](), list[int]()
    for at, length in zip(offset.tolist(), size.tolist(), strict=True):  # of hours there are a million
        packet = data[at : at + length]
        kinds.append(of(packet))
        crcs.append(crc32c(packet))
    kinds = packet_info.finalize_disposable(codec, kinds)
    if not (kinds[0].random_access or kinds[0].broken):
        hidden = hidden | not_output(target, raw)
    ticks = scan.last_frame_ticks() * scan.time_base[0] * base.denominator // (scan.time_base[1] * base.numerator)
    times = replace(scan, pts=stored, size=size, hidden=hidden, time_base=(base.numerator, base.denominator))
    return build_clip(
        target,
        codec,
        profile,
        frame_format,
        stsd=stsd,
        kinds=kinds,
        times=times,
        last_frame=max(1, ticks),
        offset=offset,
        crcs=crcs,
        cut_only=cut_only,
    )


def build_clip(
    file: Path,
    codec: str,
    profile: str,
    frame_format: FrameFormat,
    *,
    stsd: bytes,
    kinds: list[PacketKind],
    times: PacketTimes,
    last_frame: int,
    offset: Int64,
    crcs: list[int],
    cut_only: bool = False,
) -> StoredClip:
    """Derive the index, the traits and the duration of a clip.

    Args:
        kinds: the kinds of its packets, in decode order.
        times: their times, from any origin, and sizes. Hidden are those without the references to decode them, too.
        last_frame: duration of the last frame in ticks.
        offset: int64 [packets], positions in the file, in bytes.
        crcs: the CRC-32C of each packet.
        cut_only: the clip is for `streamvid.video.trim.trim_clip` alone: some of its packets may be broken.

    Raises:
        CannotCopyError: packets are not frames or NAL units not framed as the container says, or size or colours of
            the pictures change.
        ValueError: no frame of it can be decoded, or a packet is broken.
    """
    _check_packets(kinds, codec, cut_only=cut_only)
    found = traits(codec, kinds, times.pts)
    if any(kind.in_fields for kind in kinds):
        kinds = mpeg4.finalize_interlaced(kinds)
    flags = _flags(kinds, times.pts, times.hidden, codec)
    if bool(np.all(flags & HIDDEN)):
        raise ValueError("no frame of it can be decoded from where it starts")
    index = FrameIndex(times.pts, offset, times.size, flags, np.array(crcs, dtype=np.int64))
    shown = index.frame_pts
    own = (frame_format.color_space, frame_format.color_primaries, frame_format.color_range)
    matrix, color_range = settled = _settled(own, codec, frame_format, stsd)
    _check_colors_stay(settled, kinds, codec, frame_format, stsd)
    return StoredClip(
        mp4=file,
        index=replace(index, pts=times.pts - shown[0]),
        codec=codec,
        profile=profile,
        pix_fmt=frame_format.pix_fmt,
        color_space=matrix,
        color_range=color_range,
        traits=found,
        width=frame_format.width,
        height=frame_format.height,
        rotation=frame_format.rotation,
        time_base=times.time_base,
        duration=int(shown[-1] - shown[0]) + last_frame,
        stsd=stsd,
    )


def _check_packets(kinds: list[PacketKind], codec: str, *, cut_only: bool) -> None:
    """Check that each packet is a frame, that the packets are framed as the container says, and that a decoder of the
    whole clip loses none. Raises as `build_clip`."""
    several = next((number for number, kind in enumerate(kinds) if kind.several), None)
    if several is not None:
        if codec == "vp9":
            raise ValueError(
                f"its packet {several} holds several pictures that are displayed, as of VP9 with spatial layers (SVC): "
                "FFmpeg shows each, browsers the last. Decode it as they do: ffmpeg -c:v libvpx-vp9 -i …"
            )
        packed = " (a packed bitstream)" if codec == "mpeg4" else ""
        raise CannotCopyError(f"its packet {several} holds several pictures{packed}, where each must be a frame")
    broken = [number for number, kind in enumerate(kinds) if kind.broken]
    if broken and codec == "mjpeg":
        raise ValueError(f"its packet {broken[0]} cannot be decoded: it has no scan; re-encode it")
    if broken and not (cut_only and 2 * len(broken) < len(kinds)):  # of so many, their writer is the cause
        if zeroed := [number for number in broken if kinds[number].zeroed]:
            raise ValueError(f"zeros are in the place of a part of its packet {zeroed[0]}: copy or record it again")
        if kinds[broken[0]].misfit:
            raise ValueError(
                f"slices of its packet {broken[0]} do not fit its parameter sets, as where files of other settings "
                "were joined without decoding: join them by ffmpeg -f concat without -c copy"
            )
        raise CannotCopyError(
            f"NAL unit lengths of its packet {broken[0]} do not add up: a damaged file, or start codes in an MP4"
        )
    if any(kind.drops_prior for kind in kinds):
        raise CannotCopyError("a sequence begins before a decoder has output all of the last one, and loses frames")
    if any(kind.adds_grain for kind in kinds):
        raise CannotCopyError("decoders add film grain to its pictures, by messages that single packets do not have")
    if any(kind.lone_field for kind in kinds):
        raise CannotCopyError("its packets hold single fields, where each must be a frame")
    mpeg4.check_delay(kinds)
    _check_format_stays(kinds)


def _check_format_stays(kinds: list[PacketKind]) -> None:
    """Raise CannotCopyError if size, chroma subsampling or bit depth of a clip's pictures change, because a row has one
    size and pixel format for all frames."""
    for what, values in (("size", [kind.size for kind in kinds]), ("pixel format", [kind.samples for kind in kinds])):
        found = {value: number for number, value in reversed([*enumerate(values)]) if value is not None}
        if len(found) > 1:
            raise CannotCopyError(f"the {what} of its pictures changes in packet {sorted(found.values())[1]}")


def _settled(own: tuple[str, str, str], codec: str, frame_format: FrameFormat, stsd: bytes) -> tuple[str, str]:
    """Settled matrix and range: those of the bitstream (`own`: matrix, primaries, range), or those of the container if
    the bitstream has none."""
    pairs = zip(own, container_tags(stsd), strict=True)
    matrix, primaries, color_range = (theirs if mine == "unknown" else mine for mine, theirs in pairs)
    size = frame_format.width, frame_format.height
    return settled_tags((matrix, primaries, color_range), codec=codec, pix_fmt=frame_format.pix_fmt, size=size)


def _check_colors_stay(
    settled: tuple[str, str], kinds: list[PacketKind], codec: str, frame_format: FrameFormat, stsd: bytes
) -> None:
    """Raise CannotCopyError if a clip's in-band parameter sets change the colours, because a row has one matrix and
    range for all frames. When the clip is transcoded, each frame is converted by its own tags."""
    found: dict[StatedColors, int] = {}
    for number, kind in enumerate(kinds):
        if kind.colors is not None:
            found.setdefault(kind.colors, number)
    if list(found.values()) == [0]:  # Matroska's tags, which count where the bitstream has none, are in no `stsd`
        return
    plain = replace(frame_format, pix_fmt=frame_format.pix_fmt.replace("yuvj", "yuv"))
    for colors, number in found.items():
        stated = _settled(tag_names(colors.matrix, colors.primaries, colors.full_range), codec, plain, stsd)
        if not mean_alike(stated, settled):
            change = f"{' '.join(settled)} to {' '.join(stated)}"
            raise CannotCopyError(f"its colours change from {change} in packet {number}")
    usual = usual_siting(codec)
    if len(places := {location_name(location.location).replace("unknown", usual) for location in found}) > 1:
        raise CannotCopyError(f"its chroma changes between {' and '.join(sorted(places))}")


def not_output(target: Path, pts: Int64) -> Bool:
    """bool [packets]: the packets at the start of which a decoder outputs no frame.

    A stream that does not begin with a random access point may need some packets until a picture is complete. If it
    begins with an I picture of H.264 without a recovery point, FFmpeg shows that, and not all of the next ones.
    """
    shown: list[int] = []
    with VideoFile(target).open(apply_edits=False) as (container, stream), suppress(av.error.InvalidDataError):
        for frame in container.decode(stream):
            shown += [] if frame.pts is None else [frame.pts]
            if len(shown) == _FIRST_FRAMES:
                break
    if not shown:
        raise ValueError("not one frame of it can be decoded")
    if shown != sorted(shown):  # frames that come later may have earlier times
        return np.asarray(pts < shown[0])
    return np.asarray((pts < shown[-1]) & ~np.isin(pts, shown))


_FIRST_FRAMES: Final = 32
"""Twice as many as a decoder may hold back."""


def traits(codec: str, kinds: list[PacketKind], pts: Int64) -> str:
    """The `traits` column of docs/format.md.

    Args:
        codec: as in docs/format.md.
        kinds: the kinds of the clip's packets, in decode order.
        pts: int64 [packets], presentation times.
    """
    # RASL pictures of a CRA picture that comes first are never output.
    begins = kinds[0].random_access
    end = next((n for n, kind in enumerate(kinds) if n and kind.random_access), len(kinds))
    output = [n for n, kind in enumerate(kinds) if not (begins and kind.skipped_leading and n < end)]
    found = {
        UNORDERED: not packet_info.in_output_order(codec, [kinds[n] for n in output], pts[output]),
        LEAD_IN: not kinds[0].random_access,
        "show-existing": any(kind.show_existing for kind in kinds),
        "superframes": any(kind.superframe for kind in kinds),
        BROKEN: any(kind.broken for kind in kinds),
        "non-displayed": codec == "av1" and any(kind.hidden for kind in kinds),
    }
    return ",".join(sorted(name for name, there in found.items() if there))


def _flags(kinds: list[PacketKind], pts: Int64, hidden: Bool, codec: str) -> Int64:
    """int64 [packets]: the `flags` column of the frame index."""
    random_access = np.array([kind.random_access for kind in kinds])
    disposable = np.array([kind.disposable for kind in kinds])
    no_output = np.array([kind.hidden for kind in kinds])
    # The last random access packet at or before each packet in decode order. The first packet counts as one: decoding
    # of the whole clip starts there.
    numbers = np.arange(len(kinds))
    anchor = np.maximum.accumulate(np.where(random_access, numbers, 0))
    leading = pts < pts[anchor]
    if codec == "hevc":  # RASL pictures alone, and of these only the ones of a random access packet
        skipped = np.array([kind.skipped_leading for kind in kinds])
        other = np.maximum.accumulate(np.where(skipped | (numbers == anchor), 0, numbers))
        # Whatever their times, if nothing else has come since that packet.
        leading = skipped & (leading | (other <= anchor))
    # Leading pictures of the first random access packet refer to packets that the clip does not have.
    undecodable = leading & (anchor == 0)
    # A leading picture's packet that has parameter sets for later ones cannot be left out, as it is where decoding
    # starts at the random access packet before it.
    telling = np.unique(anchor[leading & np.array([kind.tells_sets for kind in kinds])])
    random_access[telling[telling > 0]] = False
    leading &= ~np.isin(anchor, telling)
    return np.asarray(
        random_access * RANDOM_ACCESS
        + disposable * DISPOSABLE
        + leading * LEADING
        + (hidden | undecodable | no_output) * HIDDEN,
        dtype=np.int64,
    )
