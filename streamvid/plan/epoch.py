"""One rank's epoch: its part of every step, and what stands in the place of clips that are not delivered."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

import numpy as np

from streamvid.arrays import Bool, Int64

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
    """

    sample_ids: Int64
    passes: Int64
    valid: Bool


@dataclass(frozen=True)
class Partition:
    """Samples that some or all ranks share, in order: ids and passes as in `Step`, both int64 [samples]."""

    sample_ids: Int64
    passes: Int64

    def __len__(self) -> int:
        return len(self.sample_ids)

    def at(self, places: Int64 | slice) -> Partition:
        """The samples at these indices."""
        return Partition(self.sample_ids[places], self.passes[places])


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
    """

    partitions: tuple[Partition, ...]
    partition: int
    rank: int
    topology: Topology
    done: int
    last_batch: LastBatch

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

    def step(self, number: int) -> Step:
        """This rank's part of step `number`, counted from the topology's first step."""
        partition, share, batch = self.partitions[self.partition], self.topology.share, self.topology.batch
        here = partition.at(slice(number * share, (number + 1) * share))
        mine = slice(self.rank * batch, (self.rank + 1) * batch)
        if len(here) == share:
            return Step(here.sample_ids[mine], here.passes[mine], np.ones(batch, dtype=bool))
        # A node may have no sample at all, if there are fewer samples than nodes.
        spare = partition if len(partition) else next(other for other in self.partitions if len(other))
        if self.last_batch == "fill":
            sample_ids = np.resize(np.concatenate([here.sample_ids, spare.sample_ids]), share)[mine]
            passes = np.resize(np.concatenate([here.passes, spare.passes]), share)[mine]
            return Step(sample_ids, passes, (np.arange(share) < len(here))[mine])
        mine = slice(*(len(here) * rank // self.topology.ranks for rank in (self.rank, self.rank + 1)))
        sample_ids, passes = here.sample_ids[mine], here.passes[mine]
        if len(sample_ids) == 0:
            # Ranks without samples make the step with one that is not valid, so that collectives do not hang.
            return Step(spare.sample_ids[:1], spare.passes[:1], np.zeros(1, dtype=bool))
        return Step(sample_ids, passes, np.ones(len(sample_ids), dtype=bool))
