"""FFmpeg's frames of all kinds as planes, and as RGB at full size, against the standards."""

from __future__ import annotations

from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from streamvid.color.full_size import FullSizeConverter
from streamvid.color.picture import picture_of
from streamvid.color.tags import Color
from tests.support.colors import reference

YUV = {
    "yuv420p": (2, 2), "yuv422p": (1, 2), "yuv444p": (1, 1), "yuv411p": (1, 4), "yuv440p": (2, 1), "yuv410p": (4, 4),
    "yuvj420p": (2, 2), "yuvj422p": (1, 2), "yuva420p": (2, 2), "yuv420p10le": (2, 2), "yuv422p10le": (1, 2),
    "yuv444p12le": (1, 1), "yuv420p12le": (2, 2), "yuv422p16le": (1, 2),
}  # fmt: skip
SIZES = ((27, 33), (24, 32), (1, 1), (2, 5))


def frame_of(pix_fmt: str, height: int, width: int) -> tuple[av.VideoFrame, list[npt.NDArray[Any]]]:
    """A frame of noise, and its planes."""
    rng = np.random.default_rng(len(pix_fmt) + width)
    frame = av.VideoFrame(width, height, pix_fmt)
    bits = frame.format.components[0].bits
    planes = []
    for plane in frame.planes:
        lines = np.frombuffer(plane, dtype=np.uint8 if bits == 8 else np.uint16).reshape(plane.height, -1)  # type: ignore[call-overload]
        lines[:] = rng.integers(0, 1 << bits, lines.shape)
        planes.append(lines[:, : plane.width].copy())
    return frame, planes


def full_size(frame: av.VideoFrame, color: Color) -> npt.NDArray[np.uint8]:
    out = np.zeros((frame.height, frame.width, 3), dtype=np.uint8)
    FullSizeConverter(color)(picture_of(frame), out.transpose(2, 0, 1))
    return out.transpose(2, 0, 1)


@pytest.mark.parametrize("pix_fmt", YUV)
def test_yuv(pix_fmt: str) -> None:
    for height, width in SIZES:
        frame, planes = frame_of(pix_fmt, height, width)
        bits, box = frame.format.components[0].bits, ((0, 0), (height, width), (height, width))
        for color in (Color("bt709", False, (1, 0)), Color("bt2020", True, (0, 0)), Color("bt601", False, (1, 1))):
            exact = reference(
                planes[:3], color.matrix, full_range=color.full_range, bits=bits, siting=color.siting,
                subsampling=YUV[pix_fmt], box=box,
            )  # fmt: skip
            assert np.abs(full_size(frame, color) - exact).max() < 0.51


@pytest.mark.parametrize("pix_fmt", ["gbrp", "gbrap", "gbrp10le", "gbrp12le", "rgb24", "bgra", "rgb48le"])
def test_rgb_is_taken_as_it_is(pix_fmt: str) -> None:
    """Whatever the clip is tagged with."""
    for height, width in SIZES:
        if pix_fmt.startswith("gbr"):
            frame, (green, blue, red, *_) = frame_of(pix_fmt, height, width)
            exact = np.stack([red, green, blue]) * (255 / ((1 << frame.format.components[0].bits) - 1))
        else:
            noise = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
            frame, exact = av.VideoFrame.from_ndarray(noise, format="rgb24"), noise.transpose(2, 0, 1).astype(float)
            frame = frame.reformat(format=pix_fmt)
        assert np.abs(full_size(frame, Color("bt709", False, (1, 0))) - exact).max() < 0.51


@pytest.mark.parametrize("pix_fmt", ["gray", "gray10le", "gray12le"])
def test_gray(pix_fmt: str) -> None:
    frame, (luma,) = frame_of(pix_fmt, 9, 14)
    one = 1 << (frame.format.components[0].bits - 8)
    for full in (False, True):
        exact = luma / (256 * one - 1) * 255 if full else np.clip((luma - 16.0 * one) / (219 * one) * 255, 0, 255)
        for as_dali in (False, True):  # swscale, which does the latter for YUV, takes gray for full range always
            made = full_size(frame, Color("bt601", full, (1, 0), as_dali=as_dali))
            assert np.abs(made - exact).max() < 0.51


def test_constant_luminance_is_read_like_the_other_bt2020() -> None:
    """docs/transforms.md: it would need the transfer function, and that is never applied."""
    from streamvid.color.tags import clip_color

    rows = [
        clip_color(codec="h264", stsd=b"", color_space=name, color_range="tv", width=64, height=64)
        for name in ("bt2020c", "bt2020nc")
    ]
    assert rows[0] == rows[1] == Color("bt2020", False, (1, 0))


def test_ycgco() -> None:
    """ITU-T H.273, equations 8-51 to 8-54, in full range."""
    frame, (y, cg, co) = frame_of("yuv444p", 8, 8)
    cg, co = cg - 128.0, co - 128.0
    exact = np.stack([y - cg + co, y + cg, y - cg - co])
    assert np.abs(full_size(frame, Color("ycgco", True, (1, 0))) - np.clip(exact, 0, 255)).max() < 0.51
