"""Common properties of all frame samplers: clips of one frame or without duration, gaps, invalid arguments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamvid as sv
from streamvid.errors import InputError
from streamvid.sampling import base
from streamvid.sampling.base import ClipTimes, FixedLengthSampler, FrameSampler, SlotLayout, check_sampler, lengthen
from streamvid.sampling.explicit import ByClip, Frames
from streamvid.sampling.padding import PADS, Pad
from streamvid.sampling.spread import All, Keyframes, RandomFrames
from streamvid.sampling.windows import MultiRate, TiledWindows, Window
from tests.support.sampling import NONE, assert_is, cfr, clips, counts, pads, reference, select


@given(clips(), st.integers(0, 60), pads)
def test_lengthen(clip: ClipTimes, more: int, pad: Pad) -> None:
    whole = select(All(), clip, np.empty(0), pad)
    count = len(clip.pts)
    slots = count + more
    got = lengthen(whole, slots, pad)
    assert_is(got, reference(Frames(range(slots)), clip, [], "constant" if pad == "none" else pad))
    assert got.mask.tolist() == [n < count for n in range(slots)]


@pytest.mark.parametrize("pad", PADS)
def test_one_frame(pad: Pad) -> None:
    clip = replace(ClipTimes(np.array([0]), 40, Fraction(1, 1000)), find_keyframes=lambda: np.array([0]))
    never = (Window(3, span=(1, 2)), Window(3, fps=100), Keyframes(1), RandomFrames(1), MultiRate([(3, 100)]))
    for sampling in never:
        got = select(sampling, clip, np.full(sampling.num_random, 0.99), pad)
        assert got.frames.tolist() == [0] * (sampling.num_frames or 0)
        assert got.mask.all()
    if pad == "none":
        return
    for sampling in (
        Window(3, start="even", windows=2),
        Window(3, jitter=5),
        Window(3, fps=25, jitter=5.0),
        Keyframes(3),
        RandomFrames(3),
        MultiRate([(1, 25), (2, 10)]),
        TiledWindows(3),
        TiledWindows(3, fps=25),
        ByClip(3, frames=lambda _: [0, 7]),
        ByClip(3, seconds=lambda _: [0, 0.04]),
    ):
        got = select(sampling, clip, np.full(sampling.num_random, 0.99), pad)
        assert got.frames.tolist() == ([0, -1, -1] if pad == "constant" else [0, 0, 0]), sampling
        assert got.mask.tolist() == [True, False, False]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("pad", [p for p in PADS if p != "none"])
def test_a_clip_without_duration_is_all_padding_by_time(pad: Pad) -> None:
    clip = ClipTimes(np.array([0, 0]), 0, Fraction(1, 1000))
    for sampling in (
        Window(2, fps=8, jitter=0.5),
        Window(2, fps=8, start="even", windows=2),
        Window(2, span=(1, 2)),
        MultiRate([(2, 1.0)]),
        TiledWindows(2, fps=8),
    ):
        assert sampling.is_too_short(*counts(clip)).tolist() == [True]
        assert sampling.num_samples(*counts(clip)).tolist() == [getattr(sampling, "windows", 1)]
        assert sampling.num_samples(*counts(clip), whole=True).tolist() == [0]
        got = select(sampling, clip, np.full(sampling.num_random, 0.5), pad)
        assert not got.mask.any()
        assert got.frames.tolist() == [-1 if pad == "constant" else 1] * 2
    assert select(ByClip(2, seconds=lambda _: [0]), clip, NONE, "constant").frames.tolist() == [-1, -1]


def test_gaps_and_rates_above_the_source() -> None:
    gap = ClipTimes(np.array([0, 40, 80, 480, 520]), 560, Fraction(1, 1000))
    assert select(MultiRate([(3, 25), (3, 10)], "first"), gap, NONE, "none").frames.tolist() == [0, 1, 2, 2, 2, 2]
    assert select(Window(7, span=(0.56, 0.56), start="first"), gap, np.zeros(1), "none").frames.tolist() == [
        *[0, 2, 2, 2, 2, 2],
        3,
    ]
    assert [select(TiledWindows(7, fps=25), gap, NONE, "edge", sample=j).frames.tolist() for j in range(2)] == [
        [0, 1, 2, 2, 2, 2, 2],
        [2, 2, 2, 2, 2, 3, 4],
    ]
    slow = cfr(Fraction(10), Fraction(1, 90000), 2)
    assert select(MultiRate([(3, 30), (1, 10)], "first"), slow, NONE, "none").frames.tolist() == [0, 0, 0, 1]
    assert select(TiledWindows(6, fps=30), slow, NONE, "none").frames.tolist() == [0, 0, 0, 1, 1, 1]


def test_numpy_numbers_are_numbers() -> None:
    clip = cfr(Fraction(25), Fraction(1, 90000), 100)
    for rate in (np.float32(5), np.float64(5), np.int64(5)):
        got = select(Window(3, fps=rate, start="first", jitter=np.float32(0)), clip, NONE, "none")  # type: ignore[arg-type]
        assert got.frames.tolist() == [0, 5, 10]
        assert select(MultiRate([(3, rate)], "first"), clip, NONE, "none").frames.tolist() == [0, 5, 10]  # type: ignore[list-item]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Window(8, windows=0),
        lambda: Window(8, windows=2, start="center"),
        lambda: Window(8, windows=2, start="first"),
        lambda: Window(8, windows=2.0, start="even"),
        lambda: Window(8, jitter=-1),
        lambda: Window(8, jitter=0.5),
        lambda: Window(8, jitter=True),
        lambda: Window(8, fps=8, jitter=float("nan")),
        lambda: Window(8, fps=8, jitter="1"),
        lambda: Window(8, fps=8, jitter=1e9),
        lambda: Window(8, fps=8, span=(1, 2)),
        lambda: Window(8, stride=8, span=(1, 2)),
        lambda: Window(8, span=2),
        lambda: Window(8, span=(2, 1)),
        lambda: Window(8, span=(0, 1)),
        lambda: Window(8, span=(1, float("inf"))),
        lambda: Window(8, span=(1, float("nan"))),
        lambda: Window(8, span=(1, 2, 3)),
        lambda: Window(8, span="12"),
        lambda: Window(1 << 40),
        lambda: Window(8, stride=10**30),
        lambda: MultiRate([]),
        lambda: MultiRate(8),
        lambda: MultiRate("ab"),
        lambda: MultiRate([8, 1.0]),
        lambda: MultiRate([(8,)]),
        lambda: MultiRate([(0, 1.0)]),
        lambda: MultiRate([(8, 0)]),
        lambda: MultiRate([(8, "1")]),
        lambda: MultiRate([(8, 1.0)], start="even"),
        lambda: TiledWindows(0),
        lambda: TiledWindows(8, step=0),
        lambda: TiledWindows(8, stride=0),
        lambda: TiledWindows(8, fps=0),
        lambda: TiledWindows(8, stride=1, fps=1),
        lambda: TiledWindows(8, step=2.5),
        lambda: Keyframes(0),
        lambda: Keyframes(8, pick="even"),
        lambda: RandomFrames(0),
        lambda: RandomFrames(2.0),
        lambda: ByClip(0, frames="a"),
        lambda: ByClip(8),
        lambda: ByClip(8, frames="a", seconds="b"),
        lambda: ByClip(8, frames=[1, 2]),
        lambda: ByClip(8, seconds=list),
    ],
)
def test_silly_arguments(make: Any) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert "\n" not in str(error.value)


def test_all_are_exported() -> None:
    for name in ("ByClip", "ClipTimes", "Frames", "Keyframes", "MultiRate", "RandomFrames", "Window", "TiledWindows"):
        assert getattr(sv, name).__name__ == name
        assert name in sv.__all__


@pytest.mark.parametrize(
    "make",
    [
        lambda pad: Window(2, pad=pad),
        lambda pad: MultiRate([(2, 1.0)], pad=pad),
        lambda pad: TiledWindows(2, pad=pad),
        lambda pad: Frames([0], pad=pad),
        lambda pad: ByClip(2, frames=lambda _: [0], pad=pad),
    ],
)
def test_every_sampler_names_an_unknown_padding(make: Any) -> None:
    with pytest.raises(InputError, match="pad"):
        make("mirror")


@dataclass(frozen=True, repr=False)
class Own(FixedLengthSampler):
    """A user's sampler."""

    given: Any = None

    def sample(self, clip: ClipTimes, random: Any, number: int) -> SlotLayout:
        found: SlotLayout = self.given
        return found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, r"the result of Own\.sample must be a SlotLayout; it is None"),
        (SlotLayout(np.array([-1, 0]), 3, False), "from 0 on, .*; of clip 'a' it gives SlotLayout"),
        (SlotLayout(np.array([0, 3]), 9, False), "within the clip"),
        (SlotLayout(np.array([0]), 3, False), "must give an array of whole numbers, 2 of them, or so many by `length`"),
        (SlotLayout(np.array([0, 1]), 3, False, length=3), "2 of them"),
        (SlotLayout(np.array([0, 1, 2]), 3, False, length=2), "2 of them"),
        (SlotLayout(np.array([0, 1]), 3, False, length="2"), "2 of them"),  # type: ignore[arg-type]
        (SlotLayout(np.empty(0, dtype=int), 3, False, length=2), "2 of them"),
        (SlotLayout(np.array([0, 1]), None, False), "those before `end`"),  # type: ignore[arg-type]
        (SlotLayout(np.array([0, 90]), 99, True), "those before `end` within the clip"),
        (SlotLayout(np.array([0, 2**64 - 1], dtype=np.uint64), 3, False), "from 0 on"),
        (SlotLayout(np.array([0.0, 1.0]), 3, False), "an array of whole numbers"),
        (SlotLayout([0, 1], 3, False), "an array of whole numbers"),  # type: ignore[arg-type]
        (SlotLayout(np.array([60, 0]), 90, True), "ticks in order; of clip"),
    ],
)
def test_what_a_sampler_of_a_user_may_not_give(given: Any, said: str) -> None:
    """Negative frame numbers counted from the clip's end, unnoticed; all others were errors that named nothing."""
    clip = ClipTimes(np.array([0, 30, 60]), 90, Fraction(1, 900), "a")
    with pytest.raises(InputError, match=said):
        base.select(Own(2, given=given), clip, np.empty(0))
    for kind in (np.int64, np.uint64, np.uint8):  # the number of a black frame, -1, was 255 in uint8
        own = Own(2, given=SlotLayout(np.array([2, 3], dtype=kind), 3, False), pad="constant")
        assert base.select(own, clip, np.empty(0)).frames.tolist() == [2, -1]
    own = Own(2, given=SlotLayout(np.array([0, 60]), 90, True))
    assert base.select(own, clip, np.empty(0)).frames.tolist() == [0, 2]
    own = Own(2, given=SlotLayout(np.array([2]), 3, False, length=2))
    assert base.select(own, clip, np.empty(0)).frames.tolist() == [2, 2]


def test_a_sampler_of_a_user_that_lacks_a_method() -> None:
    """The method gave None, and the loader a TypeError about None."""

    class Half(FrameSampler):
        pad, num_frames, num_random = "edge", 2, 0

    with pytest.raises(TypeError, match="abstract methods is_too_short, num_samples, sample"):
        Half()  # type: ignore[abstract]
    for wrong in ({"num_random": None}, {"num_frames": 0}):
        with pytest.raises(InputError, match=rf"Wrong\.{next(iter(wrong))} must be"):
            check_sampler(type("Wrong", (Own,), wrong)(2))
