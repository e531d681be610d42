"""Times a way to single frames of a video, on fewer clips where all would take too long."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import av
import numpy as np

from streamvid.arrays import UInt8
from tools.bench.sources import FPS

FRAMES: Final = 16
STRIDE: Final = FPS
"""Frames from one wanted frame to the next: a second."""

SMALL: Final = 56
"""Side of the pictures that frames are told apart by."""

FrameNumbers = Sequence[Sequence[int]]
"""Of each clip."""


@dataclass(frozen=True)
class Way:
    """One way to get clips out of one video.

    Attributes:
        run: from frame numbers of clips to their frames, small.
        few: how many clips it works on at once; timing fewer would not say how long many take.
        first: seconds to the first batch of the last run, if it comes in batches; 0 else.
        packets: decoded for a clip on average; 0 if not known.
        draws: it draws the clips itself, as many as it was made for, so that all are always timed.
        numbers: of the frames of the first clip of the first run.
    """

    run: Callable[[FrameNumbers], Any]
    few: int
    first: Callable[[], float] = lambda: 0.0
    packets: float = 0.0
    draws: bool = False
    numbers: Callable[[], Sequence[int]] = lambda: _clip(0)


@dataclass(frozen=True)
class Timing:
    """The time that one way took for one video.

    Attributes:
        name: of the way.
        device: "cuda" or "cpu".
        length: of the video, in seconds.
        wanted: clips that it is asked for.
        seconds: for all of them, of each run; extrapolated if fewer were timed.
        clips: how many were timed.
        first: seconds to the first batch, after warming up.
        cold: seconds to open it and to get its very first batch.
        packets: decoded for a clip on average; 0 if not known.
        error: why it did not run.
        same: the frames of the first clip are the right ones; also if nothing was there to compare them with.
    """

    name: str
    device: str
    length: int
    wanted: int
    seconds: tuple[float, ...] = ()
    clips: int = 0
    first: float = 0.0
    cold: float = 0.0
    packets: float = 0.0
    error: str = ""
    same: bool = True

    @property
    def median(self) -> float:
        """Seconds for all clips; 0 if it did not run."""
        return statistics.median(self.seconds) if self.seconds else 0.0

    @property
    def is_cut(self) -> bool:
        """Whether the seconds are extrapolated."""
        return 0 < self.clips < self.wanted

    def with_more(self, other: Timing) -> Timing:
        """The same with another round's seconds; a round that failed changes nothing."""
        if not self.seconds or not other.seconds:
            return self if self.seconds else other
        if other.clips != self.clips:
            return max(self, other, key=lambda timing: timing.clips)
        return replace(self, seconds=self.seconds + other.seconds, same=self.same and other.same)


def random_clips(length: int, clips: int, seed: int) -> list[list[int]]:
    """Frame numbers of clips at random places of a video of so many seconds."""
    starts = np.random.default_rng(seed).integers(0, _last(length), clips).tolist()
    return [_clip(start) for start in starts]


def middle_clips(length: int, clips: int) -> list[list[int]]:
    """Clips around the middle of the video: the average for a way that decodes from the start."""
    return [_clip(_last(length) // 2 + number) for number in range(clips)]


def _last(length: int) -> int:
    """The last frame that a clip can begin with."""
    return length * FPS - (FRAMES - 1) * STRIDE - 1


def _clip(start: int) -> list[int]:
    return [start + STRIDE * number for number in range(FRAMES)]


def small_frames(piece: Path) -> UInt8:
    """All frames of a video, grey, uint8 [frames, SMALL, SMALL]."""
    with av.open(str(piece)) as container:
        frames = [frame.reformat(SMALL, SMALL, "gray", interpolation="AREA") for frame in container.decode(video=0)]
        return np.stack([frame.to_ndarray() for frame in frames])


def shows(found: Any, numbers: Sequence[int], reference: UInt8) -> bool:
    """Whether each frame of the first clip is nearer to the frame of its number than to those beside it.

    Args:
        found: what a way gave, [clips, frames, height, width, 3] or [clips, frames, 3, height, width], or
            batches of it.
        numbers: of the first clip's frames.
        reference: `small_frames` of what the video repeats.
    """
    clip = (found[0] if isinstance(found, list) else found)[0]
    pictures = np.asarray(clip.cpu() if hasattr(clip, "cpu") else clip, dtype=np.float32)
    grey = pictures.mean(axis=1 if pictures.shape[1] == 3 else 3)
    blocks = grey.reshape(len(grey), SMALL, grey.shape[1] // SMALL, SMALL, -1).mean(axis=(2, 4))
    apart = []
    for beside in (0, -1, 1):
        expected = reference[(np.asarray(numbers) + beside) % len(reference)].astype(np.float32)
        shift = (blocks - expected).mean(axis=(1, 2), keepdims=True)  # grey is another mean of the colours
        apart.append(np.abs(blocks - expected - shift).mean(axis=(1, 2)))
    return bool((apart[0] < np.minimum(apart[1], apart[2])).all())


def time_way(open_way: Callable[[], Way], empty: Timing, *, cut: float, reference: UInt8 | None = None) -> Timing:
    """Time one way, on all clips or on as many as fit.

    Opening and a first clip at the video's start come before: indexes are warm.

    Args:
        open_way: makes it.
        empty: its name, device, length, and how many clips are wanted.
        cut: seconds; if all clips would take longer, as many are timed as take about half of that, or
            `Way.few` of them.
        reference: see `shows`; None: nothing is compared.
    """
    clips = empty.wanted
    try:
        started = time.perf_counter()
        way = open_way()
        opened = time.perf_counter() - started
        seen = way.run([_clip(0)])
        empty = replace(empty, same=reference is None or shows(seen, way.numbers(), reference))
        first = way.first() or time.perf_counter() - started - opened
        timing = replace(empty, cold=opened + first, packets=way.packets)
        if not way.draws and way.few < clips:
            sample = middle_clips(empty.length, way.few)
            spent = _seconds(way, sample)
            if spent / way.few * clips > cut:
                count = int(cut / 2 / (spent / way.few)) // way.few * way.few
                if count > way.few:
                    return replace(timing, seconds=_run(way, random_clips(empty.length, count, 3), clips), clips=count)
                return replace(timing, seconds=(spent / way.few * clips,), clips=way.few)
        timing = replace(timing, seconds=_run(way, random_clips(empty.length, clips, 3), clips), clips=clips)
        return replace(timing, first=way.first())
    except Exception as error:
        return replace(empty, error=f"{type(error).__name__}: {_brief(str(error))}")
    finally:
        gc.collect()


def _run(way: Way, wanted: FrameNumbers, clips: int) -> tuple[float]:
    return (_seconds(way, wanted) / len(wanted) * clips,)


def _seconds(way: Way, wanted: FrameNumbers) -> float:
    started = time.perf_counter()
    way.run(wanted)
    return time.perf_counter() - started


def _brief(text: str) -> str:
    """An error in a line. DALI's sentence comes behind the traceback of the graph, in front of its own stack."""
    text = text.partition("encountered:")[2] or text
    return " ".join(text.partition("C++ context")[0].split())[:200]
