"""Samplers of consecutive frames at a stride or a rate: `Window`, `MultiRate` and `TiledWindows`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from streamvid.arrays import Bool, Float64, Int64
from streamvid.checks import exact, integer, is_integer, is_real, listed, one_of, shown, suggesting
from streamvid.errors import InputError
from streamvid.sampling.base import ClipTimes, FixedLengthSampler, PaddedSampler, SlotLayout

Rate = float | Fraction
Start = Literal["random", "center", "first"]
_STARTS: Final = ("random", "center", "first")
_MAX_SECONDS: Final = 1_000_000
_EXACT: Final = 1 << 62
"""Products below this fit into int64."""


@suggesting
@dataclass(frozen=True, repr=False)
class Window(FixedLengthSampler):
    """Consecutive frames: every `stride`-th, or `fps` a second by the clip's timestamps.

    Attributes:
        frames: frames in a sample.
        stride: step in frames; 1 if neither fps nor span is given.
        fps: frames a second. Each frame position shows the frame on screen at its time, so that variable frame rates
            come out right.
        start: the temporal crop: "random" for training, "center" for evaluation, "first" for the clip's first frame,
            or "even". A window by fps or span starts on a frame.
        span: instead of stride or fps, the least and the most seconds that a sample covers. Each sample covers a random
            duration in between, but no more than the clip's, with its frames spread evenly.
        windows: samples that a clip gives: with start="even", windows evenly spaced from the clip's start to its end (a
            single one lies in the centre); with start="random", random ones.
        jitter: move each frame position at random by up to that many frames, or seconds with fps or span, but neither
            out of the clip nor past the previous position.
        pad: see `streamvid.sampling.base.PaddedSampler`.

    Raises:
        InputError: an option is invalid, or options exclude each other.
    """

    stride: int | None = None
    fps: Rate | None = None
    start: Literal["random", "center", "first", "even"] = "random"
    span: tuple[float, float] | None = None
    windows: int = 1
    jitter: float = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.start, (*_STARTS, "even"), "Window(start)")
        given = [name for name in ("stride", "fps", "span") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InputError(f"Window takes stride, fps or span, not {' and '.join(given)} together")
        if self.stride is not None:
            integer(self.stride, "Window(stride)")
        if self.fps is not None:
            _check_rate(self.fps, "Window(fps)")
        if self.span is not None:
            object.__setattr__(self, "span", _checked_span(self.span))
        if integer(self.windows, "Window(windows)") > 1 and self.start not in ("even", "random"):
            raise InputError(f"{self.windows} windows at the {self.start} would be the same: take start='even'")
        if self._in_frames and not is_integer(self.jitter):
            raise InputError(f"Window(jitter) must be a whole number of frames, it is {shown(self.jitter)}")
        if not is_real(self.jitter) or not 0 <= self.jitter <= _MAX_SECONDS:
            raise InputError(f"Window(jitter) must be a number from 0 to {_MAX_SECONDS}, it is {shown(self.jitter)}")

    @property
    def num_random(self) -> int:
        return (self.start == "random") + (self.span is not None) + (self.frames if self.jitter else 0)

    def sample(self, clip: ClipTimes, random: Float64, number: int) -> SlotLayout:
        # `random` has one number for a random start, one for the span if given, then those of the jitter.
        if self._in_frames:
            steps, end = _by_stride(self.frames, self.stride or 1), clip.frames
            offset = _first(end - int(steps[-1]), self.start, random, number, self.windows)
        else:
            steps, end = self._ticks(clip, random), clip.duration
            offset = _first_tick(clip, int(steps[-1]), self.start, random, number, self.windows)
        position = steps + offset
        if self.jitter:
            most = int(self.jitter if self._in_frames else exact(self.jitter) / clip.tick)
            position = _moved(position, end, most, random[-self.frames :])
        return SlotLayout(position, end, in_ticks=not self._in_frames)

    def num_samples(self, frames: Int64, duration: Int64, tick: Fraction, whole: bool = False) -> Int64:
        return super().num_samples(frames, duration, tick, whole) * self.windows

    def is_too_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        if self.span is not None:
            # The span is cut to the clip's duration, so only a clip of duration 0 has no room for a frame.
            return np.asarray(duration < 1)
        return np.asarray((frames if self._in_frames else duration) <= self._steps(tick)[-1])

    @property
    def _in_frames(self) -> bool:
        return self.fps is None and self.span is None

    def _steps(self, tick: Fraction) -> Int64:
        """int64 [frames]: positions relative to the first, in frames or ticks."""
        if self.fps is None:
            return _by_stride(self.frames, self.stride or 1)
        return _by_rate(((self.frames, self.fps),), tick)

    def _ticks(self, clip: ClipTimes, random: Float64) -> Int64:
        """int64 [frames]: positions relative to the first, in ticks; by span, over a random one."""
        if self.span is None:
            return self._steps(clip.tick)
        least, most = (max(1, min(round(exact(seconds) / clip.tick), clip.duration)) for seconds in self.span)
        share = float(random[1 if self.start == "random" else 0])
        span = min(least + int(share * (most - least + 1)), most)
        # If the span has fewer ticks than frames, rounding up may reach its end, which is not part of it.
        return np.minimum(_multiples(0, self.frames, Fraction(span, self.frames)), span - 1)


@suggesting
@dataclass(frozen=True, repr=False)
class MultiRate(PaddedSampler):
    """Consecutive parts at different rates, by the clip's timestamps: such as 8 frames at 1 a second, then 16 frames at
    2 a second.

    The first frame of a part comes one step of the part before after the last frame of that part.

    Attributes:
        parts: for each part, how many frames, and how many a second.
        start: the temporal crop, as in `Window`.

    Raises:
        InputError: an option is invalid.
    """

    parts: Sequence[tuple[int, Rate]]
    start: Start = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.start, _STARTS, "MultiRate(start)")
        parts = tuple(listed(self.parts, "the parts of MultiRate", "(frames, fps)"))
        if not parts or not all(isinstance(part, Sequence) and len(part) == 2 for part in parts):
            raise InputError(f"MultiRate takes (frames, fps) parts such as [(8, 1.0), (16, 2.0)], not {self.parts!r}")
        for frames, rate in parts:
            integer(frames, "the frames of a part of MultiRate")
            _check_rate(rate, "the fps of a part of MultiRate")
        object.__setattr__(self, "parts", tuple((int(frames), rate) for frames, rate in parts))

    @property
    def num_frames(self) -> int:
        return sum(frames for frames, _ in self.parts)

    @property
    def num_random(self) -> int:
        return 1 if self.start == "random" else 0

    def sample(self, clip: ClipTimes, random: Float64, number: int) -> SlotLayout:
        steps = _by_rate(tuple(self.parts), clip.tick)
        offset = _first_tick(clip, int(steps[-1]), self.start, random, number, 1)
        return SlotLayout(steps + offset, clip.duration, in_ticks=True)

    def is_too_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        return np.asarray(duration <= _by_rate(tuple(self.parts), tick)[-1])


@suggesting
@dataclass(frozen=True, repr=False)
class TiledWindows(FixedLengthSampler):
    """The whole clip as consecutive windows of the same length, one sample each.

    The clip is sampled from its start to its end by stride or fps, and the result cut into windows. The last one is
    padded; with pad="none" it is left out.

    Attributes:
        frames: frames in a sample.
        step: from the start of a window to that of the next, in frame positions; default: `frames`, no overlap.
        stride: step from one frame position to the next in frames; 1 if fps is not given either.
        fps: frames a second.

    Raises:
        InputError: an option is invalid, or options exclude each other.
    """

    step: int | None = None
    stride: int | None = None
    fps: Rate | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stride is not None and self.fps is not None:
            raise InputError("TiledWindows takes stride or fps, not both")
        if self.step is not None:
            integer(self.step, "TiledWindows(step)")
        if self.stride is not None:
            integer(self.stride, "TiledWindows(stride)")
        if self.fps is not None:
            _check_rate(self.fps, "TiledWindows(fps)")

    def sample(self, clip: ClipTimes, random: Float64, number: int) -> SlotLayout:
        first = number * (self.step or self.frames)
        if self.fps is None:
            position = np.arange(first, first + self.frames) * (self.stride or 1)
            return SlotLayout(position, clip.frames, in_ticks=False)
        position = _multiples(first, self.frames, _ticks_per_frame(self.fps, clip.tick))
        return SlotLayout(position, clip.duration, in_ticks=True)

    def num_samples(self, frames: Int64, duration: Int64, tick: Fraction, whole: bool = False) -> Int64:
        step, rest = self.step or self.frames, self._length(frames, duration, tick) - self.frames
        if whole:
            return np.where(rest < 0, 0, rest // step + 1)
        # The last window is the first that reaches the clip's end; if step > frames, it may be the one before.
        reaching, starting = -(-rest // step) + 1, -(-(rest + self.frames) // step)
        return np.where(rest <= 0, 1, np.minimum(reaching, starting))

    def is_too_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        return np.asarray(self._length(frames, duration, tick) < self.frames)

    def _length(self, frames: Int64, duration: Int64, tick: Fraction) -> Int64:
        """int64 [clips]: frame positions from each clip's start to its end."""
        if self.fps is None:
            return -(-np.asarray(frames, dtype=np.int64) // (self.stride or 1))
        step = _ticks_per_frame(self.fps, tick)
        last = np.asarray(duration, dtype=np.int64) - 1
        if int(np.max(last, initial=0)) * step.denominator >= _EXACT:
            last = last.astype(object)
        return np.asarray(last * step.denominator // step.numerator + 1, dtype=np.int64)


def _first(count: int, start: str, random: Float64, number: int, windows: int) -> int:
    """One of `count` starts; 0 if there is none, because the clip is too short."""
    if count <= 1 or start == "first":
        return 0
    if start == "random":
        return min(int(random[0] * count), count - 1)
    return (count - 1) // 2 if windows == 1 or start == "center" else _share(count - 1, number, windows)


def _first_tick(clip: ClipTimes, span: int, start: str, random: Float64, number: int, windows: int) -> int:
    """The start in ticks of a window of `span` ticks; always a frame's timestamp."""
    count = 1 if start == "first" else clip.frames_before(clip.duration - span)
    if start in ("random", "first"):
        frame = _first(count, start, random, number, windows)
    else:
        number, parts = (1, 2) if windows == 1 else (number, windows - 1)
        last = int(clip.times(np.array([max(0, count - 1)]))[0])
        frame = int(clip.frames_at(np.array([-(last * -number // parts)]))[0])
    return int(clip.times(np.array([frame]))[0])


def _share(last: int, number: int, windows: int) -> int:
    """`last` x number / (windows - 1), rounded to the nearest whole number, halves up."""
    return (2 * number * last + windows - 1) // (2 * (windows - 1))


def _moved(position: Int64, end: int, most: int, random: Float64) -> Int64:
    """Positions moved at random by up to `most` forwards or backwards, within the clip and in order. Padding stays."""
    moved = position - most + (random * (2 * most + 1)).astype(np.int64)
    moved = np.maximum.accumulate(np.clip(moved, 0, max(0, end - 1)))
    return np.where(position < end, moved, position)


@lru_cache(maxsize=256)
def _by_stride(frames: int, stride: int) -> Int64:
    """int64 [frames]: 0, stride, 2 x stride …"""
    steps = np.arange(frames, dtype=np.int64) * stride
    steps.setflags(write=False)
    return steps


@lru_cache(maxsize=256)
def _by_rate(parts: tuple[tuple[int, Rate], ...], tick: Fraction) -> Int64:
    """int64 [positions]: the times in ticks of consecutive parts, each given as (frames, frames a second).

    Containers round timestamps to whole ticks. Rounding times up makes sampling at a clip's own rate give
    each frame once: a time less than a tick before a frame shows that frame.
    """
    instants, start = [], Fraction(0)
    for frames, rate in parts:
        step = _ticks_per_frame(rate, tick)
        for i in range(frames):
            instant = start + i * step
            instants.append(-(-instant.numerator // instant.denominator))
        start += frames * step
    steps = np.array(instants, dtype=np.int64)
    steps.setflags(write=False)
    return steps


def _multiples(first: int, count: int, step: Fraction) -> Int64:
    """int64 [count]: (first + i) x step, rounded up as `_by_rate` does."""
    if (first + count) * step.numerator < _EXACT:
        return -(np.arange(first, first + count) * -step.numerator // step.denominator)
    return np.array([-(-i * step.numerator // step.denominator) for i in range(first, first + count)], dtype=np.int64)


@lru_cache(maxsize=256)
def _ticks_per_frame(rate: Rate, tick: Fraction) -> Fraction:
    return 1 / (exact(rate).limit_denominator(100_000) * tick)


def _check_rate(value: Rate, name: str) -> None:
    if not is_real(value) or not 0.001 <= value <= 100_000:
        raise InputError(f"{name} must be a number from 0.001 to 100000, it is {shown(value)}")


def _checked_span(value: object) -> tuple[float, float]:
    if isinstance(value, Sequence) and len(value) == 2 and all(is_real(seconds) for seconds in value):
        least, most = value
        if 0 < least <= most <= _MAX_SECONDS:
            return least, most
    raise InputError(f"Window(span) takes the least and the most seconds, such as (1.0, 4.0); it is {shown(value)}")
