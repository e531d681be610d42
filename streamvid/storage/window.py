"""A congestion window for ranged requests: the bytes that may be in flight, adapted to the measured throughput."""

from __future__ import annotations

from typing import Final

_BODY: Final = 512 << 10
"""Bytes per request in the largest window."""
_FIRST: Final = 0.25
_LEAST: Final = 1 / 32
"""The first and the smallest window, as shares of the largest."""
_GROWS: Final = 1.2
_SUFFERS: Final = 0.95
"""A doubled window is kept if throughput grows by the first factor; a halved one if it keeps the second share."""
_REST: Final = 16
"""Measurements until the next trial, after a doubled and a halved window were both given up."""


class Window:
    """The number of bytes that may be in flight. A trial halves or doubles it for one measurement of throughput, and
    the new size stays if throughput does not suffer or grows, respectively. Measured only while requests wait for the
    window, as throughput has another bound otherwise.

    With more bytes in flight than latency × throughput, requests wait for each other in the storage or on the link:
    each takes longer, a stalled request is noticed later, and requests of the next step share the link with those of
    later steps. Latency is no signal: storages answer some requests ten times later than others at any load.
    """

    def __init__(self) -> None:
        self._share, self._trial, self._next = _FIRST, 1.0, 2.0
        self._usual = self._begin = 0.0
        self._rest, self._vain, self._count, self._bytes = 2, 0, 0, 0

    def size(self, most: int) -> int:
        """Bytes that may be in flight, of about `most` concurrent requests."""
        return int(self._share * self._trial * most * _BODY)

    def idle(self) -> None:
        """Restart the measurement, as no request waits for the window."""
        self._count = 0

    def came(self, now: float, size: int, busy: int) -> None:
        """Record a response of `size` bytes at time `now` in seconds, with `busy` requests in flight and others waiting
        for the window."""
        self._count += 1
        if self._count <= busy:  # these requests were made under the previous window
            self._begin, self._bytes = now, 0
            return
        self._bytes += size
        if self._count >= 3 * busy and now > self._begin:
            self._count = 0
            self._judge(self._bytes / (now - self._begin))

    def _judge(self, rate: float) -> None:
        """Take a measurement, in bytes per second, of the window on trial, or of the current one between trials."""
        if self._trial == 1.0:
            self._usual = rate
            self._rest -= 1
        elif rate >= self._usual * (_GROWS if self._trial > 1 else _SUFFERS):
            self._share, self._usual, self._vain = self._share * self._trial, rate, 0
        else:
            self._next, self._vain = 1 / self._trial, self._vain + 1
            self._rest = 1 if self._vain < 2 else _REST
        possible = self._share < 1 if self._next > 1 else self._share > _LEAST
        self._next = self._next if possible else 1 / self._next
        self._trial = self._next if self._rest <= 0 else 1.0
