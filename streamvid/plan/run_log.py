"""The log of a run's steps, small enough for its state. From log and plan follow the steps in which a clip was seen.

A run consists of legs: consecutive steps in one topology and of one revision. A leg has the position at which it began,
from which the plan can be replayed; equal legs of consecutive epochs are one entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, Final

from streamvid.checks import is_integer, plain
from streamvid.errors import InputError
from streamvid.plan.checkpoint import DAMAGED, position_numbers, topology_runs
from streamvid.plan.epoch import Topology
from streamvid.plan.epoch_plan import Position

_MOST: Final = 10_000
"""Most legs of a run, half a MB of a state. Epochs that are left after any number of steps, or named anew each time,
are a leg each."""


@dataclass(frozen=True)
class Leg:
    """Consecutive steps of a run.

    Attributes:
        start: the position at which it began; for `epochs` > 1, the beginning of the first of these epochs.
        topology: the topology of the steps.
        steps: number of steps, in each of the epochs.
        revisions: the revision of each dataset.
        shards: number of their shards that took part: fewer than all in an epoch that began before an append.
        epochs: number of consecutive epochs with equal steps.
    """

    start: Position
    topology: Topology
    steps: int
    revisions: tuple[int, ...]
    shards: int
    epochs: int = 1

    def at(self, epoch: int) -> Position:
        """The beginning of its epoch number `epoch`, counted from 0."""
        return replace(self.start, epoch=self.start.epoch + epoch, first=self.start.first + epoch * self.start.size)

    def joined(self, following: Leg) -> Leg | None:
        """One leg for this and the next one, if that made the same steps in the following epoch; None otherwise."""
        whole = not self.start.history and following.epochs == 1 and following.start == self.at(self.epochs)
        alike = replace(following, start=self.start, epochs=self.epochs) == self
        return replace(self, epochs=self.epochs + 1) if whole and alike else None


class RunLog:
    """The legs of a run.

    Args:
        about: the plan's arguments as JSON: see `streamvid.loader.run_about.run_about`.
    """

    def __init__(self, about: Mapping[str, Any], revisions: Sequence[int]) -> None:
        self.about, self._revisions = about, tuple(revisions)
        self.legs: tuple[Leg, ...] = ()
        self._dropped = 0  # number of steps of dropped legs, before the first leg
        self._end: Position | None = None
        """Where the last leg ended."""

    def add(self, before: Position, after: Position, topology: Topology, shards: int) -> None:
        """Add a step."""
        last = self.legs[-1] if self.legs else None
        goes_on = last is not None and before.history and before == self._end
        if last is not None and goes_on and (last.topology, last.revisions) == (topology, self._revisions):
            self.legs = (*self.legs[:-1], replace(last, steps=last.steps + 1))
        else:
            joined = self.legs[-2].joined(self.legs[-1]) if len(self.legs) > 1 else None
            done = self.legs if joined is None else (*self.legs[:-2], joined)
            if len(done) >= _MOST:  # drop the older half, up to the beginning of an epoch if there is one
                kept = next((n for n in range(_MOST // 2, len(done)) if not done[n].start.history), _MOST // 2)
                self._dropped += sum(leg.steps * leg.epochs for leg in done[:kept])
                done = done[kept:]
            self.legs = (*done, Leg(before, topology, 1, self._revisions, shards))
        self._end = after

    def state(self) -> dict[str, Any]:
        """The log for a state: `run`, the plan's arguments; `legs`; and `steps_before_legs`, if legs were dropped."""
        before = {"steps_before_legs": self._dropped} if self._dropped else {}
        legs = [
            [position_numbers(leg.start), *astuple(leg.topology), leg.steps, [*leg.revisions], leg.shards, leg.epochs]
            for leg in self.legs
        ]
        return {"run": dict(self.about), "revisions": [*self._revisions], "legs": legs, **before}

    def load(self, state: Mapping[str, Any], position: Position) -> None:
        """Continue from a state at a position. Of a state without legs, the steps before that position are unknown."""
        self.legs, self._dropped = legs_of(state), steps_before_legs(state)
        self._end = position if position.history else None


def legs_of(state: Mapping[str, Any]) -> tuple[Leg, ...]:
    """The legs in a state. Raises InputError if they are damaged."""
    legs = state.get("legs", [])
    try:
        if not isinstance(legs, list) or len(legs) > _MOST:
            raise ValueError
        return tuple(_leg(*plain(leg)) for leg in legs)
    except (TypeError, ValueError, InputError) as error:
        raise InputError(DAMAGED) from error


def steps_before_legs(state: Mapping[str, Any]) -> int:
    """Number of a run's steps before the first leg in its state. Raises InputError if the number is damaged."""
    steps = state.get("steps_before_legs", 0)
    if not is_integer(steps) or not 0 <= steps < 1 << 62:
        raise InputError(DAMAGED)
    return int(steps)


def _leg(start: Any, *numbers: Any) -> Leg:
    partitions, ranks, batch, bucket, steps, revisions, shards, epochs = numbers
    epoch, first, size, history = start
    counts = (partitions, ranks, batch, bucket, steps, shards, epochs, epoch, first, size, *revisions)
    if not all(is_integer(count) and 0 <= count < 1 << 62 for count in counts) or min(counts[:3]) < 1:
        raise ValueError
    position = Position(epoch, first, size, topology_runs(history))
    return Leg(position, Topology(partitions, ranks, batch, bucket), steps, tuple(revisions), shards, epochs)
