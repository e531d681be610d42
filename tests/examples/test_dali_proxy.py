"""examples/dali_proxy.py on a CPU, where DALI decodes VP9: its frames against a GpuDataLoader's.

DALI Proxy marks its steps for a profiler by NVTX, which builds of PyTorch for a CPU lack; without those marks it runs
there, too. tests/gpu/test_proxy.py runs it on a GPU as it is.
"""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import streamvid as sv
from streamvid.packing.options import PackOptions
from tests.support.packed import pack_recipes
from tools.clips import Recipe, read_frame_number

EXAMPLE = Path(__file__).parents[2] / "examples" / "dali_proxy.py"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dali_proxy_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(videos: torch.Tensor, size: tuple[int, int]) -> list[list[int]]:
    """The frame numbers in clips, float [batch, 3, frames, height, width], of that width and height before."""
    frames = (255 * videos).round().clamp(0, 255).byte().permute(0, 2, 3, 4, 1).cpu().numpy()
    return [[read_frame_number(frame, size) for frame in clip] for clip in frames]


def test_slices_through_dali_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(codec="vp9", container="webm", width=96, height=64, frames=20, gop=5)
    pack_recipes({f"{n}": replace(recipe, seed=n) for n in range(3)}, tmp_path, options=PackOptions("any"))
    for name in ("range_push", "range_pop"):
        monkeypatch.setattr(torch.cuda.nvtx, name, lambda *_: None)
    clips = sv.ClipDataset(
        tmp_path / "set",
        sampling=sv.Window(6, stride=4),  # longer than the clips: the last frame comes again
        transform=sv.Transform(resize=(64, 64), dtype="float32", layout="CFHW", color="bt601"),
    )
    sampler: list[Any] = [
        2,
        0,
        "1",
        sv.At(1, frames=[3, 19, 4, 3, 0, 11]),
        0,
        sv.At(0, seconds=[0, 0.1, 0.2, 0.1, 0.3, 0]),
    ]
    made = load_example().batches(clips, sampler, batch_size=2, workers=2, side=64, device="cpu")
    with sv.GpuDataLoader(clips, batch_size=2, sampler=sampler, device="cpu") as ours:
        for got, wanted in zip(made, ours, strict=True):
            assert got["video"].shape == wanted["video"].shape == (2, 3, 6, 64, 64)
            assert numbers(got["video"], (96, 64)) == numbers(wanted["video"], (96, 64))
            # Resized, and converted to RGB, by DALI and here.
            assert (255 * (got["video"] - wanted["video"])).abs().mean() < 6
            for name in ("clip", "mask", "pts", "label"):
                torch.testing.assert_close(got[name], wanted[name], atol=0, rtol=0)
