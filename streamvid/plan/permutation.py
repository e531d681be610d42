"""The order of one pass over a set of samples: pure functions of (sample ids, seed, pass)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Float64, Int64
from streamvid.plan.rng import COPIES, ORDER, SHARDS, generator
from streamvid.plan.sample_id import repeat

Shuffle = Literal["full", "block", "none"]
SHUFFLES: Final[tuple[Shuffle, ...]] = ("full", "block", "none")


@dataclass(frozen=True)
class Pool:
    """The samples that take part, once each or by weight.

    Attributes:
        sample_ids: int64 [samples], in the order of the dataset.
        shards: int32 [samples], which shard holds each; never falling.
        weights: float64 [samples], how often each comes in a pass on average; None for once each.
    """

    sample_ids: Int64
    shards: npt.NDArray[np.int32]
    weights: Float64 | None = None

    def __len__(self) -> int:
        """Samples in a pass, the same in every pass."""
        return len(self.sample_ids) if self.weights is None else round(float(self.weights.sum()))


def pass_samples(pool: Pool, seed: int, number: int, part: int = 0) -> tuple[Int64, npt.NDArray[np.int32]]:
    """The samples of a pass in the dataset's order, and their shards.

    With weights a sample comes floor(w) times and, with the probability of the rest, once more: systematic sampling,
    so that the number of samples does not vary. The weights are scaled for that to a whole sum.
    """
    if pool.weights is None:
        return pool.sample_ids, pool.shards
    offset = generator(seed, number, COPIES, part=part).random()
    edges = np.cumsum(pool.weights) * (len(pool) / float(pool.weights.sum()))
    edges[-1] = len(pool)
    upto = np.floor(edges + offset).astype(np.int64)
    copies: Int64 = upto - np.concatenate([np.zeros(1, dtype=np.int64), upto[:-1]])
    return repeat(pool.sample_ids, copies), np.repeat(pool.shards, copies)


def arrange(
    sample_ids: Int64,
    shards: npt.NDArray[np.int32],
    shuffle: Shuffle,
    *,
    block_shards: int,
    seed: int,
    number: int,
    part: int = 0,
    partition: int = 0,
) -> Int64:
    """Put the samples of a pass into order.

    Args:
        sample_ids: int64 [samples].
        shards: int32 [samples], the shard of each, equal ones side by side.
        shuffle: "full" permutes all samples; "block" permutes the shards, then the samples of `block_shards` shards
            at a time, so that few shards are open at once; "none" leaves them as they are.
        block_shards: see "block".
        seed, number, part: see `generator`.
        partition: a number of its own for each part of a pass that is arranged by itself.

    Returns:
        int64 [samples].
    """
    if shuffle == "none" or len(sample_ids) == 0:
        return sample_ids
    random = generator(seed, number, ORDER, part=part, sample_id=partition)
    if shuffle == "full":
        return np.asarray(random.permutation(sample_ids), dtype=np.int64)
    bounds = shard_bounds(shards)
    order = random.permutation(len(bounds) - 1)
    blocks = []
    for first in range(0, len(order), block_shards):
        runs = [sample_ids[bounds[s] : bounds[s + 1]] for s in order[first : first + block_shards].tolist()]
        blocks.append(random.permutation(np.concatenate(runs)))
    return np.concatenate(blocks)


def shard_bounds(shards: npt.NDArray[np.int32]) -> Int64:
    """int64 [runs + 1]: where runs of equal shards begin, and the end."""
    return np.concatenate([[0], np.flatnonzero(np.diff(shards)) + 1, [len(shards)]]).astype(np.int64)


def split_by_node(
    sample_ids: Int64, shards: npt.NDArray[np.int32], nodes: int, *, seed: int
) -> list[tuple[Int64, npt.NDArray[np.int32]]]:
    """Cut a pass into as many equal parts as there are nodes, of as few shards each as can be.

    The shards lie in an order drawn from the seed alone, so that a node gets the same ones in every pass, and its
    cache holds them; one at a boundary is shared by two nodes. Lengths differ by one at most.

    Returns:
        per node its samples and their shards.
    """
    bounds = shard_bounds(shards)
    order = generator(seed, 0, SHARDS).permutation(len(bounds) - 1)
    index = np.concatenate([np.arange(bounds[s], bounds[s + 1]) for s in order.tolist()] or [np.empty(0, np.int64)])
    cuts = [len(sample_ids) * node // nodes for node in range(nodes + 1)]
    return [(sample_ids[index[a:b]], shards[index[a:b]]) for a, b in pairwise(cuts)]
