"""Videos where they lie: how long until the first batch, how much is read and copied, and how fast clips stream then.

    python -m tools.bench.in_place [--quick] [--parts local s3 lerobot] [--json FILE]

`local`: the same clips (a minute, 1 Mbit/s) packed by streamvid, and in tars of others, indexed in full and by their
tables; and read by webdataset and PyAV. Clips per second of windows of 16 frames at the start, in rounds that take the
ways in turn; `against packed` is packing's CPU time of a clip, divided by the way's: the median of the rounds.

`s3`: 1,000 MP4s, and 100 tars of 20 clips (10 s, 1.1 Mbit/s), in a Ceph RGW of this machine (tools/s3/up.sh): seconds
from the call of `index` to the first batch, in a new process without caches; `wrote` is what the dataset takes on disk,
and nothing else is written. Beside it torchcodec over fsspec, which decodes the same windows of the same MP4s.

`lerobot`: episodes of AV1 in a LeRobot dataset, streamed by streamvid and by LeRobot's own loader.

Readers of others that are not installed are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import webdataset

import streamvid as sv
from streamvid.storage.byte_range import ByteRange
from streamvid.storage.range_reader import RangeReader
from tests.support.foreign import CAMERA, write_lerobot
from tests.support.packed import packing_inline
from tests.support.s3_server import s3_environment
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.bench.store_data import make_video
from tools.bench.store_server import BUCKET, ceph
from tools.clips import Recipe, write

FRAMES: Final = 16
CLIP: Final = Recipe(width=640, height=360, frames=1800, fps=Fraction(30), gop=60, b_frames=2, crf=16, style="texture")
"""A minute, of about 1 Mbit/s."""
PORT: Final = 7493
OPTIONS: Final[dict[str, Any]] = {"batch_size": 8, "sampling": sv.Window(FRAMES, start="first"), "device": "cpu"}
FIRST: Final = """
import sys, time
begin = time.perf_counter()
import streamvid as sv
place, dataset, fast = sys.argv[1], sys.argv[2], sys.argv[3] == "fast"
report = sv.index(place, dataset, fast=fast, progress=False)
indexed = time.perf_counter()
with sv.StreamLoader(dataset, batch_size=8, sampling=sv.Window(16), device="cpu") as loader:
    next(iter(loader))
print(report.clips, indexed - begin, time.perf_counter() - begin)
"""


def write_tar(path: Path | io.BytesIO, samples: list[tuple[str, bytes]]) -> None:
    """A tar of these videos, each with a caption."""
    given: dict[str, Any] = {"name": path} if isinstance(path, Path) else {"fileobj": path}
    with tarfile.open(mode="w", **given) as tar:
        for name, data in samples:
            for extension, content in (("mp4", data), ("txt", b"a caption")):
                info = tarfile.TarInfo(f"{name}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


@contextmanager
def counted() -> Iterator[list[int]]:
    """Bytes that `RangedFile` reads meanwhile."""
    read = RangeReader.read
    total = [0]

    def count(reader: RangeReader, ranges: list[ByteRange], versions: object = None) -> object:
        total[0] += sum(one.end - one.start for one in ranges)
        return read(reader, ranges, versions)  # type: ignore[arg-type]

    RangeReader.read = count  # type: ignore[method-assign, assignment]
    try:
        yield total
    finally:
        RangeReader.read = read  # type: ignore[method-assign]


def bytes_below(folder: Path) -> int:
    """Bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


Speed = tuple[float, float]
"""Clips a second, and seconds of CPU a clip."""


def ours(dataset: Path) -> Speed:
    """The speed of a StreamLoader after the first batch."""
    clips, begin, used = 0, 0.0, 0.0
    with sv.StreamLoader(str(dataset), **OPTIONS) as loader:
        for _ in range(2):
            for batch in loader:
                clips += len(batch["key"]) if begin else 0
                begin, used = begin or time.perf_counter(), used or time.process_time()
    return clips / (time.perf_counter() - begin), (time.process_time() - used) / clips


def by_webdataset(folder: Path) -> Speed:
    """The speed of webdataset with PyAV, for the first frames of each clip."""
    clips, begin, used = 0, time.perf_counter(), time.process_time()
    for sample in webdataset.WebDataset([str(path) for path in sorted(folder.iterdir())], shardshuffle=False):
        with av.open(io.BytesIO(sample["mp4"]), "r") as container:
            container.streams.video[0].thread_type = "AUTO"
            for number, frame in enumerate(container.decode(video=0)):
                frame.to_ndarray(format="rgb24")
                if number + 1 == FRAMES:
                    break
        clips += 1
    return clips / (time.perf_counter() - begin), (time.process_time() - used) / clips


