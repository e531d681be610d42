"""Tasks, processes and a clock. One task runs at a time; which one is next, and when, follows from the seed alone.

Every task has a thread of the operating system, since the product's code is ordinary code that waits in the middle of
functions. But only the thread that holds the baton runs: it hands it on when it waits, and at some of its calls to the
disk, the storage or the clock. Time moves only when all tasks wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import random
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import IO, ClassVar

BEGIN = 4_102_444_800.0
"""The year 2100: the kernel leaves times of access alone that are later than its own clock."""
_MOST_SWITCHES = 200_000
"""Four times as many as the longest of 400 lives takes."""


class Killed(BaseException):
    """The process of this task is dead: nothing of it runs any more but Python's own way out of its functions."""


class Failure(AssertionError):  # noqa: N818
    """A promise of the product does not hold in this life."""


class Process:
    """A simulated process: it can be killed, or stopped for a while. `files` are open, so that a kill frees locks."""

    def __init__(self, name: str, node: int = -1) -> None:
        self.name, self.node = name, node
        self.dead, self.stopped_until = False, 0.0
        self.files: list[IO[bytes]] = []
        self.quarantined: frozenset[str] = frozenset()
        """Keys that were in quarantine when it started."""

    def unlock(self) -> None:
        for file in self.files:
            if not file.closed:
                fcntl.flock(file, fcntl.LOCK_UN)


class Worker:
    """A thread of the operating system that runs one task after the other, of one life after the other."""

    idle: ClassVar[list[Worker]] = []

    def __init__(self) -> None:
        self.baton = threading.Lock()
        self.baton.acquire()
        self.work: Callable[[], None] = lambda: None
        self.thread = threading.Thread(target=self._loop, daemon=True, name="simulated")
        self.thread.start()

    def _loop(self) -> None:
        while True:
            self.baton.acquire()
            self.work()


class Task:
    """A thread of a simulated process."""

    def __init__(self, name: str, process: Process, baton: threading.Lock) -> None:
        self.name, self.process, self.owner, self.baton = name, process, process, baton
        self.waits = 0
        """Counts its waits, so that what was to end an earlier one does not end a later one."""
        self.waiting = False
        self.handle: object = None


