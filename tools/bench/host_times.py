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
    """Processor time of the threads of Python within a `with`: cores kept busy, on average.

    Attributes:
        cores: by the threads' name without its number; those that have ended are left out.
    """

    def __enter__(self) -> HostTimes:
        self.cores: dict[str, float] = {}
        self._before, self._began = _seconds(), time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        wall, names = time.perf_counter() - self._began, defaultdict[str, float](float)
        for (name, number), spent in _seconds().items():
            names[name.rstrip("0123456789-_ ")] += spent - self._before.get((name, number), 0.0)
        self.cores = {name: spent / wall for name, spent in sorted(names.items(), key=lambda one: -one[1])}

    def __str__(self) -> str:
        shown = {name.removeprefix("streamvid-"): cores for name, cores in self.cores.items() if cores >= _SHOWN}
        return ", ".join(f"{name} {cores:.2f}" for name, cores in shown.items())


def _seconds() -> dict[tuple[str, int | None], float]:
    """By name and number of the thread. Linux alone says it."""
    found = {}
    for thread in threading.enumerate():
        with suppress(OSError):  # it has ended
            text = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text(encoding="utf-8")
            found[thread.name, thread.native_id] = int(text.split()[0]) / 1e9
    return found
