"""The plan: every clip once, on one rank, the same for everybody who computes it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamvid.errors import InputError
from streamvid.stream.plan import LAST_BATCH, LastBatch, Plan, Step, draws

seeds = st.integers(-(2**70), 2**70) | st.integers(0, 3)
epochs = st.integers(0, 1000)


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Some rows of a dataset, as left over by a filter."""
    return np.array(sorted(draw(st.sets(st.integers(0, 500), min_size=1, max_size=80))), dtype=np.int64)


def plans(clips: Any, batch: int, world: int, seed: int, shuffle: bool, last: LastBatch) -> list[Plan]:
    return [Plan(clips, batch, rank, world, seed, shuffle, last) for rank in range(world)]


def steps(plan: Plan, epoch: int) -> list[Step]:
    order = plan.order(epoch)
    return [plan.step(order, n) for n in range(len(plan))]


@settings(max_examples=400, deadline=None)
@given(rows(), st.integers(1, 9), st.integers(1, 9), seeds, epochs, st.booleans(), st.sampled_from(LAST_BATCH))
def test_all_ranks_together_give_every_clip_once(
    clips: Any, batch: int, world: int, seed: int, epoch: int, shuffle: bool, last: LastBatch
) -> None:
    ranks = [steps(plan, epoch) for plan in plans(clips, batch, world, seed, shuffle, last)]
    share = batch * world
    count = len(clips) // share if last == "drop" else -(-len(clips) // share)
    assert {len(rank) for rank in ranks} == {count}
    assert {len(plan) for plan in plans(clips, batch, world, seed, shuffle, last)} == {count}

    order = Plan(clips, batch, 0, world, seed, shuffle, last).order(epoch)
    given_out = [clip for n in range(count) for rank in ranks for clip in rank[n].clips[rank[n].valid].tolist()]
    # In the order of the epoch, step by step and rank by rank.
    assert given_out == order[: count * share].tolist()
    if last != "drop":
        assert sorted(given_out) == clips.tolist()

    for n in range(count):
        for rank in ranks:
            step = rank[n]
            assert step.items.dtype == np.int64
            assert step.valid.dtype == np.bool_
            assert len(step.items) == len(step.valid)
            assert set(step.items.tolist()) <= set(clips.tolist())
            if n < count - 1 or last != "partial" or len(clips) % share == 0:
                assert len(step.items) == batch
            else:
                assert 1 <= len(step.items) <= batch
            if n < count - 1 or last != "fill":
                # Only a rank that would have nothing holds a clip that does not count.
                assert step.valid.all() or len(step.items) == 1
    if last == "partial" and count:
        sizes = [int(rank[-1].valid.sum()) for rank in ranks]
        assert max(sizes) - min(sizes) <= 1


@settings(max_examples=100, deadline=None)
@given(rows(), seeds, epochs, st.integers(1, 9), st.integers(1, 9), st.sampled_from(LAST_BATCH))
def test_the_order_depends_on_clips_seed_and_epoch_alone(
    clips: Any, seed: int, epoch: int, batch: int, world: int, last: LastBatch
) -> None:
    order = Plan(clips, 1, 0, 1, seed, True, "partial").order(epoch)
    assert sorted(order.tolist()) == clips.tolist()
    for plan in plans(clips, batch, world, seed, True, last):
        np.testing.assert_array_equal(plan.order(epoch), order)


@settings(max_examples=100, deadline=None)
@given(seeds, epochs, st.integers(1, 1000))
def test_orders_differ(seed: int, epoch: int, apart: int) -> None:
    clips = np.arange(50)
    order = Plan(clips, 1, 0, 1, seed, True, "partial").order(epoch)
    assert order.tolist() != Plan(clips, 1, 0, 1, seed, True, "partial").order(epoch + apart).tolist()
    assert order.tolist() != Plan(clips, 1, 0, 1, seed + apart, True, "partial").order(epoch).tolist()
    assert order.tolist() != clips.tolist()


def test_every_clip_comes_first_about_as_often() -> None:
    plan = Plan(np.arange(10), 1, 0, 1, 3, True, "partial")
    first = np.bincount([plan.order(epoch)[0] for epoch in range(2000)], minlength=10)
    assert first.min() > 120
    assert first.max() < 290


