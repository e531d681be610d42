"""What fusing slices into streams gains on a GPU, at 720p and 1080p.

    python -m tools.bench.decode [--quick] [--json FILE]

Windows of 16 frames at stride 1, from clips with a key frame every 15 frames and two B-frames. The same slices are
decoded as one stream each, and fused by `GpuDecoder`; the two are measured in turn, medians count, and the frames are
compared bit for bit.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np

from streamvid.stream.decode import DaliDecoder, GpuDecoder
from streamvid.video.remux import store_clip
from streamvid.video.slice import EncodedSlice
from tests.reference import slice_of
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.clips import Recipe, write
from tools.gpu_survey import arrays
from tools.recipes import Codec

WINDOW: Final = 16
BATCH: Final = 56
CLIPS: Final = 2
THREADS: Final = 16
KINDS: Final[tuple[tuple[Codec, int], ...]] = (("h264", 720), ("hevc", 720), ("h264", 1080), ("hevc", 1080))
BARS: Final = {720: 2.0, 1080: 5.0}
"""Gains that docs/performance.md tells of, with room for noise."""


def slices(codec: Codec, height: int) -> list[EncodedSlice]:
    """A batch of windows at random places."""
    with tempfile.TemporaryDirectory() as folder:
        clips = []
        for n in range(CLIPS):
            inner = Path(folder) / str(n)
            inner.mkdir()
            recipe = Recipe(
                codec=codec,
                width=height * 16 // 9,
                height=height,
                frames=60,
                gop=15,
                b_frames=2,
                style="texture",
                seed=n,
            )
            clips.append(store_clip(write(recipe, inner / "source.mp4"), inner))
        starts = np.random.default_rng(0).integers(0, 60 - WINDOW, BATCH).tolist()
        return [slice_of(clips[n % CLIPS], np.arange(s, s + WINDOW)) for n, s in enumerate(starts)]


def measure(codec: Codec, height: int, rounds: int) -> Row:
    """One kind of clip, both ways."""
    import torch

    batch = slices(codec, height)
    alone = DaliDecoder(device_id=0, threads=THREADS, max_batch=BATCH)
    fused = GpuDecoder(device_id=0, threads=THREADS, max_batch=BATCH)
    same = all(np.array_equal(a, b) for a, b in zip(arrays(alone.run(batch)), arrays(fused.decode(batch)), strict=True))
    seconds: dict[str, list[float]] = {"alone": [], "fused": []}
    for _ in range(rounds):
        for name, decode in (("alone", alone.run), ("fused", fused.decode)):
            started = time.perf_counter()
            decode(batch)
            torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - started)
    fused.close()
    one, together = (statistics.median(seconds[name]) for name in ("alone", "fused"))
    return {
        "clips": f"{codec} {height}p",
        "one stream each, s": one,
        "fused, s": together,
        "gain": one / together,
        "fused, frames/s": BATCH * WINDOW / together,
        "same frames": str(same),
    }


def main() -> int:
    """The program."""
    import torch

    options = arguments(__doc__).parse_args()
    if not torch.cuda.is_available():
        print("tools.bench.decode needs an NVIDIA GPU and torch for CUDA", file=sys.stderr)
        return 2
    kinds = KINDS[::2] if options.quick else KINDS
    rows = [measure(codec, height, 2 if options.quick else 5) for codec, height in kinds]
    checks = []
    for (_, height), row in zip(kinds, rows, strict=True):
        checks.append(Check.at_least(f"gain, {row['clips']}", float(row["gain"]), BARS[height]))
        checks.append(Check.at_least(f"same frames, {row['clips']}", float(row["same frames"] == "True"), 1.0))
    return finish(Report("decode", rows, checks, [f"{BATCH} windows of {WINDOW} frames."]), options)


if __name__ == "__main__":
    raise SystemExit(main())
