"""The plan: every clip once, on one rank, the same for everybody who computes it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamvid import All
from streamvid.errors import InputError
from streamvid.plan import epoch_plan, permutation
from streamvid.plan.checkpoint import Cursor, RunSchedule, position_from
from streamvid.plan.epoch import LAST_BATCH, LastBatch, Step, Topology
from streamvid.plan.epoch_plan import Plan, Position, TopologyRun
from streamvid.plan.mixture import BLOCK, SampleStream, whole_weights
from streamvid.plan.permutation import SHUFFLES, Pool, Shuffle, arrange
from streamvid.plan.rng import AUGMENT, draws, draws_of_each
from streamvid.plan.world import World

seeds = st.integers(-(2**70), 2**70) | st.integers(0, 3)
epochs = st.integers(0, 1000)


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Some rows of a dataset, as left over by a filter."""
    return np.array(sorted(draw(st.sets(st.integers(0, 500), min_size=1, max_size=80))), dtype=np.int64)


def stream(
    clips: Any, seed: int = 0, shuffle: Shuffle = "full", weights: Any = None, per_shard: int = 7
) -> SampleStream:
    pool = Pool(clips, (clips // per_shard).astype(np.int32), weights)
    return SampleStream((pool,), (1,), seed, shuffle, block_shards=3)


def ranks_of(
    source: SampleStream, batch: int, size: int, last: LastBatch = "partial", *, nodes: int = 1, **more: Any
) -> list[Plan]:
    return [Plan(source, batch, World(rank, size, nodes), last, **more) for rank in range(size)]


def steps(plan: Plan, position: Position) -> list[Step]:
    epoch = plan.epoch(position)
    return [epoch.step(n) for n in range(epoch.done, epoch.steps)]


def handed_out(ranks: Sequence[Sequence[Step]]) -> list[int]:
    """Valid samples of all ranks, step by step."""
    return [
        sample_id
        for step in zip(*ranks, strict=True)
        for part in step
        for sample_id in part.sample_ids[part.valid].tolist()
    ]


@settings(max_examples=settings.default.max_examples * 3)
@given(
    rows(), st.integers(1, 9), st.integers(1, 9), seeds, epochs, st.sampled_from(SHUFFLES), st.sampled_from(LAST_BATCH)
)
def test_all_ranks_together_give_every_clip_once(
    clips: Any, batch: int, size: int, seed: int, epoch: int, shuffle: Shuffle, last: LastBatch
) -> None:
    plans = ranks_of(stream(clips, seed, shuffle), batch, size, last)
    ranks = [steps(plan, plan.start(epoch)) for plan in plans]
    share = batch * size
    count = len(clips) // share if last == "drop" else -(-len(clips) // share)
    assert {len(rank) for rank in ranks} == {count}
    assert {len(plan) for plan in plans} == {count}

    # In the order of the epoch, step by step and rank by rank.
    assert handed_out(ranks) == plans[0].stream.order(epoch)[: count * share].tolist()
    if last != "drop":
        assert sorted(handed_out(ranks)) == clips.tolist()

    for n in range(count):
        for rank in ranks:
            step = rank[n]
            assert step.sample_ids.dtype == step.passes.dtype == np.int64
            assert step.valid.dtype == np.bool_
            assert len(step.sample_ids) == len(step.valid) == len(step.passes)
            assert set(step.passes.tolist()) == {epoch}
            assert set(step.sample_ids.tolist()) <= set(clips.tolist())
            if n < count - 1 or last != "partial" or len(clips) % share == 0:
                assert len(step.sample_ids) == batch
            else:
                assert 1 <= len(step.sample_ids) <= batch
            if n < count - 1 or last != "fill":
                # Only a rank that would have nothing holds a clip that does not count.
                assert step.valid.all() or len(step.sample_ids) == 1
    if last == "partial" and count:
        sizes = [int(rank[-1].valid.sum()) for rank in ranks]
        assert max(sizes) - min(sizes) <= 1


@given(seeds, epochs, st.integers(1, 1000), st.sampled_from(["full", "block"]))
def test_orders_differ_by_epoch_and_seed(seed: int, epoch: int, apart: int, shuffle: Shuffle) -> None:
    clips = np.arange(50)
    order = stream(clips, seed, shuffle).order(epoch)
    assert sorted(order.tolist()) == clips.tolist()
    assert order.tolist() == stream(clips, seed, shuffle).order(epoch).tolist()
    assert order.tolist() != stream(clips, seed, shuffle).order(epoch + apart).tolist()
    assert order.tolist() != stream(clips, seed + apart, shuffle).order(epoch).tolist()
    assert order.tolist() != clips.tolist()


def test_every_clip_comes_first_about_as_often() -> None:
    for shuffle in ("full", "block"):
        source = stream(np.arange(10), 3, shuffle, per_shard=2)  # type: ignore[arg-type]
        first = np.bincount([source.order(epoch)[0] for epoch in range(2000)], minlength=10)
        assert first.min() > 120
        assert first.max() < 290


@given(rows(), seeds, epochs)
def test_a_block_holds_few_shards(clips: Any, seed: int, epoch: int) -> None:
    shards = stream(clips, seed, "block").order(epoch) // 7
    left = Counter((clips // 7).tolist())
    opened: set[int] = set()
    for shard in shards.tolist():
        opened.add(shard)
        left[shard] -= 1
        if all(left[one] == 0 for one in opened):
            opened = set()  # a block has been read
        assert len(opened) <= 3


@given(rows(), st.integers(1, 9), st.integers(1, 9), epochs)
def test_fill_repeats_samples_from_the_start_of_the_order(clips: Any, batch: int, size: int, epoch: int) -> None:
    assume(len(clips) % (batch * size))
    plans = ranks_of(stream(clips, 5), batch, size, "fill")
    ranks = [steps(plan, plan.start(epoch)) for plan in plans]
    order = plans[0].stream.order(epoch)
    last = np.concatenate([rank[-1].sample_ids for rank in ranks])
    valid = np.concatenate([rank[-1].valid for rank in ranks])
    rest = len(clips) % (batch * size)
    assert valid.tolist() == [n < rest for n in range(batch * size)]
    filling = last[rest:][: len(order)]
    assert filling.tolist() == order[: len(filling)].tolist()


topologies = st.tuples(st.integers(1, 4), st.integers(1, 16), st.integers(1, 5), st.sampled_from([0, 0, 1, 2, 5]))
"""Nodes, ranks per node, batch size, steps that are bucketed by bucket key together."""


def some_kinds() -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Of rows 0 to 500."""
    return (np.arange(501) * 7919 % 11 % 5).astype(np.uint16)


@given(
    rows(), st.lists(st.tuples(topologies, st.integers(0, 4)), max_size=6), topologies, seeds, epochs,
    st.sampled_from(SHUFFLES), st.sampled_from(["partial", "fill"]), st.booleans(),
)  # fmt: skip
def test_stopped_and_resized_at_will_every_clip_comes_once(
    clips: Any, stops: Any, final: Any, seed: int, epoch: int, shuffle: Shuffle, last: LastBatch, local: bool
) -> None:
    source = stream(clips, seed, shuffle)
    position = Plan(source, 1, World(0, 1), last, local).start(epoch)
    seen: list[int] = []
    for (nodes, ranks, batch, bucket_steps), most in [*stops, (final, 10**6)]:
        plans = ranks_of(
            source,
            batch,
            nodes * ranks,
            last,
            nodes=nodes,
            local=local,
            bucket_steps=bucket_steps,
            bucket_keys=some_kinds,
        )
        taken = [steps(plan, position)[:most] for plan in plans]
        assert len({len(rank) for rank in taken}) == 1
        assert {plan.epoch(position).left for plan in plans} == {plans[0].epoch(position).left}
        for _ in taken[0]:
            (position,) = {position.advanced(plan.topology) for plan in plans}
        seen += handed_out(taken)
        # A state that went through JSON means the same.
        schedule = RunSchedule(plans[0], ("a",), All())
        state = json.loads(json.dumps(Cursor(schedule, position).state()))
        assert position_from(state, schedule.identity) == position
        # Without partitions and buckets it does not grow with every change.
        assert len(json.dumps(state)) < 1024
    assert sorted(seen) == clips.tolist()
    assert {plan.epoch(position).left for plan in plans} == {0}


def test_one_node_keeps_its_order_when_it_is_resized() -> None:
    """Found by hypothesis: earlier topologies of a single partition are folded into one, not divided anew."""
    clips = np.arange(12)
    source = SampleStream((Pool(clips, (clips // 4).astype(np.int32)),), (1,), 0, "block", block_shards=2)
    position = Plan(source, 1, World(0, 1), "fill", True).start(0)
    seen: list[int] = []
    for nodes, ranks, batch, most in ((1, 1, 3, 1), (1, 1, 1, 3), (4, 3, 2, 99)):
        plans = ranks_of(source, batch, nodes * ranks, "fill", nodes=nodes, local=True)
        taken = [steps(plan, position)[:most] for plan in plans]
        for _ in taken[0]:
            position = position.advanced(plans[0].topology)
        seen += handed_out(taken)
    assert sorted(seen) == clips.tolist()


@given(rows(), topologies, st.lists(st.integers(0, 3), max_size=6), seeds, st.sampled_from(SHUFFLES), st.booleans())
def test_stopping_alone_changes_nothing(
    clips: Any, topology: Any, stops: list[int], seed: int, shuffle: Shuffle, local: bool
) -> None:
    nodes, ranks, batch, bucket_steps = topology
    plans = ranks_of(
        stream(clips, seed, shuffle),
        batch,
        nodes * ranks,
        nodes=nodes,
        local=local,
        bucket_steps=bucket_steps,
        bucket_keys=some_kinds,
    )
    whole = [steps(plan, plan.start(2)) for plan in plans]
    position = plans[0].start(2)
    pieces: list[list[Step]] = [[] for _ in plans]
    for most in [*stops, 10**6]:
        taken = [steps(plan, position)[:most] for plan in plans]
        for piece, more in zip(pieces, taken, strict=True):
            piece += more
        for _ in taken[0]:
            position = position.advanced(plans[0].topology)
    for rank, piece in zip(whole, pieces, strict=True):
        assert [(s.sample_ids.tolist(), s.valid.tolist()) for s in rank] == [
            (s.sample_ids.tolist(), s.valid.tolist()) for s in piece
        ]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), seeds, st.sampled_from(SHUFFLES))
def test_nodes_have_shards_of_their_own(nodes: int, ranks: int, batch: int, seed: int, shuffle: Shuffle) -> None:
    clips = np.arange(20 * nodes * 7)
    plans = ranks_of(stream(clips, seed, shuffle), batch, nodes * ranks, nodes=nodes, local=True)
    of_node: list[dict[int, set[int]]] = []
    for epoch in (0, 1):
        shards: dict[int, set[int]] = {}
        for plan in plans:
            for step in steps(plan, plan.start(epoch)):
                shards.setdefault(plan.world.node, set()).update((step.sample_ids[step.valid] // 7).tolist())
        of_node.append(shards)
        assert sum(len(held) for held in shards.values()) <= 20 * nodes + nodes - 1
    assert of_node[0] == of_node[1]


@given(rows(), topologies, st.lists(st.tuples(topologies, st.integers(0, 4)), max_size=4), seeds, st.booleans())
def test_drop_gives_full_steps_only_and_no_clip_twice(
    clips: Any, topology: Any, stops: Any, seed: int, local: bool
) -> None:
    """An epoch has as many steps as its smallest node fills; all steps are full, also in other topologies."""

    def ranks_in(topology: Any) -> list[Plan]:
        nodes, ranks, batch, _ = topology
        return ranks_of(stream(clips, seed), batch, nodes * ranks, "drop", nodes=nodes, local=local)

    nodes, ranks, batch, _ = topology
    plans = ranks_in(topology)
    count = len(clips) // nodes // (ranks * batch) if local else len(clips) // (nodes * ranks * batch)
    assert {len(plan) for plan in plans} == {len(steps(plan, plan.start(3))) for plan in plans} == {count}
    position, seen = plans[0].start(3), list[int]()
    for other, most in [*stops, (topology, 10**6)]:
        plans = ranks_in(other)
        taken = [steps(plan, position)[:most] for plan in plans]
        assert len({len(rank) for rank in taken}) == 1
        for step in (step for rank in taken for step in rank):
            assert len(step.sample_ids) == other[2]
            assert step.valid.all()
        for _ in taken[0]:
            position = position.advanced(plans[0].topology)
        seen += handed_out(taken)
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(clips.tolist())


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 9))
def test_shard_bounds_are_found_across_blocks(shards: list[int], block: int) -> None:
    array = np.array(shards, dtype=np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation, "_BLOCK", block)
        bounds = permutation._shard_bounds(array).tolist()
    assert bounds == [0, *(n for n in range(1, len(shards)) if shards[n] != shards[n - 1]), len(shards)]


def test_a_rank_orders_the_samples_of_its_own_node_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And passes, of which an epoch has one, take no memory for each sample."""
    sizes: list[int] = []

    def counting(sample_ids: Any, *more: Any, **options: Any) -> Any:
        sizes.append(len(sample_ids))
        return arrange(sample_ids, *more, **options)

    monkeypatch.setattr(epoch_plan, "arrange", counting)
    (plan, *_) = ranks_of(stream(np.arange(5600)), 4, 16, nodes=8, local=True)
    epoch = plan.epoch(plan.start(3))
    epoch.step(2)
    assert epoch.steps == len(plan)
    assert sizes == [700]
    whole = replace(plan, local=False)
    for one in (epoch, whole.epoch(whole.start(3))):
        assert one.partitions[one.partition].passes.strides == (0,)
        assert one.step(2).passes.tolist() == [3] * 4
        assert one.step(2).passes.flags.writeable


def test_many_passes_over_few_samples_share_a_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    """To make one takes ten times as long as a short permutation: a `Mix` with ten clips among millions waited for a
    minute before each epoch."""
    made: list[Any] = []
    philox = np.random.Philox
    source = stream(np.arange(10), 5)
    wanted = [source.order(number) for number in range(100)]
    monkeypatch.setattr(np.random, "Philox", lambda **given: made.append(given) or philox(**given))
    sample_ids, passes = source.take(0, 1000)
    np.testing.assert_array_equal(sample_ids, np.concatenate(wanted))
    np.testing.assert_array_equal(passes, np.arange(1000) // 10)
    assert len(made) == 1


def test_more_steps_than_memory_has_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computing their order took minutes, and then the kernel killed the process."""
    monkeypatch.setattr(epoch_plan, "usable_memory", lambda: 24 * 8 * 100)
    assert len(ranks_of(stream(np.arange(5)), 2, 4, steps=100)[0]) == 100
    with pytest.raises(InputError, match=r"^steps_per_epoch=101 is an epoch of 808 clips, .* give fewer steps"):
        ranks_of(stream(np.arange(5)), 2, 4, steps=101)


@given(rows(), st.integers(1, 5), st.integers(1, 5), st.integers(1, 7), seeds, st.integers(1, 6))
def test_epochs_of_some_steps_go_through_pass_after_pass(
    clips: Any, batch: int, size: int, count: int, seed: int, many: int
) -> None:
    plans = ranks_of(stream(clips, seed), batch, size, steps=count)
    position = plans[0].start(0)
    seen: list[tuple[int, int]] = []
    for _ in range(many):
        ranks = [steps(plan, position) for plan in plans]
        assert {len(rank) for rank in ranks} == {count} == {len(plan) for plan in plans}
        for part in (part for step in zip(*ranks, strict=True) for part in step):
            assert part.valid.all()
            seen += list(zip(part.passes.tolist(), part.sample_ids.tolist(), strict=True))
        position = plans[0].after(position)
    expected = [
        (n, sample_id) for n in range(len(seen) // len(clips) + 1) for sample_id in plans[0].stream.order(n).tolist()
    ]
    assert seen == expected[: len(seen)]


@settings(max_examples=settings.default.max_examples // 3)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(1, 40), st.integers(0, 30_000), seeds)
def test_a_mixture_gives_every_part_its_share(weights: list[int], length: int, first: int, seed: int) -> None:
    pools = tuple(Pool(np.arange(length) + 1000 * n, np.zeros(length, np.int32)) for n in range(len(weights)))
    mixed = SampleStream(pools, whole_weights([float(w) for w in weights]), seed, "full", 16)
    sample_ids, passes = mixed.take(0, 3 * BLOCK)
    parts = sample_ids // 1000
    for block in range(3):
        counts = np.bincount(parts[block * BLOCK : (block + 1) * BLOCK], minlength=len(weights))
        assert np.all(np.abs(counts - BLOCK * np.array(weights) / sum(weights)) < 2)
    for part in range(len(weights)):
        # Of every part: pass after pass, each of its clips once.
        own, own_passes = sample_ids[parts == part], passes[parts == part]
        np.testing.assert_array_equal(own_passes, np.arange(len(own)) // length)
        passes_of_part = own[: len(own) // length * length].reshape(-1, length) - 1000 * part
        assert np.all(np.sort(passes_of_part, axis=1) == np.arange(length))
    # Wherever one begins.
    some, some_passes = mixed.take(first, 500)
    whole, whole_passes = mixed.take(0, first + 500)
    np.testing.assert_array_equal(some, whole[first:])
    np.testing.assert_array_equal(some_passes, whole_passes[first:])


@given(st.lists(st.floats(0, 5), min_size=1, max_size=30), seeds, epochs)
def test_weights_are_how_often_a_clip_comes(weights: list[float], seed: int, epoch: int) -> None:
    assume(sum(weights) >= 0.5)
    clips = np.arange(len(weights))
    source = stream(clips, seed, weights=np.array(weights))
    order = source.order(epoch)
    assert len(order) == source.pass_length() == round(sum(weights))
    times = np.bincount(order & 0xFFFFFFFF, minlength=len(weights))
    scaled = np.array(weights) * len(order) / sum(weights)
    assert np.all((times >= np.floor(scaled - 1e-9)) & (times <= np.ceil(scaled + 1e-9)))
    assert len(set(order.tolist())) == len(order)  # repeats are samples of their own: other draws


def test_passes_over_one_clip_are_not_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a model is to learn a single clip by heart: an epoch may be a million of them."""
    monkeypatch.setattr("streamvid.plan.mixture.arrange", None)
    sample_ids, passes = stream(np.array([7])).take(3, 1 << 20)
    assert (sample_ids == 7).all()
    assert (passes == np.arange(3, 3 + (1 << 20))).all()


@pytest.mark.parametrize("offset", [0.0, math.nextafter(1, 0)])
def test_clips_of_weight_0_at_the_end_never_come(offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the sum of the weights was rounded: of ten million clips, by 0.0004 of a clip."""
    monkeypatch.setattr(permutation, "generator", lambda *_, **__: SimpleNamespace(random=lambda: offset))
    for seed in range(20):
        weights = np.append(np.random.default_rng(seed).uniform(0, 3, 1000), [0.0, 0.0])
        pool = permutation.Pool(np.arange(1002), np.zeros(1002, np.int32), weights)
        sample_ids, _ = permutation.pass_samples(pool, 0, 0)
        assert len(sample_ids) == len(pool)
        assert (sample_ids & 0xFFFFFFFF).max() < 1000


def test_weights_hold_on_average() -> None:
    weights = np.array([0.25, 1.5, 0.75, 2.5])
    source = stream(np.arange(4), 1, weights=weights)
    times = np.mean([np.bincount(source.order(n) & 0xFFFFFFFF, minlength=4) for n in range(2000)], axis=0)
    np.testing.assert_allclose(times, weights, atol=0.05)


def test_a_state_of_another_run_is_refused() -> None:
    clips = np.arange(20)
    plan = Plan(stream(clips), 2, World(0, 1))
    state = RunSchedule(plan, ("a", "b"), All()).start(0).advanced().state()
    others = {
        "another dataset": RunSchedule(plan, ("a", "c"), All()),
        "other clips": RunSchedule(Plan(stream(clips[1:]), 2, World(0, 1)), ("a", "b"), All()),
        "another sampling": RunSchedule(plan, ("a", "b"), All(pad="constant")),
        "another seed": RunSchedule(Plan(stream(clips, 1), 2, World(0, 1)), ("a", "b"), All()),
    }
    for words, other in others.items():
        with pytest.raises(InputError, match=words):
            position_from(state, other.identity)
    # Batch size and world may change.
    again = RunSchedule(Plan(stream(clips), 5, World(3, 4)), ("a", "b"), All())
    assert position_from(state, again.identity).history == (TopologyRun(Topology(1, 1, 2), 1),)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 3}, {"version": None}, {"epoch": -1}, {"epoch": "0"}, {"first": None}, {"size": 1.5},
        {"segments": [[1, 1, 0, 1, 0]]}, {"segments": [[1, 1, 1]]}, {"segments": [["1", 1, 1, 1, 0]]}, {"segments": 3},
        {"segments": [[1, 1, 1, 1]]}, {"segments": [[1, 1, 1, 1, -1]]}, {"segments": [[1, 1, 1, 1, 0, 0]]},
        {"version": [1]}, {"version": True},
    ],
)  # fmt: skip
def test_a_damaged_state_is_refused(change: dict[str, Any]) -> None:
    plan = Plan(stream(np.arange(9)), 2, World(0, 1))
    schedule = RunSchedule(plan, ("a",), All())
    with pytest.raises(InputError):
        schedule.resume({**schedule.start(0).state(), **change})
    with pytest.raises(InputError):
        schedule.resume({})


@given(seeds, epochs, st.integers(0, 10**9), st.integers(0, 50))
def test_random_numbers_are_repeatable_and_independent_of_their_count(
    seed: int, epoch: int, clip: int, count: int
) -> None:
    got = draws(seed, epoch, clip, count)
    assert got.shape == (count,)
    assert got.dtype == np.float64
    assert np.all((got >= 0) & (got < 1))
    np.testing.assert_array_equal(got, draws(seed, epoch, clip, count))
    # Whoever needs fewer gets the first of them.
    np.testing.assert_array_equal(got, draws(seed, epoch, clip, count + 3)[:count])


@given(seeds, st.lists(st.tuples(epochs, st.integers(0, 2**63 - 1)), max_size=5), st.integers(0, 50))
def test_draws_of_many_samples_are_those_of_each(seed: int, samples: list[tuple[int, int]], count: int) -> None:
    got = draws_of_each(seed, [number for number, _ in samples], [clip for _, clip in samples], count, purpose=AUGMENT)
    assert got.shape == (len(samples), count)
    for one, (number, clip) in zip(got, samples, strict=True):
        np.testing.assert_array_equal(one, draws(seed, number, clip, count, purpose=AUGMENT))


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


def test_orders_and_random_numbers_never_change() -> None:
    """A change here changes everybody's runs: bump the major version if it must be."""
    assert stream(np.arange(8), 7).order(3).tolist() == [4, 3, 5, 6, 0, 7, 1, 2]
    np.testing.assert_allclose(draws(7, 3, 5, 2), [0.948541331120402, 0.12597853348361587], rtol=1e-15)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"batch_size": 0}, "batch_size"), ({"batch_size": -4}, "batch_size"), ({"batch_size": True}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size"), ({"batch_size": "4"}, "batch_size"), ({"steps": 0}, "steps_per_epoch"),
        ({"last_batch": "last"}, "last_batch"), ({"last_batch": None}, "last_batch"),
        ({"local": True, "steps": 5}, "locality"),
    ],
)  # fmt: skip
def test_invalid_arguments_of_a_plan_are_refused(change: dict[str, Any], word: str) -> None:
    options: dict[str, Any] = {"stream": stream(np.arange(4)), "batch_size": 2, "world": World(0, 2)}
    with pytest.raises(InputError, match=word) as error:
        Plan(**{**options, **change})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("rank", "size", "nodes"),
    [(2, 2, 1), (-1, 2, 1), (None, 2, 1), (0, 0, 1), (True, 2, 1), (0, 2.0, 1), (0, 3, 2), (0, 2, 0)],
)
def test_invalid_worlds_are_refused(rank: Any, size: Any, nodes: Any) -> None:
    with pytest.raises(InputError):
        World(rank, size, nodes)


@pytest.mark.parametrize("weights", [[1.0, 1e-9], [1e9, 1e-9, 3], [1e300, 5e-324], [0.001, 1234567, 10**40]])
def test_extreme_shares_are_near_what_was_asked_for(weights: list[Any]) -> None:
    found = whole_weights(weights)
    for weight, whole in zip(weights, found, strict=True):
        share = Fraction(weight) / sum(map(Fraction, weights))
        assert abs(Fraction(whole, sum(found)) - share) <= share / 400
    # Shares that need no finer ones stay what they were: states depend on them.
    assert whole_weights([0.7, 0.3]) == (700_000, 300_000)
    assert whole_weights([1, 1, 1]) == (333_333,) * 3


@pytest.mark.parametrize("weights", [[0.0, 1.0], [-1.0], [float("nan")], ["1"], [True]])
def test_invalid_shares_are_refused(weights: Any) -> None:
    with pytest.raises(InputError):
        whole_weights(weights)
