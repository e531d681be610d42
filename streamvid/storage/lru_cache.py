"""A cache of the most recently used values."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Values by key, of limited total size; the least recently used are evicted. The most recent one is always kept.

    Thread-safe; a forked child begins with an empty one.

    Args:
        size: returns the size of a value; default: 1.
    """

    def __init__(self, limit: int, size: Callable[[V], int] = lambda _: 1) -> None:
        self._limit, self._size = limit, size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._total = 0
        self._lock, self._pid = threading.Lock(), os.getpid()

    def get(self, key: K) -> V | None:
        """The value of a key; None if there is none."""
        with self._usable_lock():
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> V:
        """Keep a value. Returns it, or the value that another thread has put before."""
        with self._usable_lock():
            if key in self._values:
                return self._values[key]
            self._values[key] = value
            self._total += self._size(value)
            while self._total > self._limit and len(self._values) > 1:
                self._total -= self._size(self._values.popitem(last=False)[1])
            return value

    def drop(self, key: K) -> None:
        """Forget a value, if it is there."""
        with self._usable_lock():
            if (value := self._values.pop(key, None)) is not None:
                self._total -= self._size(value)

    def _usable_lock(self) -> threading.Lock:
        if self._pid != os.getpid():
            # Another thread of the parent may have held the lock at the fork.
            self.__init__(self._limit, self._size)  # type: ignore[misc]
        return self._lock