class Kernel:
    """Runs the tasks of one life.

    Args:
        seed: of all that happens.
        say: is told what happens, for a replay.
    """

    def __init__(self, seed: int, say: Callable[[str], None] | None = None) -> None:
        self.random, self.now, self.digest, self.switches = random.Random(seed), BEGIN, 0, 0
        self.eager = self.random.choice((0.02, 0.1, 0.3))
        """How likely a task is interrupted at a call that does not wait."""
        self.bad: frozenset[str] = frozenset()
        """Keys of clips that do not decode."""
        self._say = say
        self.main = self.current = Task("main", Process("operator"), threading.Lock())
        self.main.baton.acquire()
        self.ident = threading.get_ident()
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Task | Callable[[], None], int]] = []
        self._waiting: dict[object, list[tuple[Task, int]]] = {}
        self._tasks: list[Task] = [self.main]
        self._numbers = 0
        self.error: BaseException | None = None
        self._ending = False

    # What tasks call.

    def point(self, what: str = "") -> None:
        """A call of the system: the process may be dead, or another task may come first."""
        if self.current.process.dead:
            raise Killed
        self.now += 1e-6
        if self.random.random() < self.eager:
            self._ready.append(self.current)
            self._switch()
        if what:
            self.say(what)

    def block(self, seconds: float | None, *keys: object) -> None:
        """Wait for that long, or until one of the keys is woken."""
        me = self.current
        if me.process.dead:
            raise Killed
        me.waits, me.waiting = me.waits + 1, True
        for key in keys:
            self._waiting.setdefault(key, []).append((me, me.waits))
        if seconds is not None:
            self._push(self.now + seconds, me, me.waits)
        self._switch()

    def wake(self, key: object) -> None:
        """End the waiting for a key."""
        for task, wait in self._waiting.pop(key, ()):
            self._resume(task, wait)

    def spawn(self, name: str, process: Process, function: Callable[[], object], handle: object = None) -> Task:
        """Start a task; one that ends by an exception other than Killed ends the life."""
        worker = Worker.idle.pop() if Worker.idle else Worker()
        task = Task(name, process, worker.baton)
        task.handle = handle

        def work() -> None:
            self.ident = threading.get_ident()
            try:
                if not process.dead:
                    function()
            except Killed:
                pass
            except BaseException as error:
                self._fail(error)
            self._tasks.remove(task)
            self.wake(task)
            Worker.idle.append(worker)
            self._next().baton.release()

        worker.work = work
        self._tasks.append(task)
        self._ready.append(task)
        return task

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Call that at a time, between tasks: a fault."""
        self._push(time, action, 0)

    def kill(self, process: Process) -> None:
        """End a process as SIGKILL does: its locks are free at once, and nothing else of it is cleaned up."""
        if not process.dead:
            process.dead = True
            self.say(f"KILL {process.name}")
            process.unlock()
            for task in self._tasks:
                if task.process is process and task.waiting:
                    self._resume(task, task.waits)

    def stop(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT so many seconds later."""
        self.say(f"STOP {process.name} for {seconds:.0f} s")
        process.stopped_until = self.now + seconds

    @contextlib.contextmanager
    def within(self, process: Process) -> Iterator[None]:
        """The current task is a thread of that process for a while."""
        me, before = self.current, self.current.process
        me.process = process
        try:
            yield
        finally:
            me.process = before

    def say(self, what: str) -> None:
        """A line of the trace; equal seeds have equal traces."""
        line = f"{self.now - BEGIN:.6f} {self.current.process.name}/{self.current.name}: {what}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        if self._say is not None:
            self._say(line)

    def settle(self, processes: list[Process]) -> None:
        """Wait until no task of these dead processes is left, and close their files."""
        while any(task.process in processes for task in self._tasks):
            self._ready.append(self.current)
            self._switch()
        for process in processes:
            for file in process.files:
                file.close()
            process.files.clear()

    def end(self) -> None:
        """The life is over: no task but the caller is left."""
        self.error, self._ending, self.switches = None, True, -_MOST_SWITCHES
        while len(self._tasks) > 1:
            for task in self._tasks[1:]:
                self.kill(task.owner)
                self.kill(task.process)
            self._ready.append(self.current)
            self._switch()

    # The scheduler.

    def _push(self, time: float, what: Task | Callable[[], None], wait: int) -> None:
        self._numbers += 1
        heapq.heappush(self._timers, (time, self._numbers, what, wait))

    def _resume(self, task: Task, wait: int) -> None:
        if task.waiting and task.waits == wait:
            task.waiting = False
            self._ready.append(task)

    def _fail(self, error: BaseException) -> None:
        """End the life by an error, which the main task raises."""
        if self.error is None and not self._ending:
            self.error = error
        self._resume(self.main, self.main.waits)

    def _switch(self) -> None:
        me, following = self.current, self._next()
        if following is not me:
            following.baton.release()
            me.baton.acquire()
            self.ident = threading.get_ident()
        if me is self.main and self.error is not None:
            error, self.error = self.error, None
            raise error
        if me.process.dead:
            raise Killed

    def _next(self) -> Task:
        """The task that runs next; moves the clock if all wait."""
        while True:
            self.switches += 1
            if self.switches > _MOST_SWITCHES and self.error is None:
                self._fail(Failure("this life does not end: tasks wait for each other in circles"))
            if self._ready:
                place = int(self.random.random() * len(self._ready))
                self._ready[place], self._ready[-1] = self._ready[-1], self._ready[place]
                task = self._ready.pop()
                if not task.process.dead and task.process.stopped_until > self.now:
                    task.waits, task.waiting = task.waits + 1, True
                    self._push(task.process.stopped_until, task, task.waits)
                    continue
                self.current = task
                return task
            if not self._timers:
                self._fail(Failure(f"all tasks wait for each other: {[task.name for task in self._tasks]}"))
                continue
            time, _, what, wait = heapq.heappop(self._timers)
            if isinstance(what, Task):
                if what.waiting and what.waits == wait:
                    self.now = max(self.now, time)
                    self._resume(what, wait)
            else:
                self.now, ident = max(self.now, time), self.ident
                self.ident = 0  # a fault is no task: its own calls are the real ones
                try:
                    what()
                except BaseException as error:
                    self._fail(error)
                self.ident = ident


class Current:
    """The life under way in this process of the operating system, if there is one."""

    kernel: ClassVar[Kernel | None] = None

    @classmethod
    def get(cls) -> Kernel | None:
        """The kernel, if the calling thread is one of its tasks."""
        kernel = cls.kernel
        return kernel if kernel is not None and kernel.ident == threading.get_ident() else None


class Event:
    """`threading.Event` between tasks."""

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        kernel = Current.get()
        self._set = True
        if kernel is not None:
            kernel.wake(self)
            kernel.wake(kernel.current.process)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        kernel = Current.get()
        if not self._set and kernel is not None:
            kernel.block(timeout, self)
        return self._set


class Lock:
    """`threading.Lock` between tasks."""

    def __init__(self) -> None:
        self._locked = False

    def acquire(self, *, timeout: float | None = None) -> bool:
        kernel = Current.get()
        if self._locked and kernel is not None:
            kernel.block(timeout, self)
        while self._locked and kernel is not None and timeout is None:
            kernel.block(None, self)
        free, self._locked = not self._locked, True
        return free

    def release(self) -> None:
        kernel = Current.get()
        self._locked = False
        if kernel is not None:
            kernel.wake(self)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """`threading.Condition` between tasks. Its lock is not waited for, as they change hands where one blocks alone."""

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass

    def wait_for(self, predicate: Callable[[], bool]) -> bool:
        kernel = Current.get()
        while not predicate() and kernel is not None:
            kernel.block(None, self)
        return True

    def notify_all(self) -> None:
        if (kernel := Current.get()) is not None:
            kernel.wake(self)


LONG = 900.0
"""Seconds after which a poll comes back. Those of the product come after 0.1 s, to look at an event; here the event
ends them."""
