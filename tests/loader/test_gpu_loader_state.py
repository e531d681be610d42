"""GpuDataLoader: a run resumes within an epoch, in the order of any sampler whose order can be saved."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, WeightedRandomSampler

import streamvid as sv
from streamvid.loader import gpu_loader
from tests.support.clips import write
from tests.support.launch import torchrun, use
from tests.support.packed import pack_recipes
from tools.clips import Recipe

CLIPS = 9
OPTIONS: dict[str, Any] = {
    "sampling": sv.Window(3), "transform": sv.Transform(resize=40, crop=32, horizontal_flip=0.5),
}  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {f"{n}": Recipe(width=64, height=64, frames=12, gop=6, seed=n) for n in range(CLIPS)}
    return pack_recipes(recipes, tmp_path_factory.mktemp("gpu_state"))


class Halves:
    """A sampler of its own kind: an epoch is one half of the clips, then the other; it knows how far it is."""

    def __init__(self) -> None:
        self.begun = 0

    def __iter__(self) -> Iterator[int]:
        half, self.begun = self.begun % 2, self.begun + 1
        yield from range(half, CLIPS, 2)
        self.begun += 2  # only at its end

    def state_dict(self) -> dict[str, int]:
        return {"begun": self.begun}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begun = state["begun"]


class ByHand:
    """As many write them: without a generator, a length or a state."""

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(CLIPS).tolist()


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


SAMPLERS: dict[str, Callable[[sv.ClipDataset], dict[str, Any]]] = {
    "in order": lambda ds: {},
    "shuffle": lambda ds: {"shuffle": True},
    "generator": lambda ds: {"shuffle": True, "generator": seeded(), "drop_last": True},
    "distributed": lambda ds: {"sampler": DistributedSampler(ds, num_replicas=1, rank=0)},
    "replacement": lambda ds: {"sampler": RandomSampler(ds, True, 7, seeded())},
    "batches": lambda ds: {"batch_sampler": BatchSampler(RandomSampler(ds, generator=seeded()), 2, False)},
    "own": lambda ds: {"sampler": Halves()},
    "list": lambda ds: {"sampler": ["3", 0, sv.At("1", frames=[1, 2, 3]), 1, 8]},
}


def make(dataset: Path, kind: str, **more: Any) -> sv.GpuDataLoader:
    ds = sv.ClipDataset(dataset, **OPTIONS)
    options = SAMPLERS[kind](ds)
    if "batch_sampler" not in options:
        options["batch_size"] = 2
    return sv.GpuDataLoader(ds, device="cpu", num_threads=1, **options, **more)


def summary(batch: Any) -> Any:
    return batch["key"], batch["epoch"].tolist(), batch["pts"].tolist(), batch["video"].numpy().tobytes()


Whole = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def whole(dataset: Path) -> Whole:
    """Three epochs of a run that nobody stopped, with each kind of sampler."""

    @functools.cache
    def of_kind(kind: str) -> list[Any]:
        torch.manual_seed(3)
        with make(dataset, kind) as loader:
            epochs = run(loader)
        assert len({json.dumps([batch[0] for batch in epoch]) for epoch in epochs}) > 1 or kind in ("in order", "list")
        return epochs

    return of_kind


@pytest.mark.parametrize(
    ("kind", "stop"),
    [
        *((kind, 1) for kind in SAMPLERS),
        *((kind, 1001) for kind in ("shuffle", "generator", "replacement", "own")),
        *((kind, stop) for kind in ("in order", "batches") for stop in (0, 3, "last", "over")),
    ],
)
def test_a_run_resumes_with_the_same_batches(dataset: Path, whole: Whole, kind: str, stop: Any) -> None:
    """Saved before the first batch, within the first or second epoch, with its last batch, and at its end. PyTorch's
    own generator is somewhere else when the run resumes."""
    workers = {"num_workers": 1, "persistent_workers": True} if (kind, stop) == ("generator", 1001) else {}
    epochs = whole(kind)
    first, made = divmod(stop, 1000) if isinstance(stop, int) else (0, len(epochs[0]))
    torch.manual_seed(3)
    with make(dataset, kind, **workers) as one:
        for _ in range(first):
            list(one)
        one.set_epoch(first)
        state = one.state_dict()
        for number, _batch in enumerate(one, start=1):
            if number == made:
                state = one.state_dict()
                if stop != "over":
                    break
        if stop == "over":
            state = one.state_dict()
    state = json.loads(json.dumps(state))
    torch.manual_seed(99)
    with make(dataset, kind, **workers) as resumed:
        stray = [iter(resumed)]
        resumed.load_state_dict(state)
        stray += [iter(resumed)]
        assert resumed.epoch == first + (made == len(epochs[first]))
        rest = run(resumed)
    expected = [epochs[first][made:], *epochs[first + 1 :]]
    assert rest == [epoch for epoch in expected if epoch]


def run(loader: sv.GpuDataLoader) -> list[Any]:
    """All epochs that are left of three, each set at its beginning, as training loops do: a resumed one goes on."""
    epochs = []
    for epoch in range(loader.epoch, 3):
        loader.set_epoch(epoch)
        epochs.append([summary(batch) for batch in loader])
    return epochs


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["by hand", "weighted"])
def test_an_order_from_pytorchs_own_generator(dataset: Path, kind: str, num_workers: int) -> None:
    """The epoch goes on in its order, and what the loop itself draws is not touched."""
    ds = sv.ClipDataset(dataset, **OPTIONS)
    sampler: Any = ByHand() if kind == "by hand" else WeightedRandomSampler([1.0] * CLIPS, 8)
    with sv.GpuDataLoader(ds, batch_size=2, sampler=sampler, num_workers=num_workers, device="cpu") as one:
        torch.manual_seed(8)
        batches = []
        for batch in one:
            batches.append(summary(batch))
            if len(batches) == 2:
                state = json.loads(json.dumps(one.state_dict()))
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    with sv.GpuDataLoader(ds, batch_size=2, sampler=sampler, num_workers=num_workers, device="cpu") as resumed:
        resumed.load_state_dict(state)
        rest = []
        for batch in resumed:
            rest.append(summary(batch))
            if len(rest) == 1:
                assert torch.equal(torch.rand(3), expected)
    assert rest == batches[2:]


def test_an_epoch_begins_with_its_first_batch_and_is_over_when_it_is_left(
    dataset: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with make(dataset, "shuffle") as one, make(dataset, "shuffle") as resumed:
        before = one.state_dict()
        stray = [iter(one) for _ in range(3)]
        assert (one.epoch, one.state_dict()) == (0, before)
        del stray
        for batch in one:
            assert batch["epoch"][0] == 0
            break
        assert one.epoch == 1
        resumed.load_state_dict(one.state_dict())
        assert caplog.text.count("epoch 0 was left before its end") == 1
        expected = [summary(batch) for batch in one]
        assert [summary(batch) for batch in resumed] == expected


def test_an_epoch_that_is_set_while_another_is_held_is_what_a_state_is_of(dataset: Path) -> None:
    """With a sampler that draws from no generator: the reader of the one that is held does so at any time."""
    with make(dataset, "distributed") as one, make(dataset, "distributed") as resumed:
        held = iter(one)
        next(held)
        one.set_epoch(7)
        resumed.load_state_dict(one.state_dict())
        assert resumed.epoch == 7
        assert [summary(batch) for batch in resumed] == [summary(batch) for batch in one]
        del held


@pytest.mark.parametrize("kind", ["generator", "own"])
def test_a_state_saved_where_the_first_batch_failed_begins_the_same_epoch(
    dataset: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """By Ctrl-C, say: what reads ahead has taken from the sampler by then, of which the loop was given nothing."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with make(dataset, kind) as one:
        with monkeypatch.context() as patch:
            patch.setattr(gpu_loader, "make_batch", interrupted)
            with pytest.raises(KeyboardInterrupt):
                list(one)
        state = json.loads(json.dumps(one.state_dict()))
    assert (state["epoch"], state["batches"]) == (0, 0)
    with make(dataset, kind) as resumed:
        resumed.load_state_dict(state)
        assert run(resumed) == whole(kind)


