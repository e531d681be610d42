"""Where a run stands, and in what: a plan and a position in it.

Shards that are appended to a dataset come behind those that were there, so the items of before keep their numbers, and
the plan of before can be made again from the longer dataset. A run that was saved within an epoch ends that epoch by
the plan of before, and goes on with the new one: no item comes twice, and none is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from streamvid.errors import InputError
from streamvid.plan.epoch_plan import Epoch, Plan, Position
from streamvid.plan.permutation import Pool
from streamvid.plan.state import Identity, from_state, identify, to_state
from streamvid.sampling.base import FrameSampler


@dataclass(frozen=True)
class RunSchedule:
    """A plan, and what else a position in it depends on.

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

    def after(self, standing: Cursor) -> Cursor:
        """The beginning of the next epoch, which follows this course, whatever the one before followed."""
        if standing.course is self:
            return Cursor(self, self.plan.after(standing.position))
        return self.start(standing.position.epoch + 1)

    def resume(self, state: Mapping[str, Any]) -> Cursor:
        """Where a state stands: within an epoch of this course, or of one over the first of its shards.

        If nothing is left of that epoch, or nothing of it has been made yet, it is the beginning of one of this course.

        Raises:
            InputError: the state belongs to something else, or is none.
        """
        identity = self.identity
        course = self
        shards = state.get("shards") if isinstance(state, Mapping) else None
        if isinstance(shards, int) and 0 < shards < identity.shards and state.get("dataset") != identity.dataset:
            course = self._before(shards, state)
            identity = course.identity
        position = from_state(state, identity)
        if not position.segments:
            return Cursor(self, position) if course is self else self.start(position.epoch)
        standing = Cursor(course, position)
        return standing if standing.epoch().left else self.after(standing)

    @cached_property
    def identity(self) -> Identity:
        """What a state of this course is a state of."""
        return identify(self.checksums, self.plan, self.sampling)

    def _before(self, shards: int, state: Mapping[str, Any]) -> RunSchedule:
        """This course over the first so many shards alone."""
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
        first = Pool(pool.items[:upto], pool.shards[:upto])
        return replace(
            self,
            plan=replace(self.plan, stream=replace(stream, pools=(first,))),
            checksums=self.checksums[:shards],
        )


@dataclass(frozen=True)
class Cursor:
    """A position, and the course that it is one of."""

    course: RunSchedule
    position: Position

    def advanced(self) -> Cursor:
        """After one more step."""
        return Cursor(self.course, self.position.advanced(self.course.plan.layout))

    def epoch(self) -> Epoch:
        """What is left of the epoch."""
        return self.course.plan.epoch(self.position)

    def state(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return to_state(self.position, self.course.identity)
