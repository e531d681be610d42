"""A pool of worker processes that may crash, in which FFmpeg reads untrusted files.

Unlike in `concurrent.futures.ProcessPoolExecutor`, each worker has its own pipe and one call at a time. So a crash
fails exactly one call, workers end when their parent does, even if it is killed, and scripts need no
``if __name__ == "__main__"``.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import queue
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final, TypeVar, cast

from streamvid.errors import StreamvidError
from streamvid.host import limits_named
from streamvid.stopwatch import TICK_S, Deadline, bytes_moved

T = TypeVar("T")

SILENT_S: Final = 900.0
"""Seconds without any I/O after which a call is considered stuck. A slow disk or encoder takes seconds."""
START_S: Final = 120.0
"""Seconds that starting a process may take: it imports modules, from a slow disk perhaps."""
_STARTS: Final = 5
_LENGTH: Final = 8
"""Bytes of a message's length before it, little-endian."""

# The first message to a child is its parent's import path, so that it imports the same modules, and what `serve` takes.
_CHILD = (
    "import pickle, sys; sys.path[:], *rest = pickle.loads(sys.stdin.buffer.read("
    "int.from_bytes(sys.stdin.buffer.read(8), 'little'))); from streamvid.workers import serve; serve(*rest)"
)


class WorkerCrashError(Exception):
    """The process died during the call; the message is its signal (``SIGSEGV``) or exit status.

    Attributes:
        from_outside: whether it was ended from outside, as by the kernel when memory runs out: then the call is not to
            blame.
    """

    def __init__(self, how: str, *, from_outside: bool = False) -> None:
        super().__init__(how)
        self.from_outside = from_outside


_OWN_FAULTS: Final = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS")
"""Signals by which a process ends itself."""


class WorkerStuckError(WorkerCrashError):
    """The process was killed because the call did no I/O or exceeded its time limit; the message says which."""


def _import_path() -> list[str]:
    """`sys.path` with absolute entries; without those relative to the working directory, if that was removed."""
    with contextlib.suppress(FileNotFoundError):
        return [os.path.abspath(entry) for entry in sys.path]
    return [entry for entry in sys.path if os.path.isabs(entry)]


