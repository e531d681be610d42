"""Windows with jitter, spans, several rates and tiles, against a plain reference."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamvid.sampling.base import ClipTimes
from streamvid.sampling.padding import Pad
from streamvid.sampling.windows import MultiRate, TiledWindows, Window
from tests.support.sampling import (
    MOST,
    NONE,
    RATES,
    Slot,
    by_frames,
    by_ticks,
    cfr,
    check,
    clips,
    counts,
    draws_of,
    on_screen,
    pads,
    rates,
    reference_pad,
    select,
)


def rounded_share(last: int, sample: int, windows: int) -> int:
    return math.floor(Fraction(sample * last, windows - 1) + Fraction(1, 2))


def window_starts(sampling: Window, clip: ClipTimes, steps: list[int], random: Any) -> list[int]:
    """Where each of a clip's windows begins, in frames or ticks."""
    pts, in_frames, windows = clip.pts.tolist(), sampling.fps is None and sampling.span is None, sampling.windows
    axis, end = (list(range(len(pts))), len(pts)) if in_frames else (pts, clip.duration)
    possible = [start for start in axis if start + steps[-1] < end] or [0]
    if sampling.start == "first":
        return [0]
    if sampling.start == "random":
        return [possible[min(int(random[0] * len(possible)), len(possible) - 1)]] * windows
    if windows > 1:
        share = rounded_share if in_frames else lambda last, j, k: math.ceil(Fraction(last * j, k - 1))
        wanted = [share(possible[-1], j, windows) for j in range(windows)]
    else:
        wanted = [possible[-1] // 2 if in_frames else math.ceil(Fraction(possible[-1], 2))]
    return wanted if in_frames else [pts[on_screen(pts, instant)] for instant in wanted]


def window_reference(sampling: Window, clip: ClipTimes, random: Any, pad: Pad) -> list[list[Slot]]:
    numbers = iter(random.tolist())
    if sampling.start == "random":
        next(numbers)
    if sampling.span is not None:
        least, most = (max(1, min(round(Fraction(s) / clip.tick), clip.duration)) for s in sampling.span)
        span = least + int(next(numbers) * (most - least + 1))
        steps = [min(math.ceil(Fraction(i * span, sampling.frames)), span - 1) for i in range(sampling.frames)]
    elif sampling.fps is not None:
        step = 1 / (Fraction(sampling.fps).limit_denominator(100_000) * clip.tick)
        steps = [math.ceil(i * step) for i in range(sampling.frames)]
    else:
        steps = [i * (sampling.stride or 1) for i in range(sampling.frames)]
    in_frames = sampling.fps is None and sampling.span is None
    end = len(clip.pts) if in_frames else clip.duration
    moves = list(numbers)
    samples = []
    for start in window_starts(sampling, clip, steps, random):
        positions, least = [start + step for step in steps], 0
        if sampling.jitter:
            most = int(sampling.jitter) if in_frames else math.floor(Fraction(sampling.jitter) / clip.tick)
            for i, place in enumerate(positions):
                if place < end:
                    moved = place - most + math.floor(moves[i] * (2 * most + 1))
                    positions[i] = least = max(least, min(max(moved, 0), end - 1))
        samples.append((by_frames if in_frames else by_ticks)(clip, positions, pad))
    return samples


@st.composite
def windows(draw: st.DrawFn) -> Window:
    start = draw(st.sampled_from(["random", "center", "first", "even"]))
    number = draw(st.integers(1, 5)) if start in ("random", "even") else 1
    kind = draw(st.sampled_from(["stride", "fps", "span"]))
    frames = draw(st.integers(1, MOST))
    if kind == "stride":
        stride, jitter = draw(st.none() | st.integers(1, 9)), draw(st.integers(0, 12))
        return Window(frames, stride=stride, start=start, windows=number, jitter=jitter)
    seconds = draw(st.just(0) | st.floats(0, 2) | st.sampled_from([0.04, 1]))
    if kind == "fps":
        return Window(frames, fps=draw(rates), start=start, windows=number, jitter=seconds)
    least, more = draw(st.floats(1e-4, 20)), draw(st.just(0) | st.floats(0, 20))
    return Window(frames, span=(least, least + more), start=start, windows=number, jitter=seconds)


@settings(max_examples=settings.default.max_examples * 3)
@given(windows(), clips(), st.data(), pads)
def test_window(sampling: Window, clip: ClipTimes, data: st.DataObject, pad: Pad) -> None:
    random = draws_of(data, sampling)
    check(sampling, clip, random, pad, window_reference(sampling, clip, random, reference_pad(pad)))


def test_even_windows() -> None:
    clip = cfr(Fraction(10), Fraction(1, 1000), 20)
    sampling = Window(4, start="even", windows=3)
    shown = [select(sampling, clip, NONE, "none", sample=j).frames.tolist() for j in range(3)]
    assert shown == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19]]
    one = select(Window(4, start="even"), clip, NONE, "none").frames
    assert one.tolist() == select(Window(4, start="center"), clip, NONE, "none").frames.tolist()
    # A short clip gives as many samples as any other, all the same.
    short = cfr(Fraction(10), Fraction(1, 1000), 3)
    assert sampling.num_samples(*counts(short)).tolist() == [3]
    assert [select(sampling, short, NONE, "edge", sample=j).frames.tolist() for j in range(3)] == [[0, 1, 2, 2]] * 3
    assert sampling.num_samples(*counts(short), whole=True).tolist() == [0]


