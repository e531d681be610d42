"""Who of several threads that read side by side goes first."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turn:
    """A reader's place among others: the step of the loop that it reads for. Alone, it waits for nobody.

    Attributes:
        number: of the step. Requests of earlier ones go first.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While it waits for a storage, others may compute."""
        yield

    def pause(self) -> None:
        """Let others have the interpreter lock that wait for it, between one clip and the next."""

    def admit(self, size: int) -> None:
        """Wait until packets of so many bytes may be read."""


class OneAtATime:
    """A lock that of those who wait the one with the lowest number gets.

    Threads that compute side by side take nothing off each other's time in Python, but each lets the training loop wait
    for the interpreter lock: for 5 ms (`sys.getswitchinterval`) and one more.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = False
        self._queue: list[tuple[int, int, threading.Lock]] = []
        self._queued = itertools.count()

    def acquire(self, number: int) -> None:
        """Wait for it."""
        with self._lock:
            if not self._held:
                self._held = True
                return
            gate = threading.Lock()
            gate.acquire()
            heapq.heappush(self._queue, (number, next(self._queued), gate))
        gate.acquire()

    def is_wanted_before(self, number: int) -> bool:
        """Whether one with a lower number waits for it."""
        with self._lock:
            return bool(self._queue) and self._queue[0][0] < number

    def release(self) -> None:
        """Let the next one have it."""
        with self._lock:
            if self._queue:
                heapq.heappop(self._queue)[2].release()
            else:
                self._held = False
