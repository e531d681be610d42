"""Batches of few bucket keys: how few, out of which clips, and with which frames."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import streamvid as sv
from streamvid.packing.options import PackOptions
from streamvid.plan.bucket_key import BucketKeys, bucket_keys
from streamvid.plan.epoch import LAST_BATCH, LastBatch, Step, Topology
from streamvid.plan.epoch_plan import Plan, Position, TopologyRun
from streamvid.plan.mixture import SampleStream
from streamvid.plan.permutation import SHUFFLES, Pool, Shuffle
from streamvid.plan.world import World
from tests.support.packed import pack_recipes
from tools.clips import Recipe

seeds = st.integers(0, 2**64)


def kinds_by(clips: Any, bucket_keys: int, seed: int) -> Callable[[], BucketKeys]:
    """BucketKeys of rows up to the last of these, some commoner than others."""
    drawn = np.random.default_rng(seed).geometric(0.3, size=int(clips.max()) + 1)
    return lambda: (drawn % bucket_keys).astype(np.uint16)


def stream(clips: Any, seed: int, shuffle: Shuffle = "full", weights: Any = None) -> SampleStream:
    return SampleStream((Pool(clips, (clips // 7).astype(np.int32), weights),), (1,), seed, shuffle, block_shards=3)


def steps(plan: Plan, epoch: int = 0) -> list[Step]:
    left = plan.epoch(plan.start(epoch))
    return [left.step(n) for n in range(left.steps)]


def seams(bucket_keys: Any) -> int:
    """How many more bucket keys than one."""
    return len(np.unique(bucket_keys)) - 1


@given(
    st.integers(1, 400), st.integers(1, 4), st.integers(1, 6), st.integers(1, 12), st.integers(1, 20),
    seeds, st.integers(0, 5), st.sampled_from(SHUFFLES), st.sampled_from(LAST_BATCH),
)  # fmt: skip
def test_few_kinds_out_of_the_same_windows(
    count: int,
    batch: int,
    ranks: int,
    bucket_steps: int,
    many: int,
    seed: int,
    epoch: int,
    shuffle: Shuffle,
    last: LastBatch,
) -> None:
    clips = np.arange(count) * 3
    source, bucket_keys = stream(clips, seed, shuffle), kinds_by(clips, many, seed)
    plans = [
        Plan(source, batch, World(n, ranks), last, bucket_steps=bucket_steps, bucket_keys=bucket_keys)
        for n in range(ranks)
    ]
    by_rank = [steps(plan, epoch) for plan in plans]
    plain = [steps(Plan(source, batch, World(n, ranks), last), epoch) for n in range(ranks)]
    assert {len(rank) for rank in by_rank} == {len(rank) for rank in plain} == {len(plans[0])}
    share = batch * ranks
    full = count // share
    windows = max(1, full // bucket_steps)
    of_kind = bucket_keys()
    for window in range(windows):
        first = window * bucket_steps
        end = full if window == windows - 1 else first + bucket_steps
        assert end - first < 2 * bucket_steps or window
        batches = [rank[n].sample_ids for n in range(first, end) for rank in by_rank]
        there = np.concatenate([*batches, np.empty(0, np.int64)])
        expected = [rank[n].sample_ids for n in range(first, end) for rank in plain]
        assert sorted(there.tolist()) == sorted(np.concatenate([*expected, np.empty(0, np.int64)]).tolist())
        if len(there) == 0:
            continue
        # In the order of bucket keys, a bucket key begins in at most one batch that another ends in.
        assert sum(seams(of_kind[one]) for one in batches) <= seams(of_kind[there])
        of_steps = [np.concatenate([rank[n].sample_ids for rank in by_rank]) for n in range(first, end)]
        assert sum(seams(of_kind[one]) for one in of_steps) <= seams(of_kind[there])
    for n in range(full, len(plans[0])):
        # The last clips stay the last, so that which are left out by "drop" has nothing to do with bucket keys.
        there = np.concatenate([rank[n].sample_ids[rank[n].valid] for rank in by_rank])
        expected = [rank[n].sample_ids[rank[n].valid] for rank in plain]
        assert sorted(there.tolist()) == sorted(np.concatenate(expected).tolist())
        assert np.all(np.diff(of_kind[there].astype(int)) >= 0)
    for rank, ungrouped in zip(by_rank, plain, strict=True):
        assert [len(step.sample_ids) for step in rank] == [len(step.sample_ids) for step in ungrouped]
        assert [step.valid.tolist() for step in rank] == [step.valid.tolist() for step in ungrouped]
        assert all(set(step.passes.tolist()) == {epoch} for step in rank)


@given(seeds, st.integers(1, 4), st.integers(1, 3), st.integers(1, 30), st.integers(1, 5), st.integers(1, 9))
def test_weights_and_epochs_of_some_steps(
    seed: int, batch: int, ranks: int, count: int, bucket_steps: int, length: int
) -> None:
    """Whatever an epoch consists of, bucketed it is the same, samples and passes together."""
    clips = np.arange(count)
    weights = np.random.default_rng(seed).random(count) * 3
    assume(weights.sum() >= 1)
    source, bucket_keys = stream(clips, seed, weights=weights), kinds_by(clips, 4, seed)
    found = []
    for bucketed in (0, bucket_steps):
        plans = [
            Plan(source, batch, World(n, ranks), steps=length, bucket_steps=bucketed, bucket_keys=bucket_keys)
            for n in range(ranks)
        ]
        parts = [step for plan in plans for step in steps(plan, 2)]
        assert len(parts) == length * ranks
        found.append(
            Counter(pair for s in parts for pair in zip(s.sample_ids.tolist(), s.passes.tolist(), strict=True))
        )
    assert found[0] == found[1]


def test_bucket_keys_are_spread_over_steps_and_ranks() -> None:
    """Neither do the steps of a window come in the order of bucket keys, nor does one rank always get the larger."""
    clips = np.arange(4 * 3 * 16 * 50)
    random = np.random.default_rng(0)
    bucket_keys = random.permutation(clips).astype(np.uint16)  # as many bucket keys as clips
    ranks = [
        steps(Plan(stream(clips, 1), 4, World(n, 3), bucket_steps=16, bucket_keys=lambda: bucket_keys), epoch=1)
        for n in range(3)
    ]
    means = np.array([[bucket_keys[step.sample_ids].mean() for step in rank] for rank in ranks])
    of_steps = means.mean(axis=0).reshape(50, 16)
    assert abs(np.corrcoef(np.arange(16), of_steps.mean(axis=0))[0, 1]) < 0.7
    for window in range(50):
        assert np.any(np.diff(of_steps[window]) > 0)
        assert np.any(np.diff(of_steps[window]) < 0)
    largest = np.bincount(means.argmax(axis=0), minlength=3) / means.shape[1]
    assert largest.min() > 0.25
    # But all ranks of a step are close to each other: within the sixteenth of all bucket keys that a step takes.
    assert (means.max(axis=0) - means.min(axis=0)).mean() < len(clips) / 16
    again = steps(Plan(stream(clips, 1), 4, World(2, 3), bucket_steps=16, bucket_keys=lambda: bucket_keys), epoch=1)
    assert [step.sample_ids.tolist() for step in again] == [step.sample_ids.tolist() for step in ranks[2]]
    other = steps(Plan(stream(clips, 2), 4, World(2, 3), bucket_steps=16, bucket_keys=lambda: bucket_keys), epoch=1)
    assert [step.sample_ids.tolist() for step in other] != [step.sample_ids.tolist() for step in ranks[2]]
    unshuffled = steps(Plan(stream(clips, 1, "none"), 4, World(0, 1), bucket_steps=16, bucket_keys=lambda: bucket_keys))
    for first in range(0, 16 * 20, 16):
        window = np.concatenate([bucket_keys[step.sample_ids] for step in unshuffled[first : first + 16]])
        assert np.all(np.diff(window.astype(int)) > 0)


def test_nodes_get_the_same_sizes_at_the_same_time() -> None:
    clips = np.arange(4 * 2 * 2 * 160)
    bucket_keys = (clips % 10).astype(np.uint16)
    worlds = [World(rank, 4, nodes=2) for rank in range(4)]
    ranks = [
        steps(Plan(stream(clips, 3), 4, world, local=True, bucket_steps=40, bucket_keys=lambda: bucket_keys))
        for world in worlds
    ]
    medians = np.array([[np.median(bucket_keys[step.sample_ids]) for step in rank] for rank in ranks])
    assert np.mean(medians.max(axis=0) - medians.min(axis=0)) < 1
    assert medians.std(axis=1).min() > 2  # which is not for want of bucket keys


def test_where_all_is_of_one_kind_the_clips_of_a_batch_stay_together() -> None:
    clips = np.arange(96)
    one = [
        steps(Plan(stream(clips, 4), 4, World(n, 2), bucket_steps=4, bucket_keys=lambda: np.zeros(96, np.uint16)))
        for n in (0, 1)
    ]
    plain = [steps(Plan(stream(clips, 4), 4, World(n, 2))) for n in (0, 1)]
    assert {tuple(s.sample_ids.tolist()) for rank in one for s in rank} == {
        tuple(s.sample_ids.tolist()) for rank in plain for s in rank
    }


def test_bucketed_orders_never_change() -> None:
    """A change here changes everybody's runs, and what their states mean."""
    bucket_keys = np.array([2, 0, 1, 0, 2, 1, 0, 1, 2, 0, 1], np.uint16)
    plan = Plan(stream(np.arange(11), 7), 2, World(0, 1), bucket_steps=2, bucket_keys=lambda: bucket_keys)
    assert [step.sample_ids.tolist() for step in steps(plan, 3)] == [[9, 7], [8, 4], [5, 0], [1, 10], [3, 6], [2]]


