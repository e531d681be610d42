"""Pairs, two views of one draw, from every loader: the same crop at two sizes of the same frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

import streamvid as sv
from streamvid.errors import InputError
from streamvid.packing.options import PackOptions
from tests.support.bad_clips import with_zeroed
from tests.support.batches import assert_same
from tests.support.packed import pack_recipes
from tools.clips import Recipe

HIGH = sv.Transform(crop=(36, 48), horizontal_flip=0.5, layout="CFHW", dtype="float32", mean=0.4, std=0.2)
LOW = sv.Transform(crop=(12, 16), horizontal_flip=0.5, layout="CFHW", dtype="float32")
PAIR = sv.Views(low=LOW, high=HIGH, share=("crop", "flip"))
OPTIONS: dict[str, Any] = {"sampling": sv.TiledWindows(3, stride=2), "seed": 5}
STREAM: dict[str, Any] = {**OPTIONS, "batch_size": 4, "device": "cpu", "num_threads": 2}
SIZES = ((64, 100), (66, 80), (72, 96), (64, 90))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VP9, which DALI decodes on a CPU, of several sizes, 20 frames each."""
    recipes = {
        f"{n}.webm": Recipe(codec="vp9", container="webm", width=width, height=height, frames=20, gop=5, seed=n)
        for n, (height, width) in enumerate(SIZES)
    }
    return pack_recipes(recipes, tmp_path_factory.mktemp("pairs"), workers=1, options=PackOptions("any"))


def stream(dataset: Path, **options: Any) -> list[dict[str, Any]]:
    with sv.StreamLoader(dataset, **{"transform": PAIR, **STREAM, **options}) as loader:
        return [dict(batch) for batch in loader]


def test_what_is_shared_is_drawn_as_for_the_transform_alone(dataset: Path) -> None:
    """With the same seed, all that a batch holds beside the views is the same, too: frames, masks and order."""
    pairs, alone = stream(dataset), stream(dataset, transform=HIGH)
    assert len(pairs) == 4
    for got, wanted in zip(pairs, alone, strict=True):
        assert torch.equal(got.pop("high"), wanted.pop("video"))
        low = got.pop("low")
        assert low.shape == (len(low), 3, 3, 12, 16)
        assert low.dtype == torch.float32
        assert_same(got, wanted)


def test_the_low_view_is_the_high_one_shrunk(dataset: Path) -> None:
    for batch in stream(dataset):
        high = batch["high"] * 0.2 + 0.4
        means = high.unflatten(3, (12, 3)).unflatten(5, (16, 3)).mean(dim=(4, 6))
        mirrored = means.flip(-1)
        for low, mean, other in zip(batch["low"], means, mirrored, strict=True):
            assert (low - mean).abs().mean() < 0.25 * (low - other).abs().mean()


def test_both_ends_of_an_epoch_are_the_same_pairs(dataset: Path) -> None:
    whole = stream(dataset)
    with sv.StreamLoader(dataset, transform=PAIR, **STREAM) as loader:
        run = iter(loader)
        next(run)
        state = loader.state_dict()
        run.close()  # type: ignore[attr-defined]
    with sv.StreamLoader(dataset, transform=PAIR, **STREAM) as loader:
        loader.load_state_dict(state)
        rest = [dict(batch) for batch in loader]
    for one, two in zip(rest, whole[1:], strict=True):
        assert_same(one, two)


@pytest.mark.parametrize("workers", [0, 2])
def test_all_loaders_give_the_same_pairs(dataset: Path, workers: int) -> None:
    wanted = stream(dataset, shuffle=False)
    ds = sv.ClipDataset(dataset, transform=PAIR, **OPTIONS)
    for got, one in zip(DataLoader(ds, batch_size=4, num_workers=workers), wanted, strict=True):
        assert_same(got, one)
    with sv.GpuDataLoader(ds, batch_size=4, num_workers=workers, device="cpu", num_threads=2) as loader:
        for one, two in zip(loader, wanted, strict=True):
            assert_same(dict(one), two)


def test_one_dali_pipeline_gives_the_same_pairs(dataset: Path) -> None:
    """Up to what the engines differ by in resizing and colours."""
    alone = stream(dataset, engine="dali", transform=HIGH)
    for got, high, wanted in zip(stream(dataset, engine="dali"), alone, stream(dataset), strict=True):
        assert torch.equal(got["high"], high["video"])
        for name, scale in (("low", 255), ("high", 255 * 0.2)):
            ours, theirs = got.pop(name), wanted.pop(name)
            assert scale * (ours - theirs).abs().mean() < 5
            assert scale * (ours - theirs.flip(-1)).abs().mean() > 10
        assert_same(got, wanted)


def test_a_bad_clip_is_masked_in_all_views(dataset: Path, tmp_path: Path) -> None:
    bad = with_zeroed(dataset, tmp_path / "bad", 1)
    options: dict[str, Any] = {"on_error": "mask", "max_errors": 9, "quarantine": tmp_path / "quarantine"}
    found = 0
    for batch in stream(bad, **options):
        for n, row in enumerate(batch["clip"].tolist()):
            assert bool(batch["valid"][n]) == (row != 1)
            for name in ("low", "high", "mask"):
                assert bool(batch[name][n].any()) == (row != 1), name
            found += row == 1
    assert found
    ds = sv.ClipDataset(bad, transform=PAIR, **OPTIONS, **options)
    samples = [ds[i] for i in range(len(ds))]
    masked = default_collate([sample for sample in samples if sample["clip"] == 1])
    assert not masked["low"].any()
    assert not masked["high"].any()


def test_pairs_are_shown_by_their_transforms(dataset: Path) -> None:
    (batch, *_) = stream(dataset)
    shown = sv.show(batch, transform=PAIR)
    assert len(shown.strips) == 2 * len(batch["clip"])
    assert sv.show(sv.ClipDataset(dataset, transform=PAIR, **OPTIONS)[0], transform=PAIR).strips


def test_pairs_of_one_clip_at_once() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (3, 60, 80, 3), dtype=np.uint8)
    for clip in range(4):
        got = PAIR.apply(frames, seed=5, clip=clip)
        assert torch.equal(got["high"], HIGH.apply(frames, seed=5, clip=clip))
        means = (got["high"] * 0.2 + 0.4).unflatten(2, (12, 3)).unflatten(4, (16, 3)).mean(dim=(3, 5))
        assert (got["low"] - means).abs().mean() < 0.5 * (got["low"] - means.flip(-1)).abs().mean()


def test_clips_of_which_two_views_show_other_parts(dataset: Path) -> None:
    half = sv.Views(low=sv.Transform(resize=30, crop=16), high=sv.Transform(crop=32), share=["crop"])
    with pytest.raises(InputError, match=r"'crop' must show as much of a frame: of .*'high' has 32x32 pixels"):
        sv.StreamLoader(dataset, transform=half, **STREAM)
