"""What checking a slice costs, against decoding it: `checksum="crc32c"` of the loaders.

    python -m tools.bench.checksum [--quick] [--json FILE]

Windows of 16 frames at random places of a clip of 10 s, frames next to each other and eight apart, decoded on one core.
All is in memory; medians of many windows, the ways in turn.

- check: the CRC-32C of every packet that is decoded.
- decode: FFmpeg, one thread, to planes; no conversion to RGB, no resizing.
- index: reading a clip's frame index from its bytes, all checksums compared.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from streamvid.dataset.frame_indexes import parse_index
from streamvid.decode.cpu import decode_frames
from streamvid.video.index_file import encode_index
from streamvid.video.packet_selection import damaged_packet, select_packets
from streamvid.video.remux import store_clip
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.clips import Recipe, write

WANTED: Final = 16
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
    rng, rows = np.random.default_rng(0), []
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
        row: Row = {"clip": name, "stride": stride, "packets": count, "kB": size / 1000, "check, us": check * 1e6}
        rows.append({**row, "decode, ms": decode * 1e3, "check / decode": check / decode, "index, us": index * 1e6})
    return rows


def timed(way: Any) -> float:
    """Seconds."""
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


def main() -> int:
    options = arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            row
            for n, (name, recipe) in enumerate(FORMATS.items())
            for row in measure(name, recipe, Path(folder) / str(n), 10 if options.quick else 40)
        ]
    checks = [
        Check.at_most("most of a check against decoding", max(float(row["check / decode"]) for row in rows), MOST)
    ]
    return finish(Report("checksum", rows, checks), options)


if __name__ == "__main__":
    sys.exit(main())