def test_a_state_of_more_than_there_is_leaves_nothing() -> None:
    clips = np.arange(40)
    plan = Plan(stream(clips, 0), 2, World(0, 2), bucket_keys=kinds_by(clips, 3, 0))
    for huge in (50, 2**31, 2**61):
        for numbers in ((huge, 1, 1), (1, huge, 1), (1, 1, huge), (huge, huge, huge)):
            ranks, batch, bucket_steps = numbers
            run = TopologyRun(Topology(1, ranks, batch, bucket_steps), huge)
            assert plan.epoch(Position(0, 0, 40, (run,))).left == 0


RECIPES = {
    "small": Recipe(width=64, height=64, frames=8, gop=4, b_frames=0),
    "small_b": Recipe(width=64, height=64, frames=9, gop=8, b_frames=2),
    "wide": Recipe(width=96, height=64, frames=8, gop=4, b_frames=2),
    "hevc": Recipe(width=96, height=64, frames=8, gop=4, codec="hevc"),
    "vp9": Recipe(width=80, height=96, frames=8, gop=4, codec="vp9", container="webm"),
}
COPIES = 5


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five bucket keys of clips, five of each, in several shards."""
    recipes = {
        f"{copy}_{name}": replace(recipe, seed=10 * number + copy)
        for number, (name, recipe) in enumerate(RECIPES.items())
        for copy in range(COPIES)
    }
    path = pack_recipes(recipes, tmp_path_factory.mktemp("grouping"), shard_size=60_000, options=PackOptions("any"))
    opened = sv.Dataset.open(path)
    assert len(opened.shards) > 3
    assert len(np.unique(bucket_keys(opened.clips))) == len(RECIPES)
    return path


def loader(dataset: Any, **options: Any) -> sv.StreamLoader:
    transform = sv.Transform(resize=48, crop=32, horizontal_flip=0.5)
    known = {"batch_size": 3, "sampling": sv.Window(3), "transform": transform, "seed": 4, "num_threads": 2}
    return sv.StreamLoader(dataset, device="cpu", **{**known, **options})


def clips_of(batches: list[dict[str, Any]]) -> Iterator[tuple[tuple[int, str, float], torch.Tensor]]:
    """Every valid sample: epoch, key and first time, and its frames."""
    for batch in batches:
        for n in np.flatnonzero(batch["valid"].numpy()).tolist():
            yield (int(batch["epoch"][n]), batch["key"][n], float(batch["pts"][n, 0])), batch["video"][n]


@pytest.mark.parametrize(
    ("sampling", "options"),
    [
        (sv.TiledWindows(3), {}),
        (sv.Window(3), {"shuffle": "block"}),
        (sv.Window(3), {"locality": "node", "ranks_per_node": 1}),
    ],
)
def test_the_same_frames_of_every_clip(dataset: Path, sampling: Any, options: dict[str, Any]) -> None:
    found = []
    for bucket_steps in (False, 3):
        batches: list[dict[str, Any]] = []
        for rank in range(2):
            with loader(
                dataset, sampling=sampling, rank=rank, world_size=2, group_by_size=bucket_steps, **options
            ) as one:
                batches += [batch for _ in range(2) for batch in one]
                assert one.epoch == 2
        pairs = list(clips_of(batches))
        assert len({key for key, _ in pairs}) == len(pairs)
        found.append(dict(pairs))
    plain, bucketed = found
    assert len(plain) == 2 * len(RECIPES) * COPIES * (3 if isinstance(sampling, sv.TiledWindows) else 1)
    assert plain.keys() == bucketed.keys()
    for key, frames in plain.items():
        assert torch.equal(frames, bucketed[key]), key


def test_a_batch_holds_few_kinds(dataset: Path) -> None:
    keys = bucket_keys(sv.Dataset.open(dataset).clips)
    with loader(dataset, batch_size=5, group_by_size=True) as one:
        for _ in range(2):
            batches = [keys[batch["clip"].numpy()] for batch in one]
            assert [len(np.unique(batch)) for batch in batches] == [1] * 5
    with loader(dataset, batch_size=5) as two:
        assert max(len(np.unique(keys[batch["clip"].numpy()])) for batch in two) > 2


@pytest.mark.parametrize("last_batch", LAST_BATCH)
@pytest.mark.parametrize("stop", [1, 3])
def test_the_same_batches_go_on(dataset: Path, stop: int, last_batch: LastBatch) -> None:
    options = {"group_by_size": 2, "last_batch": last_batch, "rank": 1, "world_size": 2, "batch_size": 2}
    with loader(dataset, **options) as whole:
        batches = [summary(batch) for _ in range(2) for batch in whole]
    with loader(dataset, **options) as first:
        for _ in zip(range(stop), first, strict=False):
            state = json.loads(json.dumps(first.state_dict()))
    with loader(dataset, **options) as second:
        second.load_state_dict(state)
        assert [summary(batch) for _ in range(2) for batch in second] == batches[stop:]


def summary(batch: dict[str, Any]) -> tuple[Any, ...]:
    """Everything in a batch, as values that compare."""
    return tuple((name, v.tolist() if isinstance(v, torch.Tensor) else v) for name, v in sorted(batch.items()))


@pytest.mark.parametrize("later", [False, 1, 3])
def test_an_epoch_resumes_on_other_ranks_grouped_or_not(dataset: Path, later: bool | int) -> None:
    """Grouping is no part of what a state is a state of: it may be changed within an epoch, as the batch size may."""
    seen: Counter[str] = Counter()
    states = []
    for rank in range(2):
        with loader(dataset, group_by_size=2, rank=rank, world_size=2) as one:
            for _, batch in zip(range(2), one, strict=False):
                seen.update(batch["key"])
                state = one.state_dict()
            states.append(state)
    assert states[0] == states[1]
    assert len(json.dumps(states[0])) < 1024
    for rank in range(3):
        with loader(dataset, group_by_size=later, rank=rank, world_size=3, batch_size=2) as one:
            one.load_state_dict(states[0])
            seen.update(key for (_, key, _), _ in clips_of(list(one)))
            assert one.epoch == 1
    assert seen == Counter(sv.Dataset.open(dataset).clips.key)


def test_a_mixture_keeps_its_shares(dataset: Path) -> None:
    mix = sv.Mix([(sv.Subset(dataset, where="width == 64"), 1), (sv.Subset(dataset, where="width > 64"), 3)])
    with loader(mix, batch_size=4, steps_per_epoch=8, group_by_size=4) as one:
        batches = [batch for _ in range(2) for batch in one]
    parts = torch.cat([batch["dataset"] for batch in batches])
    with loader(mix, batch_size=4, steps_per_epoch=8) as two:
        plain = torch.cat([batch["dataset"] for _ in range(2) for batch in two])
    for first in range(0, 64, 16):
        assert sorted(parts[first : first + 16].tolist()) == sorted(plain[first : first + 16].tolist())
    assert any(len(set(batch["dataset"].tolist())) == 1 for batch in batches)


@pytest.mark.parametrize("bucket_steps", [0, -1, 2.5, "yes", None])
def test_invalid_group_by_size_is_refused(dataset: Path, bucket_steps: Any) -> None:
    with pytest.raises(sv.InputError, match="group_by_size must be a whole number of at least 1"):
        loader(dataset, group_by_size=bucket_steps)
