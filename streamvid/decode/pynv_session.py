"""A decode session of PyNvVideoCodec, used if the native module (`streamvid.decode.native_session`) was not built."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from streamvid.bitstream.annexb import NAL_SYNTAX
from streamvid.decode.cuda_calls import CudaCalls
from streamvid.decode.decode_job import GopJob
from streamvid.decode.frame_matching import PACKETS_PER_CALL, FrameMatcher
from streamvid.decode.session_key import SessionKey
from streamvid.decode.surface_queue import Take
from streamvid.errors import VideoError

if TYPE_CHECKING:
    import torch

_AT_ONCE: Final = 4
"""With this many wanted frames from one call, the kernels are launched at once and read the decoder's own surfaces.
Fewer frames are copied and wait for others, because a launch takes as much time in Python as ten copies, and the
decoder reuses its surfaces after the next call."""
_STAGED: Final = 32
"""Most copied frames that wait for a launch: few enough to need little memory."""


class NvdecFrame(Protocol):
    """A decoded frame of PyNvVideoCodec."""

    shape: Sequence[int]

    def framesize(self) -> int: ...

    def getPTS(self) -> int: ...  # noqa: N802

    def GetPtrToPlane(self, plane: int) -> int: ...  # noqa: N802


class NvdecDecoder(Protocol):
    """A decode session of PyNvVideoCodec."""

    def Decode(self, packet: object) -> Sequence[NvdecFrame]: ...  # noqa: N802


def open_decoder(key: SessionKey, *, device_id: int, stream: int) -> NvdecDecoder:
    """PyNvVideoCodec's decoder for a configuration, which works on a CUDA stream."""
    import PyNvVideoCodec as nvc  # noqa: N813

    decoder: NvdecDecoder = nvc.CreateDecoder(
        gpuid=device_id,
        codec=getattr(nvc.cudaVideoCodec, key.codec.upper()),
        cudastream=stream,
        usedevicememory=True,
        maxwidth=key.width,
        maxheight=key.height,
    )
    return decoder


