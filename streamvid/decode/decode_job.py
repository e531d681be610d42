"""The unit of work of the persistent decode sessions: one closed GOP of a slice, with what it needs of a session."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from streamvid.bitstream.annexb import NAL_SYNTAX, dpb_requirement, parameter_sets
from streamvid.bitstream.nal import DpbRequirement, to_annex_b
from streamvid.errors import GpuLostError, VideoError
from streamvid.video.codec_context import reorder_depth
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SessionKey:
    """Decoder configuration: streams with equal keys can share a decode session that holds enough DPB frames.

    Attributes:
        codec: "h264" or "hevc".
        width, height: of decoded frames, in pixels.
        bit_depth: bits per sample, 8 or 10.
        dpb_group: as `streamvid.bitstream.nal.DpbRequirement.group`.
    """

    codec: str
    width: int
    height: int
    bit_depth: int
    dpb_group: str

    @cached_property
    def surface_rows(self) -> int:
        """Rows of a decoded NV12 or P016 surface: `height` of luma, then `height / 2` of interleaved chroma."""
        return self.height * 3 // 2

    @cached_property
    def surface_bytes(self) -> int:
        """Size of a decoded surface, in bytes."""
        return self.surface_rows * self.width * (2 if self.bit_depth > 8 else 1)


class JobGroup:
    """Completion of all jobs of one batch: a latch that also keeps the first error and the CUDA events to wait for.

    Args:
        jobs: how many jobs the group has.
    """

    def __init__(self, jobs: int) -> None:
        self._lock = threading.Lock()
        self._pending, self._abandoned = jobs, False
        self._error: VideoError | GpuLostError | None = None
        self._events: dict[int, torch.cuda.Event] = {}
        self._done: Future[None] = Future()
        if not jobs:
            self._done.set_result(None)

    def finish(self, written: torch.cuda.Event | None = None) -> None:
        """Count one job as done.

        Args:
            written: CUDA event after which the job's frames are written; None if they are written already. A thread
                works on one stream, so its latest event stands for its earlier ones.
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
        """Fail at once, without waiting for the jobs that are left: one of them may never end. Whoever works on them
        keeps their memory until it has written to it."""
        with self._lock:
            if self._pending and not self._abandoned:
                self._error, self._abandoned = self._error or error, True
                self._done.set_result(None)

    @property
    def abandoned(self) -> bool:
        """Whether its frames are of no use to anybody."""
        return self._abandoned

    def wait(self) -> None:
        """Block until every job is done and its frames are written, whether some failed or not, or until the group is
        abandoned.

        Raises:
            VideoError: a job failed.
            GpuLostError: jobs fail whoever does them.
        """
        self._done.result()
        if not self._abandoned:
            for event in self._events.values():
                event.synchronize()
        if self._error is not None:
            raise self._error


@dataclass(frozen=True, eq=False)
class GopJob:
    """The packets of a slice from one IDR picture to the next, or to the end: decodable by themselves.

    Attributes:
        encoded: the slice they are from.
        out: uint8 tensor [frames, height, width, 3] on the GPU that frames are written to; all wanted frames of this
            size in the batch share it.
        packets: Annex B access units in decode order, the first with the parameter sets before it.
        starts_with_idr: False where a slice begins with a CRA or recovery point: it decodes alone, but must not
            follow another job in the same session.
        display_order: of each packet, its rank in presentation order, as `EncodedSlice.display_order`.
        dst_rows: rank of each wanted frame → its row in `out`.
        key: configuration of the session it needs.
        dpb_frames: frames that session must hold, as `streamvid.bitstream.nal.DpbRequirement.frames`.
        in_order: pictures are reordered no further than the bitstream says. Otherwise NVDEC may hand them out in
            another order than they are displayed in.
        group: the batch it belongs to.
        retry_of: the error of the first attempt, if this is the second one, which is made packet by packet with
            nothing else in the decoder.
    """

    encoded: EncodedSlice
    out: torch.Tensor
    packets: list[bytes]
    starts_with_idr: bool
    display_order: list[int]
    dst_rows: dict[int, int]
    key: SessionKey
    dpb_frames: int
    in_order: bool
    group: JobGroup
    retry_of: VideoError | None = None

    def as_video_error(self, error: Exception | str) -> VideoError:
        """The error as one that names the clip and what to do; a VideoError stays as it is."""
        if isinstance(error, VideoError):
            return error
        reason = " ".join(str(error).split())[:300]
        named = VideoError(
            f"clip {self.encoded.name} cannot be decoded ({reason}): check it with `streamvid verify --decode`"
        )
        if isinstance(error, Exception):
            named.__cause__ = error
        return named


