"""Sessions of the native module on a GPU: the samples that FFmpeg decodes, bit for bit, and none of another place."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any, Final

import av
import numpy as np
import numpy.typing as npt
import pytest
import torch

from streamvid.arrays import Int32, Int64
from streamvid.bitstream.packets import Packets
from streamvid.color.surfaces import Window
from streamvid.decode.cuda_calls import CudaCalls
from streamvid.decode.native_session import NativeSession, largest
from streamvid.decode.nvdec_library import NvdecLibrary, native_library
from streamvid.decode.session_key import SessionKey

Planes = list[npt.NDArray[np.integer[Any]]]
FRAMES: Final = 40
_LATE: Final = 300_000
"""Cycles of the GPU that the reading of a picture waits."""
CASES: Final[dict[str, tuple[str, str, int, int, dict[str, str]]]] = {
    "h264": ("libx264", "yuv420p", 320, 180, {"x264-params": "bframes=3:b-adapt=0:ref=4"}),
    "h264 all intra": ("libx264", "yuv420p", 322, 178, {"g": "1"}),
    "h264 interlaced": ("libx264", "yuv420p", 320, 192, {"x264-params": "interlaced=1:bframes=2:b-adapt=0"}),
    "hevc": ("libx265", "yuv420p", 322, 182, {"x265-params": "bframes=3:b-adapt=0:log-level=none"}),
    "hevc 10 bits": ("libx265", "yuv420p10le", 324, 180, {"x265-params": "bframes=3:b-adapt=0:log-level=none"}),
    "hevc 12 bits": ("libx265", "yuv420p12le", 320, 180, {"x265-params": "bframes=3:b-adapt=0:log-level=none"}),
    "vp9": ("libvpx-vp9", "yuv420p", 320, 180, {"deadline": "realtime", "auto-alt-ref": "0"}),
    "vp9 odd": ("libvpx-vp9", "yuv420p", 321, 181, {"deadline": "realtime", "auto-alt-ref": "0"}),
}


def encode(name: str, pix_fmt: str, width: int, height: int, options: dict[str, str]) -> list[av.Packet[Any]]:
    """Noise that moves, as packets in no container."""
    context: Any = av.CodecContext.create(name, "w")
    context.width, context.height, context.pix_fmt = width, height, pix_fmt
    context.time_base, context.framerate = Fraction(1, 25), Fraction(25)
    context.options, context.gop_size = options, 16
    noise = np.random.default_rng(width).integers(0, 255, (height // 4 + 60, width // 4 + 60, 3), dtype=np.uint8)
    packets = []
    for n in range(FRAMES):
        picture = np.repeat(np.repeat(noise[n:, n // 2 :], 4, 0), 4, 1)[:height, :width]
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture)).reformat(format=pix_fmt)
        frame.pts = n
        packets += context.encode(frame)
    return packets + list(context.encode(None))


def by_ffmpeg(codec: str, packets: list[av.Packet[Any]], depth: int) -> dict[int, Planes]:
    """Planes as NVDEC has them: more than 8 bits at the top of 16."""
    decoder: Any = av.CodecContext.create(codec, "r")
    kind = np.uint16 if depth > 8 else np.uint8
    return {
        frame.pts: [
            np.frombuffer(p, kind).reshape(p.height, -1)[:, : p.width] << (16 - depth if depth > 8 else 0)
            for p in frame.planes
        ]
        for packet in [*packets, None]
        for frame in decoder.decode(packet)
    }


class Lane:
    """A session, and the pictures that it gave: by job and row, luma and interleaved chroma. They are read long after
    they were unmapped, in the order of the stream."""

    def __init__(self, library: NvdecLibrary, key: SessionKey) -> None:
        self._stream = torch.cuda.Stream(0)  # type: ignore[no-untyped-call]
        self.shown: dict[tuple[int, int], npt.NDArray[np.integer[Any]]] = {}
        self._read: dict[tuple[int, int], list[tuple[torch.Tensor, Any, int]]] = {}
        self._sizes: dict[int, tuple[int, int]] = {}
        self._calls = CudaCalls(self._stream.cuda_stream)
        self.session = NativeSession(
            library, device_id=0, key=largest(key, ()), stream=self._stream.cuda_stream, take=self._take,
            launch=lambda: None,
        )  # fmt: skip

    def _take(self, number: int, rows: Int32, surfaces: Int64) -> None:
        for row, surface in zip(rows.tolist(), surfaces.tolist(), strict=True):
            self._take_one(number, row, *surface)

    def _take_one(self, number: int, row: int, surface: int, pitch: int, chroma_at: int) -> None:
        kind = np.uint16 if self.session.key.bit_depth > 8 else np.uint8
        width, lines = (-(-side // 2) * 2 for side in self._sizes[number])
        line = pitch * np.dtype(kind).itemsize
        assert (number, row) not in self._read
        self._read[number, row] = planes = []
        with torch.cuda.stream(self._stream):
            torch.cuda._sleep(_LATE)  # type: ignore[no-untyped-call]
            for at, count in ((surface, lines), (surface + chroma_at, lines // 2)):
                plane = torch.zeros(count, pitch * np.dtype(kind).itemsize, dtype=torch.uint8, device="cuda")
                self._calls.on_device(plane.data_ptr(), at, line * (count - 1) + width * np.dtype(kind).itemsize)
                planes.append((plane, kind, width))

    def decode(self, number: int, key: SessionKey, packets: list[av.Packet[Any]]) -> None:
        self._sizes[number] = key.width, key.height
        job: Any = SimpleNamespace(
            encoded=SimpleNamespace(name=f"clip-{number}"), packets=Packets.of([bytes(one) for one in packets]),
            display_order=(order := np.array([int(packet.pts or 0) for packet in packets])), starts_with_idr=True,
            exclusive=False, packet_by_packet=False, timed=True,
            rows=np.where(order < FRAMES, order, -1).astype(np.int32), dpb_frames=0, key=key,
            target=SimpleNamespace(window=Window(0, key.height, 0, key.width)),
        )  # fmt: skip
        with torch.cuda.device(0):
            self.session.decode(number, [job])

    def finish(self) -> None:
        with torch.cuda.device(0):
            self.session.flush()
        self.session.close()
        self._stream.synchronize()
        for place, planes in self._read.items():
            self.shown[place] = np.concatenate([one.cpu().numpy().view(kind)[:, :width] for one, kind, width in planes])


@pytest.fixture
def library() -> NvdecLibrary:
    found = native_library()
    if found is None:
        pytest.skip("the native module was not built")
    return found


def same(got: npt.NDArray[np.integer[Any]], planes: Planes) -> None:
    high = -(-planes[0].shape[0] // 2) * 2
    for plane, expected in zip((got[:high], got[high:, ::2], got[high:, 1::2]), planes, strict=True):
        np.testing.assert_array_equal(plane[: expected.shape[0], : expected.shape[1]], expected)


def depth_of(pix_fmt: str) -> int:
    return {"yuv420p10le": 10, "yuv420p12le": 12}.get(pix_fmt, 8)


@pytest.mark.parametrize("case", CASES)
def test_samples_are_those_of_ffmpeg(case: str, library: NvdecLibrary) -> None:
    encoder, pix_fmt, width, height, options = CASES[case]
    codec, depth = case.split()[0], depth_of(pix_fmt)
    packets = encode(encoder, pix_fmt, width, height, options)
    expected = by_ffmpeg(codec, packets, depth)
    key = SessionKey(codec, width, height, depth, "")
    lane = Lane(library, key)
    for number in range(3):
        lane.decode(number, key, packets)
    lane.finish()
    assert sorted(lane.shown) == [(n, row) for n in range(3) for row in range(FRAMES)]
    for (_, row), got in lane.shown.items():
        same(got, expected[row])


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_a_session_is_set_from_size_to_size(codec: str, library: NvdecLibrary) -> None:
    """What is shown is cropped from what is coded, by another number of columns and lines each time."""
    options = (
        {"x265-params": "bframes=2:b-adapt=0:log-level=none"}
        if codec == "hevc"
        else {"x264-params": "bframes=2:b-adapt=0"}
    )
    sizes = [(320, 180), (176, 144), (482, 270), (642, 362), (150, 146), (640, 160), (160, 360)]
    encoder = {"h264": "libx264", "hevc": "libx265"}[codec]
    streams = [encode(encoder, "yuv420p", w, h, options) for w, h in sizes]
    expected = [by_ffmpeg(codec, packets, 8) for packets in streams]
    lane = Lane(library, SessionKey(codec, 642, 362, 8, ""))
    order = np.random.default_rng(2).integers(0, len(sizes), 40).tolist()
    for number, n in enumerate(order):
        lane.decode(number, SessionKey(codec, *sizes[n], 8, ""), streams[n])
    opened, reconfigured, *_ = lane.session.counts
    lane.finish()
    assert opened == 1, "it was opened anew"
    assert reconfigured > 20
    assert len(lane.shown) == 40 * FRAMES
    for (number, row), got in lane.shown.items():
        same(got, expected[order[number]][row])
