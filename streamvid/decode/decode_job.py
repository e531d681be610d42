"""The unit of work of the persistent decode sessions: one closed GOP of a slice, with its decoder configuration."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from streamvid.arrays import Int32, Int64
from streamvid.bitstream.annexb import NAL_SYNTAX, dpb_requirement, parameter_sets
from streamvid.bitstream.ffmpeg_fault import ffmpeg_is_exact
from streamvid.bitstream.mpeg4 import headers_of, video_object_layers
from streamvid.bitstream.nal import DpbRequirement
from streamvid.bitstream.packet_info import classifier
from streamvid.bitstream.packets import Packets
from streamvid.bitstream.session_fault import has_headers, session_fault
from streamvid.color.render import PlaneFormat
from streamvid.decode.surface_target import SurfaceTarget
from streamvid.errors import GpuLostError, VideoError
from streamvid.mp4.sample_entry import codec_configuration, decoder_specific_info
from streamvid.video.codec_context import MAX_REORDER, reorder_depth
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    import torch


NOT_WANTED: Final = -1
NOT_SHOWN: Final = -2
"""`GopJob.rows` of packets without a wanted frame; the same in nvdec.c."""
_NO_MEMORY: Final = re.compile("OUT_OF_MEMORY|out of memory|cuvidCreateDecoder.* returned error 2")
"""In the words of the driver, of PyTorch and of PyNvVideoCodec."""
_ALIKE: Final = DpbRequirement("", 0, MAX_REORDER)
"""The requirement for codecs other than H.264 and HEVC, whose streams do not differ in it."""


class SessionKey(NamedTuple):
    """Decoder configuration: streams with equal keys can share a decode session that holds enough DPB frames.

    Attributes:
        codec: as in docs/format.md.
        width, height: of decoded frames, in pixels.
        bit_depth: bits per sample, 8, 10 or 12.
        group: as `streamvid.bitstream.nal.DpbRequirement.group`. For MPEG-4, whether the stream states its version: if
            not, NVIDIA's parser takes that of the stream before, unless it was drained.
        exact: whether FFmpeg's samples are those of NVDEC, bit for bit.
    """

    codec: str
    width: int
    height: int
    bit_depth: int
    group: str
    exact: bool = True

    @property
    def pitch(self) -> int:
        """Samples from a line of a decoded NV12 or P016 surface to the next: chroma interleaves two planes."""
        return -(-self.width // 2) * 2

    @property
    def surface_bytes(self) -> int:
        """Size of a decoded surface, in bytes: `height` lines of luma, then half as many, rounded up, of chroma."""
        return self.luma_bytes // self.height * (self.height + -(-self.height // 2))

    @property
    def luma_bytes(self) -> int:
        """Size of the luma of a decoded surface, which its chroma follows, in bytes."""
        return self.height * self.pitch * (2 if self.bit_depth > 8 else 1)

    @property
    def form(self) -> PlaneFormat:
        """The planes of a decoded surface."""
        return PlaneFormat(self.height, self.width, (2, 2), self.bit_depth)


class JobGroup:
    """Completion of all jobs of one batch: a latch that also keeps the first error and the CUDA events to wait for.

    Args:
        jobs: number of jobs, at least one; `add` takes more.
        reached: returns, without releasing the GIL, whether the work before a CUDA event is certainly done.
    """

    def __init__(self, jobs: int, *, reached: Callable[[torch.cuda.Event], bool] = lambda _: False) -> None:
        self._reached = reached
        self._lock = threading.Lock()
        self._pending, self._abandoned = jobs, False
        self._error: VideoError | GpuLostError | None = None
        self._events: dict[int, torch.cuda.Event] = {}
        self._done: Future[None] = Future()

    def add(self, jobs: int) -> None:
        """Add jobs to the group, while at least one is not done."""
        with self._lock:
            self._pending += jobs

    def done(self) -> bool:
        """Whether every job is done, or the group is abandoned. Kernels on the GPU may still be running."""
        return self._done.done()

    def finish(self, written: torch.cuda.Event | None = None) -> None:
        """Count one job as done.

        Args:
            written: CUDA event after which the job's frames are written; None if they are written already. A thread
                works on one stream, so its latest event covers its earlier ones.
        """
        with self._lock:
            if written is not None:
                self._events[threading.get_ident()] = written
            self._pending -= 1
            if not self._pending and not self._abandoned:
                self._done.set_result(None)

    def fail(self, error: VideoError) -> None:
        """Count one job as failed; the first error is the one `wait` raises."""
        with self._lock:
            self._error = self._error or error
        self.finish()

    def abandon(self, error: VideoError | GpuLostError) -> None:
        """Fail immediately, without waiting for unfinished jobs, one of which may never end. Their workers keep the
        batch's memory until they have written to it."""
        with self._lock:
            if self._pending and not self._abandoned:
                self._error, self._abandoned = self._error or error, True
                self._done.set_result(None)

    @property
    def abandoned(self) -> bool:
        """Whether the batch was abandoned, so that its frames are not wanted any more."""
        return self._abandoned

    def wait(self) -> None:
        """Block until every job is done and its frames are written, whether some failed or not, or until the group is
        abandoned.

        Raises:
            VideoError: a job failed.
            GpuLostError: so many engines are stuck that the GPU counts as lost.
        """
        self._done.result()
        if not self._abandoned:
            for event in self._events.values():
                if not self._reached(event):
                    event.synchronize()
        if self._error is not None:
            raise self._error


