"""One NVDEC engine: PyNvVideoCodec decode sessions that stay open, by decoder configuration, and the loop that feeds
them."""

from __future__ import annotations

import ctypes
import logging
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

from streamvid.bitstream.annexb import NAL_SYNTAX
from streamvid.decode.deadline import Pace
from streamvid.decode.decode_job import GopJob, SessionKey
from streamvid.decode.frame_matching import PACKETS_PER_CALL, FrameMatcher
from streamvid.decode.job_queue import DecodeQueue
from streamvid.decode.surface_queue import FirstLaunches, SurfaceQueue, loader_stream
from streamvid.errors import VideoError

if TYPE_CHECKING:
    import torch

_AT_ONCE: Final = 4
"""Wanted frames of one call that are worth a launch, which reads the decoder's own surfaces. Fewer are copied, as those
are reused after the next call, and wait for others: a launch takes as long in Python as ten copies."""
_STAGED: Final = 32
"""Frames that wait so at most: few enough to need little memory."""
_SURFACES: Final = 32
"""Surfaces that a session holds memory for, measured: 25 to 33."""

log = logging.getLogger(__name__)


class NvdecFrame(Protocol):
    """A decoded frame of PyNvVideoCodec."""

    shape: Sequence[int]

    def framesize(self) -> int: ...

    def getPTS(self) -> int: ...  # noqa: N802

    def GetPtrToPlane(self, plane: int) -> int: ...  # noqa: N802


class NvdecDecoder(Protocol):
    """A decode session of PyNvVideoCodec."""

    def Decode(self, packet: object) -> Sequence[NvdecFrame]: ...  # noqa: N802


@dataclass(frozen=True)
class _Session:
    """An open decode session, and the DPB frames it was opened for."""

    decoder: NvdecDecoder
    dpb_frames: int


