"""The kernel of surfaces against the renderer of planes, on a GPU, or by Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from streamvid.color.render import PlaneFormat, PlaneRenderer
from streamvid.color.surfaces import PARAMS, ROW, Kernel, clip_params, color_change, has_long_lines, launch
from streamvid.color.tags import RGB, Color

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES: dict[str, dict[str, Any]] = {
    "down": {"box": ((3.0, 10.5), (43.0, 80.25), (12, 20))},
    "up": {"box": ((3.2, 10.5), (13.0, 40.25), (20, 70)), "color": Color("bt2020", True, (1, 1))},
    "whole": {"box": ((0, 0), (46, 90), (46, 90)), "color": Color("bt601", False, (0, 0))},
    "wide": {"box": ((3.0, 10.5), (43.0, 80.25), (12, 20)), "bits": 10},
    "twelve": {"box": ((0.0, 0.0), (46.0, 90.0), (15, 40)), "bits": 12, "color": Color("bt709", False, (1, -1))},
}


@pytest.fixture(autouse=True)
def triton() -> None:
    pytest.importorskip("triton")
    if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs a GPU or Triton's interpreter")


def surface_of(form: PlaneFormat, seed: int, gap: int = 0) -> tuple[list[Any], torch.Tensor]:
    """Noise: planes, and the same as NV12 or P016 with a gap behind each line."""
    rng = np.random.default_rng(seed)
    kind = np.uint8 if form.bits == 8 else np.uint16
    planes = [
        rng.integers(0, 1 << form.bits, size).astype(kind) for size in ((form.height, form.width), *[form.chroma] * 2)
    ]
    surface = np.zeros((form.height * 3 // 2, form.width + gap), dtype=kind)
    surface[: form.height, : form.width] = planes[0]
    surface[form.height :, 0 : form.width : 2], surface[form.height :, 1 : form.width : 2] = planes[1:]
    if form.bits > 8:
        surface <<= 16 - form.bits
    return planes, torch.from_numpy(surface.view(np.uint8)).to(DEVICE)


def rows_of(
    surfaces: list[torch.Tensor], pitch: int, chroma_at: int, outs: list[int], params: list[int]
) -> torch.Tensor:
    rows = [[s.data_ptr(), pitch, chroma_at, out, p] for s, out, p in zip(surfaces, outs, params, strict=True)]
    assert len(rows[0]) == ROW
    return torch.tensor(rows, dtype=torch.int64, device=DEVICE)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_the_pixels_are_those_of_the_renderer_of_planes(case: str, dtype: str) -> None:
    options = CASES[case]
    color, bits = options.get("color", Color("bt709", False, (1, 0))), options.get("bits", 8)
    (start, end, size), form = options["box"], PlaneFormat(46, 90, (2, 2), bits)
    norm: dict[str, Any] = {"mean": (120.0, 110.0, 100.0), "std": (60.0, 50.0, 55.0)} if dtype != "uint8" else {}
    kind = getattr(torch, dtype)
    out = torch.zeros((2, 3, *size), dtype=kind, device=DEVICE)
    planes, surfaces = zip(*(surface_of(form, seed, gap=6) for seed in (1, 2)), strict=True)
    params = clip_params(
        form, color, start=start, end=end, size=size, strides=out.stride()[1:], **norm
    )  # fmt: skip
    on_device = torch.from_numpy(params).to(DEVICE)
    bytes_each = 1 if bits == 8 else 2
    table = rows_of(
        list(surfaces), 96, 96 * 46 * bytes_each, [one.data_ptr() for one in out], [on_device.data_ptr()] * 2
    )
    launch(Kernel(dtype, bits > 8), table, 2, size)
    render = PlaneRenderer(form, color, start=start, end=end, size=size, dtype=dtype, **norm)
    for one, made in zip(planes, out.cpu(), strict=True):
        expected = torch.zeros((3, *size), dtype=kind)
        render(one, expected.view(torch.uint16 if dtype == "bfloat16" else kind).numpy())
        difference = (made.float() - expected.float()).abs()
        level = 1.0 if dtype == "uint8" else 1 / 50
        # The interpreter cuts bits of bfloat16 off.
        assert difference.max() <= level * 1.02 + (1 / 64 if dtype == "bfloat16" else 0)
        assert (
            dtype == "bfloat16" or (difference > level / 10).float().mean() < 0.005
        )  # where half a level rounds the other way


def test_lines_longer_than_the_kernel_works_on_at_a_time() -> None:
    form, color, size = PlaneFormat(8, 1500, (2, 2), 8), Color("bt709", False, (1, 0)), (4, 30)
    planes, surface = surface_of(form, 7, gap=2)
    out = torch.zeros((3, *size), dtype=torch.float32, device=DEVICE)
    part: dict[str, Any] = {"start": (0.0, 3.5), "end": (8.0, 1497.25), "size": size}
    params = torch.from_numpy(clip_params(form, color, strides=out.stride(), **part)).to(DEVICE)
    launch(Kernel("float32", False), rows_of([surface], 1502, 1502 * 8, [out.data_ptr()], [params.data_ptr()]), 1, size)
    expected = np.zeros((3, *size), dtype=np.float32)
    PlaneRenderer(form, color, **part, dtype="float32")(planes, expected)
    assert np.abs(out.cpu().numpy() - expected).max() <= 1
    assert has_long_lines(**part)
    as_usual = out.clone()
    out.zero_()
    launch(
        Kernel("float32", False, long_lines=True),
        rows_of([surface], 1502, 1502 * 8, [out.data_ptr()], [params.data_ptr()]), 1, size,
    )  # fmt: skip
    assert torch.equal(out, as_usual)


def test_lines_are_long_if_a_program_reads_more_of_them_than_it_holds() -> None:
    whole: dict[str, Any] = {"start": (0, 0), "end": (2160, 3840)}
    assert has_long_lines(**whole, size=(144, 256))
    assert not has_long_lines(**whole, size=(1080, 1920))
    assert not has_long_lines(start=(0, 656), end=(1080, 1264), size=(224, 224))


@pytest.mark.parametrize("dtype", ["uint8", "float16"])
@pytest.mark.parametrize("width", [90, 1500])
@pytest.mark.parametrize("case", ["down", "up", "whole"])
def test_rgb_is_cropped_and_resized(case: str, width: int, dtype: str) -> None:
    """As the renderer does with planes of G, B and R."""
    (start, end, size), form = CASES[case]["box"], PlaneFormat(46, width, (1, 1), 8, is_rgb=True)
    part: dict[str, Any] = {"start": start, "end": (end[0], end[1] * width / 90), "size": size}
    norm: dict[str, Any] = {"mean": (120.0, 110.0, 100.0), "std": (60.0, 50.0, 55.0)} if dtype != "uint8" else {}
    picture = np.random.default_rng(5).integers(0, 256, (46, width, 3), dtype=np.uint8)
    on_device = torch.from_numpy(picture).to(DEVICE)
    out = torch.zeros((3, *size), dtype=getattr(torch, dtype), device=DEVICE)
    params = torch.from_numpy(clip_params(form, RGB, strides=out.stride(), **part, **norm)).to(DEVICE)
    table = rows_of([on_device], 3 * width, 0, [out.data_ptr()], [params.data_ptr()])
    launch(Kernel(dtype, wide=False, rgb=True), table, 1, size)
    expected = np.zeros((3, *size), dtype=dtype)
    planes = [np.ascontiguousarray(picture[..., channel]) for channel in (1, 2, 0)]
    PlaneRenderer(form, RGB, **part, dtype=dtype, **norm)(planes, expected)
    difference = np.abs(out.cpu().numpy().astype(float) - expected)
    level = 1.0 if dtype == "uint8" else 1 / 50
    assert difference.max() <= level * 1.02
    assert (difference > level / 10).mean() < 0.005  # where half a level rounds the other way


def test_pictures_of_several_sizes_flipped_and_turned_share_a_launch() -> None:
    form, color = PlaneFormat(90, 160, (2, 2), 8), Color("bt709", False, (1, 0))
    planes, surface = surface_of(form, 3)
    boxes = [((0.0, 0.0), (90.0, 160.0), (30, 40)), ((10.0, 20.0), (80.0, 90.0), (20, 64))]
    outs = [
        torch.zeros((40, 30, 3), dtype=torch.uint8, device=DEVICE),
        torch.zeros((3, 20, 64), dtype=torch.uint8, device=DEVICE),
    ]
    # The first lies on its side, channels last; the second is mirrored.
    strides = [(1, 3, 90), (20 * 64, 64, -1)]
    params = torch.from_numpy(
        np.stack(
            [
                clip_params(form, color, start=start, end=end, size=size, strides=stride)
                for (start, end, size), stride in zip(boxes, strides, strict=True)
            ]
        )
    ).to(DEVICE)
    assert params.shape == (2, PARAMS)
    table = rows_of(
        [surface] * 2, 160, 160 * 90, [outs[0].data_ptr(), outs[1].data_ptr() + 63], [one.data_ptr() for one in params]
    )
    launch(Kernel("uint8", False), table, 2, (30, 64))
    for (start, end, size), made in zip(boxes, (outs[0].permute(2, 1, 0), outs[1].flip(2)), strict=True):
        expected = np.zeros((3, *size), dtype=np.uint8)
        PlaneRenderer(form, color, start=start, end=end, size=size)(planes, expected)
        assert np.abs(made.cpu().numpy().astype(int) - expected).max() <= 1


def test_colours_change_as_dalis_color_twist_changes_them() -> None:
    form, color = PlaneFormat(64, 64, (2, 2), 8), Color("bt709", False, (1, 0))
    planes, surface = surface_of(form, 5)
    second = color_change(brightness=1.1, contrast=0.8, saturation=1.3, hue=-70)
    levels = np.zeros((3, 64, 64), dtype=np.uint8)
    PlaneRenderer(form, color, start=(0, 0), end=(64, 64), size=(64, 64))(planes, levels)
    expected = np.clip(np.tensordot(second[:, :3], levels, axes=1) + second[:, 3, None, None], 0, 255)
    out = torch.zeros((3, 64, 64), dtype=torch.uint8, device=DEVICE)
    params = torch.from_numpy(
        clip_params(form, color, start=(0, 0), end=(64, 64), size=(64, 64), strides=out.stride(), change=second)
    ).to(DEVICE)
    table = rows_of([surface], 64, 64 * 64, [out.data_ptr()], [params.data_ptr()])
    launch(Kernel("uint8", False, recolours=True), table, 1, (64, 64))
    assert (np.abs(out.cpu().numpy() - expected) > 0.51).mean() < 0.001


def to_8_bit(form: PlaneFormat, surface: torch.Tensor, pitch: int, chroma_at: int) -> torch.Tensor:
    from streamvid.color import nv12_kernel

    white, size = Color("bt601", True, (0, 0)), (form.height, form.width)
    params = clip_params(form, white, start=(0, 0), end=size, size=size, strides=(1, 3 * form.width, 3))
    on_device = torch.from_numpy(params).to(DEVICE)
    table = rows_of([surface], pitch, chroma_at, [0], [on_device.data_ptr()])
    out = torch.zeros((1, form.height * form.width * 3 // 2), dtype=torch.uint8, device=DEVICE)
    grid = (1, form.height * 3 // 4, 1)
    nv12_kernel.to_8_bit[grid](table, out, out.stride(0), ROW=ROW, SHIFT=6, BLOCK=64)
    return out.cpu()


@pytest.mark.parametrize(("beside", "below"), [(8, 0), (0, 4), (6, 12)])
def test_samples_behind_lines_and_planes_are_no_part_of_10_bits_as_dali_makes_them_8(beside: int, below: int) -> None:
    """The native module's surfaces have all coded lines, and those of 268 lines are coded as 272."""
    form = PlaneFormat(20, 36, (2, 2), 10)
    _, dense = surface_of(form, 11)
    expected = to_8_bit(form, dense, 36, 20 * 36 * 2)
    assert expected.float().std() > 50
    spaced = torch.full((30 + below, 36 + beside), 777, dtype=torch.int16, device=DEVICE)
    samples = dense.view(torch.int16)
    spaced[:20, :36], spaced[20 + below :, :36] = samples[:20], samples[20:]
    got = to_8_bit(form, spaced, 36 + beside, (20 + below) * (36 + beside) * 2)
    assert torch.equal(got, expected)
