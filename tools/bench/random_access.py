"""Single frames out of long videos: what a batch of clips costs, by the length of the video they come from.

    python -m tools.bench.random_access [--quick] [--minute FILE] [--cut SECONDS] [--json FILE [--resume]]

1280x720 at 60 frames a second, x264's default GOPs, videos of 60, 120, 300 and 3000 seconds. 128 clips of 16 frames a
second apart, at random places, in batches of 64, resized to 224: the setting of DALI issue 5888. Each way has a process
of its own, is opened and warmed up with one clip before it is timed, so indexes are warm, and gets all lengths in
turn; the frames of that clip must be the right ones. A way that would take longer than `--cut` is asked for fewer
clips, as many at least as it works on at once, and extrapolated: marked with ~. Ways that are not installed or do not
run here are left out, and listed.

With a GPU the frames are decoded there by all that can; without, all decode on the CPU, and whole files, which DALI
decodes there as VP9 alone, are of VP9.

With `--json` all that is known is written after each row, and `--resume` goes on with what that file lacks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamvid.packing.pack import pack
from tools.bench import baselines, loaders
from tools.bench.access_report import (
    GPU_LOADER,
    NVC,
    STREAM_LOADER,
    TORCHCODEC,
    WHOLE,
    WHOLE_VP9,
    Found,
    checks,
    failures,
    speeds,
    table,
)
from tools.bench.isolated import PartError, emit, run_isolated
from tools.bench.report import Report, arguments, finish, machine
from tools.bench.sources import MINUTE, repeat, write_minute
from tools.bench.timing import Timing, Way, small_frames, time_way

LENGTHS: Final = (60, 120, 300, 3000)
"""Lengths of the videos, in seconds."""
PIECE: Final = 10
"""Seconds that are encoded, and repeated."""
CLIPS: Final = 128
MOST_SECONDS: Final = 300.0
REPEATED: Final = (STREAM_LOADER, GPU_LOADER, NVC, TORCHCODEC)
"""The ways that run in several rounds: ours, and the two that it is compared with."""
SPARE_SECONDS: Final = 150.0
"""Seconds that a way may take for one length, besides three times the seconds after which it is cut."""


def names(device: str, codec: str) -> list[str]:
    """The ways that are tried, those that matter most first."""
    found = [STREAM_LOADER, GPU_LOADER, *baselines.BASELINES]
    if device == "cpu" and codec != "vp9":
        found.insert(2, WHOLE_VP9)
    return found


def make_way(name: str, video: Mapping[str, Any], device: str, clips: int) -> Callable[[], Way]:
    """A function that opens a way for one of the videos of `make_videos`."""
    if name in (STREAM_LOADER, GPU_LOADER):
        make = loaders.stream_loader if name == STREAM_LOADER else loaders.gpu_loader
        return lambda: make(Path(video["dataset"]), video["length"], device, clips)
    path, way = Path(video["video"]), baselines.BASELINES.get(name)
    if name == WHOLE_VP9:
        path, way = Path(video["vp9"]), baselines.BASELINES[WHOLE]
    assert way is not None
    return lambda: way(path, device)


def make_videos(folder: Path, options: argparse.Namespace, lengths: Sequence[int], piece: int) -> list[dict[str, Any]]:
    """Videos of all lengths, each packed as a dataset, too."""
    minute = options.minute or write_minute(options.codec, folder / "piece", seconds=piece)
    reference = folder / "frames.npy"
    np.save(reference, small_frames(minute))
    vp9 = None
    if options.device == "cpu" and options.codec != "vp9" and any(one in WHOLE_VP9 for one in options.only):
        vp9 = options.minute_vp9 or write_minute("vp9", folder / "piece", seconds=piece)
    made = []
    for length in lengths:
        video = repeat(minute, length // piece, folder / f"{length}", seconds=piece)
        dataset = folder / f"packed-{length}"
        pack([video], dataset, progress=False)
        one = {"length": length, "video": str(video), "dataset": str(dataset), "reference": str(reference)}
        if vp9 is not None:
            one["vp9"] = str(repeat(vp9, length // piece, folder / f"{length}-vp9", seconds=piece))
        made.append(one)
    return made


def measure_way(work: Mapping[str, Any]) -> None:
    """Measure one way, for several videos, in this process, which does nothing else."""
    for video in work["videos"]:
        empty = Timing(work["name"], work["device"], video["length"], work["clips"])
        way = make_way(work["name"], video, work["device"], work["clips"])
        reference = np.load(video["reference"])
        emit(dataclasses.asdict(time_way(way, empty, cut=work["cut"], reference=reference)))


def measure(
    name: str, videos: Sequence[Mapping[str, Any]], folder: Path, options: argparse.Namespace, clips: int
) -> list[Timing]:
    """One way for several videos, in a process of its own; what it does not come to is an error."""
    work = folder / "work.json"
    about = {"name": name, "device": options.device, "clips": clips, "cut": options.cut, "videos": list(videos)}
    work.write_text(json.dumps(about), encoding="utf-8")
    timings: list[Timing] = []
    why = "ended early"
    try:
        most = 3 * options.cut + SPARE_SECONDS
        for result in run_isolated("tools.bench.random_access", ["--part", str(work)], seconds=most):
            timings.append(timing := Timing(**{**result, "seconds": tuple(result["seconds"])}))
            shown = timing.error or f"{timing.median:.2f} s ({timing.clips} clips)"
            print(f"{timing.length:5} s  {name:32} {shown}", file=sys.stderr, flush=True)
    except PartError as error:
        why = str(error)
    for video in videos[len(timings) :]:
        timings.append(Timing(name, options.device, video["length"], clips, error=why))
        print(f"{video['length']:5} s  {name:32} {why}", file=sys.stderr, flush=True)
    return timings


def rounds_needed(timing: Timing | None, name: str, rounds: int) -> int:
    """How many more rounds a way's row is worth."""
    if timing is None:
        return rounds if name in REPEATED else 1
    # What was cut short or does not run would not get better.
    if timing.error or timing.is_cut or name not in REPEATED:
        return 0
    return max(0, rounds - len(timing.seconds))