def test_centre_and_even_windows_begin_with_the_same_frame_whatever_the_clock() -> None:
    """Rounded times decided between the two frames that are as near to the centre."""
    for base in (Fraction(1, 600), Fraction(1, 1000), Fraction(1, 10**9), Fraction(1, 120_000)):
        for rate, frames in itertools.product([Fraction(24), Fraction(24000, 1001), Fraction(30000, 1001)], (2, 3, 4)):
            for count in range(frames, 80):
                clip, fps = cfr(rate, base, count), Window(frames, fps=rate, start="center")
                by_stride = select(Window(frames, start="center"), clip, NONE, "none").frames.tolist()
                assert select(fps, clip, NONE, "none").frames.tolist() == by_stride
    clip = cfr(Fraction(30000, 1001), Fraction(1, 1000), 75)  # 1601.6 ms is two thirds of 2402.4 ms
    even = Window(3, fps=Fraction(30000, 1001), start="even", windows=4)
    assert select(even, clip, NONE, "none", sample=2).frames.tolist() == [48, 49, 50]


def test_a_span_covers_what_was_asked_for() -> None:
    clip = cfr(Fraction(25), Fraction(1, 90000), 250)
    # 2 seconds in 8 steps of a quarter each; the centre is where it would be by fps.
    fixed = select(Window(8, span=(2, 2), start="center"), clip, np.array([0.7]), "none")
    assert fixed.frames.tolist() == select(Window(8, fps=4, start="center"), clip, NONE, "none").frames.tolist()
    for number in np.linspace(0, 1, 50, endpoint=False):
        got = select(Window(8, span=(1, 4), start="first"), clip, np.array([number]), "none")
        assert 7 / 8 - 0.05 <= got.seconds[-1] <= 4 * 7 / 8
        assert abs(got.seconds[-1] - (1 + 3 * number) * 7 / 8) <= 0.041
    # A clip of less than the least gives all it has, unpadded.
    short = cfr(Fraction(25), Fraction(1, 90000), 10)
    assert select(Window(5, span=(1, 4)), short, np.zeros(2), "none").frames.tolist() == [0, 2, 4, 6, 8]
    one = ClipTimes(np.array([0]), 1, Fraction(1, 1000))
    assert select(Window(5, span=(1, 4)), one, np.full(2, 0.99), "none").frames.tolist() == [0] * 5


parts = st.lists(st.tuples(st.integers(1, 6), rates), min_size=1, max_size=4)


@settings(max_examples=settings.default.max_examples * 3)
@given(parts, st.sampled_from(["random", "center", "first"]), clips(), st.data(), pads)
def test_multirate(parts: Any, place: Any, clip: ClipTimes, data: st.DataObject, pad: Pad) -> None:
    sampling = MultiRate(parts, place)
    random = draws_of(data, sampling)
    exact, at = [], Fraction(0)
    for frames, rate in parts:
        step = 1 / (Fraction(rate).limit_denominator(100_000) * clip.tick)
        for _ in range(frames):
            exact.append(at)
            at += step
    steps = [math.ceil(instant) for instant in exact]
    start = window_starts(Window(len(steps), fps=1, start=place), clip, steps, random)[0]
    check(sampling, clip, random, pad, [by_ticks(clip, [start + step for step in steps], reference_pad(pad))])


def test_multirate_goes_on_where_the_part_before_ends() -> None:
    clip = cfr(Fraction(30), Fraction(1, 90000), 600)
    got = select(MultiRate([(8, 1.0), (16, 2.0)], start="first"), clip, NONE, "none")
    wanted = [*range(8), *(8 + i / 2 for i in range(16))]
    np.testing.assert_allclose(got.seconds, wanted, atol=1e-9)
    assert MultiRate([(8, 1), (16, 2.0)]).num_frames == 24
    same = Window(9, fps=10, start="center")
    split = MultiRate([(4, 10), (5, 10)], start="center")
    assert select(split, clip, NONE, "none").frames.tolist() == select(same, clip, NONE, "none").frames.tolist()


