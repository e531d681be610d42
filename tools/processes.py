"""What processes have used, by Linux's /proc (proc(5)). Nothing of one that has ended."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def processes_below(pid: int) -> list[int]:
    """The processes that a process started, and those that these did; zombies, too."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            for child in map(int, task.read_text().split()):
                found += [child, *processes_below(child)]
    return found


def cpu_seconds(pid: int) -> float:
    """Processor time of a process, in seconds."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had, in bytes: unlike getrusage's figure, without its parent's before the
    exec."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)
    return 0
