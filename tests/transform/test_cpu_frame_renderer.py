"""Decoded frames → pictures of views, in both orders of resizing and converting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
import torch

from streamvid.color.full_size import FullSizeConverter
from streamvid.color.picture import Picture, picture_of
from streamvid.color.resample import taps
from streamvid.color.tags import Color
from streamvid.color.yuv_to_rgb import RgbConverter
from streamvid.transform.cpu_frame_renderer import FrameRenderer
from streamvid.transform.crop_boxes import CropBox, Scratch
from streamvid.transform.spec import Transform

HEIGHT, WIDTH = 97, 131
COLOR = Color("bt709", False, (1, 0))
CLIP: Any = SimpleNamespace(color=COLOR, height=HEIGHT, width=WIDTH)
BOXES = [
    CropBox(turns, (3.5, 8.0), (80.25, 71.0), (40, 33), mirrored) for turns in range(4) for mirrored in (False, True)
]


def frame(style: str = "smooth", pix_fmt: str = "yuv420p") -> av.VideoFrame:
    down, across = np.mgrid[:HEIGHT, :WIDTH]
    rgb = np.stack([60 + down, 200 - across, 90 + (down + across) // 3], axis=-1).astype(np.uint8)
    if style == "noise":
        rgb = np.random.default_rng(3).integers(0, 256, rgb.shape, dtype=np.uint8)
    # With several threads swscale overwrites pixels of 10 bits.
    return av.VideoFrame.from_ndarray(rgb, format="rgb24").reformat(format=pix_fmt, dst_colorspace="itu709", threads=1)


def rendered(picture: Picture, boxes: list[CropBox], **options: Any) -> list[npt.NDArray[np.uint8]]:
    transforms = [Transform(dtype="uint8", **options)] * len(boxes)
    render = FrameRenderer(transforms, boxes, CLIP, Scratch())
    outs = [np.zeros((3, *box.size), dtype=np.uint8) for box in boxes]
    render(picture, outs)
    return outs


def resized(rgb: npt.NDArray[np.uint8], box: CropBox) -> npt.NDArray[np.float64]:
    """The part of a frame in real numbers, turned upright first."""
    upright = np.rot90(rgb[..., ::-1] if box.mirrored else rgb, -box.turns, axes=(1, 2)).astype(float)
    for axis in (0, 1):
        by = taps(upright.shape[1], box.start[axis], box.end[axis], box.size[axis], repeats=True)
        mixed = sum(weights[:, None] * upright[:, by.first + n] for n, weights in enumerate(by.weights))
        upright = np.asarray(mixed).transpose(0, 2, 1)
    return upright


@pytest.mark.parametrize("style", ["smooth", "noise"])
def test_converting_first_is_exactly_that(style: str) -> None:
    picture = picture_of(frame(style))
    rgb = np.zeros((3, HEIGHT, WIDTH), dtype=np.uint8)
    FullSizeConverter(COLOR)(picture, rgb)
    for made, box in zip(rendered(picture, BOXES, resize_in="rgb"), BOXES, strict=True):
        assert np.abs(made - resized(rgb, box)).max() < 0.51


def test_without_a_crop_it_is_what_torchvision_makes_of_decoded_frames() -> None:
    """torchvision's resize of uint8 calls this, which rounds between its passes, and leaves out what lies beyond the
    frame's edge, where we repeat the outermost pixels, as DALI does."""
    picture, box = picture_of(frame("noise")), CropBox(0, (0, 0), (HEIGHT, WIDTH), (48, 65))
    rgb = np.zeros((3, HEIGHT, WIDTH), dtype=np.uint8)
    FullSizeConverter(COLOR)(picture, rgb)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(rgb)[None], size=box.size, mode="bilinear", antialias=True, align_corners=False
    )[0].numpy()
    (made,) = rendered(picture, [box], resize_in="rgb")
    assert np.abs(made.astype(int) - expected)[:, 2:-2, 2:-2].max() <= 1


@pytest.mark.parametrize("style", ["smooth", "noise"])
def test_bt601_is_dalis_conversion_and_then_the_resize(style: str) -> None:
    """DALI's conversion at full size, whatever the tags, and then the resize; `resize_in` makes no difference."""
    one = frame(style)
    rgb = np.stack(RgbConverter()(one, full_range=False))
    for order in ("yuv", "rgb"):
        for made, box in zip(rendered(picture_of(one), BOXES, color="bt601", resize_in=order), BOXES, strict=True):
            assert np.abs(made - resized(rgb, box)).max() < 0.51


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv422p10le", "yuv444p", "gbrp"])
def test_planes_are_turned_like_rgb(pix_fmt: str) -> None:
    """Smooth pictures are the same in both orders, for every turn and mirror image; boxes lie between pixels."""
    picture = picture_of(frame(pix_fmt=pix_fmt))
    pairs = zip(rendered(picture, BOXES), rendered(picture, BOXES, resize_in="rgb"), strict=True)
    for first, second in pairs:
        assert np.abs(first.astype(int) - second).max() <= 2
    assert len({made.tobytes() for made in rendered(picture, BOXES)}) == len(BOXES)


def test_frames_that_change_their_format() -> None:
    """A stream may go on in other planes; each frame is read as what it is."""
    render = FrameRenderer([Transform(dtype="uint8")], [BOXES[0]], CLIP, Scratch())
    made = []
    for pix_fmt in ("yuv420p", "yuv444p", "yuv420p10le", "yuv420p"):
        made.append(np.zeros((3, *BOXES[0].size), dtype=np.uint8))
        render(picture_of(frame(pix_fmt=pix_fmt)), [made[-1]])
        assert np.abs(made[-1].astype(int) - made[0]).max() <= 4
    np.testing.assert_array_equal(made[0], made[3])
