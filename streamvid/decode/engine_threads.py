"""The threads of decode engines. One that is stuck or dies is left behind with its sessions, and another takes its
place.

What a stuck thread was at fails, and is made anew in other memory: it keeps its own, to which it may still write when
it wakes up.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from streamvid.decode.deadline import Pace
from streamvid.decode.decode_job import GopJob
from streamvid.decode.job_queue import DecodeQueue
from streamvid.errors import GpuLostError, VideoError
from streamvid.stopwatch import TICK_S, Deadline

_JOIN_S: Final = 10.0
"""Seconds that the threads are waited for at exit."""
_MOST_STUCK: Final = 3
"""Threads for each engine that may be stuck at a time: more are no session's fault."""

log = logging.getLogger(__name__)


class Worker(Protocol):
    """What a thread does: takes jobs from a queue and decodes them.

    Attributes:
        doing: the jobs that it is at, a new tuple for each; () while it waits for some.
        packets: how many its decoder has taken until now.
    """

    doing: tuple[GopJob, ...]

    @property
    def packets(self) -> int: ...

    def run(self) -> None:
        """Decode until the queue is closed and empty, or `abandon` was called."""

    def abandon(self) -> list[GopJob]:
        """Take no more jobs. Called by another thread.

        Returns:
            the jobs that are not finished.
        """


class _Engine:
    """A thread with its worker. `error` says why it has ended, if it should not have."""

    def __init__(self, name: str, make: Callable[[], Worker]) -> None:
        self.worker: Worker | None = None
        self.error: str | None = None
        self._seen: Callable[[], object] = lambda: None
        self._deadline: Deadline | None = None
        self.thread = threading.Thread(target=self._run, args=(make,), name=f"streamvid-{name}", daemon=True)
        self.thread.start()

    def _run(self, make: Callable[[], Worker]) -> None:
        try:
            self.worker = make()
            self.worker.run()
        except Exception as error:
            self.error = f"failed ({' '.join(str(error).split())[:300]})"

    def problem(self, pace: Pace) -> str | None:
        """What is wrong with it, if anything. To be called every `TICK_S`."""
        if not self.thread.is_alive():
            return self.error
        jobs = () if self.worker is None else self.worker.doing
        doing = jobs[0] if jobs else self.worker
        if self._deadline is None or doing is not self._seen():
            # Weakly: a job has the memory of its batch.
            self._seen = (lambda: None) if doing is None else weakref.ref(doing)
            packets = sum(len(job.packets) for job in jobs)
            limits = [pace.deadline(jobs[0].encoded, count) if jobs else pace.least_s for count in (packets, 1)]
            self._deadline = Deadline(f"self/task/{self.thread.native_id}", *limits)
        stuck = self._deadline.overdue(None if self.worker is None else self.worker.packets)
        return f"has not answered ({stuck})" if stuck and (jobs or self.worker is None) else None


class EngineThreads:
    """A thread for each worker of a queue. They end when the queue is closed and empty.

    Args:
        queue: where the workers take jobs from.
        makers: of each worker, by name; called in its thread, and again for the one that takes its place.
        pace: of the workers, for deadlines.
    """

    def __init__(self, queue: DecodeQueue, makers: Mapping[str, Callable[[], Worker]], pace: Pace) -> None:
        self._queue, self._makers, self._pace, self._pid = queue, makers, pace, os.getpid()
        self._closed = threading.Event()
        self._stuck: list[threading.Thread] = []
        self._engines = {name: _Engine(name, make) for name, make in makers.items()}
        self._watcher = threading.Thread(target=self._watch, name="streamvid-engines", daemon=True)
        self._watcher.start()

    def close(self, timeout: float | None = _JOIN_S) -> None:
        """Let the threads end when the queue is empty, and wait for those that are not stuck."""
        if os.getpid() != self._pid:
            return  # a forked child has none of the threads, and they may have held the queue's lock
        self._queue.close()
        self._closed.set()
        here = threading.current_thread()
        if here is not self._watcher and here not in [engine.thread for engine in self._engines.values()]:
            self._watcher.join(timeout)

    def _watch(self) -> None:
        while self._engines:
            if self._closed.is_set():
                next(iter(self._engines.values())).thread.join(TICK_S)
            else:
                self._closed.wait(TICK_S)
            for name, engine in list(self._engines.items()):
                if (problem := engine.problem(self._pace)) is not None:
                    self._replace(name, engine, problem)
                elif not engine.thread.is_alive():
                    del self._engines[name]

    def _replace(self, name: str, engine: _Engine, problem: str) -> None:
        jobs = [] if engine.worker is None else engine.worker.abandon()
        if engine.worker is None and (job := self._queue.take(current=None, opened=(), block=False)) is not None:
            # Nobody may be left who decodes it.
            self._queue.session_closed(job.key)
            jobs = [job]
        clips = ", ".join(dict.fromkeys(job.encoded.name for job in jobs)) or "none"
        text = f"the decode engine {name} {problem}; the clips in it: {clips[:300]}"
        log.error("%s. Its thread is left behind, and another takes its place", text)
        self._stuck = [thread for thread in (*self._stuck, engine.thread) if thread.is_alive()]
        lost = len(self._stuck) > _MOST_STUCK * len(self._makers)
        stuck = f"{len(self._stuck)} threads are stuck in the driver: {text}"
        error = GpuLostError(stuck) if lost else VideoError(text)
        for job in jobs:
            job.group.abandon(error)
        if jobs or not self._closed.is_set():
            self._engines[name] = _Engine(name, self._makers[name])
        else:
            del self._engines[name]
