"""The rows of `tools.bench.decode`, each a process' work for some clips: `python -m tools.bench.decode_rows WORK`."""

from __future__ import annotations

import dataclasses
import gc
import json
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from streamvid.decode.gpu import GpuDecoder
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.stored_clip import StoredClip
from tests.support.reference import slice_of
from tools.bench import decode_clips as clips
from tools.bench.apart import emit
from tools.bench.decode_parts import STOCK_BATCH, Limit, Memory, Stock, equal, finished, our_seconds

WINDOW: Final = 16
_BATCHES: Final = 3
_LOOPS: Final = 16
"""Batches of an epoch of the loop."""
_WORKERS: Final = 4
"""Processes of a GpuDataLoader."""
_LOOP_ROUNDS: Final = 2
"""Epochs that are timed at most, after one that is not."""
_ROW_SECONDS: Final = 5.0
"""No other round is begun after so long."""


@dataclass(frozen=True)
class Case:
    """A row.

    Attributes:
        row: "windows", "loop", "proxy" (the loop with a GpuDataLoader), "sets" (mixed parameter sets), "sizes" (mixed
            sizes) or "grouped" (likewise).
        kind: of the clips.
        gop: frames from key frame to key frame.
        stride: step from wanted frame to wanted frame.
        batch: windows in a batch.
    """

    row: str
    kind: str
    gop: int
    stride: int
    batch: int

    @property
    def name(self) -> str:
        """What it is called in checks, and for `--only`."""
        about = f"{self.kind}, GOP {self.gop}, stride {self.stride}, batch {self.batch}"
        return about if self.row == "windows" else f"{self.row}: {about}"

    @property
    def clips(self) -> list[str]:
        """Names of the clips that it needs."""
        if self.row == "sets":
            return clips.names_of_sets()
        return clips.names_of_sizes() if self.row in ("sizes", "grouped") else [f"{self.kind} {self.gop}"]


