"""Every augmentation: the numbers drawn for it, and its operator on the CPU against NumPy or PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamvid.errors import InputError
from streamvid.transform.draw import DRAWS, Draw
from streamvid.transform.output_size import output_size
from streamvid.transform.params import ClipTransform, boxes, needed, param_names
from streamvid.transform.spec import Transform, Views
from tests.support.views import Array, Clip, clip, draws, params, upright, video

RAW: dict[str, Any] = {"layout": "THWC", "dtype": "uint8"}
EVERYTHING: dict[str, Any] = {
    "random_resized_crop": (0.3, 1.0),
    "crop": (40, 36),
    "horizontal_flip": 0.5,
    "vertical_flip": 0.5,
    "rotate": 15,
    "brightness": 0.4,
    "contrast": (0.5, 1.5),
    "saturation": 0.5,
    "hue": 20,
    "grayscale": 0.2,
    "blur": 0.5,
    "erase": 0.5,
}


def many(transform: Transform | Views, count: int = 2000, height: int = 60, width: int = 80) -> dict[str, Any]:
    """What is drawn for that many clips of one size."""
    frames = np.broadcast_to(np.uint8(0), (1, height, width, 3))
    views = transform.num_random // DRAWS
    return dict(params(transform, [Clip(frames, [0], draws(n, views)) for n in range(count)]))


def one(transform: Transform, frames: Clip) -> Array:
    """The only clip of a batch, and what was drawn for it is left to `fields`."""
    return np.asarray(video(transform, [frames])[0])


def levels(got: Array, wanted: Array) -> int:
    """The largest difference."""
    assert got.shape == wanted.shape
    return int(np.abs(got.astype(int) - np.clip(np.rint(wanted), 0, 255).astype(int)).max())


# What is drawn.


def test_only_what_is_asked_for_is_in_the_graph() -> None:
    assert needed(Transform()) == ()
    assert needed(Transform(brightness=0, hue=0.0, contrast=(1, 1), rotate=(0, 0), blur=0, erase=0)) == ()
    assert needed(Transform(resize=8)) == ("size",)
    assert needed(Transform(crop=8)) == ("size", "start")
    assert needed(Transform(random_short_side=(8, 9), crop=8)) == ("size", "start", "end")
    assert needed(Transform(grayscale=0.1)) == ("brightness", "contrast", "saturation", "hue")
    assert needed(Transform(blur=0.1)) == ("sigma", "window")


@pytest.mark.parametrize("rotates", [True, False])
@pytest.mark.parametrize("mirrors", [True, False])
def test_the_fields_are_the_ones_that_the_graph_takes(rotates: bool, mirrors: bool) -> None:
    for transform in (Transform(**EVERYTHING), Transform(), Views({"a": Transform(**EVERYTHING), "b": Transform()})):
        names = param_names(ClipTransform(transform, rotates, has_black_frames=True, mirrors=mirrors))
        assert set(names) | {"angle", "mirrored"} == set(many(transform, 2))


def test_random_parameters_are_within_their_spans() -> None:
    made = many(
        Transform(
            rotate=(-5, 20), brightness=0.4, contrast=(0.2, 0.6), saturation=2.0, hue=30, blur=1, blur_sigma=(1, 3)
        )
    )
    for name, low, high in (
        ("rotate", -5, 20), ("brightness", 0.6, 1.4), ("contrast", 0.2, 0.6), ("saturation", 0, 3), ("hue", -30, 30),
        ("sigma", 1, 3),
    ):  # fmt: skip
        values = made[f"video.{name}"]
        assert values.min() >= low
        assert values.max() <= high
        # Uniform: mean and deviation, with four standard errors to spare.
        assert abs(values.mean() - (low + high) / 2) < (high - low) * 0.026
        assert abs(values.std() - (high - low) / 12**0.5) < (high - low) * 0.02
    np.testing.assert_array_equal(made["video.window"], 2 * np.ceil(3 * made["video.sigma"].astype(float)) + 1)


def test_probabilities() -> None:
    made = many(Transform(horizontal_flip=0.9, vertical_flip=0.1, grayscale=0.2, blur=0.3, erase=0.7))
    for share, chosen in (
        (0.9, made["video.mirror"] == 1),
        (0.1, made["video.upside_down"] == 1),
        (0.2, made["video.saturation"] == 0),
        (0.3, made["video.window"] > 1),
        (0.7, made["video.erase_size"].prod(axis=1) > 0),
    ):
        assert abs(chosen.mean() - share) < 0.045
    never = many(Transform(grayscale=0, blur=1e-9, erase=1e-9))
    assert (never["video.window"] == 1).all()
    assert not never["video.erase_size"].any()
    always = many(Transform(grayscale=1, blur=1, erase=1))
    assert not always["video.saturation"].any()
    assert (always["video.window"] > 1).all()
    assert (always["video.erase_size"] >= 1).all()


def test_an_option_leaves_what_the_others_do_as_it_was() -> None:
    everything = many(Transform(**EVERYTHING), 50)
    for name in EVERYTHING:
        if name in ("crop", "random_resized_crop"):
            continue
        without = many(Transform(**{key: value for key, value in EVERYTHING.items() if key != name}), 50)
        for field, values in without.items():
            if field.removeprefix("video.") not in (name, "saturation" if name == "grayscale" else name):
                np.testing.assert_array_equal(values, everything[field])


def test_no_two_options_share_a_number() -> None:
    assert len(set(Draw)) == len(Draw) <= DRAWS
    assert len({int(draw) for draw in Draw}) == len(Draw)


def test_scales() -> None:
    """All short sides of a range are as likely; of a list, those alone; the crop lies within."""
    for scales, sides in (((50, 54), range(50, 55)), ([50, 64, 57], (50, 57, 64))):
        made = many(Transform(random_short_side=scales, crop=48), height=60, width=80)
        # The crop covers crop / scaled of the frame.
        extent = made["video.end"] - made["video.start"]
        short = np.rint(48 * 60 / extent[:, 0].astype(float)).astype(int)
        numbers, counts = np.unique(short, return_counts=True)
        assert numbers.tolist() == list(sides)
        assert abs(counts / 2000 - 1 / len(sides)).max() < 0.045
        assert (made["video.start"] >= 0).all()
        assert (made["video.end"] <= np.array([60, 80]) + 1e-3).all()
        assert (made["video.size"] == 48).all()
    heights, widths = np.array([60]), np.array([80])
    assert output_size(Transform(random_short_side=(50, 54), crop=48), heights, widths, ["a"].__getitem__) == (48, 48)
    with pytest.raises(InputError, match="crop of 48x48"):
        output_size(Transform(random_short_side=(47, 54), crop=48), heights, widths, ["a"].__getitem__)


@settings(max_examples=settings.default.max_examples * 3)
@given(
    st.integers(1, 3000), st.integers(1, 3000), st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0.1, 10),
    st.floats(0.1, 10), st.floats(0, 0.9999), st.floats(0, 0.9999), st.floats(0, 0.9999), st.floats(0, 0.9999),
)  # fmt: skip
def test_boxes_keep_their_promises(
    height: int, width: int, a0: float, a1: float, r0: float, r1: float, u: float, v: float, y: float, x: float
) -> None:
    area, ratio = (min(a0, a1), max(a0, a1)), (min(r0, r1), max(r0, r1))
    start, extent = boxes(np.array([[height, width]]), area, ratio, np.array([u]), np.array([v]), np.array([[y, x]]))
    (top, left), (high, wide) = start[0].tolist(), extent[0].tolist()
    assert 1 <= high <= height
    assert 1 <= wide <= width
    assert 0 <= top <= height - high
    assert 0 <= left <= width - wide
    assert top % 1 == left % 1 == 0
    wanted = height * width * (area[0] + (area[1] - area[0]) * u)
    # Half a pixel of rounding either way.
    assert (high - 0.5) * (wide - 0.5) <= wanted * (1 + 1e-9) or high == 1 or wide == 1
    fits = max(ratio[0], wanted / height**2) <= min(ratio[1], width**2 / wanted)
    if fits:
        assert (high + 0.5) * (wide + 0.5) >= wanted * (1 - 1e-9)
    else:
        # As large as fits.
        assert abs(high - height) < 1 or abs(wide - width) < 1
    if high > 1 and wide > 1:
        assert (wide + 0.5) / (high - 0.5) >= ratio[0] * (1 - 1e-9)
        assert (wide - 0.5) / (high + 0.5) <= ratio[1] * (1 + 1e-9)


def test_random_resized_crops_are_spread_as_they_should_be() -> None:
    made = many(Transform(random_resized_crop=(0.2, 0.4), ratio=(0.5, 2), crop=16), height=600, width=800)
    extent = (made["video.end"] - made["video.start"]).astype(float)
    share = extent.prod(axis=1) / 600 / 800
    assert abs(np.quantile(share, [0, 0.25, 0.5, 0.75, 1]) - [0.2, 0.25, 0.3, 0.35, 0.4]).max() < 0.01
    proportion = np.log2(extent[:, 1] / extent[:, 0])
    assert abs(np.quantile(proportion, [0, 0.25, 0.5, 0.75, 1]) - [-1, -0.5, 0, 0.5, 1]).max() < 0.08
    spare = np.array([600, 800]) - extent
    place = made["video.start"] / spare
    assert abs(np.quantile(place, [0.25, 0.5, 0.75], axis=0).T - [0.25, 0.5, 0.75]).max() < 0.04


def test_what_is_drawn_is_independent() -> None:
    """No two of all parameters go together."""
    made = many(Transform(**{**EVERYTHING, "erase": 1.0, "random_resized_crop": (0.2, 0.4)}), height=600, width=800)
    made = {name.removeprefix("video."): np.asarray(values, dtype=float) for name, values in made.items()}
    columns = [made[name] for name in ("rotate", "brightness", "contrast", "hue", "sigma", "mirror", "upside_down")]
    columns += [made["saturation"] == 0, made["window"] > 1]
    for size, start, extent in (
        ((600, 800), made["start"], made["end"] - made["start"]),
        ((40, 36), made["erase_start"], made["erase_size"]),
    ):
        places = start / np.maximum(np.array(size) - extent, 1)
        columns += [extent.prod(axis=1), extent[:, 1] / extent[:, 0], places[:, 0], places[:, 1]]
    related = np.abs(np.corrcoef(np.stack([np.asarray(column, dtype=float) for column in columns])))
    np.fill_diagonal(related, 0)
    assert related.max() < 0.1  # 2000 clips: a standard error of 0.022


def test_for_evaluation_nothing_is_left_to_chance() -> None:
    transform = Transform(**EVERYTHING).for_evaluation()
    made = many(transform, 20)
    for values in made.values():
        assert (values == values[:1]).all()
    # The largest part in the crop's proportions, 40x36, of 60x80: 60x54, from the middle.
    np.testing.assert_array_equal(made["video.start"][0], [0, 13])
    np.testing.assert_array_equal(made["video.end"][0], [60, 67])
    assert set(made) == {"gather", "shown", "mirrored", "angle", "video.size", "video.start", "video.end"}
    scaled = Transform(random_short_side=[300, 256, 320], crop=224, horizontal_flip=0.5).for_evaluation()
    assert (scaled.resize, scaled.random_short_side, scaled.crop, scaled.random_crop) == (256, None, 224, False)
    views = Views({"a": Transform(**EVERYTHING), "b": Transform(horizontal_flip=0.5)}).for_evaluation()
    assert views.transforms == {"a": transform, "b": Transform(random_crop=False)}


# The operators.


@pytest.mark.parametrize("size", [(37, 53), (100, 130), (30, 40), (20, 100)])
@pytest.mark.parametrize(("interpolation", "mode"), [("bilinear", "bilinear"), ("bicubic", "bicubic")])
def test_interpolation(interpolation: Any, mode: str, size: tuple[int, int]) -> None:
    """As PyTorch with antialias, but at the border, where PyTorch leaves out and DALI repeats what is missing."""
    noise = clip(60, 80)
    got = one(Transform(resize=size, interpolation=interpolation, **RAW), noise)
    wanted = _by_torch(noise.frames, size, mode)
    assert levels(got[:, 5:-5, 5:-5], wanted[:, 5:-5, 5:-5]) <= 1
    # Of a crop from the inside, all pixels, those at its border too: what is resized goes on behind it.
    crop = (size[0] - 10, size[1] - 10)
    inside = Transform(resize=size, crop=crop, random_crop=False, interpolation=interpolation, **RAW)
    assert levels(one(inside, noise), wanted[:, 5:-5, 5:-5]) <= 1


def test_the_nearest_pixel() -> None:
    # Of even sizes, some places lie between two pixels.
    for noise, sizes in (
        (clip(61, 81), ((30, 40), (97, 131), (61, 200))),
        (clip(160, 96), ((100, 36), (80, 48), (200, 7))),
    ):
        for size in sizes:
            got = one(Transform(resize=size, interpolation="nearest", **RAW), noise)
            np.testing.assert_array_equal(got, _by_torch(noise.frames, size, "nearest-exact"))


def test_no_place_of_a_nearest_pixel_lies_between_two() -> None:
    """There, DALI takes one on the CPU and often the other one on a GPU."""
    for options in (
        {"resize": (50, 72)},
        {"resize": 60, "crop": (40, 44)},
        {"random_short_side": (44, 90), "crop": 44},
        {"random_resized_crop": (0.1, 1.0), "crop": (40, 36)},
    ):
        transform = Transform(**options, interpolation="nearest", **RAW)
        made = params(transform, [clip(80, 160, seed=n, rotation=n % 2 * 90) for n in range(20)])
        for start, end, size in zip(made["video.start"], made["video.end"], made["video.size"], strict=True):
            for low, high, count in zip(start.tolist(), end.tolist(), size.tolist(), strict=True):
                places = low + (np.arange(count) + 0.5) * (high - low) / count
                assert np.abs(places - np.round(places)).min() > 0.0005, options


def _by_torch(frames: Array, size: tuple[int, int], mode: str) -> Array:
    antialias = {} if mode == "nearest-exact" else {"antialias": True}
    planes = torch.from_numpy(frames).permute(0, 3, 1, 2).float()
    resized = torch.nn.functional.interpolate(planes, size=size, mode=mode, **antialias)  # type: ignore[arg-type]
    return np.asarray(resized.permute(0, 2, 3, 1).numpy())


@pytest.mark.parametrize("rotation", [0, 90, 270, 630])
def test_a_random_resized_crop_is_that_part_resized(rotation: int) -> None:
    transform = Transform(random_resized_crop=(0.2, 0.7), crop=(33, 40), **RAW)
    batch = [clip(60, 80, seed=n, rotation=rotation) for n in range(4)]
    got, made = video(transform, batch), params(transform, batch)
    for n, part in enumerate(batch):
        (top, left), (bottom, right) = made["video.start"][n].astype(int), made["video.end"][n].astype(int)
        wanted = _by_torch(upright(part.frames, rotation)[:, top:bottom, left:right].copy(), (33, 40), "bilinear")
        # At its border the operator sees the rest of the frame, which PyTorch does not.
        assert levels(got[n][:, 5:-5, 5:-5], wanted[:, 5:-5, 5:-5]) <= 2


def test_scaled_and_cropped() -> None:
    transform = Transform(random_short_side=(50, 90), crop=(40, 44), **RAW)
    batch = [clip(60, 80, seed=n) for n in range(5)]
    for got, noise in zip(video(transform, batch), batch, strict=True):
        short = 50 + int(41 * noise.random[Draw.SCALE])
        size = (short, int(short * 80 / 60 + 0.5))
        wanted = _by_torch(noise.frames, size, "bilinear")
        top, left = int((size[0] - 39) * noise.random[Draw.CROP_Y]), int((size[1] - 43) * noise.random[Draw.CROP_X])
        assert levels(got[:, 5:-5, 5:-5], wanted[:, top + 5 : top + 35, left + 5 : left + 39]) <= 1


@pytest.mark.parametrize("degrees", [10, -25, 90, 180, 0.5])
def test_rotation(degrees: float) -> None:
    noise = clip(61, 80)
    got = one(Transform(rotate=(degrees, degrees), **RAW), noise)
    assert levels(got, _rotated(noise.frames, degrees)) <= 1


def _rotated(frames: Array, degrees: float) -> Array:
    """Counterclockwise about the centre, bilinear, black outside."""
    height, width = frames.shape[1:3]
    angle = np.deg2rad(degrees)
    down, right = np.mgrid[:height, :width] + 0.5
    right, down = right - width / 2, down - height / 2
    x = np.clip(np.cos(angle) * right - np.sin(angle) * down + width / 2 + 1.5, 0, width + 2.999)
    y = np.clip(np.sin(angle) * right + np.cos(angle) * down + height / 2 + 1.5, 0, height + 2.999)
    framed = np.pad(frames.astype(float), ((0, 0), (2, 2), (2, 2), (0, 0)))
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    across, along = (x - left)[None, ..., None], (y - top)[None, ..., None]
    upper = framed[:, top, left] * (1 - across) + framed[:, top, left + 1] * across
    lower = framed[:, top + 1, left] * (1 - across) + framed[:, top + 1, left + 1] * across
    return np.asarray(upper * (1 - along) + lower * along)


@pytest.mark.parametrize(
    "options",
    [
        {"brightness": (1.3, 1.3)}, {"brightness": (0, 0)}, {"contrast": (0.4, 0.4)}, {"contrast": (2, 2)},
        {"saturation": (0.3, 0.3)}, {"saturation": (2, 2)}, {"hue": (40, 40)}, {"hue": (-120, -120)},
        {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 30},
        {"grayscale": 1.0}, {"grayscale": 1.0, "brightness": 0.5, "contrast": 0.5, "saturation": 0.5, "hue": 90},
    ],
)  # fmt: skip
def test_colours(options: dict[str, Any]) -> None:
    transform = Transform(**options, **RAW)
    batch = [clip(20, 30, seed=n) for n in range(4)]
    got, made = video(transform, batch), params(transform, batch)
    exact = set(options) <= {"brightness", "contrast"}
    for n, noise in enumerate(batch):
        drawn = {name: float(made[f"video.{name}"][n]) for name in ("brightness", "contrast", "saturation", "hue")}
        assert levels(got[n], _recoloured(noise.frames, **drawn)) <= (1 if exact else 2)


def _recoloured(frames: Array, brightness: float, contrast: float, saturation: float, hue: float) -> Array:
    """Hue and saturation in YIQ, then contrast about 128, then brightness."""
    to_yiq = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
    angle = np.deg2rad(hue)
    turned = saturation * np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    change = np.eye(3)
    change[1:, 1:] = turned
    colours = frames @ (np.linalg.inv(to_yiq) @ change @ to_yiq).T
    return np.asarray(((colours - 128) * contrast + 128) * brightness)


def test_grey_is_grey() -> None:
    got = one(Transform(grayscale=1.0, **RAW), clip(20, 30)).astype(int)
    assert np.ptp(got, axis=-1).max() <= 1  # DALI's matrix is rounded
    wanted = clip(20, 30).frames @ np.array([0.299, 0.587, 0.114])
    assert np.abs(got - wanted[..., None]).max() <= 1.5


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.3, 2.0, 16.0])
def test_blur(sigma: float) -> None:
    noise = clip(60, 80)
    got = one(Transform(blur=1.0, blur_sigma=(sigma, sigma), **RAW), noise)
    radius = int(np.ceil(3 * sigma))
    weights = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    wanted = noise.frames.astype(float)
    for axis in (1, 2):
        size = wanted.shape[axis]
        at = np.abs(np.arange(size)[None] + np.arange(-radius, radius + 1)[:, None]) % (2 * size - 2)
        at = np.where(at >= size, 2 * size - 2 - at, at)
        wanted = sum(w * np.take(wanted, row, axis=axis) for w, row in zip(weights, at, strict=True))  # type: ignore[assignment]
    assert levels(got, wanted) <= 1


def test_blurred_and_sharp_clips_in_one_batch() -> None:
    transform = Transform(blur=0.5, **RAW)
    batch = [clip(24, 30, seed=n) for n in range(12)]
    sharp = [n for n, noise in enumerate(batch) if noise.random[Draw.BLUR] >= 0.5]
    assert 0 < len(sharp) < 12
    got = video(transform, batch)
    for n in sharp:
        np.testing.assert_array_equal(got[n], batch[n].frames)
    # Of a width that the blur is wider than.
    assert video(Transform(blur=1.0, blur_sigma=(16, 16), **RAW), [clip(3, 2)]).shape == (1, 3, 3, 2, 3)


def test_erased() -> None:
    """The box is black on all frames, and all else as it was."""
    transform = Transform(erase=0.6, crop=(30, 40), **RAW)
    batch = [clip(60, 80, seed=n) for n in range(8)]
    got, made = video(transform, batch), params(transform, batch)
    untouched = video(Transform(crop=(30, 40), **RAW), batch)
    shares = []
    for n in range(8):
        (top, left), (high, wide) = made["video.erase_start"][n].astype(int), made["video.erase_size"][n].astype(int)
        wanted = untouched[n].copy()
        wanted[:, top : top + high, left : left + wide] = 0
        np.testing.assert_array_equal(got[n], wanted)
        shares.append(high * wide / 1200)
    assert min(shares) == 0
    assert 0.015 < max(shares) < 0.35


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("flip", [True, False])
def test_flips(flip: bool, dtype: Any) -> None:
    transform = Transform(horizontal_flip=flip, vertical_flip=0.5, layout="THWC", dtype=dtype)
    batch = [clip(6, 9, seed=n) for n in range(12)]
    ways = set()
    for got, noise in zip(video(transform, batch), batch, strict=True):
        across, over = flip and noise.random[Draw.FLIP] < 0.5, noise.random[Draw.VERTICAL_FLIP] < 0.5
        wanted = noise.frames[:, :: -1 if over else 1, :: -1 if across else 1]
        np.testing.assert_allclose(got, wanted if dtype == "uint8" else wanted / 255, atol=1e-6)
        ways.add((across, over))
    assert len(ways) == (4 if flip else 2)


def test_operators_are_applied_in_their_order() -> None:
    """Crop, rotate, colour, blur, erase, flip: one after the other they give what all at once does."""
    noise = clip(60, 80, decoded=1)
    crop: dict[str, Any] = {"crop": (40, 44)}
    steps: list[dict[str, Any]] = [
        crop, {"rotate": 20}, {"brightness": 0.5, "hue": 50}, {"blur": 1.0}, {"erase": 1.0}, {"horizontal_flip": 0.5},
    ]  # fmt: skip
    noise.random[Draw.FLIP] = 0.1
    after = noise
    together: dict[str, Any] = {}
    for step in steps:
        after = Clip(one(Transform(**step, **RAW), after), [0], noise.random)
        together |= step
    np.testing.assert_array_equal(one(Transform(**together, **RAW), noise), after.frames)


# All of them.


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_one_draw_for_all_frames_of_a_clip(dtype: Any) -> None:
    still = np.repeat(clip(60, 80, decoded=1).frames, 6, axis=0)
    batch = [Clip(still, list(range(6)), draws(n)) for n in range(8)]
    got = video(Transform(**EVERYTHING, layout="THWC", dtype=dtype), batch)
    for frames in got:
        np.testing.assert_array_equal(frames, np.broadcast_to(frames[:1], frames.shape))
    # And another draw for another clip.
    assert len({frames.tobytes() for frames in got}) == 8


def test_the_same_draws_give_the_same_clip_whatever_its_batch() -> None:
    transform = Transform(**EVERYTHING)
    batch = [clip(60 + n, 80, seed=n, rotation=90 * n) for n in range(4)]
    first = video(transform, batch)
    np.testing.assert_array_equal(video(transform, batch), first)
    np.testing.assert_array_equal(video(transform, batch[::-1]), first[::-1])
    for n, alone in enumerate(batch):
        np.testing.assert_array_equal(video(transform, [alone])[0], first[n])


def test_each_slot_shows_its_frame() -> None:
    """However frames repeat, and whatever is done to them."""
    transform = Transform(**EVERYTHING, **RAW)
    noise = clip(60, 80, decoded=3)
    straight = one(transform, noise)
    got = one(transform, Clip(noise.frames, [2, 0, 1, 1, 2, 2], noise.random))
    np.testing.assert_array_equal(got, straight[[2, 0, 1, 1, 2, 2]])


def test_constant_pictures_stay_black() -> None:
    """Low contrast makes black grey, and so it would a black picture."""
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    grey: dict[str, Any] = {**EVERYTHING, "contrast": (0.1, 0.2), "brightness": (1, 2)}
    batch = [clip(60, 80, gather=[0, 2, -1, -1], seed=n) for n in range(3)]
    got = video(Transform(**grey, mean=mean, std=std, layout="THWC"), batch)
    black = -np.array(mean) / np.array(std)
    np.testing.assert_allclose(got[:, 2:], np.broadcast_to(black, got[:, 2:].shape), rtol=1e-5)
    assert not video(Transform(**grey, **RAW), batch)[:, 2:].any()
    assert video(Transform(**grey, **RAW), batch)[:, :2].any()


# What cannot be.


@pytest.mark.parametrize(
    "options",
    [
        {"random_short_side": (64, 32), "crop": 8}, {"random_short_side": (1, 2, 3), "crop": 8},
        {"random_short_side": [], "crop": 8}, {"random_short_side": 64, "crop": 8}, {"random_short_side": (8, 9)},
        {"random_short_side": (0, 8), "crop": 8}, {"random_short_side": [8.5], "crop": 8},
        {"random_short_side": (8, 9), "crop": 8, "resize": 8}, {"random_short_side": "ab", "crop": 8},
        {"random_resized_crop": (0.1, 1)}, {"random_resized_crop": (0.5, 0.1), "crop": 8},
        {"random_resized_crop": (0, 1), "crop": 8}, {"random_resized_crop": (0.1, 1.1), "crop": 8},
        {"random_resized_crop": True, "crop": 8}, {"random_resized_crop": 0.5, "crop": 8},
        {"random_resized_crop": (0.1, 1), "crop": 8, "resize": 9},
        {"random_resized_crop": (0.1, 1), "crop": 8, "random_short_side": (9, 9)},
        {"ratio": (2, 1)}, {"ratio": (0, 1)}, {"ratio": 1}, {"ratio": None}, {"ratio": (1, float("inf"))},
        {"interpolation": "lanczos"}, {"interpolation": 1}, {"interpolation": None}, {"interpolation": []},
        {"rotate": -5}, {"rotate": 181}, {"rotate": (10, 5)}, {"rotate": "10"}, {"rotate": float("nan")},
        {"rotate": True}, {"brightness": -0.1}, {"brightness": (-0.1, 1)}, {"brightness": (1, float("inf"))},
        {"contrast": (2, 1)}, {"contrast": (1, 2, 3)}, {"saturation": None}, {"hue": 181}, {"hue": (-181, 0)},
        {"grayscale": 1.1}, {"grayscale": -0.1}, {"grayscale": True}, {"grayscale": (0, 1)}, {"blur": 2},
        {"blur": None}, {"blur_sigma": (0, 1)}, {"blur_sigma": (1, 17)}, {"blur_sigma": 1.0}, {"erase": "x"},
        {"erase_scale": (0, 0.1)}, {"erase_scale": (0.1, 1.5)}, {"erase_ratio": (3, 1)},
        {"horizontal_flip": 1.5}, {"horizontal_flip": None},
        {"vertical_flip": -1}, {"random_crop": "no"}, {"dali": 5}, {"dali": "crop"}, {"mean": 0.5, "dtype": "uint8"},
        {"dtype": "bfloat"}, {"layout": "HWC"}, {"layout": 5},
        {"dtype": "float64"}, {"dtype": torch.int8}, {"std": 0}, {"mean": (0.1, 0.2)},
        {"std": -0.2}, {"mean": (123, 117, 104)}, {"mean": 123.675}, {"std": (58, 57, 57)}, {"std": (0.2, 0.2, 1.1)},
        {"std": (1, 0, 1)}, {"std": (1, float("nan"), 1)}, {"mean": (float("inf"), 0, 0)}, {"mean": "half"},
        {"std": "abc"}, {"std": 0.2, "dtype": "uint8"}, {"dtype": np.float32}, {"layout": "FWHC"}, {"layout": None},
        {"resize": 0}, {"resize": -1}, {"resize": 2.5}, {"resize": True}, {"resize": (1, 2, 3)}, {"resize": ()},
        {"resize": (64, 0)}, {"resize": 100_000}, {"resize": "256"}, {"crop": 0}, {"crop": (0, 5)},
            {"crop": [22, 22, 3]},
    ],
)  # fmt: skip
def test_invalid_options_of_a_transform_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError) as error:
        Transform(**options)
    assert "\n" not in str(error.value)
    assert "Transform" in str(error.value)
    assert next(iter(options)) in str(error.value) or "random_short_side" in str(error.value)


def test_names_and_numbers_in_other_forms() -> None:
    """F for T, a torch.dtype, one mean for three channels, True for a probability: the same transform."""
    plain = Transform(crop=8, horizontal_flip=0.5, mean=(0.45,) * 3, std=(0.2,) * 3, layout="TCHW", dtype="float16")
    other: dict[str, Any] = {"layout": "fchw", "dtype": torch.float16}
    assert Transform(crop=8, horizontal_flip=True, mean=0.45, std=0.2, **other) == plain
    assert Transform(horizontal_flip=False) == Transform()
    assert repr(plain.for_evaluation()) == (
        "Transform(crop=8, random_crop=False, mean=(0.45, 0.45, 0.45), std=(0.2, 0.2, 0.2), "
        "layout='TCHW', dtype='float16')"
    )


@pytest.mark.parametrize(("wrong", "meant"), [("horizontal_flips", "horizontal_flip"), ("croped", "crop")])
def test_a_misspelt_option_is_answered_with_the_one_meant(wrong: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"Transform has no argument '{wrong}'; did you mean '{meant}'"):
        Transform(**{wrong: 1})
