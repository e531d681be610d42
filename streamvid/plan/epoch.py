"""One rank's epoch: its part of every step, with repeats in the place of clips that are not delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np

from streamvid.arrays import Bool, Int64
from streamvid.plan.absent import AbsentRows, repeats
from streamvid.plan.mixture import SampleStream
from streamvid.plan.sample_id import rows_of

LastBatch = Literal["partial", "drop", "fill"]
LAST_BATCH: Final[tuple[LastBatch, ...]] = ("partial", "drop", "fill")


@dataclass(frozen=True)
class Topology:
    """How ranks share the samples of a step.

    Attributes:
        partitions: 1, or with locality the number of nodes.
        ranks: ranks per partition.
        batch: samples per rank and step.
        bucket_steps: steps whose samples are bucketed together; 0 for no bucketing.
    """

    partitions: int
    ranks: int
    batch: int
    bucket_steps: int = 0

    @property
    def share(self) -> int:
        """Number of samples that a step takes from a partition."""
        return self.ranks * self.batch


@dataclass(frozen=True)
class Step:
    """One rank's part of one step.

    Attributes:
        sample_ids: int64 [batch], see `streamvid.plan.sample_id`.
        passes: int64 [batch], number of the pass over its dataset in which each comes, from 0.
        valid: bool [batch], False for a sample that only fills the batch, or stands in for an absent clip, and so comes
            a second time in the epoch.
        number: the step's number, counted from the topology's first step.
        absent: int64 [batch], row of the absent clip that each sample stands in for, -1 for none; None: all -1.
    """

    sample_ids: Int64
    passes: Int64
    valid: Bool
    number: int = 0
    absent: Int64 | None = None

    @property
    def stands_for(self) -> Int64:
        """int64 [batch]: `absent`, as an array also if that is None."""
        return np.full(len(self.sample_ids), -1) if self.absent is None else self.absent

    def at(self, place: int) -> Step:
        """A step of one of the samples."""
        here = slice(place, place + 1)
        absent = None if self.absent is None else self.absent[here]
        return Step(self.sample_ids[here], self.passes[here], self.valid[here], self.number, absent)

    def without(self, absent: AbsentRows, pools: Sequence[Callable[[], Int64]], seed: int) -> Step:
        """The step with repeats in the place of absent clips; arguments as in `streamvid.plan.absent.repeats`."""
        rows = rows_of(self.sample_ids)
        gone = absent.among(rows, self.number)
        if not gone.any():
            return self
        sample_ids = self.sample_ids.copy()
        sample_ids[gone] = repeats(sample_ids[gone], self.passes[gone], pools, absent, seed=seed, step=self.number)
        return replace(self, sample_ids=sample_ids, valid=self.valid & ~gone, absent=np.where(gone, rows, -1))


@dataclass(frozen=True)
class Partition:
    """Samples that some or all ranks share, in order. They are computed on demand, because a rank needs only its own
    partition.

    Attributes:
        size: number of samples.
        make: computes ids and passes as in `Step`, both int64 [samples].
    """

    size: int
    make: Callable[[], tuple[Int64, Int64]]

    def __len__(self) -> int:
        return self.size

    @cached_property
    def _made(self) -> tuple[Int64, Int64]:
        return self.make()

    @property
    def sample_ids(self) -> Int64:
        return self._made[0]

    @property
    def passes(self) -> Int64:
        return self._made[1]

    def upto(self, end: int) -> Partition:
        """The partition's first samples."""
        return self if end >= self.size else Partition(end, lambda: (self.sample_ids[:end], self.passes[:end]))

    def ordered(self, size: int, find: Callable[[], Int64 | slice]) -> Partition:
        """A partition of `size` samples of this one, at indices that are computed on demand."""

        def make() -> tuple[Int64, Int64]:
            places = find()
            return self.sample_ids[places], self.passes[places]

        return Partition(size, make)


@dataclass(frozen=True)
class Epoch:
    """The rest of an epoch, for one rank.

    Attributes:
        partitions: the samples from the current topology's first step on.
        partition: index of this rank's partition.
        rank: this rank's number among the ranks of its partition, from 0.
        topology: the current topology.
        done: number of steps made in this topology.
        last_batch: see `Plan`.
        stream: the sample stream.
        absent: the absent clips, which repeats stand in for.
    """

    partitions: tuple[Partition, ...]
    partition: int
    rank: int
    topology: Topology
    done: int
    last_batch: LastBatch
    stream: SampleStream
    absent: AbsentRows = field(default_factory=AbsentRows)

    @cached_property
    def steps(self) -> int:
        """Steps from the topology's first one to the epoch's end, the same on every rank."""
        lengths = [len(partition) for partition in self.partitions]
        if self.last_batch == "drop":
            return min(lengths) // self.topology.share
        return -(-max(lengths) // self.topology.share)

    @property
    def left(self) -> int:
        """Number of steps that are left."""
        return max(0, self.steps - self.done)

    @cached_property
    def share(self) -> Int64:
        """int64 [samples]: all of this rank's samples, from the topology's first step on."""
        partition, topology = self.partitions[self.partition], self.topology
        full = min(self.steps, len(partition) // topology.share)
        places = partition.sample_ids[: full * topology.share].reshape(full, topology.ranks, topology.batch)
        last = [self._planned(number).sample_ids for number in range(full, self.steps)]
        return np.concatenate([places[:, self.rank].ravel(), *last])

    def step(self, number: int) -> Step:
        """This rank's part of step `number`, counted from the topology's first step.

        Absent clips are replaced by others of this rank's share of the epoch, with `valid` False; if all of that is
        absent, as may happen near the end of an epoch, by others of the dataset.

        Raises:
            DatasetError: all clips are absent.
        """
        planned = self._planned(number)
        if not self.absent:
            return planned
        pools = [lambda: self.share, lambda: np.concatenate([pool.sample_ids for pool in self.stream.pools])]
        return planned.without(self.absent, pools, self.stream.seed)

    def _planned(self, number: int) -> Step:
        partition, share, batch = self.partitions[self.partition], self.topology.share, self.topology.batch
        step = slice(number * share, (number + 1) * share)
        here, here_passes = partition.sample_ids[step], partition.passes[step]
        mine = slice(self.rank * batch, (self.rank + 1) * batch)
        if len(here) == share:
            return Step(here[mine], here_passes[mine].copy(), np.ones(batch, dtype=bool), number)
        # If there are fewer samples than nodes, a node may have none.
        spare = partition if len(partition) else next(other for other in self.partitions if len(other))
        if self.last_batch == "fill":
            sample_ids = np.resize(np.concatenate([here, spare.sample_ids]), share)[mine]
            passes = np.resize(np.concatenate([here_passes, spare.passes]), share)[mine]
            return Step(sample_ids, passes, (np.arange(share) < len(here))[mine], number)
        mine = slice(*(len(here) * rank // self.topology.ranks for rank in (self.rank, self.rank + 1)))
        sample_ids, passes = here[mine], here_passes[mine].copy()
        if len(sample_ids) == 0:
            # Ranks without samples make the step with one sample that is not valid, so that collectives do not hang.
            return Step(spare.sample_ids[:1], spare.passes[:1].copy(), np.zeros(1, dtype=bool), number)
        return Step(sample_ids, passes, np.ones(len(sample_ids), dtype=bool), number)
