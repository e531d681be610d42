"""Time that a thread or process had for its work, for deadlines that hold on a busy machine, too, and its progress."""

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

    Time in which the kernel kept it waiting for a core does not count (run queue delay in ``/proc/…/schedstat``, where
    that exists), nor time in which the process that reads the stopwatch was suspended itself.

    Args:
        task: the path of the process or thread in ``/proc``: ``"1234"``, or ``"self/task/1234"``.
    """

    def __init__(self, task: str) -> None:
        self._proc = Path("/proc", task)
        self._last, self._passed = time.monotonic(), 0.0
        self._counters = self._begin = self._read((0, 0, 0))
        self._waiting = 0.0
        """Seconds of waiting that the kernel counts only when the task runs again."""

    def seconds(self) -> float:
        """Seconds since the watch was made; to be called every `TICK_S`."""
        now = time.monotonic()
        tick = min(now - self._last, _LONGEST_TICK_S)
        self._last, self._passed = now, self._passed + tick
        before, self._counters = self._counters, self._read(self._counters)
        if self._counters[1] != before[1]:
            self._waiting = 0.0
        elif self._counters == before and self._is_runnable():
            self._waiting += tick
        return self._passed - (self._counters[1] - self._begin[1]) / 1e9 - self._waiting

    def _read(self, default: tuple[int, ...]) -> tuple[int, ...]:
        """Nanoseconds on a core, nanoseconds in the queue for one, and number of time slices: ``schedstat``."""
        try:
            return tuple(map(int, (self._proc / "schedstat").read_bytes().split()[:3]))
        except (OSError, ValueError):
            return default

    def _is_runnable(self) -> bool:
        try:
            return (self._proc / "stat").read_bytes().rpartition(b")")[2].split()[0] == b"R"
        except (OSError, IndexError):
            return False


class Deadline:
    """Two limits of a call: its total seconds, and its seconds without progress.

    Args:
        task: as in `Stopwatch`, which counts the seconds.
        limit_s: most seconds in total.
        silent_s: most seconds without progress.
    """

    def __init__(self, task: str, limit_s: float, silent_s: float) -> None:
        self._watch, self._limit_s, self._silent_s = Stopwatch(task), limit_s, silent_s
        self._mark: object = None
        self._since = 0.0

    def overdue(self, mark: object) -> str | None:
        """Which limit the call has exceeded, if any; to be called every `TICK_S`, with a value that changes when the
        call makes progress."""
        now = self._watch.seconds()
        if mark != self._mark:
            self._mark, self._since = mark, now
        if now > self._limit_s:
            return f"it took more than {self._limit_s:.3g} s"
        return f"it did nothing for {self._silent_s:.3g} s" if now - self._since > self._silent_s else None


def bytes_moved(pid: int) -> int | None:
    """Bytes that a process has read from and written to files and pipes; None on systems without /proc."""
    try:
        with open(f"/proc/{pid}/io") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(("rchar", "wchar")))
    except (OSError, ValueError):
        return None
