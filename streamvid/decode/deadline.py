"""How long decoding a slice may take, by the pace that was measured in this run."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, TypeVar

from streamvid.video.packet_selection import EncodedSlice

T = TypeVar("T")

LEAST_S: Final = 10.0
"""Seconds that every slice may take."""
_PATIENCE: Final = 20.0
"""How many times as long as at the median pace a slice may take. Packets of one clip differ by less; what slows all
of them, such as a busy machine, slows the pace, too."""
_PIXELS_PER_S: Final = 10_000_000
"""The pace that is assumed before any was measured, patience included: a tenth of a slow core's."""
_REMEMBERED: Final = 63
LATE_S: Final = 30.0
"""Seconds after which the log says of what clips a batch is."""
_NAMED: Final = 8

log = logging.getLogger(__name__)


class Pace:
    """Seconds per packet of the slices decoded last, by codec and size of their frames. Thread-safe.

    Args:
        least_s: seconds that every slice may take.
    """

    def __init__(self, *, least_s: float = LEAST_S) -> None:
        self.least_s = least_s
        self._lock = threading.Lock()
        self._measured: defaultdict[tuple[str, int], deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))

    def add(self, encoded: EncodedSlice, packets: int, seconds: float) -> None:
        """Note that so many packets of a slice were decoded in so many seconds."""
        with self._lock:
            self._measured[_kind(encoded)].append(seconds / packets)

    def deadline(self, encoded: EncodedSlice, packets: int | None = None) -> float:
        """Seconds that decoding a slice, or so many packets of it, may take, as `streamvid.stopwatch.Stopwatch` counts
        them: `_PATIENCE` times as many as at the median pace of slices of its codec and size, and at least `LEAST_S`.
        """
        packets = len(encoded.sizes) if packets is None else packets
        with self._lock:
            return max(self.least_s, packets * self._each(encoded))

    def measured(self, encoded: EncodedSlice) -> float | None:
        """The median of the seconds per packet of slices of its codec and size; None before the first."""
        with self._lock:
            found = self._measured.get(_kind(encoded))
            return median(found) if found else None

    def add_all(self, slices: Sequence[EncodedSlice], seconds: float) -> None:
        """Note that a batch was decoded in so many seconds, which its slices share by their packets' pixels."""
        pixels = [len(one.sizes) * one.width * one.height for one in slices]
        for one, share in zip(slices, pixels, strict=True):
            self.add(one, len(one.sizes), seconds * share / sum(pixels))

    def deadline_of_all(self, slices: Sequence[EncodedSlice]) -> float:
        """Seconds that decoding a batch may take."""
        with self._lock:
            return max(self.least_s, sum(len(one.sizes) * self._each(one) for one in slices))

    def _each(self, encoded: EncodedSlice) -> float:
        measured = self._measured.get(_kind(encoded), ())
        return _PATIENCE * median(measured) if measured else encoded.width * encoded.height / _PIXELS_PER_S


class LateBatches:
    """Names the clips of a batch that takes long, whatever it is that does, such as a DALI pipeline. It only logs.

    Args:
        late_s: seconds after which a batch is late, unless another has taken a fifth of them, or more.
    """

    def __init__(self, *, late_s: float | None = None) -> None:
        self._late_s, self._slowest = LATE_S if late_s is None else late_s, 0.0

    def wait_for(self, result: Callable[[], T], names: Sequence[str]) -> T:
        """The result of a batch of clips of these names."""
        began, late_s = time.monotonic(), max(self._late_s, 5 * self._slowest)
        timer = threading.Timer(late_s, _say_late, (late_s, names))
        timer.daemon = True
        timer.start()
        try:
            return result()
        finally:
            timer.cancel()
            self._slowest = max(self._slowest, time.monotonic() - began)


def _say_late(late_s: float, names: Sequence[str]) -> None:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    log.warning("a batch is not decoded after %.0f s; its clips are %s%s", late_s, ", ".join(names[:_NAMED]), more)


def _kind(encoded: EncodedSlice) -> tuple[str, int]:
    """Codec, and pixels of a frame up to a factor of two: a dataset may have thousands of sizes."""
    return encoded.codec, (encoded.width * encoded.height).bit_length()
