"""The way to a storage, as the requests of a run measure it, and what follows: how many requests at a time, which gaps
to read over, and when to ask again for what does not come."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Generic, TypeVar

from streamvid.storage.window import Window

MOST_REQUESTS: Final = 256
"""Requests under way, and so connections, of one reader at most."""
_FEWEST_REQUESTS: Final = 32
_REQUESTS_PER_SECOND: Final = 2500
"""About what one event loop can send and take: more requests at a time than this many times the latency gain nothing
(Little's law)."""
_SMALLEST_GAP: Final = 1 << 20
_LARGEST_GAP: Final = 8 << 20
_SAMPLES: Final = 64
_LONG_BODY: Final = 256 << 10
"""Bytes from which on a body says how fast the connection is."""
_EXPECTED_LATENCY: Final = 0.025
_EXPECTED_BANDWIDTH: Final = 100e6
_QUANTILE: Final = 0.95
_HEDGED_SHARE: Final = 0.02
"""Share of requests, and of bytes, that may be asked for twice."""
_HEDGED_AT_FIRST: Final = 2
"""How many may be before so many requests are made that this is less than the share of them."""
_OLDEST: Final = 3
"""One that is late is asked again if it is of the first so many that are under way: where many others are, too, all of
the link is slow."""
_SHORTEST_LATE: Final = 0.005
_FEWEST_TIMES: Final = 32
"""Requests of a size class whose times are known before these say when one is late."""
_FEW_TIMES: Final = 4
"""Requests of any size whose times are known before one that takes four times as long is late."""
_UNKNOWN_LATE: Final = 1.0
"""Seconds after which one is late until then, on top of what its bytes take."""
_LOOK: Final = 0.01
"""Seconds after which it is looked again whether one is late."""

T = TypeVar("T")


class Link:
    """Measures requests, and bounds how many are under way. All but its figures are for one event loop's thread; a
    forked child begins anew.

    Attributes:
        latency: seconds until the first byte of an answer: the shortest of the last ones, as the others have waited for
            each other.
        bandwidth: bytes per second of one connection: the most of the last ones.
        requests, bytes: how many were made, and how many bytes they asked for.
        hedged, hedged_bytes: of those that were asked a second time, on top.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._busy = self._inside = 0
        self._window = Window()
        self._queue: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._queued = itertools.count()
        self._races: dict[_Race[Any], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.latency, self.bandwidth = _EXPECTED_LATENCY, _EXPECTED_BANDWIDTH
        self._latencies: deque[float] = deque(maxlen=16 * _SAMPLES)
        self._bandwidths: deque[float] = deque(maxlen=_SAMPLES)
        self._times: dict[int, deque[float]] = {}
        self.requests = self.hedged = 0
        self.bytes = self.hedged_bytes = 0

    @property
    def gap(self) -> int:
        """Bytes that come in the time that another request takes: reading over fewer is cheaper than asking twice."""
        return int(min(max(self.latency * self.bandwidth, _SMALLEST_GAP), _LARGEST_GAP))

    @property
    def limit(self) -> int:
        """How many requests may be under way."""
        return int(min(max(self.latency * _REQUESTS_PER_SECOND, _FEWEST_REQUESTS), MOST_REQUESTS))

    def _admits(self, size: int) -> bool:
        """Whether another request may be made now."""
        return not self._busy or (self._busy < self.limit and self._inside + size <= self._window.size(self.limit))

    def count(self, requests: int, size: int) -> None:
        """Take note of requests, and of the bytes that they ask for."""
        self.requests += requests
        self.bytes += size

    def measured(self, latency: float, size: int, seconds: float) -> None:
        """Take the times of a request: until its first byte, and then for so many bytes."""
        # Kept as numbers, as other threads ask for them while this one adds to the lists.
        self._latencies.append(latency)
        self.latency = min(self._latencies)
        if size >= _LONG_BODY and seconds > 0:
            self._bandwidths.append(size / seconds)
            self.bandwidth = max(self._bandwidths)

    async def fetch(self, size: int, ask: Callable[[], Awaitable[T]], turn: int = 0) -> T:
        """What `ask` gives, as soon as fewer than `limit` others are under way, and none of an earlier turn waits. It
        is asked a second time if it takes longer than 95 % of its size class do, and twice as long as half of them, of
        2 % of requests and bytes at most, and once more if that does not come; whichever answers first counts, and the
        others are cancelled.

        Args:
            size: bytes that are asked for.
            ask: makes the request.
            turn: for which step of the loop it is. Those of one turn come in their order.
        """
        if self._pid != os.getpid():
            self._begin()
        loop = asyncio.get_running_loop()
        if self._busy and (self._queue or not self._admits(size)):
            free = loop.create_future()
            heapq.heappush(self._queue, (turn, next(self._queued), size, free))
            try:
                await free
            except asyncio.CancelledError:
                if free.done() and not free.cancelled():
                    self._end(size)
                raise
        else:
            self._begin_one(size)
        self.count(1, size)
        race = _Race(loop, size, ask)
        self._races[race] = None
        if self._timer is None:
            self._timer = loop.call_later(_LOOK, self._look, loop)
        try:
            answer = await race.answer
            self._times.setdefault(size.bit_length(), deque(maxlen=2 * _SAMPLES)).append(loop.time() - race.begin)
            return answer
        finally:
            del self._races[race]
            race.end()
            if not self._races:
                self._timer.cancel()
                self._timer = None
            if self._queue:
                self._window.came(loop.time(), size, self._busy)
            else:
                self._window.idle()
            self._end(size)

    def _begin_one(self, size: int) -> None:
        self._busy += 1
        self._inside += size

    def _end(self, size: int) -> None:
        """One is no longer under way: those that wait may begin."""
        self._busy -= 1
        self._inside -= size
        while self._queue and (self._queue[0][-1].done() or self._admits(self._queue[0][2])):
            _, _, wanted, waiting = heapq.heappop(self._queue)
            if not waiting.done():
                self._begin_one(wanted)
                waiting.set_result(None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask again for the oldest that are late, by what others have taken meanwhile, too."""
        self._timer = loop.call_later(_LOOK, self._look, loop)
        for race in itertools.islice(self._races, _OLDEST):
            if loop.time() - race.since >= race.patience * self._late(race.size):
                # A quarter of what may be hedged is for those that take three times as long: they are stuck, the
                # others perhaps only late.
                if self._may_hedge(race.size, _HEDGED_SHARE * (0.75 if race.patience == 1 else 1)):
                    self.hedged += 1
                    self.hedged_bytes += race.size
                    race.ask_again(loop)
                race.patience = 3

    def _late(self, size: int) -> float:
        """After how many seconds a request of so many bytes is late. If few of its size class are known, those of all
        sizes say it, with the time that its bytes take."""
        times: Collection[float] = self._times.get(size.bit_length(), ())
        extra = 0.0
        if len(times) < _FEWEST_TIMES:
            times = [one for some in self._times.values() for one in some]
            extra = size / _EXPECTED_BANDWIDTH
        if len(times) >= _FEWEST_TIMES:
            ordered = sorted(times)
            late = max(ordered[int(_QUANTILE * len(ordered))], 2 * ordered[len(ordered) // 2], _SHORTEST_LATE)
        elif len(times) >= _FEW_TIMES:
            late = min(max(4 * max(times), _UNKNOWN_LATE / 8), _UNKNOWN_LATE)
        else:
            late = _UNKNOWN_LATE
        return late + extra

    def _may_hedge(self, size: int, share: float) -> bool:
        if self.hedged < _HEDGED_AT_FIRST:
            return True
        within = self.hedged_bytes + size <= share * self.bytes
        return within and self.hedged + 1 <= share * self.requests


class _Race(Generic[T]):
    """A request, and others for the same: the first good answer counts.

    Attributes:
        begin, since: when the first one was made, and the last one.
        size: bytes that it asks for.
        answer: that of the first which succeeds, or the error of the last.
        patience: after how many times what is late it is asked again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int, ask: Callable[[], Awaitable[T]]) -> None:
        self.size, self._ask, self.patience = size, ask, 1
        self.begin = loop.time()
        self.answer: asyncio.Future[T] = loop.create_future()
        self._asked: list[asyncio.Future[T]] = []
        self.ask_again(loop)

    def ask_again(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the request once more."""
        self.since = loop.time()
        self._asked.append(asked := asyncio.ensure_future(self._ask()))
        asked.add_done_callback(self._ended)

    def end(self) -> None:
        """Cancel what is under way."""
        for asked in self._asked:
            asked.cancel()

    def _ended(self, asked: asyncio.Future[T]) -> None:
        error = None if asked.cancelled() else asked.exception()
        if self.answer.done():
            return
        if asked.cancelled():
            self.answer.cancel()
        elif error is None:
            self.answer.set_result(asked.result())
        elif all(one.done() for one in self._asked):
            self.answer.set_exception(error)
