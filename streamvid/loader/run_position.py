"""The position of a loader's run: within the loop, after it, or set by a state or `set_epoch`."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from streamvid.errors import ClipError, VideoError
from streamvid.host import limits_named

log = logging.getLogger(__name__)

Batch = TypeVar("Batch")


class Position(Protocol):
    """A place in a run."""

    @property
    def epoch_number(self) -> int:
        """Number of the position's epoch."""

    def where(self) -> str:
        """The position in words and numbers, for messages."""


P = TypeVar("P", bound=Position)


@dataclass(frozen=True)
class Delivery(Generic[Batch, P]):
    """A batch for the loop, and the run's position after it.

    Attributes:
        batch: the batch.
        position: the position after the batch.
        following: the beginning of the next epoch.
        last: whether it is the last batch of its epoch.
    """

    batch: Batch
    position: P
    following: P
    last: bool


class RunPosition(Generic[P]):
    """The position of a run, and the rules by which it advances.

    An epoch begins with its first batch, not with `iter()`, which frameworks call without iterating. It is over when
    the loop ends, also by `break`: then the next iteration is the next epoch, in this run and in a resumed one. But a
    state saved within the loop, or while an exception that left the loop is handled, resumes the epoch. So does the
    next iteration after an error of the loader itself, such as its storage's. After that of a bad clip, which would
    come again, the next iteration is the next epoch.
    """

    def __init__(self, start: P) -> None:
        self.next = start
        """Where the next iteration begins."""
        self._now: P | None = None
        """Behind the last batch of the iteration under way; None if there is none, or `put` was called since."""
        self._left: P | None = None
        """Where the loop was left, if that was before the epoch's end and nothing has been done since."""
        self._iteration: object = None
        """Which iteration is under way: the one that began last."""
        self._restored = False
        """Whether a state was loaded, and no iteration has begun since."""
        self.goes_on = False
        """Whether the next iteration goes on behind the last batch of one that an error ended."""

    def put(self, position: P, *, restored: bool = False) -> None:
        """Make the next iteration begin at a position. If a running iteration goes on nevertheless, states are of that
        one again, unless the position was restored from a state."""
        if self._restored and not restored and position.epoch_number != self.next.epoch_number:
            log.warning(
                "set_epoch(%d) sets the loaded state aside, which goes on in epoch %d: begin the loop over epochs with "
                "loader.epoch", position.epoch_number, self.next.epoch_number,
            )  # fmt: skip
            self._restored = False
        self.next, self._now, self._left, self.goes_on = position, None, None, False
        if restored:
            self._iteration, self._restored = None, True

    @property
    def fresh(self) -> bool:
        """Whether no iteration has begun, and no state was loaded."""
        return self._iteration is None and not self._restored

    def where(self) -> str:
        """The position for a message."""
        return (self._left or self._now or self.next).where()

    def to_save(self) -> P:
        """The position for a state."""
        if self._left is not None:
            if sys.exc_info()[0] is not None:
                return self._left
            log.warning(
                "epoch %d was left before its end, so this state begins epoch %d; one saved within the loop goes on "
                "with the rest", self._left.epoch_number, self.next.epoch_number,
            )  # fmt: skip
            self._left = None
        return self._now or self.next

    def follow(self, deliveries: Generator[Delivery[Batch, P], None, None]) -> Iterator[Batch]:
        """The batches of an iteration, each with its effect on the run. Closes the generator; where the loop has taken
        all batches and asks for no more, as Lightning's and Trainer's, runs it to its end, so that stages are kept for
        the next epoch."""
        this, begun, last = object(), False, None
        getpid, process, ends = os.getpid, os.getpid(), sys.is_finalizing  # module globals may be gone at exit
        try:
            with limits_named():
                for delivery in deliveries:
                    if not begun:
                        begun, self._iteration, self.next = True, this, delivery.following
                        self._restored = self.goes_on = False
                    if self._iteration is this:  # not if another iteration has begun, or a state was loaded
                        self._now, self._left, last = delivery.position, None, delivery
                    yield delivery.batch
        except GeneratorExit:
            if last is not None and last.last and not ends() and getpid() == process:
                with contextlib.suppress(Exception):
                    next(deliveries, None)
            if last is not None and self._now is last.position:
                self._now, self._left = None, None if last.last else last.position
            raise
        except Exception as error:
            of_clip = isinstance(error, VideoError | ClipError)  # which would come again
            if last is not None and self._now is last.position and not last.last and not of_clip:
                self.next, self._now, self.goes_on = last.position, None, True
            raise
        finally:
            deliveries.close()
        if last is not None and self._now is last.position:
            self._now = None
