"""Which items, in which order, on which rank: a pure function of (dataset, seed, epoch, world, position).

An epoch is a window of an endless stream of items (`streamvid.plan.mixture`): usually one pass over the dataset.
Its items lie in lanes: one for all ranks, or with locality one per node. Step *s* takes the next `batch_size` items
per rank from every lane, which may be grouped by kind before that. So where a run stands is told by a few integers,
which mean the same for any number of ranks: see `Position`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Bool, Int64
from streamvid.errors import InputError
from streamvid.plan.bucket_key import BucketKeys
from streamvid.plan.bucketing import bucket_order
from streamvid.plan.mixture import Stream
from streamvid.plan.permutation import GROUP, Pool, arrange, deal_to_nodes, draws, generator, pass_items
from streamvid.plan.sample_id import rows_of
from streamvid.plan.world import World

__all__ = ["Epoch", "Plan", "Pool", "Position", "Step", "Topology", "TopologyRun", "draws"]

LastBatch = Literal["partial", "drop", "fill"]
LAST_BATCH: tuple[LastBatch, ...] = ("partial", "drop", "fill")
_MOST_NODES: Final = 1 << 32
"""More than any world has: keeps the random numbers of successive layouts apart."""


@dataclass(frozen=True)
class Topology:
    """How ranks share the items of a step.

    Attributes:
        lanes: 1, or with locality the number of nodes.
        ranks: ranks per lane.
        batch: items per rank and step.
        group: steps whose items are sorted by kind together; 0: the order is left alone.
    """

    lanes: int
    ranks: int
    batch: int
    group: int = 0

    @property
    def share(self) -> int:
        """Items that a step takes from a lane."""
        return self.ranks * self.batch


@dataclass(frozen=True)
class TopologyRun:
    """Steps that were made in one layout."""

    layout: Topology
    steps: int


@dataclass(frozen=True)
class Position:
    """Where a run stands.

    Attributes:
        epoch: its number.
        first: position of its first item in the stream.
        size: its items.
        segments: what of it has been consumed: a segment for every layout that has worked on it, in order.
    """

    epoch: int
    first: int
    size: int
    segments: tuple[TopologyRun, ...] = ()

    def advanced(self, layout: Topology) -> Position:
        """After one more step in that layout."""
        before, last = self.segments[:-1], self.segments[-1:]
        if last and last[0].layout == layout:
            return replace(self, segments=(*before, replace(last[0], steps=last[0].steps + 1)))
        layouts = [layout, *(segment.layout for segment in self.segments)]
        if all(one.lanes == 1 and not one.group for one in layouts):
            # A single lane keeps its order, so all that counts of earlier layouts is how many items they consumed.
            consumed = min(self.size, sum(segment.steps * segment.layout.share for segment in self.segments))
            earlier = (TopologyRun(Topology(1, 1, 1), consumed),) if consumed else ()
            return replace(self, segments=(*earlier, TopologyRun(layout, 1)))
        return replace(self, segments=(*self.segments, TopologyRun(layout, 1)))


@dataclass(frozen=True)
class Step:
    """One rank's part of one step.

    Attributes:
        items: int64 [batch], what to decode: see `streamvid.plan.sample_id`.
        passes: int64 [batch], in which pass over its dataset each comes, from 0.
        valid: bool [batch], False for an item that is only there to fill the batch and belongs to another place.
    """

    items: Int64
    passes: Int64
    valid: Bool


@dataclass(frozen=True)
class ItemQueue:
    """Items that some ranks share, in order: items and passes, both int64 [items]."""

    items: Int64
    passes: Int64

    def __len__(self) -> int:
        return len(self.items)

    def at(self, places: Int64 | slice) -> ItemQueue:
        """The items at these places."""
        return ItemQueue(self.items[places], self.passes[places])


@dataclass(frozen=True)
class Epoch:
    """What is left of an epoch, for one rank.

    Attributes:
        lanes: the items that are left in the current layout, from its first step on.
        lane: which is this rank's.
        rank: this rank's number among those of its lane.
        layout: the current one.
        done: steps made in it.
        last_batch: see `Plan`.
    """

    lanes: tuple[ItemQueue, ...]
    lane: int
    rank: int
    layout: Topology
    done: int
    last_batch: LastBatch

    @cached_property
    def steps(self) -> int:
        """Steps from the layout's first one to the epoch's end, the same on every rank."""
        lengths = [len(lane) for lane in self.lanes]
        if self.last_batch == "drop":
            return min(lengths) // self.layout.share
        return -(-max(lengths) // self.layout.share)

    @property
    def left(self) -> int:
        """Steps that are still to be made."""
        return max(0, self.steps - self.done)

    def step(self, number: int) -> Step:
        """This rank's part of step `number`, counted from the layout's first step."""
        lane, share, batch = self.lanes[self.lane], self.layout.share, self.layout.batch
        here = ItemQueue(*(column[number * share : (number + 1) * share] for column in (lane.items, lane.passes)))
        mine = slice(self.rank * batch, (self.rank + 1) * batch)
        if len(here) == share:
            return Step(here.items[mine], here.passes[mine], np.ones(batch, dtype=bool))
        # A node may have nothing at all, if there are fewer items than nodes.
        spare = lane if len(lane) else next(other for other in self.lanes if len(other))
        if self.last_batch == "fill":
            items = np.resize(np.concatenate([here.items, spare.items]), share)[mine]
            passes = np.resize(np.concatenate([here.passes, spare.passes]), share)[mine]
            return Step(items, passes, (np.arange(share) < len(here))[mine])
        mine = slice(*(len(here) * rank // self.layout.ranks for rank in (self.rank, self.rank + 1)))
        items, passes = here.items[mine], here.passes[mine]
        if len(items) == 0:
            # Ranks that have nothing left make the step with an item that does not count: nobody waits for them.
            return Step(spare.items[:1], spare.passes[:1], np.zeros(1, dtype=bool))
        return Step(items, passes, np.ones(len(items), dtype=bool))


@dataclass(frozen=True)
class Plan:
    """The steps of every epoch, for one rank.

    Attributes:
        stream: where the items come from.
        batch_size: items per rank and step.
        world: this rank among all.
        last_batch: what to do when the items do not fill the last step. "partial": that step's batches are smaller
            (where fewer items than ranks are left, ranks without one get an item marked not valid, so that no rank
            runs dry); "drop": it is not made; "fill": it is filled with items from the start, marked not valid.
        local: every node has shards of its own.
        steps: steps of an epoch; None: as many as a pass over the dataset takes.
        group: steps whose items are sorted by kind together, so that a batch holds few: see
            `streamvid.plan.bucketing`. 0: none are.
        kinds: gives the kind of every row. It is asked only where items are grouped, now or in what was consumed.
    """

    stream: Stream
    batch_size: int
    world: World
    last_batch: LastBatch = "partial"
    local: bool = False
    steps: int | None = None
    group: int = 0
    kinds: Callable[[], BucketKeys] | None = None

    def __post_init__(self) -> None:
        check_whole(self.batch_size, "batch_size")
        if self.steps is not None:
            check_whole(self.steps, "steps_per_epoch")
        if self.last_batch not in LAST_BATCH:
            raise InputError(f"last_batch must be one of {', '.join(LAST_BATCH)}; it is {self.last_batch!r}")
        if self.local and (self.steps is not None or len(self.stream.pools) > 1):
            raise InputError(
                "locality='node' works on whole passes over one dataset: give no steps_per_epoch and no Mix"
            )

    @property
    def layout(self) -> Topology:
        """The current one."""
        lanes = self.world.nodes if self.local else 1
        return Topology(lanes, self.world.size // lanes, self.batch_size, self.group)

    def __len__(self) -> int:
        """Steps in a whole epoch, the same on every rank."""
        if self.steps is not None:
            return self.steps
        lanes, share = self.layout.lanes, self.layout.share
        longest, shortest = -(-self.size // lanes), self.size // lanes
        return shortest // share if self.last_batch == "drop" else -(-longest // share)

    @property
    def size(self) -> int:
        """Items in an epoch."""
        return self.stream.pass_length() if self.steps is None else self.steps * self.layout.share

    def start(self, epoch: int) -> Position:
        """The beginning of an epoch, all epochs before it having been as long as this one."""
        return Position(epoch, epoch * self.size, self.size)

    def after(self, position: Position) -> Position:
        """The beginning of the epoch after that of `position`."""
        return Position(position.epoch + 1, position.first + position.size, self.size)

    def epoch(self, position: Position) -> Epoch:
        """What is left of an epoch, in the current layout.

        The layouts that have worked on it are gone through again: of each, what its steps consumed is taken away.
        """
        lanes: list[ItemQueue] = []
        layout, done = None, 0
        for number, segment in enumerate((*position.segments, TopologyRun(self.layout, 0))):
            if layout is None:
                lanes = self._first_lanes(position, segment.layout)
            elif segment.layout != layout:
                left = self._left(lanes, layout, done, position.epoch)
                lanes = self._dealt(left, segment.layout, position, number)
                done = 0
            layout = segment.layout
            done += segment.steps
        if self.group:
            orders = self._orders(lanes, self.layout, position.epoch)
            lanes = [lane.at(order) for lane, order in zip(lanes, orders, strict=True)]
        return Epoch(
            tuple(lanes), self.world.node if self.local else 0, self._rank_in_lane, self.layout, done, self.last_batch
        )

    def _left(self, lanes: list[ItemQueue], layout: Topology, steps: int, epoch: int) -> list[ItemQueue]:
        """What some steps in a layout leave of each lane, in the order that it has when nothing is grouped."""
        consumed = steps * layout.share
        if not layout.group:
            return [lane.at(slice(consumed, None)) for lane in lanes]
        left = []
        for lane, order in zip(lanes, self._orders(lanes, layout, epoch), strict=True):
            still = np.ones(len(lane), dtype=bool)
            still[order[:consumed]] = False
            left.append(lane.at(np.flatnonzero(still)))
        return left

    def _orders(self, lanes: list[ItemQueue], layout: Topology, epoch: int) -> Iterator[Int64]:
        """How a layout that groups arranges each lane."""
        if self.kinds is None:
            raise ValueError("a plan that groups items needs their kinds")
        kinds = self.kinds()
        full = min(len(lane) for lane in lanes) // layout.share
        for lane in lanes:
            # The same draws for each lane: at any step all nodes are about as far in the order of kinds.
            shuffles = self.stream.shuffle != "none"
            random = generator(self.stream.seed, epoch, GROUP) if shuffles else None
            yield bucket_order(
                kinds[rows_of(lane.items)],
                ranks=layout.ranks, batch=layout.batch, window=layout.group, full=full, random=random,
            )  # fmt: skip

    @property
    def _rank_in_lane(self) -> int:
        return self.world.rank % self.layout.ranks

    def _first_lanes(self, position: Position, layout: Topology) -> list[ItemQueue]:
        if not self.local:
            return [ItemQueue(*self.stream.take(position.first, position.size))]
        items, shards = pass_items(self.stream.pools[0], self.stream.seed, position.epoch)
        return self._arranged(deal_to_nodes(items, shards, layout.lanes, seed=self.stream.seed), position, 0)

    def _dealt(self, left: list[ItemQueue], layout: Topology, position: Position, number: int) -> list[ItemQueue]:
        """What one layout left to the next. A single lane keeps its order: `Position.advanced` builds on that."""
        if len(left) == layout.lanes == 1:
            return left
        items = np.sort(np.concatenate([lane.items for lane in left]))
        items = items[np.argsort(rows_of(items), kind="stable")]
        pool = self.stream.pools[0]
        shards = pool.shards[np.searchsorted(rows_of(pool.items), rows_of(items))]
        dealt = deal_to_nodes(items, shards, layout.lanes, seed=self.stream.seed)
        return self._arranged(dealt, position, number)

    def _arranged(
        self, parts: list[tuple[Int64, npt.NDArray[np.int32]]], position: Position, number: int
    ) -> list[ItemQueue]:
        stream, lanes = self.stream, []
        for node, (items, shards) in enumerate(parts):
            ordered = arrange(
                items, shards, stream.shuffle, block_shards=stream.block_shards,
                seed=stream.seed, number=position.epoch, lane=1 + node + number * _MOST_NODES,
            )  # fmt: skip
            lanes.append(ItemQueue(ordered, np.full(len(ordered), position.epoch, dtype=np.int64)))
        return lanes


def check_whole(value: object, name: str) -> None:
    """Raise InputError unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, it is {value!r}")
