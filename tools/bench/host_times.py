"""The processor time of a process over some work, by the names of its threads."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Final

_SHOWN: Final = 0.005


class HostTimes:
    """Processor time of threads within a `with`: cores kept busy, on average.

    Attributes:
        cores: by the name of Python's threads without its number; "native" for all others, such as those of decode
            sessions. Threads that have ended are left out.
        busiest: the most of one thread, and the CPU core that it ran on last. If it is always busy and others that do
            the same are not, its core may handle the GPU's interrupts, too.
    """

    def __enter__(self) -> HostTimes:
        self.cores: dict[str, float] = {}
        self.busiest = (0.0, -1)
        self._before, self._began = _seconds(), time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        wall, names = time.perf_counter() - self._began, defaultdict[str, float](float)
        for (name, number), spent in _seconds().items():
            busy = (spent - self._before.get((name, number), 0.0)) / wall
            names[name.rstrip("0123456789-_ ")] += busy
            if busy > self.busiest[0]:
                self.busiest = busy, _last_core(number)
        self.cores = dict(sorted(names.items(), key=lambda one: -one[1]))

    def __str__(self) -> str:
        shown = {name.removeprefix("streamvid-"): cores for name, cores in self.cores.items() if cores >= _SHOWN}
        each = ", ".join(f"{name} {cores:.2f}" for name, cores in shown.items())
        return f"{each}; busiest thread {self.busiest[0]:.2f} on core {self.busiest[1]}" if each else ""


def _seconds() -> dict[tuple[str, int], float]:
    """By name and number of the thread. Linux alone says it."""
    names, found = {thread.native_id: thread.name for thread in threading.enumerate()}, {}
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):  # it has ended
            text, number = (task / "schedstat").read_text(encoding="utf-8"), int(task.name)
            found[names.get(number, "native"), number] = int(text.split()[0]) / 1e9
    return found


def _last_core(thread: int) -> int:
    """`processor` of proc_pid_stat(5); -1 if the thread has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/self/task/{thread}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return int(fields[36])
    return -1
