"""The machines of a life: time, threads, files and locks as the product's modules see them, with faults.

`installed` puts other `os`, `time`, `fcntl`, `threading`, `queue` … into the modules of `streamvid` and of pathlib.
Files are real ones, on /dev/shm, and locks those of the kernel, as they belong to an open file, not to a process. What
is simulated is when each call happens, in which process, what time it is, and what goes wrong.
"""

from __future__ import annotations

import builtins
import concurrent.futures
import contextlib
import errno
import fcntl
import hashlib
import io
import os
import queue
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from tools.simulate.kernel import LONG, Condition, Current, Event, Failure, Kernel, Lock, Task

_PUBLISHED = re.compile(r"[0-9a-f]{64}")


class Disk:
    """The disk of a node's cache: a folder that may be full, or read-only, and that loses what was not synced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.capacity: int | None = None
        self.read_only = False
        self.unsynced: set[int] = set()

    def check_room(self, wanted: int) -> int:
        """How many bytes of so many can be written. Raises OSError if none."""
        if self.capacity is None or not wanted or not self.root.exists():
            return wanted
        used = sum(entry.stat().st_size for entry in os.scandir(self.root))
        if used >= self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return min(wanted, self.capacity - used)

    def lose_power(self) -> None:
        """Empty the blocks that were written and not synced; names and times survive."""
        for entry in os.scandir(self.root) if self.root.exists() else ():
            stat = entry.stat()
            if stat.st_ino in self.unsynced:
                os.truncate(entry.path, 0)
                os.truncate(entry.path, stat.st_size)
                os.utime(entry.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        self.unsynced.clear()


class Disks:
    """All disks, by the folder."""

    def __init__(self) -> None:
        self.by_root: dict[str, Disk] = {}

    def of(self, path: object) -> Disk | None:
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        return next((disk for root, disk in self.by_root.items() if text.startswith(root)), None)

    def of_file(self, descriptor: int) -> Disk | None:
        return self.of(os.readlink(f"/proc/self/fd/{descriptor}")) if self.by_root else None


class Thread:
    """`threading.Thread` as a task."""

    def __init__(
        self, *, target: Callable[..., object], args: tuple[object, ...] = (), name: str, daemon: bool
    ) -> None:
        self._work, self.name, self.daemon = lambda: target(*args), name, daemon
        self._task: Task | None = None
        self._done = False

    def start(self) -> None:
        kernel = _kernel()
        self._task = kernel.spawn(self.name, kernel.current.process, self._run, self)

    @property
    def ident(self) -> int | None:
        return None if self._task is None else id(self._task)

    def _run(self) -> None:
        try:
            self._work()  # type: ignore[no-untyped-call]
        finally:
            self._done = True

    def is_alive(self) -> bool:
        return not self._done

    def join(self, timeout: float | None = None) -> None:
        while not self._done:
            _kernel().block(timeout, self._task)
            if timeout is not None:
                return


class Queue:
    """`queue.Queue`. Where the product polls, an event ends the waiting instead."""

    def __init__(self, depth: int = 0) -> None:
        self._items: deque[Any] = deque()
        self._depth = depth

    def empty(self) -> bool:
        return not self._items

    def put(self, item: object, timeout: float | None = None) -> None:
        if self._depth and len(self._items) >= self._depth:
            self._wait()
        self.put_nowait(item)

    def put_nowait(self, item: object) -> None:
        if self._depth and len(self._items) >= self._depth:
            raise queue.Full
        self._items.append(item)
        _kernel().wake(self)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and block:
            self._wait()
        if not self._items:
            raise queue.Empty
        _kernel().wake(self)
        return self._items.popleft()

    def _wait(self) -> None:
        _kernel().block(LONG, self, _kernel().current.process)


class Pending(concurrent.futures.Future[Any]):
    """`Future` between tasks."""

    def result(self, timeout: float | None = None) -> Any:
        while not self.done():
            _kernel().block(None, self)
        return super().result()


class Pool:
    """`ThreadPoolExecutor`: tasks that end when there is nothing to do."""

    def __init__(self, workers: int, thread_name_prefix: str = "pool") -> None:
        self._most, self._name, self._running = workers, thread_name_prefix, 0
        self._work: deque[tuple[concurrent.futures.Future[Any], Callable[[], object]]] = deque()

    def submit(self, function: Callable[..., object], *args: object) -> concurrent.futures.Future[Any]:
        future = Pending()
        self._work.append((future, lambda: function(*args)))
        if self._running < self._most:
            self._running += 1
            _kernel().spawn(f"{self._name}_{self._running}", _kernel().current.process, self._run)
        return future

    def map(self, function: Callable[[Any], object], items: Iterable[Any]) -> Iterator[Any]:
        begun = [self.submit(function, item) for item in items]
        return (one.result() for one in begun)

    def _run(self) -> None:
        while self._work:
            future, work = self._work.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except Exception as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                _kernel().wake(future)
        self._running -= 1
        _kernel().wake(self)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def shutdown(self, wait: bool = True, cancel_futures: bool = False) -> None:
        while cancel_futures and self._work:
            self._work.popleft()[0].cancel()
        while wait and self._running:
            _kernel().block(None, self)


def _wait(futures: list[concurrent.futures.Future[Any]], timeout: float | None = None) -> SimpleNamespace:
    if not futures[0].done():
        _kernel().block(LONG, futures[0], _kernel().current.process)
    return SimpleNamespace(done=[future for future in futures if future.done()])


def _unsupported(*_: object) -> None:
    raise OSError(errno.EINVAL, "no locks of ranges here")


def _kernel() -> Kernel:
    kernel = Current.get()
    assert kernel is not None
    return kernel


def _copy(module: ModuleType, **others: object) -> ModuleType:
    """A module with other functions where a task calls them; any other thread gets the module's own."""
    copied = ModuleType(module.__name__)
    copied.__dict__.update(module.__dict__)
    for name, other in others.items():
        copied.__dict__[name] = _in_tasks(getattr(module, name), other)
    return copied


