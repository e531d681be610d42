"""One engine of a GPU's decoding chip: PyNvVideoCodec's decoders, by kind, which stay open, and a thread that feeds
them."""

from __future__ import annotations

import ctypes
import logging
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, Final

from streamvid.color import nv12
from streamvid.decode.decode_job import GopJob, SessionKey
from streamvid.decode.frame_matching import FrameMatcher
from streamvid.decode.job_queue import DecodeQueue
from streamvid.errors import VideoError

_STAGED: Final = 32
"""Frames that are converted at once: enough to be worth a kernel's start, few enough to need little memory."""
_SLOTS: Final = 16
"""Conversions that are queued on the GPU before anybody waits for the first."""
_KEPT: Final = 32
"""Frames that a decoder holds memory for, by measurement: 25 to 33."""

log = logging.getLogger(__name__)


class NvdecWorker:
    """Decodes runs, one after the other as one stream, as long as they are of one kind.

    To be used by one thread.

    Args:
        device_id: the GPU's number.
        waiting: where runs come from.
        room: bytes of GPU memory that its decoders may take, if more than one is open.
    """

    def __init__(self, device_id: int, waiting: DecodeQueue, *, room: int) -> None:
        import torch

        self._device_id, self._waiting, self._room = device_id, waiting, room
        self._stream = torch.cuda.Stream(device_id)  # type: ignore[no-untyped-call]
        self._copy = _Copier(self._stream.cuda_stream)
        self._packet = _Packets()
        self._decoders: OrderedDict[SessionKey, tuple[Any, int]] = OrderedDict()
        self._current: SessionKey | None = None
        self._arrivals = FrameMatcher()
        # Runs in the current decoder by number, and how many of their frames are to come.
        self._runs: dict[int, GopJob] = {}
        self._left: dict[int, int] = {}
        self._number = 0
        # Runs whose frames all came, if nothing went wrong, and the CUDA event after which they are written.
        self._came: deque[tuple[int, Any]] = deque()
        # The last run whose frames were looked at, whether they have its size.
        self._checked = 0
        self._staged: list[tuple[int, GopJob, int]] = []
        self._stages: dict[SessionKey, StagingBuffer] = {}
        self._slots = deque(PinnedIndexBuffer() for _ in range(_SLOTS))
        # Runs whose frames a kernel may still be writing: their memory must not be given to others.
        self._writing: deque[tuple[Any, GopJob]] = deque()

    def work(self) -> None:
        """Decode until no more runs come."""
        import torch

        with torch.cuda.device(self._device_id), torch.cuda.stream(self._stream):
            while (run := self._next()) is not None:
                self._decode(run)
                # Until the next comes, its frames must not be kept.
                del run
            for kind in list(self._decoders):
                self._close(kind)

    def _next(self) -> GopJob | None:
        run = self._waiting.take(current=self._current, opened=self._decoders, block=False)
        if run is None:
            # Nothing to go on with: what is still in the decoder comes out.
            try:
                self._flush()
                self._stream.synchronize()
            except Exception as error:
                self._fail(error)
            self._writing.clear()
            run = self._waiting.take(current=self._current, opened=self._decoders, block=True)
        return run

    def _decode(self, run: GopJob) -> None:
        exact = run.tried is not None
        try:
            # A CRA picture behind another run is not taken for a beginning, and its pictures get mixed up.
            if run.kind != self._current or exact or not run.anew:
                self._flush()
            decoder = self._decoder(run)
        except Exception as error:
            self._fail(error)
            self._waiting.again(run, run.wrong(error))
            if run.kind not in self._decoders:
                self._waiting.closed(run.kind)
            return
        self._number += 1
        self._runs[self._number] = run
        self._left[self._number] = len(run.rows)
        try:
            for first, end, time in self._arrivals.send(self._number, run.ranks, run.rows, exact=exact):
                data = run.packets[first] if end == first + 1 else b"".join(run.packets[first:end])
                self._take(decoder.Decode(self._packet(data, time)), run.kind)
            if exact:
                self._flush()
        except Exception as error:
            self._fail(error)

    def _decoder(self, run: GopJob) -> Any:
        """The one for a run's kind, opened if need be."""
        kind = run.kind
        decoder, pictures = self._decoders.get(kind, (None, 0))
        if decoder is not None and (pictures < run.pictures or run.tried):
            self._flush()
            del decoder, self._decoders[kind]
            decoder = None
        if decoder is None:
            for other in list(self._decoders):
                if sum(_KEPT * k.frame_bytes for k in (*self._decoders, kind)) <= self._room:
                    break
                self._close(other)
            try:
                decoder = self._open(kind)
            except Exception:
                if not self._decoders:
                    raise
                # The driver has no room for another: the others make some.
                for other in list(self._decoders):
                    self._close(other)
                decoder = self._open(kind)
            self._decoders[kind] = decoder, run.pictures
        self._decoders.move_to_end(kind)
        self._current = kind
        return decoder

    def _open(self, kind: SessionKey) -> Any:
        import PyNvVideoCodec as nvc  # noqa: N813

        log.debug("opening a decoder for %s", kind)
        return nvc.CreateDecoder(
            gpuid=self._device_id,
            codec={"h264": nvc.cudaVideoCodec.H264, "hevc": nvc.cudaVideoCodec.HEVC}[kind.codec],
            cudastream=self._stream.cuda_stream,
            usedevicememory=True,
            maxwidth=kind.width,
            maxheight=kind.height,
        )

    def _close(self, kind: SessionKey) -> None:
        del self._decoders[kind]
        self._stages.pop(kind, None)
        self._waiting.closed(kind)

    def _take(self, frames: Sequence[Any], kind: SessionKey) -> None:
        """Frames that a decoder has handed out; it uses their memory again after its next packet, in the order of the
        CUDA stream."""
        if not frames:
            return
        samples_at = self._stage(kind).samples_at
        for frame in frames:
            place = self._arrivals.came(frame.getPTS)
            if place is None:
                continue
            number, row = place
            run = self._runs[number]
            # The size cannot change within a run, and to ask for it takes as long as the copy.
            if number != self._checked:
                if tuple(frame.shape) != (kind.rows, kind.width) or frame.framesize() != kind.frame_bytes:
                    raise VideoError(
                        f"clip {run.part.name} decodes to pictures of {list(frame.shape)} in {frame.framesize()} "
                        f"bytes, its dataset says {[kind.rows, kind.width]} in {kind.frame_bytes}: pack it again"
                    )
                self._checked = number
            # A conversion writes into one tensor, with one range of levels.
            if self._staged:
                _, before, _ = self._staged[-1]
                if before.out is not run.out or before.part.full_range != run.part.full_range:
                    self._convert()
            self._copy.on_device(
                samples_at + len(self._staged) * kind.frame_bytes, frame.GetPtrToPlane(0), kind.frame_bytes
            )
            self._staged.append((number, run, row))
            if len(self._staged) == _STAGED:
                self._convert()
        self._finish()

    def _stage(self, kind: SessionKey) -> StagingBuffer:
        if kind not in self._stages:
            self._stages[kind] = StagingBuffer(kind, self._stream.device)
        return self._stages[kind]

    def _convert(self) -> None:
        """Make RGB of what is staged."""
        import torch

        if not self._staged:
            return
        staged, self._staged = self._staged, []
        _, run, _ = staged[0]
        stage, count = self._stage(run.kind), len(staged)
        places = self._slots[0]
        if places.written is not None:
            places.written.synchronize()
        places.rows[:count] = [row for _, _, row in staged]
        self._copy.to_device(stage.places_at, places.address, 8 * count)
        if stage.narrowed is not stage.samples:
            nv12.narrow(stage.samples, stage.narrowed, count=count, shift=6)
        nv12.to_rgb(stage.narrowed, run.out, stage.places, count=count, full_range=run.part.full_range)
        written = torch.cuda.Event()  # type: ignore[no-untyped-call]
        written.record(self._stream)
        places.written = written
        self._slots.rotate(-1)
        self._writing.append((written, run))
        for number, _, _ in staged:
            self._left[number] -= 1
            if not self._left[number]:
                self._came.append((number, written))
        while self._writing and self._writing[0][0].query():
            self._writing.popleft()

    def _flush(self) -> None:
        """Take what is still in the current decoder. What does not come out is tried again."""
        if self._current is not None and self._current in self._decoders:
            decoder, _ = self._decoders[self._current]
            self._take(decoder.Decode(self._packet(b"", 0)), self._current)
        self._convert()
        missing = self._arrivals.ended()
        self._finish()
        self._came.clear()
        for number in list(self._runs):
            run = self._settle(number)
            # It is not known which are missing: no run that is in the decoder can be trusted.
            if missing:
                self._waiting.again(run, run.wrong(f"{missing} frames do not come out of the decoder"))
            else:
                run.batch.finished()

    def _finish(self) -> None:
        """Runs whose frames have certainly come are done."""
        while self._came and self._came[0][0] < self._arrivals.certain:
            number, written = self._came.popleft()
            self._settle(number).batch.finished(written)

    def _settle(self, number: int) -> GopJob:
        """A run is not in the decoder any more."""
        del self._left[number]
        return self._runs.pop(number)

    def _fail(self, error: Exception) -> None:
        """A decoder that failed is of no use, and may hold frames of every run that is in it."""
        self._staged.clear()
        self._came.clear()
        self._arrivals.forget()
        if self._current is not None and self._current in self._decoders:
            self._close(self._current)
        self._current = None
        for number in list(self._runs):
            run = self._settle(number)
            self._waiting.again(run, run.wrong(error))