def measure_all(found: Found, options: argparse.Namespace, write: Callable[[], object]) -> None:
    """Measure what `found` lacks, first everything once, and put it there."""
    started = time.monotonic()
    piece = MINUTE if options.minute else PIECE
    lengths = options.lengths or ((60, 300) if options.quick else LENGTHS)
    clips = 16 if options.quick else CLIPS
    ways = [name for name in names(options.device, options.codec) if any(one in name for one in options.only)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def is_due(way: str, length: int, rounds: int) -> bool:
            return rounds_needed(found.get((way, length)), way, rounds) > 0

        missing = [length for length in lengths if any(is_due(way, length, options.rounds) for way in ways)]
        videos = make_videos(folder, options, missing, piece)
        for number in range(options.rounds):
            for way in ways:
                due = [video for video in videos if is_due(way, video["length"], number + 1)]
                if not due or time.monotonic() - started > 60 * options.minutes:
                    continue
                for timing in measure(way, due, folder, options, clips):
                    key = (way, timing.length)
                    found[key] = found[key].with_more(timing) if key in found else timing
                    write()


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__)
    parser.add_argument("--codec", choices=("h264", "vp9"), default="h264", help="vp9: what DALI decodes on a CPU")
    parser.add_argument(
        "--minute", type=Path, metavar="FILE", help="a minute of 60 frames a second, instead of making one"
    )
    parser.add_argument("--minute-vp9", type=Path, metavar="FILE", help="the same as VP9, for whole files on a CPU")
    parser.add_argument(
        "--cut", type=float, default=MOST_SECONDS, metavar="SECONDS", help="extrapolate what takes longer"
    )
    parser.add_argument("--rounds", type=int, default=1, help="of streamvid and of what it is held against")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin with no other way after so long")
    parser.add_argument("--lengths", type=int, nargs="+", metavar="SECONDS", help="of videos")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="ways whose name holds one of these")
    parser.add_argument("--resume", action="store_true", help="measure what the JSON file lacks")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: the GPU if there is one")
    parser.add_argument("--part", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.resume and options.json is None:
        parser.error("--resume goes on with the file of --json: give it")
    if options.device is None and options.part is None:
        import torch

        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    return options


def main() -> int:
    """The program."""
    options = parse()
    if options.part:
        measure_way(json.loads(options.part.read_text(encoding="utf-8")))
        return 0
    found: Found = {}
    about = machine()
    if options.resume and options.json.exists():
        for row in json.loads(options.json.read_text(encoding="utf-8"))["details"]:
            timing = Timing(**{**row, "seconds": tuple(row["seconds"])})
            # What failed is tried again.
            if not timing.error:
                found[timing.name, timing.length] = timing

    def report() -> Report:
        order = names(next(iter(found.values())).device, options.codec)
        shown = {key: found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), key[1]))}
        notes = [*failures(shown), *speeds(shown), "~: cut short and extrapolated."]
        details = [dataclasses.asdict(timing) for timing in shown.values()]
        return Report("random access", table(shown), checks(shown), notes, details)

    def write() -> None:
        if options.json is not None:
            report().write(options.json, quick=options.quick, about=about)

    measure_all(found, options, write)
    if not found:
        print("no way has that in its name", file=sys.stderr)
        return 2
    return finish(report(), options, about)


if __name__ == "__main__":
    raise SystemExit(main())
