"""Saving and resuming a run: a schedule of epochs, a cursor in it, and the cursor as a small JSON object.

Resuming is elastic. Every topology that has worked on an epoch (ranks, nodes, batch size) is replayed, the samples
that its steps consumed are taken away, and what is left is divided among the ranks of now: no sample comes twice, and
none is left out.

Shards that are appended to a dataset come after those that were there, so that sample ids stay what they were and the
schedule of before can be rebuilt from the longer dataset. A run that was saved within an epoch ends that epoch by the
schedule of before, and goes on with the new one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from streamvid.errors import InputError
from streamvid.plan.epoch_plan import Epoch, Plan, Position, Topology, TopologyRun
from streamvid.plan.permutation import Pool
from streamvid.sampling.base import FrameSampler

VERSION: Final = 1
"""Of the state's form."""
_BELONGS_TO: Final = {
    "dataset": "another dataset, or other clips of it (a filter, a key list, weights)",
    "sampling": "another sampling or padding",
    "order": "another seed, shuffle, locality, mixture or steps_per_epoch",
}


@dataclass(frozen=True)
class Identity:
    """Digests of all that gives a position its meaning; a state is resumed only where they are equal.

    Attributes:
        dataset: of the shards' checksums and of the selected sample ids.
        sampling: of the frame sampler.
        order: of the options that order samples.
        shards: how many there are: a dataset that is appended to still begins with them.
    """

    dataset: str
    sampling: str
    order: str
    shards: int


@dataclass(frozen=True)
class RunSchedule:
    """The plan of a run's epochs, and what else a position in it depends on.

    Attributes:
        plan: of every epoch.
        checksums: of all shards of all datasets, in order.
        sampling: how frames are chosen.
    """

    plan: Plan
    checksums: tuple[str, ...]
    sampling: FrameSampler

    def start(self, epoch: int) -> Cursor:
        """The beginning of an epoch."""
        return Cursor(self, self.plan.start(epoch))

    def after(self, cursor: Cursor) -> Cursor:
        """The beginning of the epoch after the cursor's; by this schedule, also where the cursor is in another."""
        if cursor.schedule is self:
            return Cursor(self, self.plan.after(cursor.position))
        return self.start(cursor.position.epoch + 1)

    def resume(self, state: Mapping[str, Any]) -> Cursor:
        """The cursor of a state: within an epoch of this schedule, or of one over the first of its shards.

        If nothing is left of that epoch, or nothing of it was consumed, it is the beginning of one of this schedule.

        Raises:
            InputError: it is no state, is damaged, or belongs to a run over something else.
        """
        schedule = self
        shards = state.get("shards") if isinstance(state, Mapping) else None
        if isinstance(shards, int) and 0 < shards < len(self.checksums) and state["dataset"] != self.identity.dataset:
            schedule = self._before_append(shards, state)
        position = position_from(state, schedule.identity)
        if not position.history:
            return Cursor(self, position) if schedule is self else self.start(position.epoch)
        cursor = Cursor(schedule, position)
        return cursor if cursor.epoch().left else self.after(cursor)

    @cached_property
    def identity(self) -> Identity:
        """What states of this schedule belong to."""
        plan, stream = self.plan, self.plan.stream
        content = hashlib.sha256("\n".join(self.checksums).encode())
        for pool in stream.pools:
            content.update(np.ascontiguousarray(pool.sample_ids).data)
            if pool.weights is not None:
                content.update(np.ascontiguousarray(pool.weights).data)
        order = (stream.seed, stream.shuffle, stream.block_shards, stream.weights, plan.local, plan.steps)
        return Identity(content.hexdigest()[:16], _digest(self.sampling), _digest(order), len(self.checksums))

    def _before_append(self, shards: int, state: Mapping[str, Any]) -> RunSchedule:
        """This schedule over the first `shards` shards alone."""
        stream = self.plan.stream
        pool = stream.pools[0]
        if len(stream.pools) > 1 or pool.weights is not None or self.plan.steps is not None:
            epoch = state.get("epoch")
            following = epoch + 1 if isinstance(epoch, int) else "n"
            raise InputError(
                f"the state is of {shards} shards, and now there are {len(self.checksums)}: clips that were added join "
                "a run within an epoch only without Mix, weights and steps_per_epoch; leave the state out, and begin "
                f"the next epoch with set_epoch({following})"
            )
        upto = int(np.searchsorted(pool.shards, shards))
        first = Pool(pool.sample_ids[:upto], pool.shards[:upto])
        return replace(
            self, plan=replace(self.plan, stream=replace(stream, pools=(first,))), checksums=self.checksums[:shards]
        )


@dataclass(frozen=True)
class Cursor:
    """A position in a schedule: what a run has consumed, and by which plan."""

    schedule: RunSchedule
    position: Position

    def advanced(self) -> Cursor:
        """After one more step."""
        return Cursor(self.schedule, self.position.advanced(self.schedule.plan.topology))

    def epoch(self) -> Epoch:
        """What is left of the epoch."""
        return self.schedule.plan.epoch(self.position)

    def state(self) -> dict[str, Any]:
        """Strings, integers and lists that JSON can hold, under 1 KiB: the identity, the position, and for every
        topology in turn [partitions, ranks, batch, steps made, bucket_steps]."""
        return {
            "version": VERSION,
            **asdict(self.schedule.identity),
            "epoch": self.position.epoch,
            "first": self.position.first,
            "size": self.position.size,
            "segments": [
                [run.topology.partitions, run.topology.ranks, run.topology.batch, run.steps, run.topology.bucket_steps]
                for run in self.position.history
            ],
        }


def position_from(state: Mapping[str, Any], identity: Identity) -> Position:
    """The position that a state holds.

    Raises:
        InputError: it is no state, of another version, damaged, or belongs to a run over something else.
    """
    if not isinstance(state, Mapping) or "segments" not in state:
        raise InputError("this is not the state of a StreamLoader: give what its state_dict() returned")
    if state.get("version") != VERSION or isinstance(state["version"], bool):
        raise InputError(f"the state is of version {state.get('version')!r}, this library knows {VERSION}")
    for name, meaning in _BELONGS_TO.items():
        if state.get(name) != getattr(identity, name):
            raise InputError(
                f"the state belongs to a run with {meaning}: make the loader as it was, or start without the state"
            )
    try:
        epoch, first, size = (_count(state[name]) for name in ("epoch", "first", "size"))
        history = tuple(_topology_run(numbers) for numbers in state["segments"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("the state is damaged: give what state_dict() returned, unchanged") from error
    return Position(epoch, first, size, history)


def _topology_run(numbers: Sequence[object]) -> TopologyRun:
    partitions, ranks, batch, steps, bucket_steps = numbers
    topology = Topology(_count(partitions, 1), _count(ranks, 1), _count(batch, 1), _count(bucket_steps))
    return TopologyRun(topology, _count(steps))


def _count(value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 62:
        raise ValueError(value)
    return value


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]
