"""Which frames come out of a decoder that is given several packets at once. Knows nothing of GPUs.

A frame carries the time that was given with its packet; of packets that were given together only the first has one,
and NVIDIA's parser makes up the others. So frames are known by their order, and that order is checked: frames that
have a time must stand where they are expected, and a run counts as decoded only when a frame of a later one stood where
it was expected, or nothing is left. A frame too many or too few is noticed in time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from streamvid.errors import VideoError

TOGETHER: Final = 8
"""Packets that are given to a decoder at once: each time, Python's lock is given away and must be got back, among all
threads that want it. With 8, HEVC of 720 rows takes a tenth less time than with 1, small frames of HEVC a sixth."""
_RANK_BITS: Final = 24
_MADE_UP_BITS: Final = 16
"""What the parser makes up is the time before plus milliseconds: these bits keep it apart from what was given."""
_NUMBERS: Final = 1 << 20
"""Runs whose times differ; by far not as many are in a decoder."""


class Arrivals:
    """Frames that are expected from one decoder."""

    def __init__(self) -> None:
        # Times of all frames to come, in order, with the number of their run.
        self._expected: deque[tuple[int, int]] = deque()
        self._given: set[int] = set()
        self._exact = False
        self._last = 0
        self.certain = 0
        """Of all runs with a lower number it is certain which frames came."""

    def send(self, number: int, ranks: Sequence[int], *, exact: bool) -> Iterator[tuple[int, int, int]]:
        """What to give to the decoder for a run.

        Args:
            number: the run's, higher than of those before.
            ranks: of its packets, in decode order: their places in presentation order.
            exact: each packet by itself, with its time, so that order does not matter. Nothing else may be in the
                decoder.

        Returns:
            first packet, end, and time.
        """
        self._exact, self._last = exact, number
        if not exact:
            self._expected.extend((time_of(number, rank), number) for rank in sorted(ranks))
        step = 1 if exact else TOGETHER
        for first in range(0, len(ranks), step):
            time = time_of(number, ranks[first])
            if not exact:
                self._given.add(time)
            yield first, min(first + step, len(ranks)), time

    def came(self, time: int) -> int:
        """The time that a frame should have, by that which it has.

        Raises:
            VideoError: it is another than the next one.
        """
        if self._exact:
            return time
        if not self._expected:
            raise VideoError("more frames come out of the decoder than packets were given to it")
        expected, number = self._expected.popleft()
        if time in self._given or expected in self._given:
            if time != expected:
                raise VideoError("frames come out of the decoder that do not belong there")
            self._given.discard(time)
            self.certain = number
        return expected

    def ended(self) -> int:
        """Nothing is left in the decoder.

        Returns:
            how many frames did not come; if 0, all runs are certain.
        """
        missing = len(self._expected)
        self.forget()
        if not missing:
            self.certain = self._last + 1
        return missing

    def forget(self) -> None:
        """Expect nothing."""
        self._expected.clear()
        self._given.clear()


def time_of(number: int, rank: int) -> int:
    """What a packet is given as its time: not negative, less than 2⁶⁰."""
    return (number % _NUMBERS << _RANK_BITS | rank) << _MADE_UP_BITS
