"""The world that a StreamLoader divides its clips in: found with the first batch, and never another one after it."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed
import torch.multiprocessing
import torch.utils.data
from torch.distributed import distributed_c10d

import streamvid as sv
from streamvid.packing.options import PackOptions
from streamvid.plan import world as world_module
from tests.support.launch import LAUNCHERS, Environment, is_launchers, lightning, sbatch, srun, torchrun, use
from tests.support.packed import pack_recipes
from tools.clips import Recipe

CLIPS = 14


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    recipe = Recipe(codec="vp9", container="webm", width=64, height=64, frames=4)
    recipes = {f"{n:02}.webm": replace(recipe, seed=n) for n in range(CLIPS)}
    folder = tmp_path_factory.mktemp("world")
    return str(pack_recipes(recipes, folder, shard_size=20_000, options=PackOptions("any")))


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    world_module._log_launch.cache_clear()


def loader(dataset: str, **options: Any) -> sv.StreamLoader:
    return sv.StreamLoader(
        dataset, **{"batch_size": 2, "sampling": sv.Window(2), "device": "cpu", "num_threads": 1, "seed": 5, **options}
    )


def rows(batch: sv.Batch) -> list[int]:
    return batch["clip"][batch["valid"]].tolist()


def take(source: sv.StreamLoader) -> list[int]:
    """The rows of an epoch."""
    return [row for batch in source for row in rows(batch)]


class Group:
    """A process group."""


def joins(monkeypatch: pytest.MonkeyPatch, rank: int, size: int) -> None:
    """The process group comes to be."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: size)


