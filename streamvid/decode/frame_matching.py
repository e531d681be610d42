"""Which frames come out of a decoder that is given several packets at once. Knows nothing of GPUs.

A frame carries the time that was given with its packet; of packets that were given together only the first has one,
and NVIDIA's parser makes up the others. So frames are known by their order, and that order is checked: frames whose
times were given must stand where they are expected, and a run counts as decoded only when one of a later run did, or
nothing is left. A frame too many or too few is noticed in time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from streamvid.errors import VideoError

TOGETHER: Final = 8
"""Packets that are given to a decoder at once: each time, Python's lock is given away and must be got back, among all
threads that want it. With 8 instead of 1, HEVC of 720 rows takes an eighth to a quarter less: docs/performance.md."""

Place = tuple[int, int]
"""Where a frame goes: the number of its run, and the row."""

_RANK_BITS: Final = 24
_MADE_UP_BITS: Final = 16
"""What the parser makes up is the time before plus milliseconds: these bits keep it apart from what was given."""
_NUMBERS: Final = 1 << 20
"""Runs whose times differ; by far not as many are in a decoder."""


class FrameMatcher:
    """Frames that are expected from one decoder."""

    def __init__(self) -> None:
        # Of all frames to come, in order: their runs, where they go, and their times if those were given.
        self._expected: deque[tuple[int, Place | None, int | None]] = deque()
        # Likewise, by time, where order does not matter.
        self._places: dict[int, Place] = {}
        self._exact = False
        self._last = 0
        self.certain = 0
        """Of all runs with a lower number it is certain which frames came."""

    def send(
        self, number: int, ranks: Sequence[int], rows: Mapping[int, int], *, exact: bool
    ) -> list[tuple[int, int, int]]:
        """What to give to the decoder for a run.

        Args:
            number: the run's, higher than of those before.
            ranks: of its packets, in decode order: their places in presentation order.
            rows: of its wanted frames, by rank, where they go.
            exact: each packet by itself, with its time, so that order does not matter. Nothing else may be in the
                decoder.

        Returns:
            first packet, end, and time.
        """
        self._exact, self._last = exact, number
        step = 1 if exact else TOGETHER
        if exact:
            self._places = {time_of(number, rank): (number, row) for rank, row in rows.items()}
        else:
            given = {rank: time_of(number, rank) for rank in ranks[::step]}
            places = {rank: (number, row) for rank, row in rows.items()}
            self._expected.extend([(number, places.get(rank), given.get(rank)) for rank in sorted(ranks)])
        return [
            (first, min(first + step, len(ranks)), time_of(number, ranks[first]))
            for first in range(0, len(ranks), step)
        ]

    def came(self, time: Callable[[], int]) -> Place | None:
        """Where a frame goes; None if nobody wants it.

        Args:
            time: gives the one that the frame has. To ask for it takes time, so it is asked where it must be known.

        Raises:
            VideoError: it is another frame than the next one.
        """
        if self._exact:
            return self._places.pop(time(), None)
        if not self._expected:
            raise VideoError("more frames come out of the decoder than packets were given to it")
        number, place, given = self._expected.popleft()
        if given is not None:
            if time() != given:
                raise VideoError("frames come out of the decoder that do not belong there")
            self.certain = number
        return place

    def ended(self) -> int:
        """Nothing is left in the decoder.

        Returns:
            how many frames did not come, of those that are wanted if order did not matter; if 0, all runs are certain.
        """
        missing = len(self._places) if self._exact else len(self._expected)
        self.forget()
        if not missing:
            self.certain = self._last + 1
        return missing

    def forget(self) -> None:
        """Expect nothing."""
        self._expected.clear()
        self._places.clear()


def time_of(number: int, rank: int) -> int:
    """What a packet is given as its time: not negative, less than 2⁶⁰."""
    return (number % _NUMBERS << _RANK_BITS | rank) << _MADE_UP_BITS
