"""RGB on the CPU, as docs/decoding.md defines it, against float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.color.yuv_to_rgb import RgbConverter
from tests.support.reference import to_rgb

Array = np.ndarray[Any, np.dtype[Any]]


def frame(height: int, width: int, *, seed: int = 0, interlaced: bool = False) -> av.VideoFrame:
    """Noise, 8-bit 4:2:0, tagged BT.709, which must not matter."""
    made = av.VideoFrame(width, height, "yuv420p")
    rng = np.random.default_rng(seed)
    for plane in made.planes:
        lines = np.zeros((plane.height, plane.line_size), dtype=np.uint8)
        lines[:, : plane.width] = rng.choice([*range(256), *[0, 255] * 128], (plane.height, plane.width))
        plane.update(lines.tobytes())
    made.colorspace = 1  # BT.709
    made.pts = seed
    if interlaced:
        graph = av.filter.Graph()
        source = graph.add_buffer(
            template=None, width=width, height=height, format=made.format, time_base=made.time_base or 1
        )
        tag, sink = graph.add("setparams", "field_mode=tff"), graph.add("buffersink")
        source.link_to(tag)
        tag.link_to(sink)
        graph.configure()
        graph.push(made)
        made = graph.pull()  # type: ignore[assignment]
        assert made.interlaced_frame
    return made


def exact(yuv: av.VideoFrame, *, full_range: bool) -> Array:
    """BT.601 in float64, chroma at the centre of four pixels, bilinear; not rounded."""
    luma, blue, red = (
        np.frombuffer(plane, dtype=np.uint8).reshape(plane.height, -1)[:, : plane.width].astype(float)
        for plane in yuv.planes
    )

    def spread(chroma: Array, count: int, axis: int) -> Array:
        at = np.clip((np.arange(count) + 0.5) / 2 - 0.5, 0, chroma.shape[axis] - 1)
        low = np.floor(at).astype(int)
        share = (at - low).reshape((-1, 1) if axis == 0 else (1, -1))
        high = np.minimum(low + 1, chroma.shape[axis] - 1)
        return np.asarray(np.take(chroma, low, axis) * (1 - share) + np.take(chroma, high, axis) * share)

    blue, red = (spread(spread(one, luma.shape[0], 0), luma.shape[1], 1) - 128 for one in (blue, red))
    if full_range:
        luma, blue, red = luma / 255, blue / 255, red / 255
    else:
        luma, blue, red = (luma - 16) / 219, blue / 224, red / 224
    # ITU-R BT.601: Kr 0.299, Kb 0.114.
    made = np.stack(
        [luma + 1.402 * red, luma - (0.114 * 1.772 * blue + 0.299 * 1.402 * red) / 0.587, luma + 1.772 * blue], axis=-1
    )
    return np.clip(255 * made, 0, 255)


@given(st.integers(4, 40), st.integers(4, 60), st.booleans(), st.integers(0, 1000))
def test_pixels_are_those_of_the_definition(height: int, width: int, full_range: bool, seed: int) -> None:
    noise = frame(2 * height, 2 * width, seed=seed)
    difference = np.abs(to_rgb(noise, full_range=full_range) - exact(noise, full_range=full_range))
    assert difference.max() < 1.1
    assert difference.mean() < 0.35


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv444p12le"])
def test_the_brightest_blue_is_not_black(pix_fmt: str) -> None:
    """swscale's sums overflow there, beyond limited range."""
    levels = [0, 16, 128, 200, 233, 234, 235, 240, 250, 255]
    made = av.VideoFrame(20 * len(levels), 2 * len(levels), pix_fmt)
    one = 1 << (made.format.components[0].bits - 8)
    for number, plane in enumerate(made.planes):
        samples = np.frombuffer(plane, dtype=np.uint8 if one == 1 else np.uint16).reshape(plane.height, -1).copy()
        high, wide = plane.height // len(levels), plane.width // len(levels)
        block = np.full((len(levels), len(levels)), 128 * one)
        if number == 0:
            block[:] = np.array(levels)[:, None] * one + one - 1
        elif number == 1:
            block[:] = np.array(levels) * one + one - 1
        samples[:, : plane.width] = block.repeat(high, axis=0).repeat(wide, axis=1)
        plane.update(samples.tobytes())
    blue = to_rgb(made, full_range=False)[::2, 10::20, 2].astype(int)
    luma, chroma = ((np.array(levels) + (one - 1) / one - zero) for zero in (16, 128))
    np.testing.assert_allclose(blue, np.clip(1.164 * luma[:, None] + 2.018 * chroma, 0, 255), atol=2)


@pytest.mark.parametrize("full_range", [False, True])
def test_interlaced_frames_are_converted_as_whole_frames(full_range: bool) -> None:
    """As GPUs do; swscale's default is field by field."""
    plain, laced = frame(64, 96), frame(64, 96, interlaced=True)
    np.testing.assert_array_equal(to_rgb(laced, full_range=full_range), to_rgb(plain, full_range=full_range))


def test_one_converter_for_many_formats_and_threads() -> None:
    formats = [(16 * n, 32 + 2 * n, full) for n in range(1, 8) for full in (False, True)]
    frames = [(frame(height, width, seed=n), full) for n, (height, width, full) in enumerate(formats * 3)]
    wanted = [to_rgb(one, full_range=full) for one, full in frames]
    convert = RgbConverter()
    with ThreadPoolExecutor(3) as pool:
        for planes, one in zip(
            pool.map(lambda pair: convert(pair[0], full_range=pair[1]), frames), wanted, strict=True
        ):
            # Earlier frames are unchanged: their buffers were not reused.
            np.testing.assert_array_equal(np.stack(planes, axis=-1), one)
