"""Planes → pixels, against a reference in float64 that is written from the standards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.color import render
from streamvid.color.render import PlaneFormat, PlaneRenderer
from streamvid.color.tags import Color
from tests.support.colors import COEFFICIENTS, Box, reference


@pytest.fixture(params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "numpy":
        monkeypatch.setattr(render, "compiled", lambda: None)
    elif render.compiled() is None:
        pytest.skip("the native part was not built")
    return str(request.param)


def planes_of(rng: np.random.Generator, form: PlaneFormat, interleaved: bool = False):
    kind = np.uint16 if form.bits > 8 else np.uint8
    luma = rng.integers(0, 1 << form.bits, (form.height, form.width + 5)).astype(kind)[:, : form.width]
    if interleaved:
        both = rng.integers(0, 1 << form.bits, (form.chroma[0], 2 * form.chroma[1])).astype(kind)
        return luma, both[:, ::2], both[:, 1::2]
    return luma, *(rng.integers(0, 1 << form.bits, form.chroma).astype(kind) for _ in range(2))


@given(data=st.data())
def test_levels_are_those_of_the_definition(data: st.DataObject) -> None:
    side = st.integers(1, 40)
    form = PlaneFormat(data.draw(side), data.draw(side), data.draw(st.sampled_from([(1, 1), (1, 2), (2, 2), (1, 4)])),
                       data.draw(st.sampled_from([8, 10, 12])))  # fmt: skip
    color = Color(data.draw(st.sampled_from(list(COEFFICIENTS))), data.draw(st.booleans()),
                  data.draw(st.sampled_from([(1, 0), (0, 0), (1, 1), (1, -1)])))  # fmt: skip
    share = st.floats(0, 1)
    spans = []
    for length in (form.height, form.width):
        low, high = sorted((data.draw(share) * length, data.draw(share) * length))
        spans.append((low, max(high, low + 0.05)))
    box = ((spans[0][0], spans[1][0]), (spans[0][1], spans[1][1]), (data.draw(side), data.draw(side)))
    planes = planes_of(np.random.default_rng(data.draw(st.integers(0, 9))), form, data.draw(st.booleans()))
    expected = reference(
        planes, color.matrix, full_range=color.full_range, bits=form.bits, siting=color.siting,
        subsampling=form.subsampling, box=box,
    )  # fmt: skip
    renderer = PlaneRenderer(form, color, start=box[0], end=box[1], size=box[2])
    made = [np.zeros(expected.shape, dtype=np.uint8) for _ in range(2)]
    renderer._by_numpy(planes, made[1])
    renderer(planes, made[0])
    for one in made:
        assert np.abs(one - expected).max() < 0.51


@pytest.mark.parametrize("full_range", [True, False])
@pytest.mark.parametrize("bits", [8, 10])
def test_ycgco_is_of_rgb_in_its_range(bits: int, full_range: bool, way: str) -> None:
    """Equations 47 to 49 of ITU-T H.273, which are of R, G and B as they are quantised: not those of chroma."""
    rgb = np.random.default_rng(1).integers(0, 256, (3, 12, 16)) / 255
    one, peak = 1 << (bits - 8), (1 << bits) - 1
    red, green, blue = np.rint(rgb * peak) if full_range else np.rint(one * (219 * rgb + 16))
    luma, half = np.rint(0.5 * green + 0.25 * (red + blue)), 1 << (bits - 1)
    planes = np.stack([luma, np.rint(0.5 * green - 0.25 * (red + blue)) + half, np.rint(0.5 * (red - blue)) + half])
    made = np.zeros((3, 12, 16), dtype=np.uint8)
    color, samples = Color("ycgco", full_range, (0, 0)), planes.astype(np.uint16 if bits > 8 else np.uint8)
    PlaneRenderer(PlaneFormat(12, 16, (1, 1), bits), color, start=(0, 0), end=(12, 16), size=(12, 16))(samples, made)
    assert np.abs(made - 255 * rgb).max() <= 2.2 / one


@pytest.mark.parametrize("size", [(9, 11), (20, 70), (33, 34), (1, 1), (41, 3)])
def test_the_filter_is_that_of_torchvision_and_pillow(size: tuple[int, int], way: str) -> None:
    """At the edges, too, whole and of a part; chroma by the part's place among its samples."""
    import torch
    from PIL import Image

    form = PlaneFormat(33, 54, (1, 1), 8)
    green, blue, red = planes_of(np.random.default_rng(3), form)
    made = np.zeros((3, *size), dtype=np.uint8)
    PlaneRenderer(form, Color("gbr", True, (0, 0)), start=(0, 0), end=(33, 54), size=size)((green, blue, red), made)
    whole = torch.from_numpy(np.stack([red, green, blue])[None].astype(np.float64))
    theirs = torch.nn.functional.interpolate(whole, size, mode="bilinear", antialias=True)[0].numpy()
    assert np.abs(made - theirs).max() < 0.51
    # Planes of which chroma lies left, by their parts in its samples.
    form, box = PlaneFormat(34, 54, (2, 2), 8), ((0.0, 3.5), (31.25, 50.0))
    planes = planes_of(np.random.default_rng(4), form)
    color = Color("bt709", True, (1, 0))
    PlaneRenderer(form, color, start=box[0], end=box[1], size=size)(planes, made)
    (top, left), (bottom, right) = box
    boxes = [(left, top, right, bottom), *[(left / 2 + 0.25, top / 2, right / 2 + 0.25, bottom / 2)] * 2]
    resized = [
        np.asarray(Image.fromarray(plane.astype(np.float32)).resize(size[::-1], Image.Resampling.BILINEAR, box=part))
        for plane, part in zip(planes, boxes, strict=True)
    ]
    factors = render.conversion(color, 8)
    levels = np.clip(np.tensordot(factors[:, :3], np.stack(resized), axes=1) + factors[:, 3, None, None], 0, 255)
    assert np.abs(made - levels).max() < 0.51


