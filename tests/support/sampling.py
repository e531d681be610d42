"""Frame samplers with another padding, and plain references for them: slot by slot, in integers and fractions."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from streamvid.arrays import Float64
from streamvid.sampling import base
from streamvid.sampling.base import ClipTimes, FrameSampler, Selection
from streamvid.sampling.explicit import Frames
from streamvid.sampling.padding import PADS, Pad
from streamvid.sampling.spread import Uniform

BASES = [Fraction(1, 1000), Fraction(1, 90000), Fraction(1, 12800), Fraction(1, 600)]

RATES = [Fraction(n) for n in (10, 12, 15, 24, 25, 30, 50, 120)]
RATES += [Fraction(24000, 1001), Fraction(30000, 1001), Fraction(60000, 1001), Fraction(7, 3)]

# libx264 and friends write the first; muxers and capture tools have been seen with the second.
ROUNDINGS = {"round": lambda x: math.floor(x + Fraction(1, 2)), "floor": math.floor}

MOST = 12


@dataclass(frozen=True)
class Slot:
    """One frame position in the reference."""

    frame: int
    real: bool
    seconds: float


def reference(sampling: FrameSampler, clip: ClipTimes, random: list[float], pad: Pad) -> list[Slot]:
    """`select` for all samplers but windows, slot by slot, in integers and fractions."""
    count = len(clip.pts)
    if isinstance(sampling, Uniform):
        if sampling.pick == "center":
            positions = [math.floor(Fraction(2 * i + 1, 2) * count / sampling.frames) for i in range(sampling.frames)]
        else:
            positions = [
                min(int((i + random[i]) * (count / sampling.frames)), count - 1) for i in range(sampling.frames)
            ]
    elif isinstance(sampling, Frames):
        positions = list(sampling.numbers)
    else:
        positions = list(range(count))
    return by_frames(clip, positions, pad)


def on_screen(pts: list[int], instant: int) -> int:
    """The last frame whose time has come."""
    return max((n for n, t in enumerate(pts) if t <= instant), default=0)


def in_clip(place: int, last: int, end: int, pad: Pad) -> int:
    """Walk back and forth until inside."""
    if pad == "reflect_101" and last > 0:
        while not 0 <= place <= last:
            place = 2 * last - place if place > last else -place
        return place
    if pad == "reflect_1001":
        while not 0 <= place < end:
            place = 2 * end - 1 - place if place >= end else -1 - place
        return place
    return last


def slot(clip: ClipTimes, pad: Pad, real: bool, frame: int) -> Slot:
    if pad == "constant" and not real:
        return Slot(-1, False, -1.0)
    return Slot(frame, real, float(clip.pts[frame] * clip.tick))


def assert_is(got: Selection, wanted: list[Slot]) -> None:
    assert got.frames.tolist() == [s.frame for s in wanted]
    assert got.mask.tolist() == [s.real for s in wanted]
    np.testing.assert_allclose(got.seconds, [s.seconds for s in wanted], rtol=1e-12)
    assert np.issubdtype(got.frames.dtype, np.integer)
    assert got.mask.dtype == np.bool_
    assert got.seconds.dtype == np.float64


def cfr(rate: Fraction, base: Fraction, count: int, rounding: str = "round") -> ClipTimes:
    """A clip of constant rate as a container stores it: times in whole ticks."""
    tick = ROUNDINGS[rounding]
    times = [tick(n / (rate * base)) for n in range(count + 1)]
    return ClipTimes(np.array(times[:-1], dtype=np.int64), times[-1], base)


@st.composite
def clips(draw: st.DrawFn) -> ClipTimes:
    """Any rate, any gaps; now and then two frames at the same instant."""
    steps = draw(st.lists(st.integers(0, 400) | st.just(40), max_size=40))
    pts = np.cumsum([0, *steps]).astype(np.int64)
    return ClipTimes(pts, int(pts[-1]) + draw(st.integers(1, 500)), draw(st.sampled_from(BASES)))


draws = st.lists(st.floats(0, 1, exclude_max=True), min_size=40, max_size=40)

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


def padded(sampling: FrameSampler, pad: Pad) -> FrameSampler:
    """The sampler, with that padding."""
    changed: Any = dataclasses.replace(sampling, pad=pad)  # type: ignore[type-var]
    return changed  # type: ignore[no-any-return]


def select(sampling: FrameSampler, clip: ClipTimes, random: Float64, pad: Pad, *, sample: int = 0) -> Selection:
    """The frames of one sample, padded so."""
    return base.select(padded(sampling, pad), clip, random, number=sample)
