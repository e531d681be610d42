"""Pictures made where frames are decoded on the CPU, against DALI's operators: within one level, every pixel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamvid.color.tags import RGB
from streamvid.mp4.boxes import ROTATIONS
from streamvid.transform.cpu_frame_renderer import FrameRenderer
from streamvid.transform.crop_boxes import CropBox, Scratch, fits_crop_resize
from streamvid.transform.spec import Transform, Views
from tests.support.views import Array, Clip, clip, rgb_picture, torch_batches, video

RAW: dict[str, Any] = {"layout": "THWC", "dtype": "uint8"}
SIDES = st.integers(1, 150)


def place(placement: CropBox, frame: Array, scratch: Scratch | None = None) -> Array:
    height, width, _ = frame.shape
    encoded: Any = SimpleNamespace(color=RGB, height=height, width=width)
    render = FrameRenderer(
        [Transform(dtype="uint8", resize_in="rgb")], [placement], encoded, Scratch() if scratch is None else scratch
    )
    out = np.zeros((*placement.size, 3), dtype=np.uint8)
    render(rgb_picture(frame), [out.transpose(2, 0, 1)])
    return out


class Resize:
    """DALI's operators for any placement: turn upright, then resize a part."""

    def __init__(self) -> None:
        from nvidia.dali import fn, pipeline_def, types

        @pipeline_def(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
        def pipeline() -> Any:
            frames = fn.external_source(name="frames", dtype=types.UINT8, ndim=3, layout="HWC")
            named = {
                name: fn.external_source(name=name, dtype=types.FLOAT, ndim=n)
                for name, n in (("mirrored", 0), ("angle", 0), ("start", 1), ("end", 1), ("size", 1))
            }
            flipped = fn.flip(frames, horizontal=fn.cast(named["mirrored"], dtype=types.INT32))
            upright = fn.rotate(flipped, angle=named["angle"], interp_type=types.INTERP_NN, keep_size=False)
            return fn.resize(upright, size=named["size"], roi_start=named["start"], roi_end=named["end"])

        self._pipeline = pipeline()
        self._pipeline.build()

    def __call__(self, placement: CropBox, frame: Array) -> Array:
        self._pipeline.feed_input("frames", [np.ascontiguousarray(frame)], layout="HWC")
        given_ = {
            "mirrored": placement.mirrored,
            "angle": -90.0 * placement.turns,
            "start": placement.start,
            "end": placement.end,
            "size": placement.size,
        }
        for name, value in given_.items():
            self._pipeline.feed_input(name, [np.asarray(value, dtype=np.float32)])
        return np.array(self._pipeline.run()[0].at(0))


@pytest.fixture(scope="module")
def by_dali() -> Resize:
    return Resize()


@st.composite
def cases(draw: st.DrawFn) -> tuple[CropBox, Array]:
    """A frame, and a part of it that one of the ways to resize and crop may ask for."""
    height, width, turns = draw(SIDES), draw(SIDES), draw(st.integers(0, 3))
    upright = (width, height) if turns % 2 else (height, width)
    size = (draw(SIDES), draw(SIDES))
    start: tuple[float, ...] = (0.0, 0.0)
    end: tuple[float, ...] = upright
    match draw(st.sampled_from(["whole", "cropped after", "part"])):
        case "cropped after":
            crop = tuple(draw(st.integers(1, side)) for side in size)
            corner = [draw(st.integers(0, side - kept)) for side, kept in zip(size, crop, strict=True)]
            # As the fields carry them: float32.
            start, end = (
                tuple(
                    float(np.float32((c + more * k) * u / s))
                    for c, k, u, s in zip(corner, crop, upright, size, strict=True)
                )
                for more in (0, 1)
            )
            size = crop  # type: ignore[assignment]
        case "part":
            extent = [draw(st.integers(1, side)) for side in upright]
            start = tuple(float(draw(st.integers(0, u - e))) for u, e in zip(upright, extent, strict=True))
            end = tuple(s + e for s, e in zip(start, extent, strict=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    frame = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
    if draw(st.booleans()):
        frame = (frame // 128 * 255).astype(np.uint8)  # as hard as edges can be
    return CropBox(turns, start, end, size, draw(st.booleans())), frame  # type: ignore[arg-type]


@settings(max_examples=settings.default.max_examples * 3)
@given(cases())
def test_every_pixel_is_dalis(by_dali: Resize, case: tuple[CropBox, Array]) -> None:
    placement, frame = case
    got, wanted = place(placement, frame), by_dali(placement, frame)
    assert got.shape == wanted.shape
    assert np.abs(got.astype(int) - wanted).max() <= 1


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("size", [(720, 1280), (1080, 1920), (719, 1281)])
def test_large_frames(by_dali: Resize, size: tuple[int, int], turns: int) -> None:
    """Smooth as videos are, too, where the differences must not add up to another brightness."""
    down, right = np.mgrid[: size[0], : size[1]]
    frame = np.stack([(down * 3 + right) % 256, (down * right >> 9) % 256, (down ^ right) % 256], axis=-1)
    upright = size[::-1] if turns % 2 else size
    for placement in (
        CropBox(turns, (0, 0), upright, (224, 224)),
        CropBox(turns, (100, 37), (420, 411), (224, 224)),
        CropBox(turns, (100, 37), (160, 97), (224, 200)),
    ):
        frame = frame.astype(np.uint8)
        got, wanted = place(placement, frame), by_dali(placement, frame)
        difference = got.astype(int) - wanted
        assert np.abs(difference).max() <= 1
        assert abs(difference.mean()) < 0.1


TRANSFORMS = [
    {"resize": 40}, {"resize": (33, 70)}, {"crop": (30, 44)}, {"resize": 40, "crop": 31}, {"resize": 90, "crop": 64},
    {"random_short_side": (40, 90), "crop": (40, 38)}, {"random_resized_crop": (0.1, 1.0), "crop": (50, 40)}, {},
]  # fmt: skip


@pytest.mark.parametrize("options", TRANSFORMS)
@pytest.mark.parametrize("rotates", [True, False])
def test_views_are_those_of_dalis_graph(options: dict[str, Any], rotates: bool) -> None:
    transform = Transform(**options, **RAW)
    turned = [(81, 60) if rotation % 180 else (60, 81) for rotation in ROTATIONS]
    batch = (
        [clip(*size, seed=n, rotation=90 * n) for n, size in enumerate(turned)]
        if rotates
        else [clip(60, 81, seed=n) for n in range(4)]
    )
    got, wanted = video(transform, batch), video(transform, batch, crop_resized=False)
    assert np.abs(got.astype(int) - wanted).max() <= (
        "resize" in options or "random_short_side" in options or len(options) == 2
    )


def test_several_views_of_one_frame() -> None:
    views = Views({
        "whole": Transform(**RAW),
        "large": Transform(random_resized_crop=(0.4, 1.0), crop=40, horizontal_flip=0.5, hue=20, **RAW),
        "small": Transform(random_resized_crop=(0.1, 0.4), crop=16, blur=0.5, **RAW),
        "again": Transform(**RAW),
    })  # fmt: skip
    batch = [Clip(one.frames, one.gather, np.tile(one.random, 4)) for one in (clip(60, 80, seed=n) for n in range(3))]
    (got,) = torch_batches(views, batch)
    (wanted,) = torch_batches(views, batch, crop_resized=False)
    for view in views.transforms:
        # Hue may turn one level of a channel into two of another.
        assert (got[view].int() - wanted[view].int()).abs().max() <= (0 if view in ("whole", "again") else 3)


def test_a_part_that_is_not_resized_is_the_part(by_dali: Resize) -> None:
    frame = clip(50, 61, decoded=1).frames[0]
    np.testing.assert_array_equal(place(CropBox(0, (7, 11), (37, 55), (30, 44)), frame), frame[7:37, 11:55])
    np.testing.assert_array_equal(place(CropBox(1, (0, 0), (61, 50), (61, 50)), frame), np.rot90(frame, -1))


def test_threads_do_not_share_what_they_work_in() -> None:
    scratch = Scratch()
    frames = clip(90, 121, decoded=40).frames

    def make(frame: Array) -> Array:
        return place(CropBox(0, (0, 0), (90, 121), (40, 50)), frame, scratch)

    wanted = [make(frame) for frame in frames]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for got, one in zip(pool.map(make, frames), wanted, strict=True):
                np.testing.assert_array_equal(got, one)


def test_what_is_left_to_dali() -> None:
    assert fits_crop_resize(Transform())
    assert fits_crop_resize(Transform(resize=8, crop=8, hue=5))
    assert fits_crop_resize(Transform(crop=8, interpolation="bicubic"))
    for filter_ in ("bicubic", "nearest"):
        assert not fits_crop_resize(Transform(resize=8, interpolation=filter_))
        assert not fits_crop_resize(Transform(random_short_side=(8, 9), crop=8, interpolation=filter_))
        assert not fits_crop_resize(Views({"a": Transform(), "b": Transform(resize=8, interpolation=filter_)}))
