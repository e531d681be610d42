"""Which samples, in which order, on which rank: a pure function of (dataset, seed, epoch, world, position).

An epoch is a section of the sample stream (`streamvid.plan.mixture`), usually one pass over the dataset. It is divided
into partitions: one that all ranks share, or with locality="node" one for each node. A partition may be bucketed by
decoder configuration. Each step then takes the next `batch_size` samples per rank from every partition. So a run's
progress is a few integers (`Position`), from which it can resume with any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.checks import integer, one_of
from streamvid.errors import InputError
from streamvid.host import usable_memory
from streamvid.plan.bucket_key import BucketKeys
from streamvid.plan.bucketing import bucket_order
from streamvid.plan.epoch import LAST_BATCH, Epoch, LastBatch, Partition, Topology
from streamvid.plan.mixture import SampleStream
from streamvid.plan.permutation import NodePart, arrange, pass_samples, split_by_node
from streamvid.plan.rng import BUCKET, ORDER, generator
from streamvid.plan.sample_id import rows_of
from streamvid.plan.world import World

_MOST_NODES: Final = 1 << 32
"""More nodes than any job has, so that the nodes of successive topologies get different random numbers."""
_SAMPLE_BYTES: Final = 24
"""Memory that the order of an epoch takes for each of its samples while it is computed."""


@dataclass(frozen=True)
class TopologyRun:
    """Consecutive steps made in one topology.

    Attributes:
        topology: the topology.
        steps: number of steps.
        size: number of samples in the epoch as that topology would have ended it, if that differs from the epoch's size
            now.
    """

    topology: Topology
    steps: int
    size: int | None = None


@dataclass(frozen=True)
class Position:
    """How much of an epoch is consumed.

    Attributes:
        epoch: number of the epoch.
        first: the position of the epoch's first sample in the sample stream.
        size: samples in the epoch.
        history: the steps made so far, by topology, in order.
    """

    epoch: int
    first: int
    size: int
    history: tuple[TopologyRun, ...] = ()

    def advanced(self, topology: Topology) -> Position:
        """The position after one more step in that topology."""
        before, last = self.history[:-1], self.history[-1:]
        if last and last[0].topology == topology:
            return replace(self, history=(*before, replace(last[0], steps=last[0].steps + 1)))
        topologies = [topology, *(run.topology for run in self.history)]
        if all(topology.partitions == 1 and not topology.bucket_steps for topology in topologies):
            # A single partition keeps its order, so only the number of samples that earlier topologies consumed
            # matters.
            consumed = min(self.size, self.consumed)
            earlier = (TopologyRun(Topology(1, 1, 1), consumed),) if consumed else ()
            return replace(self, history=(*earlier, TopologyRun(topology, 1)))
        return replace(self, history=(*self.history, TopologyRun(topology, 1)))

    @property
    def consumed(self) -> int:
        """Number of samples that the steps made so far had room for, in each partition."""
        return sum(run.steps * run.topology.share for run in self.history)


def _steps_left(history: tuple[TopologyRun, ...]) -> int:
    """Number of steps left of an epoch of `Plan.steps` steps, from the epoch's size in each topology.

    From the first topology with bucketing on, steps are counted instead, because sizes may be larger for the samples
    that it skipped.
    """
    first = next((n for n, run in enumerate(history) if run.topology.bucket_steps), len(history) - 1)
    before = sum(run.steps * run.topology.share for run in history[:first])
    planned = -(-((history[first].size or 0) - before) // history[first].topology.share)
    return max(0, planned - sum(run.steps for run in history[first:]))


@dataclass(frozen=True)
class Plan:
    """The steps of every epoch, for one rank.

    Attributes:
        stream: the sample stream.
        batch_size: samples per rank and step.
        world: rank and world size.
        last_batch: what to do when the samples do not fill the last step. "partial": that step's batches are smaller
            (ranks for which no sample is left get one that is not valid, so that all ranks make the same number of
            steps); "drop": the step is left out; "fill": it is filled with samples from the epoch's start, not valid.
        local: whether every node has its own shards, as with locality="node".
        steps: steps of an epoch; None: those of a pass over the dataset.
        bucket_steps: steps whose samples are bucketed together (`streamvid.plan.bucketing`); 0 for no bucketing.
        bucket_keys: computes the bucket key of every row; called only if samples are bucketed, now or in a position's
            history.
    """

    stream: SampleStream
    batch_size: int
    world: World
    last_batch: LastBatch = "partial"
    local: bool = False
    steps: int | None = None
    bucket_steps: int = 0
    bucket_keys: Callable[[], BucketKeys] | None = None

    def __post_init__(self) -> None:
        integer(self.batch_size, "batch_size")
        if self.steps is not None:
            integer(self.steps, "steps_per_epoch")
            needed, has = _SAMPLE_BYTES * self.size, usable_memory()
            if needed > has:
                raise InputError(
                    f"steps_per_epoch={self.steps} is an epoch of {self.size} clips, whose order takes "
                    f"{needed / 1e9:,.1f} GB, and this process may use {has / 1e9:,.1f} GB: give fewer steps, as every "
                    "epoch goes on where the one before it ended"
                )
        one_of(self.last_batch, LAST_BATCH, "last_batch")
        if self.local and (self.steps is not None or len(self.stream.pools) > 1):
            raise InputError(
                "locality='node' works on whole passes over one dataset: give no steps_per_epoch and no Mix"
            )

    @property
    def topology(self) -> Topology:
        """The current topology."""
        partitions = self.world.nodes if self.local else 1
        return Topology(partitions, self.world.size // partitions, self.batch_size, self.bucket_steps)

    def __len__(self) -> int:
        """Steps in a whole epoch, the same on every rank."""
        if self.steps is not None:
            return self.steps
        partitions, share = self.topology.partitions, self.topology.share
        longest, shortest = -(-self.size // partitions), self.size // partitions
        return shortest // share if self.last_batch == "drop" else -(-longest // share)

    @property
    def size(self) -> int:
        """Samples in an epoch."""
        return self.stream.pass_length() if self.steps is None else self.steps * self.topology.share

    def start(self, epoch: int) -> Position:
        """The beginning of an epoch, if all epochs before it have the same number of samples."""
        return Position(epoch, epoch * self.size, self.size)

    def after(self, position: Position) -> Position:
        """The beginning of the epoch after that of `position`."""
        return Position(position.epoch + 1, position.first + position.size, self.size)

    def resized(self, position: Position) -> Position:
        """The position with the epoch's end as in this topology.

        An epoch of `steps` steps has as many steps left as the earlier topologies left, and the next epoch begins where
        it ends. But bucketing consumes samples out of order: if smaller steps would end the epoch before all samples
        that bucketing skipped are consumed, the epoch ends after those, so that no sample is lost.
        """
        if self.steps is None:
            return position
        if not position.history:
            return replace(position, size=self.size)
        *earlier, last = position.history
        size = last.size or position.size
        if last.topology == self.topology:
            return replace(position, size=size)
        position = replace(position, history=(*earlier, replace(last, size=size)))
        share, consumed = self.topology.share, position.consumed
        steps = 0
        if consumed < size:
            steps = _steps_left(position.history)
            if any(run.topology.bucket_steps for run in position.history):
                furthest = max(run.size or 0 for run in position.history)
                left = self._replayed(replace(position, size=furthest))[0][0]
                sample_ids, passes = self.stream.take(position.first + consumed, len(left))
                skipped = np.flatnonzero((left.sample_ids != sample_ids) | (left.passes != passes))
                steps = max(steps, -(-(int(skipped[-1]) + 1) // share) if len(skipped) else 0)
        return replace(position, size=consumed + steps * share)

    def epoch(self, position: Position) -> Epoch:
        """The rest of an epoch, in the current topology."""
        partitions, done = self._replayed(position)
        if self.bucket_steps:
            orders = self._orders(partitions, self.topology, position.epoch)
            partitions = [
                partition.ordered(len(partition), order) for partition, order in zip(partitions, orders, strict=True)
            ]
        return Epoch(
            partitions=tuple(partitions),
            partition=self.world.node if self.local else 0,
            rank=self.world.rank % self.topology.ranks,
            topology=self.topology,
            done=done,
            last_batch=self.last_batch,
            stream=self.stream,
        )

    def _replayed(self, position: Position) -> tuple[list[Partition], int]:
        """The samples of each partition from the current topology's first step on, in the order before bucketing, and
        the number of steps made in it.

        The topologies of the position's history are replayed, and the samples that the steps of each consumed are
        removed.
        """
        runs = (*position.history, TopologyRun(self.topology, 0))
        sizes = [position.size if run.size is None else run.size for run in runs]
        topology, size, before, done = runs[0].topology, sizes[0], 0, 0
        partitions = self._first_partitions(position, max(sizes), topology)
        for number, run in enumerate(runs):
            if run.topology != topology:
                left = self._remaining(partitions, topology, done, max(0, size - before), position.epoch)
                partitions = self._divided(left, run.topology, position, number)
                before, done = before + done * topology.share, 0
            topology, size, done = run.topology, sizes[number], done + run.steps
        return [partition.upto(max(0, size - before)) for partition in partitions], done

    def _remaining(
        self, partitions: list[Partition], topology: Topology, steps: int, upto: int, epoch: int
    ) -> list[Partition]:
        """The samples of each partition that are left after `steps` steps in a topology, which divided its first `upto`
        samples."""
        consumed = steps * topology.share
        if not topology.bucket_steps:
            rest = partial(slice, consumed, None)
            return [partition.ordered(max(0, len(partition) - consumed), rest) for partition in partitions]
        left = []
        divided = [partition.upto(upto) for partition in partitions]
        for partition, order in zip(partitions, self._orders(divided, topology, epoch), strict=True):
            still = np.ones(len(partition), dtype=bool)
            still[order()[:consumed]] = False
            places = np.flatnonzero(still)
            left.append(partition.ordered(len(places), partial(np.asarray, places)))
        return left

    def _orders(self, partitions: list[Partition], topology: Topology, epoch: int) -> Iterator[Callable[[], Int64]]:
        """Computes the bucketed order of each partition: int64 [samples], indices into it."""
        if self.bucket_keys is None:
            raise ValueError("a plan with bucketing needs bucket_keys")
        bucket_keys = self.bucket_keys()
        full = min(len(partition) for partition in partitions) // topology.share

        def order(partition: Partition) -> Int64:
            # The same draws for each partition, so that at any step all nodes decode clips of about the same size.
            random = None if self.stream.shuffle == "none" else generator(self.stream.seed, epoch, BUCKET)
            return bucket_order(
                bucket_keys[rows_of(partition.sample_ids)],
                ranks=topology.ranks, batch=topology.batch, window=topology.bucket_steps, full=full, random=random,
            )  # fmt: skip

        return (partial(order, partition) for partition in partitions)

    def _first_partitions(self, position: Position, size: int, topology: Topology) -> list[Partition]:
        if not self.local:
            return [Partition(size, partial(self.stream.take, position.first, size))]
        sample_ids, shards = pass_samples(self.stream.pools[0], self.stream.seed, position.epoch)
        return self._ordered(split_by_node(sample_ids, shards, topology.partitions, seed=self.stream.seed), position, 0)

    def _divided(self, left: list[Partition], topology: Topology, position: Position, number: int) -> list[Partition]:
        """Divide the samples that one topology left among the partitions of the next. A single partition keeps its
        order, on which `Position.advanced` relies."""
        if len(left) == topology.partitions == 1:
            return left
        sample_ids = np.sort(np.concatenate([partition.sample_ids for partition in left]))
        sample_ids = sample_ids[np.argsort(rows_of(sample_ids), kind="stable")]
        pool = self.stream.pools[0]
        shards = pool.shards[np.searchsorted(rows_of(pool.sample_ids), rows_of(sample_ids))]
        split = split_by_node(sample_ids, shards, topology.partitions, seed=self.stream.seed)
        return self._ordered(split, position, number)

    def _ordered(self, parts: list[NodePart], position: Position, number: int) -> list[Partition]:
        stream = self.stream

        def make(node: int, part: NodePart) -> tuple[Int64, Int64]:
            random = generator(stream.seed, position.epoch, ORDER, sample_id=1 + node + number * _MOST_NODES)
            ordered = arrange(*part.take(), stream.shuffle, block_shards=stream.block_shards, random=random)
            return ordered, np.broadcast_to(np.int64(position.epoch), len(ordered))

        return [Partition(part.size, partial(make, node, part)) for node, part in enumerate(parts)]