class PynvSession:
    """See `streamvid.decode.nvdec_worker.DecodeSession`.

    Args:
        decoder: PyNvVideoCodec's, for `key`.
        key, dpb_frames: configuration of its jobs, and the most DPB frames that a job may need.
        take, launch: as in `streamvid.decode.native_session.NativeSession`.
        calls: on the decoder's CUDA stream.
        device: the GPU.
    """

    def __init__(
        self,
        decoder: NvdecDecoder,
        key: SessionKey,
        dpb_frames: int,
        *,
        take: Take,
        launch: Callable[[], None],
        calls: CudaCalls,
        device: torch.device,
    ) -> None:
        self._decoder: NvdecDecoder | None = decoder
        self.key, self._dpb_frames, self.packets = key, dpb_frames, 0
        self._take, self._launch, self._calls, self._device = take, launch, calls, device
        self._packet = _PacketFactory()
        self._spent = 0, 0.0
        self._matcher = FrameMatcher()
        # Number of the last job whose surface size was checked.
        self._checked = 0
        # Number of copies that wait for a launch, and their memory.
        self._staged = 0
        self._staging: torch.Tensor | None = None

    @property
    def confirmed(self) -> int:
        return self._matcher.confirmed

    @property
    def unfed(self) -> int:
        return 0

    def takes(self, key: SessionKey, dpb_frames: int = 0) -> bool:
        return key == self.key and dpb_frames <= self._dpb_frames

    def follows(self, job: GopJob) -> bool:
        # NVDEC does not reset at a CRA picture that follows another job: it would decode the leading pictures, wrongly.
        return job.key == self.key and job.starts_with_idr

    def decode(self, number: int, jobs: Sequence[GopJob]) -> None:
        began = perf_counter()
        for n, job in enumerate(jobs, number):
            self._decode_job(n, job)
        self._spent = sum(len(job.packets) for job in jobs), perf_counter() - began

    def begun(self, number: int) -> bool:
        return True

    def spent(self) -> tuple[int, float]:
        spent, self._spent = self._spent, (0, 0.0)
        return spent

    def _decode_job(self, number: int, job: GopJob) -> None:
        # Only in Annex B can the parser find where one packet ends and the next begins.
        per_call = PACKETS_PER_CALL if self.key.codec in NAL_SYNTAX else 1
        calls = self._matcher.expect(
            number,
            job.display_order.tolist(),
            job.dst_rows,
            packet_by_packet=job.packet_by_packet,
            per_call=per_call,
            hidden=job.hidden,
            timed=job.timed,
        )
        for first, end, timestamp in calls:
            self.packets += 1
            self._decode(job.packets.joined(first, end), timestamp, job.encoded.name)

    def flush(self) -> None:
        self._decode(b"", 0, "")
        self.hand_over()
        if missing := self._matcher.drain():
            raise RuntimeError(f"{missing} frames do not come out of the decoder")

    @property
    def oldest_waiting(self) -> int | None:
        return None

    def hand_over(self) -> None:
        self._launch()
        self._staged = 0

    def salvage(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def close(self) -> None:
        self._decoder = None

    def _decode(self, data: bytes, timestamp: int, name: str) -> None:
        """Decode a packet and take the wanted frames that come out. The decoder reuses their surfaces at its next
        packet, in the order of the CUDA stream, so kernels or copies that read them are queued at once."""
        assert self._decoder is not None
        key, wanted = self.key, []
        for frame in self._decoder.Decode(self._packet(data, timestamp)):
            destination = self._matcher.match(frame.getPTS)
            if destination is None:
                continue
            number, row = destination
            # Checked once per job, within which the size cannot change: reading it takes as long as a copy.
            if number != self._checked:
                # PyNvVideoCodec rounds odd sides down.
                shape, size = (key.height * 3 // 2, key.pitch), key.luma_bytes * 3 // 2
                if tuple(frame.shape) != shape or frame.framesize() != size:
                    raise VideoError(
                        f"clip {name} decodes to surfaces of {list(frame.shape)} in {frame.framesize()} bytes, its "
                        f"dataset says {list(shape)} in {size}: pack it again"
                    )
                self._checked = number
            wanted.append((number, row, frame.GetPtrToPlane(0)))
        for number, row, surface in wanted:
            address = self._copied(surface) if len(wanted) < _AT_ONCE else surface
            self._take(number, np.array([row], dtype=np.int32), np.array([[address, key.pitch, key.luma_bytes]]))
        if len(wanted) >= _AT_ONCE or self._staged > _STAGED - _AT_ONCE:
            self.hand_over()

    def _copied(self, surface: int) -> int:
        """Device address of a copy of a surface, valid until the next launch."""
        import torch

        size = self.key.surface_bytes
        if self._staging is None:
            self._staging = torch.empty((_STAGED, size), dtype=torch.uint8, device=self._device)
        copy = self._staging.data_ptr() + self._staged * size
        self._calls.on_device(copy, surface, size)
        self._staged += 1
        return copy


class _PacketFactory:
    """Makes PyNvVideoCodec's packets; one without data ends the stream."""

    def __init__(self) -> None:
        import PyNvVideoCodec as nvc  # noqa: N813

        self._new = nvc.PacketData
        # Python's C API gives the address of the bytes in a tenth of NumPy's time.
        self._address = ctypes.PyDLL(None).PyBytes_AsString
        self._address.argtypes, self._address.restype = [ctypes.py_object], ctypes.c_void_p

    def __call__(self, data: bytes, timestamp: int) -> Any:
        packet = self._new()
        if data:
            # PyNvVideoCodec copies the bytes before `Decode` returns; `data` lives that long.
            packet.bsl_data = self._address(data)
        packet.bsl = len(data)
        packet.pts = timestamp
        return packet
