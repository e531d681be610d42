"""Threads of decoding leave cores that are busy with the GPU's interrupts, in trees as the kernel shows them."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from streamvid.decode import interrupts
from streamvid.decode.interrupts import GpuInterrupts, mark_thread

CORES = 8


@pytest.fixture
def tasks() -> Iterator[list[int]]:
    """Kernel's numbers of a marked thread, and of one that it started."""
    found: list[int] = []
    begun, stop = threading.Barrier(3), threading.Event()

    def inner() -> None:
        found.append(threading.get_native_id())
        begun.wait()
        stop.wait()

    def outer() -> None:
        mark_thread()
        child = threading.Thread(target=inner, name="of a pool")
        child.start()
        inner()
        child.join()

    thread = threading.Thread(target=outer)
    thread.start()
    begun.wait()
    yield found
    stop.set()
    thread.join()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass."""
    now = [0.0]
    monkeypatch.setattr(interrupts, "monotonic", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def count(root: Path, number: int, actions: str, counts: Sequence[int]) -> None:
    folder = root / "sys/kernel/irq" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "actions").write_text(actions + "\n")
    (folder / "per_cpu_count").write_text(",".join(map(str, counts)) + "\n")


@pytest.mark.parametrize(
    ("usable", "second", "third", "left"),
    [
        (range(CORES), {6: 30_000}, {}, {0, 1, 2, 3, 4, 5, 7}),
        (range(CORES), {6: 15_000}, {6: 15_000, 1: 40_000}, {0, 2, 3, 4, 5, 7}),  # together
        (range(CORES), {6: 15_000}, {1: 15_000}, None),
        (range(CORES), {0: 30_000, 1: 30_000, 2: 30_000}, {}, None),  # more than a quarter
        (range(4), {6: 90_000}, {}, None),  # the process may not use it anyway
        (range(4), {3: 90_000, 6: 90_000}, {}, {0, 1, 2}),
        ((2, 3), {3: 90_000}, {}, None),
    ],
)
def test_marked_threads_leave_busy_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    later: Callable[[float], None],
    tasks: list[int],
    usable: Sequence[int],
    second: dict[int, int],
    third: dict[int, int],
    left: set[int] | None,
) -> None:
    """Within two seconds of a GPU with two interrupts; what was counted before, and other devices, do not count."""
    masks = defaultdict[int, set[int]](lambda: {*usable})  # by thread; earlier tests may have left some
    monkeypatch.setattr("os.sched_getaffinity", masks.__getitem__)
    monkeypatch.setattr("os.sched_setaffinity", masks.__setitem__)
    count(tmp_path, 30, "eth0", [0] * CORES)
    count(tmp_path, 31, "nvidia", [10**6] * CORES)
    count(tmp_path, 32, "nvidia", [0] * CORES)
    watch = GpuInterrupts(tmp_path)
    count(tmp_path, 30, "eth0", [10**6] * CORES)
    count(tmp_path, 31, "nvidia", [10**6 + second.get(core, 0) for core in range(CORES)])
    count(tmp_path, 32, "nvidia", [third.get(core, 0) for core in range(CORES)])
    later(0.5)
    watch.avoid()
    assert [masks[task] for task in tasks] == 2 * [{*usable}]
    later(1.5)
    watch.avoid()
    assert masks[os.getpid()] == {*usable}
    assert [masks[task] for task in tasks] == 2 * [left or {*usable}]


def test_without_a_gpu_nothing_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: Callable[[float], None]
) -> None:
    monkeypatch.delattr("os.sched_setaffinity")
    watch = GpuInterrupts(tmp_path)
    later(5)
    watch.avoid()
    count(tmp_path, 32, "nvidia", [0] * CORES)
    watch = GpuInterrupts(tmp_path)
    (tmp_path / "sys/kernel/irq/32/per_cpu_count").unlink()  # the driver was unloaded
    later(5)
    watch.avoid()