def windows_reference(sampling: TiledWindows, clip: ClipTimes, pad: Pad) -> list[list[Slot]]:
    """A grid over the clip; windows as long as they show something that none before did."""
    frames, step = sampling.frames, sampling.step or sampling.frames
    end = len(clip.pts) if sampling.fps is None else clip.duration
    by = Fraction(sampling.stride or 1)
    if sampling.fps is not None:
        by = 1 / (Fraction(sampling.fps).limit_denominator(100_000) * clip.tick)
    inside = next(i for i in itertools.count() if i * by > end - 1)
    samples: list[list[Slot]] = []
    seen = 0
    for first in range(0, max(inside, 1), step):
        if samples and (first >= inside or seen >= inside):
            break
        positions = [math.ceil(i * by) for i in range(first, first + frames)]
        samples.append((by_frames if sampling.fps is None else by_ticks)(clip, positions, pad))
        seen = max(seen, first + frames)
    return samples


@settings(max_examples=settings.default.max_examples * 3)
@given(
    st.builds(
        TiledWindows, st.integers(1, 9), step=st.none() | st.integers(1, 12), stride=st.none() | st.integers(1, 5)
    )
    | st.builds(
        TiledWindows,
        st.integers(1, 9),
        step=st.none() | st.integers(1, 12),
        fps=st.sampled_from(RATES) | st.floats(0.5, 60),
    ),
    clips(),
    pads,
)
def test_windows(sampling: TiledWindows, clip: ClipTimes, pad: Pad) -> None:
    check(sampling, clip, NONE, pad, windows_reference(sampling, clip, reference_pad(pad)))


def test_windows_cover_the_clip() -> None:
    clip = cfr(Fraction(10), Fraction(1, 1000), 10)

    def shown(sampling: TiledWindows, pad: Pad = "edge") -> list[list[int]]:
        number = int(sampling.num_samples(*counts(clip), whole=pad == "none")[0])
        return [select(sampling, clip, NONE, pad, sample=j).frames.tolist() for j in range(number)]

    assert shown(TiledWindows(4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 9, 9]]
    assert shown(TiledWindows(4), "none") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert shown(TiledWindows(4), "constant")[2] == [8, 9, -1, -1]
    assert shown(TiledWindows(4), "reflect_101")[2] == [8, 9, 8, 7]
    assert shown(TiledWindows(4, step=3)) == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert shown(TiledWindows(2, step=4)) == [[0, 1], [4, 5], [8, 9]]
    assert shown(TiledWindows(2, step=5)) == [[0, 1], [5, 6]]
    assert shown(TiledWindows(3, stride=2)) == [[0, 2, 4], [6, 8, 9]]
    assert shown(TiledWindows(3, fps=5)) == [[0, 2, 4], [6, 8, 9]]
    assert shown(TiledWindows(20), "none") == []
    # fn.pad and fn.reshape: the frames, padded to a multiple, then cut.
    padded = np.pad(np.arange(10), (0, 2), mode="edge").reshape(3, 4)
    assert shown(TiledWindows(4)) == padded.tolist()


def test_windows_of_many_clips_at_once() -> None:
    frames, duration = np.array([1, 4, 5, 50]), np.array([40, 160, 161, 2000])
    tick = Fraction(1, 1000)
    assert TiledWindows(4).num_samples(frames, duration, tick).tolist() == [1, 1, 2, 13]
    assert TiledWindows(4).num_samples(frames, duration, tick, whole=True).tolist() == [0, 1, 1, 12]
    assert TiledWindows(4, fps=25).num_samples(frames, duration, tick).tolist() == [1, 1, 2, 13]
    assert TiledWindows(4, fps=25).is_too_short(frames, duration, tick).tolist() == [True, False, False, False]
    # Products beyond int64 are worked out all the same.
    long = np.array([2**53])
    rate = Fraction(99_999, 99_991)
    wanted = (2**53 - 1) * (rate * Fraction(99_989, 2**31 - 1)).numerator // (
        rate * Fraction(99_989, 2**31 - 1)
    ).denominator + 1
    got = TiledWindows(1, fps=rate).num_samples(np.array([1]), long, Fraction(99_989, 2**31 - 1))
    assert got.tolist() == [wanted]
