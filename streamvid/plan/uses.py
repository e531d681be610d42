"""Computes from the plan when a node needs its clips next, so that a full cache evicts the files that are needed
latest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from streamvid.arrays import Float64, Int64
from streamvid.plan.epoch import Epoch
from streamvid.plan.sample_id import rows_of
from streamvid.plan.world import World


@dataclass
class Uses:
    """The samples of an epoch and the next, for all ranks of a node.

    Attributes:
        epoch: the epoch that is being read.
        find_following: makes the next epoch; called on first use.
        world: rank and world size, from which the node's ranks follow.
        rows: number of clips in the dataset.
        read: the steps of the epoch that have been read, besides those before this process began it.
    """

    epoch: Epoch
    find_following: Callable[[], Epoch]
    world: World
    rows: int
    read: set[int] = field(default_factory=set)

    @cached_property
    def _following(self) -> Int64:
        return self.of_node(self.find_following())[0]

    def next(self) -> Float64:
        """float64 [rows]: number of samples that come before each clip is needed; infinity if it is in neither
        epoch."""
        when = np.full(self.rows, np.inf)
        rows, steps = self.of_node(self.epoch)
        now = rows[(steps >= self.epoch.done) & ~np.isin(steps, list(self.read))]
        for some, before in ((self._following, len(now)), (now, 0)):
            when[some[::-1]] = before + np.arange(len(some))[::-1]  # the first place of a row is written last
        return when

    def of_node(self, epoch: Epoch) -> tuple[Int64, Int64]:
        """The rows that the node takes in an epoch, in order, and the steps in which it takes them; both int64
        [samples]."""
        rows: Int64 = rows_of(epoch.partitions[epoch.partition].sample_ids)
        steps, place = np.divmod(np.arange(len(rows)), epoch.topology.share)
        if epoch.topology.partitions > 1 or self.world.nodes == 1:
            return rows, steps
        rank = place // epoch.topology.batch
        if rest := len(rows) % epoch.topology.share:  # the last step is shared evenly
            bounds = rest * np.arange(1, epoch.topology.ranks + 1) // epoch.topology.ranks
            rank[-rest:] = np.searchsorted(bounds, np.arange(rest), side="right")
        mine = rank // (self.world.size // self.world.nodes) == self.world.node
        return rows[mine], steps[mine]
