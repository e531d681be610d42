"""Frame samplers: which frames of a clip a sample shows. docs/sampling.md states the rules.

A sampler places its frame positions (the T axis of a sample) on an axis that ends where the clip ends: frame numbers,
or ticks of the clip's time base. Positions at or behind the end are padding. `select` turns the layout into frame
numbers, padding included. Each sampler is a pure function of a clip's timestamps and of random numbers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from streamvid.arrays import Bool, Float64, Int64
from streamvid.checks import check, integer, is_integer, one_of, shown
from streamvid.errors import InputError
from streamvid.sampling.padding import PADS, Pad, reflect_index

_OURS: Final = f"{__name__.rpartition('.')[0]}."
"""The package of the samplers whose results need no check."""


def _no_frames() -> Int64:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class ClipTimes:
    """A clip as samplers see it: the times of its frames, its key frames, its metadata.

    Attributes:
        pts: int64 [frames], ticks, non-decreasing, the first 0.
        duration: ticks from the first frame to the end of the last.
        tick: seconds per tick: the time base.
        key: the clip's key, for errors.
        find_keyframes: computes `keyframes`; called at most once, on first use.
        find_meta: computes `meta`, in the same way.
    """

    pts: Int64
    duration: int
    tick: Fraction
    key: str = ""
    find_keyframes: Callable[[], Int64] = _no_frames
    find_meta: Callable[[], Mapping[str, Any]] = dict

    @cached_property
    def keyframes(self) -> Int64:
        """int64 [keyframes]: frame numbers of the random access points, increasing; empty if the clip was cut out
        between two of them."""
        return self.find_keyframes()

    @cached_property
    def meta(self) -> Mapping[str, Any]:
        """The clip's metadata columns."""
        return self.find_meta()

    @property
    def frames(self) -> int:
        """Number of frames."""
        return len(self.pts)

    def frames_at(self, ticks: Int64) -> Int64:
        """int64 [times]: the frame on screen at each time in ticks; the last one at and behind the clip's end."""
        return np.maximum(np.searchsorted(self.pts, ticks, side="right") - 1, 0)

    def frames_before(self, ticks: int) -> int:
        """Number of frames that are displayed before a time in ticks."""
        return int(np.searchsorted(self.pts, ticks, side="left"))

    def times(self, frames: Int64) -> Int64:
        """int64 [frames]: `pts` of some frames. For long clips these methods read less of the frame index than `pts`
        does."""
        return self.pts[frames]


@dataclass(frozen=True)
class SlotLayout:
    """The frame positions of a sample on the sampler's axis.

    Attributes:
        position: int64 [positions], frame numbers or ticks; those at or behind `end` are padding.
        end: where the clip ends on that axis: its number of frames, or its duration.
        in_ticks: whether the axis is in ticks, which must be non-decreasing.
        length: number of frame positions of the sample, for samplers that see only in the clip itself how many frames
            it gives. Missing positions are padding; with pad="none" they are black, as with "constant", since such
            clips cannot be left out when the epoch is planned.
    """

    position: Int64
    end: int
    in_ticks: bool
    length: int | None = None


@dataclass(frozen=True)
class Selection:
    """The frames of one sample.

    Attributes:
        frames: int64 [positions], frame numbers; -1 for a black frame.
        mask: bool [positions], True for a real frame, False for padding.
        seconds: float64 [positions], presentation time of each frame, counted from the clip's first frame; -1 for a
            black frame.
    """

    frames: Int64
    mask: Bool
    seconds: Float64


@runtime_checkable
class FrameSampler(Protocol):
    """The interface of a frame sampler. Any class with these methods can be given to a loader. States tell samplers
    apart by their repr, as a dataclass has it; without one, by their class alone."""

    @property
    @abstractmethod
    def pad(self) -> Pad:
        """What frame positions behind the clip's end show: a mode of `PaddedSampler`."""

    @property
    @abstractmethod
    def num_frames(self) -> int | None:
        """Frame positions in a sample; None where it depends on the clip."""

    @property
    @abstractmethod
    def num_random(self) -> int:
        """How many random numbers `sample` takes."""

    @abstractmethod
    def num_samples(self, frames: Int64, duration: Int64, tick: Fraction, whole: bool = False) -> Int64:
        """int64 [clips]: how many samples each clip gives, from its frames and its duration in ticks.

        With `whole`, for padding "none", only samples without padding count: the first ones of the clip, none if it is
        too short.
        """

    @abstractmethod
    def sample(self, clip: ClipTimes, random: Float64, number: int) -> SlotLayout:
        """Place the frame positions of the clip's sample `number`; `random` is float64 [num_random], uniform in
        [0, 1)."""

    @abstractmethod
    def is_too_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        """bool [clips]: which clips need padding even in their first sample; `frames` and `duration` (in ticks) are
        int64 [clips]."""


