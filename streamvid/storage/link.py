"""Measures latency and bandwidth to a storage by a run's requests. They decide how many requests are in flight, which
gaps between ranges are read over, and when a late request is made a second time (hedged)."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Generic, TypeVar

from streamvid.storage.window import Window

MOST_REQUESTS: Final = 256
"""Most requests in flight, and so connections, of one reader."""
_FEWEST_REQUESTS: Final = 32
_REQUESTS_PER_SECOND: Final = 2500
"""About the request rate of one event loop. More requests in flight than this rate × latency gain nothing (Little's
law)."""
_SMALLEST_GAP: Final = 1 << 20
_LARGEST_GAP: Final = 8 << 20
_SAMPLES: Final = 64
_LONG_BODY: Final = 256 << 10
"""Only bodies of at least this many bytes count for bandwidth."""
_EXPECTED_LATENCY: Final = 0.025
_EXPECTED_BANDWIDTH: Final = 100e6
_QUANTILE: Final = 0.95
_HEDGED_SHARE: Final = 0.02
"""Largest share of requests, and of their bytes, that may be hedged."""
_HEDGED_AT_FIRST: Final = 2
"""Requests that may be hedged before `_HEDGED_SHARE` applies."""
_OLDEST: Final = 3
"""Only the oldest requests in flight, this many, are hedged: if many are late, the whole link is slow."""
_SHORTEST_LATE: Final = 0.005
_FEWEST_TIMES: Final = 32
"""Measured requests of a size class (or of all sizes) from which on their quantile decides when a request is late."""
_FEW_TIMES: Final = 4
"""Measured requests of any size from which on a request is late after four times the longest."""
_UNKNOWN_LATE: Final = 1.0
"""Seconds after which a request is late before that, on top of the time for its bytes."""
_LOOK: Final = 0.01
"""Seconds between two checks for late requests."""

T = TypeVar("T")


class Link:
    """Measures requests, bounds how many are in flight, and hedges late ones. Only its attributes may be read outside
    the event loop's thread. A forked child starts with an empty one.

    Attributes:
        latency: seconds to the first byte of an answer: the minimum of recent requests, because slower ones have waited
            for each other.
        bandwidth: bytes per second of one connection: the maximum of recent requests.
        requests, bytes: number of requests made, and bytes that they asked for.
        hedged, hedged_bytes: the same for hedges, which `requests` and `bytes` do not include.
        ranged: buckets and hosts that have answered with a range.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._busy = self._inside = 0
        self._window = Window()
        self.ranged: set[str] = set()
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
        """Bytes that arrive during one latency: reading over a smaller gap is cheaper than a second request."""
        return int(min(max(self.latency * self.bandwidth, _SMALLEST_GAP), _LARGEST_GAP))

    @property
    def limit(self) -> int:
        """Most requests that may be in flight now."""
        return min(self._called_for, MOST_REQUESTS)

    @property
    def _called_for(self) -> int:
        """Requests in flight that keep one event loop busy at this latency."""
        return int(max(self.latency * _REQUESTS_PER_SECOND, _FEWEST_REQUESTS))

    def _admits(self, size: int) -> bool:
        """Whether a request for `size` bytes may be made now."""
        # Where the latency calls for more than `MOST_REQUESTS`, these may have the bytes of up to twice as many.
        most = self._window.size(min(self._called_for, 2 * MOST_REQUESTS))
        return not self._busy or (self._busy < self.limit and self._inside + size <= most)

    def count(self, requests: int, size: int) -> None:
        """Count requests, and the bytes that they ask for."""
        self.requests += requests
        self.bytes += size

    def measured(self, latency: float, size: int, seconds: float) -> None:
        """Record a request: seconds to its first byte, and `seconds` for a body of `size` bytes."""
        # Computed here, because other threads read the results while this thread appends to the lists.
        known = self._latencies
        dropped = known[0] if len(known) == known.maxlen else math.inf
        known.append(latency)
        self.latency = min(known) if len(known) == 1 or dropped <= self.latency else min(self.latency, latency)
        if size >= _LONG_BODY and seconds > 0:
            self._bandwidths.append(size / seconds)
            self.bandwidth = max(self._bandwidths)

    async def fetch(self, size: int, ask: Callable[[], Awaitable[T]], turn: int = 0) -> T:
        """Make a request as soon as the limits allow it and none of an earlier turn waits, and return its answer.

        The request is made a second time if it takes longer than the 95 % quantile of its size class and than twice the
        median, and a third time if the second stalls, too: of at most 2 % of requests and bytes. The first answer
        counts, and the other requests are cancelled.

        Args:
            size: bytes that are asked for.
            ask: makes the request.
            turn: the step of the loop that needs it; requests of earlier steps go first, those of one step in order.
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
        """Take a finished request out of the counts, and start waiting ones that are admitted now."""
        self._busy -= 1
        self._inside -= size
        while self._queue and (self._queue[0][-1].done() or self._admits(self._queue[0][2])):
            _, _, wanted, waiting = heapq.heappop(self._queue)
            if not waiting.done():
                self._begin_one(wanted)
                waiting.set_result(None)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hedge the oldest requests that are late."""
        self._timer = loop.call_later(_LOOK, self._look, loop)
        for race in itertools.islice(self._races, _OLDEST):
            if loop.time() - race.since >= race.patience * self._late(race.size):
                # A quarter of the hedging budget is kept for requests that take three times as long: these are stuck,
                # others may be only late.
                if self._may_hedge(race.size, _HEDGED_SHARE * (0.75 if race.patience == 1 else 1)):
                    self.hedged += 1
                    self.hedged_bytes += race.size
                    race.ask_again(loop)
                race.patience = 3

    def _late(self, size: int) -> float:
        """Seconds after which a request for `size` bytes is late. With few measurements in its size class, those of all
        sizes are used, plus the time for its bytes."""
        times: Collection[float] = self._times.get(size.bit_length(), ())
        extra = 0.0
        if len(times) < _FEWEST_TIMES:
            times = [seconds for some in self._times.values() for seconds in some]
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
    """A request and its hedges, of which the first good answer counts.

    Attributes:
        begin, since: event loop time of the first request, and of the latest.
        size: bytes that it asks for.
        answer: the first success, or the error of the last one to fail.
        patience: the next hedge is made after this multiple of the time at which a request is late.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int, ask: Callable[[], Awaitable[T]]) -> None:
        self.size, self._ask, self.patience = size, ask, 1
        self.begin = loop.time()
        self.answer: asyncio.Future[T] = loop.create_future()
        self._asked: list[asyncio.Future[T]] = []
        self.ask_again(loop)

    def ask_again(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make the request again, beside those in flight."""
        self.since = loop.time()
        self._asked.append(asked := asyncio.ensure_future(self._ask()))
        asked.add_done_callback(self._ended)

    def end(self) -> None:
        """Cancel the requests in flight."""
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
        elif all(request.done() for request in self._asked):
            self.answer.set_exception(error)
