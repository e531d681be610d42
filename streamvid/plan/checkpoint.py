"""Saving and resuming a run: a schedule of epochs, a cursor in it, and the cursor as a small JSON object.

A run may resume with other ranks, nodes or batch sizes. Each topology that took part in the epoch is replayed, the
samples that its steps consumed are removed, and the rest is divided among the current ranks: no sample comes twice, and
none is left out.

Shards appended to a dataset come after the existing ones, so sample ids do not change, and the schedule before the
append can be rebuilt from the longer dataset. A run saved within an epoch finishes that epoch by the old schedule, and
continues with the new one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamvid.checks import integer, is_integer, shown
from streamvid.errors import InputError
from streamvid.plan.epoch import Epoch, Topology
from streamvid.plan.epoch_plan import Plan, Position, TopologyRun
from streamvid.plan.permutation import Pool
from streamvid.plan.world import World
from streamvid.sampling.base import FrameSampler

VERSION: Final = 1
"""Version of the state's JSON fields."""
_ADDRESS: Final = re.compile(r" at 0x[0-9A-Fa-f]+")
BELONGS_TO: Final = {
    "dataset": "another dataset, or other clips of it (a filter, a key list, weights)",
    "sampling": "another sampling or padding",
    "order": "another seed, shuffle, locality, mixture or steps_per_epoch",
}
_ARGUMENTS: Final = {
    "dataset": {"data": "clips"},
    "sampling": {"sampling": "sampling"},
    "order": {"seed": "seed", "shuffle": "shuffle", "local": "locality", "mix": "mixture", "steps": "steps_per_epoch"},
}
"""By member of an identity, the arguments in a state's `run` that it depends on, and their names for an error."""


@dataclass(frozen=True)
class Identity:
    """Hashes of everything that determines the samples of an epoch. A state can be resumed only with equal ones.

    Attributes:
        dataset: hash of the shards' checksums and of the selected sample ids and weights.
        sampling: hash of the frame sampler.
        order: hash of the options that the order of samples depends on.
        shards: number of shards. After an append, a dataset begins with the same shards.
        parts: number of datasets in a `Mix`; 1 without one.
    """

    dataset: str
    sampling: str
    order: str
    shards: int
    parts: int


