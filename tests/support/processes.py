"""Which processes there are."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tools import processes


def processes_below(pid: int) -> list[int]:
    """The processes that a process started, and those that these did; without those that have ended."""
    return [one for one in processes.processes_below(pid) if alive(one)]


def command_line(pid: int) -> bytes:
    """The arguments of a process, each followed by a zero byte; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def bytes_written(pid: int) -> int:
    """By a process, to files and pipes; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("wchar:"):
                return int(line.split()[1])
    return 0


def alive(pid: int) -> bool:
    """Whether it has not ended; a zombie has."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
