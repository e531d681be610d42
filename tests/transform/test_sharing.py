"""Views that share what was drawn for them: one crop at several sizes, one flip, one tint."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamvid.errors import InputError
from streamvid.transform.cpu_batch_writer import fits_batch_writer
from streamvid.transform.draw import DRAWS, Draw
from streamvid.transform.output_size import output_sizes
from streamvid.transform.params import SHARED_DRAWS, ClipTransform, param_names
from streamvid.transform.sharing import SHARES, largest
from streamvid.transform.spec import Transform, Views
from tests.support.views import Clip, clip, draws, params, torch_batches, video
from tests.transform.test_params import RAW

AUGMENTED: dict[str, Any] = {
    "horizontal_flip": 0.5, "vertical_flip": 0.5, "rotate": 15, "brightness": 0.4, "contrast": (0.5, 1.5),
    "saturation": 0.5, "hue": 20, "grayscale": 0.2, "blur": 0.5, "erase": 0.5,
}  # fmt: skip


def of_frames(heights: list[int], widths: list[int], views: int, seed: int = 0) -> list[Clip]:
    black = np.broadcast_to(np.uint8(0), (1, max(heights), max(widths), 3))
    return [
        Clip(black[:, :height, :width], [0], draws(seed + n, views))
        for n, (height, width) in enumerate(zip(heights, widths, strict=True))
    ]


def alone(transform: Transform, clips: list[Clip], name: str) -> dict[str, Any]:
    """The parameters of a transform by itself, under the name of a view."""
    made = params(transform, [replace(one, random=one.random[:DRAWS]) for one in clips])
    return {key.replace("video.", f"{name}."): value for key, value in made.items()}


CUTS = st.sampled_from([
    ({}, {}), ({"random_crop": False}, {"random_crop": False}),
    ({}, {"resize": 1}), ({"resize": 1}, {"resize": 1}), ({}, {"random_short_side": (1, 2)}),
    ({"random_short_side": (1, 2)}, {"random_short_side": (1, 2)}),
    ({}, {"random_resized_crop": (0.2, 0.9)}),
    ({"random_resized_crop": (0.2, 0.9)}, {"random_resized_crop": (0.2, 0.9)}),
])  # fmt: skip
"""How the small view and the large one cut out their part; sides in crops' sides and a half."""


@given(
    scale=st.integers(1, 5), low=st.tuples(st.integers(1, 9), st.integers(1, 9)), cut=CUTS,
    spare=st.tuples(st.integers(0, 40), st.integers(0, 40)), seed=st.integers(0, 1 << 20), first=st.booleans(),
)  # fmt: skip
def test_one_crop_at_two_sizes(
    scale: int, low: tuple[int, int], cut: tuple[dict[str, Any], ...], spare: tuple[int, int], seed: int, first: bool
) -> None:
    """The part that both show is the one that the larger shows by itself; of flips and all else likewise."""
    high = (scale * low[0], scale * low[1])

    def made(crop: tuple[int, int], cut: dict[str, Any]) -> Transform:
        side = (3 * max(crop) + 1) // 2
        given = {**cut}
        if "resize" in cut:
            given["resize"] = side
        if "random_short_side" in cut:
            given["random_short_side"] = (side, 2 * side)
        return Transform(crop=crop, **given, **AUGMENTED, **RAW)

    small, large = made(low, cut[0]), made(high, cut[1])
    views = Views({"low": small, "high": large} if first else {"high": large, "low": small}, share=tuple(SHARES))
    heights, widths = [high[0] + spare[0], high[0] + spare[1]], [high[1] + spare[1], high[1] + spare[0]]
    clips = of_frames(heights, widths, 2, seed)
    got, wanted = dict[str, Any](params(views, clips)), alone(large, clips, "high")
    leader = largest(views.transforms)
    assert leader == "high" or scale == 1
    ends = {view: got.get(f"{view}.end", got[f"{view}.start"] + got[f"{view}.size"]) for view in ("low", "high")}
    np.testing.assert_array_equal(got["low.start"], got["high.start"])
    np.testing.assert_array_equal(ends["low"], ends["high"])
    for name, value in wanted.items():
        if leader == "high" or name.rpartition(".")[2] not in ("start", "end", "erase_start", "erase_size"):
            np.testing.assert_array_equal(got[name], value, name)
    for name in ("mirror", "upside_down", "rotate", "brightness", "contrast", "saturation", "hue", "sigma", "window"):
        np.testing.assert_array_equal(got[f"low.{name}"], got[f"high.{name}"])
    for edge in (0, 1):
        box = {view: got[f"{view}.erase_start"] + edge * got[f"{view}.erase_size"] for view in ("low", "high")}
        wider = edge * (got["low.erase_size"] == 1)  # never less than a pixel
        assert (abs(box["low"] - np.floor(box["high"] / scale + 0.5)) <= wider).all() or leader == "low"
    assert ((got["low.erase_size"] > 0) == (got["high.erase_size"] > 0)).all()
    assert set(param_names(ClipTransform(views, True, True, True))) == set(got)