def _in_tasks(real: Any, simulated: Any) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        return (real if Current.get() is None else simulated)(*args, **options)

    return call


class System:
    """Calls of the operating system, by tasks."""

    def __init__(self, disks: Disks) -> None:
        self._disks = disks

    def open(self, path: Any, flags: int, *args: int, **options: Any) -> int:
        self._before("open", path, changes=bool(flags & os.O_CREAT))
        if _kernel().random.random() < 0.05:
            _kernel().block(_kernel().random.random())  # a busy disk
        new = bool(flags & os.O_CREAT) and not os.path.exists(path)
        descriptor = _open_unseen(path, flags, *args, **options)
        if new:
            self._stamp(descriptor)
        return descriptor

    def open_file(self, file: Any, *args: Any, **options: Any) -> Any:
        if not isinstance(file, int):  # else a dead process would lose the descriptor
            self._before("open", file)
        opened = builtins.open(file, *args, **{"opener": _open_unseen} | options)  # noqa: SIM115
        _kernel().current.process.files.append(opened)
        return opened

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        disk = self._before("pwrite", descriptor)
        room = len(data) if disk is None else disk.check_room(len(data))
        written = os.pwrite(descriptor, data[:room], offset)
        self._stamp(descriptor)
        if disk is not None:
            disk.unsynced.add(os.fstat(descriptor).st_ino)
        return written

    def truncate(self, file: Any, length: int) -> None:
        self._before("truncate", file)
        os.truncate(file, length)
        self._stamp(file)

    def fsync(self, descriptor: int) -> None:
        disk = self._before("fsync", descriptor)
        if disk is not None:
            disk.unsynced.discard(os.fstat(descriptor).st_ino)

    def utime(self, file: Any, times: Any = None, *, ns: tuple[int, int] | None = None, **options: Any) -> None:
        self._before("utime", file)
        self._stamp(file) if ns is None else os.utime(file, ns=ns)

    def link(self, source: Any, target: Any, **options: Any) -> None:
        self._before("link", target, changes=True)
        os.link(source, target, **options)
        _check_published(target)
        self._before("linked", target)

    def replace(self, source: Any, target: Any, **options: Any) -> None:
        self._before("replace", target, changes=True)
        os.replace(source, target, **options)
        _check_published(target)
        self._before("replaced", target)

    def unlink(self, path: Any, **options: Any) -> None:
        self._before("unlink", path, changes=True)
        os.unlink(path, **options)

    def flock(self, file: Any, how: int) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        while True:
            self._before("flock", descriptor)
            try:
                return fcntl.flock(descriptor, how if how == fcntl.LOCK_UN else how | fcntl.LOCK_NB)
            except BlockingIOError:
                if how & fcntl.LOCK_NB:
                    raise
                _kernel().block(0.5)

    def plain(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            kernel = _kernel()
            kernel.point()
            if name == "preadv" and kernel.random.random() < 0.05:
                kernel.block(kernel.random.random())  # a busy disk
            return real(*args, **options)

        return call

    def _before(self, what: str, file: Any, *, changes: bool = False) -> Disk | None:
        # Not the number of a descriptor, in /proc, which another life would not repeat.
        name = "" if isinstance(file, int) or os.fspath(file).startswith("/proc/") else os.path.basename(file)[:8]
        _kernel().point(name and f"{what} {name}")
        if what in ("flock", "utime", "truncate"):
            return None
        disk = self._disks.of_file(file) if isinstance(file, int) else self._disks.of(file)
        if changes and disk is not None and disk.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return disk

    @staticmethod
    def _stamp(file: Any) -> None:
        now = int(_kernel().now * 1e9)
        os.utime(file, ns=(now, now))


def _open_unseen(path: Any, flags: int, *args: int, **options: Any) -> int:
    """`os.open`, but reading does not set the time of the last access, which would be that of the real clock."""
    return os.open(path, flags | os.O_NOATIME, *args, **options)


def _check_published(path: Any) -> None:
    name = os.path.basename(path)
    if _PUBLISHED.fullmatch(name) and digest_of(path) != name:
        raise Failure(f"{name[:8]} is published, and is not complete")


def digest_of(path: Any) -> str:
    """A file's SHA-256."""
    with builtins.open(path, "rb", opener=_open_unseen) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def installed(disks: Disks) -> Iterator[None]:
    """Let the modules of the product and of pathlib see the simulated machines, where a task calls them."""
    system = System(disks)
    names = ("stat", "fstat", "scandir", "mkdir", "listdir", "access", "preadv")
    changed = {name: getattr(system, name) for name in (
        "open", "pwrite", "truncate", "fsync", "utime", "link", "replace", "unlink",
    )}  # fmt: skip
    opened = _in_tasks(builtins.open, system.open_file)
    others: dict[str, object] = {
        "os": _copy(os, **changed, **{name: system.plain(name) for name in names}),
        "io": _copy(io, open=system.open_file),
        "fcntl": _copy(fcntl, flock=system.flock, fcntl=_unsupported),
        "time": _copy(
            time,
            monotonic=lambda: _kernel().now,
            perf_counter=lambda: _kernel().now,
            time=lambda: _kernel().now,
            time_ns=lambda: int(_kernel().now * 1e9),
            sleep=lambda seconds: _kernel().block(seconds),
        ),
        "threading": _copy(
            threading,
            Condition=Condition,
            Event=Event,
            Lock=Lock,
            Thread=Thread,
            current_thread=lambda: _kernel().current.handle,
        ),
        "queue": _copy(queue, Queue=Queue),
        "ThreadPoolExecutor": _in_tasks(concurrent.futures.ThreadPoolExecutor, Pool),
        "wait": _in_tasks(concurrent.futures.wait, _wait),
    }  # fmt: skip
    with contextlib.ExitStack() as patches:
        for name, module in list(sys.modules.items()):
            if not name.startswith(("streamvid.", "pathlib")) or module is None:
                continue
            for attribute, other in others.items():
                if _is(module.__dict__.get(attribute), attribute):
                    patches.enter_context(mock.patch.object(module, attribute, other))
            if name.startswith("streamvid.storage."):
                patches.enter_context(mock.patch.object(module, "open", opened, create=True))
        yield


def _is(value: object, name: str) -> bool:
    """Whether a module's global is the library's own of that name, not something else that is called so."""
    own = sys.modules.get(name) if isinstance(value, ModuleType) else getattr(concurrent.futures, name, None)
    return value is not None and value is own
