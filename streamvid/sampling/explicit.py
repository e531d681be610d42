"""Samplers of frames that the user names: `Frames`, the same frame numbers for every clip, and `ByClip`, others for
each clip."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, TypeGuard

import numpy as np

from streamvid.arrays import Bool, Float64, Int64
from streamvid.checks import MAX_COUNT, integer, is_integer, is_real, listed, shown, suggesting
from streamvid.errors import InputError
from streamvid.sampling.base import ClipTimes, PaddedSampler, SlotLayout

WITHIN: Final = 1e-6
"""Ticks by which a time in seconds may miss a whole tick: the rounding error of float64 in times that were exact."""


@suggesting
@dataclass(frozen=True, repr=False)
class Frames(PaddedSampler):
    """The frames with these numbers, counted from 0, in this order; the same ones of every clip.

    Attributes:
        numbers: frame numbers; repeats are allowed.

    Raises:
        InputError: a number is invalid, or there is none.
    """

    numbers: Sequence[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        numbers = tuple(listed(self.numbers, "the numbers of Frames", "frame numbers"))
        if not numbers:
            raise InputError("Frames needs at least one frame number")
        for number in numbers:
            if not _is_frame_number(number):
                raise InputError(f"Frames takes whole numbers from 0 to {MAX_COUNT}, one of them is {number!r}")
        object.__setattr__(self, "numbers", tuple(int(number) for number in numbers))

    @property
    def num_frames(self) -> int:
        return len(self.numbers)

    def sample(self, clip: ClipTimes, random: Float64, number: int) -> SlotLayout:
        count = clip.frames
        return SlotLayout(np.array(self.numbers, dtype=np.int64), count, in_ticks=False)

    def is_too_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        return np.asarray(frames <= max(self.numbers))


@suggesting
@dataclass(frozen=True, repr=False)
class ByClip(PaddedSampler):
    """Frames that the caller gives for each clip, by number or by time, in the given order.

    They come from a pure function of the clip, or from a metadata column that holds a list. Frames that the clip does
    not have are padding, as with `Frames`; so are positions behind the last given.

    Attributes:
        num_frames: frames in a sample; no clip may be given more.
        frames: a function from `ClipTimes` to frame numbers, counted from 0, or a column's name.
        seconds: instead of `frames`, a function from `ClipTimes` to times in seconds from the clip's first frame, or a
            column's name. Each position shows the frame on screen at its time.

    Raises:
        InputError: an option is invalid.
    """

    num_frames: int
    frames: Callable[[ClipTimes], Sequence[int]] | str | None = None
    seconds: Callable[[ClipTimes], Sequence[float]] | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        integer(self.num_frames, "ByClip(num_frames)")
        if (self.frames is None) == (self.seconds is None):
            raise InputError(
                "ByClip takes frames or seconds, one of the two: a function of the clip, or a column's name"
            )
        if not isinstance(self._given, str) and (isinstance(self._given, type) or not callable(self._given)):
            raise InputError(
                f"ByClip takes a function of the clip or the name of a metadata column, it is {shown(self._given)}"
            )

    def __repr__(self) -> str:
        # Equal in every process, unlike the repr of a function, because states compare samplings by their repr.
        kind = "frames" if self.frames is not None else "seconds"
        given: Any = self._given
        name = repr(given) if isinstance(given, str) else getattr(given, "__qualname__", type(given).__qualname__)
        pad = "" if self.pad == "edge" else f", pad={self.pad!r}"
        return f"ByClip(num_frames={self.num_frames}, {kind}={name}{pad})"

    def sample(self, clip: ClipTimes, random: Float64, number: int) -> SlotLayout:
        values, count = self._values(clip), clip.frames
        if self.frames is not None:
            for value in values:
                if not _is_frame_number(value):
                    raise _wrong(clip, f"{value!r} is no frame number: they are whole and from 0 to {MAX_COUNT}")
            position = np.array(values, dtype=np.int64)
        else:
            for time in values:
                if not (is_real(time) and time >= 0):
                    raise _wrong(clip, f"{time!r} is no time: they are seconds from 0, counted from its first frame")
            # All times behind the clip's end are the same padding.
            ticks = whole_ticks(np.array(values, dtype=np.float64), clip.tick)
            position = np.where(ticks < clip.duration, clip.frames_at(ticks), count)
        return SlotLayout(position, count, in_ticks=False, length=self.num_frames)

    @property
    def _given(self) -> Callable[[ClipTimes], Sequence[Any]] | str | None:
        return self.frames if self.frames is not None else self.seconds

    def _values(self, clip: ClipTimes) -> list[Any]:
        """The user's 1 to `num_frames` values for the clip, not checked yet."""
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
        if not isinstance(listed, list) or not 1 <= len(listed) <= self.num_frames:
            raise _wrong(clip, f"1 to {self.num_frames} numbers are wanted, it is {_shown(values)}")
        return listed


def whole_ticks(seconds: Float64, tick: Fraction) -> Int64:
    """Times in seconds → ticks, rounded up to whole ones: docs/sampling.md says why. At most 2**53."""
    return np.ceil(np.minimum(seconds / float(tick), 2.0**53) - WITHIN).astype(np.int64)


def _is_frame_number(value: object) -> TypeGuard[int]:
    return is_integer(value) and 0 <= value <= MAX_COUNT


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
