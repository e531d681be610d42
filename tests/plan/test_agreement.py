"""Ranks that stream something else than the others say so, and those that stream the same say nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed
from torch.distributed import distributed_c10d

import streamvid as sv
from streamvid.errors import InputError
from streamvid.plan.agreement import Agreement
from streamvid.plan.checkpoint import Cursor
from streamvid.plan.world import MESH, PROCESS_GROUP, World
from tests.plan.test_checkpoint import schedule
from tests.support.clock import Clock

SIZES = [3, 4, 5]


class Group:
    """A process group with its store, shared by the ranks."""

    def __init__(self, store: Any) -> None:
        self.store = store


def in_group(monkeypatch: pytest.MonkeyPatch, group: Group | None) -> None:
    stores = {} if group is None else {group: group.store}
    monkeypatch.setattr(torch.distributed, "group", SimpleNamespace(WORLD=group))
    monkeypatch.setattr(distributed_c10d, "_get_process_group_store", stores.__getitem__)


@pytest.fixture(autouse=True)
def _group(monkeypatch: pytest.MonkeyPatch) -> None:
    in_group(monkeypatch, Group(torch.distributed.HashStore()))


def start(rank: int, epoch: int = 0, source: str = PROCESS_GROUP, sizes: list[int] = SIZES, **options: Any) -> Cursor:
    return schedule(sizes, World(rank, 2, source=source), **options).start(epoch)


def check(agreement: Agreement, cursor: Cursor) -> None:
    agreement.check(cursor, cursor.schedule.plan.world)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"seed": 4}, "seed differs"), ({"batch_size": 3}, "batch_size differs"), ({"epoch": 1}, "the epoch differs"),
        ({"last_batch": "drop"}, "last_batch"), ({"group": 3}, "group_by_size"), ({"shuffle": "none"}, "shuffle"),
        ({"steps": 3}, "steps_per_epoch"), ({"local": True}, "locality"), ({"sizes": [3, 4]}, "the dataset, or"),
    ],
)  # fmt: skip
def test_one_rank_that_differs_is_named(change: dict[str, Any], name: str) -> None:
    check(Agreement(), start(0))
    with pytest.raises(InputError, match=f"rank 1 and rank 0 do not stream the same: {name}"):
        check(Agreement(), start(1, **change))


def test_a_rank_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    check(Agreement(), start(0))
    monkeypatch.setattr(sv, "__version__", "0.0.9")
    with pytest.raises(InputError, match=r"the version of streamvid differs \(0.0.9 and "):
        check(Agreement(), start(1))


def test_a_state_of_one_rank_alone() -> None:
    check(Agreement(), start(0))
    with pytest.raises(InputError, match="the state that was loaded differs"):
        check(Agreement(), start(1).advanced())


@pytest.mark.parametrize("name", ["the transform", "batch_fn"])
def test_what_is_made_of_clips_is_compared(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check(Agreement(made={name: sv.Transform(crop=4, dali=lambda node: node)}), start(0))
    check(Agreement(made={name: sv.Transform(crop=4, dali=lambda node: node)}), start(1))  # at another address
    in_group(monkeypatch, Group(torch.distributed.HashStore()))
    for rank in range(2):
        text = f"<bound method of RandomState(MT19937) at 0x7FA{rank}>, tensor([0.5], device='cuda:{rank}')"
        check(Agreement(made={name: type("Made", (), {"__repr__": lambda _, text=text: text})()}), start(rank))
    assert not caplog.text
    in_group(monkeypatch, Group(torch.distributed.HashStore()))
    check(Agreement(made={name: sv.Transform(crop=4)}), start(0))
    check(Agreement(made={name: sv.Transform(crop=5)}), start(1))
    assert re.search(rf"{name} differs \(Transform\(crop=5.* and Transform\(crop=4", caplog.text)


def test_nodes_of_unequal_size() -> None:
    """Of 1, 3 and 2 ranks: on the last node, the environment is that of three equal nodes."""
    check(Agreement(), schedule(SIZES, World(0, 6, 1, PROCESS_GROUP), local=True).start(0))
    with pytest.raises(InputError, match=r"\(give ranks_per_node if .* unequal .*\) differs \(3 and 1\)"):
        check(Agreement(), schedule(SIZES, World(4, 6, 3, PROCESS_GROUP), local=True).start(0))


def test_a_sampling_of_one_rank_alone() -> None:
    check(Agreement(), start(0))
    other = start(1)
    with pytest.raises(InputError, match="sampling or its padding differs"):
        check(Agreement(), replace(other, schedule=replace(other.schedule, sampling=sv.Window(3))))


def test_a_run_that_has_begun_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """With other loaders in another order, as where each rank draws its next task; or beginning an epoch elsewhere."""
    for rank in range(2):
        first = Agreement()
        check(first, start(rank))
        for seed in (rank, 1 - rank):
            check(Agreement(), start(rank, seed=seed))
        check(first, start(rank, 1 + rank))
    assert caplog.text.count("rank 1 and rank 0 do not stream the same: seed differs") == 2
    assert caplog.text.count("the epoch differs") == 1


def test_ranks_alike_go_on_in_any_order_of_time() -> None:
    """One rank is ahead by epochs and loaders; the other meets an error in an epoch's first batch, and begins again."""
    ahead, behind = ([Agreement(), Agreement()] for _ in range(2))
    for number in range(3):
        for one, loader in enumerate(ahead):
            check(loader, start(0, number, seed=one))
    for number in (0, 0, 1, 2):
        for one, loader in enumerate(behind):
            check(loader, start(1, number, seed=one))


