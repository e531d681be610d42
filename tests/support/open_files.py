"""The open files of this process: by name, as garbage of other tests is collected at any time."""

from __future__ import annotations

import os
from contextlib import suppress


def open_files() -> set[str]:
    """Paths, and names of pipes, sockets and memory."""
    names = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            names.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return names
