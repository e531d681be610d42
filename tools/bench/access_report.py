"""What `tools.bench.random_access` found, as a table, checks and a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tools.bench.report import Check, Row
from tools.bench.timing import Timing

STREAMING: Final = "streamvid, StreamLoader"
RANDOM: Final = "streamvid, GpuDataLoader"
WHOLE: Final = "whole file, fn.decoders.video"
WHOLE_VP9: Final = "whole file of VP9, fn.decoders.video"
NVC: Final = "PyNvVideoCodec SimpleDecoder"
TORCHCODEC: Final = "torchcodec, exact"
ON_CPU: Final = (TORCHCODEC, "torchcodec, frame mappings", "OpenCV, 4 workers", "PyAV seeks")
"""What is to be beaten without a GPU."""
FLAT: Final = 1.2
OVER_NVC: Final = 2.0
OVER_WHOLE: Final = {60: 3.0, 300: 20.0, 3000: 100.0}
OVER_CPU: Final = 2.0

Found = dict[tuple[str, int], Timing]
"""What is known so far, by the way's name and the video's length."""


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
        rows.append({f"seconds for {all_clips(found)} clips": name, **cells})
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
    """What does not run, and why, a sentence for each way."""
    lines = []
    for name in dict.fromkeys(name for name, _ in found):
        wrong = {length: timing.error for (of, length), timing in found.items() if of == name and timing.error}
        if wrong:
            where = "" if len(wrong) == len(_lengths(found)) else f" for {', '.join(f'{n} s' for n in wrong)}"
            lines.append(f"does not run here: {name}{where} ({next(iter(wrong.values()))})")
    return lines


def checks(found: Mapping[tuple[str, int], Timing]) -> list[Check]:
    """What issue 5 promises, as far as it was measured."""
    lengths = _lengths(found)
    taken = {key: timing.median for key, timing in found.items() if timing.seconds}
    made = []
    for ours in (STREAMING, RANDOM):
        mine = [length for length in lengths if (ours, length) in taken]
        if len(mine) > 1:
            first, last = mine[0], mine[-1]
            name = f"{ours}: {last} s against {first} s"
            made.append(Check.at_most(name, taken[ours, last] / taken[ours, first], FLAT))
        for length in mine:
            seconds = taken[ours, length]
            if found[ours, length].device == "cpu":
                rivals = [taken[name, length] for name in ON_CPU if (name, length) in taken]
                if rivals:
                    name = f"{ours}: against the best on a CPU, {length} s"
                    made.append(Check.at_least(name, min(rivals) / seconds, OVER_CPU))
                continue
            if (NVC, length) in taken:
                made.append(
                    Check.at_least(f"{ours}: against {NVC}, {length} s", taken[NVC, length] / seconds, OVER_NVC)
                )
            if (WHOLE, length) in taken and length in OVER_WHOLE:
                name = f"{ours}: against whole files, {length} s"
                made.append(Check.at_least(name, taken[WHOLE, length] / seconds, OVER_WHOLE[length]))
    return made


def plot(found: Mapping[tuple[str, int], Timing], path: Path, title: str) -> None:
    """The table as a picture: seconds against the video's length, hollow where extrapolated."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "streamvid"  # the same figures give the same file
    lengths = _lengths(found)
    figure, axes = plt.subplots(figsize=(9, 4.5))
    ends = []
    for name in dict.fromkeys(name for name, _ in found):
        timings = [found[name, length] for length in lengths if (name, length) in found and found[name, length].seconds]
        if not timings:
            continue
        ours = name.startswith("streamvid")
        (line,) = axes.plot(
            [timing.length for timing in timings],
            [timing.median for timing in timings],
            linewidth=2.8 if ours else 1.3,
            linestyle="-" if ours else "--",
            zorder=3 if ours else 2,
        )
        for timing in timings:
            hollow = "white" if timing.is_cut else line.get_color()
            axes.plot(
                timing.length, timing.median, marker="o", color=line.get_color(), markerfacecolor=hollow, zorder=4
            )
        ends.append((timings[-1].median, name, line))
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="length of the video, seconds",
        ylabel=f"seconds for {all_clips(found)} clips",
    )
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    axes.set_title(title, fontsize=10)
    axes.grid(visible=True, alpha=0.3)
    # In the order in which the lines end, so that the eye finds them.
    ends.sort(key=lambda end: -end[0])
    axes.legend(
        [line for *_, line in ends],
        [name for _, name, _ in ends],
        fontsize=8,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        title="hollow: extrapolated",
        title_fontsize=8,
        frameon=False,
    )
    figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def _lengths(found: Mapping[tuple[str, int], Timing]) -> list[int]:
    return sorted({length for _, length in found})