class WorkerProcess:
    """A child process that calls functions, for one caller at a time.

    Args:
        inherit: file descriptors that the child inherits, under the same numbers.
        work: a folder that the child removes if its parent is killed; "" for none.

    Attributes:
        pid: the process id.

    Raises:
        OSError: it could not be started.
    """

    def __init__(self, *, inherit: Sequence[int] = (), work: str = "") -> None:
        self._work = work
        # With relative entries Python does not start if the working directory was removed; `_import_path` has them.
        path = os.pathsep.join(filter(os.path.isabs, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
        # In a process group of its own, so that Ctrl-C interrupts the parent alone, which then kills its workers.
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD],
            bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0, pass_fds=inherit,
            # nvImageCodec starts CUDA where it sees a GPU, to decode on the CPU, too; OpenBLAS a thread for each core.
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": path},
        )  # fmt: skip
        self.pid = self._popen.pid
        self._to, self._from = (cast(IO[bytes], pipe).fileno() for pipe in (self._popen.stdin, self._popen.stdout))
        for pipe in (self._to, self._from):
            os.set_blocking(pipe, False)
        self._silent_s, self._deadline = SILENT_S, Deadline(str(self.pid), START_S, SILENT_S)

    def handshake(self) -> None:
        """Wait until the process is ready for calls.

        Raises:
            WorkerCrashError: it ended; as WorkerStuckError: it was killed because it was not ready in time.
            RuntimeError: it can start no thread.
        """
        try:
            self._send((_import_path(), os.getpid(), self._work))
            if error := self._receive():
                raise cast(RuntimeError, error)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise WorkerCrashError(self.end()) from error

    def call(
        self, function: Callable[..., T], /, *args: object, limit_s: float | None = None, silent_s: float = SILENT_S
    ) -> T:
        """Call a module-level function in the process, and return its result.

        Args:
            function, args: the function and its arguments, which are pickled.
            limit_s: most seconds of the call, as `streamvid.stopwatch.Stopwatch` counts them.
            silent_s: seconds without I/O after which the process is considered stuck.

        Raises:
            WorkerCrashError: the process died, and has been waited for. This object can make no more calls.
            WorkerStuckError: the process was killed because the call did no I/O for `silent_s`, or took longer than
                `limit_s`.
            Exception: any exception of the function.
        """
        calling = self._exchange(function, args, limit_s, silent_s)
        try:
            next(calling)
        except StopIteration as end:
            return cast(T, end.value)
        raise TypeError("`stream` gives a generator's items")

    def stream(
        self, function: Callable[..., Iterator[T]], /, *args: object, limit_s: float, silent_s: float = SILENT_S
    ) -> Generator[T, None, None]:
        """Call a generator function in the process, and yield its items; otherwise like `call`. While the caller works
        on an item, the process makes at most the next one. If the caller closes this generator early, the process
        ends."""
        yield from cast(Generator[T, None, None], self._exchange(function, args, limit_s, silent_s))

    def _exchange(
        self, function: Callable[..., object], args: tuple[object, ...], limit_s: float | None, silent_s: float
    ) -> Generator[object, None, object]:
        limit_s = math.inf if limit_s is None else limit_s
        self._silent_s, self._deadline = silent_s, Deadline(str(self.pid), limit_s, silent_s)
        answered = False
        try:
            self._send((function, args))
            while True:
                kind, value = cast(tuple[str, object], self._receive())
                if kind == "item":
                    yield value
                    self._write(b"+")
                    continue
                answered = True
                if kind == "error":
                    raise cast(Exception, value)
                return value
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            if answered:
                raise  # the function's own
            how = self.end()
            raise WorkerCrashError(how, from_outside=how not in _OWN_FAULTS) from error
        finally:
            if not answered:
                self.kill()
                self.end()

    def _send(self, message: object) -> None:
        data = pickle.dumps(message)
        self._write(len(data).to_bytes(_LENGTH, "little"))
        self._write(data)

    def _receive(self) -> object:
        return pickle.loads(self._read(int.from_bytes(self._read(_LENGTH), "little")))

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            self._await(self._to, select.POLLOUT)
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(self._to, left) :]

    def _read(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            self._await(self._from, select.POLLIN)
            with contextlib.suppress(BlockingIOError):
                if not (more := os.read(self._from, size - len(data))):
                    raise EOFError
                data += more
        return data

    def _await(self, pipe: int, event: int) -> None:
        """Wait until a pipe is ready, or the process dies or is killed as stuck."""
        poll = select.poll()
        poll.register(pipe, event)
        while not poll.poll(1000 * min(TICK_S, self._silent_s / 8)):
            moved = bytes_moved(self.pid)
            if stuck := self._deadline.overdue(object() if moved is None else moved):
                self.kill()
                raise WorkerStuckError(stuck)

    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return self._popen.poll() is None

    def kill(self) -> None:
        """Kill the process, from any thread; a call of another thread then raises WorkerCrashError."""
        self._popen.kill()

    def end(self) -> str:
        """Wait for the process to end; returns its signal or exit status. May be called more than once."""
        for pipe in (self._popen.stdin, self._popen.stdout):
            cast(IO[bytes], pipe).close()
        try:
            code = self._popen.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            try:
                code = self._popen.wait(timeout=5)
            except subprocess.TimeoutExpired:
                return "it does not end: the kernel waits for a disk"
        if code >= 0:
            return f"exit status {code}"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"


@limits_named()
def start_worker(ready: Callable[[], WorkerProcess]) -> WorkerProcess:
    """The process that `ready` starts and waits for; another one if it ends, as the kernel kills the newest one first
    where memory runs out. Raises StreamvidError if it is stuck, if `_STARTS` of them end, or at a limit."""
    for left in reversed(range(_STARTS)):
        try:
            return ready()
        except WorkerCrashError as error:
            if not left or isinstance(error, WorkerStuckError):
                what = f"a worker process ({sys.executable}) could not be started ({error})"
                raise StreamvidError(f"{what}: if it was killed, use less memory, by fewer num_threads") from error
    raise AssertionError


class Workers:
    """A fixed number of worker processes. A context manager, which kills running workers on exit.

    Args:
        count: number of processes.
        work: as of `WorkerProcess`.
        silent_s: seconds without I/O after which a call is considered stuck; see `SILENT_S`.
    """

    def __init__(self, count: int, *, work: str = "", silent_s: float = SILENT_S) -> None:
        self._work, self._silent_s = work, silent_s
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="streamvid-worker")
        self._idle: queue.SimpleQueue[WorkerProcess | None] = queue.SimpleQueue()
        for _ in range(count):
            self._idle.put(None)
        self._lock = threading.Lock()
        self._alive: set[WorkerProcess] = set()
        self._closed = False

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
                process = start_worker(self._start)
            return process.call(function, *args, limit_s=limit_s, silent_s=self._silent_s)
        except WorkerCrashError:
            if process is not None:
                with self._lock:
                    self._alive.discard(process)
                process = None
            raise
        finally:
            self._idle.put(process)

    def _start(self) -> WorkerProcess:
        with self._lock:
            if self._closed:
                raise WorkerCrashError("stopped")
            process = WorkerProcess(work=self._work)
            self._alive.add(process)
        process.handshake()
        return process

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            processes, self._alive = self._alive, set()
        for process in processes:
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process in processes:
            process.end()