@dataclass(frozen=True)
class RunSchedule:
    """The plan of a run's epochs, and the identity of its dataset and sampling.

    Attributes:
        plan: the steps of every epoch.
        checksums: SHA-256 of each shard of all datasets, in order.
        sampling: chooses the frames of a clip.
    """

    plan: Plan
    checksums: tuple[str, ...]
    sampling: FrameSampler

    def in_world(self, world: World) -> RunSchedule:
        """The schedule of the same epochs in another world; this schedule if a rank's part of them is the same
        there."""
        if world == self.plan.world:  # as before each batch
            return self
        plan = replace(self.plan, world=world)
        same = plan.world.rank == self.plan.world.rank and plan.topology == self.plan.topology
        return self if same else replace(self, plan=plan)

    def start(self, epoch: int) -> Cursor:
        """The beginning of an epoch."""
        return Cursor(self, self.plan.start(epoch))

    def after(self, cursor: Cursor) -> Cursor:
        """The beginning of the epoch after the cursor's, in this schedule even if the cursor is in an older one."""
        if cursor.schedule is self:
            return Cursor(self, self.plan.after(cursor.position))
        return self.start(cursor.position.epoch + 1)

    def resume(self, state: Mapping[str, Any], about: Mapping[str, Any] | None = None) -> Cursor:
        """The cursor of a state; `about` as in `position_from`. With `steps_per_epoch`, an epoch has that number of
        steps on any number of ranks.

        If shards were appended since, and part of the state's epoch was consumed, the cursor is in the schedule of the
        shards before the append. An epoch that is finished or has not begun always continues in this schedule.

        Raises:
            InputError: the value is no state, or a damaged one, or belongs to another dataset, sampling or order.
        """
        if not isinstance(state, Mapping) or "segments" not in state:
            raise InputError("this is not the state of a StreamLoader: give what its state_dict() returned")
        schedule = self
        _check_parts(state, len(self.plan.stream.pools))
        shards = state.get("shards")
        if is_integer(shards) and 0 < shards < len(self.checksums) and state.get("dataset") != self.identity.dataset:
            schedule = self.before_append(shards, state)
        position = position_from(state, schedule.identity, about)
        if not _is_plausible(position, schedule.plan):
            raise InputError(DAMAGED)
        if not position.history:
            return Cursor(self, self.plan.resized(position)) if schedule is self else self.start(position.epoch)
        cursor = Cursor(schedule, schedule.plan.resized(position))
        return cursor if cursor.epoch().left else self.after(cursor)

    @cached_property
    def identity(self) -> Identity:
        """The hashes that states of this schedule contain."""
        plan, stream = self.plan, self.plan.stream
        arrays = (array for pool in stream.pools for array in (pool.sample_ids, pool.weights) if array is not None)
        order = (stream.seed, stream.shuffle, stream.block_shards, stream.weights, plan.local, plan.steps)
        return Identity(
            clips_digest(self.checksums, arrays), digest(self.sampling), digest(order),
            len(self.checksums), len(stream.pools),
        )  # fmt: skip

    def before_append(self, shards: int, state: Mapping[str, Any]) -> RunSchedule:
        """The schedule as it was when the dataset had only its first `shards` shards."""
        stream = self.plan.stream
        pool = stream.pools[0]
        if len(stream.pools) > 1 or pool.weights is not None or self.plan.steps is not None:
            epoch = state.get("epoch")
            following = epoch + bool(state.get("segments")) if is_integer(epoch) else "n"
            raise InputError(
                f"the state is of {shards} shards, and there are {len(self.checksums)} here: it belongs to a run with "
                "another dataset, or shards were appended since, and then a run resumes by its state only without Mix, "
                f"weights and steps_per_epoch; leave it out, and begin the next epoch with set_epoch({following})"
            )
        upto = int(np.searchsorted(pool.shards, shards))
        first = Pool(pool.sample_ids[:upto], pool.shards[:upto])
        return replace(
            self, plan=replace(self.plan, stream=replace(stream, pools=(first,))), checksums=self.checksums[:shards]
        )


@dataclass(frozen=True)
class Cursor:
    """A position in a schedule: how much a run has consumed so far."""

    schedule: RunSchedule
    position: Position

    @property
    def epoch_number(self) -> int:
        """Number of the cursor's epoch."""
        return self.position.epoch

    def advanced(self) -> Cursor:
        """The cursor after one more step."""
        return Cursor(self.schedule, self.position.advanced(self.schedule.plan.topology))

    def epoch(self) -> Epoch:
        """The rest of the epoch."""
        return self.schedule.plan.epoch(self.position)

    def state(self) -> dict[str, Any]:
        """The cursor as a small JSON object: identity, position, and for each topology of the history [partitions,
        ranks, batch, steps made, bucket_steps], and its size if it has one."""
        return {
            "version": VERSION,
            **asdict(self.schedule.identity),
            "epoch": self.position.epoch,
            "first": self.position.first,
            "size": self.position.size,
            "segments": [_numbers(run) for run in self.position.history],
        }

    def where(self) -> str:
        """The cursor in words, for messages."""
        steps = self.position.history[-1].steps if self.position.history else 0
        return f"in epoch {self.epoch_number} behind batch {steps}, at {self.state()}"


def _check_parts(state: Mapping[str, Any], parts: int) -> None:
    """Raises InputError if the state is of one dataset and the loader streams a `Mix`, or vice versa."""
    theirs = state.get("parts", parts)
    if is_integer(theirs) and theirs != parts:
        belongs, streams = ("one dataset" if count == 1 else f"a Mix of {count}" for count in (theirs, parts))
        raise InputError(
            f"the state belongs to a run over {belongs}, and this loader streams {streams}: make the loader the same, "
            "or leave the state out"
        )


