"""One endless stream of samples out of one or several pools: which sample stands at any position, by arithmetic alone.

Position *x* belongs to one of the pools; of that pool's own stream, pass after pass, it is the sample number *k*. Both
follow from *x* without walking there, so a run can start anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.errors import InputError
from streamvid.plan.permutation import Pool, Shuffle, arrange, pass_samples
from streamvid.plan.rng import MIX, generator

BLOCK: Final = 4096
"""Positions in which every pool has its exact share, give or take one, in random order."""


@dataclass(frozen=True)
class SampleStream:
    """An endless stream of samples.

    Attributes:
        pools: what it is made of.
        weights: whole numbers, the pools' shares.
        seed, shuffle, block_shards: of the passes' orders.
    """

    pools: tuple[Pool, ...]
    weights: tuple[int, ...]
    seed: int
    shuffle: Shuffle
    block_shards: int

    def pass_length(self) -> int:
        """Samples in a pass over one pool; with several pools, in a pass over each."""
        return sum(len(pool) for pool in self.pools)

    def take(self, first: int, count: int) -> tuple[Int64, Int64]:
        """`count` samples from position `first` on.

        Returns:
            samples and passes, both int64 [count]: what to decode, and in which pass over its dataset, counted from 0.
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
        """int64 [samples of the pool]: one pass, in order."""
        sample_ids, shards = pass_samples(self.pools[part], self.seed, number, part)
        return arrange(
            sample_ids, shards, self.shuffle, block_shards=self.block_shards, seed=self.seed, number=number, part=part
        )

    def _of_pool(self, part: int, first: int, count: int) -> tuple[Int64, Int64]:
        """Samples number `first` … of a pool's own stream."""
        length = len(self.pools[part])
        sample_ids: list[Int64] = []
        passes: list[Int64] = []
        while count:
            number, start = divmod(first, length)
            piece = self.order(number, part)[start : start + count]
            sample_ids.append(piece)
            passes.append(np.full(len(piece), number, dtype=np.int64))
            first, count = first + len(piece), count - len(piece)
        if len(sample_ids) == 1:
            return sample_ids[0], passes[0]
        empty = np.empty(0, dtype=np.int64)
        return np.concatenate([empty, *sample_ids]), np.concatenate([empty, *passes])

    def _before(self, position: int, part: int) -> int:
        """How many positions before this one belong to a pool."""
        block, rest = divmod(position, BLOCK)
        return self._share(block * BLOCK, part) + int(np.count_nonzero(self._pattern(block)[:rest] == part))

    def _share(self, position: int, part: int) -> int:
        """The pool's exact share of the first so many positions; over all pools they add up."""
        total, upper = sum(self.weights), sum(self.weights[: part + 1])
        return position * upper // total - position * (upper - self.weights[part]) // total

    def _pattern(self, block: int) -> Int64:
        """int64 [BLOCK]: which pool each position of a block belongs to."""
        return _pattern(self.weights, self.seed, block)

    def _pools_at(self, first: int, count: int) -> Int64:
        start = first // BLOCK
        blocks = [self._pattern(block) for block in range(start, (first + count - 1) // BLOCK + 1)]
        return np.concatenate(blocks)[first - start * BLOCK :][:count]


@lru_cache(maxsize=64)
def _pattern(weights: tuple[int, ...], seed: int, block: int) -> Int64:
    total = sum(weights)
    counts, upper = [], 0
    for weight in weights:
        lower, upper = upper, upper + weight
        first, last = block * BLOCK, (block + 1) * BLOCK
        counts.append(
            (last * upper // total - last * lower // total) - (first * upper // total - first * lower // total)
        )
    pattern = generator(seed, block, MIX).permutation(np.repeat(np.arange(len(weights)), counts)).astype(np.int64)
    pattern.setflags(write=False)
    return pattern


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Weights as whole numbers in the same proportion, to a millionth.

    Raises:
        InputError: one is not a positive number.
    """
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e9:
            raise InputError(f"weights of a mixture must be positive numbers, one of them is {weight!r}")
    total = Fraction(sum(Fraction(weight) for weight in weights))
    return tuple(max(1, round(Fraction(weight) / total * 1_000_000)) for weight in weights)