@settings(max_examples=50, deadline=None)
@given(rows(), st.integers(1, 9), st.integers(1, 4), seeds, epochs)
def test_without_shuffling_the_order_is_the_datasets(clips: Any, batch: int, world: int, seed: int, epoch: int) -> None:
    assert Plan(clips, batch, 0, world, seed, False, "partial").order(epoch).tolist() == clips.tolist()


@settings(max_examples=100, deadline=None)
@given(rows(), st.integers(1, 9), st.integers(1, 9), epochs)
def test_filled_up_from_the_start_of_the_order(clips: Any, batch: int, world: int, epoch: int) -> None:
    assume(len(clips) % (batch * world))
    ranks = [steps(plan, epoch) for plan in plans(clips, batch, world, 5, True, "fill")]
    order = Plan(clips, batch, 0, world, 5, True, "fill").order(epoch)
    last = np.concatenate([rank[-1].items for rank in ranks])
    valid = np.concatenate([rank[-1].valid for rank in ranks])
    rest = len(clips) % (batch * world)
    assert valid.tolist() == [n < rest for n in range(batch * world)]
    filling = last[rest:][: len(order)]
    assert filling.tolist() == order[: len(filling)].tolist()


@settings(max_examples=200, deadline=None)
@given(seeds, epochs, st.integers(0, 10**9), st.integers(0, 50))
def test_draws(seed: int, epoch: int, clip: int, count: int) -> None:
    got = draws(seed, epoch, clip, count)
    assert got.shape == (count,)
    assert got.dtype == np.float64
    assert np.all((got >= 0) & (got < 1))
    np.testing.assert_array_equal(got, draws(seed, epoch, clip, count))
    # Whoever needs fewer gets the first of them.
    np.testing.assert_array_equal(got, draws(seed, epoch, clip, count + 3)[:count])


@settings(max_examples=200, deadline=None)
@given(seeds, epochs, st.integers(0, 10**9), st.integers(1, 10**6))
def test_draws_differ_by_clip_epoch_and_seed(seed: int, epoch: int, clip: int, apart: int) -> None:
    four = [
        draws(seed, epoch, clip, 8),
        draws(seed, epoch, clip + apart, 8),
        draws(seed, epoch + apart, clip, 8),
        draws(seed + apart, epoch, clip, 8),
    ]
    for n, one in enumerate(four):
        for other in four[n + 1 :]:
            assert not np.isin(one, other).any()


def test_draws_of_neighbours_do_not_overlap() -> None:
    """Counter-based streams that start next to each other would repeat one another, shifted."""
    many = [draws(0, 0, clip, 40) for clip in range(40)] + [draws(0, epoch, 0, 40) for epoch in range(1, 40)]
    every = np.concatenate(many)
    assert len(np.unique(every)) == len(every)
    for one, other in pairwise(many):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.7


def test_draws_are_uniform() -> None:
    values = np.concatenate([draws(1, 2, clip, 5) for clip in range(4000)])
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    assert counts.min() > 800
    assert counts.max() < 1200


def test_the_same_for_ever() -> None:
    """A change here changes everybody's runs: bump the major version if it must be."""
    assert Plan(np.arange(8), 1, 0, 1, 7, True, "partial").order(3).tolist() == [4, 3, 5, 6, 0, 7, 1, 2]
    np.testing.assert_allclose(draws(7, 3, 5, 2), [0.948541331120402, 0.12597853348361587], rtol=1e-15)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": -4}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size"),
        ({"batch_size": "4"}, "batch_size"),
        ({"world_size": 0}, "world_size"),
        ({"rank": 2}, "rank"),
        ({"rank": -1}, "rank"),
        ({"rank": None}, "rank"),
        ({"seed": 1.5}, "seed"),
        ({"seed": None}, "seed"),
        ({"last_batch": "last"}, "last_batch"),
        ({"last_batch": None}, "last_batch"),
    ],
)
def test_silly_arguments(change: dict[str, Any], word: str) -> None:
    options: dict[str, Any] = {"clips": np.arange(4), "batch_size": 2, "rank": 0, "world_size": 2}
    options |= {"seed": 0, "shuffle": True, "last_batch": "partial"}
    with pytest.raises(InputError, match=word) as error:
        Plan(**{**options, **change})
    assert "\n" not in str(error.value)
