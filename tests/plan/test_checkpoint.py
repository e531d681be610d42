"""A run that was saved within an epoch, and goes on over a dataset that was appended to meanwhile."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamvid as sv
from streamvid.errors import InputError
from streamvid.plan.checkpoint import Cursor, RunSchedule
from streamvid.plan.epoch_plan import Plan
from streamvid.plan.mixture import SampleStream
from streamvid.plan.permutation import Pool
from streamvid.plan.world import World
from tests.support.packed import make_videos
from tools.clips import Recipe

OLD = 11
ALONE = World(0, 1)


def schedule(sizes: list[int], world: World = ALONE, **options: Any) -> RunSchedule:
    """Over shards of so many clips, of which the names are the same in every dataset."""
    batch_size, seed, local = options.get("batch_size", 2), options.get("seed", 3), options.get("local", False)
    weights = options.get("weights")
    sample_ids = np.arange(sum(sizes), dtype=np.int64)
    shards = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    pools = (Pool(sample_ids, shards, weights),) * options.get("pools", 1)
    stream = SampleStream(pools, (1,) * len(pools), seed, options.get("shuffle", "full"), 2)
    bucket_steps = options.get("group", 0)
    # Of a dataset that was appended to, the bucket keys have other numbers, in the same order.
    bucket_keys = (sample_ids * 7 % 5 * len(sizes)).astype(np.uint16)
    plan = Plan(
        stream,
        batch_size,
        world,
        options.get("last_batch", "partial"),
        local=local,
        steps=options.get("steps"),
        bucket_steps=bucket_steps,
        bucket_keys=lambda: bucket_keys,
    )
    return RunSchedule(plan, tuple(f"{n}:{size}" for n, size in enumerate(sizes)), sv.Window(2))


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    steps=st.integers(1, 7),
    phases=st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 3), st.sampled_from([0, 0, 1, 3, 64]), st.integers(0, 9)),
        min_size=1, max_size=5,
    ),
    shuffle=st.sampled_from(["full", "block", "none"]),
    pools=st.integers(1, 2),
)  # fmt: skip
def test_an_epoch_is_so_many_steps_whatever_the_ranks(
    sizes: list[int], steps: int, phases: list[tuple[int, int, int, int]], shuffle: str, pools: int
) -> None:
    """Phases of so many ranks with such a batch size, bucketing and steps made; a state in between; and then to the
    epoch's end. All in all the ranks are given the sample stream from its beginning, without a gap or repeat."""
    state = None
    made: Counter[int] = Counter()
    given_out: list[tuple[int, int]] = []
    last = (phases[-1][0], phases[-1][1], phases[-1][2], None)
    for ranks, batch, group, most in (*phases, last):
        of_rank = [
            schedule(
                sizes, World(rank, ranks), batch_size=batch, shuffle=shuffle, group=group, steps=steps, pools=pools
            )
            for rank in range(ranks)
        ]
        cursors = [one.start(0) if state is None else one.resume(json.loads(json.dumps(state))) for one in of_rank]
        assert {len(one.plan) for one in of_rank} == {steps}
        number = 0
        while number != most:
            if not cursors[0].epoch().left:
                assert not any(cursor.epoch().left for cursor in cursors)
                cursors = [one.after(cursor) for one, cursor in zip(of_rank, cursors, strict=True)]
                if most is None:
                    break
            for cursor in cursors:
                epoch = cursor.epoch()
                part = epoch.step(epoch.done)
                assert part.valid.all()
                assert len(part.sample_ids) == batch
                given_out += zip(part.passes.tolist(), part.sample_ids.tolist(), strict=True)
            made[cursors[0].position.epoch] += 1
            cursors = [cursor.advanced() for cursor in cursors]
            number += 1
        assert all(cursor.state() == cursors[0].state() for cursor in cursors)
        state = cursors[0].state()
    stream = of_rank[0].plan.stream
    sample_ids, passes = stream.take(0, len(given_out))
    whole = list(zip(passes.tolist(), sample_ids.tolist(), strict=True))
    if any(group for _, _, group, _ in phases):
        given_out, whole = sorted(given_out), sorted(whole)
        # An epoch may be longer, so that no clip is lost, but only one that went on with a smaller step.
        shares = [ranks * batch for ranks, batch, _, _ in phases]
        assert min(made.values(), default=steps) >= steps
        assert set(made.values()) <= {steps} or shares != sorted(shares)
    else:
        assert set(made.values()) <= {steps}
    assert given_out == whole


