"""How fast packing is: against one FFmpeg process per clip and webdataset's ShardWriter, and against mere copying.

    python -m tools.bench.pack [--quick] [--json FILE] [--folder FOLDER]

Clips are H.264 in MP4, of about 100 kB, 1 MB and 10 MB, with and without a sound track. One of each is encoded; its
copies differ by a box at the end. Each way of packing them runs in turn, `--rounds` times, and medians are compared:

- `any`, `gpu`: `pack` with one worker and `--decode none`, with `--for any` and with the default. All counts: finding
  the videos, starting the worker, checksums of each clip and each shard, index and Parquet, and `fsync` of every file.
- `first`, `all`: `gpu` with `--decode first`, the default, and with `--decode all`.
- `ffmpeg`: `ffmpeg -c copy` for each clip, one after the other, then webdataset's ShardWriter, then `fsync`. No index,
  no checksums. In the first round only.
- `copy`: each file is read and written into files of the shards' size, then `fsync`. One process.
- `copy, summed`: the same with SHA-256 of each clip and of what is written, which the format demands.

The sources are in the system's memory, which is the hardest case: a disk that is slower hides what packing computes.
The last rows cut clips of 10 s out of one long video.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

from streamvid.packing.options import PackOptions
from streamvid.packing.pack import SHARD_SIZE, pack
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.bench.sources import repeat
from tools.clips import Recipe, write

OVER_FFMPEG: Final = 5.0
"""Bar of issue 3: times the rate of an FFmpeg process per clip and ShardWriter."""
OF_COPYING: Final = 0.5
"""Bar of issue 3: part of the rate at which the same bytes are read and written, from clips of 1 MB up."""
OVER_ONE_CLIP: Final = 2.0
"""The bar for cutting ten clips of a long video, relative to the time of one. Ten passes would take ten times."""

_BASE: Final = Recipe(fps=Fraction(25), gop=50, b_frames=2, style="texture")
_SMALL: Final = replace(_BASE, width=320, height=180, frames=75, crf=23)
_MIDDLE: Final = replace(_BASE, width=640, height=360, frames=125, options=(("b", "1500k"),))
_LARGE: Final = replace(_BASE, width=1280, height=720, frames=300, options=(("b", "6500k"),))
_LONG: Final = replace(_BASE, width=1280, height=720, frames=1500, audio=True, options=(("b", "2000k"),))
_MINUTES: Final = 60


@dataclass(frozen=True)
class Kind:
    """Clips of one size.

    Attributes:
        name: how large they are.
        recipe: of the one that is encoded.
        count, quick: how many there are, and with `--quick`.
        copying: whether the bar of copying holds for them.
    """

    name: str
    recipe: Recipe
    count: int
    quick: int
    copying: bool


KINDS: Final = (
    Kind("100 kB", _SMALL, 500, 60, copying=False),
    Kind("1 MB", _MIDDLE, 600, 40, copying=True),
    Kind("10 MB", _LARGE, 80, 6, copying=True),
)


def make_clips(kind: Kind, folder: Path, *, sound: bool, count: int) -> Path:
    """A folder of distinct files that hold the same clip."""
    folder.mkdir()
    data = write(replace(kind.recipe, audio=sound), folder / "00000.mp4").read_bytes()
    for number in range(1, count):
        free = struct.pack(">I4sQ", 16, b"free", number)
        (folder / f"{number:05d}.mp4").write_bytes(data + free)
    return folder


@contextmanager
def timed(seconds: list[float]) -> Iterator[None]:
    """Appends what the body took. What was written before is on the disk by then, and not counted."""
    os.sync()
    started = time.perf_counter()
    yield
    seconds.append(time.perf_counter() - started)


def pack_all(options: PackOptions) -> Callable[[Path, Path], None]:
    """Packing as users do it, with one worker."""

    def run(source: Path, target: Path) -> None:
        report = pack([source], target, workers=1, options=options, progress=False)
        if report.rejected:
            raise RuntimeError(f"a clip was rejected: {report.rejected[0].reason}")

    return run


def ffmpeg_and_shard_writer(source: Path, target: Path) -> None:
    """The usual way: an FFmpeg process for each clip, then a tar of the results."""
    from webdataset.writer import ShardWriter

    made = target / "made"
    made.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        command = ["ffmpeg", "-v", "error", "-nostdin", "-i", str(path), "-map", "0:v:0", "-c", "copy"]
        subprocess.run([*command, str(made / path.name)], check=True)
    pattern = str(target / "%08d.tar")
    with ShardWriter(pattern, maxcount=10**9, maxsize=SHARD_SIZE, verbose=0) as writer:
        for path in sorted(made.iterdir()):
            about = json.dumps({"source": path.name}).encode()
            writer.write({"__key__": path.stem, "mp4": path.read_bytes(), "json": about})
    for path in target.glob("*.tar"):
        _sync(path)


def copy(source: Path, target: Path) -> None:
    """Read every file, and write what was read."""
    _copy(source, target, summed=False)


def copy_summed(source: Path, target: Path) -> None:
    """The same, and the checksums that the format demands."""
    _copy(source, target, summed=True)


def _copy(source: Path, target: Path, *, summed: bool) -> None:
    target.mkdir()
    paths, number = sorted(source.iterdir()), 0
    while paths:
        total, shard = 0, hashlib.sha256()
        path = target / f"{number:08d}.bin"
        with path.open("wb", buffering=0) as file:
            while paths and total + paths[0].stat().st_size <= SHARD_SIZE:
                data = paths.pop(0).read_bytes()
                file.write(data)
                if summed:
                    hashlib.sha256(data).digest()
                    shard.update(data)
                total += len(data)
        _sync(path)
        number += 1


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def measure(source: Path, folder: Path, rounds: int) -> dict[str, float]:
    """Median seconds of each way to pack a folder."""
    ways: dict[str, Callable[[Path, Path], None]] = {
        "any": pack_all(PackOptions(compatible_with="any", decode="none")),
        "gpu": pack_all(PackOptions(decode="none")),
        "first": pack_all(PackOptions(decode="first")),
        "all": pack_all(PackOptions(decode="all")),
        "copy": copy,
        "copy, summed": copy_summed,
        "ffmpeg": ffmpeg_and_shard_writer,
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            if name != "ffmpeg" or number == 0:
                target = folder / "target"
                with timed(taken[name]):
                    way(source, target)
                shutil.rmtree(target)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def measure_cuts(folder: Path, minutes: int) -> dict[str, float]:
    """Seconds that it takes to cut one clip of 10 s out of a long video, ten in one go, and ten one after the other."""
    minute = write(_LONG, folder / "minute.mp4")
    video = repeat(minute, minutes, folder / "long.mp4")
    starts = [6.3 * minutes * n for n in range(10)]
    taken: dict[str, list[float]] = {"one clip": [], "ten clips": [], "ten clips, ten passes": []}

    def cut(which: Sequence[float], target: str) -> None:
        lines = "".join(f"{video.name},{start},{start + 10}\n" for start in which)
        (folder / "cuts.csv").write_text("video,start,end\n" + lines)
        options = PackOptions(decode="none")
        pack([video], folder / target, cuts=folder / "cuts.csv", workers=1, options=options, progress=False)
        shutil.rmtree(folder / target)

    for _ in range(3):
        with timed(taken["one clip"]):
            cut(starts[4:5], "one")
        with timed(taken["ten clips"]):
            cut(starts, "ten")
    with timed(taken["ten clips, ten passes"]):
        for start in starts:
            cut([start], "again")
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def main() -> int:
    """Run the benchmark; 1 if a bar is missed."""
    parser = arguments(__doc__)
    parser.add_argument("--folder", type=Path, help="where clips and datasets are made; 2 GB at a time")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken (default: 3)")
    options = parser.parse_args()
    if shutil.which("ffmpeg") is None:
        parser.error("there is no ffmpeg to compare with: apt-get install ffmpeg")
    rounds = 1 if options.quick else options.rounds
    rows: list[Row] = []
    checks: list[Check] = []
    for kind in KINDS:
        for sound in (False, True):
            with tempfile.TemporaryDirectory(dir=options.folder) as name:
                count = kind.quick if options.quick else kind.count
                source = make_clips(kind, Path(name) / "source", sound=sound, count=count)
                size = sum(path.stat().st_size for path in source.iterdir())
                seconds = measure(source, Path(name), rounds)
            title = kind.name + (", sound" if sound else "")
            rates = {f"{way} MB/s": size / taken / 1e6 for way, taken in seconds.items()}
            ours = max(seconds["any"], seconds["gpu"])
            over, part = seconds["ffmpeg"] / ours, seconds["copy"] / ours
            decoding = {f"{level} / none": seconds[level] / seconds["gpu"] for level in ("first", "all")}
            rows.append({"clips": title, "count": count, **rates, "over ffmpeg": over, "of copy": part, **decoding})
            checks.append(Check.at_least(f"{title}: times the rate of FFmpeg and ShardWriter", over, OVER_FFMPEG))
            if kind.copying:
                checks.append(Check.at_least(f"{title}: part of the rate of copying", part, OF_COPYING))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        minutes = 5 if options.quick else _MINUTES
        cuts = measure_cuts(Path(name), minutes)
    checks.append(Check.at_most("ten clips of a long video, in times of one", cuts["ten clips"] / cuts["one clip"],
                                OVER_ONE_CLIP))  # fmt: skip
    times = ", ".join(f"{name}: {taken:.2f} s" for name, taken in cuts.items())
    notes = [
        "over ffmpeg, of copy: of the slower of `any` and `gpu`; first / none, all / none: seconds, by `--decode`.",
        f"Clips of 10 s cut out of {minutes} minutes of video: {times}.",
    ]
    return finish(Report("pack", rows, checks, notes), options)


if __name__ == "__main__":
    sys.exit(main())
