"""Single frames out of long videos: what a batch of clips costs, by the length of the video they come from.

    python -m tools.bench.random_access [--quick] [--codec vp9] [--json FILE] [--plot FILE] [--only TEXT]

1280x720 at 60 frames a second, x264's default GOPs, videos of 60, 120, 300 and 3000 seconds. 128 clips of 16 frames a
second apart, at random places, in batches of 64, resized to 224: the setting of DALI issue 5888. Every way is opened
and warmed up with one clip before it is timed, so indexes are warm. A way that would take over 5 minutes is asked for
fewer clips and extrapolated: marked with ~. Ways that are not installed or do not run here are left out, and listed.

With a GPU the frames are decoded there by all that can; without, all decode on the CPU.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamvid.packing.pack import pack
from tools.bench import rivals
from tools.bench.long_video import FPS, MINUTE, repeat, write_minute
from tools.bench.report import Check, Report, Row, arguments, finish

LENGTHS: Final = (1, 2, 5, 50)
"""In pieces of a minute."""
CLIPS: Final = 128
BATCH: Final = rivals.BATCH
FRAMES: Final = 16
APART: Final = FPS
MOST_SECONDS: Final = 300.0
STREAMING, RANDOM = "streamvid, StreamLoader", "streamvid, ProxyLoader"
WHOLE, NVC = "whole file, fn.decoders.video", "PyNvVideoCodec SimpleDecoder"


@dataclass(frozen=True)
class Timing:
    """What one way took for one video: seconds for all clips, how many it was asked for, and why it did not run."""

    seconds: float
    clips: int
    error: str = ""


def requests(seconds: int, clips: int, seed: int) -> list[list[int]]:
    """Frame numbers of clips at random places."""
    last = seconds * FPS - (FRAMES - 1) * APART - 1
    starts = np.random.default_rng(seed).integers(0, last, clips).tolist()
    return [[start + APART * n for n in range(FRAMES)] for start in starts]


def time_way(open_way: Callable[[], rivals.Way], seconds: int, clips: int, most: float) -> Timing:
    """Time one way, on all clips or on as many as fit."""
    try:
        way = open_way()
        for seed in (1, 2):
            started = time.perf_counter()
            way(requests(seconds, 1, seed=seed))
            first = time.perf_counter() - started
        wanted = requests(seconds, clips, seed=3)
        # A clip that takes long says that all may; how long is found out with a few.
        if first * clips > most:
            started = time.perf_counter()
            few = max(1, min(4, int(most / 5 / first)))
            way(wanted[:few])
            if (spent := time.perf_counter() - started) / few * clips > most:
                return Timing(spent / few * clips, few)
        started = time.perf_counter()
        way(wanted)
        return Timing(time.perf_counter() - started, clips)
    except Exception as error:
        return Timing(0.0, 0, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
    finally:
        gc.collect()


def streaming(dataset: Path, device: str, clips: int) -> Callable[[], rivals.Way]:
    """A StreamLoader: it picks as many places itself. Asked for one clip, it is only started."""

    def open_way() -> rivals.Way:
        import streamvid as sv

        def loader(size: int, steps: int) -> sv.StreamLoader:
            return sv.StreamLoader(
                sv.Mix([(str(dataset), 1)]),
                batch_size=size,
                steps_per_epoch=steps,
                sampling=sv.Window(FRAMES, stride=APART),
                transform=sv.Transform(resize=(rivals.SIDE, rivals.SIDE), dtype="uint8", layout="FHWC"),
                device=device,
            )

        size = min(BATCH, clips)
        whole = loader(size, -(-clips // size))
        started = False

        def run(wanted: rivals.Numbers) -> Any:
            nonlocal started
            if len(wanted) == 1:
                # A whole epoch once, as leaving one early would close its decoders.
                frames = [] if started else [batch["video"].cpu() for batch in whole]
                started = True
                return frames
            return [batch["video"].cpu() for batch in whole]

        return run

    return open_way


def random_access(dataset: Path, device: str) -> Callable[[], rivals.Way]:
    """A ProxyLoader over a ClipDataset, which is asked for just those frames."""

    def open_way() -> rivals.Way:
        import streamvid as sv

        clips = sv.ClipDataset(
            dataset, transform=sv.Transform(resize=(rivals.SIDE, rivals.SIDE), dtype="uint8", layout="FHWC")
        )
        wanted: list[Any] = []
        loader = sv.ProxyLoader(
            clips,
            batch_size=BATCH,
            sampler=wanted,
            num_workers=min(4, rivals.CORES),
            persistent_workers=True,
            device=device,
        )

        def run(numbers: rivals.Numbers) -> Any:
            wanted[:] = [sv.At(0, frames=frames) for frames in numbers]
            return [batch["video"].cpu() for batch in loader]

        return run

    return open_way


def measure(
    video: Path, dataset: Path, seconds: int, *, device: str, clips: int, only: str, most: float
) -> dict[str, Timing]:
    """All ways for one video."""
    ways: dict[str, Callable[[], rivals.Way]] = {
        STREAMING: streaming(dataset, device, clips),
        RANDOM: random_access(dataset, device),
    }
    for name, make in rivals.RIVALS.items():
        ways[name] = lambda make=make: make(video, device)  # type: ignore[misc]
    timings = {}
    for name, open_way in ways.items():
        if only in name:
            timings[name] = timing = time_way(open_way, seconds, clips, most)
            shown = timing.error or f"{timing.seconds:.2f} s ({timing.clips} clips)"
            print(f"{seconds:5} s  {name:32} {shown}", file=sys.stderr, flush=True)
    return timings


def checks(lengths: list[int], found: dict[int, dict[str, Timing]], device: str) -> list[Check]:
    """What issue 5 promises."""

    def taken(length: int, name: str) -> float:
        timing = found[length].get(name)
        return timing.seconds if timing is not None else 0.0

    made = []
    first, last = lengths[0], lengths[-1]
    for ours in (STREAMING, RANDOM):
        if not taken(first, ours):
            continue
        made.append(Check.at_most(f"{ours}: {last} s against {first} s", taken(last, ours) / taken(first, ours), 1.2))
        for length in lengths:
            mine = taken(length, ours)
            if device != "cpu":
                if taken(length, NVC):
                    made.append(Check.at_least(f"{ours}: against {NVC}, {length} s", taken(length, NVC) / mine, 2.0))
                bar = {60: 3.0, 300: 20.0, 3000: 100.0}.get(length)
                if bar and taken(length, WHOLE):
                    name = f"{ours}: against whole files, {length} s"
                    made.append(Check.at_least(name, taken(length, WHOLE) / mine, bar))
            else:
                names = ("torchcodec, exact", "torchcodec, frame mappings", "OpenCV, 4 workers", "PyAV seeks")
                best = min((taken(length, name) for name in names if taken(length, name)), default=0.0)
                if best:
                    made.append(Check.at_least(f"{ours}: against the best on a CPU, {length} s", best / mine, 2.0))
    return made


def table(lengths: list[int], found: dict[int, dict[str, Timing]]) -> list[Row]:
    """A row for each way; ~ marks what is extrapolated."""
    rows: list[Row] = []
    for name in found[lengths[0]]:
        cells = {}
        for length in lengths:
            timing = found[length][name]
            about = "~" if 0 < timing.clips < CLIPS else ""
            cells[f"{length} s"] = f"{about}{timing.seconds:.2f}" if timing.seconds else "does not run"
        rows.append({"seconds for 128 clips": name, **cells})
    return rows


def plot(lengths: list[int], found: dict[int, dict[str, Timing]], path: Path, title: str) -> None:
    """The table as a picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for name in found[lengths[0]]:
        seconds = [found[length][name].seconds or np.nan for length in lengths]
        ours = name.startswith("streamvid")
        axes.plot(lengths, seconds, marker="o", linewidth=2.5 if ours else 1.2, label=name)
    axes.set(xscale="log", yscale="log", xlabel="length of the video, seconds", ylabel="seconds for 128 clips")
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=110, bbox_inches="tight")