def test_an_epoch_does_not_grow_with_every_change_of_ranks() -> None:
    """Bucketed, 8 ranks, then 1, then 8 again and so on. What few ranks need longer for is no step of many ranks."""
    state, made = None, 0
    for phase in range(40):
        one = schedule([10], World(0, (8, 1)[phase % 2]), batch_size=2, group=4, steps=20)
        cursor = one.start(0) if state is None else one.resume(state)
        made += cursor.epoch_number == 0
        state = cursor.advanced().state()
    # 10 steps of 8 ranks and 10 of one, and those that see what the last window of 8 ranks skipped.
    assert 20 <= made <= 30


@pytest.mark.parametrize(("before", "after", "drop"), [(4, 2, False), (2, 4, False), (8, 1, False), (1, 4, True)])
@pytest.mark.parametrize("epochs", [0, 1])
def test_a_state_between_epochs_on_other_ranks(before: int, after: int, drop: bool, epochs: int) -> None:
    def made(world: World) -> RunSchedule:
        return schedule([30], world, batch_size=1, steps=10, last_batch="drop" if drop else "partial")

    cursor = made(World(0, before)).start(0)
    for _ in range(10 * epochs):
        cursor = cursor.advanced()
    resumed = made(World(0, after)).resume(cursor.state())
    assert (resumed.position.epoch, resumed.epoch().left) == (epochs, 10)
    assert resumed.position.first == 10 * epochs * before


def test_a_state_of_one_topology_has_no_sizes() -> None:
    """It resumes on other ranks, and its own state then on the first number again."""
    two, four = (schedule([30], World(0, ranks), batch_size=1, steps=10) for ranks in (2, 4))
    state = two.start(0).advanced().advanced().state()
    assert [len(numbers) for numbers in state["segments"]] == [5]
    assert two.resume(state).epoch().left == 8
    resumed = four.resume(state)
    assert resumed.epoch().left == 8
    assert four.resume(resumed.state()) == resumed
    assert two.resume(resumed.state()).epoch().left == 8


def rest(make: Any, standing_of: Any, ranks: int) -> Counter[int]:
    """The clips that all ranks get in what is left of an epoch."""
    seen: Counter[int] = Counter()
    for rank in range(ranks):
        epoch = standing_of(make(rank)).epoch()
        for step in range(epoch.done, epoch.done + epoch.left):
            part = epoch.step(step)
            seen.update(part.sample_ids[part.valid].tolist())
    return seen


@given(
    old=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    new=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    epoch=st.integers(0, 3),
    steps=st.integers(1, 8),
    ranks=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    batches=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    shuffle=st.sampled_from(["full", "block", "none"]),
    local=st.booleans(),
    groups=st.tuples(*[st.sampled_from([0, 1, 3])] * 3),
)
def test_each_clip_once_in_each_epoch(
    old: list[int],
    new: list[int],
    epoch: int,
    steps: int,
    ranks: tuple[int, int, int],
    batches: tuple[int, int, int],
    shuffle: str,
    local: bool,
    groups: tuple[int, int, int],
) -> None:
    """Some steps in the old dataset, one in the appended one with other ranks, the rest with others again."""

    def at(sizes: list[int], phase: int) -> Any:
        count = ranks[phase]
        return lambda rank: schedule(
            sizes, World(rank, count, nodes=count), batch_size=batches[phase], shuffle=shuffle, local=local,
            bucket_steps=groups[phase],
        )  # fmt: skip

    begun = at(old, 0)(0).start(epoch)
    steps = min(steps, begun.epoch().left)
    seen: Counter[int] = Counter()
    for rank in range(ranks[0]):
        left = at(old, 0)(rank).start(epoch).epoch()
        for step in range(steps):
            part = left.step(step)
            seen.update(part.sample_ids[part.valid].tolist())
    for _ in range(steps):
        begun = begun.advanced()
    state = json.loads(json.dumps(begun.state()))
    longer = [*old, *new]
    resumed: Cursor = at(longer, 1)(0).resume(state)
    if sum(seen.values()) == sum(old):
        assert resumed.position == at(longer, 1)(0).start(epoch + 1).position
        return
    assert resumed.position.epoch == epoch
    for rank in range(ranks[1]):
        one = at(longer, 1)(rank).resume(state).epoch()
        part = one.step(one.done)
        seen.update(part.sample_ids[part.valid].tolist())
    again = json.loads(json.dumps(resumed.advanced().state()))
    last = at(longer, 2)
    following = last(0).resume(again)
    if following.position.epoch == epoch:
        seen += rest(last, lambda one: one.resume(again), ranks[2])
        following = last(0).after(following)
    assert seen == Counter(range(sum(old)))
    assert following.schedule.identity == last(0).identity
    assert following.position == last(0).start(epoch + 1).position
    assert rest(last, lambda one: one.start(epoch + 1), ranks[2]) == Counter(range(sum(longer)))


