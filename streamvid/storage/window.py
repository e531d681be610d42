"""How many bytes may be under way at a time before requests only wait for each other: found by trying."""

from __future__ import annotations

from typing import Final

_BODY: Final = 512 << 10
"""The window is counted in bodies of so many bytes, as many as requests may be under way at most."""
_FIRST: Final = 0.25
_LEAST: Final = 1 / 32
_GROWS: Final = 1.2
_SUFFERS: Final = 0.95
"""Twice as many bytes stay if they bring so many times as much, half as many if they bring that much."""
_REST: Final = 16
"""Measurements until the next trial, after both were in vain."""


class Window:
    """Bytes that may be under way: halved where throughput does not suffer from that, doubled where it grows. What
    comes is compared only while requests wait for their turn.

    More than latency times throughput only wait for each other, in the storage or on the link: each takes longer, a
    stalled one is told from the others later, and those of the next step share the link with those of later ones.
    Times of single requests do not tell, as storages answer some ten times later than others at any load.
    """

    def __init__(self) -> None:
        self._share, self._trial, self._next = _FIRST, 1.0, 2.0
        self._usual = self._begin = 0.0
        self._rest, self._vain, self._count, self._bytes = 2, 0, 0, 0

    def size(self, most: int) -> int:
        """Bytes that may be under way, of so many requests at most."""
        return int(self._share * self._trial * most * _BODY)

    def idle(self) -> None:
        """None waits: what comes then says nothing."""
        self._count = 0

    def came(self, now: float, size: int, busy: int) -> None:
        """So many bytes have come, while others wait and so many requests are under way; `now` in seconds."""
        self._count += 1
        if self._count <= busy:  # they were asked for when the window was another
            self._begin, self._bytes = now, 0
            return
        self._bytes += size
        if self._count >= 3 * busy and now > self._begin:
            self._count = 0
            self._judge(self._bytes / (now - self._begin))

    def _judge(self, rate: float) -> None:
        """Take the throughput of the window that is tried, or of the usual one."""
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