class _Packets:
    """Makes what PyNvVideoCodec decodes; without data it is the end of what belongs together."""

    def __init__(self) -> None:
        import PyNvVideoCodec as nvc  # noqa: N813

        self._made = nvc.PacketData
        # Where bytes lie, by Python's C interface: a tenth of what it takes by way of NumPy.
        self._address = ctypes.PyDLL(None).PyBytes_AsString
        self._address.argtypes, self._address.restype = [ctypes.py_object], ctypes.c_void_p

    def __call__(self, data: bytes, time: int) -> Any:
        packet = self._made()
        if data:
            # PyNvVideoCodec copies what it is pointed to before `Decode` returns; `data` lives that long.
            packet.bsl_data = self._address(data)
        packet.bsl = len(data)
        packet.pts = time
        return packet


class StagingBuffer:
    """Memory of one engine for decoded frames of one kind.

    Attributes:
        samples: [_STAGED, rows, width], uint8, or int16 for more than 8 bits, as NVDEC delivers them.
        narrowed: the same in uint8.
        places: int64 [_STAGED], where the frames go.
        samples_at, places_at: their addresses.
    """

    def __init__(self, kind: SessionKey, device: Any) -> None:
        import torch

        shape = (_STAGED, kind.rows, kind.width)
        self.narrowed = torch.empty(shape, dtype=torch.uint8, device=device)
        self.samples = torch.empty(shape, dtype=torch.int16, device=device) if kind.bits > 8 else self.narrowed
        self.places = torch.empty(_STAGED, dtype=torch.int64, device=device)
        self.samples_at, self.places_at = self.samples.data_ptr(), self.places.data_ptr()


