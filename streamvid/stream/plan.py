"""Which clip, in which order, on which rank: a pure function of (clips, seed, epoch, world size, rank).

An epoch is one order of all clips. Step *s* takes the next `batch_size` x `world_size` clips of that order, and rank
*r* the *r*-th part of those. So the position in an epoch is one number, the clips that all ranks have consumed, and
every rank makes the same number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from streamvid.errors import InputError
from streamvid.video.index import Int64

LastBatch = Literal["partial", "drop", "fill"]
LAST_BATCH: tuple[LastBatch, ...] = ("partial", "drop", "fill")
_ORDER, _ITEM = 0, 1
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class Step:
    """One rank's part of one step.

    Attributes:
        items: int64 [batch], what to decode: see `streamvid.stream.items`.
        valid: bool [batch], False for a clip that is only there to fill the batch and belongs to another place of
            the epoch.
    """

    items: Int64
    valid: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Plan:
    """The steps of every epoch, for one rank.

    Attributes:
        clips: int64 [clips], the rows that take part.
        batch_size: clips per rank and step.
        rank, world_size: which rank of how many.
        seed: any integer.
        shuffle: a new order every epoch, or the dataset's own order.
        last_batch: what to do when the clips do not fill the last step of all ranks. "partial": that step's batches
            are smaller (where fewer clips than ranks are left, ranks without one get a clip marked not valid, so
            that no rank runs dry); "drop": it does not happen; "fill": it is filled with clips from the start of the
            epoch's order, marked not valid.
    """

    clips: Int64
    batch_size: int
    rank: int
    world_size: int
    seed: int
    shuffle: bool
    last_batch: LastBatch

    def __post_init__(self) -> None:
        for name in ("batch_size", "world_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, it is {value!r}")
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or not 0 <= self.rank < self.world_size:
            raise InputError(
                f"rank must be from 0 to {self.world_size - 1} in a world of {self.world_size}, it is {self.rank!r}"
            )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise InputError(f"seed must be a whole number, it is {self.seed!r}")
        if self.last_batch not in LAST_BATCH:
            raise InputError(f"last_batch must be one of {', '.join(LAST_BATCH)}; it is {self.last_batch!r}")

    def __len__(self) -> int:
        """Steps in an epoch, the same on every rank."""
        whole, rest = divmod(len(self.clips), self.batch_size * self.world_size)
        return whole + (1 if rest and self.last_batch != "drop" else 0)

    def order(self, epoch: int) -> Int64:
        """int64 [clips]: the row numbers in the order of an epoch."""
        if not self.shuffle:
            return self.clips
        generator = np.random.Generator(_bits(self.seed, epoch, _ORDER))
        return np.asarray(generator.permutation(self.clips), dtype=np.int64)

    def step(self, order: Int64, number: int) -> Step:
        """This rank's part of step `number` of an epoch with that order."""
        share = self.batch_size * self.world_size
        here = order[number * share : (number + 1) * share]
        if len(here) == share:
            mine = here[self.rank * self.batch_size : (self.rank + 1) * self.batch_size]
            return Step(mine, np.ones(len(mine), dtype=bool))
        if self.last_batch == "fill":
            filled = np.resize(np.concatenate([here, order]), share)
            part = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
            return Step(filled[part], (np.arange(share) < len(here))[part])
        bounds = [len(here) * r // self.world_size for r in (self.rank, self.rank + 1)]
        mine = here[bounds[0] : bounds[1]]
        if len(mine) == 0:
            return Step(order[:1], np.zeros(1, dtype=bool))
        return Step(mine, np.ones(len(mine), dtype=bool))


def draws(seed: int, epoch: int, item: int, count: int) -> npt.NDArray[np.float64]:
    """float64 [count], uniform in [0, 1): the random numbers of one item in one epoch, whoever decodes it, and when."""
    return np.random.Generator(_bits(seed, epoch, _ITEM, item)).random(count)


def _bits(seed: int, epoch: int, purpose: int, item: int = 0) -> np.random.Philox:
    """A counter-based generator (Salmon et al., SC 2011): its own stream for every seed, epoch, purpose and item."""
    # As an array: of a list with numbers above 2^63, NumPy makes floats, and neighbouring seeds become the same.
    key = np.array([seed & _MASK64, epoch & _MASK64], dtype=np.uint64)
    return np.random.Philox(key=key, counter=[0, 0, item, purpose])
