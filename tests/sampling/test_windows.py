"""Which frames a sample shows, against a plain per-slot reference, and the rules that samplers promise."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from streamvid.errors import InputError
from streamvid.loader.clip_items import At
from streamvid.sampling.base import ClipTimes, FrameSampler
from streamvid.sampling.explicit import Frames
from streamvid.sampling.padding import Pad
from streamvid.sampling.spread import All, Uniform
from streamvid.sampling.windows import MultiRate, Window
from tests.support.sampling import BASES, RATES, ROUNDINGS, assert_is, cfr, clips, draws, pads, reference, select

samplings: st.SearchStrategy[Any] = st.one_of(
    st.builds(Uniform, st.integers(1, 40), pick=st.sampled_from(["center", "random"])),
    st.builds(Frames, st.lists(st.integers(0, 60), min_size=1, max_size=10)),
    st.just(All()),
)


@settings(max_examples=settings.default.max_examples * 3)
@given(samplings, clips(), draws, pads)
def test_every_slot_is_what_the_reference_says(
    sampling: FrameSampler, clip: ClipTimes, random: list[float], pad: Pad
) -> None:
    given_random = np.array(random[: sampling.num_random])
    frames, duration = np.array([len(clip.pts)]), np.array([clip.duration])
    short = sampling.is_too_short(frames, duration, clip.tick)
    assert short.shape == (1,)
    wanted = reference(sampling, clip, random, "edge" if pad == "none" else pad)
    # Short is what would be padded, and what is refused where padding is off.
    assert bool(short[0]) == (not all(s.real for s in wanted))
    if pad == "none" and short[0]:
        with pytest.raises(ValueError, match="short"):
            select(sampling, clip, given_random, pad)
        return
    got = select(sampling, clip, given_random, pad)
    assert len(got.frames) == (sampling.num_frames or len(clip.pts))
    assert_is(got, wanted)


@given(
    st.sampled_from(RATES),
    st.sampled_from(BASES),
    st.integers(1, 200),
    st.sampled_from(sorted(ROUNDINGS)),
    st.sampled_from([Fraction, float]),
)
def test_a_constant_rate_at_its_own_rate_gives_each_frame_once(
    rate: Fraction, base: Fraction, count: int, rounding: str, kind: type
) -> None:
    assume(1 / (rate * base) >= 2)  # with less than two ticks to a frame no rule can tell them apart
    clip = cfr(rate, base, count, rounding)
    got = select(Window(count, fps=kind(rate), start="first"), clip, np.empty(0), "none")
    assert got.frames.tolist() == list(range(count))
    assert got.mask.all()


@pytest.mark.parametrize(
    ("pad", "mode"),
    [
        ("edge", "edge"),
        ("reflect_101", "reflect"),
        ("reflect_1001", "symmetric"),
    ],
)
@given(st.sampled_from(RATES), st.sampled_from(BASES), st.integers(1, 30), st.sampled_from(sorted(ROUNDINGS)))
@example(Fraction(30), Fraction(1, 1000), 4, "round")
@example(Fraction(24), Fraction(1, 12800), 5, "round")
def test_padding_at_the_own_rate_is_that_of_numpy(
    pad: Pad, mode: Any, rate: Fraction, base: Fraction, count: int, rounding: str
) -> None:
    """A short clip by fps is padded as the same clip by stride, and as numpy.pad does it."""
    assume(1 / (rate * base) >= 2)
    clip = cfr(rate, base, count, rounding)
    # There and back once: times in ticks drift from frame numbers by up to a tick each way.
    slots = max(2 * count - 1, 2)
    wanted = np.pad(np.arange(count), (0, slots - count), mode=mode)
    for sampling in (Window(slots, start="first"), Window(slots, fps=rate, start="first")):
        got = select(sampling, clip, np.empty(0), pad)
        assert got.frames.tolist() == wanted.tolist(), sampling
        assert got.mask.tolist() == [n < count for n in range(slots)]


def test_half_open_intervals() -> None:
    clip = ClipTimes(np.array([0, 100, 200, 1000]), 1100, Fraction(1, 1000))
    at = {
        fps: select(Window(2, fps=fps, start="first"), clip, np.empty(0), "edge").frames.tolist()[1]
        for fps in (10, 11, 5, 2, 1)
    }
    assert at == {10: 1, 11: 0, 5: 2, 2: 2, 1: 3}
    # The last instant before the end is in, the end itself is out.
    for fps, real in ((Fraction(1000, 1099), True), (Fraction(1000, 1100), False)):
        assert select(Window(2, fps=fps, start="first"), clip, np.empty(0), "edge").mask.tolist() == [True, real]
        assert Window(2, fps=fps).is_too_short(np.array([4]), np.array([1100]), clip.tick).tolist() == [not real]


def test_a_gap_repeats_the_frame_on_screen() -> None:
    clip = ClipTimes(np.array([0, 40, 80, 480, 520]), 560, Fraction(1, 1000))
    got = select(Window(14, fps=25, start="first"), clip, np.empty(0), "none")
    assert got.frames.tolist() == [0, 1, *[2] * 10, 3, 4]


def test_a_rate_above_the_source_repeats_frames() -> None:
    clip = cfr(Fraction(10), Fraction(1, 90000), 4)
    got = select(Window(12, fps=30, start="first"), clip, np.empty(0), "none")
    assert got.frames.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert got.mask.all()


def test_many_clips_at_once_are_short_as_one_by_one() -> None:
    frames, duration = np.array([1, 4, 5, 6, 50]), np.array([40, 160, 161, 200, 2000])
    tick = Fraction(1, 1000)
    for sampling in (Window(5), Window(5, fps=25), Window(2, stride=4), Frames([4, 0]), Uniform(9), All()):
        together = sampling.is_too_short(frames, duration, tick)
        assert together.dtype == np.bool_
        one_by_one = [bool(sampling.is_too_short(frames[n : n + 1], duration[n : n + 1], tick)[0]) for n in range(5)]
        assert together.tolist() == one_by_one


@pytest.mark.parametrize(
    "make",
    [
        lambda: Window(0),
        lambda: Window(-1),
        lambda: Window(True),
        lambda: Window(2.5),  # type: ignore[arg-type]
        lambda: Window("8"),  # type: ignore[arg-type]
        lambda: Window(8, stride=0),
        lambda: Window(8, stride=1.0),  # type: ignore[arg-type]
        lambda: Window(8, stride=1, fps=8),
        lambda: Window(8, fps=0),
        lambda: Window(8, fps=-1),
        lambda: Window(8, fps=float("nan")),
        lambda: Window(8, fps=float("inf")),
        lambda: Window(8, fps=True),
        lambda: Window(8, fps="25"),  # type: ignore[arg-type]
        lambda: Window(8, start="middle"),  # type: ignore[arg-type]
        lambda: Uniform(0),
        lambda: Uniform(4, pick="first"),  # type: ignore[arg-type]
        lambda: Frames([]),
        lambda: Frames([-1]),
        lambda: Frames([1.5]),  # type: ignore[list-item]
        lambda: Frames([True]),
        lambda: Frames("abc"),  # type: ignore[arg-type]
        lambda: Frames(5),  # type: ignore[arg-type]
        lambda: Frames(np.array(5)),  # type: ignore[arg-type]
        lambda: MultiRate(np.array(5)),  # type: ignore[arg-type]
        lambda: At("clip", frames=np.array(5)),  # type: ignore[arg-type]
    ],
)
def test_silly_arguments(make: Any) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert "\n" not in str(error.value)