@pytest.mark.parametrize(
    ("begun", "shown", "shuffle", "warned"),
    [(1, 1, "full", 0), (1, 2, "full", 1), (0, 9, "full", 0), (1, 9, "none", 0)],
)
def test_a_rank_that_looked_at_a_batch_is_an_epoch_ahead(
    begun: int, shown: int, shuffle: str, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    """By `next(iter(loader))` of its own. Not if it names the epoch again, not if all epochs are alike, and not before
    others are beyond that batch."""
    ahead, behind = Agreement(), Agreement()
    check(ahead, start(0, shuffle=shuffle))
    ahead.went_on()
    check(ahead, start(0, begun, shuffle=shuffle))
    check(behind, start(1, shuffle=shuffle))
    for agreement in (ahead, behind):
        for _ in range(shown):
            agreement.went_on()
    assert caplog.text.count("rank 0 has left epoch 0 after 1 of its batches") == warned


@pytest.mark.parametrize(
    ("shown", "others", "seconds", "warned"), [(6, 0, 61, 1), (6, 1, 61, 0), (1, 0, 61, 0), (6, 0, 59, 0)]
)
def test_a_rank_that_evaluates_alone(
    shown: int,
    others: int,
    seconds: int,
    warned: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It gets a part of the clips only. Not if another rank began the epoch, too, nor if it only looked at a batch, nor
    if the others may only be late."""
    alone, steps, clock = Agreement(), len(start(0).schedule.plan), Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    assert 1 < steps <= 6
    check(alone, start(0))
    for _ in range(min(shown, steps)):
        alone.went_on()
    for _ in range(others):
        check(Agreement(), start(1))
    clock.sleep(seconds)
    check(alone, start(0, 1))
    assert caplog.text.count("only 1 of 2 ranks have begun epoch 0 of this loader") == warned


def test_the_ranks_of_a_mesh_are_compared_whatever_else_there_is() -> None:
    """Two meshes of two ranks each stream other things; in each, all ranks stream the same."""

    def on(rank: int, *, seed: int) -> None:
        members = torch.tensor([[0, 1], [2, 3]][rank // 2])
        mesh: Any = SimpleNamespace(mesh=members, get_rank=lambda: rank)
        check(Agreement(mesh), start(rank % 2, source=MESH, seed=seed))

    for rank in (2, 0):
        on(rank, seed=rank)
    on(3, seed=2)
    with pytest.raises(InputError, match="rank 1 and rank 0 do not stream the same: seed differs"):
        on(1, seed=3)


@pytest.mark.parametrize("grown", [True, False])
def test_ranks_that_torchrun_starts_again_with_the_same_store(grown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on elsewhere, as more ranks or as many; what those that died began is nothing to them."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    check(Agreement(), start(0))
    if not grown:
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    check(Agreement(), schedule(SIZES, World(1, 2 + grown, source=PROCESS_GROUP)).start(3))


def test_ranks_that_were_given_and_groups_without_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        check(Agreement(), start(rank, source="the arguments", seed=rank))

    for without in (Group(None), None):
        in_group(monkeypatch, without)
        for rank in range(2):
            check(Agreement(), start(rank, seed=rank))


def test_the_store_of_a_process_group_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """For it may hold a port, which the next one needs."""
    store = torch.distributed.HashStore()
    in_group(monkeypatch, Group(store))
    kept = sys.getrefcount(store)
    loader = Agreement()
    check(loader, start(0))
    for _ in range(3):
        loader.went_on()
    assert sys.getrefcount(store) == kept


def test_a_process_group_that_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    loaders = [Agreement(), Agreement()]
    for rank, loader in enumerate(loaders):
        check(loader, start(rank))
    in_group(monkeypatch, Group(torch.distributed.HashStore()))
    for rank, loader in enumerate(loaders):
        check(loader, start(rank, 1))
        check(Agreement(), start(rank, 7))


def test_a_real_process_group_has_a_store(forked_python: Path) -> None:
    """What is asked of PyTorch, in a child, as a process has one group."""
    script = (
        "import torch.distributed as d; from streamvid.plan.agreement import _store_of; "
        "d.init_process_group('gloo', store=d.HashStore(), rank=0, world_size=1); "
        "store = _store_of(d.group.WORLD); print(store.add('one', 1), store.compare_set('two', '', 'x'))"
    )
    done = subprocess.run([forked_python, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1:] == ["1 b'x'"], done.stderr  # Gloo prints a line of its own before


def test_a_rank_that_evaluates_alone_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """No next epoch tells it: the last batch does, and the next epoch does not say it again."""
    alone, steps, clock = Agreement(), len(start(0).schedule.plan), Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    check(alone, start(0))
    clock.sleep(61)
    for step in range(steps):
        assert not caplog.text, step
        alone.went_on()
    assert "only 1 of 2 ranks" in caplog.text
    check(alone, start(0, 1))
    assert caplog.text.count("only 1 of 2 ranks have begun epoch 0 of this loader") == 1