def position_from(state: Mapping[str, Any], identity: Identity, about: Mapping[str, Any] | None = None) -> Position:
    """The position in a state. Raises InputError as `RunSchedule.resume` does, and if the state has another version.

    Args:
        state, identity: the state, and what it must belong to.
        about: the arguments of this run, as in a state's `run`; an error then says which of them differ.
    """
    if not is_integer(version := state.get("version")):
        raise InputError(DAMAGED)
    if version != VERSION:
        raise InputError(f"the state is of version {version}, this library knows {VERSION}")
    for name, meaning in BELONGS_TO.items():
        if not isinstance(theirs := state.get(name), str) or theirs != getattr(identity, name):
            differ = _differences(name, state.get("run"), about)
            raise InputError(
                f"the state belongs to a run with {meaning}{differ}: make the loader the same, or leave it out"
            )
    try:
        epoch, first, size = (_count(state[name]) for name in ("epoch", "first", "size"))
        history = topology_runs(state["segments"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(DAMAGED) from error
    return Position(epoch, first, size, history)


def _differences(name: str, theirs: object, ours: Mapping[str, Any] | None) -> str:
    """The arguments of a member of the identity that differ, for an error; "" if it is not known which."""
    if not isinstance(theirs, Mapping) or ours is None:
        return ""
    pairs = [(word, theirs.get(key), ours.get(key)) for key, word in _ARGUMENTS[name].items()]
    said = [f"{word} {shown(there)}, here {shown(here)}" for word, there, here in pairs if there != here]
    return f" ({'; '.join(said)})" if said else ""


def _is_plausible(position: Position, plan: Plan) -> bool:
    """Whether a run of this plan can reach a position. Replaying an impossible one could take for ever."""
    history = position.history
    sizes = [position.size if run.size is None else run.size for run in history]
    if plan.steps is None and ({position.size, *sizes}, position.first) != ({plan.size}, position.epoch * plan.size):
        return False
    return (
        # Earlier epochs may have had other sizes, with `steps_per_epoch` on other ranks; but every step has a sample.
        position.epoch * (plan.steps or 0) <= position.first <= position.epoch * _LARGER * plan.size
        and max([position.size, position.consumed, *sizes]) <= _LARGER * max(plan.size, plan.topology.share)
        and len(history) <= _RUNS
        and sum(run.topology.partitions for run in history) <= _PARTITIONS
        and (plan.local or all(run.topology.partitions == 1 for run in history))
        and all((run.steps - 1) * run.topology.share <= size for run, size in zip(history, sizes, strict=True))
    )


DAMAGED: Final = "the state is damaged: give what state_dict() returned, unchanged"
_LARGER: Final = 1 << 12
"""With `steps_per_epoch`, a state's epochs may have at most this multiple of the plan's samples, as on a larger
cluster."""
_RUNS: Final = 1000
_PARTITIONS: Final = 1 << 17
"""Most topologies of an epoch, and most partitions of all topologies: resuming takes time proportional to both."""


def position_numbers(position: Position) -> list[Any]:
    """A position as JSON: epoch, first, size, and the topologies of its history as in a state."""
    return [position.epoch, position.first, position.size, [*map(_numbers, position.history)]]


def topology_runs(numbers: Any) -> tuple[TopologyRun, ...]:
    """The topologies of a position's history, as in a state. Raises TypeError or ValueError if they are damaged."""
    return tuple(_topology_run(*run) for run in numbers)


def _numbers(run: TopologyRun) -> list[int]:
    topology = run.topology
    size = [] if run.size is None else [run.size]
    return [topology.partitions, topology.ranks, topology.batch, run.steps, topology.bucket_steps, *size]


def _topology_run(
    partitions: object, ranks: object, batch: object, steps: object, bucket_steps: object, size: object = None
) -> TopologyRun:
    topology = Topology(_count(partitions, 1), _count(ranks, 1), _count(batch, 1), _count(bucket_steps))
    return TopologyRun(topology, _count(steps), None if size is None else _count(size, 1))


def _count(value: object, least: int = 0) -> int:
    return integer(value, "a count", least=least, most=(1 << 62) - 1)


def digest(value: object) -> str:
    """Hash of an option's text. The addresses of a user's sampler or function differ between processes: left out."""
    return hashlib.sha256(_ADDRESS.sub("", repr(value)).encode()).hexdigest()[:16]


def clips_digest(checksums: Sequence[str], arrays: Iterable[npt.NDArray[Any]]) -> str:
    """Hash of the shards' checksums, in order, and of arrays of selected sample ids and weights."""
    content = hashlib.sha256("\n".join(checksums).encode())
    for array in arrays:
        content.update(np.ascontiguousarray(array).data)
    return content.hexdigest()[:16]
