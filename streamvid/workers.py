"""Functions called in other processes, which may crash: FFmpeg reads hostile files there, and not here.

Unlike `concurrent.futures.ProcessPoolExecutor`, a worker has one call at a time and a pipe of its own. So a crash is
the fault of exactly one call and breaks nothing else, workers end when their parent does, however it ends, and
scripts that use them need no ``if __name__ == "__main__"``.
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
from types import TracebackType
from typing import Any, BinaryIO, Final, TypeVar, cast

from streamvid.errors import StreamvidError

T = TypeVar("T")

SILENT_S: Final = 900.0
"""Seconds after which a call that neither reads nor writes anything is given up. Reading from a slow disk or waiting
for a slow encoder takes seconds; a decoder that is stuck is stuck for ever."""

# The child gets its parent's import path first, as its first message, so that it imports the same modules.
_CHILD = "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from streamvid.workers import serve; serve()"


class WorkerCrashError(Exception):
    """The process died during the call; the text says how (``SIGSEGV``)."""


class WorkerStuckError(WorkerCrashError):
    """The process was killed because the call did nothing any more, or took too long; the text says which."""


class Workers:
    """A fixed number of processes to call functions in. A context manager; leaving it kills what still runs.

    Args:
        count: processes.
        silent_s: seconds after which a call that neither reads nor writes is given up; see `SILENT_S`.
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
        self._watch = threading.Thread(target=self._watch_over, name="streamvid-watch", daemon=True)
        self._watch.start()

    def submit(self, function: Callable[..., T], /, *args: object, limit_s: float | None = None) -> Future[T]:
        """Call a module-level function in a worker.

        The future raises what the function raised, or WorkerCrashError if its process died, or was killed because
        the call was silent, or took longer than `limit_s` seconds. Then the next call gets a new process.
        """
        return self._threads.submit(self._call, function, args, limit_s)

    def _call(self, function: Callable[..., T], args: tuple[object, ...], limit_s: float | None) -> T:
        process = self._idle.get()  # never waits: there are as many entries as threads
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

    def _watch_over(self) -> None:
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
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
        # A process group of its own: a Ctrl-C at the terminal is for the parent, which then kills its workers.
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        self.stuck = ""
        """Why it was killed, if it was."""
        self._lock = threading.Lock()
        self._busy = False
        self._began = self._stirred = 0.0
        self._limit_s: float | None = None
        self._done = -1

    def handshake(self) -> None:
        self._send([os.path.abspath(entry) for entry in sys.path])
        self._receive()

    def call(
        self, function: Callable[..., object], args: tuple[object, ...], limit_s: float | None
    ) -> tuple[bool, object]:
        with self._lock:
            self._began = self._stirred = time.monotonic()
            self._limit_s, self._busy = limit_s, True
        try:
            self._send((function, args))
            return cast(tuple[bool, object], self._receive())
        finally:
            with self._lock:
                self._busy = False

    def kill_if_stuck(self, silent_s: float) -> None:
        """Kill it if its call has neither read nor written for so long, or is past its limit."""
        done = _bytes_moved(self._popen.pid)
        now = time.monotonic()
        with self._lock:
            if not self._busy:
                return
            if done is None or done != self._done:
                self._done, self._stirred = -1 if done is None else done, now
            if now - self._stirred > silent_s:
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

    def _receive(self) -> Any:
        return pickle.load(cast(BinaryIO, self._popen.stdout))

    def kill(self) -> None:
        self._popen.kill()

    def end(self) -> str:
        """Reap it and say how it ended."""
        for pipe in (self._popen.stdin, self._popen.stdout):
            with contextlib.suppress(OSError):  # what was buffered can no longer be delivered
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
    """What a process has read and written so far, all files and pipes together; None where the system does not tell."""
    try:
        with open(f"/proc/{pid}/io") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(("rchar", "wchar")))
    except (OSError, ValueError):
        return None


def serve() -> None:
    """The child's side: answer calls from stdin on stdout until stdin ends."""
    calls = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints in here must not end up among the answers
    # Nor be lost: a worker that is killed writes nothing more.
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
            os._exit(1)  # the parent is gone: nobody is left to tell


def _pickled_error(error: Exception) -> bytes:
    if not isinstance(error, StreamvidError):
        error.add_note("in a worker process:\n" + traceback.format_exc())
    try:
        data = pickle.dumps((False, error))
        pickle.loads(data)
    except Exception:
        return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
    return data