class NvdecWorker:
    """Decodes jobs from a queue. Jobs of one decoder configuration follow one another as a single stream.

    To be used by one thread.

    Args:
        device_id: the GPU's number.
        queue: where jobs come from.
        pace: is told how long jobs take.
        first: shared by the workers of a pool.
        memory_limit: bytes of GPU memory that its sessions may take together. One may always be open.
    """

    def __init__(
        self, device_id: int, queue: DecodeQueue, pace: Pace, first: FirstLaunches, *, memory_limit: int
    ) -> None:

        self._device_id, self._queue, self._pace, self._memory_limit = device_id, queue, pace, memory_limit
        self.doing: tuple[GopJob, ...] = ()
        self.packets = 0
        """See `streamvid.decode.engine_threads.Worker`."""
        self._abandoned = False
        self._stream = loader_stream(device_id)
        self._surfaces = SurfaceQueue(self._stream, first)
        self._packet = _PacketFactory()
        # Least recently used first.
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()
        self._current: SessionKey | None = None
        self._matcher = FrameMatcher()
        # Jobs in the current session by number, and how many of their frames have no launch yet.
        self._jobs: dict[int, GopJob] = {}
        self._frames_left: dict[int, int] = {}
        self._last_number = 0
        # Jobs whose frames all have one but are not yet confirmed, and the CUDA event after which they are written.
        self._unconfirmed: deque[tuple[int, torch.cuda.Event]] = deque()
        # The last job whose surface size was checked.
        self._checked = 0
        # Of each frame that waits for a launch, the number of its job; and how many of them are copies in `_staging`.
        self._waiting: list[int] = []
        self._staged = 0
        self._staging: dict[SessionKey, torch.Tensor] = {}

    def run(self) -> None:
        """See `streamvid.decode.engine_threads.Worker`."""
        import torch

        with torch.cuda.device(self._device_id), torch.cuda.stream(self._stream):
            while (job := self._next()) is not None:
                self.doing = (job,)
                self._decode(job)
                # While waiting for the next job, hold no reference to the output of this one.
                del job
            # If it was abandoned, a job may have come since; and memory that it writes to must not be freed.
            self._fail(RuntimeError("its engine was given up"))
            for key in list(self._sessions):
                self._close(key)

    def abandon(self) -> list[GopJob]:
        """See `streamvid.decode.engine_threads.Worker`."""
        self._abandoned = True
        return list(dict.fromkeys([*self._jobs.values(), *self.doing]))

    def _next(self) -> GopJob | None:
        if self._abandoned:
            return None
        job = self._queue.take(current=self._current, opened=self._sessions, block=False)
        if job is None:
            # No job continues the stream: flush the frames that are still in the decoder.
            try:
                self._flush()
                self._surfaces.synchronize()
            except Exception as error:
                self._fail(error)
            self.doing = ()
            if self._abandoned:
                return None
            job = self._queue.take(current=self._current, opened=self._sessions, block=True)
        return job

    def _decode(self, job: GopJob) -> None:
        began = perf_counter()
        try:
            # NVDEC does not reset at a CRA picture that follows another job: it would decode its leading pictures,
            # wrongly.
            if job.key != self._current or job.alone or not job.starts_with_idr:
                self._flush()
            decoder = self._session(job).decoder
        except Exception as error:
            self._fail(error)
            self._queue.retry(job, job.as_video_error(error))
            if job.key not in self._sessions:
                self._queue.session_closed(job.key)
            return
        self._last_number += 1
        self._jobs[self._last_number] = job
        self._frames_left[self._last_number] = len(job.dst_rows)
        try:
            # Only Annex B says where one packet ends and the next begins.
            per_call = PACKETS_PER_CALL if job.key.codec in NAL_SYNTAX else 1
            calls = self._matcher.expect(
                self._last_number,
                job.display_order,
                job.dst_rows,
                exact=job.exact,
                per_call=per_call,
                hidden=job.hidden,
                timed=job.timed,
            )
            for first, end, timestamp in calls:
                self.packets += 1
                data = job.packets[first] if end == first + 1 else b"".join(job.packets[first:end])
                self._receive(decoder.Decode(self._packet(data, timestamp)), job.key)
            if job.alone:
                self._flush()
            self._pace.add(job.encoded, len(job.packets), perf_counter() - began)
        except Exception as error:
            self._fail(error)

    def _session(self, job: GopJob) -> _Session:
        """The session for a job's configuration, opened or reopened if need be; it becomes the current one."""
        key = job.key
        session = self._sessions.get(key)
        if session is not None and (session.dpb_frames < job.dpb_frames or job.retry_of is not None):
            self._flush()
            self._stream.synchronize()  # kernels read the session's surfaces
            del self._sessions[key]
            session = None
        if session is None:
            for other in list(self._sessions):
                if sum(_SURFACES * k.surface_bytes for k in (*self._sessions, key)) <= self._memory_limit:
                    break
                self._close(other)
            try:
                decoder = self._open(key)
            except Exception:
                if not self._sessions:
                    raise
                # The driver may have run out of memory: close all others and try again.
                for other in list(self._sessions):
                    self._close(other)
                decoder = self._open(key)
            session = self._sessions[key] = _Session(decoder, job.dpb_frames)
        self._sessions.move_to_end(key)
        self._current = key
        return session

    def _open(self, key: SessionKey) -> NvdecDecoder:
        import PyNvVideoCodec as nvc  # noqa: N813

        log.debug("opening a decode session for %s", key)
        decoder: NvdecDecoder = nvc.CreateDecoder(
            gpuid=self._device_id,
            codec=getattr(nvc.cudaVideoCodec, key.codec.upper()),
            cudastream=self._stream.cuda_stream,
            usedevicememory=True,
            maxwidth=key.width,
            maxheight=key.height,
        )
        return decoder

    def _close(self, key: SessionKey) -> None:
        with suppress(RuntimeError):
            self._stream.synchronize()  # kernels read its surfaces
        del self._sessions[key]
        self._staging.pop(key, None)
        self._queue.session_closed(key)

    def _receive(self, frames: Sequence[NvdecFrame], key: SessionKey) -> None:
        """Take the wanted ones of the frames that a session handed out. Their surfaces are reused after its next
        packet, in the order of the CUDA stream, so they are read or copied at once."""
        wanted: list[tuple[NvdecFrame, int, int]] = []
        for frame in frames:
            destination = self._matcher.match(frame.getPTS)
            if destination is None:
                continue
            number, row = destination
            # The size cannot change within a job, and reading it takes as long as a copy.
            if number != self._checked:
                shape, size = (key.height * 3 // 2, key.pitch), key.luma_bytes * 3 // 2
                if tuple(frame.shape) != shape or frame.framesize() != size:
                    raise VideoError(
                        f"clip {self._jobs[number].encoded.name} decodes to surfaces of {list(frame.shape)} in "
                        f"{frame.framesize()} bytes, its dataset says {list(shape)} in {size}: pack it again"
                    )
                self._checked = number
            wanted.append((frame, number, row))
        for frame, number, row in wanted:
            surface = frame.GetPtrToPlane(0)
            if len(wanted) < _AT_ONCE:
                surface = self._copied(surface, key)
            self._surfaces.add(surface, key.pitch, key.luma_bytes, self._jobs[number].target, row)
            self._waiting.append(number)
        if len(wanted) >= _AT_ONCE or self._staged > _STAGED - _AT_ONCE:
            self._launch()
        self._finish_confirmed()

    def _copied(self, surface: int, key: SessionKey) -> int:
        """A copy of a surface that stays as it is until the next launch."""
        import torch

        if key not in self._staging:
            shape = (_STAGED, key.surface_bytes)
            self._staging[key] = torch.empty(shape, dtype=torch.uint8, device=self._stream.device)
        copy = self._staging[key].data_ptr() + self._staged * key.surface_bytes
        self._surfaces.copies.on_device(copy, surface, key.surface_bytes)
        self._staged += 1
        return copy

    def _launch(self) -> None:
        """Queue the work on all frames that wait for it."""
        if not self._waiting:
            return
        written = self._surfaces.launch()
        for number in self._waiting:
            self._frames_left[number] -= 1
            if not self._frames_left[number]:
                self._unconfirmed.append((number, written))
        self._waiting, self._staged = [], 0

    def _flush(self) -> None:
        """End the current stream and take its last frames. If any is missing, all jobs still in it are retried."""
        if self._current is not None and self._current in self._sessions:
            decoder = self._sessions[self._current].decoder
            self._receive(decoder.Decode(self._packet(b"", 0)), self._current)
        self._launch()
        missing = self._matcher.drain()
        if missing:
            self._stream.synchronize()  # what is retried must not be written by what failed
        self._finish_confirmed()
        self._unconfirmed.clear()
        for number in list(self._jobs):
            job = self._forget(number)
            # Nobody knows which frames are missing, so no job that is still in the decoder can be trusted.
            if missing:
                self._queue.retry(job, job.as_video_error(f"{missing} frames do not come out of the decoder"))
            else:
                job.group.finish()

    def _finish_confirmed(self) -> None:
        while self._unconfirmed and self._unconfirmed[0][0] < self._matcher.confirmed:
            number, written = self._unconfirmed.popleft()
            self._forget(number).group.finish(written)

    def _forget(self, number: int) -> GopJob:
        del self._frames_left[number]
        return self._jobs.pop(number)

    def _fail(self, error: Exception) -> None:
        """Close a session that failed and retry every job in it: it may have held frames of each."""
        self._surfaces.clear()
        self._waiting, self._staged = [], 0
        self._unconfirmed.clear()
        self._matcher.reset()
        if self._current is not None and self._current in self._sessions:
            self._close(self._current)
        self._current = None
        with suppress(RuntimeError):
            self._stream.synchronize()  # as in `_flush`
        for number in list(self._jobs):
            job = self._forget(number)
            self._queue.retry(job, job.as_video_error(error))


class _PacketFactory:
    """Makes PyNvVideoCodec's packets; one without data ends the stream."""

    def __init__(self) -> None:
        import PyNvVideoCodec as nvc  # noqa: N813

        self._new = nvc.PacketData
        # The address of the bytes by Python's C interface takes a tenth of the time that it takes by way of NumPy.
        self._address = ctypes.PyDLL(None).PyBytes_AsString
        self._address.argtypes, self._address.restype = [ctypes.py_object], ctypes.c_void_p

    def __call__(self, data: bytes, timestamp: int) -> Any:
        packet = self._new()
        if data:
            # PyNvVideoCodec copies what it points to before `Decode` returns; `data` lives that long.
            packet.bsl_data = self._address(data)
        packet.bsl = len(data)
        packet.pts = timestamp
        return packet
