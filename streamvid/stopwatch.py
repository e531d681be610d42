"""Time that a thread or process had for its work, for deadlines that hold on a busy machine, too."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

TICK_S: Final = 0.5
"""Seconds between two looks at whether a call is stuck."""
_LONGEST_TICK_S: Final = 5.0
"""Seconds that count at most from one look to the next: in a longer time this process was stopped, or did not run."""


class Stopwatch:
    """Seconds that a thread or process had for its work.

    Those in which the kernel kept it waiting for a core do not count (run queue delay in ``/proc/…/schedstat``, where
    there is one), nor those in which the process that looks at the watch was stopped itself.

    Args:
        task: what works, in ``/proc``: ``"1234"``, or ``"self/task/1234"`` for a thread.
    """

    def __init__(self, task: str) -> None:
        self._schedstat = Path("/proc", task, "schedstat")
        self._last, self._passed, self._waited = time.monotonic(), 0.0, 0.0
        self._waited = self._run_queue_delay()

    def seconds(self) -> float:
        """Seconds since the watch was made; to be called every `TICK_S`."""
        now = time.monotonic()
        self._passed += min(now - self._last, _LONGEST_TICK_S)
        self._last = now
        return self._passed - (self._run_queue_delay() - self._waited)

    def _run_queue_delay(self) -> float:
        try:
            return int(self._schedstat.read_bytes().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return self._waited