def test_a_state_between_epochs_begins_with_all() -> None:
    before, now = schedule([4, 3]), schedule([4, 3, 5])
    state = before.after(before.start(6)).state()
    assert now.resume(state) == Cursor(now, now.plan.start(7))
    assert before.resume(state) == before.start(7)


def test_what_was_not_appended_to_is_refused() -> None:
    before = schedule([4, 3])
    state = before.start(1).advanced().state()
    for other in (schedule([4, 4, 5]), schedule([4]), schedule([3, 4, 5]), replace(before, checksums=("x", "y"))):
        with pytest.raises(InputError, match="another dataset"):
            other.resume(state)
    with pytest.raises(InputError, match="another seed"):
        schedule([4, 3, 5], seed=4).resume(state)
    for damaged in (-1, 3.5, "2", None, [2], 10**30):
        with pytest.raises(InputError, match="another dataset"):
            schedule([4, 3, 5]).resume({**state, "shards": damaged})


@pytest.mark.parametrize("version", [None, "1", np.array(1), 1.0])
def test_a_version_that_is_no_number_is_said_to_be_damaged(version: object) -> None:
    """As where a framework made tensors of the numbers: "version tensor(1), this library knows 1" helps nobody."""
    with pytest.raises(InputError, match="give what state_dict"):
        schedule([4, 3]).resume({**schedule([4, 3]).start(1).advanced().state(), "version": version})


def test_one_dataset_and_a_mix_are_told_apart() -> None:
    """Whatever the numbers of shards: nothing was appended."""
    alone, longer = schedule([4, 3]), schedule([4, 3, 5])
    two, three = schedule([4, 3, 5], pools=2), schedule([4, 3, 5, 6], pools=3)
    for one, other, words in (
        (alone, two, "over one dataset, and this loader streams a Mix of 2"),
        (longer, two, "over one dataset, and this loader streams a Mix of 2"),
        (two, alone, "over a Mix of 2, and this loader streams one dataset"),
        (two, schedule([4, 3, 5, 6]), "over a Mix of 2, and this loader streams one dataset"),
        (two, three, "over a Mix of 2, and this loader streams a Mix of 3"),
    ):
        for state in (one.start(1).state(), one.start(1).advanced().state()):
            with pytest.raises(InputError, match=words) as error:
                other.resume(state)
            assert "appended" not in str(error.value)
    assert two.resume(two.start(1).state()) == two.start(1)


def test_a_refused_state_of_an_appended_dataset_says_what_to_do() -> None:
    before, after = [4, 3], [4, 3, 5]
    for what in ("steps", "pools", "weights"):

        def made(sizes: list[int], what: str = what) -> RunSchedule:
            return schedule(sizes, ALONE, **{what: np.ones(sum(sizes)) if what == "weights" else 2})

        begun = made(before).start(1)
        for cursor, following in ((begun, 1), (begun.advanced(), 2)):
            assert made(before).resume(cursor.state()).position == cursor.position
            with pytest.raises(InputError, match=rf"begin the next epoch with set_epoch\({following}\)"):
                made(after).resume(cursor.state())


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Recipe(width=64, height=64, frames=4, gop=4, b_frames=0)
    names = {n: f"{'old' if n < OLD else 'new'}/{n:02}" for n in range(OLD + 6)}
    recipes = {name: replace(recipe, seed=n) for n, name in names.items()}
    return make_videos(tmp_path_factory.mktemp("videos"), recipes)