def test_a_sampler_that_fails_does_so_in_its_place(dataset: Path) -> None:
    def items() -> Iterator[int]:
        yield from (0, 1, 2)
        raise ZeroDivisionError

    class Fails:
        def __iter__(self) -> Iterator[int]:
            return items()

    ds = sv.ClipDataset(dataset, **OPTIONS)
    with sv.GpuDataLoader(ds, batch_size=1, sampler=Fails(), device="cpu") as one:
        seen = []
        with pytest.raises(ZeroDivisionError):
            seen += [batch["key"][0] for batch in one]
        with pytest.raises(ZeroDivisionError):  # the rest of the epoch begins with it
            list(one)
        one.set_epoch(1)
        batches = iter(one)
        assert [next(batches)["key"][0] for _ in range(3)] == ["0", "1", "2"]
        state = one.state_dict()
        assert (state["epoch"], state["batches"]) == (1, 3)


@pytest.mark.filterwarnings("ignore")
def test_a_state_in_a_distributed_checkpoint(dataset: Path, whole: Whole, tmp_path: Path) -> None:
    """Given to torch.distributed.checkpoint with the model, as its `Stateful`; by one process, which needs no group."""
    import torch.distributed.checkpoint as dcp

    with make(dataset, "generator") as one:
        batches = iter(one)
        next(batches)
        dcp.save({"loader": one}, checkpoint_id=tmp_path / "saved", no_dist=True)
    with make(dataset, "generator") as resumed:
        dcp.load({"loader": resumed}, checkpoint_id=tmp_path / "saved", no_dist=True)
        assert run(resumed)[0] == whole("generator")[0][1:]