@pytest.mark.parametrize("share", SHARES)
def test_what_is_not_shared_is_drawn_for_each(share: str) -> None:
    one = Transform(random_resized_crop=(0.2, 0.9), crop=9, **AUGMENTED, **RAW)
    views = Views(a=one, b=one, share=[share])
    clips = of_frames([60] * 9, [80] * 9, 2)
    got = params(views, clips)
    of = {
        "crop": ("start", "end"), "flip": ("mirror", "upside_down"), "rotate": ("rotate",), "blur": ("sigma", "window"),
        "color_jitter": ("brightness", "contrast", "saturation", "hue"), "erase": ("erase_start", "erase_size"),
    }  # fmt: skip
    for name, fields in of.items():
        for field in fields:
            assert np.array_equal(got[f"a.{field}"], got[f"b.{field}"]) == (name == share), field
    # Those are as if nothing were shared.
    apart = params(Views(a=one, b=one), clips)
    for field in (field for name, fields in of.items() if name != share for field in fields):
        np.testing.assert_array_equal(got[f"b.{field}"], apart[f"b.{field}"])


def test_an_affine_map_is_one_at_every_size() -> None:
    one = Transform(crop=9, rotate=10, translate=0.2, zoom=0.3, shear=5)
    got: dict[str, Any] = dict(
        params(Views(low=one, high=replace(one, crop=27), share=["rotate"]), of_frames([60] * 9, [80] * 9, 2))
    )
    low, high = got["low.matrix"], got["high.matrix"]
    np.testing.assert_array_equal(low[..., :2], high[..., :2])
    np.testing.assert_allclose(3 * low[..., 2], high[..., 2], atol=1e-4)
    assert len(np.unique(low[:, 0, 2])) == 9


def test_every_draw_belongs_to_what_may_be_shared() -> None:
    assert sorted(draw for shared in SHARED_DRAWS.values() for draw in shared) == sorted(Draw)
    assert list(SHARED_DRAWS) == list(SHARES)


# Pixels.


@pytest.mark.parametrize("rotation", [0, 90])
@pytest.mark.parametrize("crop_resized", [True, False])
def test_pictures_correspond(rotation: int, crop_resized: bool) -> None:
    """With the nearest pixel, which DALI takes, each of low is one of high; the linear filter makes means of them."""
    high = Transform(crop=48, horizontal_flip=0.5, **RAW)
    clips = [replace(clip(90, 120, seed=n, rotation=rotation), random=draws(n, 3)) for n in range(6)]
    share = ("crop", "flip")
    if crop_resized:
        views = Views(low=replace(high, crop=16), high=high, wide=replace(high, dtype="float32"), share=share)
        assert fits_batch_writer(views)
    else:
        views = Views(
            low=replace(high, crop=16, interpolation="nearest"),
            high=high, wide=replace(high, dtype="float32", interpolation="bicubic"), share=share,
        )  # fmt: skip
        assert not fits_batch_writer(views)
    (got,) = torch_batches(views, clips)
    np.testing.assert_array_equal(
        got["high"].numpy(), video(high, [replace(one, random=one.random[:DRAWS]) for one in clips])
    )
    torch.testing.assert_close(got["wide"], got["high"] / 255, atol=1e-6, rtol=0)  # as large, so not resized
    assert len(set(params(views, clips)["low.mirror"].tolist())) == 2
    if crop_resized:
        means = got["high"].float().unfold(2, 3, 3).unfold(3, 3, 3).mean(dim=(-1, -2))
        # A triangle takes in pixels around: its picture is nearest to the one of the right place.
        apart = {
            shift: (got["low"].float() - means.roll(shift, (2, 3)))[:, :, 2:-2, 2:-2].abs().mean()
            for shift in ((0, 0), (0, 1), (1, 0), (0, -1), (-1, 0))
        }
        assert min(apart, key=apart.__getitem__) == (0, 0)
        assert apart[0, 0] < 20
    else:
        assert torch.equal(got["low"], got["high"][:, :, 1::3, 1::3])


def test_for_evaluation_the_centre_is_shared() -> None:
    views = Views(
        low=Transform(random_resized_crop=(0.2, 0.9), crop=(6, 8), **AUGMENTED),
        high=Transform(random_resized_crop=(0.2, 0.9), crop=(18, 24), **AUGMENTED), share=tuple(SHARES),
    )  # fmt: skip
    plain = views.for_evaluation()
    assert plain.share == ("crop",)
    got = params(plain, of_frames([60], [90], 2))
    assert got["high.start"].tolist() == got["low.start"].tolist() == [[0, 5]]
    assert got["high.end"].tolist() == got["low.end"].tolist() == [[60, 85]]