def main() -> int:
    """The program."""
    import torch

    parser = arguments(__doc__)
    parser.add_argument("--codec", choices=("h264", "vp9"), default="h264", help="vp9: what DALI decodes on a CPU")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the table; needs matplotlib")
    parser.add_argument(
        "--minute", type=Path, metavar="FILE", help="a minute of 60 frames a second, instead of making one"
    )
    parser.add_argument(
        "--cut", type=float, default=MOST_SECONDS, metavar="SECONDS", help="extrapolate what takes longer"
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="ways whose name holds this")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    options = parser.parse_args()
    piece = 20 if options.quick and not options.minute else MINUTE
    times = (1, 5) if options.quick else LENGTHS
    clips = 16 if options.quick else CLIPS
    found: dict[int, dict[str, Timing]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        minute = options.minute or write_minute(options.codec, folder / "piece", seconds=piece)
        for n in times:
            video = repeat(minute, n, folder / f"{n * piece}", seconds=piece)
            dataset = folder / f"packed-{n}"
            pack([video], dataset, progress=False)
            found[n * piece] = measure(
                video, dataset, n * piece, device=options.device, clips=clips, only=options.only, most=options.cut
            )
            video.unlink()
    lengths = sorted(found)
    absent = {name: timing.error for name, timing in found[lengths[0]].items() if timing.error}
    notes = [f"does not run here: {name} ({why})" for name, why in absent.items()]
    notes.append("~: cut short and extrapolated.")
    if options.plot:
        plot(lengths, found, options.plot, f"{CLIPS} clips of {FRAMES} frames, a second apart, 720p60 {options.codec}")
    report = Report("random access", table(lengths, found), checks(lengths, found, options.device), notes)
    return finish(report, options)


if __name__ == "__main__":
    raise SystemExit(main())
