"""Cores and memory that this process may use: those of the machine, within the limits of its control groups, which
containers and batch systems set."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")


def usable_cores() -> int:
    """Number of CPU cores for this process, at least 1: the size of its CPU affinity, or less if a control group limits
    its CPU time, as `docker --cpus` and Kubernetes' limits do. The kernel would suspend more threads than that most of
    the time."""
    limits = [len(os.sched_getaffinity(0))]
    for folder in _control_groups("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            quota, period, *_ = [*_numbers(folder, names), 0, 0]
            if quota > 0 and period > 0:
                limits.append(math.ceil(quota / period))
    return min(limits)


def usable_memory() -> int:
    """Bytes of memory for this process and other processes under the same limit: the machine's memory, or less if a
    control group limits it. The kernel kills processes that use more."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder in _control_groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += _numbers(folder, (name,))
    return min(limits)


def _control_groups(controller: str) -> Iterator[Path]:
    """The folders of this process' control groups of one controller, and of all groups that they lie in: version 2 has
    one tree for all controllers, version 1 one for each (docs.kernel.org: admin-guide/cgroup-v1, cgroup-v2). In a
    container the path may be the host's, of which only the mounted root is seen."""
    try:
        lines = (_ROOT / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        tree = _ROOT / "sys/fs/cgroup" / (controller if controllers else "")
        group = Path(path.lstrip("/"))
        yield from (tree / one for one in (group, *group.parents))


def _numbers(folder: Path, names: tuple[str, ...]) -> list[int]:
    """The numbers in a control group's files; [] if there is no such file or limit ("max", -1)."""
    try:
        words = " ".join((folder / name).read_text(encoding="ascii") for name in names).split()
        return [] if words[0] in ("max", "-1") else [int(word) for word in words]
    except (OSError, ValueError, IndexError):
        return []
