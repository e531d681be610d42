"""Keeps threads of decoding off CPU cores that are busy with the GPU's interrupts.

The GPU interrupts about once per picture, to wake a decode session that sleeps in the driver, always on the same core:
30,000 times a second for small frames. On an H200 a session's thread that came to run on that core took five times as
long for everything, its engine stood still, and the kernel left it there (docs/performance.md).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final

_BUSY: Final = 10_000.0
"""Interrupts per second from which threads leave a core."""
_EVERY_S: Final = 1.0
_MARK: Final = "streamvid"


def mark_thread() -> None:
    """Name the calling thread, for the kernel, as one that `GpuInterrupts.avoid` moves. Threads that it starts, also
    those of native decode sessions, inherit the name."""
    with suppress(OSError):
        Path("/proc/thread-self/comm").write_text(_MARK, encoding="ascii")


class GpuInterrupts:
    """The interrupts of this machine's NVIDIA GPUs, by core. Not thread-safe.

    Args:
        root: of the file system with the kernel's counts (Documentation/ABI/testing/sysfs-kernel-irq). Without them, or
            without a GPU, nothing is done.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        folders = [path.parent for path in root.glob("sys/kernel/irq/*/actions") if "nvidia" in _words(path)]
        self._counts = [folder / "per_cpu_count" for folder in folders]
        self._last, self._then = self._total(), monotonic()

    def avoid(self) -> None:
        """Keep marked threads off cores that were busy since the last call, if that leaves them three quarters of the
        process' cores. Counts once a second at most, however often it is called."""
        if not self._counts or (seconds := monotonic() - self._then) < _EVERY_S:
            return
        before, self._last, self._then = self._last, self._total(), monotonic()
        counted = zip(before, self._last, strict=False)
        busy = {core for core, (old, new) in enumerate(counted) if new - old >= _BUSY * seconds}
        usable = os.sched_getaffinity(os.getpid())
        if busy & usable and 4 * len(usable - busy) >= 3 * len(usable):
            _move(_marked_threads(), usable - busy)

    def _total(self) -> list[int]:
        """Interrupts since the machine started, by core."""
        return [sum(column) for column in zip(*(map(int, _words(path)) for path in self._counts), strict=False)]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").strip().split(",")
    except OSError:  # the interrupt is gone
        return []


def _marked_threads() -> list[int]:
    found = []
    for task in Path("/proc/self/task").glob("*"):
        with suppress(OSError):
            if (task / "comm").read_text(encoding="utf-8", errors="replace").startswith(_MARK):
                found.append(int(task.name))
    return found


def _move(threads: Iterable[int], cores: set[int]) -> None:
    for thread in threads:
        with suppress(OSError):  # it has ended
            if os.sched_getaffinity(thread) != cores:
                os.sched_setaffinity(thread, cores)