@dataclass(frozen=True, repr=False)
class PaddedSampler:
    """Base of all samplers here. By default a clip gives one sample, needs no random numbers, and is never too short.

    Attributes:
        pad: what positions behind the clip's end show: "edge" the last frame, "constant" black, "reflect_101" the
            frames backwards from the one before the last, "reflect_1001" from the last; "none" leaves out clips that
            are too short.
    """

    _: KW_ONLY
    pad: Pad = "edge"

    def __post_init__(self) -> None:
        one_of(self.pad, PADS, f"{type(self).__name__}(pad)")

    def __repr__(self) -> str:
        """Options that differ from their defaults. State files tell samplers apart by it."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        shown = [
            f"{name}={value!r}" for name, value in given.items() if name not in defaults or value != defaults[name]
        ]
        return f"{type(self).__name__}({', '.join(sorted(shown, key=lambda argument: argument.startswith('pad=')))})"

    @property
    def num_random(self) -> int:
        return 0

    def num_samples(self, frames: Int64, duration: Int64, tick: Fraction, whole: bool = False) -> Int64:
        if whole:
            return np.where(self.is_too_short(frames, duration, tick), 0, 1)
        return np.ones(len(frames), dtype=np.int64)

    def is_too_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        return np.zeros(len(frames), dtype=bool)


@dataclass(frozen=True, repr=False)
class FixedLengthSampler(PaddedSampler):
    """Base of samplers whose samples all have as many frame positions.

    Attributes:
        frames: frames in a sample.
    """

    frames: int

    def __post_init__(self) -> None:
        super().__post_init__()
        integer(self.frames, f"{type(self).__name__}(frames)")

    @property
    def num_frames(self) -> int:
        return self.frames


def check_sampler(sampling: object) -> None:
    """Raise InputError unless the value is a frame sampler with valid properties."""
    if isinstance(sampling, type) or not isinstance(sampling, FrameSampler):
        raise InputError(f"sampling must be a frame sampler such as Window(frames=16, fps=8); it is {shown(sampling)}")
    name = type(sampling).__name__
    one_of(sampling.pad, PADS, f"{name}.pad")
    integer(sampling.num_random, f"{name}.num_random", least=0)
    if sampling.num_frames is not None:
        integer(sampling.num_frames, f"{name}.num_frames")


def select(sampler: FrameSampler, clip: ClipTimes, random: Float64, *, number: int = 0) -> Selection:
    """The frames of one sample of a clip.

    Args:
        random: float64 [sampler.num_random], uniform in [0, 1).

    Raises:
        InputError: the clip is too short and the sampler's padding is "none", or the frames that the user's sampler,
            function or column gives for the clip are invalid; the message names the clip.
    """
    layout = sampler.sample(clip, random, number)
    if not type(sampler).__module__.startswith(_OURS):
        layout = _checked(sampler, clip, layout)
    selection = _padded(clip, layout, sampler.pad)
    return selection if layout.length is None else lengthen(selection, layout.length, sampler.pad)


def _checked(sampler: FrameSampler, clip: ClipTimes, layout: object) -> SlotLayout:
    """The layout of a user's sampler, in int64. Raises InputError unless its frame positions are placed in the clip."""
    name = f"{type(sampler).__name__}.sample"
    check(isinstance(layout, SlotLayout), layout, f"the result of {name}", "a SlotLayout")
    assert isinstance(layout, SlotLayout)
    position, count = layout.position, sampler.num_frames
    if isinstance(position, np.ndarray) and position.dtype.kind in "iu" and position.ndim == 1 and len(position):
        position = position.astype(np.int64)
        length = len(position) if layout.length is None else layout.length
        if (
            is_integer(layout.end)
            and is_integer(length)
            and len(position) <= length
            and (count is None or length == count)
            and position.min() >= 0
            and position.max(initial=0, where=position < layout.end)
            < (clip.duration if layout.in_ticks else clip.frames)
            and not (layout.in_ticks and (np.diff(position) < 0).any())
        ):
            return replace(layout, position=position)
    many = "" if count is None else f"{count} of them, or so many by `length`, "
    raise InputError(
        f"{name} must give an array of whole numbers, {many}from 0 on, those before `end` within the clip, ticks in "
        f"order; of clip {clip.key!r} it gives {shown(layout)}"
    )


def _padded(clip: ClipTimes, layout: SlotLayout, pad: Pad) -> Selection:
    mask = layout.position < layout.end
    if mask.all():
        frames = clip.frames_at(layout.position) if layout.in_ticks else layout.position
        return Selection(frames, mask, _seconds(clip, frames))
    if pad == "none":
        if layout.length is None:
            raise InputError(f"clip {clip.key!r} is too short, and padding is off: pad it, or leave it out")
        pad = "constant"
    if not layout.in_ticks:
        frames = np.where(mask, layout.position, reflect_index(layout.position, clip.frames, pad))
    else:
        frames = clip.frames_at(layout.position)
        if pad in ("reflect_101", "reflect_1001"):
            # Reflect frame positions, not times: containers round times to ticks, so that reflected times would miss
            # frames.
            frames = frames[reflect_index(np.arange(len(frames)), int(mask.sum()), pad)]
    seconds = _seconds(clip, frames)
    if pad == "constant":
        frames = np.where(mask, frames, -1)
        seconds = np.where(mask, seconds, -1.0)
    return Selection(frames, mask, seconds)


def _seconds(clip: ClipTimes, frames: Int64) -> Float64:
    return np.asarray(clip.times(frames) * float(clip.tick), dtype=np.float64)


def lengthen(selection: Selection, length: int, pad: Pad) -> Selection:
    """Pad a sample behind its last position, up to the longest in its batch (`All`) or a fixed length.

    With padding "none" as with "constant", black frames are added: a batch has one shape.

    Args:
        selection: at least one frame position.
        length: the length wanted, at least that of the selection.
        pad: as in `select`; positions are repeated or reflected.
    """
    count = len(selection.frames)
    if length == count:
        return selection
    added = np.full(length - count, -1)
    mask = np.append(selection.mask, added >= 0)
    if pad in ("none", "constant"):
        return Selection(np.append(selection.frames, added), mask, np.append(selection.seconds, added.astype(float)))
    position = reflect_index(np.arange(length, dtype=np.int64), count, pad)
    return Selection(selection.frames[position], mask, selection.seconds[position])