class Bench:
    """Measures rows of one kind of clips, one after the other."""

    def __init__(self, folder: Path, work: Path, rounds: int) -> None:
        self._folder, self._work, self._rounds = folder, work, rounds
        self._stored: dict[str, StoredClip] = {}
        self._stock: Stock | None = None
        self._opening = 0.0

    def measure(self, case: Case) -> dict[str, Any]:
        """The row: see `tools.bench.decode`."""
        for name in case.clips:
            if name not in self._stored:
                self._stored[name] = clips.stored(name, self._folder, self._work)
        used = [self._stored[name] for name in case.clips]
        how = {
            "windows": self._windows,
            "loop": self._loop,
            "proxy": self._proxy,
            "sets": self._sets,
            "sizes": self._sizes,
            "grouped": self._grouped,
        }[case.row]
        return {**dataclasses.asdict(case), "error": "", **how(case, used)}

    def _windows(self, case: Case, used: list[StoredClip]) -> dict[str, Any]:
        (clip,) = used
        work = batches(used, case, _BATCHES)
        limit = Limit(clip)
        limit.seconds(work[0])
        with Memory() as memory:
            decoder = GpuDecoder(device_id=0, threads=16, max_batch=case.batch)
            our_seconds(decoder, work)
        ours: list[float] = []
        bounds: list[float] = []
        started = time.perf_counter()
        # In turn, so that what else the machine does falls on both.
        while not ours or (len(ours) < self._rounds and time.perf_counter() - started < _ROW_SECONDS):
            bounds.append(limit.seconds([part for batch in work for part in batch]) / len(work))
            ours.append(our_seconds(decoder, work))
        del limit
        if self._stock is None:
            self._stock = Stock(work[0])
            # A key frame of each: what is left is what streams cost, whatever is in them.
            self._opening = self._stock.seconds([slice_of(clip, [0])] * STOCK_BATCH)[0] / STOCK_BATCH
        stock, frames = self._stock.seconds(work[0])
        # Before `close`: frames may be parts of a decoder's memory.
        same = equal(decoder.decode(work[0])[:STOCK_BATCH], frames)
        decoder.close()
        return {
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

    def _loop(self, case: Case, used: list[StoredClip]) -> dict[str, Any]:
        """A StreamLoader's loop that only sums each batch, against the decoder alone on the same windows."""
        import streamvid as sv

        loader = sv.StreamLoader(
            sv.Mix([(str(self._packed(case)), 1)]),
            batch_size=case.batch,
            steps_per_epoch=_LOOPS,
            sampling=sv.Window(WINDOW, stride=case.stride),
        )
        return self._looped(case, used[0], loader)

    def _proxy(self, case: Case, used: list[StoredClip]) -> dict[str, Any]:
        """Likewise with a GpuDataLoader, whose workers read and slice."""
        import streamvid as sv

        span = np.arange(0, WINDOW * case.stride, case.stride)
        last = len(used[0].index.visible) - int(span[-1])
        starts = np.random.default_rng(0).integers(0, last, _LOOPS * case.batch).tolist()
        loader = sv.GpuDataLoader(
            sv.ClipDataset(self._packed(case)),
            batch_size=case.batch,
            sampler=[sv.At(0, frames=(start + span).tolist()) for start in starts],
            num_workers=_WORKERS,
            persistent_workers=True,
        )
        return self._looped(case, used[0], loader)

    def _packed(self, case: Case) -> Path:
        """The clip as a dataset."""
        from streamvid.packing.pack import pack

        packed = self._work / f"packed-{len(list(self._work.iterdir()))}"
        pack([clips.source(case.clips[0], self._folder)], packed, progress=False)
        return packed

    def _looped(self, case: Case, clip: StoredClip, loader: Any) -> dict[str, Any]:
        """A loop over either, against the decoder alone."""
        import torch

        rate = float(clips.recipe(case.clips[0]).fps)
        starts: list[list[int]] = []
        loops = []
        rounds = min(self._rounds, _LOOP_ROUNDS)
        for _ in range(1 + rounds):
            loader.set_epoch(0)
            times, starts = [], []
            started = time.perf_counter()
            total = None
            for batch in loader:
                summed = batch["video"].sum()
                total = summed if total is None else total + summed
                summed.item()  # the step ends when the GPU is done with it
                times.append(time.perf_counter() - started)
                starts.append([round(seconds * rate) for seconds in batch["pts"][:, 0].tolist()])
                del batch
            loops.append(times)
        del loader
        gc.collect()
        torch.cuda.empty_cache()
        span = np.arange(0, WINDOW * case.stride, case.stride)
        work = [[slice_of(clip, start + span) for start in row] for row in starts]
        decoder = GpuDecoder(device_id=0, threads=16, max_batch=case.batch)
        decoder.decode(work[0])
        alone = [finished(decoder, work) for _ in range(rounds)]
        decoder.close()
        # From the first batch on: a run has one beginning and many batches. The first round opens decoders.
        loop = statistics.median((times[-1] - times[0]) / (len(times) - 1) for times in loops[1:])
        decode = statistics.median((times[-1] - times[0]) / (len(times) - 1) for times in alone)
        return {
            "loop_s": loop,
            "decode_s": decode,
            "beyond": max(0.0, loop - decode) / loop,
            "first_s": statistics.median(times[0] for times in loops[1:]),
            "first_decode_s": statistics.median(times[0] for times in alone),
        }

    def _sets(self, case: Case, used: list[StoredClip]) -> dict[str, Any]:
        """Clips of many parameter sets against clips of one."""
        mixed = self._ours(batches(used, case, _BATCHES))
        uniform = self._ours(batches(used[:1], case, _BATCHES))
        return {"mixed_s": mixed, "uniform_s": uniform, "sets": len({clip.stsd for clip in used})}

    def _sizes(self, case: Case, used: list[StoredClip]) -> dict[str, Any]:
        """Clips of many sizes against batches of each size alone, on average: as many pixels."""
        mixed = self._ours(batches(used, case, _BATCHES))
        uniform = statistics.mean(self._ours(batches([clip], case, _BATCHES)) for clip in used)
        return {"mixed_s": mixed, "uniform_s": uniform, "sizes": len(used)}

    def _grouped(self, case: Case, used: list[StoredClip]) -> dict[str, Any]:
        """A StreamLoader over clips of many sizes, with `group_by_size` and without."""
        import streamvid as sv
        from streamvid.packing.pack import pack

        videos, packed = self._work / "copies", self._work / "sizes"
        videos.mkdir()
        for name in case.clips:
            for copy in range(case.batch):
                shutil.copy(clips.source(name, self._folder), videos / f"{name.replace(' ', '-')}-{copy:03}.mp4")
        pack([videos], packed, progress=False)
        found: dict[bool, list[float]] = {False: [], True: []}
        loaders = {
            grouped: sv.StreamLoader(
                str(packed),
                batch_size=case.batch,
                sampling=sv.Window(WINDOW, stride=case.stride),
                transform=sv.Transform(resize=(224, 224)),
                group_by_size=grouped,
            )
            for grouped in found
        }
        # The first epoch opens decoders; then in turn, so that what else the machine does falls on both.
        for _ in range(1 + self._rounds):
            for grouped, loader in loaders.items():
                loader.set_epoch(0)
                started = time.perf_counter()
                steps = 0
                for batch in loader:
                    batch["video"].sum().item()
                    steps += 1
                found[grouped].append((time.perf_counter() - started) / steps)
        mixed, grouped_s = (statistics.median(found[way][1:]) for way in (False, True))
        return {"mixed_s": mixed, "grouped_s": grouped_s, "sizes": len(used)}

    def _ours(self, work: list[list[EncodedSlice]]) -> float:
        """Seconds per batch."""
        decoder = GpuDecoder(device_id=0, threads=16, max_batch=len(work[0]))
        decoder.decode(work[0])
        taken: list[float] = []
        started = time.perf_counter()
        while not taken or (len(taken) < self._rounds and time.perf_counter() - started < _ROW_SECONDS):
            taken.append(our_seconds(decoder, work))
        decoder.close()
        return statistics.median(taken)


def batches(used: list[StoredClip], case: Case, count: int) -> list[list[EncodedSlice]]:
    """Windows at random places, of the clips in turn."""
    span = np.arange(0, WINDOW * case.stride, case.stride)
    last = len(used[0].index.visible) - int(span[-1])
    starts = np.random.default_rng(0).integers(0, last, (count, case.batch)).tolist()
    return [[slice_of(used[n % len(used)], start + span) for n, start in enumerate(row)] for row in starts]


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