def serve(parent: int, work: str) -> None:
    """The main loop of a worker: read calls from stdin and write results to stdout until stdin ends.

    Args:
        parent: id of the process that started the worker. When that ends, the worker ends, even while a call is stuck
            or another child of the parent keeps the pipe open.
        work: a folder that is removed then; not as soon as stdin ends, which a parent that lives may close, too.
    """
    calls = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints go to stderr, not among the results
    # Line by line, as a killed worker does not flush.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.stdin = open(os.devnull)  # noqa: SIM115 - for the life of the process
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel kills the worker, not the run

    def answer(data: bytes) -> None:
        try:
            answers.write(len(data).to_bytes(_LENGTH, "little") + data)
            answers.flush()
        except BrokenPipeError:
            _end_with(parent if work else 0, work)

    def read_on() -> None:
        if not calls.read(1):
            os._exit(1)

    def give(items: Iterator[object]) -> None:
        given = 0
        try:
            for item in items:
                answer(pickle.dumps(("item", item)))
                given += 1
                if given > 1:
                    read_on()
        finally:
            if given:
                read_on()

    try:
        threading.Thread(target=_end_with, args=(parent, work), daemon=True).start()
    except RuntimeError as error:
        answer(pickle.dumps(error))
        return
    answer(pickle.dumps(None))  # ready
    while head := calls.read(_LENGTH):
        message = calls.read(size := int.from_bytes(head, "little"))
        if len(message) < size:
            break
        function, args = pickle.loads(message)
        try:
            value = function(*args)
            if isinstance(value, Generator):
                give(value)
                value = None
            answer(pickle.dumps(("end", value)))
        except Exception as error:
            answer(_pickled_error(error))
    _end_with(parent if work else 0, work)


def _end_with(parent: int, work: str) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    shutil.rmtree(work, ignore_errors=True)
    os._exit(1)


def _pickled_error(error: Exception) -> bytes:
    if not isinstance(error, StreamvidError):
        error.add_note("in a worker process:\n" + traceback.format_exc())
    try:
        data = pickle.dumps(("error", error))
        pickle.loads(data)
    except Exception:
        return pickle.dumps(("error", RuntimeError(f"{type(error).__name__}: {error}")))
    return data
