"""The threads of decode engines. A thread that is stuck or dies is abandoned with its sessions, and a new one replaces
it.

The jobs of a stuck thread fail, and the loader decodes their batch again into other memory. The stuck thread keeps its
memory, to which it may still write when it wakes up.
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
from streamvid.decode.interrupts import GpuInterrupts, mark_thread
from streamvid.decode.job_queue import DecodeQueue
from streamvid.errors import GpuLostError, VideoError
from streamvid.stopwatch import TICK_S, Deadline

_JOIN_S: Final = 10.0
"""Seconds to wait for the threads at exit."""
_MOST_STUCK: Final = 3
"""Stuck threads per worker above which the GPU counts as lost: a single bad stream does not cause more."""

log = logging.getLogger(__name__)


class Worker(Protocol):
    """The work of one thread: takes jobs from a queue and decodes them.

    Attributes:
        doing: the jobs being decoded, a new tuple each time; () while the worker waits for jobs.
        packets: packets fed to its decoder so far.
        unfed: packets that are not yet fed to its decoder.
    """

    doing: tuple[GopJob, ...]

    @property
    def packets(self) -> int: ...

    @property
    def unfed(self) -> int: ...

    def run(self) -> None:
        """Decode until the queue is closed and empty, or `abandon` is called."""

    def abandon(self) -> list[GopJob]:
        """Take no more jobs. Called by another thread.

        Returns:
            the unfinished jobs.
        """


class _Engine:
    """A thread with its worker. `error` is the reason if the thread ended with an exception."""

    def __init__(self, name: str, make: Callable[[], Worker]) -> None:
        self.worker: Worker | None = None
        self.error: str | None = None
        self._seen: Callable[[], object] = lambda: None
        self._deadline: Deadline | None = None
        self.thread = threading.Thread(target=self._run, args=(make,), name=f"streamvid-{name}", daemon=True)
        self.thread.start()

    def _run(self, make: Callable[[], Worker]) -> None:
        mark_thread()
        try:
            self.worker = make()
            self.worker.run()
        except Exception as error:
            self.error = f"failed ({' '.join(str(error).split())[:300]})"

    def problem(self, pace: Pace) -> str | None:
        """Why the thread has to be replaced, or None. Called every `TICK_S`."""
        if not self.thread.is_alive():
            return self.error
        jobs = () if self.worker is None else self.worker.doing
        doing = jobs[0] if jobs else self.worker
        if self._deadline is None or doing is not self._seen():
            # A weak reference: a job keeps the memory of its batch alive.
            self._seen = (lambda: None) if doing is None else weakref.ref(doing)
            packets = sum(len(job.packets) for job in jobs) + (0 if self.worker is None else self.worker.unfed)
            limits = [pace.deadline(jobs[0].encoded, count) if jobs else pace.least_s for count in (packets, 1)]
            self._deadline = Deadline(f"self/task/{self.thread.native_id}", *limits)
        stuck = self._deadline.overdue(None if self.worker is None else self.worker.packets)
        return f"has not answered ({stuck})" if stuck and (jobs or self.worker is None) else None


class EngineThreads:
    """A thread for each worker of a queue. They end when the queue is closed and empty.

    Args:
        queue: the queue from which the workers take jobs.
        makers: by the worker's name, a function that makes it; called in its thread, and again to replace it.
        pace: the pace that the workers measure; computes deadlines.
    """

    def __init__(self, queue: DecodeQueue, makers: Mapping[str, Callable[[], Worker]], pace: Pace) -> None:
        self._queue, self._makers, self._pace, self._pid = queue, makers, pace, os.getpid()
        self._closed = threading.Event()
        self._stuck: list[threading.Thread] = []
        self._engines = {name: _Engine(name, make) for name, make in makers.items()}
        self._watcher = threading.Thread(target=self._watch, name="streamvid-engines", daemon=True)
        self._watcher.start()

    def close(self, timeout: float | None = _JOIN_S) -> None:
        """Make the threads end when the queue is empty. Waits up to `timeout` seconds (None: no limit) for threads that
        are not stuck."""
        if os.getpid() != self._pid:
            return  # a forked child has none of the threads, and they may have held the queue's lock
        self._queue.close()
        self._closed.set()
        here = threading.current_thread()
        if here is not self._watcher and here not in [engine.thread for engine in self._engines.values()]:
            self._watcher.join(timeout)

    def _watch(self) -> None:
        interrupts = GpuInterrupts()
        while self._engines:
            interrupts.avoid()
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
        if engine.worker is None and (job := self._queue.take(current=None, opened=(), wait_s=0)) is not None:
            # The worker failed to start: fail a queued job instead, which no other worker may be left to decode.
            self._queue.session_closed(job.key)
            jobs = [job]
        clips = ", ".join(dict.fromkeys(job.encoded.name for job in jobs)) or "none"
        text = f"the decode engine {name} {problem}; the clips in it: {clips[:300]}"
        log.error("%s. Its thread is abandoned, and another replaces it", text)
        self._stuck = [thread for thread in (*self._stuck, engine.thread) if thread.is_alive()]
        lost = len(self._stuck) > _MOST_STUCK * len(self._makers)
        stuck = f"{len(self._stuck)} threads are stuck in the driver: {text}"
        error = GpuLostError(stuck) if lost else VideoError(text)
        for job in jobs:
            if engine.worker is not None and not lost:  # else no clip is to blame
                self._queue.refuse(job, text)
            job.group.abandon(error)
        if jobs or not self._closed.is_set():
            self._engines[name] = _Engine(name, self._makers[name])
        else:
            del self._engines[name]
