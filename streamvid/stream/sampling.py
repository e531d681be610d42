"""Which frames of a clip a sample shows: small pure functions over timestamps. docs/sampling.md states the rules.

A sampler places its slots on an axis: frame numbers, or ticks of the clip's clock. The axis ends where the clip
does; slots at or behind its end are padding. `select` turns places into frame numbers, and gives the padding frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from streamvid.errors import InputError
from streamvid.video.index import Int64

Pad = Literal["edge", "constant", "reflect_101", "reflect_1001", "none"]
PADS: tuple[Pad, ...] = ("edge", "constant", "reflect_101", "reflect_1001", "none")
Place = Literal["random", "center", "start"]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ClipTimes:
    """When the frames of a clip are shown.

    Attributes:
        pts: int64 [frames], ticks, never falling, the first 0.
        duration: ticks from the first frame to the end of the last.
        tick: seconds per tick.
    """

    pts: Int64
    duration: int
    tick: Fraction


@dataclass(frozen=True)
class Slots:
    """Where a sampler puts its slots.

    Attributes:
        position: int64 [slots], frame numbers or ticks; those at or behind `end` are padding.
        end: where the clip ends on that axis: its number of frames, or its duration.
        in_ticks: which axis it is.
    """

    position: Int64
    end: int
    in_ticks: bool


@dataclass(frozen=True)
class Selection:
    """The frames of one sample.

    Attributes:
        frames: int64 [slots], frame numbers; -1 for a slot that shows a constant picture.
        mask: bool [slots], True for a real frame, False for padding.
        seconds: float64 [slots], when the slot's frame is shown, counted from the clip's first frame; -1 for a
            constant picture.
    """

    frames: Int64
    mask: Bools
    seconds: Floats


class Sampling(Protocol):
    """What every way of sampling offers."""

    @property
    def slots(self) -> int | None:
        """Frames in a sample; None where it depends on the clip."""

    @property
    def draws(self) -> int:
        """How many random numbers `lay_out` takes."""

    def samples(self, frames: Int64, duration: Int64, tick: Fraction) -> Int64:
        """int64 [clips]: how many samples each clip gives, from its frames and its duration in ticks."""

    def lay_out(self, clip: ClipTimes, random: Floats, sample: int) -> Slots:
        """Place the slots of a clip's sample number `sample`; `random` is float64 [draws], uniform in [0, 1)."""

    def is_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bools:
        """bool [clips]: which clips, given their frames and their durations in ticks, are too short and would be
        padded."""


def select(sampling: Sampling, clip: ClipTimes, random: Floats, pad: Pad, *, sample: int = 0) -> Selection:
    """The frames of one sample of a clip.

    Args:
        sampling: how to choose.
        clip: the clip's times.
        random: float64 [sampling.draws], uniform in [0, 1).
        pad: what slots behind the clip's end show: "edge" the last frame, "constant" a constant picture,
            "reflect_101" the frames backwards from the one before the last, "reflect_1001" from the last.
        sample: which of the clip's samples.

    Raises:
        ValueError: the clip is short and `pad` is "none".
    """
    slots = sampling.lay_out(clip, random, sample)
    mask = slots.position < slots.end
    if mask.all():
        frames = _on_screen(clip, slots.position) if slots.in_ticks else slots.position
        return Selection(frames, mask, _seconds(clip, frames))
    if pad == "none":
        raise ValueError("the clip is too short, and padding is off")
    count = len(clip.pts)
    if not slots.in_ticks:
        frames = np.where(mask, slots.position, _fold(slots.position, count, pad))
    else:
        frames = _on_screen(clip, slots.position)
        if pad in ("reflect_101", "reflect_1001"):
            # Instants do not fold exactly where containers round times to ticks; slots do.
            frames = frames[_fold(np.arange(len(frames)), int(mask.sum()), pad)]
    seconds = _seconds(clip, frames)
    if pad == "constant":
        frames = np.where(mask, frames, -1)
        seconds = np.where(mask, seconds, -1.0)
    return Selection(frames, mask, seconds)


def _on_screen(clip: ClipTimes, instants: Int64) -> Int64:
    """The frames on screen at those ticks; behind the end the last one."""
    return np.maximum(np.searchsorted(clip.pts, instants, side="right") - 1, 0)


