"""Samplers that pick frames over the whole clip: `Uniform`, `Keyframes`, `RandomFrames`, `Frames`, `ByClip`, `All`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np

from streamvid.arrays import Bool, Float64, Int64
from streamvid.errors import InputError
from streamvid.sampling.base import (
    MAX_NUMBER,
    ClipTimes,
    OneSample,
    SlotLayout,
    frame_displayed_at,
    one_of,
    whole_number,
)

WITHIN: Final = 1e-6
"""Ticks by which an instant in seconds may miss a whole tick: what float64 does to times that were exact."""


@dataclass(frozen=True)
class Uniform(OneSample):
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
        whole_number(self.frames, "Uniform(frames)")
        one_of(self.place, ("center", "random"), "Uniform(place)")

    @property
    def slots(self) -> int:
        return self.frames

    @property
    def draws(self) -> int:
        return self.frames if self.place == "random" else 0

    def lay_out(self, clip: ClipTimes, random: Float64, sample: int) -> SlotLayout:
        count = len(clip.pts)
        within = random if self.place == "random" else 0.5
        # Divided last: a part that begins at a whole frame begins there in float64 too.
        position = ((np.arange(self.frames) + within) * count / self.frames).astype(np.int64)
        return SlotLayout(np.minimum(position, count - 1), count, in_ticks=False)

    def is_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        return np.zeros(len(frames), dtype=bool)


@dataclass(frozen=True)
class Keyframes(OneSample):
    """Key frames alone, those at which a decoder may start: the cheapest frames to read and decode.

    The clip's key frames are dealt into `frames` parts of the same number, as far as that goes, and one is taken of
    each. A clip with fewer shows all of them, and is padded. One that shows none, as it was cut out between two, gives
    its first frame.

    Attributes:
        frames: frames in a sample.
        place: which of each part: "random" for training, "center", or "start" for the first.
    """

    frames: int
    place: Literal["random", "center", "start"] = "random"

    def __post_init__(self) -> None:
        whole_number(self.frames, "Keyframes(frames)")
        one_of(self.place, ("random", "center", "start"), "Keyframes(place)")

    @property
    def slots(self) -> int:
        return self.frames

    @property
    def draws(self) -> int:
        return self.frames if self.place == "random" else 0

    def lay_out(self, clip: ClipTimes, random: Float64, sample: int) -> SlotLayout:
        among = clip.keyframes if len(clip.keyframes) else np.zeros(1, dtype=np.int64)
        count = len(among)
        if count > self.frames:
            edges = np.arange(self.frames + 1) * count // self.frames
            if self.place == "center":
                chosen = (edges[:-1] + edges[1:]) // 2
            elif self.place == "start":
                chosen = edges[:-1]
            else:
                chosen = edges[:-1] + (random * np.diff(edges)).astype(np.int64)
            among = among[chosen]
        return SlotLayout(among, len(clip.pts), in_ticks=False, length=self.frames)

    def is_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        return np.zeros(len(frames), dtype=bool)


@dataclass(frozen=True)
class RandomFrames(OneSample):
    """Different frames at random from the whole clip, in their order; every set of them is equally likely.

    A clip of fewer frames shows all of them, and is padded.

    Attributes:
        frames: frames in a sample.
    """

    frames: int

    def __post_init__(self) -> None:
        whole_number(self.frames, "RandomFrames(frames)")

    @property
    def slots(self) -> int:
        return self.frames

    @property
    def draws(self) -> int:
        return self.frames

    def lay_out(self, clip: ClipTimes, random: Float64, sample: int) -> SlotLayout:
        count = len(clip.pts)
        if count <= self.frames:
            return SlotLayout(np.arange(self.frames, dtype=np.int64), count, in_ticks=False)
        # Robert Floyd's way of drawing a set (Bentley, Programming Pearls, CACM 30(9), 1987): one number per frame.
        chosen: set[int] = set()
        for last, number in enumerate(random.tolist(), start=count - self.frames):
            frame = int(number * (last + 1))
            chosen.add(last if frame in chosen else frame)
        return SlotLayout(np.array(sorted(chosen), dtype=np.int64), count, in_ticks=False)

    def is_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        return np.asarray(frames < self.frames)


@dataclass(frozen=True)
class Frames(OneSample):
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
            if not _is_frame_number(number):
                raise InputError(f"Frames takes whole numbers from 0 to {MAX_NUMBER}, one of them is {number!r}")
        object.__setattr__(self, "numbers", tuple(int(number) for number in numbers))

    @property
    def slots(self) -> int:
        return len(self.numbers)

    @property
    def draws(self) -> int:
        return 0

    def lay_out(self, clip: ClipTimes, random: Float64, sample: int) -> SlotLayout:
        count = len(clip.pts)
        return SlotLayout(np.array(self.numbers, dtype=np.int64), count, in_ticks=False)

    def is_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        return np.asarray(frames <= max(self.numbers))


@dataclass(frozen=True, repr=False)
class ByClip(OneSample):
    """Frames that the caller gives for each clip, by number or by instant, in the order given.

    They come from a function of the clip, which must give the same whenever it is asked, or from a metadata column
    that holds a list. What the clip does not have is padding, as with `Frames`; so are slots behind the last given.

    Attributes:
        slots: frames in a sample; no clip may be given more.
        frames: a function from `ClipTimes` to frame numbers, counted from 0, or a column's name.
        seconds: instead, a function to instants, in seconds from the clip's first frame, or a column's name. A slot
            shows the frame on screen then.
    """

    slots: int
    frames: Callable[[ClipTimes], Sequence[int]] | str | None = None
    seconds: Callable[[ClipTimes], Sequence[float]] | str | None = None

    def __post_init__(self) -> None:
        whole_number(self.slots, "ByClip(slots)")
        if (self.frames is None) == (self.seconds is None):
            raise InputError(
                "ByClip takes frames or seconds, one of the two: a function of the clip, or a column's name"
            )
        if not isinstance(self._given, str) and (isinstance(self._given, type) or not callable(self._given)):
            raise InputError(
                f"ByClip takes a function of the clip or the name of a metadata column, it is {self._given!r}"
            )

    def __repr__(self) -> str:
        # The same in every process, unlike that of a function, so that samplings can be told apart by it.
        kind = "frames" if self.frames is not None else "seconds"
        given: Any = self._given
        name = repr(given) if isinstance(given, str) else getattr(given, "__qualname__", type(given).__qualname__)
        return f"ByClip(slots={self.slots}, {kind}={name})"

    @property
    def draws(self) -> int:
        return 0

    def lay_out(self, clip: ClipTimes, random: Float64, sample: int) -> SlotLayout:
        values, count = self._values(clip), len(clip.pts)
        if self.frames is not None:
            for number in values:
                if not _is_frame_number(number):
                    raise _wrong(clip, f"{number!r} is no frame number: they are whole and from 0 to {MAX_NUMBER}")
            position = np.array(values, dtype=np.int64)
        else:
            for instant in values:
                if not _is_instant(instant):
                    raise _wrong(
                        clip, f"{instant!r} is no instant: they are seconds from 0, counted from its first frame"
                    )
            # As far as an instant may lie behind the end, it is the same padding.
            ticks = whole_ticks(np.array(values, dtype=np.float64), clip.tick)
            position = np.where(ticks < clip.duration, frame_displayed_at(clip.pts, ticks), count)
        return SlotLayout(position, count, in_ticks=False, length=self.slots)

    def is_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        return np.zeros(len(frames), dtype=bool)

    @property
    def _given(self) -> Callable[[ClipTimes], Sequence[Any]] | str | None:
        return self.frames if self.frames is not None else self.seconds

    def _values(self, clip: ClipTimes) -> list[Any]:
        """What is given for the clip: 1 to `slots` values, not checked themselves."""
        given = self._given
        if callable(given):
            try:
                values: Any = given(clip)
            except Exception as error:
                error.add_note(f"ByClip asked for the frames of the clip {clip.key!r}")
                raise
        else:
            values = _column(clip, str(given))
        if isinstance(values, str | bytes | dict) or not isinstance(values, Iterable):
            raise _wrong(clip, f"a list of numbers is wanted, it is {_shown(values)}")
        # Arrays and tensors turn their numbers into Python's.
        listed = values.tolist() if hasattr(values, "tolist") else list(values)
        if not isinstance(listed, list) or not 1 <= len(listed) <= self.slots:
            raise _wrong(clip, f"1 to {self.slots} numbers are wanted, it is {_shown(values)}")
        return listed


@dataclass(frozen=True)
class All(OneSample):
    """Every frame of the clip. Clips of one batch are padded to the longest of them."""

    @property
    def slots(self) -> None:
        return None

    @property
    def draws(self) -> int:
        return 0

    def lay_out(self, clip: ClipTimes, random: Float64, sample: int) -> SlotLayout:
        count = len(clip.pts)
        return SlotLayout(np.arange(count, dtype=np.int64), count, in_ticks=False)

    def is_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        return np.zeros(len(frames), dtype=bool)


def whole_ticks(seconds: Float64, tick: Fraction) -> Int64:
    """Instants in seconds → ticks, rounded up to whole ones: docs/sampling.md says why. At most 2**53."""
    return np.ceil(np.minimum(seconds / float(tick), 2.0**53) - WITHIN).astype(np.int64)


def _is_frame_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | np.integer) and bool(0 <= value <= MAX_NUMBER)


def _is_instant(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction | np.integer | np.floating):
        return False
    return bool(0 <= value < float("inf"))


def _column(clip: ClipTimes, name: str) -> object:
    """A metadata column's value. A CSV file holds lists as text: JSON."""
    if name not in clip.meta:
        known = ", ".join(clip.meta) or "none"
        raise _wrong(clip, f"it has no metadata column {name!r} but {known[:300]}")
    value = clip.meta[name]
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _shown(value: object) -> str:
    text = repr(value)
    return " ".join((text if len(text) <= 100 else text[:100] + " …").split())


def _wrong(clip: ClipTimes, what: str) -> InputError:
    return InputError(f"ByClip: clip {clip.key!r}: {what}")
