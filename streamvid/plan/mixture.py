"""The sample stream: an endless sequence of samples drawn from one pool, or from several by weight.

The sample at any position can be computed directly: from the position's pool, and the number of earlier positions of
the same pool, follow the pass over that pool and the sample in that pass. So a run can resume anywhere without replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.checks import exact, is_real
from streamvid.errors import InputError
from streamvid.plan.permutation import Pool, Shuffle, arrange, pass_samples
from streamvid.plan.rng import MIX, ORDER, generator, generators

BLOCK: Final = 4096
"""Positions that are shuffled together. Within a block each pool has its exact share, rounded to a whole number."""


@dataclass(frozen=True)
class SampleStream:
    """An endless sequence of samples.

    Attributes:
        pools: the pools.
        weights: the pools' shares of the samples, as whole numbers.
        seed, shuffle, block_shards: how each pass is shuffled, see `streamvid.plan.permutation.arrange`.
    """

    pools: tuple[Pool, ...]
    weights: tuple[int, ...]
    seed: int
    shuffle: Shuffle
    block_shards: int

    def pass_length(self) -> int:
        """Samples in one pass over the pool; with several pools, the sum."""
        return sum(len(pool) for pool in self.pools)

    def take(self, first: int, count: int) -> tuple[Int64, Int64]:
        """`count` samples from position `first` on.

        Returns:
            Sample ids and passes, both int64 [count]; a pass is the pass over the sample's pool, counted from 0.
        """
        if len(self.pools) == 1:
            return self._of_pool(0, first, count)
        sample_ids, passes = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        pools = self._pools_at(first, count)
        for part in range(len(self.pools)):
            here = np.flatnonzero(pools == part)
            if len(here):
                sample_ids[here], passes[here] = self._of_pool(part, self._before(first, part), len(here))
        return sample_ids, passes

    def order(self, number: int, part: int = 0) -> Int64:
        """int64 [samples]: the sample ids of pass `number` over a pool, shuffled."""
        return next(self._orders(range(number, number + 1), part))

    def _orders(self, numbers: range, part: int) -> Iterator[Int64]:
        """`order` of several passes."""
        randoms = generators(self.seed, ((number, 0) for number in numbers), ORDER, part=part)
        for number, random in zip(numbers, randoms, strict=True):
            samples = pass_samples(self.pools[part], self.seed, number, part)
            yield arrange(*samples, self.shuffle, block_shards=self.block_shards, random=random)

    def _of_pool(self, part: int, first: int, count: int) -> tuple[Int64, Int64]:
        """`take` from one pool's own sequence of passes."""
        pool = self.pools[part]
        if len(pool.sample_ids) == 1 and pool.weights is None:  # all passes are equal
            return np.repeat(pool.sample_ids, count), np.arange(first, first + count)
        number, start = divmod(first, len(pool))
        numbers = range(number, -(-(first + count) // len(pool)))
        if len(numbers) == 1:
            return self.order(number, part)[start : start + count], np.broadcast_to(np.int64(number), count)
        sample_ids = np.concatenate([np.empty(0, dtype=np.int64), *self._orders(numbers, part)])
        return sample_ids[start : start + count], np.repeat(numbers, len(pool))[start : start + count]

    def _before(self, position: int, part: int) -> int:
        """Number of positions before this one that belong to a pool."""
        block, rest = divmod(position, BLOCK)
        own = np.count_nonzero(_block_pools(self.weights, self.seed, block)[:rest] == part)
        return _share(self.weights, block * BLOCK, part) + int(own)

    def _pools_at(self, first: int, count: int) -> Int64:
        """int64 [count]: the pool of each position from `first` on."""
        start = first // BLOCK
        blocks = range(start, (first + count - 1) // BLOCK + 1)
        pools = np.concatenate([_block_pools(self.weights, self.seed, block) for block in blocks])
        return pools[first - start * BLOCK :][:count]


def _share(weights: Sequence[int], position: int, part: int) -> int:
    """Number of the first `position` positions that belong to a pool, rounded so that the pools' shares add up."""
    total, upper = sum(weights), sum(weights[: part + 1])
    return position * upper // total - position * (upper - weights[part]) // total


@lru_cache(maxsize=64)
def _block_pools(weights: tuple[int, ...], seed: int, block: int) -> Int64:
    """int64 [BLOCK]: which pool each position of a block belongs to."""
    first, last = block * BLOCK, (block + 1) * BLOCK
    counts = [_share(weights, last, part) - _share(weights, first, part) for part in range(len(weights))]
    pattern = generator(seed, block, MIX).permutation(np.repeat(np.arange(len(weights)), counts)).astype(np.int64)
    pattern.setflags(write=False)
    return pattern


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Weights as whole numbers in the same proportion: to a millionth, or finer if that would change a small share by
    more than a thousandth of itself.

    Raises:
        InputError: a weight is no positive number.
    """
    for weight in weights:
        if not is_real(weight) or weight <= 0:
            raise InputError(f"weights of a mixture must be positive numbers, one of them is {weight!r}")
    total = Fraction(sum(map(exact, weights)))
    shares, scale = [exact(weight) / total for weight in weights], 1_000_000
    while any(abs(round(share * scale) - share * scale) * 1000 > share * scale for share in shares):
        scale *= 1000
    return tuple(round(share * scale) for share in shares)