@pytest.mark.parametrize(
    ("launcher", "locality"), [*((launcher, "node") for launcher in LAUNCHERS), (LAUNCHERS[0], None)]
)
def test_every_clip_once_over_the_ranks_of_every_launcher(
    dataset: str, launcher: Callable[..., Environment], locality: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Counter[int] = Counter()
    steps = set()
    for rank in range(4):
        use(monkeypatch, launcher(rank, 4, 2))
        with loader(dataset, locality=locality) as source:
            seen.update(take(source))
            steps.add(len(source))
    assert seen == Counter(range(CLIPS))
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("size", "options", "said"),
    [
        (4, {}, "nothing says which they are"),
        (3, {"ranks_per_node": 2}, "3 ranks are no whole number of nodes with 2"),
        (4, {"ranks_per_node": 4}, ""),
        (4, {"ranks_per_node": 2}, ""),
        (1, {}, ""),
    ],
)
def test_locality_without_effect(
    dataset: str, size: int, options: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As under mpirun, which tells no rank how many each node has."""
    with loader(dataset, rank=0, world_size=size, locality="node", **options) as source:
        take(source)
        take(source)
    assert caplog.text.count("locality='node' has no effect") == bool(said)
    assert said in caplog.text


def test_nodes_of_unequal_size_without_a_process_group(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nodes of two, one and three ranks the first takes all for nodes of two, as its environment does not say
    otherwise. Each would stream other clips than the others think."""
    node_of = (0, 0, 1, 2, 2, 2)
    for rank, node in enumerate(node_of):
        here = node_of.count(node)
        sizes = {"LOCAL_WORLD_SIZE": str(here), "GROUP_RANK": str(node), "GROUP_WORLD_SIZE": "3"}
        use(monkeypatch, torchrun(rank, 6, here) | sizes)
        with loader(dataset, locality="node") as source:
            if node:
                with pytest.raises(sv.InputError, match=rf"this one has {here} of 6: give ranks_per_node"):
                    next(iter(source))
            else:
                next(iter(source))
        with loader(dataset, locality="node", ranks_per_node=1) as source:
            take(source)
        with loader(dataset, rank=rank, world_size=6, locality="node") as source:
            take(source)


def test_a_loader_made_before_the_process_group(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """len() and state_dict() answer for the world that is known, and leave it open."""
    seen: Counter[int] = Counter()
    for rank in range(2):
        with monkeypatch.context() as patch, loader(dataset) as source:
            assert len(source) == 7
            state = source.state_dict()
            joins(patch, rank, 2)
            assert len(source) == 4
            assert source.state_dict() == state
            seen.update(take(source))
            assert source.epoch == 1
    assert seen == Counter(range(CLIPS))


@pytest.mark.parametrize("last_batch", ["partial", "drop", "fill"])
@pytest.mark.parametrize("before", [1, 3])
def test_a_state_loaded_before_the_process_group(
    dataset: str, last_batch: Any, before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was left of the epoch is divided among the ranks that there are then."""
    with loader(dataset, rank=0, world_size=1, last_batch=last_batch) as first:
        done = []
        for _, batch in zip(range(before), first, strict=False):
            done += rows(batch)
            state = first.state_dict()
    seen = Counter(done)
    for rank in range(2):
        with monkeypatch.context() as patch, loader(dataset, last_batch=last_batch) as source:
            source.load_state_dict(state)
            joins(patch, rank, 2)
            assert source.epoch == 0
            seen.update(take(source))
    assert set(seen.values()) == {1}
    if last_batch != "drop":
        assert sorted(seen) == list(range(CLIPS))


def test_nothing_left_for_the_ranks_that_there_are_then(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clips fill a step of one rank, but not of two: with "drop" the next epoch comes."""
    with loader(dataset, rank=0, world_size=1, last_batch="drop") as first:
        for _ in zip(range(6), first, strict=False):
            state = first.state_dict()
    with monkeypatch.context() as patch, loader(dataset, last_batch="drop") as source:
        source.load_state_dict(state)
        joins(patch, 1, 2)
        batches = list(source)
        assert len(batches) == 3
        assert {epoch for batch in batches for epoch in batch["epoch"].tolist()} == {1}


def test_steps_per_epoch_of_the_ranks_that_there_are_then(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, loader(dataset, steps_per_epoch=3) as source:
        source.state_dict()
        joins(patch, 1, 4)
        assert [len(list(source)) for _ in range(3)] == [3, 3, 3]


def test_batches_of_one_world_are_planned_once(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan reads the limits of memory from a dozen files, which would hold up every batch."""
    with loader(dataset, steps_per_epoch=3) as source:
        batches = iter(source)
        next(batches)
        monkeypatch.setattr("streamvid.plan.epoch_plan.usable_memory", lambda: pytest.fail("planned anew"))
        assert len([*batches, *source]) == 5


def test_an_epoch_set_before_the_process_group(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Epoch 2 begins behind two epochs of as many ranks as there are then; a restored one, where the state says."""
    with loader(dataset, steps_per_epoch=3, rank=1, world_size=4) as known:
        known.set_epoch(2)
        expected = [take(known) for _ in range(2)]
        known.set_epoch(2)
        state = known.state_dict()
    for restored in (False, True):
        with monkeypatch.context() as patch, loader(dataset, steps_per_epoch=3) as source:
            if restored:
                source.load_state_dict(state)
            source.set_epoch(2)
            source.state_dict()
            joins(patch, 1, 4)
            assert [take(source) for _ in range(2)] == expected


@pytest.mark.parametrize("option", ["seed", "transform", "columns", "batch_fn"])
def test_a_rank_of_torchrun_known_before_the_process_group_is_compared(
    dataset: str, option: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    values = {
        "seed": (0, 1),
        "transform": (sv.Transform(crop=32), sv.Transform(crop=32, horizontal_flip=0.5)),
        "columns": (["seconds"], ["frames"]),
        "batch_fn": (None, dict),
    }[option]
    store = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed, "group", SimpleNamespace(WORLD=Group()))
    monkeypatch.setattr(distributed_c10d, "_get_process_group_store", lambda _: store)
    for rank in range(2):
        with monkeypatch.context() as patch:
            use(patch, torchrun(rank, 2, 2))
            with loader(dataset, **{option: values[rank]}) as source:
                joins(patch, rank, 2)
                if rank and option == "seed":
                    with pytest.raises(sv.InputError, match="seed differs"):
                        next(iter(source))
                else:
                    next(iter(source))
    assert (f"{option} differs" in caplog.text) is (option != "seed")


def test_another_world_after_the_first_batch(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with loader(dataset) as source:
        batches = iter(source)
        next(batches)
        joins(monkeypatch, 0, 2)
        assert len(source) == 7
        with pytest.raises(sv.InputError, match=r"rank 0 of 1 .*rank 0 of 2 .*process group.*init_process_group"):
            next(batches)
        with pytest.raises(sv.InputError, match="rank 0 of 2"):
            next(iter(source))


def test_another_rank_after_the_first_epoch(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, torchrun(0, 2, 2))
    with loader(dataset) as source:
        take(source)
        joins(monkeypatch, 0, 2)  # the same world, said by another
        take(source)
        joins(monkeypatch, 1, 2)
        with pytest.raises(sv.InputError, match=r"rank 0 of 2 .*rank 1 of 2"):
            take(source)


def test_given_ranks_are_final(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with loader(dataset, rank=1, world_size=2) as source:
        expected = [take(source) for _ in range(2)]
    with loader(dataset, rank=1, world_size=2) as source:
        first = take(source)
        joins(monkeypatch, 0, 4)
        assert [first, take(source)] == expected


def test_a_step_that_cannot_be_filled_in_the_world_that_comes(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with loader(dataset, last_batch="drop") as source:
        joins(monkeypatch, 0, 8)
        with pytest.raises(sv.InputError, match="8 ranks x 2 clips"):
            next(iter(source))


def test_the_rank_must_be_known_with_the_first_batch(dataset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's launcher on the second node: the process group says the rank, and if there is none, nobody does."""
    use(monkeypatch, {"NODE_RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "4"})
    with loader(dataset) as source:
        assert len(source) == 2
        with pytest.raises(sv.InputError, match="LOCAL_WORLD_SIZE"):
            next(iter(source))
        joins(monkeypatch, 2, 4)
        assert len(list(source)) == 2


def test_ranks_of_tasks_that_may_be_independent_are_logged_once(
    dataset: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use(monkeypatch, srun(1, 2, 2))
    with caplog.at_level(logging.INFO):
        with loader(dataset) as source:
            len(source)
            source.state_dict()
            assert "rank" not in caplog.text.replace(dataset, "")
            take(source)
        with loader(dataset) as source:
            take(source)
    assert caplog.text.count("rank 1 of 2") == 1
    assert "world_size=1" in caplog.text


def test_independent_tasks(dataset: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A sweep under srun: each task streams all clips. So does a batch script, and each rank torchrun is told of
    without a word."""
    for environment, options in [(srun(1, 8, 8), {"world_size": 1}), (sbatch(8), {})]:
        use(monkeypatch, environment)
        with loader(dataset, **options) as source:
            assert sorted(take(source)) == list(range(CLIPS))
    for launcher in (torchrun, lightning):
        use(monkeypatch, launcher(1, 2, 2))
        with loader(dataset) as source:
            assert len(take(source)) < CLIPS
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_mesh_with_locality_needs_the_ranks_of_a_node(dataset: str) -> None:
    with pytest.raises(sv.InputError, match="ranks_per_node"):
        loader(dataset, locality="node", mesh=object())
    with pytest.raises(sv.InputError, match="DeviceMesh"):
        loader(dataset, mesh=object())


def test_a_loader_is_made_where_it_is_used(dataset: str) -> None:
    with loader(dataset) as source, pytest.raises(sv.InputError, match="make it in the process"):
        torch.multiprocessing.spawn(print, (source,))


@pytest.mark.parametrize("workers", [1, 2])
def test_within_a_worker_of_a_dataloader(dataset: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers that iterate over a loader, inside an IterableDataset, would stream everything twice."""
    info = SimpleNamespace(id=0, num_workers=workers, seed=0, dataset=None)
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: info)
    with loader(dataset) as source:
        if workers == 1:
            assert sorted(take(source)) == list(range(CLIPS))
        else:
            with pytest.raises(sv.InputError, match="2 DataLoader workers"):
                next(iter(source))
    with loader(dataset, rank=0, world_size=2) as source:
        assert len(list(source)) == 4


def started(rank: int, dataset: str, folder: str) -> None:
    """A process that makes its loaders before the process group."""
    from torch.distributed.device_mesh import init_device_mesh

    found: dict[str, Any] = {}
    with loader(dataset) as early, loader(dataset) as too_early, loader(dataset, engine="dali") as dali:
        next(iter(too_early))
        found["steps"] = len(early)
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
        found["early"], found["dali"] = [take(early), take(early)], take(dali)
        try:
            next(iter(too_early))
        except sv.InputError as error:
            found["error"] = str(error)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for name, part in (("mesh", mesh), ("dp", mesh["dp"])):
        with loader(dataset, mesh=part) as source:
            found[name] = take(source)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def test_loaders_made_before_the_process_group(dataset: str, tmp_path: Path) -> None:
    multiprocessing.set_forkserver_preload(["torch", __name__])  # imported once, not by each of four
    torch.multiprocessing.start_processes(started, (dataset, str(tmp_path)), nprocs=4, start_method="forkserver")
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    assert [rank["steps"] for rank in ranks] == [7] * 4
    for parts in ([r["early"][0] for r in ranks], [r["early"][1] for r in ranks], [r["dali"] for r in ranks]):
        assert Counter(row for part in parts for row in part) == Counter(range(CLIPS))
    assert all(f"rank {number} of 4" in rank["error"] for number, rank in enumerate(ranks))
    for name in ("mesh", "dp"):
        assert ranks[0][name] == ranks[1][name]
        assert ranks[2][name] == ranks[3][name]
        assert Counter(ranks[0][name] + ranks[2][name]) == Counter(range(CLIPS))


UNDER_TORCHRUN = """
import json, os, sys
import torch.distributed
import streamvid as sv
def rows(batch):
    return batch["clip"][batch["valid"]].tolist()
with sv.StreamLoader(sys.argv[1], batch_size=2, sampling=sv.Window(2), device="cpu", num_threads=1) as loader:
    batches = iter(loader)
    epochs = [[rows(next(batches))]]
    torch.distributed.init_process_group("gloo")
    os.environ["RANK"] = "0"  # the process group is asked first
    epochs[0] += map(rows, batches)
    epochs.append(list(map(rows, loader)))
with open(f"{sys.argv[2]}/{torch.distributed.get_rank()}.json", "w") as file:
    json.dump(epochs, file)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


def test_torchrun_is_known_before_the_process_group(dataset: str, tmp_path: Path, forked_python: Path) -> None:
    (tmp_path / "rank.py").write_text(UNDER_TORCHRUN)
    environment = {name: value for name, value in os.environ.items() if not is_launchers(name)}
    done = subprocess.run(
        [str(forked_python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(tmp_path / "rank.py"), dataset, str(tmp_path)],
        capture_output=True, text=True, timeout=200,
        env=environment | {"PYTHONPATH": os.getcwd(), "PYTHON_EXEC": str(forked_python), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for epoch in range(2):
        assert [len(rank[epoch]) for rank in ranks] == [4, 4]
        assert Counter(row for rank in ranks for step in rank[epoch] for row in step) == Counter(range(CLIPS))


@pytest.mark.parametrize("options", [{}, {"steps_per_epoch": 5}, {"locality": "node", "ranks_per_node": 1}])
def test_ranks_that_knew_different_worlds_before(
    dataset: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under Lightning, whose launcher runs the script again for the other ranks, and tells them what they are."""
    for rank, environment in enumerate(({}, lightning(1, 2, 2))):
        with loader(dataset, rank=rank, world_size=2, **options) as known:
            known.set_epoch(2)
            expected = [take(known) for _ in range(2)]
        with monkeypatch.context() as patch:
            use(patch, environment)
            with loader(dataset, **options) as source:
                source.set_epoch(2)
                source.state_dict()
                joins(patch, rank, 2)
                assert [take(source) for _ in range(2)] == expected
