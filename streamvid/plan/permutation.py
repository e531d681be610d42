"""The samples of one pass and their order: pure functions of (sample ids, seed, pass)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Float64, Int64
from streamvid.plan.rng import COPIES, SHARDS, generator
from streamvid.plan.sample_id import repeat

Shuffle = Literal["full", "block", "none"]
_BLOCK: Final = 1 << 20
"""Samples that are looked at together, for memory."""
SHUFFLES: Final[tuple[Shuffle, ...]] = ("full", "block", "none")


@dataclass(frozen=True)
class Pool:
    """The selected samples of one dataset, once each or by weight.

    Attributes:
        sample_ids: int64 [samples], in the order of the dataset.
        shards: int32 [samples], the shard of each, ascending.
        weights: float64 [samples], mean number of times that each comes in a pass; None for once each.
    """

    sample_ids: Int64
    shards: npt.NDArray[np.int32]
    weights: Float64 | None = None

    def __len__(self) -> int:
        """Samples in a pass, the same in every pass."""
        return len(self.sample_ids) if self.weights is None else round(float(self.weights.sum()))


def pass_samples(pool: Pool, seed: int, number: int, part: int = 0) -> tuple[Int64, npt.NDArray[np.int32]]:
    """The samples of a pass in the dataset's order, and their shards.

    A sample of weight w comes floor(w) times, and once more with probability w - floor(w), by systematic sampling, so
    that every pass has the same number of samples. For that the weights are scaled to a whole sum.
    """
    if pool.weights is None:
        return pool.sample_ids, pool.shards
    offset = generator(seed, number, COPIES, part=part).random()
    edges = np.cumsum(pool.weights)
    # The whole sum becomes exactly 1, for samples of weight 0 at the end, too, however the sum was rounded.
    edges = edges / edges[-1] * len(pool)
    upto = np.minimum(np.floor(edges + offset), len(pool)).astype(np.int64)
    copies: Int64 = upto - np.concatenate([np.zeros(1, dtype=np.int64), upto[:-1]])
    return repeat(pool.sample_ids, copies), np.repeat(pool.shards, copies)


def arrange(
    sample_ids: Int64,
    shards: npt.NDArray[np.int32],
    shuffle: Shuffle,
    *,
    block_shards: int,
    random: np.random.Generator,
) -> Int64:
    """Shuffle the samples of a pass.

    Args:
        sample_ids: int64 [samples].
        shards: int32 [samples], the shard of each; samples of a shard are consecutive.
        shuffle: "full" permutes all samples; "block" permutes the shards, then the samples of `block_shards` shards
            at a time, so that few shards are open at once; "none" leaves them as they are.
        block_shards: shards whose samples are shuffled together, for "block".
        random: shuffles; for each pass, and each part of one that is shuffled separately, a different one.

    Returns:
        int64 [samples].
    """
    if shuffle == "none" or len(sample_ids) == 0:
        return sample_ids
    if shuffle == "full":
        return np.asarray(random.permutation(sample_ids), dtype=np.int64)
    bounds = _shard_bounds(shards)
    order = random.permutation(len(bounds) - 1)
    blocks = []
    for first in range(0, len(order), block_shards):
        runs = [sample_ids[bounds[s] : bounds[s + 1]] for s in order[first : first + block_shards].tolist()]
        blocks.append(random.permutation(np.concatenate(runs)))
    return np.concatenate(blocks)


def _shard_bounds(shards: npt.NDArray[np.int32]) -> Int64:
    """int64 [shards + 1]: the index of each shard's first sample, and the number of samples."""
    found = [np.zeros(1, dtype=np.int64)]
    for start in range(1, len(shards), _BLOCK):
        some = shards[start - 1 : start + _BLOCK]
        found.append(np.flatnonzero(some[1:] != some[:-1]) + start)
    return np.concatenate([*found, [len(shards)]]).astype(np.int64)


@dataclass(frozen=True)
class NodePart:
    """A node's part of a pass.

    Attributes:
        size: samples.
        take: computes its samples, and the shard of each.
    """

    size: int
    take: Callable[[], tuple[Int64, npt.NDArray[np.int32]]]


def split_by_node(sample_ids: Int64, shards: npt.NDArray[np.int32], nodes: int, *, seed: int) -> list[NodePart]:
    """Divide a pass among nodes, in equal parts (give or take one sample) that share as few shards as possible.

    A node's shards depend only on the seed: they are the same in every pass, and stay in the node's cache. A shard at a
    boundary is shared by two nodes. Ranks compute only their own node's part.
    """
    bounds = _shard_bounds(shards)
    order = generator(seed, 0, SHARDS).permutation(len(bounds) - 1)
    ends = np.cumsum(np.diff(bounds)[order])

    def take(first: int, last: int) -> tuple[Int64, npt.NDArray[np.int32]]:
        start, end = np.searchsorted(ends, [first, last - 1], side="right").tolist()
        runs = [np.arange(bounds[s], bounds[s + 1]) for s in order[start : end + 1].tolist()]
        skipped = first - int(ends[start - 1]) if start else first
        index = np.concatenate([np.empty(0, dtype=np.int64), *runs])[skipped : skipped + last - first]
        return sample_ids[index], shards[index]

    cuts = [len(sample_ids) * node // nodes for node in range(nodes + 1)]
    return [NodePart(b - a, partial(take, a, b)) for a, b in pairwise(cuts)]