@pytest.mark.skipif(render.compiled() is None, reason="the native part was not built")
def test_both_ways_give_the_same_bits() -> None:
    """A machine without a compiler has the same pixels: each sum is rounded in the same order."""
    random = np.random.default_rng(0)
    for _ in range(8):
        height, width = random.integers(200, 500, 2).tolist()
        planes = planes_of(random, form := PlaneFormat(height, width, (2, 2), 8))
        renderer = PlaneRenderer(
            form, Color("bt709", False, (1, 0)), start=(3.25, 5.5), end=(height - 7.75, width - 2.125), size=(224, 224),
            dtype="float32", mean=(120, 110, 100), std=(58, 57, 56),
        )  # fmt: skip
        one, other = (np.zeros((3, 224, 224), dtype=np.float32) for _ in range(2))
        renderer(planes, one)
        renderer._by_numpy(planes, other)
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_normalised_by_any_strides(way: str, dtype: str) -> None:
    import torch

    form, color = PlaneFormat(48, 64, (2, 2), 8), Color("bt709", False, (1, 0))
    planes = planes_of(np.random.default_rng(0), form)
    box: Box = ((3.0, 5.5), (41.0, 50.25), (24, 20))
    levels = np.zeros((3, 24, 20), dtype=np.uint8)
    PlaneRenderer(form, color, start=box[0], end=box[1], size=box[2])(planes, levels)
    mean, std = (120.0, 110.0, 100.0), (60.0, 50.0, 55.0)
    renderer = PlaneRenderer(form, color, start=box[0], end=box[1], size=box[2], dtype=dtype, mean=mean, std=std)
    kind = getattr(torch, dtype)
    batch = torch.zeros((20, 24, 3), dtype=kind)  # turned, channels last, and mirrored below
    memory = batch.view(torch.uint16 if dtype == "bfloat16" else kind).numpy()
    renderer(planes, memory.transpose(2, 1, 0)[:, :, ::-1])
    normal = (torch.from_numpy(levels).float() - torch.tensor(mean)[:, None, None]) * torch.tensor(
        [np.float32(1 / one) for one in std]
    )[:, None, None]
    assert torch.equal(batch.permute(2, 1, 0).flip(2), normal.to(kind))


def test_half_floats_of_all_sizes(way: str) -> None:
    """Subnormal numbers, too."""
    form, color = PlaneFormat(16, 16, (1, 1), 8), Color("gbr", True, (0, 0))
    plane = np.arange(256, dtype=np.uint8).reshape(16, 16)
    for std in (1e8, 3e6, 7e3, 1.0, 0.003):
        made = np.zeros((3, 16, 16), dtype=np.float16)
        PlaneRenderer(form, color, start=(0, 0), end=(16, 16), size=(16, 16), dtype="float16", std=(std,) * 3)(
            (plane, plane, plane), made
        )
        expected = (plane.astype(np.float32) * np.float32(1 / std)).astype(np.float16)
        assert np.array_equal(made, np.broadcast_to(expected, made.shape))
