"""The cost of checking a slice, against decoding it: `checksum="crc32c"` of the loaders.

    python -m tools.bench.checksum [--quick] [--json FILE] [--device cuda]

Windows of 16 frames at random places of a clip of 10 s, frames next to each other and eight apart, decoded on one core.
All is in memory; medians of many windows, the ways in turn.

- check: the CRC-32C of every packet that is decoded.
- decode: FFmpeg, one thread, to planes; no conversion to RGB, no resizing.
- index: reading a clip's frame index from its bytes, all checksums compared.

With --device, whole loaders instead, on that device, within a minute: epochs of a StreamLoader that checks and of one
that does not, in turn, and the ratios of the seconds of each pair: their median, and its 95 % interval by order
statistics; and how much of a core's time the checks take while an epoch is decoded.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import numpy as np

import streamvid as sv
from streamvid.arrays import UInt8
from streamvid.dataset.frame_indexes import parse_index
from streamvid.decode.slice_frames import decode_frames
from streamvid.video.index_file import encode_index
from streamvid.video.packet_selection import PacketSelection, damaged_packet, select_packets
from streamvid.video.remux import store_clip
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.bench.stream import TRANSFORM, make_dataset
from tools.clips import Recipe, write

WANTED: Final = 16
LEAST_PAIRS: Final = 5
MOST: Final = 0.02
"""A check against decoding, issue 15."""
FORMATS: Final = {
    "h264 320x240": Recipe(width=320, height=240, frames=300, gop=60, b_frames=2),
    "h264 1280x720": Recipe(width=1280, height=720, frames=300, gop=60, b_frames=2),
    "hevc 1280x720": Recipe(codec="hevc", width=1280, height=720, frames=300, gop=60, b_frames=2),
    "vp9 640x360": Recipe(codec="vp9", container="webm", width=640, height=360, frames=300, gop=60, b_frames=0),
    "mjpeg 640x360": Recipe(codec="mjpeg", container="avi", width=640, height=360, frames=300, gop=1, b_frames=0),
}


def measure(name: str, recipe: Recipe, folder: Path, windows: int) -> list[Row]:
    """The rows of a format."""
    (folder / "stored").mkdir(parents=True)
    clip = store_clip(write(recipe, folder / f"clip.{recipe.container}"), folder / "stored")
    stored = encode_index(clip.index)
    columns: dict[str, int] = {
        "packets": len(clip.index), "frames": len(clip.index.visible), "mp4_size": clip.mp4_bytes,
        "index_size": len(stored.data), "index_crc32c": stored.crc32c,
    }  # fmt: skip
    clips: Any = SimpleNamespace(**{column: np.array([value]) for column, value in columns.items()})
    data = np.frombuffer(stored.data, dtype=np.uint8)
    index = median(timed(lambda: parse_index(data, clips, 0)) for _ in range(200))
    rng, rows = np.random.default_rng(0), list[Row]()
    for stride in (1, 8):
        checks, decodes, sizes = [], [], []
        for start in rng.integers(0, len(clip.index.visible) - WANTED * stride, windows).tolist():
            frames = start + stride * np.arange(WANTED)
            packets, encoded = select_packets(clip.index, frames), clip.slice(frames)
            decodes.append(timed(lambda encoded=encoded: list(decode_frames(encoded))))
            checks.append(timed(lambda packets=packets, data=encoded.data: damaged_packet(packets, data)))
            sizes.append((len(packets.sizes), int(packets.sizes.sum())))
        check, decode = median(checks), median(decodes)
        count, size = np.mean(sizes, axis=0).tolist()
        row: dict[str, Any] = {
            "clip": name,
            "stride": stride,
            "packets": count,
            "kB": size / 1000,
            "check, us": check * 1e6,
        }
        rows.append({**row, "decode, ms": decode * 1e3, "check / decode": check / decode, "index, us": index * 1e6})
    return rows


def measure_loaders(name: str, recipe: Recipe, folder: Path, device: str, *, clips: int, seconds: float) -> Row:
    """The row of a format: loaders that check and that do not, for so many seconds and `LEAST_PAIRS` epochs of each."""
    folder.mkdir()
    files = [write(replace(recipe, seed=n), folder / f"{n}.{recipe.container}") for n in range(2)]
    path = make_dataset(folder, "set", files, clips)
    options: Any = {"batch_size": 16, "sampling": sv.Window(WANTED, stride=2), "device": device, "transform": TRANSFORM}
    _say(f"{name}: made")
    with sv.StreamLoader(path, **options) as checks, sv.StreamLoader(path, checksum=None, **options) as trusts:
        ways: dict[sv.StreamLoader, list[float]] = {checks: [], trusts: []}
        for one in (trusts, checks):
            _say(f"{name}: a first epoch took {timed(partial(_epoch, one)):.2f} s")
        end = time.perf_counter() + seconds
        while len(ways[trusts]) < LEAST_PAIRS or time.perf_counter() < end:
            for one in (checks, trusts) if len(ways[trusts]) % 2 else (trusts, checks):
                ways[one].append(timed(partial(_epoch, one)))
        spent: list[float] = []
        with patch("streamvid.fetch.encoded_batch.damaged_packet", partial(_damaged_packet, spent)):
            epoch = timed(partial(_epoch, checks))
        frames = WANTED * clips
    pairs = sorted(a / b for a, b in zip(*ways.values(), strict=True))
    # Of how many pairs lie below the median: binomial, n and 1/2.
    edge = max(0, math.floor((len(pairs) - 1.96 * math.sqrt(len(pairs))) / 2))
    _say(f"{name}: {len(pairs)} pairs, median ratio {median(pairs):.4f}, checks {sum(spent):.4f} of {epoch:.2f} s")
    return {
        "clip": name, "checked, frames/s": frames / median(ways[checks]),
        "not checked, frames/s": frames / median(ways[trusts]), "pairs": len(pairs), "time ratio": median(pairs),
        "from": pairs[edge], "to": pairs[-1 - edge], "checks, of a core": sum(spent) / epoch,
    }  # fmt: skip


def _damaged_packet(spent: list[float], packets: PacketSelection, data: UInt8) -> int | None:
    """The product's function, whose processor time is noted."""
    began = time.thread_time()
    try:
        return damaged_packet(packets, data)
    finally:
        spent.append(time.thread_time() - began)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _epoch(loader: sv.StreamLoader) -> None:
    for batch in loader:
        batch["video"].sum().item()