def _seconds(clip: ClipTimes, frames: Int64) -> Floats:
    return np.asarray(clip.pts[frames] * float(clip.tick), dtype=np.float64)


def _fold(number: Int64, count: int, pad: Pad) -> Int64:
    """Bring numbers from `count` on back into 0 … count-1, by the padding mode; others stay."""
    if pad == "reflect_101" and count > 1:
        folded = number % (2 * count - 2)
        return np.where(folded >= count, 2 * count - 2 - folded, folded)
    if pad == "reflect_1001":
        folded = number % (2 * count)
        return np.where(folded >= count, 2 * count - 1 - folded, folded)
    return np.minimum(number, count - 1)


@lru_cache(maxsize=256)
def _instants(frames: int, step: Fraction) -> Int64:
    """int64 [frames]: i x step ticks, rounded up.

    Containers round timestamps to whole ticks. Rounding the instants up makes sampling at a clip's own rate give
    each frame once: an instant less than a tick before a frame shows that frame.
    """
    instants = np.array([-(-i * step.numerator // step.denominator) for i in range(frames)], dtype=np.int64)
    instants.setflags(write=False)
    return instants


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, it is {value!r}")
    return int(value)


def _one_of(value: object, allowed: Sequence[str], name: str) -> None:
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}; it is {value!r}")


def _start(count: int, place: Place, random: Floats) -> int:
    """One of `count` starts; 0 if there is none, as in a clip that is too short."""
    if count <= 1 or place == "start":
        return 0
    if place == "center":
        return (count - 1) // 2
    return min(int(random[0] * count), count - 1)


@dataclass(frozen=True)
class Window:
    """Frames one after another: every `stride`-th, or `fps` a second by the clip's timestamps.

    Attributes:
        frames: frames in a sample.
        stride: step in frames; 1 if fps is not given either.
        fps: frames a second. Each slot shows the frame on screen at its instant, so variable frame rates come out
            right.
        place: where in the clip: "random" for training, "center" for evaluation, or "start". A window by fps starts
            on a frame.
    """

    frames: int
    stride: int | None = None
    fps: float | Fraction | None = None
    place: Place = "random"

    def __post_init__(self) -> None:
        _whole(self.frames, "Window(frames)")
        _one_of(self.place, ("random", "center", "start"), "Window(place)")
        if self.stride is not None and self.fps is not None:
            raise InputError("Window takes stride or fps, not both")
        if self.stride is not None:
            _whole(self.stride, "Window(stride)")
        if self.fps is not None and not (
            isinstance(self.fps, int | float | Fraction | np.number)
            and not isinstance(self.fps, bool)
            and 0.001 <= self.fps <= 100_000
        ):
            raise InputError(f"Window(fps) must be a number from 0.001 to 100000, it is {self.fps!r}")

    @property
    def slots(self) -> int:
        return self.frames

    @property
    def draws(self) -> int:
        return 1 if self.place == "random" else 0

    def lay_out(self, clip: ClipTimes, random: Floats, sample: int) -> Slots:
        steps = self._steps(clip.tick)
        span = int(steps[-1])
        if self.fps is None:
            count = len(clip.pts)
            return Slots(_start(count - span, self.place, random) + steps, count, in_ticks=False)
        if self.place == "center":
            middle = max(0, (clip.duration - span) // 2)
            start = max(0, int(np.searchsorted(clip.pts, middle, side="right")) - 1)
        else:
            start = _start(int(np.searchsorted(clip.pts, clip.duration - span, side="left")), self.place, random)
        return Slots(clip.pts[start] + steps, clip.duration, in_ticks=True)

    def samples(self, frames: Int64, duration: Int64, tick: Fraction) -> Int64:
        return np.ones(len(frames), dtype=np.int64)

    def is_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bools:
        return np.asarray((frames if self.fps is None else duration) <= self._steps(tick)[-1])

    def _steps(self, tick: Fraction) -> Int64:
        """int64 [frames]: slots from the first one on, in frames or ticks."""
        if self.fps is None:
            return _instants(self.frames, Fraction(self.stride or 1))
        return _instants(self.frames, 1 / (Fraction(self.fps).limit_denominator(100_000) * tick))


@dataclass(frozen=True)
class Uniform:
    """One frame from each of `frames` equal parts of the clip (the segments of TSN, Wang et al. 2016), by frame
    numbers.

    A clip of fewer frames shows some of them more than once; that is not padding.

    Attributes:
        frames: frames in a sample.
        place: where in each part: "center", or "random" for training.
    """

    frames: int
    place: Literal["center", "random"] = "center"

    def __post_init__(self) -> None:
        _whole(self.frames, "Uniform(frames)")
        _one_of(self.place, ("center", "random"), "Uniform(place)")

    @property
    def slots(self) -> int:
        return self.frames

    @property
    def draws(self) -> int:
        return self.frames if self.place == "random" else 0

    def lay_out(self, clip: ClipTimes, random: Floats, sample: int) -> Slots:
        count = len(clip.pts)
        within = random if self.place == "random" else 0.5
        position = ((np.arange(self.frames) + within) * (count / self.frames)).astype(np.int64)
        return Slots(np.minimum(position, count - 1), count, in_ticks=False)

    def samples(self, frames: Int64, duration: Int64, tick: Fraction) -> Int64:
        return np.ones(len(frames), dtype=np.int64)

    def is_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bools:
        return np.zeros(len(frames), dtype=bool)


@dataclass(frozen=True)
class Frames:
    """The frames with these numbers, counted from 0, in this order; the same ones of every clip.

    Attributes:
        numbers: frame numbers; repeats are allowed.
    """

    numbers: Sequence[int]

    def __post_init__(self) -> None:
        if not isinstance(self.numbers, Iterable) or isinstance(self.numbers, str):
            raise InputError(f"Frames takes a list of frame numbers, it is {self.numbers!r}")
        numbers = tuple(self.numbers)
        if not numbers:
            raise InputError("Frames needs at least one frame number")
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < 1 << 31:
                raise InputError(f"Frames takes whole numbers from 0 to {(1 << 31) - 1}, one of them is {number!r}")
        object.__setattr__(self, "numbers", tuple(int(number) for number in numbers))

    @property
    def slots(self) -> int:
        return len(self.numbers)

    @property
    def draws(self) -> int:
        return 0

    def lay_out(self, clip: ClipTimes, random: Floats, sample: int) -> Slots:
        count = len(clip.pts)
        return Slots(np.array(self.numbers, dtype=np.int64), count, in_ticks=False)

    def samples(self, frames: Int64, duration: Int64, tick: Fraction) -> Int64:
        return np.ones(len(frames), dtype=np.int64)

    def is_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bools:
        return np.asarray(frames <= max(self.numbers))


@dataclass(frozen=True)
class All:
    """Every frame of the clip. Clips of one batch are padded to the longest of them."""

    @property
    def slots(self) -> None:
        return None

    @property
    def draws(self) -> int:
        return 0

    def lay_out(self, clip: ClipTimes, random: Floats, sample: int) -> Slots:
        count = len(clip.pts)
        return Slots(np.arange(count, dtype=np.int64), count, in_ticks=False)

    def samples(self, frames: Int64, duration: Int64, tick: Fraction) -> Int64:
        return np.ones(len(frames), dtype=np.int64)

    def is_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bools:
        return np.zeros(len(frames), dtype=bool)


def lengthen(selection: Selection, slots: int, pad: Pad) -> Selection:
    """Pad a sample of a whole clip (`All`) to the length of the longest in its batch.

    With padding "none" as with "constant", what is added shows a constant picture: a batch has one shape.

    Args:
        selection: frames 0 … n-1.
        slots: the length wanted, at least n.
        pad: as in `select`.
    """
    count = len(selection.frames)
    if slots == count:
        return selection
    position = np.arange(slots, dtype=np.int64)
    mask = position < count
    if pad in ("none", "constant"):
        added = slots - count
        return Selection(
            np.append(selection.frames, np.full(added, -1)), mask, np.append(selection.seconds, np.full(added, -1.0))
        )
    place = _fold(position, count, pad)
    return Selection(selection.frames[place], mask, selection.seconds[place])
