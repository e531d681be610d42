"""Frames and seconds that are given for a clip, against a plain reference."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamvid.errors import InputError
from streamvid.sampling.base import ClipTimes
from streamvid.sampling.explicit import ByClip, Frames
from streamvid.sampling.padding import Pad
from tests.support.sampling import (
    NONE,
    by_frames,
    cfr,
    check,
    clips,
    lengthened,
    on_screen,
    pads,
    reference_pad,
    select,
)


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
        for numbers_ in (numbers, torch.tensor(numbers)):
            assert select(Frames(numbers_), clip, NONE, pad).frames.tolist() == [s.frame for s in wanted[0]]


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
