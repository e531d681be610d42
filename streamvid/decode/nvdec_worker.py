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

from streamvid.color import nv12
from streamvid.decode.deadline import Pace
from streamvid.decode.decode_job import GopJob, SessionKey
from streamvid.decode.frame_matching import FrameMatcher
from streamvid.decode.job_queue import DecodeQueue
from streamvid.decode.staging import STAGED, PinnedIndexBuffer, StagingBuffer
from streamvid.errors import VideoError

if TYPE_CHECKING:
    import torch

_INDEX_BUFFERS: Final = 16
"""Conversions queued on the GPU before the worker waits for the first."""
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
        memory_limit: bytes of GPU memory that its sessions may take together. One may always be open.
    """

    def __init__(self, device_id: int, queue: DecodeQueue, pace: Pace, *, memory_limit: int) -> None:
        import torch

        self._device_id, self._queue, self._pace, self._memory_limit = device_id, queue, pace, memory_limit
        self.doing: tuple[GopJob, ...] = ()
        self.packets = 0
        """See `streamvid.decode.engine_threads.Worker`."""
        self._abandoned = False
        self._stream = torch.cuda.Stream(device_id)  # type: ignore[no-untyped-call]
        self._copies = _CudaCopies(self._stream.cuda_stream)
        self._packet = _PacketFactory()
        # Least recently used first.
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()
        self._current: SessionKey | None = None
        self._matcher = FrameMatcher()
        # Jobs in the current session by number, and how many of their frames are not converted yet.
        self._jobs: dict[int, GopJob] = {}
        self._frames_left: dict[int, int] = {}
        self._last_number = 0
        # Jobs whose frames are all converted but not yet confirmed, and the CUDA event after which they are written.
        self._unconfirmed: deque[tuple[int, torch.cuda.Event]] = deque()
        # The last job whose surface size was checked.
        self._checked = 0
        # Frames copied to the staging buffer: job number, job, row in its output.
        self._staged: list[tuple[int, GopJob, int]] = []
        self._staging: dict[SessionKey, StagingBuffer] = {}
        self._index_buffers = deque(PinnedIndexBuffer() for _ in range(_INDEX_BUFFERS))
        # References to jobs whose output a queued kernel still writes: their memory must not be freed before.
        self._writing: deque[tuple[torch.cuda.Event, GopJob]] = deque()

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
                self._stream.synchronize()
            except Exception as error:
                self._fail(error)
            self._writing.clear()
            self.doing = ()
            if self._abandoned:
                return None
            job = self._queue.take(current=self._current, opened=self._sessions, block=True)
        return job

    def _decode(self, job: GopJob) -> None:
        began, exact = perf_counter(), job.retry_of is not None or not job.in_order
        try:
            # NVDEC does not reset at a CRA picture that follows another job: it would decode its leading pictures,
            # wrongly.
            if job.key != self._current or exact or not job.starts_with_idr:
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
            calls = self._matcher.expect(self._last_number, job.display_order, job.dst_rows, exact=exact)
            for first, end, timestamp in calls:
                self.packets += 1
                data = job.packets[first] if end == first + 1 else b"".join(job.packets[first:end])
                self._receive(decoder.Decode(self._packet(data, timestamp)), job.key)
            if exact:
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
            codec={"h264": nvc.cudaVideoCodec.H264, "hevc": nvc.cudaVideoCodec.HEVC}[key.codec],
            cudastream=self._stream.cuda_stream,
            usedevicememory=True,
            maxwidth=key.width,
            maxheight=key.height,
        )
        return decoder

    def _close(self, key: SessionKey) -> None:
        del self._sessions[key]
        self._staging.pop(key, None)
        self._queue.session_closed(key)

    def _receive(self, frames: Sequence[NvdecFrame], key: SessionKey) -> None:
        """Stage the wanted ones of the frames that a session handed out. Their surfaces are reused after its next
        packet, in the order of the CUDA stream, so they are copied at once."""
        if not frames:
            return
        samples_address = self._staging_buffer(key).samples_address
        for frame in frames:
            destination = self._matcher.match(frame.getPTS)
            if destination is None:
                continue
            number, row = destination
            job = self._jobs[number]
            # The size cannot change within a job, and reading it takes as long as the copy.
            if number != self._checked:
                if tuple(frame.shape) != (key.surface_rows, key.width) or frame.framesize() != key.surface_bytes:
                    raise VideoError(
                        f"clip {job.encoded.name} decodes to surfaces of {list(frame.shape)} in {frame.framesize()} "
                        f"bytes, its dataset says {[key.surface_rows, key.width]} in {key.surface_bytes}: pack it again"
                    )
                self._checked = number
            # One kernel launch writes to one tensor, and converts by one matrix.
            if self._staged:
                _, before, _ = self._staged[-1]
                if before.out is not job.out or before.encoded.color != job.encoded.color:
                    self._convert()
            self._copies.on_device(
                samples_address + len(self._staged) * key.surface_bytes, frame.GetPtrToPlane(0), key.surface_bytes
            )
            self._staged.append((number, job, row))
            if len(self._staged) == STAGED:
                self._convert()
        self._finish_confirmed()

    def _staging_buffer(self, key: SessionKey) -> StagingBuffer:
        if key not in self._staging:
            self._staging[key] = StagingBuffer(key, self._stream.device)
        return self._staging[key]

    def _convert(self) -> None:
        """Queue the conversion of the staged frames to RGB."""
        import torch

        if not self._staged:
            return
        staged, self._staged = self._staged, []
        _, job, _ = staged[0]
        staging, count = self._staging_buffer(job.key), len(staged)
        indices = self._index_buffers[0]
        if indices.reusable is not None:
            indices.reusable.synchronize()
        indices.rows[:count] = [row for _, _, row in staged]
        self._copies.to_device(staging.dst_rows_address, indices.address, 8 * count)
        color, samples, shift = job.encoded.color, staging.samples, 6 if job.key.bit_depth > 8 else 0
        if color.as_dali and shift:
            nv12.to_8_bit(samples, staging.samples8, count=count, shift=shift)
            samples = staging.samples8
        nv12.to_rgb(samples, job.out, staging.dst_rows, count=count, color=color, shift=shift)
        written = torch.cuda.Event()  # type: ignore[no-untyped-call]
        written.record(self._stream)
        indices.reusable = written
        self._index_buffers.rotate(-1)
        self._writing.append((written, job))
        for number, _, _ in staged:
            self._frames_left[number] -= 1
            if not self._frames_left[number]:
                self._unconfirmed.append((number, written))
        while self._writing and self._writing[0][0].query():  # type: ignore[no-untyped-call]
            self._writing.popleft()

    def _flush(self) -> None:
        """End the current stream and take its last frames. If any is missing, all jobs still in it are retried."""
        if self._current is not None and self._current in self._sessions:
            decoder = self._sessions[self._current].decoder
            self._receive(decoder.Decode(self._packet(b"", 0)), self._current)
        self._convert()
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
        self._staged.clear()
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


class _CudaCopies:
    """Asynchronous copies by the CUDA driver's own API, queued on a stream.

    PyTorch would do the same by way of DLPack at ten times the cost in Python per frame. The calls only queue, so they
    keep the GIL (PyDLL): with as many threads, releasing it and getting it back costs more than the call.
    """

    def __init__(self, stream: int) -> None:
        driver = ctypes.PyDLL("libcuda.so.1")
        self._stream = stream
        self._on_device, self._to_device = driver.cuMemcpyDtoDAsync_v2, driver.cuMemcpyHtoDAsync_v2
        for call in (self._on_device, self._to_device):
            call.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
            call.restype = ctypes.c_int

    def on_device(self, destination: int, source: int, size: int) -> None:
        """Copy `size` bytes from one device address to another."""
        _check(self._on_device(destination, source, size, self._stream))

    def to_device(self, destination: int, source: int, size: int) -> None:
        """Copy `size` bytes from an address in pinned host memory to a device address."""
        _check(self._to_device(destination, source, size, self._stream))


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver cannot copy a frame: error {status}")
