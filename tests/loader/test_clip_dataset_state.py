"""A `ClipDataset` in torchdata's StatefulDataLoader: a run resumes with the same samples, random numbers included."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DistributedSampler

import streamvid as sv
from tests.support.packed import pack_recipes
from tools.clips import Recipe

pytest.importorskip("torchdata.stateful_dataloader")

CLIPS = 10
BATCHES = 5
EPOCHS = 3


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {f"{n}": Recipe(width=64, height=64, frames=12, gop=6, seed=n) for n in range(CLIPS)}
    return pack_recipes(recipes, tmp_path_factory.mktemp("stateful"))


def make(dataset: Path, num_workers: int, *, persistent: bool = False) -> tuple[sv.ClipDataset, Any]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    ds = sv.ClipDataset(dataset, sampling=sv.Window(3), transform=sv.Transform(resize=40, crop=32, horizontal_flip=0.5))
    sampler: Any = DistributedSampler(ds, num_replicas=1, rank=0)
    loader = StatefulDataLoader(
        ds, batch_size=2, sampler=sampler, num_workers=num_workers, persistent_workers=persistent
    )
    return ds, loader


def summary(batch: Any) -> Any:
    return batch["key"], batch["epoch"].tolist(), batch["pts"].tolist(), batch["video"].numpy().tobytes()


@pytest.fixture(scope="module")
def whole(dataset: Path) -> list[Any]:
    """The batches of a run that nobody stopped."""
    ds, loader = make(dataset, 0)
    batches = []
    for epoch in range(EPOCHS):
        ds.set_epoch(epoch)
        loader.sampler.set_epoch(epoch)
        batches += map(summary, loader)
    assert len({one[3] for one in batches}) == len(batches) == EPOCHS * BATCHES
    return batches


@pytest.mark.parametrize(
    ("num_workers", "persistent", "stop", "named"),
    [
        *((0, False, stop, named) for stop in (7, 10) for named in ("all", "others", "before")),
        (2, False, 7, "others"), (2, False, 10, "all"), (2, False, 10, "before"), (2, True, 7, "before"),
        (2, True, 10, "others"),
    ],
)  # fmt: skip
def test_a_run_resumes_with_the_same_samples(
    dataset: Path, whole: list[Any], num_workers: int, persistent: bool, stop: int, named: str
) -> None:
    """Saved behind so many batches, within an epoch or at the end of one. Resumed by a loop that names every epoch, or
    by one that leaves the first to the state; or saved when the next epoch was named already."""
    first, rest = divmod(stop, BATCHES)
    ds, loader = make(dataset, num_workers, persistent=persistent)
    for epoch in range(first):
        ds.set_epoch(epoch)
        loader.sampler.set_epoch(epoch)
        assert len(list(loader)) == BATCHES
    if rest or (named != "all" and not num_workers):
        ds.set_epoch(first)
    loader.sampler.set_epoch(first)
    if rest:
        for _, _batch in zip(range(rest), loader, strict=False):
            state = copy.deepcopy(loader.state_dict())
    else:
        state = copy.deepcopy(loader.state_dict())
    del loader
    ds, loader = make(dataset, num_workers, persistent=persistent)
    if named == "before":
        ds.set_epoch(0)
    loader.load_state_dict(state)
    batches = []
    for epoch in range(first, EPOCHS):
        if named == "all" or epoch > first or (num_workers and not rest):
            ds.set_epoch(epoch)
        loader.sampler.set_epoch(epoch)
        batches += map(summary, loader)
    assert batches == whole[stop:]


def test_a_state_is_the_epoch(dataset: Path) -> None:
    ds = sv.ClipDataset(dataset)
    ds.load_state_dict({"epoch": 4})
    assert (ds.epoch, ds.state_dict()) == (4, {"epoch": 4})
    ds.load_state_dict({"epoch": 2})
    assert ds.epoch == 2
    ds.set_epoch(3)
    ds.load_state_dict({"epoch": 2})  # as a StatefulDataLoader does behind the set_epoch of the loop
    assert ds.epoch == 3
    wrong: list[Any] = [None, {}, 3, {"epoch": -1}, {"epoch": "1"}, {"epoch": True}, {"epoch": 1 << 63}]
    for state in wrong:
        with pytest.raises(sv.InputError, match=r"epoch|state"):
            ds.load_state_dict(state)
    assert ds.epoch == 3


@pytest.mark.parametrize("of", ["a StreamLoader", "a GpuDataLoader", "nothing"])
def test_a_state_of_something_else_is_refused(dataset: Path, of: str) -> None:
    """The states of loaders have an epoch, too: the dataset took that, and the run began at its first batch."""
    ds, _ = make(dataset, 0)
    state: dict[str, Any] = {}
    if of != "nothing":
        kind: Any = sv.StreamLoader if of == "a StreamLoader" else sv.GpuDataLoader
        with kind(ds, batch_size=2, device="cpu") as loader:
            state = loader.state_dict()
        assert "epoch" in state
    with pytest.raises(sv.InputError, match="not the state of a ClipDataset"):
        ds.load_state_dict(state)
