"""What choosing the frames of a clip costs: microseconds per call of `select`, for every sampler.

    python -m tools.bench.sampling [--quick] [--json FILE]

A clip of 300 frames at 30 a second, with a key frame every 30, and a sample of 16 frames; then a short clip of 10
frames, which is padded. Random numbers are drawn beforehand. The best of several rounds counts: other work on the
machine only ever adds to it.
"""

from __future__ import annotations

import sys
import time
from fractions import Fraction
from typing import Final

import numpy as np

import streamvid as sv
from streamvid.sampling.base import select
from tools.bench.report import Check, Report, Row, arguments, finish

BAR: Final = 20.0
"""Microseconds a clip (issue 4)."""
FRAMES: Final = 16
SAMPLERS: Final[dict[str, sv.FrameSampler]] = {
    "Window, stride": sv.Window(FRAMES, stride=4),
    "Window, fps": sv.Window(FRAMES, fps=8),
    "Window, fps, center": sv.Window(FRAMES, fps=8, start="center"),
    "Window, stride, jitter": sv.Window(FRAMES, stride=4, jitter=1),
    "Window, fps, jitter": sv.Window(FRAMES, fps=8, jitter=0.05),
    "Window, span": sv.Window(FRAMES, span=(1.0, 4.0)),
    "Window, 5 even": sv.Window(FRAMES, fps=8, start="even", windows=5),
    "MultiRate": sv.MultiRate([(4, 1.0), (FRAMES - 4, 4.0)]),
    "Windows, stride": sv.TiledWindows(FRAMES, stride=2),
    "Windows, fps": sv.TiledWindows(FRAMES, fps=8),
    "Uniform": sv.Uniform(FRAMES),
    "Uniform, random": sv.Uniform(FRAMES, pick="random"),
    "Keyframes": sv.Keyframes(FRAMES // 4),
    "RandomFrames": sv.RandomFrames(FRAMES),
    "Frames": sv.Frames(range(FRAMES)),
    "ByClip, frames": sv.ByClip(FRAMES, frames=lambda _: range(FRAMES)),
    "ByClip, seconds": sv.ByClip(FRAMES, seconds=lambda _: [i / 10 for i in range(FRAMES)]),
    "ByClip, column": sv.ByClip(FRAMES, frames="wanted"),
    "All": sv.All(),
}
PROMISED: Final = ("Window, stride", "Window, fps", "Uniform")


def clip(frames: int) -> sv.ClipTimes:
    """A clip of 30 frames a second, with a key frame every second."""
    return sv.ClipTimes(
        np.arange(frames, dtype=np.int64) * 3000,
        frames * 3000,
        Fraction(1, 90000),
        find_keyframes=lambda: np.arange(0, frames, 30),
        find_meta=lambda: {"wanted": list(range(FRAMES))},
    )


def cost(sampler: sv.FrameSampler, frames: int, *, calls: int, rounds: int) -> float:
    """Microseconds per call, in the best round."""
    times = clip(frames)
    count = max(1, int(sampler.num_samples(np.array([frames]), np.array([times.duration]), times.tick)[0]))
    random = np.random.default_rng(0).random((calls, sampler.num_random))
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for n in range(calls):
            select(sampler, times, random[n], number=n % count)
        best = min(best, time.perf_counter() - started)
    return best / calls * 1e6


def main() -> int:
    options = arguments(__doc__).parse_args()
    calls, rounds = (500, 5) if options.quick else (5000, 10)
    rows: list[Row] = []
    checks = []
    for name, sampler in SAMPLERS.items():
        whole, short = (cost(sampler, frames, calls=calls, rounds=rounds) for frames in (300, 10))
        rows.append({"sampler": name, "us/clip": whole, "us/short clip": short})
        if name in PROMISED:
            checks.append(Check.at_most(f"{name}: us/clip", whole, BAR))
    notes = ["a clip of 300 frames, and one of 10 that is padded; without reading metadata or the frame index"]
    return finish(Report("sampling", rows, checks, notes), options)


if __name__ == "__main__":
    sys.exit(main())
