"""Cores, memory, files and threads that this process may use: what the machine has, within the limits that containers,
batch systems and shells set; and the errors of its disks."""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from streamvid.errors import StreamvidError

_ROOT: Final = Path("/")
TMPDIR_TOO_LONG: Final = (
    "the path of the temporary folder is too long for the sockets of worker processes: set TMPDIR to a folder with a "
    "path of 75 bytes at most"
)

BROKEN_ERRNOS: Final = {
    errno.EIO, errno.EAGAIN, errno.EBUSY, errno.EREMOTEIO, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ESTALE,
    errno.EHOSTDOWN, errno.ECONNABORTED, errno.ECONNRESET, errno.ETIMEDOUT, errno.ENOTCONN,  # the last: by a dead FUSE
}  # fmt: skip
"""Errors of a mounted storage that does not answer; EIO also of a disk."""


def usable_cores() -> int:
    """Number of CPU cores for this process, at least 1: the size of its CPU affinity, or less if a control group limits
    its CPU time, as `docker --cpus` and Kubernetes' limits do. The kernel would suspend more threads than that most of
    the time."""
    return min([len(os.sched_getaffinity(0)), *_cores_by_time()])


def shared_cores() -> int:
    """Number of CPU cores for this process and those beside it: the machine's, or fewer if a control group limits their
    CPU time."""
    return min([os.cpu_count() or 1, *_cores_by_time()])


def _cores_by_time() -> list[int]:
    limits = []
    for folder in _control_groups("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            quota, period, *_ = [*_numbers(folder, names), 0, 0]
            if quota > 0 and period > 0:
                limits.append(math.ceil(quota / period))
    return limits


def usable_memory() -> int:
    """Bytes of memory for this process and other processes under the same limit: the machine's memory, or less if a
    control group limits it. The kernel kills processes that use more."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder in _control_groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += _numbers(folder, (name,))
    return min(limits)


def limit_met(error: BaseException) -> str | None:
    """A message that names the limit of this process or machine that caused an error, and how to raise it; None for all
    other errors. The file that was being opened is not to blame then."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"this process has all files open that it may, {soft}: raise the limit by `ulimit -n` (up to {hard})"
    if number == errno.ENFILE:
        return "all files are open that this machine may open: raise fs.file-max by `sysctl`"
    if number == errno.EFBIG:
        return "a file would be longer than this process may write: raise the limit by `ulimit -f`"
    if isinstance(error, OSError) and str(error) == "AF_UNIX path too long":
        return TMPDIR_TOO_LONG
    no_lock = isinstance(error, RuntimeError) and "can't allocate" in str(error)  # a lock of threading, of a file
    no_library = isinstance(error, ImportError) and "failed to map segment from shared object" in str(error)
    if number == errno.ENOMEM or no_lock or no_library or isinstance(error, MemoryError):
        told = str(error).strip().rpartition("\n")[2]  # NumPy's comes behind a page of advice
        return (
            f"there is no memory left for this process ({told}): raise its limits (`ulimit -v`, the container's), or "
            "use a smaller batch_size, or fewer num_threads and num_workers"
        )
    # Python's words, and the system's, as DALI passes them on.
    unstarted = "can't start new thread", "Resource temporarily unavailable"
    no_thread = (isinstance(error, RuntimeError) and any(words in str(error) for words in unstarted)) or (
        type(error).__name__ == "ArrowException" and "Failed to launch worker thread" in str(error)
    )
    if no_thread or isinstance(error, BlockingIOError):  # of pthread_create, of fork
        return (
            "no further thread or process can be started: raise the limits of processes (`ulimit -u`, pids.max of the "
            "container) and of address space (`ulimit -v`), or use fewer by num_threads and num_workers (--workers)"
        )
    return None


def memory_is_short() -> bool:
    """Whether this process can get no further 256 MiB. Then an error of FFmpeg says nothing about a file; else a lack
    of memory that it reports is the file's doing, which may make it ask for any amount."""
    try:
        mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE).close()
    except OSError:
        return True
    return False


@contextlib.contextmanager
def limits_named() -> Iterator[None]:
    """A context in which an error that is due to a limit becomes a StreamvidError that names the limit and the
    remedy."""
    try:
        yield
    except Exception as error:
        if (limit := limit_met(error)) is None:
            raise
        raise StreamvidError(limit) from error


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
        yield from (tree / folder for folder in (group, *group.parents))


def _numbers(folder: Path, names: tuple[str, ...]) -> list[int]:
    """The numbers in a control group's files; [] if there is no such file or limit ("max", -1)."""
    try:
        words = " ".join((folder / name).read_text(encoding="ascii") for name in names).split()
        return [] if words[0] in ("max", "-1") else [int(word) for word in words]
    except (OSError, ValueError, IndexError):
        return []
