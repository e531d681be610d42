"""Priorities among threads that read concurrently."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turn:
    """The priority of a reader: the step of the loop that it reads for. A `Turn` by itself never waits.

    Attributes:
        number: the step's number. Requests of earlier steps go first.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A context in which the reader waits for a storage, so that others may compute."""
        yield

    def pause(self) -> None:
        """Let waiting threads have the GIL, between one clip and the next."""

    def admit(self, size: int) -> None:
        """Wait until packets of `size` bytes in all may be read."""


class OneAtATime:
    """A lock that goes to the waiting thread with the lowest number.

    Because of the GIL, threads that compute in Python concurrently are no faster than one, but each makes the training
    loop wait for the GIL for another 5 ms (`sys.getswitchinterval`).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = False
        self._queue: list[tuple[int, int, threading.Lock]] = []
        self._queued = itertools.count()

    def acquire(self, number: int) -> None:
        """Wait for the lock."""
        with self._lock:
            if not self._held:
                self._held = True
                return
            gate = threading.Lock()
            gate.acquire()
            heapq.heappush(self._queue, (number, next(self._queued), gate))
        gate.acquire()

    def is_wanted_before(self, number: int) -> bool:
        """Whether a thread with a lower number waits for the lock."""
        with self._lock:
            return bool(self._queue) and self._queue[0][0] < number

    def release(self) -> None:
        """Pass the lock to the next waiting thread."""
        with self._lock:
            if self._queue:
                heapq.heappop(self._queue)[2].release()
            else:
                self._held = False
