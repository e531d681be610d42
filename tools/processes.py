"""What processes have used, by Linux's /proc (proc(5)). Nothing of one that has ended."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def with_children(pid: int) -> Iterator[int]:
    """A process, its children, and theirs."""
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from with_children(int(child))


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