class PinnedIndexBuffer:
    """Memory of the host that the GPU can fetch the places of frames from.

    Attributes:
        rows: int64 [_STAGED].
        address: where they are.
        written: the CUDA event after which they may be written again.
    """

    def __init__(self) -> None:
        import torch

        self._memory = torch.empty(_STAGED, dtype=torch.int64, pin_memory=True)
        self.rows = self._memory.numpy()
        self.address = self._memory.data_ptr()
        self.written: Any = None


class _Copier:
    """The driver's own copies, queued on a CUDA stream.

    PyTorch would do the same by way of DLPack, at ten times the cost in Python for each frame. The calls only queue, so
    the GIL is kept: among as many threads, giving it away and getting it back costs more than the call.
    """

    def __init__(self, stream: int) -> None:
        driver = ctypes.PyDLL("libcuda.so.1")
        self._stream = stream
        self._on_device, self._to_device = driver.cuMemcpyDtoDAsync_v2, driver.cuMemcpyHtoDAsync_v2
        for call in (self._on_device, self._to_device):
            call.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
            call.restype = ctypes.c_int

    def on_device(self, to: int, source: int, size: int) -> None:
        """Copy bytes on the GPU."""
        _check(self._on_device(to, source, size, self._stream))

    def to_device(self, to: int, source: int, size: int) -> None:
        """Copy bytes of pinned memory."""
        _check(self._to_device(to, source, size, self._stream))


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver cannot copy a frame: error {status}")
