"""Runs that wait for a decoder, and which of them each decoder takes next. Knows nothing of GPUs.

Decoders take what they can when they are free: so a slow one holds up nobody, and the engines of a chip go from one
batch to the next without a pause. Opening a decoder costs as much as decoding some dozens of packets, so an engine
goes on with what it has decoders for, unless there is enough of another kind.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from streamvid.decode.decode_job import GopJob, SessionKey
from streamvid.errors import VideoError

OPENING: Final = 64
"""Packets that are decoded in the time that it takes to open a decoder: 45 ms, against 0.7 ms for a packet of H.264
with 720 rows, on an H200."""
SPARE: Final = 3
"""Runs go to a core of the CPU if what waits would keep every engine busy for as long as so many times those runs: a
core takes one to two and a half times as long as an engine, and must not be what a batch waits for in the end."""
SPARE_PIXELS: Final = 20_000_000
"""A core takes so many runs at once that there is this much to decode, frames times pixels: what Python does each time
weighs more else than what the chip does, and more threads hinder. A dozen frames of 1080p are enough, or two dozen of
720p."""
_SMALL: Final = 500_000
"""Frames with less pixels are left to the engines, likewise."""
_PATIENCE: Final = 0.05
"""Seconds that an engine that could open a decoder leaves work to others that have one."""


class DecodeQueue:
    """Runs, by batch and kind.

    Args:
        engines: how many take from it, beside cores of the CPU.
    """

    def __init__(self, *, engines: int) -> None:
        self._engines = engines
        self._changed = threading.Condition()
        # Of each batch, by kind: the longest first, so that the last to be taken are short (Graham 1969).
        self._batches: deque[dict[SessionKey, deque[GopJob]]] = deque()
        self._again: deque[GopJob] = deque()
        self._packets = 0
        self._ended = False
        self._holders: Counter[SessionKey] = Counter()
        self._seen: Counter[SessionKey] = Counter()

    def put(self, runs: Sequence[GopJob]) -> None:
        """Add a batch."""
        kinds: dict[SessionKey, list[GopJob]] = {}
        for run in runs:
            kinds.setdefault(run.kind, []).append(run)
        with self._changed:
            for kind, mine in kinds.items():
                self._seen[kind] += sum(len(run.packets) for run in mine)
            self._packets += sum(len(run.packets) for run in runs)
            if kinds:
                self._batches.append({k: deque(sorted(v, key=lambda run: -len(run.packets))) for k, v in kinds.items()})
            self._changed.notify_all()

    def again(self, run: GopJob, error: VideoError) -> None:
        """A run failed: it is tried once more by an engine, with no other beside it; then its batch fails."""
        with self._changed:
            if run.tried is None and self._engines and not self._ended:
                self._again.append(replace(run, tried=error))
                self._changed.notify_all()
                return
        run.batch.failed(error)

    def take(self, *, current: SessionKey | None, opened: Collection[SessionKey], block: bool) -> GopJob | None:
        """The next run for an engine.

        Args:
            current: what it has been decoding.
            opened: what else it has decoders for. If it is given a run of another kind, that counts as opened.
            block: wait for one.

        Returns:
            None if there is none, or, with `block`, if none will come any more.
        """
        patient = True
        with self._changed:
            while True:
                picky = patient and not self._ended
                run = self._again.popleft() if self._again else self._choose(current, opened, picky=picky)
                if run is not None:
                    if run.kind not in opened:
                        self._holders[run.kind] += 1
                    return run
                if not block or (self._ended and not self._batches):
                    return None
                # Those that have decoders for what waits may have much else to do.
                patient = self._changed.wait(_PATIENCE if self._batches else None)

    def spare(self) -> list[GopJob]:
        """The next runs for a core of the CPU, of one batch and kind; waits until there are enough. Empty if none will
        come any more."""
        with self._changed:
            while True:
                for batch in self._batches:
                    # What most of a batch is made of takes longest.
                    for kind in sorted(batch, key=lambda kind: -len(batch[kind]) * kind.width * kind.height):
                        runs = batch[kind]
                        # The shortest: the longest are for those who come first.
                        count = _worth_it(runs) or (0 if self._engines else 1)
                        packets = sum(len(runs[-n].packets) for n in range(1, count + 1))
                        if count and self._packets >= SPARE * self._engines * packets:
                            return [self._pop(batch, kind, -1) for _ in range(count)]
                if self._ended:
                    return []
                self._changed.wait()

    def closed(self, kind: SessionKey) -> None:
        """An engine has no decoder for it any more."""
        with self._changed:
            self._holders[kind] = max(0, self._holders[kind] - 1)
            self._changed.notify_all()

    def end(self) -> None:
        """No more will come; what waits is still decoded."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _choose(self, current: SessionKey | None, opened: Collection[SessionKey], *, picky: bool) -> GopJob | None:
        for batch in self._batches:
            if current in batch:
                return self._pop(batch, current)
            # What most of a batch is made of takes longest.
            kinds = sorted(batch, key=lambda kind: -len(batch[kind]))
            for kind in kinds:
                if kind in opened:
                    return self._pop(batch, kind)
            for kind in kinds:
                holders = self._holders[kind]
                if not picky or not holders or self._seen[kind] >= OPENING * (holders + 1):
                    return self._pop(batch, kind)
        return None

    def _pop(self, batch: dict[SessionKey, deque[GopJob]], kind: SessionKey, place: int = 0) -> GopJob:
        run = batch[kind][place]
        del batch[kind][place]
        if not batch[kind]:
            del batch[kind]
        # A batch that is empty would stand in the way of `spare`.
        if not batch:
            self._batches.remove(batch)
        self._packets -= len(run.packets)
        return run


def _worth_it(runs: Sequence[GopJob]) -> int:
    """How many of the last make up enough for a core; 0 if all do not."""
    pixels = runs[0].kind.width * runs[0].kind.height
    if pixels < _SMALL:
        return 0
    work = accumulate(len(run.packets) * pixels for run in reversed(runs))
    return next((count for count, sum_of in enumerate(work, 1) if sum_of >= SPARE_PIXELS), 0)
