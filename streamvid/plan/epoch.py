"""One rank's epoch: its part of every step, and what stands in the place of clips that are not delivered."""

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
        bucket_steps: steps whose samples are bucketed together; 0 leaves the order as it is.
    """

    partitions: int
    ranks: int
    batch: int
    bucket_steps: int = 0

    @property
    def share(self) -> int:
        """Samples that a step takes from a partition."""
        return self.ranks * self.batch


@dataclass(frozen=True)
class Step:
    """One rank's part of one step.

    Attributes:
        sample_ids: int64 [batch], see `streamvid.plan.sample_id`.
        passes: int64 [batch], in which pass over its dataset each comes, from 0.
        valid: bool [batch], False for a sample that only fills the batch up: it comes a second time in the epoch.
        number: of the step, counted from the topology's first one.
        absent: int64 [batch], the row of the absent clip in whose place a sample stands, -1 for none; None: all -1.
    """

    sample_ids: Int64
    passes: Int64
    valid: Bool
    number: int = 0
    absent: Int64 | None = None

    @property
    def stands_for(self) -> Int64:
        """`absent` as an array in any case."""
        return np.full(len(self.sample_ids), -1) if self.absent is None else self.absent

    def at(self, place: int) -> Step:
        """One of its samples."""
        here = slice(place, place + 1)
        absent = None if self.absent is None else self.absent[here]
        return Step(self.sample_ids[here], self.passes[here], self.valid[here], self.number, absent)

    def without(self, absent: AbsentRows, pools: Sequence[Callable[[], Int64]], seed: int) -> Step:
        """The step with repeats in the place of absent clips; arguments as of `streamvid.plan.absent.repeats`."""
        rows = rows_of(self.sample_ids)
        gone = absent.among(rows, self.number)
        if not gone.any():
            return self
        sample_ids = self.sample_ids.copy()
        sample_ids[gone] = repeats(sample_ids[gone], self.passes[gone], pools, absent, seed=seed, step=self.number)
        return replace(self, sample_ids=sample_ids, valid=self.valid & ~gone, absent=np.where(gone, rows, -1))


@dataclass(frozen=True)
class Partition:
    """Samples that some or all ranks share, in order, computed when they are asked for: of all nodes' partitions, a
    rank needs its own.

    Attributes:
        size: samples.
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
        """The first samples."""
        return self if end >= self.size else Partition(end, lambda: (self.sample_ids[:end], self.passes[:end]))

    def ordered(self, size: int, find: Callable[[], Int64 | slice]) -> Partition:
        """So many samples, at the indices that are found when they are needed."""

        def make() -> tuple[Int64, Int64]:
            places = find()
            return self.sample_ids[places], self.passes[places]

        return Partition(size, make)


@dataclass(frozen=True)
class Epoch:
    """What is left of an epoch, for one rank.

    Attributes:
        partitions: the samples from the current topology's first step on.
        partition: index of this rank's partition.
        rank: this rank's number among the ranks of its partition, from 0.
        topology: how the ranks share the samples now.
        done: steps already made in this topology.
        last_batch: see `Plan`.
        stream: where the samples come from.
        absent: clips in whose place repeats stand.
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
        """Steps that are still to be made."""
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

        In the place of absent clips stand others of its own share of the epoch, not valid; where all of that is absent,
        as it may be of the few clips that an epoch has left, others of the dataset.

        Raises:
            DatasetError: all is absent.
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
        # A node may have no sample at all, if there are fewer samples than nodes.
        spare = partition if len(partition) else next(other for other in self.partitions if len(other))
        if self.last_batch == "fill":
            sample_ids = np.resize(np.concatenate([here, spare.sample_ids]), share)[mine]
            passes = np.resize(np.concatenate([here_passes, spare.passes]), share)[mine]
            return Step(sample_ids, passes, (np.arange(share) < len(here))[mine], number)
        mine = slice(*(len(here) * rank // self.topology.ranks for rank in (self.rank, self.rank + 1)))
        sample_ids, passes = here[mine], here_passes[mine].copy()
        if len(sample_ids) == 0:
            # Ranks without samples make the step with one that is not valid, so that collectives do not hang.
            return Step(spare.sample_ids[:1], spare.passes[:1].copy(), np.zeros(1, dtype=bool), number)
        return Step(sample_ids, passes, np.ones(len(sample_ids), dtype=bool), number)
