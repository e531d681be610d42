"""Videos where they lie: how long it takes to index them, how much of them is read, and how fast clips stream then.

    python -m tools.bench.in_place [--quick] [--json FILE]

Rows: the same clips packed by streamvid; in tars of others, indexed in full and by their tables; and read by webdataset
and PyAV, which decode every clip from its start. All in one run, on local disk, windows of 16 frames. `read` is the
share of the tars' bytes that indexing asks for.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import av
import webdataset

import streamvid as sv
from streamvid.storage import ranged_file
from tests.support.packed import packing_inline
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.clips import Recipe, write

FRAMES = 16
CLIP = Recipe(width=640, height=360, frames=1800, fps=Fraction(30), gop=60, b_frames=2, crf=16, style="texture")
"""A minute, of about 1 Mbit/s."""


def write_tars(folder: Path, count: int, per_tar: int) -> int:
    """Tars of copies of one clip, and their bytes."""
    data = write(CLIP, folder.parent / "clip.mp4").read_bytes()
    folder.mkdir()
    for first in range(0, count, per_tar):
        with tarfile.open(folder / f"{first:06d}.tar", "w") as tar:
            for number in range(first, min(count, first + per_tar)):
                for extension, content in (("mp4", data), ("txt", b"a caption")):
                    info = tarfile.TarInfo(f"{number:06d}.{extension}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return sum(path.stat().st_size for path in folder.iterdir())


@contextmanager
def counted() -> Iterator[list[int]]:
    """Bytes that `RangedFile` reads meanwhile."""
    read = ranged_file.RangeReader.read
    total = [0]

    def count(reader: ranged_file.RangeReader, ranges: list[ranged_file.ByteRange], versions: object = None) -> object:
        total[0] += sum(one.end - one.start for one in ranges)
        return read(reader, ranges, versions)  # type: ignore[arg-type]

    ranged_file.RangeReader.read = count  # type: ignore[method-assign, assignment]
    try:
        yield total
    finally:
        ranged_file.RangeReader.read = read  # type: ignore[method-assign]


def stream(dataset: Path, passes: int) -> float:
    """Clips a second of a StreamLoader, after a first batch."""
    options = {"batch_size": 8, "sampling": sv.Window(FRAMES), "device": "cpu", "seed": 0}
    with sv.StreamLoader(str(dataset), **options) as loader:  # type: ignore[arg-type]
        clips, begin = 0, 0.0
        for _ in range(passes):
            for batch in loader:
                clips += len(batch["key"]) if begin else 0
                begin = begin or time.perf_counter()
    return clips / (time.perf_counter() - begin)


def by_webdataset(folder: Path, passes: int) -> float:
    """Clips a second of webdataset with PyAV: the first frames of each clip."""
    clips, begin = 0, time.perf_counter()
    for _ in range(passes):
        for sample in webdataset.WebDataset([str(path) for path in sorted(folder.iterdir())], shardshuffle=False):
            with av.open(io.BytesIO(sample["mp4"])) as container:
                container.streams.video[0].thread_type = "AUTO"
                for number, frame in enumerate(container.decode(video=0)):
                    frame.to_ndarray(format="rgb24")
                    if number + 1 == FRAMES:
                        break
            clips += 1
    return clips / (time.perf_counter() - begin)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    options = arguments(__doc__).parse_args(argv)
    count, passes = (24, 2) if options.quick else (200, 5)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_DATA_HOME"] = str(folder / "user")
        size = write_tars(folder / "tars", count, 20)
        (folder / "videos").mkdir()
        for number in range(count):
            os.link(folder / "clip.mp4", folder / "videos" / f"{number:06d}.mp4")

        def add(what: str, make: Callable[[Path], object]) -> float:
            target = folder / what.replace(" ", "-")
            begin = time.perf_counter()
            with counted() as read, packing_inline():
                make(target)
            seconds = time.perf_counter() - begin
            speed = stream(target, passes)
            share = read[0] / size if what != "packed" else 1.0
            rows.append({"clips": what, "seconds to make": seconds, "read %": 100 * share, "clips/s": speed})
            return speed

        packed = add("packed", lambda to: sv.pack(folder / "videos", to, options=sv.PackOptions("any"), progress=False))
        full = add("indexed", lambda to: sv.index(folder / "tars", to, progress=False))
        fast = add("indexed fast", lambda to: sv.index(folder / "tars", to, fast=True, progress=False))
        other = by_webdataset(folder / "tars", passes)
        rows.append({"clips": "webdataset + PyAV", "seconds to make": 0.0, "read %": 0.0, "clips/s": other})
    checks = [
        Check.at_most("bytes that --fast reads, % of videos of a minute", float(rows[2]["read %"]), 1.0),
        Check.at_least("streaming from foreign tars against packed ones", full / packed, 0.9),
        Check.at_least("streaming by tables against packed ones", fast / packed, 0.8),
    ]
    return finish(Report("in_place", rows, checks), options)


if __name__ == "__main__":
    sys.exit(main())