@dataclass(frozen=True, eq=False)
class GopJob:
    """The packets of a slice from one IDR picture to the next, or to the end: decodable by themselves.

    Attributes:
        encoded: the slice of the packets.
        target: the destination of the slice's frames.
        packets: its packets, with all headers before the first.
        starts_with_idr: False if the slice begins with a CRA picture or a recovery point: such a job decodes alone, but
            must not follow another job in the same session.
        display_order: int64 [packets], each packet's rank in presentation order, as `EncodedSlice.display_order`.
        rows: int32 [packets], the index of each packet's frame among the slice's frames; `NOT_WANTED`, or `NOT_SHOWN`
            if the packet gives no frame.
        key: configuration of the session.
        dpb_frames: frames that the session must hold, as `streamvid.bitstream.nal.DpbRequirement.frames`.
        in_order: whether pictures are reordered only as far as the bitstream says. If False, NVDEC may output them in
            another order than the display order.
        group: the job's batch.
        retry_of: the error of the first attempt, if this is the second. The second is made packet by packet with
            nothing else in the decoder.
        timed: whether a frame has the timestamp of its packet. If False, some pictures are not displayed, and NVIDIA's
            parser reassigns timestamps: frames are matched by their order, with no other job in the decoder.
    """

    encoded: EncodedSlice
    target: SurfaceTarget
    packets: Packets
    starts_with_idr: bool
    display_order: Int64
    rows: Int32
    key: SessionKey
    dpb_frames: int
    in_order: bool
    group: JobGroup
    retry_of: VideoError | None = None
    timed: bool = True

    @property
    def dst_rows(self) -> dict[int, int]:
        """Rank of each wanted frame → its index among the slice's frames."""
        ranks, rows = self.display_order.tolist(), self.rows.tolist()
        return {rank: row for rank, row in zip(ranks, rows, strict=True) if row >= 0}

    @property
    def hidden(self) -> set[int]:
        """Ranks of the packets that give no frame."""
        return set(self.display_order[self.rows == NOT_SHOWN].tolist())

    @property
    def packet_by_packet(self) -> bool:
        """Whether the decoder gets one packet per call, and frames are matched by their timestamps alone."""
        return self.timed and (self.retry_of is not None or not self.in_order)

    @property
    def exclusive(self) -> bool:
        """Whether no other job may be in the decoder."""
        return not (self.timed and self.in_order) or self.retry_of is not None

    @property
    def needs_drain(self) -> bool:
        """Whether the decoder has to be drained before the job."""
        return self.exclusive or not self.starts_with_idr

    def as_video_error(self, error: Exception | str) -> VideoError:
        """Turn an error into one that names the clip and the remedy; a VideoError is returned unchanged."""
        if isinstance(error, VideoError):
            return error
        reason = " ".join(str(error).split())[:300]
        advice = "free memory of the GPU" if lacks_memory(reason) else "check it with `streamvid verify --decode`"
        named = VideoError(f"clip {self.encoded.name} cannot be decoded ({reason}): {advice}")
        if isinstance(error, Exception):
            named.__cause__ = error
        return named


def lacks_memory(reason: str) -> bool:
    """Whether an error's text says that the GPU is out of memory."""
    return _NO_MEMORY.search(reason) is not None


@lru_cache(maxsize=4096)
def session_key(codec: str, stsd: bytes, width: int, height: int) -> tuple[SessionKey, DpbRequirement]:
    """The decoder configuration of a clip, and its DPB requirements.

    Args:
        codec, stsd: as in docs/format.md.
        width, height: of decoded frames, in pixels.

    Raises:
        ValueError: as `streamvid.bitstream.annexb.parameter_sets`.
    """
    if codec not in NAL_SYNTAX:
        return SessionKey(codec, width, height, stream_bit_depth(codec, stsd), "", exact=False), _ALIKE
    settings = parameter_sets(codec, stsd)
    required = dpb_requirement(codec, settings.annex_b)
    exact = ffmpeg_is_exact(codec, settings.annex_b)
    return SessionKey(codec, width, height, settings.bit_depth, required.group, exact), required


def stream_bit_depth(codec: str, stsd: bytes) -> int:
    """Bits per sample from a sample description; 8 for codecs that NVDEC decodes at no other depth.

    Raises:
        ValueError: the sample description is not of this codec.
    """
    if codec in NAL_SYNTAX:
        return parameter_sets(codec, stsd).bit_depth
    if codec == "vp9":
        return codec_configuration(stsd, b"vpcC")[6] >> 4  # bitDepth, 2.2 of the VP Codec ISO Media File Format Binding
    return 8


