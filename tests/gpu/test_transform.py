"""Every operator of the transform's graph on a GPU, against the same on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.transform.draw import DRAWS
from streamvid.transform.spec import Transform, Views
from tests.support.packed import pack_recipes
from tests.support.views import Array, Clip, clip, draws, torch_batches, video
from tests.transform.test_params import EVERYTHING, RAW
from tools.clips import Recipe

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Options, and by how many levels of 255 the devices may differ.
OPERATORS: dict[str, tuple[dict[str, Any], int]] = {
    "nothing": ({}, 0),
    "crop": ({"crop": (40, 36)}, 0),
    "resize": ({"resize": (37, 53)}, 1),
    "resize_up": ({"resize": (150, 190)}, 1),
    "resize_cubic": ({"resize": (37, 53), "interpolation": "bicubic"}, 2),
    "resize_nearest": ({"resize": (30, 40), "interpolation": "nearest"}, 0),
    "random_crop_nearest": ({"random_short_side": (44, 90), "crop": 44, "interpolation": "nearest"}, 0),
    "random_resized_crop_nearest": (
        {"random_resized_crop": (0.1, 1.0), "crop": (40, 36), "interpolation": "nearest"},
        0,
    ),
    "resize_and_crop": ({"resize": 50, "crop": 44}, 1),
    "random_short_side": ({"random_short_side": (44, 90), "crop": 44}, 1),
    "random_resized_crop": ({"random_resized_crop": (0.1, 1.0), "crop": (40, 36)}, 1),
    "rotate": ({"rotate": 30}, 2),
    "brightness": ({"brightness": 0.6}, 1),
    "contrast": ({"contrast": 0.6}, 1),
    "saturation": ({"saturation": 0.9}, 1),
    "hue": ({"hue": 60}, 1),
    "grayscale": ({"grayscale": 0.5}, 1),
    "blur": ({"blur": 0.5}, 1),
    "blur_wide": ({"blur": 1.0, "blur_sigma": (10, 16)}, 1),
    "erase": ({"erase": 0.6}, 0),
    "flip": ({"horizontal_flip": 0.5}, 0),
    "vertical_flip": ({"vertical_flip": 0.5}, 0),
    "both_flips": ({"horizontal_flip": 0.5, "vertical_flip": 0.5}, 0),
}


def batch(same_size: bool) -> list[Clip]:
    """Smooth pictures and noise, upright and turned, with slots that repeat."""
    made = []
    for n in range(6):
        height, width = (61, 81) if same_size or n % 2 else (70 + n, 81 + 2 * n)
        rotation = 0 if same_size else (0, 90, 450, 540, 270, 630)[n]
        one = clip(height, width, seed=n, gather=[2, 0, 1, 1], rotation=rotation)
        if n < 3:
            down, right = np.mgrid[:height, :width]
            picture = np.stack([down * 3, right * 2, down + right], axis=-1) % 256
            one = replace(one, frames=np.stack([picture, 255 - picture, picture[::-1]]).astype(np.uint8))
        made.append(one)
    return made


def differ(options: Transform, clips: list[Clip]) -> Array:
    on_gpu, on_cpu = video(options, clips, device_id=0), video(options, clips)
    assert on_gpu.shape == on_cpu.shape
    assert on_gpu.dtype == on_cpu.dtype
    return np.abs(on_gpu.astype(float) - on_cpu.astype(float))


@pytest.mark.parametrize("name", OPERATORS)
def test_each_operator_agrees_with_the_cpu(name: str) -> None:
    options, limit = OPERATORS[name]
    difference = differ(Transform(**options, **RAW), batch(same_size="crop" not in options))
    print(f"{name}: {difference.max():.0f} at most, {difference.mean():.4f} on average, {(difference > 0).mean():.2%}")
    assert difference.max() <= limit
    # The CPU rounds between the two passes of a resize.
    assert difference.mean() < 0.2


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("layout", [*(pytest.param(one, marks=pytest.mark.full) for one in ("THWC", "CTHW")), "TCHW"])
def test_layouts_and_dtypes(layout: Any, dtype: Any) -> None:
    norm: dict[str, Any] = {"mean": MEAN, "std": STD} if dtype != "uint8" else {}
    clips = [replace(one, gather=[0, -1, 2, 1]) for one in batch(same_size=False)]
    for flips in ({"horizontal_flip": 0.5}, {"horizontal_flip": 0.5, "vertical_flip": 0.5}):
        transform = Transform(crop=(40, 36), layout=layout, dtype=dtype, **norm, **flips)
        assert differ(transform, clips).max() <= {"uint8": 0, "float16": 0.004, "float32": 2e-5}[dtype]


def test_all_operators_together_agree_with_the_cpu() -> None:
    """Differences of single steps add up, and a contrast of 1.5 multiplies them; pictures are the same all the same."""
    difference = differ(Transform(**EVERYTHING, **RAW), batch(same_size=False))
    print(f"everything: {difference.max():.0f} at most, {difference.mean():.4f} on average")
    assert difference.max() <= 8
    assert difference.mean() < 0.5


def test_one_draw_for_all_frames_and_the_same_twice() -> None:
    still = np.repeat(clip(60, 80, decoded=1).frames, 6, axis=0)
    clips = [Clip(still, list(range(6)), draws(n)) for n in range(8)]
    got = video(Transform(**EVERYTHING, **RAW), clips, device_id=0)
    for frames in got:
        np.testing.assert_array_equal(frames, np.broadcast_to(frames[:1], frames.shape))
    np.testing.assert_array_equal(video(Transform(**EVERYTHING, **RAW), clips, device_id=0), got)
    # Whatever the batch.
    np.testing.assert_array_equal(video(Transform(**EVERYTHING, **RAW), clips[3:4], device_id=0)[0], got[3])


def test_views_and_a_function_in_the_graph() -> None:
    from nvidia.dali import fn, types

    def invert(frames: Any) -> Any:
        return fn.cast(255 - frames, dtype=types.UINT8)

    views = Views(
        {
            "a": Transform(**EVERYTHING, dali=invert, mean=MEAN, std=STD, dtype="float16"),
            "b": Transform(crop=30, dali=lambda frames: frames[:, :20], **RAW),
        }
    )
    clips = [replace(one, gather=[0, -1, 2, 1], random=draws(n, 2)) for n, one in enumerate(batch(same_size=False))]
    assert clips[0].random.shape == (2 * DRAWS,)
    (on_gpu,), (on_cpu,) = torch_batches(views, clips, device_id=0), torch_batches(views, clips)
    assert list(on_gpu) == list(on_cpu)
    assert torch.equal(on_gpu["b"], on_cpu["b"])
    assert on_gpu["b"].shape == (6, 4, 20, 30, 3)
    assert on_gpu["a"].dtype == torch.float16
    assert (on_gpu["a"].float() - on_cpu["a"].float()).abs().mean() < 0.02


def test_pairs_are_each_transform_alone_with_the_shared_draws() -> None:
    """Bit for bit, where a transform alone cuts out the same part; and whatever does, the larger is as it is alone."""
    share = ("crop", "flip", "rotate", "color_jitter", "blur")
    drawn = {key: value for key, value in EVERYTHING.items() if key not in ("crop", "erase")}
    for options in (drawn, {"horizontal_flip": 0.5}):
        named = [name for name in share if options is drawn or name in ("crop", "flip")]
        low, high = (Transform(crop=side, **options, **RAW) for side in ((20, 18), (40, 36)))
        clips = [replace(one, random=draws(n, 2)) for n, one in enumerate(batch(same_size=False))]
        alone = [replace(one, random=one.random[:DRAWS]) for one in clips]
        views = Views(low=low, high=high, share=named)
        (got,), (on_cpu,) = torch_batches(views, clips, device_id=0), torch_batches(views, clips)
        np.testing.assert_array_equal(got["high"].numpy(), video(high, alone, device_id=0))
        if options is drawn:
            np.testing.assert_array_equal(got["low"].numpy(), video(low, alone, device_id=0))
        for name in ("low", "high"):
            difference = (got[name].int() - on_cpu[name].int()).abs()
            print(f"{name}: {difference.max()} at most, {difference.float().mean():.4f} on average")
            assert difference.max() <= 8
            assert difference.float().mean() < 0.5


def test_pairs_in_the_loader(tmp_path: Path) -> None:
    lengths = enumerate((40, 30, 25, 12))
    pack_recipes({f"{n}": Recipe(width=256, height=192, frames=frames, seed=n) for n, frames in lengths}, tmp_path)
    low, high = (Transform(crop=side, horizontal_flip=0.5, dtype="float16") for side in (40, 160))
    made = []
    for transform, device in ((Views(low=low, high=high, share=("crop", "flip")), "cuda"), (high, "cuda")):
        with sv.StreamLoader(
            tmp_path / "set", batch_size=2, sampling=sv.TiledWindows(4, stride=2), transform=transform, device=device,
            seed=3,
        ) as loader:  # fmt: skip
            made.append([{key: value.clone() for key, value in batch.items() if key != "key"} for batch in loader])
    for pairs, alone in zip(*made, strict=True):
        assert torch.equal(pairs["high"], alone["video"])
        assert torch.equal(pairs["pts"], alone["pts"])
        means = pairs["high"].float().unflatten(3, (40, 4)).unflatten(5, (40, 4)).mean(dim=(4, 6))
        assert 255 * (pairs["low"].float() - means).abs().mean() < 6  # a triangle reaches farther than a box
        assert 255 * (pairs["low"].float() - means.flip(-1)).abs().mean() > 12


def test_everything_in_the_loader_twice(tmp_path: Path) -> None:
    lengths = enumerate((40, 3, 30, 25, 12))
    pack_recipes({f"{n}": Recipe(width=256, height=192, frames=frames, seed=n) for n, frames in lengths}, tmp_path)
    transform = {
        "a": Transform(**EVERYTHING, mean=MEAN, std=STD, dtype="float16"),
        "b": Transform(random_short_side=(120, 180), crop=112, interpolation="bicubic", rotate=10, horizontal_flip=0.5),
    }
    runs = []
    for _ in range(2):
        with sv.StreamLoader(
            tmp_path / "set", batch_size=2, sampling=sv.Window(6, fps=15, pad="constant"), transform=transform,
            device="cuda", seed=3, batch_fn=lambda batch: {**batch, "sum": batch["a"].float().sum()},
        ) as loader:  # fmt: skip
            runs.append([{**batch, "a": batch["a"].clone(), "b": batch["b"].clone()} for batch in loader])
    assert len(runs[0]) == 3
    for one, two in zip(*runs, strict=True):
        assert one["a"].is_cuda
        assert one["b"].is_cuda
        for name, value in one.items():
            assert torch.equal(value, two[name]) if isinstance(value, torch.Tensor) else value == two[name], name
