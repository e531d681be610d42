"""Parts of a benchmark in processes of their own: one that hangs or crashes leaves the others' results.

A part is a module that is run with `python -m`; it hands each result, a JSON object, to `emit`. A part that is only a
function is called by `apart`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import IO, Any, Final, TypeVar

RESULTS: Final = "STREAMVID_BENCH_RESULTS"
"""The environment variable that tells a part the number of the file descriptor for its results. Not the standard
output: libraries write there as they like."""
_SAID: Final = 8000
_END: Final = 20.0
"""Seconds that a part has to end once it has given all its results: some libraries hang as they are unloaded."""

T = TypeVar("T")


class PartError(RuntimeError):
    """A part that died or took too long; the sentence says which."""


def emit(result: Mapping[str, Any]) -> None:
    """Send a result to the process that runs this part; printed if the part is run by hand."""
    line = json.dumps(result) + "\n"
    if RESULTS in os.environ:
        os.write(int(os.environ[RESULTS]), line.encode())
    else:
        print(line, end="", flush=True)


def run_isolated(module: str, arguments: Sequence[str], *, seconds: float) -> Iterator[dict[str, Any]]:
    """Run a part, and yield its results as they come.

    Args:
        module: what to run.
        arguments: its command line.
        seconds: the most that one result may take.

    Raises:
        PartError: it died, or took longer for a result. Its process and all that it started are gone then.
    """
    read, write = os.pipe()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, RESULTS: str(write)},
            pass_fds=(write,),
            stdout=errors,
            stderr=errors,
            # A group of its own, so that its workers can be ended with it.
            start_new_session=True,
        )
        os.close(write)
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_lines, args=(read, lines), daemon=True).start()
        try:
            while True:
                try:
                    line = lines.get(timeout=seconds)
                except queue.Empty:
                    print(*_last_lines(errors), sep="\n", file=sys.stderr)
                    raise PartError(f"took more than {seconds:.0f} s") from None
                if line is None:
                    break
                yield json.loads(line)
            with contextlib.suppress(subprocess.TimeoutExpired):
                if process.wait(_END):
                    said = _last_lines(errors)
                    raise PartError(f"ended with {process.returncode}: {said[-1].strip()[:200] if said else 'no word'}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def apart(function: Callable[..., T], *arguments: Any, processes: int = 1) -> list[T]:
    """The results of a function in new processes, which run at the same time."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        return [one.result() for one in [pool.submit(function, *arguments) for _ in range(processes)]]


def _last_lines(errors: IO[bytes]) -> list[str]:
    """The last lines that a part has printed."""
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - _SAID))
    return errors.read().decode(errors="replace").strip().splitlines()


def _lines(read: int, lines: queue.SimpleQueue[str | None]) -> None:
    """Lines until nobody can write any more, then None."""
    with os.fdopen(read, encoding="utf-8", errors="replace") as source:
        for line in source:
            # The last may be torn, if the process was killed.
            if line.endswith("\n"):
                lines.put(line)
    lines.put(None)
