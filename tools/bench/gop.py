"""What the distance between key frames costs: bytes stored against frames decoded for every frame delivered.

    python -m tools.bench.gop [--quick] [--codec CODEC] [--json FILE] [VIDEO…]

The same footage is converted with `streamvid.video.transcode` at the same quality and several GOP lengths. Then
samples of 16 frames are taken at random places: all in a row, every eighth, and a second apart. What has to be decoded
for each is counted, not timed: the packets of `streamvid.video.packet_selection.select_packets`. Without VIDEO, the
footage is made: shapes that move over a gradient, with a cut every three seconds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.video.encoders import TARGETS, Target
from streamvid.video.frame_index import FrameIndex
from streamvid.video.packet_selection import select_packets
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from streamvid.video.transcode import TranscodeOptions, transcode
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.clips import Recipe, write

GOPS: Final = (1, 8, 15, 30, 60, 120, 250)
FRAMES: Final = 16
SAMPLES: Final = 500


def footage(folder: Path, quick: bool) -> Path:
    """A made video: 20 seconds, or 10 small ones."""
    size = (320, 176, 300) if quick else (640, 368, 600)
    recipe = Recipe(width=size[0], height=size[1], frames=size[2], scene=90, crf=10, number=False)
    return write(recipe, folder / "made.mp4")


def stored(source: Path, folder: Path) -> StoredClip:
    """A video copied into a new folder."""
    folder.mkdir()
    return store_clip(source, folder)


def windows(clip: StoredClip, step: int) -> Callable[[np.random.Generator], Int64]:
    """Draws samples of frames `step` apart; of fewer than 16 where the clip is too short."""
    total = len(clip.index.visible)
    count = min(FRAMES, 1 + (total - 1) // step)
    return lambda rng: rng.integers(0, total - (count - 1) * step) + np.arange(count) * step


def decoded_per_frame(index: FrameIndex, draw: Callable[[np.random.Generator], Int64]) -> float:
    """Packets that a decoder gets for every frame that is delivered, on average over random samples."""
    rng = np.random.default_rng(0)
    decoded = delivered = 0
    for _ in range(SAMPLES):
        frames = draw(rng)
        decoded += len(select_packets(index, frames).offsets)
        delivered += len(frames)
    return decoded / delivered


def measure(source: StoredClip, codec: Target, name: str, folder: Path) -> list[Row]:
    """A row for each GOP length."""
    seconds = source.duration * source.time_base[0] / source.time_base[1]
    rate = max(1, round(len(source.index.visible) / seconds))
    rows: list[Row] = []
    for gop in GOPS:
        file = folder / f"{name}-{gop}.mp4"
        transcode(source, file, TranscodeOptions(codec=codec, gop=gop))
        clip = stored(file, folder / f"{name}-{gop}")
        rows.append(
            {
                "footage": name,
                "GOP": gop,
                "kbit/s": float(clip.index.size.sum() * 8 / 1000 / seconds),
                "bytes, of GOP 30": 0.0,
                "decoded, in a row": decoded_per_frame(clip.index, windows(clip, 1)),
                "decoded, every 8th": decoded_per_frame(clip.index, windows(clip, 8)),
                "decoded, 1 s apart": decoded_per_frame(clip.index, windows(clip, rate)),
            }
        )
    usual = next(float(row["kbit/s"]) for row in rows if row["GOP"] == 30)
    return [{**row, "bytes, of GOP 30": float(row["kbit/s"]) / usual} for row in rows]


def main() -> int:
    """The program."""
    parser = arguments(__doc__)
    parser.add_argument("videos", nargs="*", type=Path, metavar="VIDEO")
    parser.add_argument("--codec", choices=TARGETS, default="h264")
    options = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, video in enumerate(options.videos or [footage(folder, options.quick)]):
            source = stored(video, folder / f"source-{number}")
            rows += measure(source, options.codec, video.stem, folder)
    # What the table is for: with a key frame in every frame nothing is decoded in vain, with few of them much is.
    checks = [
        check
        for row in rows
        if row["GOP"] == 1
        for check in [
            Check.at_most(f"decoded per frame at GOP 1, {row['footage']}", float(row["decoded, 1 s apart"]), 1.0)
        ]
    ]
    notes = [f"{options.codec}; {SAMPLES} samples of {FRAMES} frames; decoded: frames decoded per frame delivered."]
    return finish(Report("gop", rows, checks, notes), options)


if __name__ == "__main__":
    raise SystemExit(main())
