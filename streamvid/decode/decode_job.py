"""The unit of work of the persistent decode sessions: one closed GOP of a slice. The jobs of a batch end together."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streamvid.arrays import Int32, Int64
from streamvid.bitstream.packets import Packets
from streamvid.decode.session_key import SessionKey
from streamvid.decode.surface_target import SurfaceTarget
from streamvid.errors import GpuLostError, VideoError
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    import torch


NOT_WANTED: Final = -1
NOT_SHOWN: Final = -2
"""`GopJob.rows` of packets without a wanted frame; the same in nvdec.c."""
_NO_MEMORY: Final = re.compile("OUT_OF_MEMORY|out of memory|cuvidCreateDecoder.* returned error 2")
"""In the words of the driver, of PyTorch and of PyNvVideoCodec."""


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