def most(rows: Sequence[Row], column: str) -> float:
    return max(float(row[column]) for row in rows)


def timed(way: Any) -> float:
    """Seconds."""
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--device", help="measure whole loaders on it: cuda, cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.device is not None:
            size: dict[str, Any] = {"clips": 48, "seconds": 2.0} if options.quick else {"clips": 128, "seconds": 12.0}
            formats = {name: recipe for name, recipe in FORMATS.items() if recipe.codec in ("h264", "hevc")}
            loaders = [
                measure_loaders(name, recipe, Path(folder) / str(n), options.device, **size)
                for n, (name, recipe) in enumerate(formats.items())
            ]
            checks = [
                Check.at_most("most time with checks against without, lower end", most(loaders, "from"), 1 + MOST),
                Check.at_most("most of a core's time that checks take", most(loaders, "checks, of a core"), MOST),
            ]
            return finish(Report("checksum", loaders, checks), options)
        rows = [
            row
            for n, (name, recipe) in enumerate(FORMATS.items())
            for row in measure(name, recipe, Path(folder) / str(n), 10 if options.quick else 40)
        ]
    checks = [Check.at_most("most of a check against decoding", most(rows, "check / decode"), MOST)]
    return finish(Report("checksum", rows, checks), options)


if __name__ == "__main__":
    sys.exit(main())