def test_other_ranks_refuse_the_state(dataset: Path) -> None:
    """So many batches of one of three ranks are other clips than of one of two. Between epochs it is no matter."""

    def on(ranks: int) -> sv.GpuDataLoader:
        ds = sv.ClipDataset(dataset, **OPTIONS)
        return sv.GpuDataLoader(ds, batch_size=1, device="cpu", sampler=DistributedSampler(ds, ranks, rank=0))

    with on(3) as three, on(2) as two:
        for _, _batch in zip(range(2), three, strict=False):
            within = three.state_dict()
        between = three.state_dict()
        with pytest.raises(sv.InputError, match="num_replicas=3; here it is 2"):
            two.load_state_dict(within)
        two.load_state_dict(between)


@pytest.mark.parametrize("kind", ["generator", "distributed"])
def test_a_state_of_another_rank_is_told(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """A checkpoint that holds one state for all ranks gives the generator of one to all: torch.distributed.checkpoint
    keeps that of one rank under a name, frameworks save on the first. Of samplers that divide it is right."""

    def on(rank: int) -> sv.GpuDataLoader:
        use(monkeypatch, torchrun(rank, 2, 2))
        if kind == "generator":
            return make(dataset, kind)
        ds = sv.ClipDataset(dataset, **OPTIONS)
        return sv.GpuDataLoader(ds, batch_size=2, device="cpu", sampler=DistributedSampler(ds, 2, rank))

    with on(0) as loader:
        iterator = iter(loader)
        between = loader.state_dict()
        next(iterator)
        within = json.loads(json.dumps(loader.state_dict()))
        loader.load_state_dict(within)
        assert not caplog.text
    with on(1) as other:
        other.load_state_dict(between)
        assert not caplog.text
        other.load_state_dict(within)
        assert ("rank 1 of 2 loads the state of rank 0 of 2" in caplog.text) == (kind == "generator")


def test_another_loader_refuses_the_state(dataset: Path, tmp_path: Path) -> None:
    with make(dataset, "shuffle") as one:
        between = one.state_dict()
        iterator = iter(one)
        next(iterator)
        state = json.loads(json.dumps(one.state_dict()))
        del iterator
    ds = sv.ClipDataset(dataset, **OPTIONS)
    few = sv.ClipDataset(sv.Subset(dataset, keys=["1", "2"]), **OPTIONS)
    shutil.copytree(dataset.parent / "videos", tmp_path / "in")
    write(Recipe(width=64, height=64, frames=12, gop=6, seed=CLIPS), tmp_path / "in" / "8.mp4")
    sv.pack([tmp_path / "in"], tmp_path / "set", progress=False)
    twin = sv.ClipDataset(tmp_path / "set", **OPTIONS)
    longer = sv.ClipDataset(dataset, sampling=sv.Window(4))
    seed = sv.ClipDataset(dataset, **OPTIONS, seed=4)
    others: list[tuple[dict[str, Any], str]] = [
        ({"dataset": ds, "batch_size": 3, "shuffle": True}, "batch_size=2; here it is 3"),
        ({"dataset": few, "batch_size": 2, "shuffle": True}, "samples=9; here it is 2"),
        ({"dataset": twin, "batch_size": 2, "shuffle": True}, "another dataset, or other clips of it"),
        ({"dataset": longer, "batch_size": 2, "shuffle": True}, "another sampling"),
        ({"dataset": seed, "batch_size": 2, "shuffle": True}, "seed=0; here it is 4"),
        ({"dataset": ds, "batch_size": 2, "sampler": Halves()}, "another sampler"),
    ]
    for options, words in others:
        with sv.GpuDataLoader(device="cpu", **options) as other:
            with pytest.raises(sv.InputError, match=words) as error:
                other.load_state_dict(state)
            assert "\n" not in str(error.value)
            if "sampler" not in words:  # an epoch that has not begun may have other batches
                other.load_state_dict(between)
    generator = [{**part, "generator": "AAAA"} if "generator" in part else part for part in state["samplers"]]
    changes: list[Any] = [
        None, {}, [], {"epoch": 0}, {**state, "version": 2}, {**state, "epoch": -1}, {**state, "batches": "x"},
        {**state, "samplers": 3}, {**state, "samplers": [3]}, {**state, "samplers": generator},
    ]  # fmt: skip
    with make(dataset, "shuffle") as other:
        for change in changes:
            with pytest.raises(sv.InputError, match="state"):
                other.load_state_dict(change)
        other.load_state_dict({**state, "batches": 50})
        with pytest.raises(sv.InputError, match="after 50 batches"):
            list(other)
