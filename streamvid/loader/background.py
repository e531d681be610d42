"""Bounded queues between the stages of a loader, and stages that run in threads of their own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")

_POLL_SECONDS: Final = 0.1
"""How often a thread that waits for room or for an item checks whether it has been told to stop."""


class Channel(Generic[Item]):
    """A bounded queue from one thread to another, as an iterator for the second.

    Args:
        depth: items that wait at most.
    """

    def __init__(self, depth: int) -> None:
        self._queue: queue.Queue[tuple[bool, Item | BaseException | None]] = queue.Queue(depth)
        self._stop = threading.Event()
        self._ended = False

    def put(self, item: Item) -> bool:
        """Hand an item on, when there is room. False if the channel was stopped instead."""
        return self._put((True, item))

    def end(self, error: BaseException | None = None) -> None:
        """Say that no more items come; an error is raised to the consumer behind the last item."""
        self._put((False, error))

    def ready(self) -> bool:
        """Whether `next` returns, or raises, without waiting."""
        return self._ended or self._stop.is_set() or not self._queue.empty()

    def stop(self) -> None:
        """End both sides without waiting for them; items that wait may be dropped."""
        self._stop.set()

    def __iter__(self) -> Channel[Item]:
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
            try:
                raise value
            finally:
                del value  # it refers to this frame
        raise StopIteration

    def _put(self, message: tuple[bool, Item | BaseException | None]) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(message, timeout=_POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False


class Background(Channel[Item]):
    """The items of an iterator, up to `depth` of them made in advance by a thread of its own.

    An exception of the iterator is raised to the consumer, in its place in the order. `close` ends the thread; the
    iterator's own clean-up (`finally`) runs in that thread before `close` returns.
    """

    def __init__(self, source: Iterator[Item], *, depth: int, name: str) -> None:
        super().__init__(depth)
        self._thread = threading.Thread(target=self._run, args=(source,), name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop making items, and wait for the thread. May be called more than once."""
        self.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self, source: Iterator[Item]) -> None:
        end: BaseException | None = None
        try:
            for item in source:
                if not self.put(item):
                    break
        except BaseException as error:
            # Any exception: a thread that dies silently leaves its consumer waiting for ever.
            end = error
        try:
            close = getattr(source, "close", None)
            if close is not None:
                close()
        except BaseException as error:
            end = end or error
        self.end(end)
        del end, source  # an exception refers to this frame