@lru_cache(maxsize=4096)
def _version_group(headers: bytes) -> str:
    """`SessionKey.group` of an MPEG-4 stream with these headers."""
    return "" if all(layer.versioned for layer in video_object_layers(headers)) else "without version"


def stream_headers(codec: str, stsd: bytes) -> bytes:
    """The headers that a decoder needs before the first packet, and that packets need not repeat: parameter sets in
    Annex B, and the headers of MPEG-4; empty for other codecs.

    Raises:
        ValueError: the sample description has no headers.
    """
    if codec in NAL_SYNTAX:
        return parameter_sets(codec, stsd).annex_b
    return decoder_specific_info(stsd) if codec == "mpeg4" else b""


def surface_form(encoded: EncodedSlice) -> PlaneFormat:
    """The planes of a slice's surfaces."""
    key, _ = session_key(encoded.codec, encoded.stsd, encoded.width, encoded.height)
    return key.form


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


def _closed_gops(encoded: EncodedSlice, target: SurfaceTarget, group: JobGroup, *, native: bool) -> list[GopJob]:
    syntax, starts = NAL_SYNTAX.get(encoded.codec), {0, *encoded.starts.tolist()}
    hidden: set[int] = set()
    untimed: set[int] = set()
    try:
        if syntax is None:
            header, packets = stream_headers(encoded.codec, encoded.stsd), Packets.checked(encoded.data, encoded.sizes)
            # For MPEG-4, NVDEC outputs a picture for every packet: for a VOP that is not coded, the previous one again.
            if encoded.codec != "mpeg4":
                kind_of = classifier(encoded.codec, encoded.stsd)
                kinds = [kind_of(memoryview(packet)) for packet in packets]
                hidden = {n for n, kind in enumerate(kinds) if kind.hidden}
                untimed = hidden | {n for n, kind in enumerate(kinds) if kind.superframe or kind.show_existing}
        else:
            settings = parameter_sets(encoded.codec, encoded.stsd)
            header = settings.annex_b
            packets = Packets.checked(encoded.data, encoded.sizes, length_size=settings.length_size)
            units = {n: syntax.leading_units(packets.stored(n), settings.length_size) for n in starts}
    except (ValueError, IndexError) as error:
        raise VideoError(f"clip {encoded.name} is damaged ({error}): check it with `streamvid verify`") from error
    # Lists, because NumPy's searches release the GIL, and may take milliseconds to get it back.
    ranks, row_of = encoded.display_order.tolist(), dict(zip(encoded.frames.tolist(), count()))
    found = [*map(row_of.get, ranks, repeat(NOT_WANTED))]
    for n in hidden:
        found[n] = NOT_SHOWN
    if missing := len(row_of) - len({*found} - {NOT_WANTED, NOT_SHOWN}):
        raise VideoError(
            f"clip {encoded.name} has no packet for {missing} of its frames: check it with `streamvid verify`"
        )
    rows = np.array(found, dtype=np.int32)
    # No cut at a CRA picture: its leading pictures may refer to frames before it.
    idr = {n for n in starts if syntax is None or syntax.is_idr(units[n])}
    cuts = sorted({0} | idr)
    stated, required = session_key(encoded.codec, encoded.stsd, encoded.width, encoded.height)
    key, need, in_band = stated, required, b""
    jobs = []
    for start, end in zip(cuts, [*cuts[1:], len(packets)], strict=True):
        if syntax is not None and (sets := syntax.in_band_parameter_sets(units[start])):
            in_band = sets
            # These replace the parameter sets of the sample description.
            has_sps = syntax.sequence_parameter_sets(sets)
            need = dpb_requirement(encoded.codec, sets) if has_sps else required
            key = stated if need is required else stated._replace(group=need.group)
        headers = headers_of(packets[start]) if encoded.codec == "mpeg4" else in_band
        if headers and (problem := session_fault(encoded.codec, headers, encoded.width, encoded.height, native=native)):
            raise VideoError(f"clip {encoded.name} cannot be decoded by NVDEC: {problem}")
        known = not syntax and has_headers(encoded.codec, headers)  # the packet has its own headers
        if encoded.codec == "mpeg4":
            key = stated._replace(group=_version_group(headers if known else header))
        jobs.append(
            GopJob(
                encoded=encoded,
                target=target,
                packets=packets.part(start, end, header=(b"" if known else header) + in_band),
                starts_with_idr=start in idr,
                display_order=encoded.display_order[start:end],
                rows=rows[start:end],
                key=key,
                dpb_frames=need.frames,
                in_order=reorder_depth(ranks[start:end]) <= need.reorder,
                timed=untimed.isdisjoint(range(start, end)),
                group=group,
            )
        )
    return jobs
