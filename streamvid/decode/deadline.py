"""Deadlines for decoding a slice, from the pace measured in this run."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Final, TypeVar

from streamvid.stopwatch import TICK_S
from streamvid.video.packet_selection import EncodedSlice

T = TypeVar("T")

LEAST_S: Final = 10.0
"""Shortest deadline, in seconds."""
_PATIENCE: Final = 20.0
"""A deadline is this multiple of the time at the median pace. Packets of one clip differ by less, and a busy machine
slows the measured pace, too."""
_PIXELS_PER_S: Final = 10_000_000
"""The pace assumed before the first measurement, `_PATIENCE` included: a tenth of the pace of a slow core."""
_REMEMBERED: Final = 63
LATE_S: Final = 30.0
"""Seconds after which the log names the clips of an unfinished batch."""
_NAMED: Final = 8

log = logging.getLogger(__name__)


class Pace:
    """Seconds per packet of the latest slices, by codec and frame size. Thread-safe.

    Args:
        least_s: shortest deadline, in seconds.
    """

    def __init__(self, *, least_s: float = LEAST_S) -> None:
        self.least_s = least_s
        self._lock = threading.Lock()
        self._measured: defaultdict[tuple[str, int], deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))

    def add(self, encoded: EncodedSlice, packets: int, seconds: float) -> None:
        """Record that `packets` packets of a slice were decoded in `seconds`."""
        with self._lock:
            self._measured[_kind(encoded)].append(seconds / packets)

    def deadline(self, encoded: EncodedSlice, packets: int | None = None) -> float:
        """Most seconds for decoding a slice, or `packets` packets of it, as `streamvid.stopwatch.Stopwatch` counts
        them: 20 times the median for slices of its codec and size, and at least `least_s`."""
        packets = len(encoded.sizes) if packets is None else packets
        with self._lock:
            return max(self.least_s, packets * self._each(encoded))

    def measured(self, encoded: EncodedSlice) -> float | None:
        """Median seconds per packet of slices of this codec and size; None before the first."""
        with self._lock:
            found = self._measured.get(_kind(encoded))
            return median(found) if found else None

    def add_all(self, slices: Sequence[EncodedSlice], seconds: float) -> None:
        """Record that a batch was decoded in `seconds`, divided among its slices in proportion to packets × pixels."""
        pixels = [len(encoded.sizes) * encoded.width * encoded.height for encoded in slices]
        for encoded, share in zip(slices, pixels, strict=True):
            self.add(encoded, len(encoded.sizes), seconds * share / sum(pixels))

    def deadline_of_all(self, slices: Sequence[EncodedSlice]) -> float:
        """Most seconds for decoding a batch."""
        with self._lock:
            return max(self.least_s, sum(len(encoded.sizes) * self._each(encoded) for encoded in slices))

    def _each(self, encoded: EncodedSlice) -> float:
        measured = self._measured.get(_kind(encoded), ())
        return _PATIENCE * median(measured) if measured else encoded.width * encoded.height / _PIXELS_PER_S


class LateBatches:
    """Logs the clips of a slow batch, for stages without a deadline, such as a DALI pipeline.

    A context manager: one thread watches all batches, because starting one for each batch would need the GIL several
    times.

    Args:
        late_s: seconds after which a batch is late; at least five times the longest batch so far.
    """

    def __init__(self, *, late_s: float | None = None) -> None:
        self._late_s, self._slowest = LATE_S if late_s is None else late_s, 0.0
        # The time at which the current batch is late, and the message for it.
        self._waits: tuple[float, Callable[[], None]] | None = None
        # Held until the end. A bare lock, because the internal lock of an Event may be held during a fork.
        self._going = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="streamvid-late", daemon=True)

    def __enter__(self) -> LateBatches:
        self._going.acquire()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._going.release()
        # A daemon thread that the interpreter stopped at exit never ends. The garbage collector may make this call in
        # any thread: in the watching thread itself, or in one that holds a lock for which that thread waits.
        if not sys.is_finalizing() and self._thread is not threading.current_thread():
            self._thread.join(TICK_S)

    def wait_for(self, result: Callable[[], T], names: Sequence[str]) -> T:
        """Wait for the result of a batch of clips with these names."""
        began, late_s = time.monotonic(), max(self._late_s, 5 * self._slowest)
        self._waits = began + late_s, partial(_say_late, late_s, names)
        try:
            return result()
        finally:
            self._waits = None
            self._slowest = max(self._slowest, time.monotonic() - began)

    def _watch(self) -> None:
        tick, said = min(TICK_S, self._late_s / 4), None
        while not self._going.acquire(timeout=tick):
            waits = self._waits
            if waits is not None and waits is not said and time.monotonic() >= waits[0]:
                said = waits
                waits[1]()


def _say_late(late_s: float, names: Sequence[str]) -> None:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    log.warning("a batch is not decoded after %.0f s; its clips are %s%s", late_s, ", ".join(names[:_NAMED]), more)


def _kind(encoded: EncodedSlice) -> tuple[str, int]:
    """Codec, and bit length of the pixels per frame: a dataset may have thousands of sizes."""
    return encoded.codec, (encoded.width * encoded.height).bit_length()