@lru_cache(maxsize=4096)
def session_key(codec: str, stsd: bytes, width: int, height: int) -> tuple[SessionKey, DpbRequirement]:
    """The decoder configuration of a clip, and its DPB requirements.

    Args:
        codec, stsd: as in docs/format.md; codec "h264" or "hevc".
        width, height: of decoded frames, in pixels.

    Raises:
        ValueError: as `streamvid.bitstream.annexb.parameter_sets`.
    """
    settings = parameter_sets(codec, stsd)
    required = dpb_requirement(codec, settings.annex_b)
    return SessionKey(codec, width, height, settings.bit_depth, required.group), required


def split_at_idr(slices: Sequence[EncodedSlice], destinations: Sequence[tuple[torch.Tensor, int]]) -> list[GopJob]:
    """Split the slices of a batch at their IDR pictures, so that a few long slices keep all NVDEC engines busy, too.

    Args:
        slices: of one batch, H.264 and HEVC only.
        destinations: of each slice, the tensor that its frames are written to (`GopJob.out`) and the row of the first.

    Returns:
        the jobs, in order. They belong to one new `JobGroup`.

    Raises:
        VideoError: packets are not NAL units, or a wanted frame has no packet.
    """
    split = [_closed_gops(encoded) for encoded in slices]
    group = JobGroup(sum(len(gops) for gops in split))
    jobs = []
    for encoded, (out, first_row), gops in zip(slices, destinations, split, strict=True):
        key, required = session_key(encoded.codec, encoded.stsd, encoded.width, encoded.height)
        rows = {rank: row for row, rank in enumerate(encoded.frames.tolist(), first_row)}
        for gop in gops:
            # In-band parameter sets replace those of the sample description.
            has_sps = NAL_SYNTAX[encoded.codec].sequence_parameter_sets(gop.in_band)
            need = dpb_requirement(encoded.codec, gop.in_band) if has_sps else required
            jobs.append(
                GopJob(
                    encoded=encoded,
                    out=out,
                    packets=gop.packets,
                    starts_with_idr=gop.starts_with_idr,
                    display_order=gop.display_order,
                    dst_rows={rank: rows[rank] for rank in gop.display_order if rank in rows},
                    key=replace(key, dpb_group=need.group),
                    dpb_frames=need.frames,
                    in_order=reorder_depth(gop.display_order) <= need.reorder,
                    group=group,
                )
            )
    return jobs


class _ClosedGop(NamedTuple):
    """Part of a slice: see `GopJob`. `in_band`: the latest parameter sets in its packets or in those before."""

    packets: list[bytes]
    starts_with_idr: bool
    display_order: list[int]
    in_band: bytes


def _closed_gops(encoded: EncodedSlice) -> list[_ClosedGop]:
    try:
        settings = parameter_sets(encoded.codec, encoded.stsd)
        packets = to_annex_b(encoded.data, encoded.sizes, settings.length_size)
    except ValueError as error:
        raise VideoError(f"clip {encoded.name} is damaged ({error}): check it with `streamvid verify`") from error
    ranks = encoded.display_order.tolist()
    missing = set(encoded.frames.tolist()) - set(ranks)
    if missing:
        raise VideoError(
            f"clip {encoded.name} has no packet for {len(missing)} of its frames: check it with `streamvid verify`"
        )
    # CRA pictures start a decode, but leading pictures behind them may refer to frames before it: no cut there.
    syntax = NAL_SYNTAX[encoded.codec]
    idr = {n for n in encoded.starts.tolist() if syntax.is_idr(packets[n])}
    cuts = sorted({0} | idr)
    in_band = b""
    gops = []
    for start, end in zip(cuts, [*cuts[1:], len(packets)], strict=True):
        in_band = syntax.in_band_parameter_sets(packets[start]) or in_band
        first = settings.annex_b + in_band + packets[start]
        gops.append(_ClosedGop([first, *packets[start + 1 : end]], start in idr, ranks[start:end], in_band))
    return gops
