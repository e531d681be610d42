"""Run an iterator ahead of its consumer, in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")

_POLL_SECONDS: Final = 0.1
"""How often a thread that waits for room looks whether it has been told to stop."""


class Background(Generic[Item]):
    """An iterator over the items of another one, up to `depth` of them made in advance.

    An exception of the source is raised to the consumer, in its place in the order. `close` ends the thread; the
    source's own clean-up (`finally`) runs in that thread before `close` returns.
    """

    def __init__(self, source: Iterator[Item], *, depth: int, name: str) -> None:
        self._queue: queue.Queue[tuple[bool, Item | BaseException | None]] = queue.Queue(depth)
        self._stop = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, args=(source,), name=name, daemon=True)
        self._thread.start()

    def __iter__(self) -> Background[Item]:
        return self

    def __next__(self) -> Item:
        if self._ended:
            raise StopIteration
        while True:
            try:
                is_item, value = self._queue.get(timeout=_POLL_SECONDS)
                break
            except queue.Empty:
                if self._stop.is_set():
                    self._ended = True
                    raise StopIteration from None
        if is_item:
            return value  # type: ignore[return-value]
        self._ended = True
        if isinstance(value, BaseException):
            raise value
        raise StopIteration

    def stop(self) -> None:
        """Tell the thread to stop making items, without waiting for it."""
        self._stop.set()

    def close(self) -> None:
        """Stop making items, and wait for the thread. May be called more than once."""
        self.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self, source: Iterator[Item]) -> None:
        end: BaseException | None = None
        try:
            for item in source:
                if not self._put((True, item)):
                    break
        except BaseException as error:
            # Handed on, whatever it is: a thread that dies silently leaves its consumer waiting for ever.
            end = error
        try:
            close = getattr(source, "close", None)
            if close is not None:
                close()
        except BaseException as error:
            end = end or error
        self._put((False, end))

    def _put(self, message: tuple[bool, Item | BaseException | None]) -> bool:
        """False if told to stop instead."""
        while not self._stop.is_set():
            try:
                self._queue.put(message, timeout=_POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False
