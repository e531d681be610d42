"""Frames spread over a clip, each way against a plain reference."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamvid.sampling.base import ClipTimes
from streamvid.sampling.padding import PADS, Pad
from streamvid.sampling.spread import Keyframes, RandomFrames, Uniform
from streamvid.video.frame_index import HIDDEN, RANDOM_ACCESS, FrameIndex
from tests.support.sampling import (
    MOST,
    NONE,
    by_frames,
    cfr,
    check,
    clips,
    draws,
    draws_of,
    lengthened,
    pads,
    reference_pad,
    select,
)


@given(st.integers(1, 300), st.integers(1, 64), draws)
@example(164, 28, [0.0] * 40)
def test_uniform_takes_one_frame_of_each_part(count: int, frames: int, random: list[float]) -> None:
    clip = cfr(Fraction(25), Fraction(1, 1000), count)
    frames = min(frames, 40)
    for sampling in (Uniform(frames), Uniform(frames, pick="random")):
        got = select(sampling, clip, np.array(random[: sampling.num_random]), "none")
        assert got.mask.all()
        for i, frame in enumerate(got.frames.tolist()):
            assert 0 <= frame < count
            assert math.floor(Fraction(i * count, frames)) <= frame <= Fraction((i + 1) * count, frames)


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
