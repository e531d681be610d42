"""Clocks that move when somebody sleeps, and waiting by a real one."""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from streamvid.storage.retry import Retry

T = TypeVar("T")


class Clock:
    """Seconds that pass only in `sleep`. `waits` has all of them."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []
        self._lock = threading.Lock()

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds
            self.waits.append(seconds)

    def retry(self, seconds: float = 600.0) -> Retry:
        """One whose waiting takes no time."""
        return Retry(seconds, lambda: self.now, self.sleep)


class _Sleepers(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Moves the clock of an event loop where the loop would wait for its next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever wake this event loop"
        self.now += max(timeout, 0.0)
        return []


def run_in_no_time(coroutine: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` for what neither reads files nor has threads: its time passes only where all wait, so that what a
    timer finds does not depend on the machine's load.

    Raises:
        TimeoutError: it has not ended after 50 s of that time.
    """
    sleepers = _Sleepers()

    def loop() -> asyncio.AbstractEventLoop:
        made = asyncio.SelectorEventLoop(sleepers)
        made.time = lambda: sleepers.now  # type: ignore[method-assign]
        return made

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(asyncio.wait_for(coroutine, 50))


def soon(condition: Callable[[], object], seconds: float = 120.0) -> bool:
    """Wait for a condition. Returns whether it was met in time."""
    until = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return bool(met)
