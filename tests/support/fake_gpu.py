"""A GPU that is not there: FFmpeg stands in for NVDEC, host memory for the GPU's, and NumPy for its kernels."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import torch

from streamvid.bitstream.annexb import NAL_SYNTAX
from streamvid.color import surfaces
from streamvid.color.picture import picture_of
from streamvid.decode import nvdec, surface_queue
from streamvid.video.codec_context import MAX_REORDER, in_band_description, open_context, padded_packet
from tests.support.surfaces import launch

Spoil = Callable[[list["Surface"]], list["Surface"]]
"""Changes the frames of one call."""


class Surface:
    def __init__(self, frame: av.VideoFrame) -> None:
        picture = picture_of(frame)
        luma, first, second = picture.planes
        height, pitch = frame.height, 2 * first.shape[1]
        self.samples = np.zeros((height + len(first), pitch), dtype=luma.dtype)
        chroma = self.samples[height:]
        self.samples[:height, : frame.width], chroma[:, ::2], chroma[:, 1::2] = luma, first, second
        self.samples <<= 16 - picture.form.bits if picture.form.bits > 8 else 0
        self._pts = frame.pts
        # PyNvVideoCodec rounds down.
        self.shape = (height * 3 // 2, pitch)
        self._size: int = height * 3 * pitch // 2 * luma.itemsize

    def framesize(self) -> int:
        return self._size

    def getPTS(self) -> int:  # noqa: N802
        assert self._pts is not None
        return self._pts

    def GetPtrToPlane(self, plane: int) -> int:  # noqa: N802
        return self.samples.ctypes.data

    def reuse(self) -> None:
        """Overwrite the surface, as a decoder does when it uses it again."""
        self.samples[:] = 77


class Decoder:
    """PyNvVideoCodec's, by FFmpeg. Of the packets of a call only the first gets the timestamp that was given."""

    def __init__(self, codec: str, spoil: Spoil) -> None:
        self._codec, self._spoil = codec, spoil
        self._handed_out: list[Surface] = []
        self._start()

    def _start(self) -> None:
        if self._codec not in NAL_SYNTAX:
            self._context: Any = av.CodecContext.create(self._codec, "r")
            self._context.thread_count = 1
            return
        # NVDEC holds pictures back as long as the standard lets it, where the bitstream does not say how long.
        self._context = open_context(in_band_description(self._codec, width=64, height=64), MAX_REORDER)

    def frames(self, data: bytes, pts: int) -> list[av.VideoFrame]:
        """The frames that FFmpeg outputs for a packet, or, without data, at the end."""
        if not data:
            frames = self._context.decode(None)
            self._start()
            return list(frames)
        units = [padded_packet(data)]
        if self._codec in NAL_SYNTAX:
            units = [*self._context.parse(data), *self._context.parse()]
        frames = []
        for n, unit in enumerate(units):
            unit.pts = pts + n
            frames += self._context.decode(unit)
        return frames

    def Decode(self, packet: Any) -> list[Surface]:  # noqa: N802
        for surface in self._handed_out:
            surface.reuse()
        data = ctypes.string_at(packet.bsl_data, packet.bsl) if packet.bsl else b""
        self._handed_out = [Surface(frame) for frame in self.frames(data, packet.pts)]
        return self._spoil(self._handed_out)


class Calls:
    def __init__(self, stream: int) -> None: ...

    def wait(self, event: Event) -> None: ...

    def reached(self, event: Event) -> bool:
        return event.query()

    def on_device(self, destination: int, source: int, size: int) -> None:
        ctypes.memmove(destination, source, size)

    to_device = on_device


class Stream:
    cuda_stream, device = 0, torch.device("cpu")

    def __init__(self, device_id: int, priority: int = 0) -> None: ...

    def synchronize(self) -> None: ...

    def wait_event(self, event: Event) -> None: ...

    def wait_stream(self, stream: Stream) -> None: ...


class Event:
    def record(self, stream: Stream) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


def launch_in_order(*given: Any) -> None:
    """In the place of a launch: earlier work has ended."""
    for wait in BEFORE_LAUNCHES:
        wait()
    launch(*given)


BEFORE_LAUNCHES: list[Callable[[], None]] = []


def put_in_place(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have the stand-ins used. Returns the arguments of every session that is opened."""
    calls: list[Any] = []

    def create(**options: Any) -> Decoder:
        calls.append(options)
        return Decoder(options["codec"], lambda frames: frames)

    empty = torch.empty
    codecs = SimpleNamespace(**{name.upper(): name for name in ("h264", "hevc", "vp8", "vp9", "mpeg4")})
    fake = SimpleNamespace(PacketData=SimpleNamespace, CreateDecoder=create, cudaVideoCodec=codecs)
    monkeypatch.setitem(sys.modules, "PyNvVideoCodec", fake)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **more: empty(*size, **more))
    for name, value in {
        "Stream": Stream,
        "Event": Event,
        "device": nullcontext,
        "stream": nullcontext,
        "default_stream": Stream,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=1 << 36))
    for module in (surface_queue, nvdec):
        monkeypatch.setattr(module, "CudaCalls", Calls)
    monkeypatch.setattr(surfaces, "launch", launch_in_order)
    return calls
