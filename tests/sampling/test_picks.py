"""The other ways of sampling, each against a plain reference, slot by slot in integers and fractions."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import streamvid as sv
from streamvid.errors import InputError
from streamvid.sampling.base import ClipTimes, FrameSampler
from streamvid.sampling.explicit import ByClip, Frames
from streamvid.sampling.padding import PADS, Pad
from streamvid.sampling.spread import Keyframes, RandomFrames
from streamvid.sampling.windows import MultiRate, TiledWindows, Window
from streamvid.video.frame_index import HIDDEN, RANDOM_ACCESS, FrameIndex
from tests.sampling.test_windows import (
    BASES,
    MOST,
    RATES,
    ROUNDINGS,
    Slot,
    assert_is,
    cfr,
    clips,
    in_clip,
    on_screen,
    slot,
)
from tests.support.sampling import select

NONE = np.empty(0)
rates = st.sampled_from([*RATES, 29.97, 8, 0.5, 1000]) | st.floats(0.5, 300)
pads = st.sampled_from(PADS)


def draws_of(data: st.DataObject, sampling: FrameSampler) -> Any:
    """The random numbers that a sampler takes."""
    count = sampling.num_random
    return np.array(data.draw(st.lists(st.floats(0, 1, exclude_max=True), min_size=count, max_size=count)))


def by_frames(clip: ClipTimes, positions: list[int], pad: Pad) -> list[Slot]:
    count = len(clip.pts)
    return [slot(clip, pad, p < count, p if p < count else in_clip(p, count - 1, count, pad)) for p in positions]


def by_ticks(clip: ClipTimes, instants: list[int], pad: Pad) -> list[Slot]:
    """Reflecting goes back over the slots that are real."""
    real = sum(t < clip.duration for t in instants)
    frames = [on_screen(clip.pts.tolist(), t) for t in instants]
    if pad.startswith("reflect"):
        frames = [frames[i if i < real else in_clip(i, real - 1, real, pad)] for i in range(len(instants))]
    return [slot(clip, pad, i < real, frame) for i, frame in enumerate(frames)]


def lengthened(clip: ClipTimes, slots: list[Slot], length: int, pad: Pad) -> list[Slot]:
    count = len(slots)
    more = [slots[in_clip(i, count - 1, count, pad)] for i in range(count, length)]
    return slots + [Slot(-1, False, -1.0) if pad == "constant" else replace(s, real=False) for s in more]


def counts(clip: ClipTimes) -> tuple[Any, Any, Fraction]:
    return np.array([len(clip.pts)]), np.array([clip.duration]), clip.tick


def check(sampling: FrameSampler, clip: ClipTimes, random: Any, pad: Pad, wanted: list[list[Slot]]) -> None:
    """Every sample is as wanted (with padding "none": as "constant"), and the counts agree with it."""
    count = int(sampling.num_samples(*counts(clip))[0])
    assert count == len(wanted)
    padded = [not all(s.real for s in one) for one in wanted]
    short = bool(sampling.is_too_short(*counts(clip))[0])
    whole = int(sampling.num_samples(*counts(clip), whole=True)[0])
    assert (whole == 0) == short
    foreseen = sampling.sample(clip, random, 0).length is None
    if foreseen:
        assert short == padded[0]
        assert whole == padded.count(False)
        assert padded == sorted(padded)
    else:
        assert not short
        assert whole == count
    for number, one in enumerate(wanted):
        if pad == "none" and foreseen and padded[number]:
            with pytest.raises(ValueError, match="short"):
                select(sampling, clip, random, pad, sample=number)
            continue
        got = select(sampling, clip, random, pad, sample=number)
        assert len(got.frames) == sampling.num_frames
        assert_is(got, one)


def reference_pad(pad: Pad) -> Pad:
    return "constant" if pad == "none" else pad


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
        wanted = [rounded_share(possible[-1], j, windows) for j in range(windows)]
    else:
        wanted = [(possible[-1]) // 2 if in_frames else max(0, (end - steps[-1]) // 2)]
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


@given(st.integers(1, 60), st.integers(1, 6), st.integers(1, 4), st.integers(2, 6))
def test_even_windows_reach_from_end_to_end(count: int, frames: int, stride: int, number: int) -> None:
    clip = cfr(Fraction(25), Fraction(1, 90000), count)
    last = max(0, count - 1 - (frames - 1) * stride)
    for sampling in (
        Window(frames, stride=stride, start="even", windows=number),
        Window(frames, fps=Fraction(25, stride), start="even", windows=number),
    ):
        starts = [int(select(sampling, clip, NONE, "edge", sample=j).frames[0]) for j in range(number)]
        assert (starts[0], starts[-1]) == (0, last)
        assert starts == sorted(starts)
        assert max(np.diff(starts)) - min(np.diff(starts)) <= 2


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


@given(clips(), st.integers(1, MOST), st.data(), st.sampled_from([{"stride": 3}, {"fps": 25}]))
def test_jitter_keeps_order_and_stays_near(clip: ClipTimes, frames: int, data: st.DataObject, step: Any) -> None:
    plain = Window(frames, start="first", **step)
    for most in (1, 5) if "stride" in step else (0.01, 0.3):
        moved = replace(plain, jitter=most)
        a = plain.sample(clip, NONE, 0)
        b = moved.sample(clip, draws_of(data, moved), 0)
        assert np.all(np.diff(b.position) >= 0)
        assert np.all(b.position >= 0)
        assert np.all((b.position < b.end) == (a.position < a.end))
        assert np.all(np.abs(b.position - a.position) <= (most if "stride" in step else most / clip.tick))


def test_jitter_reaches_both_sides() -> None:
    clip = cfr(Fraction(25), Fraction(1, 90000), 100)
    sampling = Window(3, stride=10, start="center", jitter=2)
    random = np.random.default_rng(0).random((300, 3))
    shown = np.stack([select(sampling, clip, numbers, "none").frames for numbers in random])
    for column, middle in zip(shown.T, (39, 49, 59), strict=True):
        assert Counter(column.tolist()).keys() == set(range(middle - 2, middle + 3))


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


@given(st.sampled_from(RATES), st.sampled_from(BASES), st.integers(1, 60), st.sampled_from(sorted(ROUNDINGS)))
def test_windows_at_the_own_rate_are_those_by_stride(rate: Fraction, base: Fraction, count: int, way: str) -> None:
    if 1 / (rate * base) < 2:
        return
    clip = cfr(rate, base, count, way)
    by_rate, by_stride = TiledWindows(4, step=3, fps=rate), TiledWindows(4, step=3)
    number = int(by_stride.num_samples(*counts(clip))[0])
    assert by_rate.num_samples(*counts(clip)).tolist() == [number]
    for sample in range(number):
        one, two = (select(sampling, clip, NONE, "edge", sample=sample) for sampling in (by_rate, by_stride))
        assert one.frames.tolist() == two.frames.tolist()
        assert one.mask.tolist() == two.mask.tolist()


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


@st.composite
def keyed(draw: st.DrawFn) -> ClipTimes:
    clip = draw(clips())
    at = draw(st.sets(st.integers(0, len(clip.pts) - 1)))
    return replace(clip, find_keyframes=lambda: np.array(sorted(at), dtype=np.int64))


@settings(max_examples=settings.default.max_examples * 3)
@given(keyed(), st.integers(1, MOST), st.sampled_from(["random", "center", "first"]), st.data(), pads)
def test_keyframes(clip: ClipTimes, frames: int, place: Any, data: st.DataObject, pad: Pad) -> None:
    sampling = Keyframes(frames, place)
    random = draws_of(data, sampling)
    keys = clip.keyframes.tolist() or [0]
    wanted = keys
    if len(keys) > frames:
        wanted = []
        for i in range(frames):
            part = keys[i * len(keys) // frames : (i + 1) * len(keys) // frames]
            if place == "random":
                wanted.append(part[int(random[i] * len(part))])
            elif place == "first":
                wanted.append(part[0])
            else:
                wanted.append(part[len(part) // 2])
        assert len(set(wanted)) == frames
    pad_ = reference_pad(pad)
    check(sampling, clip, random, pad, [lengthened(clip, by_frames(clip, wanted, pad_), frames, pad_)])


def test_keyframes_are_visible_random_access_packets() -> None:
    # Decode order I P B I B; the first I is never shown, and the last B comes before the I.
    pts = np.array([-40, 80, 0, 160, 120])
    flags = np.array([RANDOM_ACCESS | HIDDEN, 0, 0, RANDOM_ACCESS, 0])
    index = FrameIndex(pts, np.arange(5), np.ones(5), flags)
    assert index.frame_pts.tolist() == [0, 80, 120, 160]
    assert index.keyframes.tolist() == [3]
    assert FrameIndex(pts[:3], np.arange(3), np.ones(3), flags[:3]).keyframes.tolist() == []


def test_keyframes_of_a_clip_with_few_or_none() -> None:
    clip = replace(cfr(Fraction(10), Fraction(1, 1000), 30), find_keyframes=lambda: np.array([0, 10, 20]))
    shown = {pad: select(Keyframes(5, "first"), clip, NONE, pad) for pad in PADS}
    assert {pad: got.frames.tolist() for pad, got in shown.items()} == {
        "edge": [0, 10, 20, 20, 20],
        "constant": [0, 10, 20, -1, -1],
        "reflect_101": [0, 10, 20, 10, 0],
        "reflect_1001": [0, 10, 20, 20, 10],
        "none": [0, 10, 20, -1, -1],
    }
    assert all(got.mask.tolist() == [True] * 3 + [False] * 2 for got in shown.values())
    cut = cfr(Fraction(10), Fraction(1, 1000), 30)
    assert select(Keyframes(2, "center"), cut, NONE, "edge").frames.tolist() == [0, 0]
    assert select(Keyframes(2, "center"), cut, NONE, "edge").mask.tolist() == [True, False]


@given(clips(), st.integers(1, MOST), st.data(), pads)
def test_random_frames(clip: ClipTimes, frames: int, data: st.DataObject, pad: Pad) -> None:
    sampling, count = RandomFrames(frames), len(clip.pts)
    random = draws_of(data, sampling)
    if count <= frames:
        wanted = list(range(frames))
    else:
        taken: list[int] = []
        for i, number in enumerate(random.tolist()):
            last = count - frames + i
            frame = int(number * (last + 1))
            taken.append(last if frame in taken else frame)
        wanted = sorted(taken)
        assert len(set(wanted)) == frames
        assert wanted[-1] < count
    check(sampling, clip, random, pad, [by_frames(clip, wanted, reference_pad(pad))])


@pytest.mark.parametrize(("count", "frames"), [(5, 2), (6, 3), (4, 4), (5, 1)])
def test_every_set_of_frames_is_equally_likely(count: int, frames: int) -> None:
    clip = cfr(Fraction(25), Fraction(1, 90000), count)
    sizes = [count - frames + i + 1 for i in range(frames)]
    found: Counter[tuple[int, ...]] = Counter()
    for number in itertools.product(*(range(size) for size in sizes)):
        random = np.array([(n + 0.5) / size for n, size in zip(number, sizes, strict=True)])
        found[tuple(select(RandomFrames(frames), clip, random, "none").frames.tolist())] += 1
    if count == frames:
        assert found.keys() == {tuple(range(count))}
        return
    assert found.keys() == set(itertools.combinations(range(count), frames))
    assert set(found.values()) == {math.factorial(frames)}


@given(clips(), st.lists(st.integers(0, 60), min_size=1, max_size=10), st.integers(0, 6), pads)
def test_frames_by_clip(clip: ClipTimes, numbers: list[int], more: int, pad: Pad) -> None:
    length, pad_ = len(numbers) + more, reference_pad(pad)
    wanted = [lengthened(clip, by_frames(clip, numbers, pad_), length, pad_)]
    named = replace(clip, key="a", find_meta=lambda: {"wanted": numbers, "text": str(numbers)})
    for given_ in (
        lambda _: numbers,
        lambda _: np.array(numbers),
        lambda _: iter(numbers),
        lambda _: torch.tensor(numbers),
        "wanted",
        "text",
    ):
        check(ByClip(length, frames=given_), named, NONE, pad, wanted)
    if not more and pad != "none":
        assert select(Frames(numbers), clip, NONE, pad).frames.tolist() == [s.frame for s in wanted[0]]


@given(clips(), st.lists(st.fractions(0, 40, max_denominator=1000), min_size=1, max_size=8), st.integers(0, 3), pads)
def test_seconds_by_clip(clip: ClipTimes, instants: list[Fraction], more: int, pad: Pad) -> None:
    pts, length, pad_ = clip.pts.tolist(), len(instants) + more, reference_pad(pad)
    ticks = [math.ceil(instant / clip.tick) for instant in instants]
    positions = [on_screen(pts, t) if t < clip.duration else len(pts) for t in ticks]
    wanted = [lengthened(clip, by_frames(clip, positions, pad_), length, pad_)]
    named = replace(clip, find_meta=lambda: {"at": [float(instant) for instant in instants]})
    check(ByClip(length, seconds=lambda _: instants), clip, NONE, pad, wanted)
    check(ByClip(length, seconds="at"), named, NONE, pad, wanted)


@given(clips())
def test_seconds_that_a_loader_gave_lead_back_to_their_frames(clip: ClipTimes) -> None:
    pts = clip.pts.tolist()
    seconds = [float(t * float(clip.tick)) for t in pts]
    got = select(ByClip(len(pts), seconds=lambda _: seconds), clip, NONE, "none")
    assert got.frames.tolist() == [on_screen(pts, t) for t in pts]
    assert got.mask.all()


def test_by_clip_sees_the_clip() -> None:
    clip = replace(
        cfr(Fraction(10), Fraction(1, 1000), 30),
        key="b-7",
        find_keyframes=lambda: np.array([0, 12]),
        find_meta=lambda: {"from": 3},
    )
    sampling = ByClip(4, frames=lambda c: [*c.keyframes, c.meta["from"], len(c.pts) - 1])
    assert select(sampling, clip, NONE, "none").frames.tolist() == [0, 12, 3, 29]
    assert select(ByClip(2, seconds=lambda c: [0.25, 5]), clip, NONE, "edge").frames.tolist() == [2, 29]


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"frames": [1, -1]}, "-1"),
        ({"frames": [1.5]}, "1.5"),
        ({"frames": [True]}, "True"),
        ({"frames": ["1"]}, "'1'"),
        ({"frames": [2**31]}, "2147483648"),
        ({"frames": [None]}, "None"),
        ({"frames": [[1]]}, "[1]"),
        ({"frames": np.array([1.0])}, "1.0"),
        ({"frames": []}, "1 to 3"),
        ({"frames": [1, 2, 3, 4]}, "1 to 3"),
        ({"frames": 5}, "5"),
        ({"frames": "1 2"}, "1 2"),
        ({"frames": {"a": 1}}, "list"),
        ({"frames": None}, "None"),
        ({"frames": np.int64(4)}, "list"),
        ({"frames": np.array(4)}, "array(4)"),
        ({"frames": np.array([[4]])}, "[4]"),
        ({"seconds": [float("nan")]}, "nan"),
        ({"seconds": [float("inf")]}, "inf"),
        ({"seconds": [-0.5]}, "-0.5"),
        ({"seconds": ["0"]}, "'0'"),
        ({"seconds": [1j]}, "1j"),
        ({"seconds": [False]}, "False"),
    ],
)
def test_what_is_given_for_a_clip_may_be_wrong(given_: dict[str, Any], says: str) -> None:
    ((kind, values),) = given_.items()
    clip = replace(cfr(Fraction(10), Fraction(1, 1000), 30), key="b-7", find_meta=lambda: {"column": values})
    for source in (lambda _: values, "column"):
        with pytest.raises(InputError) as error:
            select(ByClip(3, **{kind: source}), clip, NONE, "edge")
        assert "'b-7'" in str(error.value)
        assert says in str(error.value)
        assert "\n" not in str(error.value)


def test_a_column_that_is_not_there() -> None:
    clip = replace(cfr(Fraction(10), Fraction(1, 1000), 30), key="b-7", find_meta=lambda: {"other": 1})
    with pytest.raises(InputError, match=r"'b-7'.*'column'.*other"):
        select(ByClip(3, frames="column"), clip, NONE, "edge")


def test_errors_of_the_function_name_the_clip() -> None:
    def wrong(_: ClipTimes) -> list[int]:
        raise KeyError("mine")

    clip = replace(cfr(Fraction(10), Fraction(1, 1000), 30), key="b-7")
    with pytest.raises(KeyError, match="mine") as error:
        select(ByClip(3, frames=wrong), clip, NONE, "edge")
    assert "b-7" in " ".join(error.value.__notes__)


def test_by_clip_is_called_the_same_in_every_process() -> None:
    assert " at 0x" not in repr(ByClip(3, frames=lambda _: [1]))
    assert repr(ByClip(3, frames="a")) != repr(ByClip(3, seconds="a"))


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
