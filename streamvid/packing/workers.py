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
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, BinaryIO, TypeVar, cast

from streamvid.errors import StreamvidError

T = TypeVar("T")

# The child gets its parent's import path first, as its first message, so that it imports the same modules.
_CHILD = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from streamvid.packing.workers import serve; serve()"
)


class WorkerCrashError(Exception):
    """The process died during the call; the text says how (``SIGSEGV``)."""


class Workers:
    """A fixed number of processes to call functions in. A context manager; leaving it kills what still runs."""

    def __init__(self, count: int) -> None:
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="streamvid-worker")
        self._idle: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        for _ in range(count):
            self._idle.put(None)
        self._lock = threading.Lock()
        self._alive: set[_Process] = set()
        self._closed = False

    def submit(self, function: Callable[..., T], /, *args: object) -> Future[T]:
        """Call a module-level function in a worker.

        The future raises what the function raised, or WorkerCrashError if its process died. Then the next call gets a
        new process.
        """
        return self._threads.submit(self._call, function, args)

    def _call(self, function: Callable[..., T], args: tuple[object, ...]) -> T:
        process = self._idle.get()  # never waits: there are as many entries as threads
        try:
            if process is None:
                process = self._start()
            try:
                succeeded, value = process.call(function, args)
            except (EOFError, OSError, pickle.UnpicklingError) as error:
                dead, process = process, None
                with self._lock:
                    self._alive.discard(dead)
                raise WorkerCrashError(dead.end()) from error
        finally:
            self._idle.put(process)
        if succeeded:
            return cast(T, value)
        raise cast(Exception, value)

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

    def handshake(self) -> None:
        self._send([os.path.abspath(entry) for entry in sys.path])
        self._receive()

    def call(self, function: Callable[..., object], args: tuple[object, ...]) -> tuple[bool, object]:
        self._send((function, args))
        return cast(tuple[bool, object], self._receive())

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


def serve() -> None:
    """The child's side: answer calls from stdin on stdout until stdin ends."""
    calls = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints in here must not end up among the answers
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