def in_turn(ways: dict[str, Callable[[], Speed]], rounds: int) -> dict[str, tuple[float, float]]:
    """The median of each way's clips a second, and of the CPU time of the first way against its own, round by round."""
    taken: dict[str, list[Speed]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in list(ways) if number % 2 else list(reversed(ways)):
            taken[name].append(ways[name]())
    first = taken[next(iter(ways))]
    return {
        name: (
            statistics.median(speed for speed, _ in own),
            statistics.median(used / cpu for (_, cpu), (_, used) in zip(own, first, strict=True)),
        )
        for name, own in taken.items()
    }


def local(folder: Path, count: int, rounds: int) -> tuple[list[Row], list[Check]]:
    """Streaming from tars of others against packed ones."""
    data = write(CLIP, folder / "clip.mp4").read_bytes()
    for name in ("tars", "videos"):
        (folder / name).mkdir()
    for first in range(0, count, 20):
        write_tar(
            folder / "tars" / f"{first:06d}.tar", [(f"{n:06d}", data) for n in range(first, min(count, first + 20))]
        )
    for number in range(count):
        os.link(folder / "clip.mp4", folder / "videos" / f"{number:06d}.mp4")
    size, rows = bytes_below(folder / "tars"), []
    made = {
        "packed": lambda to: sv.pack(folder / "videos", to, options=sv.PackOptions("any"), progress=False),
        "indexed in full": lambda to: sv.index(folder / "tars", to, progress=False),
        "indexed --fast": lambda to: sv.index(folder / "tars", to, fast=True, progress=False),
    }
    about: dict[str, tuple[float, float]] = {}
    for name, make in made.items():
        begin = time.perf_counter()
        with counted() as read, packing_inline():
            make(folder / name)  # type: ignore[no-untyped-call]
        about[name] = time.perf_counter() - begin, 100 * read[0] / size
    ways: dict[str, Callable[[], Speed]] = {name: lambda name=name: ours(folder / name) for name in made}  # type: ignore[misc]
    ways["webdataset + PyAV"] = lambda: by_webdataset(folder / "tars")
    for name, (speed, ratio) in in_turn(ways, rounds).items():
        seconds, share = about.get(name, (0.0, 0.0))
        wrote = bytes_below(folder / name) if name in made else 0
        rows.append(row("local, tars", name, seconds, share, wrote, speed, ratio))
    return rows, [
        Check.at_most("bytes that --fast reads, % of videos of a minute", float(rows[2]["read %"]), 1.0),
        Check.at_least("streaming from foreign tars against packed ones", float(rows[1]["against packed"]), 0.95),
        Check.at_least("streaming by tables against packed ones", float(rows[2]["against packed"]), 0.85),
    ]


def row(place: str, way: str, seconds: float, share: float, wrote: int, speed: float, ratio: float) -> Row:
    """A row of the table; 0 where it says nothing."""
    return {
        "place": place,
        "way": way,
        "seconds to make": round(seconds, 1),
        "read %": share,
        "wrote, kB": wrote // 1000,
        "clips/s": speed,
        "against packed": ratio,
    }


def s3(folder: Path, mp4s: int, tars: int) -> tuple[list[Row], list[Check]]:
    """First batches from a bucket."""
    import fsspec

    videos = []
    for number in range(4):
        make_video(folder / f"{number}.mp4", 10, number)
        videos.append((folder / f"{number}.mp4").read_bytes())
    rows: list[Row] = []
    checks: list[Check] = []
    with ceph(folder / "ceph", PORT) as server, s3_environment(server):
        storage = server.filesystem()

        def put_video(n: int) -> None:
            storage.pipe_file(f"{BUCKET}/mp4s/{n // 100:03d}/{n:06d}.mp4", videos[n % 4])

        def put_tar(n: int) -> None:
            stream = io.BytesIO()
            write_tar(stream, [(f"{20 * n + k:06d}", videos[k % 4]) for k in range(20)])
            storage.pipe_file(f"{BUCKET}/tars/{n:06d}.tar", stream.getvalue())

        with ThreadPoolExecutor(8) as threads:
            [*threads.map(put_video, range(mp4s)), *threads.map(put_tar, range(tars))]
        for what, count in (("mp4s", mp4s), ("tars", tars)):
            for way in ("fast", "full"):
                target = folder / f"{what}-{way}"
                place = f"s3://{BUCKET}/{what}"
                run = subprocess.run(
                    [sys.executable, "-c", FIRST, place, target, way], stdout=subprocess.PIPE, text=True, check=True
                )
                clips, indexed, first = (float(word) for word in run.stdout.split()[-3:])
                rows.append(
                    row(
                        f"S3, {count} {what}",
                        f"index {way}, first batch",
                        first,
                        0.0,
                        bytes_below(target),
                        clips / indexed,
                        0.0,
                    )
                )
                if way == "fast":
                    checks.append(
                        Check.at_most(f"seconds to the first batch of {count} {what} in a bucket", first, 60.0)
                    )
        if importlib.util.find_spec("torchcodec") is not None:
            from torchcodec.decoders import VideoDecoder

            def window(n: int) -> None:
                with fsspec.open(f"s3://{BUCKET}/mp4s/{n // 100:03d}/{n:06d}.mp4", "rb") as file:
                    VideoDecoder(file, seek_mode="approximate").get_frames_in_range(0, FRAMES)

            some = min(mp4s, 200)
            begin = time.perf_counter()
            with ThreadPoolExecutor(8) as threads:
                [*threads.map(window, range(some))]
            theirs = some / (time.perf_counter() - begin)
            mine, _ = ours(folder / "mp4s-fast")
            rows.append(row("S3, mp4s", "streamvid", 0.0, 0.0, 0, mine, 0.0))
            rows.append(row("S3, mp4s", "torchcodec over fsspec, 8 threads", 0.0, 0.0, 0, theirs, 0.0))
    return rows, checks


def lerobot(folder: Path, episodes: int) -> tuple[list[Row], list[Check]]:
    """Episodes of a LeRobot dataset, by streamvid and by LeRobot."""
    recipe = Recipe(codec="av1", width=320, height=240, gop=2, b_frames=0)
    place = write_lerobot(folder / "robot", [150] * episodes, per_file=10, recipe=recipe)
    add_frames(place, [150] * episodes)
    begin = time.perf_counter()
    with packing_inline():
        sv.index(place, folder / "indexed", fast=True, progress=False)
    seconds = time.perf_counter() - begin
    rows = [
        row("LeRobot", "streamvid", seconds, 0.0, bytes_below(folder / "indexed"), ours(folder / "indexed")[0], 0.0)
    ]
    if importlib.util.find_spec("lerobot") is not None:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset

        deltas = {CAMERA: [n / 30 for n in range(FRAMES)]}
        dataset = LeRobotDataset("bench/robot", root=place, delta_timestamps=deltas, video_backend="pyav")
        begin = time.perf_counter()
        for number in range(episodes):
            dataset[150 * number]
        rows.append(row("LeRobot", "LeRobotDataset (pyav)", 0.0, 0.0, 0, episodes / (time.perf_counter() - begin), 0.0))
    return rows, []


def add_frames(place: Path, lengths: list[int]) -> None:
    """What LeRobot's own loader reads besides: a row for each frame, tasks, statistics."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    episode = [n for n, length in enumerate(lengths) for _ in range(length)]
    inside = [n for length in lengths for n in range(length)]
    table = pa.table(
        {
            "timestamp": pa.array([n / 30 for n in inside], pa.float32()),
            "frame_index": pa.array(inside, pa.int64()),
            "episode_index": pa.array(episode, pa.int64()),
            "index": pa.array(range(len(inside)), pa.int64()),
            "task_index": pa.array([0] * len(inside), pa.int64()),
        }
    )
    (place / "data" / "chunk-000").mkdir(parents=True)
    pq.write_table(table, place / "data" / "chunk-000" / "file-000.parquet")
    pq.write_table(
        pa.table({"task_index": [0], "__index_level_0__": ["task 0"]}).replace_schema_metadata(
            {"pandas": json.dumps({"index_columns": ["__index_level_0__"], "columns": [], "column_indexes": []})}
        ),
        place / "meta" / "tasks.parquet",
    )
    (path,) = (place / "meta" / "episodes").rglob("*.parquet")
    rows = pq.read_table(path)
    ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
    for name, values in (
        ("dataset_from_index", [end - length for end, length in zip(ends, lengths, strict=True)]),
        ("dataset_to_index", ends),
        ("data/chunk_index", [0] * len(lengths)),
        ("data/file_index", [0] * len(lengths)),
    ):
        rows = rows.append_column(name, pa.array(values, pa.int64()))
    pq.write_table(rows, path)
    info = json.loads((place / "meta" / "info.json").read_text())
    plain: dict[str, object] = {
        name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
        for name in table.column_names
    }
    features = {name: one for name, one in info["features"].items() if one["dtype"] == "video"}
    for one in features.values():
        one["names"] = ["height", "width", "channels"]
    info |= {
        "features": features | plain, "total_frames": len(inside), "total_tasks": 1, "chunks_size": 1000, "splits": {},
        "robot_type": "none", "data_files_size_in_mb": 100, "video_files_size_in_mb": 200,
    }  # fmt: skip
    (place / "meta" / "info.json").write_text(json.dumps(info))


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = arguments(__doc__)
    parser.add_argument("--parts", nargs="+", choices=("local", "s3", "lerobot"), default=["local", "s3", "lerobot"])
    options: argparse.Namespace = parser.parse_args(argv)
    quick = options.quick
    rows: list[Row] = []
    checks: list[Check] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="sv-in-place-") as name:
        os.environ["XDG_DATA_HOME"], os.environ["XDG_CACHE_HOME"] = f"{name}/user", f"{name}/cache"
        parts: dict[str, Callable[[Path], tuple[list[Row], list[Check]]]] = {
            "local": lambda folder: local(folder, *((40, 3) if quick else (200, 9))),
            "s3": lambda folder: s3(folder, *((100, 5) if quick else (1000, 100))),
            "lerobot": lambda folder: lerobot(folder, 20 if quick else 100),
        }
        for part in options.parts:
            if part == "s3" and shutil.which("radosgw") is None:
                notes.append("s3 was left out: Ceph is not installed (tools/s3/install.sh).")
                continue
            (folder := Path(name, part)).mkdir()
            found, wanted = parts[part](folder)
            rows, checks = rows + found, checks + wanted
    return finish(Report("in_place", rows, checks, notes), options)


if __name__ == "__main__":
    sys.exit(main())
