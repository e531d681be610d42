"""The results of `tools.bench.random_access`, as a table and checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tools.bench.report import Check, Row
from tools.bench.timing import Timing

STREAM_LOADER: Final = "streamvid, StreamLoader"
GPU_LOADER: Final = "streamvid, GpuDataLoader"
WHOLE: Final = "whole file, fn.decoders.video"
WHOLE_VP9: Final = "whole file of VP9, fn.decoders.video"
NVC: Final = "PyNvVideoCodec SimpleDecoder"
TORCHCODEC: Final = "torchcodec, exact"
ON_CPU: Final = (TORCHCODEC, "torchcodec, frame mappings", "PyAV seeks")
"""Against the fastest of these the loaders are held without a GPU."""
FLAT: Final = 1.2
OVER_NVC: Final = 2.0
OVER_WHOLE: Final = {60: 3.0, 300: 20.0, 3000: 100.0}
OVER_CPU: Final = 2.0

Found = dict[tuple[str, int], Timing]
"""Timings by the way's name and the video's length in seconds."""


def all_clips(found: Mapping[tuple[str, int], Timing]) -> int:
    """How many clips the ways are to give."""
    return max(timing.wanted for timing in found.values())


def table(found: Mapping[tuple[str, int], Timing]) -> list[Row]:
    """A row for each way; ~ marks what is extrapolated."""
    lengths = _lengths(found)
    rows: list[Row] = []
    for name in dict.fromkeys(name for name, _ in found):
        cells = {}
        for length in lengths:
            timing = found.get((name, length))
            if timing is None:
                cells[f"{length} s"] = ""
            elif timing.error:
                cells[f"{length} s"] = "does not run"
            else:
                cells[f"{length} s"] = f"{'~' if timing.is_cut else ''}{timing.median:.2f}"
        same = [str(timing.same) for (of, _), timing in found.items() if of == name and timing.seconds]
        rows.append({f"seconds for {all_clips(found)} clips": name, **cells, "right frames": min(same, default="")})
    return rows


def speeds(found: Mapping[tuple[str, int], Timing]) -> list[str]:
    """Where streamvid's time goes, a sentence for each of its rows."""
    lines = []
    for (name, length), timing in found.items():
        if timing.packets and timing.seconds:
            packets = timing.packets * timing.clips
            lines.append(
                f"{name}, {length} s: {timing.packets:.0f} packets decoded for a clip, "
                f"{packets / timing.median:,.0f} a second; first batch after {timing.first:.2f} s; "
                f"opening and the first batch ever {timing.cold:.2f} s"
            )
    return lines


def failures(found: Mapping[tuple[str, int], Timing]) -> list[str]:
    """The ways that do not run, and why, a sentence each."""
    lines = []
    for name in dict.fromkeys(name for name, _ in found):
        wrong = {length: timing.error for (of, length), timing in found.items() if of == name and timing.error}
        if wrong:
            where = "" if len(wrong) == len(_lengths(found)) else f" for {', '.join(f'{n} s' for n in wrong)}"
            lines.append(f"does not run here: {name}{where} ({next(iter(wrong.values()))})")
    return lines


def checks(found: Mapping[tuple[str, int], Timing]) -> list[Check]:
    """The bars of issue 5 for what was measured."""
    lengths = _lengths(found)
    taken = {key: timing.median for key, timing in found.items() if timing.seconds}
    made = [
        Check.at_least(f"{name}: right frames, {length} s", float(timing.same), 1.0)
        for (name, length), timing in found.items()
        if timing.seconds
    ]
    for ours in (STREAM_LOADER, GPU_LOADER):
        mine = [length for length in lengths if (ours, length) in taken]
        if len(mine) > 1:
            first, last = mine[0], mine[-1]
            name = f"{ours}: {last} s against {first} s"
            made.append(Check.at_most(name, taken[ours, last] / taken[ours, first], FLAT))
        for length in mine:
            seconds = taken[ours, length]
            if found[ours, length].device == "cpu":
                baselines = [taken[name, length] for name in ON_CPU if (name, length) in taken]
                if baselines:
                    name = f"{ours}: against the best on a CPU, {length} s"
                    made.append(Check.at_least(name, min(baselines) / seconds, OVER_CPU))
                continue
            if (NVC, length) in taken:
                made.append(
                    Check.at_least(f"{ours}: against {NVC}, {length} s", taken[NVC, length] / seconds, OVER_NVC)
                )
            if (WHOLE, length) in taken and length in OVER_WHOLE:
                name = f"{ours}: against whole files, {length} s"
                made.append(Check.at_least(name, taken[WHOLE, length] / seconds, OVER_WHOLE[length]))
    return made


def _lengths(found: Mapping[tuple[str, int], Timing]) -> list[int]:
    return sorted({length for _, length in found})
