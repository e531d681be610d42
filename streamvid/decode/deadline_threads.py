"""Threads whose calls have a deadline: a thread that is stuck in native code is abandoned, and another replaces it.

A thread cannot be ended from outside. So these are daemon threads, for which the end of the process does not wait, and
a call must write only to memory of its own, since an abandoned call may wake up later.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from streamvid.stopwatch import TICK_S, Deadline

Tool = TypeVar("Tool")

_AT_EXIT_S: Final = 2.0
"""Seconds that the end of the program waits for the threads, which may be using C++ libraries that clean up then."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call(Generic[Tool]):
    """A call for a thread.

    Attributes:
        function: the function, called with the thread's tool.
        limits: returns, when the call begins, its most seconds in total and without progress
            (`streamvid.stopwatch.Deadline`).
        overdue: makes the error of an overdue call, from the description of the exceeded limit.
        future: gets the result or exception of the function, or the error of `overdue`.
    """

    function: Callable[[Tool], None]
    limits: Callable[[], tuple[float, float]]
    overdue: Callable[[str], Exception]
    future: Future[None]


class DeadlineThreads(Generic[Tool]):
    """Daemon threads that make calls in the order of submission. They end with this object.

    Args:
        count: number of threads.
        name: name of the threads, before a number.
        tool: opens, in each thread, an object that it uses for all its calls.
        progress: returns a value of a tool that changes while a call progresses; called by another thread.
    """

    def __init__(
        self,
        count: int,
        *,
        name: str,
        tool: Callable[[], AbstractContextManager[Tool]],
        progress: Callable[[Tool], object] = lambda tool: None,
    ) -> None:
        self._crew = _Crew(count, name, tool, progress)
        self._finalizer = weakref.finalize(self, self._crew.dismiss)
        self._finalizer.atexit = False  # the crew has its own

    def submit(
        self,
        function: Callable[[Tool], None],
        *,
        limits: Callable[[], tuple[float, float]],
        overdue: Callable[[str], Exception],
    ) -> Future[None]:
        """Make a call in a thread: see `Call`."""
        call = Call(function, limits, overdue, Future())
        self._crew.add(call)
        return call.future

    def close(self) -> None:
        """Drop the calls that have not begun, and wait until the others end or are abandoned."""
        self._finalizer()
        self._crew.join()


class _Crew:
    """The threads and their shared state. They hold no reference to their `DeadlineThreads`."""

    def __init__(
        self,
        count: int,
        name: str,
        tool: Callable[[], AbstractContextManager[Any]],
        progress: Callable[[Any], object],
    ) -> None:
        self._count, self._name, self._tool, self._progress = count, name, tool, progress
        self._pid: Final = os.getpid()
        lock = threading.RLock()
        self._queued, self._ended = threading.Condition(lock), threading.Condition(lock)
        self._calls: deque[Call[Any]] = deque()
        self._threads: set[threading.Thread] = set()
        self._running: dict[threading.Thread, tuple[Call[Any], Deadline]] = {}
        self._tools: dict[threading.Thread, Any] = {}
        self._stuck: set[threading.Thread] = set()
        self._started = 0
        self._watcher: threading.Thread | None = None
        self._dismissed = False
        atexit.register(self.end_at_exit)

    def add(self, call: Call[Any]) -> None:
        with self._queued:
            if self._dismissed:
                raise RuntimeError("these threads were closed")
            self._calls.append(call)
            if len(self._threads) < self._count:
                self._start()
            if self._watcher is None:
                watcher = threading.Thread(target=self._watch, name=f"{self._name}-watch", daemon=True)
                watcher.start()
                self._watcher = watcher
            self._queued.notify()

    def dismiss(self) -> None:
        """Make each thread end after its current call, without waiting."""
        if os.getpid() != self._pid:
            return  # a forked child has none of the threads, one of which may have held the lock
        with self._queued:
            self._dismissed = True
            dropped = list(self._calls)
            self._calls.clear()
            self._queued.notify_all()
            self._ended.notify_all()
            ended = not self._threads
        for call in dropped:
            call.future.cancel()
        if ended:
            atexit.unregister(self.end_at_exit)

    def end_at_exit(self) -> None:
        self.dismiss()
        self.join(_AT_EXIT_S)

    def join(self, timeout: float | None = None) -> None:
        if os.getpid() != self._pid or sys.is_finalizing():
            return  # daemon threads have stopped
        with self._ended:
            threads = list(self._threads)
            self._ended.wait_for(lambda: not self._threads, timeout)
            threads = [thread for thread in threads if thread not in self._stuck]
        for thread in filter(None, (*threads, self._watcher)):
            thread.join(timeout)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}_{self._started}", daemon=True)
        self._started += 1
        thread.start()  # it waits for the lock, which is held here
        self._threads.add(thread)

    def _work(self) -> None:
        me = threading.current_thread()
        try:
            with ExitStack() as stack:
                self._make_calls(me, stack)
        except Exception as error:  # no memory for the lock with which it waits
            self._leave(me)
            self._fail_unmade(error)
        else:
            self._leave(me)

    def _make_calls(self, me: threading.Thread, stack: ExitStack) -> None:
        task, tool = f"self/task/{threading.get_native_id()}", None
        while True:
            with self._queued:
                self._queued.wait_for(lambda: self._calls or self._dismissed)
                if not self._calls or me not in self._threads:
                    return
                call = self._calls.popleft()
            problem: BaseException | None = None
            try:
                running = call, Deadline(task, *call.limits())
                with self._queued:
                    self._running[me] = running
                del running
                if tool is None:
                    self._tools[me] = tool = stack.enter_context(self._tool())
                call.function(tool)
            except BaseException as error:
                problem = error
            with self._queued:
                self._running.pop(me, None)
                if me not in self._threads:
                    return  # the call was abandoned
            if problem is None:
                call.future.set_result(None)
            else:
                call.future.set_exception(problem)
            del call, problem  # they refer to the batch

    def _leave(self, me: threading.Thread) -> None:
        with self._ended:
            self._tools.pop(me, None)
            self._threads.discard(me)
            self._ended.notify_all()
            last = self._dismissed and not self._threads
        if last:
            atexit.unregister(self.end_at_exit)

    def _fail_unmade(self, error: Exception) -> None:
        """Give calls that wait while no thread is left the error that ended the last one, or let it not be replaced."""
        with self._queued:
            calls = [] if self._threads else list(self._calls)
            for _ in calls:
                self._calls.popleft()
        for call in calls:
            call.future.set_exception(error)

    def _watch(self) -> None:
        while True:
            try:
                with self._ended:
                    self._ended.wait(TICK_S)
                    if self._dismissed and not self._threads:
                        return
                self._give_up_overdue()
            except (MemoryError, RuntimeError):  # no memory, also for the lock with which it waits
                time.sleep(TICK_S)

    def _give_up_overdue(self) -> None:
        with self._ended:
            running = list(self._running.items())
        for thread, (call, deadline) in running:
            tool = self._tools.get(thread)
            if (took := deadline.overdue(None if tool is None else self._progress(tool))) is None:
                continue
            error = call.overdue(took)
            with self._ended:
                if self._running.get(thread, (None,))[0] is not call:
                    continue  # the call ended meanwhile
                del self._running[thread]
                self._threads.discard(thread)
                self._stuck.add(thread)
                self._ended.notify_all()
            log.error("%s. Its thread %s is abandoned, and may keep a core busy", error, thread.name)
            call.future.set_exception(error)
            try:
                with self._queued:
                    if not self._dismissed:
                        self._start()
            except (MemoryError, RuntimeError) as no_thread:
                self._fail_unmade(no_thread)
