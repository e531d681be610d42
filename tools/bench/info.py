"""What it costs to open a dataset of a million clips: `Dataset.open` and `streamvid info`, the first time and again.

    python -m tools.bench.info [--quick] [--json FILE] [--keep FOLDER]

The dataset is made up: rows, frame indexes and metadata as packing writes them, and tars that are holes. Each
measurement runs in a process of its own, whose whole time and memory count, with an empty cache folder at first. The
system has the files in memory, as after packing.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamvid.dataset.manifest import Manifest, ShardEntry
from streamvid.packing.shard_writer import write_parquet
from streamvid.packing.typed_columns import typed_columns
from streamvid.video.frame_index import FrameIndex
from tools.bench.report import Check, Report, Row, arguments, finish

CLIPS: Final = 1_000_000
PER_SHARD: Final = 1000
PACKETS: Final = 60
AGAIN_SECONDS: Final = 3.0
"""Bar of issue 3: `streamvid info` after the first time."""

COLUMNS: Final = pa.schema({"caption": pa.string(), "score": pa.float32(), "take": pa.int16()})
_PEAK: Final = (
    "import pathlib; print(next(l.split()[1] for l in pathlib.Path('/proc/self/status').read_text().splitlines()"
    " if l.startswith('VmHWM:')))"
)
_OPEN: Final = f"import sys; from streamvid.dataset.dataset import Dataset; Dataset.open(sys.argv[1]); {_PEAK}"
_INFO: Final = (
    "import sys; from streamvid.cli.main import main; sys.stdout = sys.stderr; "
    f"assert main(['info', *sys.argv[1:]]) == 0; sys.stdout = sys.__stdout__; {_PEAK}"
)


@dataclass(frozen=True)
class Cost:
    """What one process took.

    Attributes:
        seconds: from its start to its end.
        mib: the most memory it had.
    """

    seconds: float
    mib: float


def make_dataset(folder: Path, clips: int) -> None:
    """Write a dataset of so many clips, the same each time."""
    (folder / "shards").mkdir(parents=True)
    entries = [_make_shard(folder / "shards", number) for number in range(clips // PER_SHARD)]
    manifest = Manifest("made", 2.0 * clips, ("cat", "dog"), tuple(entries))
    (folder / "dataset.json").write_bytes(manifest.to_json())


def _make_shard(folder: Path, number: int) -> ShardEntry:
    name, random = f"{number:08d}", np.random.default_rng(number)
    rows: list[dict[str, Any]] = []
    indexes = []
    at = 512
    for clip in range(PER_SHARD):
        key = f"videos-{number:05d}-{clip:05d}"
        sizes = random.integers(500, 9000, PACKETS)
        offsets = np.cumsum(sizes) - sizes + 2000
        pts = np.arange(PACKETS) * 512
        flags = np.where(np.arange(PACKETS) % 30 == 0, 1, 0)
        indexes.append(FrameIndex(pts, offsets, sizes, flags))
        size = int(offsets[-1] + sizes[-1])
        meta = {"caption": f"clip {clip} of shard {number} shows something", "score": clip / 8, "take": clip}
        rows.append(
            {
                "key": key, "source": f"some/folder/of/videos/{key}.mp4", "label": clip % 2,
                "meta": json.dumps(meta, separators=(",", ":")),
                "codec": ("h264", "hevc")[clip % 2], "profile": "High", "pix_fmt": "yuv420p", "color_space": "bt709",
                "color_range": "tv", "traits": "", "width": (1920, 1280)[clip % 2], "height": (1080, 720)[clip % 2],
                "rotation": 0, "time_base_num": 1, "time_base_den": 15360, "duration": PACKETS * 512,
                "frames": PACKETS, "packets": PACKETS, "random_access": PACKETS // 30,
                "mp4_offset": at, "mp4_size": size, "npy_offset": at, "npy_size": 128, "json_offset": at,
                "json_size": 1, "sha256": hashlib.sha256(key.encode()).hexdigest(),
                "stsd": b"\0" * 150 + bytes([clip % 4]),
            }
        )  # fmt: skip
        at += size
    fields = typed_columns([row["meta"] for row in rows], COLUMNS, [row["key"] for row in rows])
    path = folder / f"{name}.parquet"
    write_parquet(rows, indexes, path, fields)
    with (folder / f"{name}.tar").open("wb") as tar:
        tar.truncate(at)
    checksum, none = hashlib.sha256(path.read_bytes()).hexdigest(), "0" * 64
    return ShardEntry(name, PER_SHARD, PER_SHARD * PACKETS, at, none, none, checksum)


def measure(script: str, *given: str, cache: Path) -> Cost:
    """Run a script in a new process."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, *given], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, check=True,
    )  # fmt: skip
    return Cost(time.perf_counter() - started, int(done.stdout.split()[-1]) / 1024)


def main() -> int:
    """Run the benchmark; 1 if the bar is missed."""
    parser = arguments(__doc__)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="make the dataset there, or use the one there")
    options = parser.parse_args()
    clips = CLIPS // 10 if options.quick else CLIPS
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name) / "dataset"
        if not (folder / "dataset.json").exists():
            make_dataset(folder, clips)
        cases: dict[str, tuple[str, list[str]]] = {
            "Dataset.open": (_OPEN, []),
            "streamvid info": (_INFO, []),
            "info --frames 16 --stride 4": (_INFO, ["--frames", "16", "--stride", "4"]),
        }
        rows: list[Row] = []
        again: dict[str, Cost] = {}
        for case, (script, more) in cases.items():
            with tempfile.TemporaryDirectory() as cache:
                first = measure(script, str(folder), *more, cache=Path(cache))
                runs = [measure(script, str(folder), *more, cache=Path(cache)) for _ in range(3)]
            again[case] = sorted(runs, key=lambda run: run.seconds)[1]
            rows.append(
                {
                    "": case, "first s": first.seconds, "again s": again[case].seconds,
                    "first MiB": first.mib, "again MiB": again[case].mib,
                }
            )  # fmt: skip
    checks = [Check.at_most("streamvid info, after the first time, s", again["streamvid info"].seconds, AGAIN_SECONDS)]
    notes = [f"{clips:,} clips in {clips // PER_SHARD:,} shards, {PACKETS} packets each; again: the median of three."]
    return finish(Report("info", rows, checks, notes), options)


if __name__ == "__main__":
    sys.exit(main())
