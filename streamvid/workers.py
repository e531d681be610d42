"""A pool of worker processes that may crash: FFmpeg reads untrusted files there.

Unlike in `concurrent.futures.ProcessPoolExecutor`, each worker has its own pipe and one call at a time. So a crash
fails exactly one call, workers end when their parent does, even if it is killed, and scripts need no
``if __name__ == "__main__"``.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO, Final, TypeVar, cast

from streamvid.errors import StreamvidError

T = TypeVar("T")

SILENT_S: Final = 900.0
"""Seconds without any I/O after which a call is considered stuck. A slow disk or encoder takes seconds."""

# The first message to a child is its parent's import path, so that it imports the same modules.
_CHILD = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from streamvid.workers import serve; serve()"


class WorkerCrashError(Exception):
    """The process died during the call; the message is its signal (``SIGSEGV``) or exit status."""


class WorkerStuckError(WorkerCrashError):
    """The process was killed because the call did no I/O or exceeded its time limit; the message says which."""


class Workers:
    """A fixed number of worker processes. A context manager, which kills running workers on exit.

    Args:
        count: number of processes.
        silent_s: seconds without I/O after which a call is considered stuck; see `SILENT_S`.
    """

    def __init__(self, count: int, *, silent_s: float = SILENT_S) -> None:
        self._silent_s = silent_s
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="streamvid-worker")
        self._idle: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        for _ in range(count):
            self._idle.put(None)
        self._lock = threading.Lock()
        self._alive: set[_Process] = set()
        self._closed = False
        self._left = threading.Event()
        self._watch = threading.Thread(target=self._kill_stuck, name="streamvid-watch", daemon=True)
        self._watch.start()

    def submit(self, function: Callable[..., T], /, *args: object, limit_s: float | None = None) -> Future[T]:
        """Call a module-level function in a worker.

        The future raises the function's exception, WorkerCrashError if its process died, or WorkerStuckError if it
        was killed because the call did no I/O or took longer than `limit_s` seconds. A dead process is replaced.
        """
        return self._threads.submit(self._call, function, args, limit_s)

    def _call(self, function: Callable[..., T], args: tuple[object, ...], limit_s: float | None) -> T:
        process = self._idle.get()  # does not block: there are as many entries as threads
        try:
            if process is None:
                process = self._start()
            try:
                succeeded, value = process.call(function, args, limit_s)
            except (EOFError, OSError, pickle.UnpicklingError) as error:
                dead, process = process, None
                with self._lock:
                    self._alive.discard(dead)
                if dead.stuck:
                    dead.end()
                    raise WorkerStuckError(dead.stuck) from error
                raise WorkerCrashError(dead.end()) from error
        finally:
            self._idle.put(process)
        if succeeded:
            return cast(T, value)
        raise cast(Exception, value)

    def _kill_stuck(self) -> None:
        while not self._left.wait(min(10.0, self._silent_s / 8)):
            with self._lock:
                processes = list(self._alive)
            for process in processes:
                process.kill_if_stuck(self._silent_s)

    def _start(self) -> _Process:
        with self._lock:
            if self._closed:
                raise WorkerCrashError("stopped")
            process = _Process()
            self._alive.add(process)
        try:
            process.handshake()
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise RuntimeError(f"a worker process could not be started ({sys.executable})") from error
        return process

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            processes, self._alive = self._alive, set()
        self._left.set()
        self._watch.join()
        for process in processes:
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in processes:
            process.end()


class _Process:
    """One child process and its two pipes."""

    def __init__(self) -> None:
        # In a process group of its own, so that Ctrl-C interrupts the parent alone, which then kills its workers.
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        self.stuck = ""
        """The reason for which the process was killed as stuck; "" if it was not."""
        self._lock = threading.Lock()
        self._busy = False
        self._began = self._last_io = 0.0
        self._limit_s: float | None = None
        self._done = -1

    def handshake(self) -> None:
        self._send([os.path.abspath(entry) for entry in sys.path])
        self._receive()

    def call(
        self, function: Callable[..., object], args: tuple[object, ...], limit_s: float | None
    ) -> tuple[bool, object]:
        with self._lock:
            self._began = self._last_io = time.monotonic()
            self._limit_s, self._busy = limit_s, True
        try:
            self._send((function, args))
            return cast(tuple[bool, object], self._receive())
        finally:
            with self._lock:
                self._busy = False

    def kill_if_stuck(self, silent_s: float) -> None:
        """Kill the process if its call has done no I/O for `silent_s` seconds, or is past its time limit."""
        done = _bytes_moved(self._popen.pid)
        now = time.monotonic()
        with self._lock:
            if not self._busy:
                return
            if done is None or done != self._done:
                self._done, self._last_io = -1 if done is None else done, now
            if now - self._last_io > silent_s:
                self.stuck = f"it did nothing for {silent_s:.0f} s"
            elif self._limit_s is not None and now - self._began > self._limit_s:
                self.stuck = f"it took more than {self._limit_s:.0f} s"
            else:
                return
            self._popen.kill()

    def _send(self, message: object) -> None:
        pipe = cast(BinaryIO, self._popen.stdin)
        pipe.write(pickle.dumps(message))
        pipe.flush()

    def _receive(self) -> object:
        return pickle.load(cast(BinaryIO, self._popen.stdout))

    def kill(self) -> None:
        self._popen.kill()

    def end(self) -> str:
        """Wait for the process to end; returns its signal or exit status."""
        for pipe in (self._popen.stdin, self._popen.stdout):
            with contextlib.suppress(OSError):  # buffered data can no longer be written
                cast(BinaryIO, pipe).close()
        try:
            code = self._popen.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            code = self._popen.wait()
        if code >= 0:
            return f"exit status {code}"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"


def _bytes_moved(pid: int) -> int | None:
    """Bytes that a process has read and written, files and pipes; None on systems without /proc."""
    try:
        with open(f"/proc/{pid}/io") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(("rchar", "wchar")))
    except (OSError, ValueError):
        return None


def serve() -> None:
    """The main loop of a worker: read calls from stdin and write results to stdout until stdin ends."""
    calls = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints go to stderr, not among the results
    # Line by line, as a killed worker does not flush.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stdin = open(os.devnull)  # noqa: SIM115 - for the life of the process
    pickle.dump("ready", answers)
    answers.flush()
    while True:
        try:
            function, args = pickle.load(calls)
        except EOFError:
            return
        try:
            answer = pickle.dumps((True, function(*args)))
        except Exception as error:
            answer = _pickled_error(error)
        try:
            answers.write(answer)
            answers.flush()
        except BrokenPipeError:
            os._exit(1)  # the parent is gone


def _pickled_error(error: Exception) -> bytes:
    if not isinstance(error, StreamvidError):
        error.add_note("in a worker process:\n" + traceback.format_exc())
    try:
        data = pickle.dumps((False, error))
        pickle.loads(data)
    except Exception:
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
    return data
