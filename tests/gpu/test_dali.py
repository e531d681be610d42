"""`sv.dali.pipeline` on a GPU: outputs on either device, operators on both, and the executors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import streamvid as sv
from streamvid.packing.options import PackOptions
from tests.support.packed import pack_recipes
from tools.clips import hard_recipes

# Of a width that no other test has: DALI's decoder cache, and the guard before it, outlive a test.
BASE = replace(hard_recipes()["h264"], width=400, frames=30)
OPTIONS: dict[str, Any] = {"batch_size": 3, "sampling": sv.Window(6, stride=2), "seed": 4, "device": "cuda"}
SMALL = sv.Transform(resize=120, crop=96, horizontal_flip=0.5, layout="THWC", dtype="uint8", color="bt601")
COLUMNS = ("mask", "pts", "label", "clip", "valid", "epoch")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {f"{n}": replace(BASE, seed=n) for n in range(7)}
    return pack_recipes(recipes, tmp_path_factory.mktemp("plain"), shard_size=100_000, options=PackOptions("any"))


def of_loader(packed: Path, transform: sv.Transform) -> list[Any]:
    with sv.StreamLoader(packed, transform=transform, engine="dali", **OPTIONS) as loader:
        return list(loader)


def assert_same(made: list[dict[str, torch.Tensor]], expected: list[Any]) -> None:
    assert len(made) == len(expected)
    for one, two in zip(made, expected, strict=True):
        for name, value in one.items():
            assert torch.equal(value.cpu(), two[name].cpu()), name


@pytest.mark.parametrize("outputs", [{"label": "cpu", "clip": "cpu"}, "cpu"], ids=str)
def test_outputs_on_either_device(packed: Path, outputs: Any) -> None:
    pipe = sv.dali.pipeline(packed, transform=SMALL, outputs=outputs, **OPTIONS)
    made = [batch for (batch,) in sv.dali.iterator(pipe, last_batch_policy="partial")]
    on_cpu = {"video", *COLUMNS} if outputs == "cpu" else set(outputs or ())
    for batch in made:
        assert {name for name, value in batch.items() if not value.is_cuda} == on_cpu
    assert_same(made, of_loader(packed, SMALL))


def through_the_cpu(frames: Any) -> Any:
    """GPU → CPU → GPU, with an operator on each."""
    from nvidia.dali import fn, types

    dark = fn.cast(frames * 0.5, dtype=types.UINT8)
    turned = fn.flip(dark.cpu(), vertical=1, horizontal=0)
    return fn.cast(255 - turned.gpu(), dtype=types.UINT8)


@pytest.mark.parametrize("engine", ["default", "dali"])
def test_operators_of_ones_own_on_both_devices(packed: Path, engine: Any) -> None:
    with sv.StreamLoader(packed, transform=replace(SMALL, dali=through_the_cpu), engine=engine, **OPTIONS) as loader:
        made: list[Any] = list(loader)
    with sv.StreamLoader(packed, transform=SMALL, engine=engine, **OPTIONS) as loader:
        for one, two in zip(made, loader, strict=True):
            assert one["video"].is_cuda
            dark = torch.round(two["video"].float() * 0.5 + 1e-3).to(torch.uint8)  # type: ignore[typeddict-item]
            assert (one["video"].int() - (255 - dark.flip(2)).int()).abs().max() <= 1


def test_nodes_on_both_devices(packed: Path) -> None:
    from nvidia.dali import fn, types

    pipe = sv.dali.pipeline(packed, transform=SMALL, **OPTIONS)
    with pipe:
        video = pipe.nodes["video"]
        means = fn.reductions.mean(fn.cast(video.cpu(), dtype=types.FLOAT), axes=[0, 1, 2, 3])
        # A number that the CPU made of the frames decides what the GPU does with them.
        # What a GPU reads of the CPU lies in pinned memory, which `torch.from_dlpack` does not take: a sum of its own.
        pipe.set_outputs(fn.cast(video - means.gpu(), dtype=types.INT16), means + 0.0, pipe.nodes["clip"])
    for (batch,) in sv.dali.iterator(pipe, ["centred", "mean", "clip"], last_batch_policy="partial"):
        assert batch["centred"].is_cuda
        assert not batch["mean"].is_cuda
        assert batch["centred"].float().mean((1, 2, 3, 4)).abs().max() < 1


def test_without_the_dynamic_executor(packed: Path) -> None:
    pipe = sv.dali.pipeline(packed, transform=SMALL, exec_dynamic=False, outputs={"label": "cpu"}, **OPTIONS)
    made = [batch for (batch,) in sv.dali.iterator(pipe, last_batch_policy="partial")]
    assert_same(made, of_loader(packed, SMALL))
    with pytest.raises(sv.InputError, match="dynamic executor"):
        sv.dali.pipeline(packed, transform=SMALL, exec_dynamic=False, outputs="cpu", **OPTIONS)
