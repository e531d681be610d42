"""StreamLoader(engine="dali") on a GPU: the same clips, frames, order and masks as the default engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.color.render import recolouring
from streamvid.color.tags import Color
from streamvid.errors import InputError
from streamvid.loader.engine import ENGINES, EngineName
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from tests.support.images import taken
from tests.support.packed import pack_recipes, packing_inline
from tools.clips import Recipe, hard_recipes, read_frame_number

HARD = hard_recipes()
MATRICES = ("bt601", "bt709", "bt2020")
NAMES = [
    *("h264", "h264_pyramid", "h264_vfr", "h264_trimmed", "h264_trimmed_past_key", "h264_five_frames"),
    *("hevc", "hevc_10bit", "hevc_open_gop", "hevc_trimmed", "vp9", "vp9_vfr", "vp8"),
]
# Of a width that no other test has: DALI's decoder cache, and the guard before it, outlive a test.
RECIPES = {name: replace(HARD[name], width=336) for name in NAMES}


def packed(recipes: dict[str, Recipe], folder: Path) -> str:
    return str(pack_recipes(recipes, folder, options=PackOptions("any"), shard_size=200_000))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return packed(RECIPES, tmp_path_factory.mktemp("dali"))


def batches(dataset: str, engine: EngineName, **options: Any) -> list[dict[str, Any]]:
    raw = sv.Transform(layout="THWC", dtype="uint8", color="bt601")  # the pixels of DALI, by either engine
    known = {"batch_size": 4, "sampling": sv.Window(8, fps=10), "seed": 2, "device": "cuda", "transform": raw}
    with sv.StreamLoader(dataset, engine=engine, **{**known, **options}) as loader:
        return [batch for _ in range(2) for batch in loader]


def assert_same_but_for_video(one: Sequence[dict[str, Any]], two: Sequence[dict[str, Any]]) -> None:
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        assert list(a) == list(b)
        for name in set(a) - {"video"}:
            same = torch.equal(a[name], b[name]) if isinstance(a[name], torch.Tensor) else a[name] == b[name]
            assert same, name


@pytest.mark.parametrize(
    "sampling",
    [
        sv.Window(8, fps=10),
        *(
            pytest.param(sampling, marks=pytest.mark.full)
            for sampling in (sv.Window(9, stride=4, pad="constant"), sv.Uniform(5), sv.Frames([9, 0, 9]))
        ),
    ],
    ids=lambda sampling: type(sampling).__name__,
)
def test_the_same_frames(dataset: str, sampling: Any) -> None:
    default, dali = (batches(dataset, engine, sampling=sampling) for engine in ENGINES)
    assert_same_but_for_video(default, dali)
    for a, b in zip(default, dali, strict=True):
        assert b["video"].is_cuda
        # Persistent sessions and DALI drive the same chip; the rounding of their conversions to RGB is at most a level.
        assert (a["video"].int() - b["video"].int()).abs().max() <= 1
        for video, times, key in zip(b["video"].cpu().numpy(), b["pts"].tolist(), b["key"], strict=True):
            at = np.array([float(t) for t in RECIPES[key].shown_at()])
            for frame, seconds in zip(video, times, strict=True):
                if seconds >= 0:
                    wanted = RECIPES[key].shown()[int(np.argmin(np.abs(at - seconds)))]
                    assert read_frame_number(frame) == wanted, (key, seconds)


@pytest.mark.full
def test_the_same_transform(dataset: str) -> None:
    transform = sv.Transform(
        resize=160, crop=128, horizontal_flip=0.5, mean=0.45, std=0.225, dtype="float16", color="bt601"
    )
    default, dali = (batches(dataset, engine, transform=transform) for engine in ENGINES)
    assert_same_but_for_video(default, dali)
    for a, b in zip(default, dali, strict=True):
        torch.testing.assert_close(a["video"], b["video"], rtol=0, atol=0.05)


@pytest.mark.full
def test_an_epoch_goes_on_in_the_other_engine(dataset: str) -> None:
    with sv.StreamLoader(dataset, batch_size=3, sampling=sv.Window(4), engine="dali", device="cuda") as begun:
        iterator = iter(begun)
        seen = [clip for _ in range(2) for clip in next(iterator)["clip"].tolist()]
        state = begun.state_dict()
    with sv.StreamLoader(dataset, batch_size=2, sampling=sv.Window(4), device="cuda") as resumed:
        resumed.load_state_dict(state)
        seen += [clip for batch in resumed for clip in batch["clip"][batch["valid"]].tolist()]
    assert sorted(seen) == list(range(len(NAMES)))


def test_heights_that_dali_mixes_up_are_refused(tmp_path: Path) -> None:
    """320x180 is coded with 192 rows; whichever of the two is rarer cannot go through DALI's decoder cache."""
    base = replace(HARD["h264"], frames=10, width=352)
    path = packed({"a": replace(base, height=192), "b": base, "c": replace(base, seed=1)}, tmp_path)
    with pytest.raises(sv.InputError, match=r"h264 .*such as a .*decoder cache"):
        sv.StreamLoader(
            path,
            batch_size=1,
            sampling=sv.Window(4),
            transform=sv.Transform(crop=96),
            engine="dali",
            device="cuda",
        )


@pytest.mark.parametrize("color", ["auto", "bt709"])
def test_colours_by_the_tags(tmp_path: Path, color: Any) -> None:
    """DALI's RGB, which is BT.601, times 3x3 on the GPU."""
    base = replace(HARD["h264"], frames=10, width=304)
    recipes = {
        f"{matrix}_{full}": replace(base, colour=matrix, full_range=full) for matrix in MATRICES for full in (0, 1)
    }
    path = packed(recipes, tmp_path)  # type: ignore[arg-type]
    raw = sv.Transform(layout="THWC", dtype="uint8", color="bt601")
    options: dict[str, Any] = {"batch_size": 6, "shuffle": False, "sampling": sv.All()}
    (plain,) = batches(path, "dali", transform=raw, **options)[:1]
    (tags,) = batches(path, "dali", transform=replace(raw, color=color), **options)[:1]
    (default,) = batches(path, "default", transform=replace(raw, color=color, resize_in="rgb"), **options)[:1]
    for before, after, own, key in zip(plain["video"], tags["video"], default["video"], plain["key"], strict=True):
        matrix = key.partition("_")[0] if color == "auto" else color
        factors = recolouring(Color(matrix, False, (1, 0)))  # type: ignore[arg-type]
        wanted = np.clip(before.cpu().numpy() @ factors.T, 0, 255)
        assert np.abs(after.cpu().numpy() - wanted).max() <= 0.51
        off = (after.int() - own.int()).abs().float()
        print(f"{key} {color}: {off.mean():.2f} on average, {off.max():.0f} at most; bt601: "
              f"{(before.int() - own.int()).abs().float().mean():.2f}")  # fmt: skip
        assert off.mean() < 1.5


def test_images_are_refused(tmp_path: Path) -> None:
    """In words, before a run: a graph of images and videos was not seen to come through on a GPU."""
    pytest.importorskip("nvidia.nvimgcodec")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "image.jpg").write_bytes(taken()["jpeg_420"].data)
    with packing_inline():
        pack(tmp_path / "files", tmp_path / "set", images=True, progress=False)
    with pytest.raises(InputError, match=r'takes no images.*engine="default"'):
        batches(str(tmp_path / "set"), "dali", sampling=sv.Window(1))
    (batch, _) = batches(str(tmp_path / "set"), "default", sampling=sv.Window(1))
    assert batch["video"].is_cuda
