"""One worker thread of an NVDEC engine: decode sessions that stay open, and the loop that feeds them."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from streamvid.arrays import Int32, Int64
from streamvid.decode.deadline import Pace
from streamvid.decode.decode_job import GopJob
from streamvid.decode.job_queue import DecodeQueue
from streamvid.decode.native_session import NativeSession, alike, largest, staged
from streamvid.decode.nvdec_library import NvdecLibrary
from streamvid.decode.pynv_session import NvdecDecoder, PynvSession, open_decoder
from streamvid.decode.session_key import SessionKey
from streamvid.decode.surface_queue import FirstLaunches, SurfaceQueue, loader_stream

if TYPE_CHECKING:
    import torch

_SURFACES: Final = 32
"""Surfaces for which a PyNvVideoCodec session allocates memory; 25 to 33 were measured."""
_NATIVE_SURFACES: Final = 26
"""The same for a session of the native module; 9 to 22 were measured with four fewer."""
_LINGER: Final = 2e-3
"""Seconds for which a worker waits for the next job before it drains its decoder, which decodes its last packets
meanwhile: a drained engine stands still, and its next job makes more calls that need the GIL."""

log = logging.getLogger(__name__)


class DecodeSession(Protocol):
    """A decoder that takes jobs one after another, and hands over their wanted frames in groups.

    After any error it can only be asked for its state, salvaged and closed. Not thread-safe, except for `stop` and
    `packets`.
    """

    @property
    def confirmed(self) -> int:
        """The number below which all jobs have received all their frames."""

    @property
    def packets(self) -> int:
        """Packets fed to the decoder so far."""

    @property
    def unfed(self) -> int:
        """Packets of given jobs that wait for the decoder."""

    def takes(self, key: SessionKey, dpb_frames: int = 0) -> bool:
        """Whether the session can decode jobs of a configuration that need `dpb_frames` DPB frames."""

    def follows(self, job: GopJob) -> bool:
        """Whether the session can begin a job while frames of earlier jobs are still in the decoder."""

    def decode(self, number: int, jobs: Sequence[GopJob]) -> None:
        """Decode jobs as the continuation of the previous jobs. Frames may stay in the decoder, and packets may wait.

        Args:
            number: the first job's number, higher than those of previous jobs; the others count up from it.
            jobs: of a configuration that the session `takes`. Unless the session `follows` the first, `flush` was
                called before. An `exclusive` job is passed without others; call `flush` after it.

        Raises:
            VideoError: frames are lost, or differ from the dataset's description of the clip.
            RuntimeError: the driver fails.
        """

    def begun(self, number: int) -> bool:
        """Whether packets of a given job may have been fed."""

    def spent(self) -> tuple[int, float]:
        """Packets of whole jobs that were decoded since the last call, and the seconds that they took."""

    @property
    def oldest_waiting(self) -> int | None:
        """The job number of the first decoded frame that is not handed over yet; None if there is none."""

    def hand_over(self) -> None:
        """Hand over the waiting frames, and launch the kernels that read them."""

    def salvage(self) -> None:
        """After an error, hand over what can be of jobs that are done."""

    def flush(self) -> None:
        """Drain the decoder, and hand over all frames.

        Raises:
            RuntimeError, VideoError: as `decode`.
        """

    def stop(self) -> None:
        """Make a running `decode` return early, if the session supports that. Any thread may call it."""

    def close(self) -> None:
        """Free the decoder."""


@dataclass(frozen=True)
class _Opened:
    """An open session, and the configuration of the job that it was opened for."""

    session: DecodeSession
    first: SessionKey


class NvdecWorker:
    """A `streamvid.decode.engine_threads.Worker`. Jobs of one decoder configuration follow one another as a single
    stream.

    Used by one thread, except for `abandon` and `packets`.

    Args:
        device_id: the GPU's number.
        queue: the pool's job queue.
        pace: records the durations of jobs.
        first: the pool's `FirstLaunches`.
        memory_limit: most bytes of GPU memory for all sessions of this worker. One session may always be open.
        library: the native module; None: PyNvVideoCodec decodes.
        spare: as in `DecodeQueue.take`.
    """

    def __init__(
        self,
        device_id: int,
        queue: DecodeQueue,
        pace: Pace,
        first: FirstLaunches,
        *,
        memory_limit: int,
        library: NvdecLibrary | None = None,
        spare: bool = False,
    ) -> None:
        self._device_id, self._queue, self._pace, self._memory_limit = device_id, queue, pace, memory_limit
        self._library, self._spare = library, spare
        self._end_turn = library.end_turn if library is not None else lambda: None  # before waiting for others
        self.doing: tuple[GopJob, ...] = ()
        """See `streamvid.decode.engine_threads.Worker`."""
        self._abandoned = False
        self._stream = loader_stream(device_id)
        self._surfaces = SurfaceQueue(self._stream, first)
        # Keyed by the largest configuration of each session; least recently used first.
        self._sessions: OrderedDict[SessionKey, _Opened] = OrderedDict()
        # The configuration of the last job, and its session.
        self._current: SessionKey | None = None
        self._in: DecodeSession | None = None
        # Jobs in the current session by number, and the number of their frames without a launched kernel.
        self._jobs: dict[int, GopJob] = {}
        self._frames_left: dict[int, int] = {}
        self._last_number = 0
        # Whether frames of a batch before the last call's wait to be handed over.
        self._late = False
        # Unconfirmed jobs whose kernels are all launched, each with the CUDA event after which its frames are written.
        self._unconfirmed: deque[tuple[int, torch.cuda.Event]] = deque()
        # The number of frames that wait for a launch, by job.
        self._waiting: dict[int, int] = {}

    def __contains__(self, key: object) -> bool:
        """Whether an open session takes jobs of a configuration."""
        return isinstance(key, SessionKey) and any(opened.session.takes(key) for opened in self._sessions.values())

    @property
    def packets(self) -> int:
        return 0 if (session := self._in) is None else session.packets

    @property
    def unfed(self) -> int:
        return 0 if (session := self._in) is None else session.unfed

    def run(self) -> None:
        import torch

        with torch.cuda.device(self._device_id), torch.cuda.stream(self._stream):
            while jobs := self._next():
                self.doing = jobs
                self._decode(jobs)
                # While waiting for the next jobs, hold no reference to the output of these.
                del jobs
            # An abandoned worker may still have jobs, whose output memory must not be freed before they end.
            self._fail(RuntimeError("its engine was abandoned"))
            for key in list(self._sessions):
                self._close(key)

    def abandon(self) -> list[GopJob]:
        self._abandoned = True
        for opened in list(self._sessions.values()):
            opened.session.stop()
        return list(dict.fromkeys([*self._jobs.values(), *self.doing]))

    def _next(self) -> tuple[GopJob, ...]:
        """Jobs of one batch and configuration; () to end."""
        if self._abandoned:
            return ()
        job = self._take_job(0)
        if job is None and self._jobs:
            job = self._take_job(_LINGER)
        while job is None and self._in is not None and self._in.unfed:
            self._collect(self._in)
            job = self._take_job(_LINGER)
        if job is None:
            # No job continues the stream: flush the frames that are still in the decoder.
            self._flush()
            self._end_turn()
            with suppress(RuntimeError):
                self._surfaces.synchronize()
            self.doing = ()
            if self._abandoned:
                return ()
            job = self._take_job(None)
        if job is None:
            return ()
        return job, *(() if self._library is None else self._queue.take_more(job))

    def _take_job(self, wait_s: float | None) -> GopJob | None:
        if wait_s != 0:
            self._end_turn()
        return self._queue.take(current=self._current, opened=self, spare=self._spare, wait_s=wait_s)

    def _decode(self, jobs: tuple[GopJob, ...]) -> None:
        job = jobs[0]
        if job.exclusive or self._in is None or not self._in.follows(job):
            self._flush()
        try:
            session = self._session(job)
        except Exception as error:
            if job.key not in self:
                self._queue.session_closed(job.key)
            for refused in jobs:  # before the session is closed, which takes for ever if its decoder hangs
                self._queue.retry(refused, refused.as_video_error(error))
            self._fail(error)
            return
        first = self._last_number + 1
        self._last_number += len(jobs)
        for number, queued in enumerate(jobs, first):
            self._jobs[number], self._frames_left[number] = queued, int(np.count_nonzero(queued.rows >= 0))
        try:
            session.decode(first, jobs)
            # Frames of an earlier batch wait for one call at most.
            oldest = session.oldest_waiting
            late = oldest is not None and self._jobs[oldest].group is not job.group
            if late and self._late:
                session.hand_over()
            self._late = late and not self._late
            self._finish_confirmed(session.confirmed)
        except Exception as error:
            self._fail(error)
            return
        if job.exclusive:
            self._flush()
        packets, seconds = session.spent()
        if packets:
            self._pace.add(job.encoded, packets, seconds)

    def _collect(self, session: DecodeSession) -> None:
        """Hand over the frames that are there, while packets wait for the decoder."""
        try:
            session.decode(self._last_number + 1, ())
            session.hand_over()
            self._finish_confirmed(session.confirmed)
        except Exception as error:
            self._fail(error)

    def _session(self, job: GopJob) -> DecodeSession:
        """The session for a job's configuration, opened or reopened if necessary; it becomes the current one."""
        if self._abandoned:  # while it waited for the job: nothing watches this thread any more
            raise RuntimeError("its engine was abandoned")
        key, size, first = job.key, None, job.key
        if self._in is not None and key == self._current and not job.retry_of and self._in.takes(key, job.dpb_frames):
            return self._in
        for other, opened in list(self._sessions.items()):
            if not opened.session.takes(key):
                continue
            if job.retry_of is None and opened.session.takes(key, job.dpb_frames):
                size = other
            else:
                self._flush()
                self._free(other)
                first = opened.first
        if size is None:
            size = key if self._library is None else largest(key, self._queue.seen())
            for other in list(self._sessions):
                memory = sum(map(self._memory, (*self._sessions, size)))
                if memory > self._memory_limit or (self._library is not None and alike(other, size)):
                    self._close(other)
            try:
                session = self._open_session(size, job.dpb_frames)
            except Exception:
                if not self._sessions:
                    raise
                # The driver may have run out of memory: close all others and try again.
                for other in list(self._sessions):
                    self._close(other)
                session = self._open_session(size, job.dpb_frames)
            self._sessions[size] = _Opened(session, first)
        self._sessions.move_to_end(size)
        self._current, self._in = key, self._sessions[size].session
        return self._in

    def _memory(self, key: SessionKey) -> int:
        """GPU memory of a session in bytes, at most."""
        surfaces = _SURFACES if self._library is None else _NATIVE_SURFACES
        return (surfaces + staged(key)) * key.surface_bytes

    def _open_session(self, key: SessionKey, dpb_frames: int) -> DecodeSession:
        log.debug("opening a decode session for %s", key)
        if self._library is not None:
            return NativeSession(
                self._library, device_id=self._device_id, key=key, stream=self._stream.cuda_stream, take=self._take,
                launch=self._launch,
            )  # fmt: skip
        calls, device = self._surfaces.calls, self._stream.device
        return PynvSession(
            self._open(key), key, dpb_frames, take=self._take, launch=self._launch, calls=calls, device=device
        )

    def _open(self, key: SessionKey) -> NvdecDecoder:
        return open_decoder(key, device_id=self._device_id, stream=self._stream.cuda_stream)

    def _close(self, size: SessionKey) -> None:
        self._queue.session_closed(self._sessions[size].first)
        self._free(size)

    def _free(self, size: SessionKey) -> None:
        opened = self._sessions.pop(size, None)
        if opened is not None:
            with suppress(RuntimeError):
                self._stream.synchronize()  # kernels read its surfaces
            opened.session.close()

    def _take(self, number: int, rows: Int32, surfaces: Int64) -> None:
        self._surfaces.add(self._jobs[number].target, rows, surfaces)
        self._waiting[number] = self._waiting.get(number, 0) + len(rows)

    def _launch(self) -> None:
        """Queue the work on all frames that wait for it."""
        if not self._waiting:
            return
        written = self._surfaces.launch()
        for number, count in self._waiting.items():
            self._frames_left[number] -= count
            if not self._frames_left[number]:
                self._unconfirmed.append((number, written))
        self._waiting = {}

    def _flush(self) -> None:
        """End the current stream and take its last frames. If any is missing, all jobs still in it are retried: nobody
        knows which frames it is."""
        try:
            if self._in is not None:
                self._in.flush()
        except Exception as error:
            self._fail(error)
            return
        self._finish_confirmed(self._last_number + 1)
        for number in list(self._jobs):
            self._forget(number).group.finish()

    def _finish_confirmed(self, confirmed: int) -> None:
        while self._unconfirmed and self._unconfirmed[0][0] < confirmed:
            number, written = self._unconfirmed.popleft()
            self._forget(number).group.finish(written)

    def _forget(self, number: int) -> GopJob:
        del self._frames_left[number]
        return self._jobs.pop(number)

    def _fail(self, error: Exception) -> None:
        """Close a session that failed and retry every job in it: it may have held frames of each."""
        self._surfaces.clear()
        self._waiting = {}
        failed, self._current, self._in = self._in, None, None
        if failed is not None:
            with suppress(Exception):  # the GPU may be lost
                failed.salvage()
                self._finish_confirmed(failed.confirmed)
            self._surfaces.clear()
            self._waiting = {}
        self._unconfirmed.clear()
        for size in [size for size, opened in self._sessions.items() if opened.session is failed]:
            self._close(size)
        with suppress(RuntimeError):
            self._stream.synchronize()  # failed work must not write over the result of a retry
        for number in list(self._jobs):
            job = self._forget(number)
            self._queue.retry(job, job.as_video_error(error), begun=failed is None or failed.begun(number))