@pytest.mark.parametrize("ranks", [1, 3])
def test_an_appended_dataset_through_the_loader(videos: Path, tmp_path: Path, ranks: int) -> None:
    def loader(rank: int, count: int) -> sv.StreamLoader:
        return sv.StreamLoader(
            sv.Subset(tmp_path / "ds", where="frames >= 4"),
            batch_size=2, sampling=sv.Window(2), device="cpu", seed=5, rank=rank, world_size=count,
        )  # fmt: skip

    (tmp_path / "in").mkdir()
    for path in (videos / "old").iterdir():
        os.link(path, tmp_path / "in" / path.name)
    sv.pack([tmp_path / "in"], tmp_path / "ds", shard_size=30_000)
    with loader(0, 1) as one:
        one.set_epoch(2)
        undisturbed = [batch["key"] for batch in one]
        one.set_epoch(2)
        iterator = iter(one)
        seen = Counter(key for _ in range(2) for key in next(iterator)["key"])
        state = json.loads(json.dumps(one.state_dict()))
        iterator.close()  # type: ignore[attr-defined]
    assert len(json.dumps(state)) < 1024
    for path in (videos / "new").iterdir():
        os.link(path, tmp_path / "in" / path.name)
    sv.pack([tmp_path / "in"], tmp_path / "ds", shard_size=30_000, append=True)
    following: Counter[str] = Counter()
    for rank in range(ranks):
        with loader(rank, ranks) as one:
            one.load_state_dict(state)
            one.set_epoch(one.epoch)  # as training loops do; it must not start the epoch anew
            assert one.state_dict() == state | {"revisions": [1]}  # it reads what was appended later, too
            assert one.epoch == 2
            batches = [(batch["key"], batch["valid"].tolist()) for batch in one]
            assert one.epoch == 3
            if ranks == 1:
                assert [keys for keys, _ in batches] == undisturbed[2:]
            for keys, valid in batches:
                seen.update(key for key, counts in zip(keys, valid, strict=True) if counts)
            for batch in one:
                assert set(batch["epoch"].tolist()) == {3}
                valid = batch["valid"].tolist()
                following.update(key for key, counts in zip(batch["key"], valid, strict=True) if counts)
            assert one.state_dict()["dataset"] != state["dataset"]
    old, new = ({path.stem for path in (videos / name).iterdir()} for name in ("old", "new"))
    assert seen == Counter(old)
    assert following == Counter(old | new)


HUGE = 10**17


@pytest.mark.parametrize(
    "change",
    [
        {"segments": [[1, 1, 2, HUGE, 0]]},
        {"segments": [[HUGE, 1, 2, 1, 0]]},
        {"segments": [[1, HUGE, 2, 3, 0]]},
        {"segments": [[1, HUGE, 2, 1, 0]]},
        {"segments": [[1, 1, 2, 1, 0, HUGE]]},
        {"segments": [[1, 1, 2, 1, 0], [1, 2, HUGE, 2, HUGE]]},
        {"segments": [[1, 1, 2, 1, 0]] * 100_000},
        {"segments": [[1, 1, 2, 1, 0]], "size": HUGE},
        {"segments": [], "size": HUGE},
        {"segments": [[1, 1, 2, 0, 0]], "size": 0},
        {"segments": {"a": 1}},
        {"segments": HUGE},
        {"segments": [[1, 1]]},
        {"epoch": 10**30},
        {"first": -1},
        {"first": 1},
        {"first": HUGE},
        {"epoch": 0, "first": 7},
        {"size": True},
    ],
    ids=lambda change: str(change)[:60],
)
@pytest.mark.parametrize("options", [{}, {"steps": 3}, {"local": True}, {"group": 4}, {"pools": 2}], ids=str)
def test_absurd_numbers_take_no_time(change: dict[str, Any], options: dict[str, Any]) -> None:
    run = schedule([4, 3], **options)
    cursor = run.start(1).advanced()
    if options.get("steps") and change in ({"segments": [], "size": HUGE}, {"segments": [[1, 1, 2, 0, 0]], "size": 0}):
        change = {"size": HUGE}  # the others can be: an epoch of so many steps ends where the topology puts it
    with pytest.raises(InputError, match="the state is damaged"):
        run.resume({**cursor.state(), **change})


def test_a_state_of_a_late_epoch_is_resumed() -> None:
    run = schedule([4, 3])
    assert run.resume({**run.start(0).state(), "epoch": HUGE, "first": HUGE * 7}).epoch().left == 4


def test_a_state_without_its_dataset() -> None:
    run = schedule([4, 3])
    state = run.start(1).advanced().state()
    for name in state.keys() - {"parts", "shards"}:
        without = {key: value for key, value in state.items() if key != name} | {"shards": 1}
        with pytest.raises(InputError):
            run.resume(without)
