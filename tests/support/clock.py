"""A clock that moves when somebody sleeps, and waiting by a real one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from streamvid.storage.retry import Retry


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


def soon(condition: Callable[[], object], seconds: float = 30.0) -> bool:
    """Wait for a condition. Returns whether it was met in time."""
    until = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return bool(met)
