"""What every way of sampling has in common: slots on an axis, and their padding. docs/sampling.md states the rules.

A sampler places its slots on an axis: frame numbers, or ticks of the clip's clock. The axis ends where the clip
does; slots at or behind its end are padding. `select` turns places into frame numbers, and gives the padding frames.
The ways themselves are pure functions over timestamps, in `streamvid.sampling.windows` and `streamvid.sampling.picks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, Literal, Protocol

import numpy as np

from streamvid.arrays import Bool, Float64, Int64
from streamvid.errors import InputError

Pad = Literal["edge", "constant", "reflect_101", "reflect_1001", "none"]
PADS: tuple[Pad, ...] = ("edge", "constant", "reflect_101", "reflect_1001", "none")
MAX_NUMBER: Final = (1 << 31) - 1
"""The greatest number of frames, and step, that samplers take: sums and products of these fit into int64."""


def _no_frames() -> Int64:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class ClipTimes:
    """When the frames of a clip are shown, and what else samplers may ask of it.

    Attributes:
        pts: int64 [frames], ticks, never falling, the first 0.
        duration: ticks from the first frame to the end of the last.
        tick: seconds per tick.
        key: the clip's name, for errors.
        find_keyframes: gives `keyframes`; called at most once, when they are asked for.
        find_meta: gives `meta`, likewise.
    """

    pts: Int64
    duration: int
    tick: Fraction
    key: str = ""
    find_keyframes: Callable[[], Int64] = _no_frames
    find_meta: Callable[[], Mapping[str, Any]] = dict

    @cached_property
    def keyframes(self) -> Int64:
        """int64 [keyframes]: the numbers of the frames at which a decoder may start, rising. None, if the clip was
        cut out between two of them."""
        return self.find_keyframes()

    @cached_property
    def meta(self) -> Mapping[str, Any]:
        """The clip's metadata columns."""
        return self.find_meta()


@dataclass(frozen=True)
class SlotLayout:
    """Where a sampler puts its slots.

    Attributes:
        position: int64 [slots], frame numbers or ticks; those at or behind `end` are padding.
        end: where the clip ends on that axis: its number of frames, or its duration.
        in_ticks: which axis it is. Ticks must not fall from slot to slot.
        length: given by samplers that see only in the clip itself how many frames it gives: how long the sample is
            to be. What `position` lacks of it is padding, and padding "none" does as "constant": such clips cannot
            be left out beforehand.
    """

    position: Int64
    end: int
    in_ticks: bool
    length: int | None = None


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
    mask: Bool
    seconds: Float64


class FrameSampler(Protocol):
    """What every way of sampling offers."""

    @property
    def slots(self) -> int | None:
        """Frames in a sample; None where it depends on the clip."""

    @property
    def draws(self) -> int:
        """How many random numbers `lay_out` takes."""

    def samples(self, frames: Int64, duration: Int64, tick: Fraction, whole: bool = False) -> Int64:
        """int64 [clips]: how many samples each clip gives, from its frames and its duration in ticks.

        With `whole`, as padding "none" wants it, only those that need no padding: the first ones of the clip, and
        none of a short clip.
        """

    def lay_out(self, clip: ClipTimes, random: Float64, sample: int) -> SlotLayout:
        """Place the slots of a clip's sample number `sample`; `random` is float64 [draws], uniform in [0, 1)."""

    def is_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        """bool [clips]: which clips, given their frames and their durations in ticks, are too short and would be
        padded, even in their first sample."""


class OneSample(ABC):
    """What samplers share that take one sample of a clip."""

    def samples(self, frames: Int64, duration: Int64, tick: Fraction, whole: bool = False) -> Int64:
        """See `FrameSampler`."""
        if whole:
            return np.where(self.is_short(frames, duration, tick), 0, 1)
        return np.ones(len(frames), dtype=np.int64)

    @abstractmethod
    def is_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        """See `FrameSampler`."""


def select(sampling: FrameSampler, clip: ClipTimes, random: Float64, pad: Pad, *, sample: int = 0) -> Selection:
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
        InputError: the frames that the caller gives for the clip cannot be; names it.
    """
    slots = sampling.lay_out(clip, random, sample)
    selection = _show(clip, slots, pad)
    return selection if slots.length is None else lengthen(selection, slots.length, pad)


def _show(clip: ClipTimes, slots: SlotLayout, pad: Pad) -> Selection:
    """What the placed slots show."""
    mask = slots.position < slots.end
    if mask.all():
        frames = frame_displayed_at(clip.pts, slots.position) if slots.in_ticks else slots.position
        return Selection(frames, mask, _seconds(clip, frames))
    if pad == "none":
        if slots.length is None:
            raise ValueError("the clip is too short, and padding is off")
        pad = "constant"
    count = len(clip.pts)
    if not slots.in_ticks:
        frames = np.where(mask, slots.position, reflect_index(slots.position, count, pad))
    else:
        frames = frame_displayed_at(clip.pts, slots.position)
        if pad in ("reflect_101", "reflect_1001"):
            # Instants do not fold exactly where containers round times to ticks; slots do.
            frames = frames[reflect_index(np.arange(len(frames)), int(mask.sum()), pad)]
    seconds = _seconds(clip, frames)
    if pad == "constant":
        frames = np.where(mask, frames, -1)
        seconds = np.where(mask, seconds, -1.0)
    return Selection(frames, mask, seconds)


def frame_displayed_at(pts: Int64, instants: Int64) -> Int64:
    """The frames on screen at those ticks; behind the end the last one."""
    return np.maximum(np.searchsorted(pts, instants, side="right") - 1, 0)


def _seconds(clip: ClipTimes, frames: Int64) -> Float64:
    return np.asarray(clip.pts[frames] * float(clip.tick), dtype=np.float64)


def reflect_index(number: Int64, count: int, pad: Pad) -> Int64:
    """Bring numbers from `count` on back into 0 … count-1, by the padding mode; others stay."""
    if pad == "reflect_101" and count > 1:
        folded = number % (2 * count - 2)
        return np.where(folded >= count, 2 * count - 2 - folded, folded)
    if pad == "reflect_1001" and count > 0:
        folded = number % (2 * count)
        return np.where(folded >= count, 2 * count - 1 - folded, folded)
    return np.minimum(number, count - 1)


def lengthen(selection: Selection, slots: int, pad: Pad) -> Selection:
    """Pad a sample behind its last slot, as far as the longest in its batch (`All`) or a fixed length.

    With padding "none" as with "constant", what is added shows a constant picture: a batch has one shape.

    Args:
        selection: at least one slot.
        slots: the length wanted, at least that of the selection.
        pad: as in `select`; slots are repeated or reflected.
    """
    count = len(selection.frames)
    if slots == count:
        return selection
    mask = np.append(selection.mask, np.zeros(slots - count, dtype=bool))
    if pad in ("none", "constant"):
        added = slots - count
        return Selection(
            np.append(selection.frames, np.full(added, -1)), mask, np.append(selection.seconds, np.full(added, -1.0))
        )
    place = reflect_index(np.arange(slots, dtype=np.int64), count, pad)
    return Selection(selection.frames[place], mask, selection.seconds[place])


def whole_number(value: object, name: str) -> int:
    """That value, if it is a whole number from 1; else InputError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= MAX_NUMBER:
        raise InputError(f"{name} must be a whole number from 1 to {MAX_NUMBER}, it is {value!r}")
    return int(value)


def one_of(value: object, allowed: Sequence[str], name: str) -> None:
    """InputError if the value is none of those."""
    if value not in allowed:
        raise InputError(f"{name} must be one of {', '.join(allowed)}; it is {value!r}")
