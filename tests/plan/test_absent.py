"""Clips that are not delivered keep their place: nothing else moves, on any number of ranks, from any state on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.errors import DatasetError
from streamvid.plan.absent import AbsentRows, repeats
from streamvid.plan.epoch import LAST_BATCH, LastBatch, Step
from streamvid.plan.epoch_plan import Plan, Position
from streamvid.plan.mixture import SampleStream
from streamvid.plan.permutation import Pool
from streamvid.plan.sample_id import expand, rows_of
from streamvid.plan.world import World


def plan(clips: int, ranks: int, batch: int, samples: int, rank: int = 0, last: LastBatch = "partial") -> Plan:
    rows = expand(np.arange(clips), np.full(clips, samples))
    pool = Pool(rows, np.zeros(len(rows), dtype=np.int32))
    return Plan(SampleStream((pool,), (1,), 7, "full", 16), batch, World(rank=rank, size=ranks), last)


def steps(made: Plan, position: Position, absent: AbsentRows) -> list[Step]:
    """What is left of an epoch."""
    epoch = replace(made.epoch(position), absent=absent)
    return [epoch.step(number) for number in range(epoch.done, epoch.steps)]


def same(one: Step, two: Step) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in ("sample_ids", "passes", "valid"))


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    clips = draw(st.integers(2, 40))
    gone = draw(st.sets(st.integers(0, clips - 1), max_size=max(1, clips // 3)))
    return {
        "clips": clips,
        "absent": np.array(sorted(gone), dtype=np.int64),
        "ranks": draw(st.integers(1, 3)),
        "batch": draw(st.integers(1, 4)),
        "samples": draw(st.integers(1, 3)),
        "last": draw(st.sampled_from(LAST_BATCH)),
    }


@given(cases(), st.data())
def test_present_clips_keep_their_places(case: dict[str, Any], data: st.DataObject) -> None:
    """On each rank and at each step, whatever is absent; repeats are of the rank's own share, and do not count."""
    gone = case["absent"]
    for rank in range(case["ranks"]):
        made = plan(case["clips"], case["ranks"], case["batch"], case["samples"], rank, case["last"])
        before = steps(made, made.start(2), AbsentRows())
        share = np.concatenate([np.empty(0, dtype=np.int64), *(step.sample_ids for step in before)])
        is_left = not np.isin(rows_of(share), gone).all()
        after = steps(made, made.start(2), AbsentRows(gone))
        assert len(before) == len(after)
        for one, two in zip(before, after, strict=True):
            here = np.isin(rows_of(one.sample_ids), gone)
            assert np.array_equal(one.sample_ids[~here], two.sample_ids[~here])
            assert np.array_equal(one.valid[~here], two.valid[~here])
            assert np.array_equal(two.stands_for, np.where(here, rows_of(one.sample_ids), -1))
            assert not two.valid[here].any()
            assert not np.isin(rows_of(two.sample_ids), gone).any()
            assert np.isin(two.sample_ids, share).all() or not is_left
        # What is found while the epoch goes on: earlier steps are as if nothing were known, later ones as if all were.
        if len(gone) and len(before):
            found = data.draw(st.integers(0, len(before) - 1))
            known = AbsentRows()
            for row in gone.tolist():
                known.add(row, found)
            during = steps(made, made.start(2), known)
            assert all(map(same, during[:found], before[:found]))
            assert all(map(same, during[found:], after[found:]))


@given(cases(), st.integers(1, 4), st.integers(0, 20), st.sets(st.integers(0, 39)))
def test_resumed_with_others_absent(case: dict[str, Any], ranks: int, taken: int, later: set[int]) -> None:
    """Each present sample comes once, though the topology and what is absent change in the middle of the epoch."""
    clips, batch, samples = case["clips"], case["batch"], case["samples"]
    first, second = AbsentRows(case["absent"]), AbsentRows(np.array(sorted(later | {*case["absent"]}), dtype=np.int64))
    counted: Counter[int] = Counter()

    def take(size: int, position: Position, absent: AbsentRows, most: int) -> Position:
        for rank in range(size):
            made = plan(clips, size, batch, samples, rank)
            for step in steps(made, position, absent)[:most]:
                counted.update(step.sample_ids[step.valid].tolist())
        for _ in range(min(most, len(steps(made, position, AbsentRows())))):
            position = position.advanced(made.topology)
        return position

    position = plan(clips, case["ranks"], batch, samples).start(0)
    if second.among(np.arange(clips), 0).all():
        return
    position = take(case["ranks"], position, first, taken)
    take(ranks, position, second, 10**6)
    assert set(counted.values()) <= {1}
    ids = expand(np.arange(clips), np.full(clips, samples))
    always = {int(one) for one in ids if not second.among(rows_of(np.array([one])), 0)[0]}
    never = {int(one) for one in ids if first.among(rows_of(np.array([one])), 0)[0]}
    assert always <= set(counted)
    assert not never & set(counted)


def test_an_epoch_of_absent_clips_alone_is_an_error() -> None:
    made = plan(5, 1, 2, 1)
    with pytest.raises(DatasetError, match="all clips are bad or excluded"):
        steps(made, made.start(0), AbsentRows(np.arange(5)))


def test_the_last_present_one_is_found() -> None:
    """Among so many absent ones that drawing does not meet it."""
    pool = np.arange(100_000)
    absent = AbsentRows(pool[pool != 77_777])
    assert repeats(np.array([3, 4]), np.array([0, 0]), [lambda: pool], absent, seed=1, step=0).tolist() == [
        77_777,
        77_777,
    ]


def test_repeats_are_drawn_evenly() -> None:
    pool = np.arange(10)
    nine, passes = np.array([9]), np.arange(900)
    drawn = repeats(np.full(900, 9), passes, [lambda: pool], AbsentRows(nine), seed=1, step=0)
    counts = np.bincount(drawn, minlength=10)
    assert counts[9] == 0
    assert counts[:9].min() > 50


def test_an_epoch_that_was_prepared_is_kept_while_the_same_clips_are_known() -> None:
    """Not one prepared before another clip was found bad; what is found during an epoch counts from the next on."""
    known = AbsentRows(np.array([7, 3]))
    known.add(5, 0)
    assert known.knows_same_as(AbsentRows(np.array([3, 7, 3])))
    assert not known.knows_same_as(AbsentRows(np.array([3, 5, 7])))
    assert not known.knows_same_as(AbsentRows())
