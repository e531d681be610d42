"""One dataset object for all loaders, and options as users write them."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.packing.options import PackOptions
from tests.support.batches import assert_same
from tests.support.packed import pack_recipes
from tools.clips import Recipe

RECIPES = {f"{n}.mp4": Recipe(width=64, height=64, frames=6 + 3 * n, gop=4, seed=n) for n in range(5)}
SAMPLING = sv.Window(8, fps=12, pad="constant")
TRANSFORM = sv.Transform(resize=40, crop=32, horizontal_flip=0.5, brightness=0.3)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_recipes(RECIPES, tmp_path_factory.mktemp("samples"), options=PackOptions("any"))


def batches(loader: Any) -> list[dict[str, Any]]:
    with loader:
        return [dict(batch) for batch in loader]


def test_both_loaders_take_one_dataset(dataset: Path) -> None:
    options: dict[str, Any] = {"sampling": SAMPLING, "transform": TRANSFORM, "columns": ["frames"], "seed": 4}
    clips = sv.ClipDataset(dataset, **options)
    streamed = batches(sv.StreamLoader(clips, batch_size=2, shuffle=False, device="cpu"))
    assert streamed[0]["frames"].tolist() == [6, 9]
    alone = batches(sv.StreamLoader(dataset, batch_size=2, shuffle=False, device="cpu", **options))
    mapped = batches(sv.GpuDataLoader(clips, batch_size=2, device="cpu"))
    assert len(streamed) == len(alone) == len(mapped) == 3
    for one, two, three in zip(streamed, alone, mapped, strict=True):
        assert_same(one, two)
        assert_same(one, three)


def test_a_dataset_of_windows_and_a_subset(dataset: Path) -> None:
    some = sv.Subset(dataset, where="frames > 6")
    clips = sv.ClipDataset(some, sampling=sv.TiledWindows(4, pad="none"), transform=TRANSFORM)
    with sv.StreamLoader(clips, batch_size=1, shuffle=False, device="cpu") as loader:
        assert len(loader) == len(clips) == 2 + 3 + 3 + 4
        state = loader.state_dict()
    with sv.StreamLoader(
        some, sampling=sv.TiledWindows(4, pad="none"), transform=TRANSFORM, batch_size=1, shuffle=False, device="cpu"
    ) as loader:
        assert loader.state_dict() == state


@pytest.mark.parametrize(
    "option", [{"sampling": SAMPLING}, {"transform": TRANSFORM}, {"columns": ["frames"]}, {"seed": 1}]
)
def test_what_the_dataset_says_is_not_said_twice(dataset: Path, option: dict[str, Any]) -> None:
    with pytest.raises(sv.InputError, match="has its own sampling"):
        sv.StreamLoader(sv.ClipDataset(dataset, sampling=SAMPLING), batch_size=1, **option)


def test_a_sampling_is_needed(dataset: Path) -> None:
    for source in (dataset, sv.ClipDataset(dataset)):
        with pytest.raises(sv.InputError, match="sampling=Window"):
            sv.StreamLoader(source, batch_size=1, device="cpu")


def test_drop_last(dataset: Path) -> None:
    options: dict[str, Any] = {"batch_size": 2, "sampling": SAMPLING, "transform": TRANSFORM, "device": "cpu"}
    for said, steps in (({}, 3), ({"drop_last": True}, 2), ({"drop_last": False}, 3), ({"last_batch": "drop"}, 2)):
        with sv.StreamLoader(dataset, **options, **said) as loader:
            assert len(loader) == steps
    with pytest.raises(sv.InputError, match="not both"):
        sv.StreamLoader(dataset, **options, last_batch="drop", drop_last=True)


@pytest.mark.parametrize(
    ("make", "meant"),
    [
        (lambda path: sv.StreamLoader(path, bach_size=2, sampling=SAMPLING), "batch_size"),
        (lambda path: sv.ClipDataset(path, samplings=SAMPLING), "sampling"),
        (lambda path: sv.GpuDataLoader(sv.ClipDataset(path), batch_size=1, threads=2), "num_threads"),
        (lambda _: sv.Window(8, paddings="edge"), "pad"),
        (lambda _: sv.Window(num_frames=8), "frames"),
        (lambda _: sv.At("a", frame=[0]), "frames"),
        (lambda path: sv.Mix(part=[(path, 1)]), "parts"),
        (lambda path: sv.Dataset.open(path, revisions=1), "revision"),
        (lambda path: sv.list_clips(path, columnes=["key"]), "columns"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_one_meant(dataset: Path, make: Any, meant: str) -> None:
    with pytest.raises(TypeError, match=f"did you mean '{meant}'" if meant != "pad" else "has no argument"):
        make(dataset)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: sv.StreamLoader(path, batch_size=2, num_frames=8), "sampling=Window"),
        (lambda path: sv.ClipDataset(path, num_frames=8, stride=2), "sampling=Window"),
        (lambda path: sv.StreamLoader(path, batch_size=2, sampling=SAMPLING, where="label == 1"), r"Subset\(dataset"),
        (lambda path: sv.ClipDataset(path, keys=["a"]), r"Subset\(dataset"),
        (lambda path: sv.StreamLoader(path, batch_size=2, sampling=SAMPLING, resize=64), r"transform=Transform\("),
        (lambda path: sv.GpuDataLoader(path, batch_size=2, sampling=SAMPLING), r"an argument of ClipDataset"),
        (lambda path: sv.StreamLoader(path, batch_size=2, pin_memory=True), r"leave it out"),
        (lambda path: sv.StreamLoader(path, batch_size=2, collate_fn=list), r"batch_fn="),
        (lambda path: sv.StreamLoader(path, batch_size=2, timeout=60), r"retry_for="),
        (lambda path: sv.StreamLoader(path, batch_size=2, sampler=None), r"shuffle="),
        (lambda _: sv.Window(clip_len=8), r"frames="),
        (lambda _: sv.Window(8, frame_rate=3), r"fps="),
        (lambda _: sv.Transform(hflip=0.5), r"horizontal_flip="),
        (lambda path: sv.Subset(path, filter="label == 1"), r"where="),
        (lambda path: sv.StreamLoader(path, batch_size=2, num_replicas=2), r"world_size="),
        (lambda path: sv.StreamLoader(path, batch_size=2, generator=None), r"seed="),
        (lambda _: sv.Transform(crop_size=8), r"crop="),
        (lambda path: sv.pack([path], path, cutting=sv.FixedLength(10)), r"options=PackOptions\("),
    ],
)
def test_an_option_that_is_given_elsewhere(dataset: Path, make: Any, said: str) -> None:
    with pytest.raises(TypeError, match=rf"has no argument '\w+'; .*{said}"):
        make(dataset)


@pytest.mark.parametrize(
    "make",
    [
        lambda given: sv.StreamLoader(given, batch_size=2, sampling=SAMPLING, device="cpu"),
        lambda given: sv.ClipDataset(given, sampling=SAMPLING),
    ],
)
def test_what_is_no_dataset(dataset: Path, tmp_path: Path, make: Any) -> None:
    with pytest.raises(sv.InputError, match=r"for several datasets write Mix\("):
        make([dataset, dataset])
    with pytest.raises(sv.InputError, match="a Mix has all its parts in one list, and is for StreamLoader: for others"):
        make(sv.Mix([(sv.Mix([(dataset, 1)]), 1)]))
    (tmp_path / "a.mp4").write_bytes(b"")
    with pytest.raises(sv.DatasetError, match="this is a folder of videos; pack it first"):
        make(tmp_path)


def test_a_loader_is_no_dataset_for_a_data_loader(dataset: Path) -> None:
    clips = sv.ClipDataset(dataset, sampling=SAMPLING, transform=TRANSFORM)
    with sv.StreamLoader(clips, batch_size=2, device="cpu") as loader:
        for options in ({"batch_size": None}, {"batch_size": 2}, {"batch_size": 2, "num_workers": 1}):
            with pytest.raises(TypeError, match="iterate over it without a DataLoader"):
                next(iter(torch.utils.data.DataLoader(loader, **options)))  # type: ignore[arg-type]
    with (
        sv.GpuDataLoader(clips, batch_size=2, device="cpu") as loader,
        pytest.raises(TypeError, match="a GpuDataLoader yields batches itself"),
    ):
        next(iter(torch.utils.data.DataLoader(loader)))  # type: ignore[arg-type]


def test_loaders_are_not_pickled_copied_or_skipped_in(dataset: Path) -> None:
    clips = sv.ClipDataset(dataset, sampling=SAMPLING, transform=TRANSFORM)
    loaders = sv.StreamLoader(clips, batch_size=2, device="cpu"), sv.GpuDataLoader(clips, batch_size=2, device="cpu")
    for loader in loaders:
        with loader:
            for act in (pickle.dumps, copy.deepcopy, copy.copy):
                with pytest.raises(sv.InputError, match="make it in the process that iterates over it"):
                    act(loader)
            # accelerate's skip_first_batches begins so; frameworks ask all others by hasattr.
            with pytest.raises(
                AttributeError,
                match=r"without Ray's prepare_data_loader.*load_state_dict instead of skip_first_batches",
            ):
                loader.sampler  # noqa: B018
            assert not hasattr(loader, "sampler")


def test_repr_says_what_it_is(dataset: Path) -> None:
    clips = sv.ClipDataset(dataset, sampling=SAMPLING, transform=TRANSFORM)
    with (
        sv.StreamLoader(clips, batch_size=2, device="cpu") as stream,
        sv.GpuDataLoader(clips, batch_size=2, device="cpu") as mapped,
    ):
        for text in map(repr, (clips, stream, mapped)):
            assert "\n" not in text
            assert str(dataset) in text
            assert "Window(frames=8, fps=12, pad='constant')" in text
            assert "horizontal_flip=0.5" in text
        assert "batch_size=2" in repr(stream)
        assert "steps=3" in repr(stream)


@pytest.mark.parametrize("extra", [{}, {"brightness": 0.3}], ids=["writer", "graph"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", torch.bfloat16])
def test_half_precision_is_float32_rounded(dataset: Path, extra: dict[str, Any], dtype: Any) -> None:
    kept: dict[str, Any] = {"batch_size": 5, "sampling": SAMPLING, "device": "cpu"}
    views = {
        name: sv.Transform(resize=40, crop=32, random_crop=False, mean=0.4, std=0.2, dtype=one, **extra)
        for name, one in (("half", dtype), ("full", "float32"))
    }
    views = {name: view.for_evaluation() if extra else view for name, view in views.items()}
    (batch,) = batches(sv.StreamLoader(dataset, transform=views, **kept))
    wanted = torch.float16 if dtype == "float16" else torch.bfloat16
    assert batch["half"].dtype == wanted
    assert torch.equal(batch["half"], batch["full"].to(wanted))
    one = sv.ClipDataset(dataset, sampling=SAMPLING, transform=views)[0]
    assert one["half"].dtype == wanted


def test_to_arrow_and_pandas(dataset: Path) -> None:
    opened = sv.Dataset.open(dataset)
    assert opened.to_arrow()["frames"].to_pylist() == [recipe.frames for recipe in RECIPES.values()]
    assert np.array_equal(opened.to_arrow()["width"], [64] * 5)


def test_what_only_looks_like_a_dataset_of_samples(dataset: Path) -> None:
    """An open Dataset given to a DataLoader, and parts of datasets made by PyTorch given to a loader."""
    opened, clips = sv.Dataset.open(dataset), sv.ClipDataset(dataset, sampling=SAMPLING)
    uses: list[Any] = [
        list,
        lambda it: it[0],
        lambda it: "0" in it,
        lambda it: next(iter(torch.utils.data.DataLoader(it))),
    ]
    for use in uses:
        with pytest.raises(TypeError, match=r"ClipDataset\(dataset, sampling=…\)"):
            use(opened)
    for part in (torch.utils.data.Subset(clips, [0]), torch.utils.data.ConcatDataset([clips, clips])):
        for options in ({}, {"sampling": SAMPLING}):
            with pytest.raises(sv.InputError, match=r"Subset\(path, keys=…\).*Mix"):
                sv.StreamLoader(part, batch_size=1, device="cpu", **options)  # type: ignore[arg-type]
        with pytest.raises(sv.InputError, match=r"Subset\(path, keys=…\)"):
            sv.GpuDataLoader(part, batch_size=1, device="cpu")  # type: ignore[arg-type]
