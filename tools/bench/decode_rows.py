"""The rows of `tools.bench.decode`, each measured in a process of its own: `python -m tools.bench.decode_rows WORK`.

WORK is a JSON file: the folder of the clips, the number of rounds, and the cases.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamvid.decode.gpu import GpuDecoder
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.reference import slice_of
from tools.bench.decode_parts import STOCK_BATCH, Limit, MemoryWatch, Stock, equal, seconds_per_batch
from tools.bench.isolated import emit
from tools.clips import Recipe, write

WINDOW: Final = 16
"""Frames of a sample."""
CLIP_FRAMES: Final = 400
FORMATS: Final = {
    "h264 720p": Recipe(codec="h264", width=1280, height=720),
    "hevc 720p": Recipe(codec="hevc", width=1280, height=720),
    "h264 1080p": Recipe(codec="h264", width=1920, height=1080),
    "hevc 1080p": Recipe(codec="hevc", width=1920, height=1080),
    "hevc10 640x272": Recipe(codec="hevc", width=640, height=272, pix_fmt="yuv420p10le"),
}
_BATCHES: Final = 3
_ROW_SECONDS: Final = 5.0
"""No other round begins after this time."""


@dataclass(frozen=True)
class Case:
    """A row.

    Attributes:
        kind: codec and size of the clips, a key of `FORMATS`.
        gop: frames from key frame to key frame.
        stride: frames from one frame of a sample to the next.
        batch: samples in a batch.
    """

    kind: str
    gop: int
    stride: int
    batch: int

    @property
    def name(self) -> str:
        """How checks and `--only` call it."""
        return f"{self.kind}, GOP {self.gop}, stride {self.stride}, batch {self.batch}"


class Bench:
    """Measures rows of one kind of clips, one after the other."""

    def __init__(self, folder: Path, work: Path, rounds: int) -> None:
        self._folder, self._work, self._rounds = folder, work, rounds
        self._stored: dict[tuple[str, int], StoredClip] = {}
        self._stock: Stock | None = None
        self._opening = 0.0

    def measure(self, case: Case) -> dict[str, Any]:
        """The figures of a row, in seconds per batch."""
        clip = self._clip(case)
        work = random_batches(clip, case, _BATCHES)
        limit = Limit(codec=clip.codec, width=clip.width, height=clip.height)
        limit.seconds(work[0])
        with MemoryWatch() as memory:
            decoder = GpuDecoder(device_id=0, threads=16, max_batch=case.batch)
            seconds_per_batch(decoder, work)
        ours: list[float] = []
        bounds: list[float] = []
        started = time.perf_counter()
        # In turn: what else runs on the machine slows both.
        while not ours or (len(ours) < self._rounds and time.perf_counter() - started < _ROW_SECONDS):
            bounds.append(limit.seconds([part for batch in work for part in batch]) / len(work))
            ours.append(seconds_per_batch(decoder, work))
        del limit
        if self._stock is None:
            self._stock = Stock(work[0])
            # Streams of one key frame each: what DALI needs to open a stream, whatever it holds.
            self._opening = self._stock.seconds([slice_of(clip, [0])] * STOCK_BATCH)[0] / STOCK_BATCH
        stock, frames = self._stock.seconds(work[0])
        # Before `close`: frames may be parts of a decoder's memory.
        same = equal(decoder.decode(work[0])[:STOCK_BATCH], frames)
        decoder.close()
        return {
            **dataclasses.asdict(case),
            "error": "",
            "stock_s": stock,
            "stock_threads": self._stock.threads,
            "stock_clips": min(case.batch, STOCK_BATCH),
            "opening_s": self._opening * case.batch,
            "streamvid_s": statistics.median(ours),
            "limit_s": statistics.median(bounds),
            "rounds": len(ours),
            "packets": sum(len(part.sizes) for batch in work for part in batch) / len(work),
            "memory": memory.taken / (2 * case.batch * WINDOW * clip.width * clip.height * 3),
            "same": same,
        }

    def _clip(self, case: Case) -> StoredClip:
        """The clip as a dataset keeps it."""
        key = case.kind, case.gop
        if key not in self._stored:
            inner = self._work / f"{case.kind} {case.gop}".replace(" ", "-")
            inner.mkdir()
            self._stored[key] = store_clip(make_clip(case, self._folder), inner)
        return self._stored[key]


def random_batches(clip: StoredClip, case: Case, count: int) -> list[list[EncodedSlice]]:
    """Windows at random places of the clip."""
    window = np.arange(0, WINDOW * case.stride, case.stride)
    last = len(clip.index.visible) - int(window[-1])
    starts = np.random.default_rng(0).integers(0, last, (count, case.batch)).tolist()
    return [[slice_of(clip, start + window) for start in row] for row in starts]


def make_clip(case: Case, folder: Path) -> Path:
    """The file of the case's clip; encoded if it is not there."""
    path = folder / f"{case.kind} {case.gop}.mp4".replace(" ", "-")
    if not path.exists():
        recipe = replace(FORMATS[case.kind], frames=CLIP_FRAMES, gop=case.gop, b_frames=2, style="texture")
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            write(recipe, Path(draft) / path.name).replace(path)
    return path


def make_clips(cases: Sequence[Case], folder: Path) -> None:
    """Encode what is missing, each clip once."""
    folder.mkdir(parents=True, exist_ok=True)
    distinct = {(case.kind, case.gop): case for case in cases}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda case: make_clip(case, folder), distinct.values()))


def main() -> int:
    """Measure the rows that a file names."""
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(work["clips"]), Path(name), work["rounds"])
        for case in work["cases"]:
            emit(bench.measure(Case(**case)))
            gc.collect()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
