"""Cores and memory within the limits of control groups, in trees as kernels and container runtimes show them."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pyarrow as pa
import pytest

from streamvid import host

MACHINE = host.usable_memory()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file system with no control group yet, on a machine of 8 cores."""
    monkeypatch.setattr(host, "_ROOT", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    return tmp_path


def lay(root: Path, own: str, files: dict[str, str]) -> None:
    for name, text in {
        "proc/self/cgroup": own,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")


@pytest.mark.parametrize(
    ("own", "files", "cores", "memory"),
    [
        ("0::/", {"cpu.max": "max 100000", "memory.max": "max"}, 8, None),
        ("0::/", {"cpu.max": "250000 100000", "memory.max": "1048576"}, 3, 1 << 20),  # a container
        ("0::/", {"cpu.max": "1000 100000"}, 1, None),
        ("0::/", {"cpu.max": "9900000 100000", "memory.max": str(1 << 62)}, 8, None),  # above the machine's
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000", "a/b/memory.max": "4096"}, 2, 4096),
        ("0::/../../a", {"cpu.max": "200000 100000", "memory.max": "4096"}, 2, 4096),  # outside of the mount
        (
            "9:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n0::/",  # version 1; a container's own group is the root
            {"memory/memory.limit_in_bytes": "4096", "cpu/cpu.cfs_quota_us": "400000",
             "cpu/cpu.cfs_period_us": "100000"},
            4, 4096,
        ),
        (
            "9:memory:/\n4:cpu:/batch",
            {"memory/memory.limit_in_bytes": "9223372036854771712", "cpu/batch/cpu.cfs_quota_us": "-1",
             "cpu/batch/cpu.cfs_period_us": "100000"},
            8, None,
        ),
        ("4:cpuset:/x", {"cpuset/cpu.max": "100000 100000"}, 8, None),
        ("0::/", {"cpu.max": "broken", "memory.max": ""}, 8, None),
    ],
)  # fmt: skip
def test_the_least_limit_counts(root: Path, own: str, files: dict[str, str], cores: int, memory: int | None) -> None:
    lay(root, own, files)
    assert host.usable_cores() == cores
    assert host.usable_memory() == (memory or MACHINE)


def test_a_machine_without_control_groups(root: Path) -> None:
    assert not list(root.iterdir())
    assert host.usable_cores() == 8
    assert host.usable_memory() == MACHINE


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, ""), RuntimeError("can't allocate read lock")])
def test_a_lack_of_memory_is_named(error: Exception) -> None:
    """Python says of its locks in words of their own that there is no memory."""
    assert "there is no memory left for this process" in str(host.limit_met(error))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("can't start new thread"),
        RuntimeError(
            "Critical error when building pipeline:\n…\nResource temporarily unavailable\nCurrent pipeline object"
        ),
        pa.ArrowException("Unknown error: Failed to launch worker thread: Resource temporarily unavailable"),
        BlockingIOError(errno.EAGAIN, ""),
    ],
)
def test_a_lack_of_threads_is_named(error: Exception) -> None:
    assert "no further thread or process can be started" in str(host.limit_met(error))


def test_a_folder_too_long_for_sockets_is_named() -> None:
    with socket.socket(socket.AF_UNIX) as bound, pytest.raises(OSError, match="too long") as error:
        bound.bind("/tmp/" + "x" * 108)
    assert "set TMPDIR" in str(host.limit_met(error.value))
