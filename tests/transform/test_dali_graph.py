"""The transform's DALI graph on the CPU, held against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.errors import InputError
from streamvid.mp4.boxes import ROTATIONS
from streamvid.transform.draw import DRAWS
from streamvid.transform.output_size import output_size, output_sizes, resized
from streamvid.transform.spec import DTYPES, LAYOUTS, Transform
from tests.support.views import Array, Clip, clip, torch_batches, upright

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NO_DRAWS = np.zeros(DRAWS)


def run(transform: Transform, *batches: list[Clip], has_black_frames: bool | None = None) -> list[Array]:
    """The video of each batch."""
    return [batch["video"].numpy() for batch in torch_batches(transform, *batches, has_black_frames=has_black_frames)]


def by_numpy(transform: Transform, one: Clip) -> Array:
    """The same without resizing, step by step."""
    frames = upright(one.frames, one.rotation)
    if transform.crop is not None:
        height, width = transform.crop if isinstance(transform.crop, tuple) else (transform.crop, transform.crop)
        x, y = (one.random[0], one.random[1]) if transform.random_crop else (0.5, 0.5)
        left = math.floor(x * (frames.shape[2] - width + 1))
        top = math.floor(y * (frames.shape[1] - height + 1))
        frames = frames[:, top : top + height, left : left + width]
    frames = np.stack([frames[n] if n >= 0 else np.zeros_like(frames[0]) for n in one.gather])
    if one.random[2] < transform.horizontal_flip:
        frames = frames[:, :, ::-1]
    out: Array = frames
    if transform.dtype != "uint8":
        out = (frames / 255.0 - np.array(transform.mean or (0, 0, 0))) / np.array(transform.std or (1, 1, 1))
    axes = {"THWC": (0, 1, 2, 3), "TCHW": (0, 3, 1, 2), "CTHW": (3, 0, 1, 2)}[transform.layout]
    return out.transpose(axes).astype(transform.dtype)


def check(transform: Transform, *batches: list[Clip], has_black_frames: bool | None = None) -> None:
    for got, batch in zip(run(transform, *batches, has_black_frames=has_black_frames), batches, strict=True):
        wanted = np.stack([by_numpy(transform, one) for one in batch])
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        if transform.dtype == "uint8":
            np.testing.assert_array_equal(got, wanted)
        else:
            half = transform.dtype == "float16"
            np.testing.assert_allclose(
                got.astype(float), wanted.astype(float), rtol=2e-3 if half else 1e-5, atol=2e-3 if half else 2e-6
            )


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bfloat16"])  # NumPy has none
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_dtypes(layout: Any, dtype: Any) -> None:
    """All at once, on clips of several sizes and lengths: odd ones, one that fits the crop exactly, one frame."""
    norm: dict[str, Any] = {"mean": MEAN, "std": STD} if dtype != "uint8" else {}
    gather = [[0, 1, 2, 2], [2, 1, 0, -1], [0, 0, 0, 0], [-1, -1, 0, 1]]
    sizes = [(24, 32), (33, 47), (20, 16), (64, 21)]
    batch = [
        clip(h, w, decoded=max(g) + 1, gather=g, seed=n, rotation=90 * n)
        for n, ((h, w), g) in enumerate(zip(sizes, gather, strict=True))
    ]
    # Upright, the third lies and has to be at least the crop.
    check(Transform(crop=(16, 14), horizontal_flip=0.5, layout=layout, dtype=dtype, **norm), batch, batch[:2], batch)


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 50), st.sampled_from([0, 90, 180, 270]), st.integers(0, 99)),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_any_crop_of_any_size(
    sizes: list[tuple[int, int, int, int]], flip: bool, random_crop: bool, data: st.DataObject
) -> None:
    batch = [clip(h, w, decoded=2, seed=seed, rotation=rotation) for h, w, rotation, seed in sizes]
    upright = [(h, w) if rotation % 180 == 0 else (w, h) for h, w, rotation, _ in sizes]
    crop = tuple(data.draw(st.integers(1, min(side[axis] for side in upright))) for axis in (0, 1))
    check(Transform(crop=crop, horizontal_flip=flip, random_crop=random_crop, layout="THWC", dtype="uint8"), batch)  # type: ignore[arg-type]


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 16), (17, 13), (1, 7), (48, 64), (97, 131)])
def test_turning_is_exact(height: int, width: int, rotation: int) -> None:
    check(Transform(layout="THWC", dtype="uint8"), [clip(height, width, rotation=rotation)])


def test_turned_and_upright_clips_in_one_batch() -> None:
    batch = [
        clip(*((40, 30) if rotation % 180 else (30, 40)), seed=n, rotation=rotation)
        for n, rotation in enumerate(ROTATIONS)
    ]
    check(Transform(layout="THWC", dtype="uint8"), batch)


def test_a_constant_picture_is_black_before_it_is_normalised() -> None:
    (got,) = run(Transform(mean=MEAN, std=STD, layout="THWC"), [clip(8, 8, gather=[0, -1, -1])])
    np.testing.assert_allclose(got[0, 1], np.broadcast_to(-np.array(MEAN) / np.array(STD), (8, 8, 3)), rtol=1e-5)
    np.testing.assert_array_equal(got[0, 2], got[0, 1])
    assert not np.array_equal(got[0, 0], got[0, 1])
    (got,) = run(Transform(dtype="uint8", resize=12, crop=8), [clip(8, 8, gather=[-1, -1, -1])])
    assert not got.any()


def test_a_graph_for_blanks_without_any() -> None:
    check(Transform(dtype="uint8"), [clip(8, 9)], has_black_frames=True)


def test_zero_to_one() -> None:
    frames = np.stack([np.zeros((4, 4, 3), np.uint8), np.full((4, 4, 3), 255, np.uint8)])
    for dtype in ("float16", "float32"):
        (got,) = run(Transform(dtype=dtype, layout="THWC"), [Clip(frames, [0, 1], NO_DRAWS)])
        np.testing.assert_array_equal(got[0, 0], 0)
        np.testing.assert_array_equal(got[0, 1], 1)


def naive_resized(height: int, width: int, short: int) -> tuple[int, int]:
    """The short side as asked, the long one in proportion, half a pixel up."""
    scale = short / min(height, width)
    return max(1, math.floor(height * scale + 0.5)), max(1, math.floor(width * scale + 0.5))


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(1, 1000))
def test_sizes_by_the_short_side(height: int, width: int, short: int) -> None:
    got = resized(Transform(resize=short), np.array([height]), np.array([width]))[0].tolist()
    assert min(got) == short
    assert max(abs(a - b) for a, b in zip(got, naive_resized(height, width, short), strict=True)) <= 1
    assert (got[0] <= got[1]) == (height <= width) or got[0] == got[1]


@pytest.mark.parametrize("resize", [16, 40, (20, 36), (64, 10)])
def test_the_graph_resizes_to_the_sizes_said(resize: Any) -> None:
    for height, width in ((24, 32), (33, 47), (64, 21)):
        transform = Transform(resize=resize, dtype="uint8", layout="THWC")
        (got,) = run(transform, [clip(height, width)])
        assert got.shape[2:4] == output_size(transform, np.array([height]), np.array([width]), ["a"].__getitem__)
        assert got.shape[2:4] == tuple(resized(transform, np.array([height]), np.array([width]))[0])
        flat = Clip(np.full((1, height, width, 3), (10, 120, 250), np.uint8), [0], NO_DRAWS)
        (got,) = run(transform, [flat])
        assert np.abs(got.astype(int) - [10, 120, 250]).max() == 0


def test_resizing_keeps_the_picture() -> None:
    """Twice as large: a gradient stays a gradient, left is left, up is up."""
    ramp = np.zeros((1, 16, 32, 3), np.uint8)
    ramp[..., 0], ramp[..., 1] = np.arange(32)[None, None, :] * 8, np.arange(16)[None, :, None] * 16
    (got,) = run(Transform(resize=32, dtype="uint8", layout="THWC"), [Clip(ramp, [0], NO_DRAWS)])
    assert got.shape == (1, 1, 32, 64, 3)
    assert np.all(np.diff(got[0, 0, :, :, 0].astype(int), axis=1) >= 0)
    assert np.all(np.diff(got[0, 0, :, :, 1].astype(int), axis=0) >= 0)
    x = np.clip((np.arange(64) + 0.5) / 2 - 0.5, 0, 31) * 8
    assert np.abs(got[0, 0, 5, :, 0] - x).max() <= 1


def test_a_crop_larger_than_the_frame_names_clip_and_remedy() -> None:
    heights, widths = np.array([100, 60, 100]), np.array([100, 80, 50])
    with pytest.raises(InputError, match=r"64x64.* 2 clips.*two.*60x80.*resize") as error:
        output_size(Transform(crop=64), heights, widths, ["one", "two", "three"].__getitem__)
    assert "\n" not in str(error.value)
    assert output_size(Transform(resize=64, crop=64), heights, widths, ["one", "two", "three"].__getitem__) == (64, 64)
    assert output_size(Transform(crop=(60, 50)), heights, widths, ["one", "two", "three"].__getitem__) == (60, 50)
    with pytest.raises(InputError, match=r"one.*32x32"):
        output_size(Transform(resize=32, crop=33), np.array([100]), np.array([100]), ["one"].__getitem__)


def test_frames_are_enlarged_to_8192x8192_at_most() -> None:
    """Enlarging them to 16384x21845 took so long that FFmpeg was said to be stuck."""
    heights, widths = np.array([96, 9000]), np.array([128, 9000])
    for transform in (Transform(resize=16384), Transform(random_resized_crop=(0.5, 1), crop=(8192, 8193))):
        with pytest.raises(InputError, match=r"^frames of \d+x\d+ \(height x width\) are larger .* such as one: give "):
            output_sizes(transform, heights[:1], widths[:1], ["one"].__getitem__)
    assert output_sizes(Transform(resize=8192, crop=8192), heights, widths, ["one", "two"].__getitem__)
    assert output_sizes(Transform(), heights[1:], widths[1:], ["two"].__getitem__) == {"video": (9000, 9000)}


def test_mixed_sizes_without_a_crop() -> None:
    heights, widths = np.array([60, 60, 80]), np.array([80, 80, 60])
    for transform in (Transform(), Transform(resize=30)):
        with pytest.raises(InputError, match=r"one.*three.*crop") as error:
            output_size(transform, heights, widths, ["one", "two", "three"].__getitem__)
        assert "\n" not in str(error.value)
    assert output_size(Transform(resize=(30, 40)), heights, widths, ["one", "two", "three"].__getitem__) == (30, 40)
    assert output_size(Transform(), heights[:2], widths[:2], ["one", "two"].__getitem__) == (60, 80)
