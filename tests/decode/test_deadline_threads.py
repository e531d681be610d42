"""Threads that are stuck: their call fails, others go on, and neither `close` nor the process waits for them."""

from __future__ import annotations

import gc
import logging
import math
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from streamvid.decode.deadline_threads import DeadlineThreads
from tests.support.clock import soon


@contextmanager
def no_tool() -> Iterator[None]:
    yield


def overdue(took: str) -> Exception:
    return TimeoutError(took)


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_calls_are_made_and_their_errors_are_raised() -> None:
    done: list[int] = []
    threads: DeadlineThreads[None] = DeadlineThreads(3, name="made", tool=no_tool)
    futures = [
        threads.submit(lambda _, n=n: done.append(n // (n - 5)), limits=lambda: (60, math.inf), overdue=overdue)  # type: ignore[misc]
        for n in range(10)
    ]
    for n, future in enumerate(futures):
        if n == 5:
            with pytest.raises(ZeroDivisionError):
                future.result(timeout=120)
        else:
            future.result(timeout=120)
    assert len(done) == 9
    assert len(named("made_")) == 3
    threads.close()
    assert not named("made_")
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(lambda _: None, limits=lambda: (60, math.inf), overdue=overdue)


def test_a_call_that_is_stuck_fails_and_another_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    wakes = threading.Event()
    threads: DeadlineThreads[None] = DeadlineThreads(1, name="stuck", tool=no_tool)
    with caplog.at_level(logging.ERROR):
        stuck = threads.submit(lambda _: bool(wakes.wait()) and None, limits=lambda: (0.5, math.inf), overdue=overdue)
        quick = threads.submit(lambda _: None, limits=lambda: (60, math.inf), overdue=overdue)
        with pytest.raises(TimeoutError, match=r"more than 0\.5 s"):
            stuck.result(timeout=120)
        quick.result(timeout=120)
    assert "more than 0.5 s" in caplog.text
    threads.close()
    assert named("stuck_0")
    assert not named("stuck_1")
    wakes.set()
    assert soon(lambda: not named("stuck"))  # whoever wakes up ends, and does nothing else


def test_a_call_may_take_long_as_long_as_it_goes_on() -> None:
    """And not a tick longer: it need not wait for the limit of all."""

    class Tool:
        done = 0

    @contextmanager
    def tool() -> Iterator[Tool]:
        yield Tool()

    wakes = threading.Event()

    def work(tool: Tool, *, steps: int, stuck: bool) -> None:
        for _ in range(steps):
            tool.done += 1
            time.sleep(0.2)
        if stuck:
            wakes.wait()

    threads: DeadlineThreads[Tool] = DeadlineThreads(2, name="moving", tool=tool, progress=lambda tool: tool.done)
    calls = [
        threads.submit(partial(work, steps=12, stuck=stuck), limits=lambda: (3600, 1.5), overdue=overdue)
        for stuck in (False, True)
    ]
    try:
        calls[0].result(timeout=120)
        with pytest.raises(TimeoutError, match=r"it did nothing for 1\.5 s"):
            calls[1].result(timeout=120)
    finally:
        wakes.set()
        threads.close()


def test_close_waits_for_what_runs_and_drops_what_waits() -> None:
    begun, go = threading.Event(), threading.Event()
    threads: DeadlineThreads[None] = DeadlineThreads(1, name="closed", tool=no_tool)

    def work(_: None) -> None:
        begun.set()
        go.wait()

    running = threads.submit(work, limits=lambda: (60, math.inf), overdue=overdue)
    waiting = threads.submit(work, limits=lambda: (60, math.inf), overdue=overdue)
    begun.wait()
    closing = threading.Thread(target=threads.close)
    closing.start()
    assert soon(waiting.cancelled)
    assert not running.done()
    go.set()
    closing.join(timeout=120)
    assert running.done()


def test_they_end_with_their_owner() -> None:
    opened: list[str] = []

    @contextmanager
    def tool() -> Iterator[str]:
        opened.append("open")
        yield "tool"
        opened.append("closed")

    class Owner:
        def __init__(self) -> None:
            self.threads: DeadlineThreads[str] = DeadlineThreads(2, name="owned", tool=tool)

        def work(self, got: str) -> None:
            assert got == "tool"

    owner = Owner()
    for _ in range(4):
        owner.threads.submit(owner.work, limits=lambda: (60, math.inf), overdue=overdue).result(timeout=120)
    seen = weakref.ref(owner)
    del owner
    gc.collect()
    assert seen() is None
    assert soon(lambda: not named("owned"))
    assert opened.count("open") == opened.count("closed") > 0


def test_a_tool_that_does_not_open_is_the_calls_error() -> None:
    tries: list[int] = []

    @contextmanager
    def tool() -> Iterator[None]:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("no process can be started")
        yield

    threads: DeadlineThreads[None] = DeadlineThreads(1, name="tool", tool=tool)
    with pytest.raises(OSError, match="no process"):
        threads.submit(lambda _: None, limits=lambda: (60, math.inf), overdue=overdue).result(timeout=120)
    threads.submit(lambda _: None, limits=lambda: (60, math.inf), overdue=overdue).result(timeout=120)
    threads.close()


def test_limits_that_fail_are_the_calls_error() -> None:
    """Also in a process that gets no memory for the stopwatch: without it, nobody would make the call, nor end it."""

    def no_limits() -> tuple[float, float]:
        raise MemoryError

    threads: DeadlineThreads[None] = DeadlineThreads(1, name="limits", tool=no_tool)
    with pytest.raises(MemoryError):
        threads.submit(lambda _: None, limits=no_limits, overdue=overdue).result(timeout=120)
    threads.submit(lambda _: None, limits=lambda: (60, math.inf), overdue=overdue).result(timeout=120)
    threads.close()
    assert not named("limits_")


class NoLocks(threading.Condition):
    """A condition in a process that gets no memory for the lock that each wait makes."""

    def wait(self, timeout: float | None = None) -> bool:
        raise RuntimeError("can't allocate lock")


def test_a_thread_that_cannot_wait_ends_and_another_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: DeadlineThreads[None] = DeadlineThreads(1, name="waits", tool=no_tool)
    with monkeypatch.context() as patch:
        patch.setattr(threads._crew._queued, "__class__", NoLocks)
        threads.submit(lambda _: None, limits=lambda: (60, math.inf), overdue=overdue).result(timeout=120)
        assert soon(lambda: not named("waits_"))
    threads.submit(lambda _: None, limits=lambda: (60, math.inf), overdue=overdue).result(timeout=120)
    threads.close()


def test_a_stuck_thread_that_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stuck call fails, and so do those that waited for its thread; the next call starts one."""
    wakes = threading.Event()
    threads: DeadlineThreads[None] = DeadlineThreads(1, name="last", tool=no_tool)

    def no_thread() -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        stuck = threads.submit(lambda _: bool(wakes.wait()) and None, limits=lambda: (0.5, math.inf), overdue=overdue)
        waiting = threads.submit(lambda _: None, limits=lambda: (60, math.inf), overdue=overdue)
        patch.setattr(threads._crew, "_start", no_thread)
        with pytest.raises(TimeoutError):
            stuck.result(timeout=120)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            waiting.result(timeout=120)
    threads.submit(lambda _: None, limits=lambda: (60, math.inf), overdue=overdue).result(timeout=120)
    threads.close()
    wakes.set()


_STUCK_AT_EXIT = """
import ctypes, math
from tests.decode.test_deadline_threads import DeadlineThreads, no_tool, overdue
threads = DeadlineThreads(2, name="exit", tool=no_tool)
one = threads.submit(lambda _: ctypes.CDLL(None).pause(), limits=lambda: (0.5, math.inf), overdue=overdue)
print(type(one.exception()).__name__)
threads.close()
threads = DeadlineThreads(2, name="exit", tool=no_tool)
threads.submit(lambda _: ctypes.CDLL(None).pause(), limits=lambda: (3600, math.inf), overdue=overdue)
"""


def test_the_process_does_not_wait_for_them() -> None:
    """Neither for one that was given up, nor for one whose deadline is far away and whose owner was not closed."""
    done = subprocess.run([sys.executable, "-c", _STUCK_AT_EXIT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "TimeoutError\n"), done.stderr


_DROPPED_AT_EXIT = """
import math, threading, time
from tests.decode.test_deadline_threads import DeadlineThreads, no_tool, overdue
threads, begun = DeadlineThreads(1, name="exit", tool=no_tool), threading.Event()
def work(tool):
    begun.set()
    time.sleep(0.5)
    print("done")
threads.submit(work, limits=lambda: (60, math.inf), overdue=overdue)
begun.wait()
del threads
"""


def test_a_call_whose_owner_was_dropped_ends_before_the_process() -> None:
    """A loader that a function leaves behind is decoding ahead when the program ends."""
    done = subprocess.run([sys.executable, "-c", _DROPPED_AT_EXIT], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_forked_process_closes_what_it_got_without_waiting() -> None:
    go = threading.Event()
    threads: DeadlineThreads[None] = DeadlineThreads(1, name="fork", tool=no_tool)
    threads.submit(lambda _: bool(go.wait()) and None, limits=lambda: (60, math.inf), overdue=overdue)
    child = os.fork()
    if child == 0:
        threads.close()
        os._exit(7)
    assert soon(lambda: os.waitpid(child, os.WNOHANG)[1] == 7 << 8)
    go.set()
    threads.close()