# What cannot be.


def refused(low: Transform, high: Transform, share: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        Views(low=low, high=high, share=share)
    assert "\n" not in str(error.value)


def test_what_cannot_be_shared() -> None:
    crop, flip = Transform(crop=8), Transform(horizontal_flip=0.5)
    for share in ("crop", 3, None, {"crop": 1}):
        refused(crop, crop, share, "share")
    refused(crop, crop, ["crops"], "did you mean 'crop'")
    refused(crop, crop, [3], "share")
    both = Transform(crop=8, **AUGMENTED)
    for name in SHARES:
        refused(both, Transform(), [name], f"'{name}'.*'high' does not do")
        refused(Transform(), both, [name], f"'{name}'.*'low' does not do")
    refused(flip, Transform(horizontal_flip=0.3), ["flip"], "same horizontal_flip.*0.5 in 'low'.*0.3 in 'high'")
    refused(flip, Transform(vertical_flip=0.5), ["flip"], "same horizontal_flip")
    refused(Transform(hue=3), Transform(hue=4), ["color_jitter"], "same hue")
    refused(Transform(rotate=3), Transform(rotate=4), ["rotate"], "same rotate")


def test_crops_that_are_not_one() -> None:
    drawn: dict[str, Any] = {"random_resized_crop": (0.2, 0.9)}
    refused(Transform(crop=8), Transform(crop=(16, 20)), ["crop"], "proportions.*16x20.*8x8")
    refused(Transform(crop=8), Transform(crop=16, random_crop=False), ["crop"], "same random_crop")
    refused(Transform(crop=8, **drawn), Transform(crop=16), ["crop"], "same random_resized_crop.*'low'")
    refused(Transform(crop=8, **drawn), Transform(crop=16, ratio=(1, 1), **drawn), ["crop"], "random_resized_crop")
    refused(Transform(crop=8, resize=9), Transform(crop=16, **drawn), ["crop"], "'low'.*leave out its resize")
    Views(low=Transform(crop=(33, 60)), high=Transform(crop=(100, 180)), share=("crop",))  # to a pixel


def test_resizes_that_show_other_parts_are_refused_for_the_clips() -> None:
    """What a view resizes and crops by itself must be as much as the larger shows, of the frames that there are."""
    heights, widths, key = np.array([90, 60]), np.array([120, 120]), ["a", "b"].__getitem__
    half = Transform(resize=45, crop=15)
    views = Views(low=half, high=Transform(crop=30), share=("crop",))
    assert output_sizes(views, heights[:1], widths[:1], key) == {"low": (15, 15), "high": (30, 30)}
    with pytest.raises(InputError, match=r"of b, 'high' has 30x30 pixels.*'low' 20x20"):
        output_sizes(views, heights, widths, key)
    for low, high in (
        (half, Transform(resize=90, crop=30)),
        (Transform(resize=(45, 80), crop=15), Transform(resize=(90, 160), crop=30)),
        (Transform(random_short_side=(20, 40), crop=15), Transform(random_short_side=(40, 80), crop=30)),
        (Transform(random_short_side=[20, 40], crop=15), Transform(random_short_side=[40, 80], crop=30)),
        (Transform(crop=15), Transform(resize=90, crop=30)),
    ):
        output_sizes(Views(low=low, high=high, share=("crop",)), heights, widths, key)
    for low, high in (
        (half, Transform(resize=80, crop=30)),
        (Transform(random_short_side=(20, 44), crop=15), Transform(random_short_side=(40, 80), crop=30)),
        (Transform(random_short_side=[40, 20], crop=15), Transform(random_short_side=[40, 80], crop=30)),
        (Transform(random_short_side=(20, 40), crop=15), Transform(resize=60, crop=30)),
    ):
        with pytest.raises(InputError, match="as much of a frame"):
            output_sizes(Views(low=low, high=high, share=("crop",)), heights, widths, key)


def test_views_by_name_or_of_a_dict() -> None:
    low, high = Transform(crop=8), Transform(crop=16)
    views = Views(low=low, high=high, share=["crop"])
    assert views == Views({"low": low, "high": high}, share=("crop",)) == Views({"low": low}, high=high, share={"crop"})
    assert pickle.loads(pickle.dumps(views)) == replace(views) == views
    assert "share=('crop',)" in repr(views)
    assert Views(low=low, high=high).share == ()
    with pytest.raises(InputError, match="'shared' must be a Transform"):
        Views(low=low, high=high, shared=("crop",))  # type: ignore[arg-type]
