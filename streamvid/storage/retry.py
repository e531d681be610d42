"""Repeats requests to a storage that did not answer: the one mechanism for all reads during a run.

The clients' own retries (botocore's, s3fs's) are off for these reads: they count attempts, whereas surviving an outage
needs a limit in time, and messages in the log.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from streamvid.checks import is_real, shown
from streamvid.errors import InputError
from streamvid.storage.explain import AccessRefused, MissingFile, NoCredentials, StorageUnavailable

log = logging.getLogger(__name__)

FIRST_DELAY: Final = 0.25
LONGEST_DELAY: Final = 10.0
"""Seconds before the second attempt, and between later ones, after doubling each time. Both are means."""
REFUSED_SECONDS: Final = 30.0
"""How long refused credentials are tried again, with new ones looked up each time, and files that have gone."""
SAY_SECONDS: Final = 30.0
"""How often the log says what waits."""

_SHORTEST: Final = 1e-6
"""Seconds: less does not move a clock, by rounding."""
LONGEST_ATTEMPT: Final = 60.0
"""Most seconds that an attempt and the wait before it count, so that time in which a process was suspended (SIGSTOP, a
paused machine) does not use up its patience."""

COMMAND_SECONDS: Final = 15.0
"""Seconds for which interactive commands repeat requests: shorter than for runs, because the address may be wrong."""

T = TypeVar("T")
K = TypeVar("K")
Trouble = StorageUnavailable | AccessRefused | MissingFile


@dataclass(frozen=True)
class Retry:
    """For how long, and how, requests are repeated while a storage does not answer. Picklable.

    Attributes:
        seconds: most seconds without any progress, after which the error is raised; 0: no repetition.
        clock: monotonic time in seconds.
        sleep: waits that many seconds; returns a true value to give up.
        retry_missing: whether a missing file is requested again for `REFUSED_SECONDS`, because it is known to have been
            there: a proxy that restarts, a CDN or a bucket that has not heard of it yet may answer 404.
        retry_refused: whether a refused file is requested again for `REFUSED_SECONDS`.
    """

    seconds: float = 600.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    retry_missing: bool = False
    retry_refused: bool = True

    @classmethod
    def of(cls, retry_for: float | Retry) -> Retry:
        """The retry of the user's option, a number of seconds. Raises InputError for other values."""
        if isinstance(retry_for, Retry):
            return retry_for
        if not is_real(retry_for) or retry_for < 0:
            raise InputError(f"retry_for must be a number of seconds, 0 for none; it is {shown(retry_for)}")
        return cls(float(retry_for))

    def until(self, stop: threading.Event) -> Retry:
        """A copy that gives up as soon as the event is set or the main thread has ended."""
        if self.sleep is not time.sleep:
            return self

        def sleep(seconds: float) -> bool:
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0 and threading.main_thread().is_alive():
                if stop.wait(min(left, 1.0)):
                    return True
            return not threading.main_thread().is_alive()

        return replace(self, sleep=sleep)

    def __call__(self, attempt: Callable[[], T]) -> T:
        """Call `attempt`, and again while it raises StorageUnavailable, or, for `REFUSED_SECONDS`, if `retry_refused`,
        AccessRefused or, if `retry_missing`, MissingFile. Returns its result.

        Raises:
            StorageUnavailable, AccessRefused, MissingFile: raised by the last attempt. All other exceptions pass
                immediately.
        """

        def attempts(_: Sequence[None]) -> list[T | Trouble]:
            try:
                return [attempt()]
            except (StorageUnavailable, AccessRefused, MissingFile) as error:
                return [error]

        return self.each([None], attempts)[0]

    def each(self, items: Sequence[K], attempt: Callable[[Sequence[K]], Sequence[T | Trouble]]) -> list[T]:
        """The results of `attempt` for all items. It is called again with the items that failed; the time starts anew
        whenever an item succeeds.

        Args:
            attempt: returns a result or an error for each of the given items.

        Raises:
            StorageUnavailable, AccessRefused, MissingFile: an item failed until the end.
        """
        done: dict[int, T] = {}
        left = list(range(len(items)))
        clock = _counted(self.clock)
        since = said = clock()
        refused_since: float | None = None
        tries, delay = 0, FIRST_DELAY
        while left:
            before = clock()
            errors: dict[int, Trouble] = {}
            for place, outcome in zip(left, attempt([items[place] for place in left]), strict=True):
                if isinstance(outcome, MissingFile) and not self.retry_missing:
                    raise outcome
                if isinstance(outcome, AccessRefused) and not self.retry_refused:
                    raise outcome
                if isinstance(outcome, NoCredentials) and refused_since is None:  # there were none before either
                    raise outcome
                if isinstance(outcome, Trouble):
                    errors[place] = outcome
                else:
                    done[place] = outcome
            if len(errors) < len(left):
                since = said = before
                tries, delay = 0, FIRST_DELAY
            left, tries, now = list(errors), tries + 1, clock()
            if not left:
                break
            error = next(
                (refused for refused in errors.values() if isinstance(refused, AccessRefused)), errors[left[0]]
            )
            what = f"{str(error).rstrip('.')}."
            begin, limit = since, self.seconds
            if not isinstance(error, StorageUnavailable):
                limit = min(limit, REFUSED_SECONDS)
                if refused_since is None:
                    refused_since = before
                    how = ", with credentials looked up again" if isinstance(error, AccessRefused) else ""
                    log.warning("%s It is tried for %.0f s%s.", what, limit, how)
                begin = refused_since
            else:
                refused_since = None
            waited, remaining = now - begin, begin + limit - now
            if remaining <= 0:
                raise _after(error, tries, waited)
            if now - said >= SAY_SECONDS:
                said = now
                log.warning(
                    "%s %d reads wait, for %.0f s until now, for %.0f s at most (retry_for).",
                    what, len(left), waited, limit,
                )  # fmt: skip
            else:
                log.info("%s It is tried again.", what)
            # Jitter, because all processes of a job see an outage at the same time.
            pause = max(_SHORTEST, min(delay * random.uniform(0.5, 1.5), remaining, said + SAY_SECONDS - now))
            delay = min(2 * delay, LONGEST_DELAY)
            if self.sleep(pause):
                raise _after(error, tries, waited)
        return [done[place] for place in range(len(items))]


def _counted(clock: Callable[[], float]) -> Callable[[], float]:
    """A clock that advances by at most `LONGEST_ATTEMPT` between two readings."""
    last = now = clock()

    def look() -> float:
        nonlocal last, now
        now, last = now + min((time := clock()) - last, LONGEST_ATTEMPT), time
        return now

    return look


def _after(error: Trouble, tries: int, waited: float) -> Trouble:
    if tries < 2:
        return error
    told = type(error)(f"{str(error).rstrip('.')}. It was tried {tries} times in {waited:.0f} s.")
    told.path, told.__cause__ = error.path, error.__cause__
    return told
