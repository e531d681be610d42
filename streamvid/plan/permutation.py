"""The order of one pass over a set of items: pure functions of (items, seed, pass)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Float64, Int64
from streamvid.plan.sample_id import repeat

Shuffle = Literal["full", "block", "none"]
SHUFFLES: Final[tuple[Shuffle, ...]] = ("full", "block", "none")
ORDER, SAMPLE, COPIES, SHARDS, MIX, AUGMENT, GROUP = range(7)
"""What random numbers are for; each purpose has a stream of its own."""
_MASK64: Final = (1 << 64) - 1


@dataclass(frozen=True)
class Pool:
    """The items that take part, once each or by weight.

    Attributes:
        items: int64 [items], in the order of the dataset.
        shards: int32 [items], which shard holds each; never falling.
        weights: float64 [items], how often each comes in a pass on average; None for once each.
    """

    items: Int64
    shards: npt.NDArray[np.int32]
    weights: Float64 | None = None

    def __len__(self) -> int:
        """Items in a pass, the same in every pass."""
        return len(self.items) if self.weights is None else round(float(self.weights.sum()))


def generator(seed: int, number: int, purpose: int, *, part: int = 0, item: int = 0) -> np.random.Generator:
    """A counter-based generator (Salmon et al., SC 2011): its own stream for every combination of arguments.

    Args:
        seed: any integer.
        number: of the pass, or of a block of a mixture.
        purpose: one of the constants above.
        part: which of the mixed datasets.
        item: for draws of a single item.
    """
    # As uint64 from the start: NumPy would make float64 of a list of small and large integers.
    key = np.array([seed & _MASK64, number & _MASK64], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, part, item, purpose]))


def draws(seed: int, number: int, item: int, count: int, *, purpose: int = SAMPLE) -> Float64:
    """float64 [count], uniform in [0, 1): the random numbers of an item in a pass, whoever decodes it, and when."""
    if not count:
        return np.empty(0)
    return generator(seed, number, purpose, item=item).random(count)


def pass_items(pool: Pool, seed: int, number: int, part: int = 0) -> tuple[Int64, npt.NDArray[np.int32]]:
    """The items of a pass in the dataset's order, and their shards.

    With weights an item comes floor(w) times and, with the probability of the rest, once more: systematic sampling,
    so that the number of items does not vary. The weights are scaled for that to a whole sum.
    """
    if pool.weights is None:
        return pool.items, pool.shards
    offset = generator(seed, number, COPIES, part=part).random()
    edges = np.cumsum(pool.weights) * (len(pool) / float(pool.weights.sum()))
    edges[-1] = len(pool)
    upto = np.floor(edges + offset).astype(np.int64)
    copies: Int64 = upto - np.concatenate([np.zeros(1, dtype=np.int64), upto[:-1]])
    return repeat(pool.items, copies), np.repeat(pool.shards, copies)


def arrange(
    items: Int64,
    shards: npt.NDArray[np.int32],
    shuffle: Shuffle,
    *,
    block_shards: int,
    seed: int,
    number: int,
    part: int = 0,
    lane: int = 0,
) -> Int64:
    """Put the items of a pass into order.

    Args:
        items: int64 [items].
        shards: int32 [items], the shard of each, equal ones side by side.
        shuffle: "full" draws from all items; "block" shuffles the shards, then the items of `block_shards` shards at
            a time, so that few shards are open at once; "none" leaves them as they are.
        block_shards: see "block".
        seed, number, part: see `generator`.
        lane: a number of its own for each part of a pass that is arranged by itself.

    Returns:
        int64 [items].
    """
    if shuffle == "none" or len(items) == 0:
        return items
    random = generator(seed, number, ORDER, part=part, item=lane)
    if shuffle == "full":
        return np.asarray(random.permutation(items), dtype=np.int64)
    bounds = shard_bounds(shards)
    order = random.permutation(len(bounds) - 1)
    blocks = []
    for first in range(0, len(order), block_shards):
        runs = [items[bounds[s] : bounds[s + 1]] for s in order[first : first + block_shards].tolist()]
        blocks.append(random.permutation(np.concatenate(runs)))
    return np.concatenate(blocks)


def shard_bounds(shards: npt.NDArray[np.int32]) -> Int64:
    """int64 [runs + 1]: where runs of equal shards begin, and the end."""
    return np.concatenate([[0], np.flatnonzero(np.diff(shards)) + 1, [len(shards)]]).astype(np.int64)


def deal_to_nodes(
    items: Int64, shards: npt.NDArray[np.int32], nodes: int, *, seed: int
) -> list[tuple[Int64, npt.NDArray[np.int32]]]:
    """Cut a pass into as many equal parts as there are nodes, of as few shards each as can be.

    The shards lie in an order drawn from the seed alone, so that a node gets the same ones in every pass, and its
    cache holds them; one at a boundary is shared by two nodes. Lengths differ by one at most.

    Returns:
        per node its items and their shards.
    """
    bounds = shard_bounds(shards)
    order = generator(seed, 0, SHARDS).permutation(len(bounds) - 1)
    index = np.concatenate([np.arange(bounds[s], bounds[s + 1]) for s in order.tolist()] or [np.empty(0, np.int64)])
    cuts = [len(items) * node // nodes for node in range(nodes + 1)]
    return [(items[index[a:b]], shards[index[a:b]]) for a, b in pairwise(cuts)]
