"""Samplers that spread frames over the whole clip: `Uniform`, `Keyframes`, `RandomFrames`, `All`."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from streamvid.arrays import Bool, Float64, Int64
from streamvid.checks import one_of, suggesting
from streamvid.sampling.base import ClipTimes, FixedLengthSampler, PaddedSampler, SlotLayout


@suggesting
@dataclass(frozen=True, repr=False)
class Uniform(FixedLengthSampler):
    """One frame from each of `frames` equal parts of the clip (the segments of TSN, Wang et al. 2016), by frame
    numbers.

    A clip of fewer frames shows some of them more than once; that is not padding.

    Attributes:
        frames: frames in a sample.
        pick: which frame of each part: "center", or "random" for training.

    Raises:
        InputError: an option is invalid.
    """

    pick: Literal["center", "random"] = "center"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.pick, ("center", "random"), "Uniform(pick)")

    @property
    def num_random(self) -> int:
        return self.frames if self.pick == "random" else 0

    def sample(self, clip: ClipTimes, random: Float64, number: int) -> SlotLayout:
        count = clip.frames
        within = random if self.pick == "random" else 0.5
        # Divided last: a part that begins at a whole frame begins there in float64 too.
        position = ((np.arange(self.frames) + within) * count / self.frames).astype(np.int64)
        return SlotLayout(np.minimum(position, count - 1), count, in_ticks=False)


@suggesting
@dataclass(frozen=True, repr=False)
class Keyframes(FixedLengthSampler):
    """Key frames alone, the random access points: the cheapest frames to read and decode.

    The clip's key frames are divided into `frames` parts of equal number (give or take one), and one is taken of each.
    A clip with fewer shows all of them, and is padded. A clip that was cut out between two key frames gives its first
    frame.

    Attributes:
        frames: frames in a sample.
        pick: which key frame of each part: "random" for training, "center", or "first".

    Raises:
        InputError: an option is invalid.
    """

    pick: Literal["random", "center", "first"] = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of(self.pick, ("random", "center", "first"), "Keyframes(pick)")

    @property
    def num_random(self) -> int:
        return self.frames if self.pick == "random" else 0

    def sample(self, clip: ClipTimes, random: Float64, number: int) -> SlotLayout:
        among = clip.keyframes if len(clip.keyframes) else np.zeros(1, dtype=np.int64)
        count = len(among)
        if count > self.frames:
            edges = np.arange(self.frames + 1) * count // self.frames
            if self.pick == "center":
                chosen = (edges[:-1] + edges[1:]) // 2
            elif self.pick == "first":
                chosen = edges[:-1]
            else:
                chosen = edges[:-1] + (random * np.diff(edges)).astype(np.int64)
            among = among[chosen]
        return SlotLayout(among, clip.frames, in_ticks=False, length=self.frames)


@suggesting
@dataclass(frozen=True, repr=False)
class RandomFrames(FixedLengthSampler):
    """Different frames at random from the whole clip, in their order; every set of them is equally likely.

    A clip of fewer frames shows all of them, and is padded.

    Attributes:
        frames: frames in a sample.

    Raises:
        InputError: `frames` is no positive whole number.
    """

    @property
    def num_random(self) -> int:
        return self.frames

    def sample(self, clip: ClipTimes, random: Float64, number: int) -> SlotLayout:
        count = clip.frames
        if count <= self.frames:
            return SlotLayout(np.arange(self.frames, dtype=np.int64), count, in_ticks=False)
        # Robert Floyd's way of drawing a set (Bentley, Programming Pearls, CACM 30(9), 1987): one number per frame.
        chosen: set[int] = set()
        for last, number in enumerate(random.tolist(), start=count - self.frames):
            frame = int(number * (last + 1))
            chosen.add(last if frame in chosen else frame)
        return SlotLayout(np.array(sorted(chosen), dtype=np.int64), count, in_ticks=False)

    def is_too_short(self, frames: Int64, duration: Int64, tick: Fraction) -> Bool:
        return np.asarray(frames < self.frames)


@suggesting
@dataclass(frozen=True, repr=False)
class All(PaddedSampler):
    """Every frame of the clip. Clips of one batch are padded to the longest of them."""

    @property
    def num_frames(self) -> None:
        return None

    def sample(self, clip: ClipTimes, random: Float64, number: int) -> SlotLayout:
        count = clip.frames
        return SlotLayout(np.arange(count, dtype=np.int64), count, in_ticks=False)
