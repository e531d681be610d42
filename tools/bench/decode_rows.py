"""Measures the rows of `tools.bench.decode`: `python -m tools.bench.decode_rows WORK`, where WORK is a JSON file with
the folder of the clips and the cases."""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

import streamvid as sv
from streamvid.bitstream.annexb import NAL_SYNTAX
from streamvid.decode.base import Pending
from streamvid.decode.cpu import CpuDecoder
from streamvid.decode.dali import DaliDecoder
from streamvid.decode.gpu import GpuDecoder
from streamvid.decode.interrupts import mark_thread
from streamvid.decode.nvdec import NvdecSessionPool
from streamvid.decode.nvdec_library import native_library
from streamvid.transform.in_order import AHEAD_PIXELS, MOST_BEGUN
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.reference import slice_of
from tools.bench.decode_cases import LOOP_CLIPS, SIZES, Case, clip_path, size_paths
from tools.bench.engines import ENGINES, Engines
from tools.bench.host_times import HostTimes
from tools.bench.isolated import emit
from tools.bench.stream import BARE, epoch_slices, make_dataset

ROW_SECONDS: Final = 75.0
"""The most that a row may take, with the start of its process."""
WINDOW: Final = 16
"""Frames of a sample."""
PACKETS: Final = 10_000
"""Of 720p, that are decoded at least for a figure, without a pause; of smaller frames more, which take as long. The
first and the last batch have no others beside them."""
_BATCHES: Final = 4
_WITHIN_ONE: Final = 0.999
_FAR: Final = 40
_SECONDS: Final = 2.0
"""That measuring it again and again may take."""
_WARM_UP: Final = 1.0
TOO_LARGE: Final = "needs memory:"
COMPARED: Final = 16
"""Samples of a row whose frames are compared."""

Batch = list[EncodedSlice]


class Bench:
    """Measures rows one after the other."""

    def __init__(self, clips: Path, work: Path) -> None:
        self._clips, self._work, self._all_cores = clips, work, sorted(os.sched_getaffinity(0))
        self._cores = len(self._all_cores)
        self._stored: dict[Path, StoredClip] = {}
        self._datasets: dict[str, str] = {}
        self._limits: dict[tuple[str, int, int], tuple[float, float]] = {}
        self._cpu = CpuDecoder(threads=self._cores)
        self._reference = NvdecSessionPool(device_id=0, engines=0, cpu_workers=self._cores)

    def measure(self, case: Case) -> dict[str, Any]:
        """The figures of a row: pictures a second, what is compared, and the seconds that it took."""
        began = time.perf_counter()
        return {**self._measured(case), "seconds": time.perf_counter() - began}

    def _measured(self, case: Case) -> dict[str, Any]:
        self._cores = case.cores or len(self._all_cores)
        for thread in os.listdir("/proc/self/task"):
            with suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread), self._all_cores[: self._cores])
        if f"{SIZES} sizes" in case.kind:
            return self._sizes(case)
        import torch

        work = random_batches([self._clip(clip_path(case, self._clips))], case)
        # Three batches of frames: two that are alive, and what the allocator keeps.
        needed = 3 * case.batch * WINDOW * 3 * _area(work)
        if needed > 0.8 * torch.cuda.mem_get_info()[1]:
            return {**dataclasses.asdict(case), "error": f"{TOO_LARGE} {needed / 1e9:.0f} GB"}
        pynv, native = self._limit(case, [one for batch in work for one in batch])
        with MemoryWatch() as memory:
            decoder = GpuDecoder(device_id=0, threads=self._cores, max_batch=case.batch)
            warm_up(decoder, work)
        with HostTimes() as host:
            decoded = _median(partial(rate, decoder, work))
        delivered = decoded * WINDOW * sum(map(len, work)) / _packets(work)
        began = time.perf_counter()
        pending = _submit(decoder, work[0])
        submit = time.perf_counter() - began
        pending.result()
        told = f"submit {1000 * submit:.1f} ms; cores: {host}"
        same = self._same(_submit(decoder, work[0][:COMPARED]).result(), work[0])
        found: dict[str, Any] = {
            **dataclasses.asdict(case), "error": "", "host": told, "pynv": pynv, "native": native, "decoded": decoded,
            "delivered": delivered, "same": same, "memory": memory.taken / (2 * case.batch * WINDOW * 3 * _area(work)),
        }  # fmt: skip
        if case.loop:
            found |= self._loop(case, decoder)
        if case.stock:
            found |= self._stock(work[0], decoder)
        decoder.close()
        return found

    def _limit(self, case: Case, work: Batch) -> tuple[float, float]:
        """Pictures a second of the sessions alone, of PyNvVideoCodec and of the native module; 0 for what is not there,
        or does not decode the codec."""
        key = case.kind, case.gop, case.stride
        if key not in self._limits:
            packets = np.cumsum([len(one.sizes) for one in work])
            some = work[: int(np.searchsorted(packets, _enough(work[0]))) + 1]
            found = []
            for library in (None, native_library()):
                try:
                    engines = Engines(library, some[0])
                    began = time.perf_counter()
                    while time.perf_counter() - began < _WARM_UP:
                        engines.decode(some)
                    found.append(_median(partial(engines.decode, some)))
                    engines.close()
                except (ImportError, RuntimeError) as error:
                    print(f"no limit of {case.name}: {error}", file=sys.stderr)
                    found.append(0.0)
            self._limits[key] = found[0], found[1] if native_library() is not None else 0.0
        return self._limits[key]

    def _loop(self, case: Case, decoder: GpuDecoder) -> dict[str, Any]:
        """Seconds of a batch of a loop that sums each, of one that does nothing, and of decoding the same packets."""
        if case.kind not in self._datasets:
            source = clip_path(replace(case, loop=True), self._clips)
            name = case.kind.replace(" ", "-")
            self._datasets[case.kind] = make_dataset(self._work, name, [source], LOOP_CLIPS)
        sampling = sv.Window(WINDOW)
        with sv.StreamLoader(
            self._datasets[case.kind], batch_size=case.batch, sampling=sampling, transform=BARE, device="cuda",
            num_threads=self._cores,
        ) as loader:  # fmt: skip
            batches = epoch_slices(loader.dataset, sampling, case.batch, 0)
            first = list(next(iter(loader))["video"][:COMPARED])
            same = self._same(first, batches[0])
            found: dict[str, list[float]] = {"loop_s": [], "idle_loop_s": [], "decoding_s": []}
            for epoch in (1, 2, 3):
                batches = epoch_slices(loader.dataset, sampling, case.batch, epoch)
                loader.set_epoch(epoch)
                found["loop_s"].append(_seconds_each(batch["video"].sum() for batch in loader))
                loader.set_epoch(epoch)
                found["idle_loop_s"].append(_seconds_each(iter(loader)))
                found["decoding_s"].append(_seconds_each(_decoded(decoder, batches)))
        return {"loop_same": same, **{name: statistics.median(some) for name, some in found.items()}}

    def _stock(self, work: Batch, decoder: GpuDecoder) -> dict[str, Any]:
        """Pictures a second of `fn.decoders.video` with one stream per sample, and whether its frames are ours."""
        import torch
        from torch.utils.dlpack import from_dlpack

        dali = DaliDecoder(device_id=0, threads=self._cores, max_batch=len(work))
        dali.run(work[:ENGINES])
        began = time.perf_counter()
        out = dali.run(work)
        seconds = time.perf_counter() - began
        same = all(torch.equal(mine, from_dlpack(out[n])) for n, mine in enumerate(decoder.decode(work)))
        return {"stock_rate": _packets([work]) / seconds, "stock_same": same}

    def _sizes(self, case: Case) -> dict[str, Any]:
        """Random batches of clips of many sizes of the same area, held against batches of one size."""
        clips = [self._clip(path) for path in size_paths(case, self._clips)]
        decoder = GpuDecoder(device_id=0, threads=self._cores, max_batch=case.batch)
        mixed = random_batches(clips, case)
        warm_up(decoder, mixed)
        decoded = _median(partial(rate, decoder, mixed))
        alone = []
        for clip in clips[:: SIZES // 6]:
            works = random_batches([clip], case)
            rate(decoder, works[:2])
            alone.append(rate(decoder, works))
        same = all(self._same(_submit(decoder, batch[:COMPARED]).result(), batch) for batch in mixed)
        decoder.close()
        return {
            **dataclasses.asdict(case), "error": "", "pynv": 0.0, "native": 0.0, "decoded": decoded, "same": same,
            "delivered": decoded * WINDOW * sum(map(len, mixed)) / _packets(mixed), "memory": 0.0,
            "one_size": statistics.harmonic_mean(alone),
        }  # fmt: skip

    def _same(self, frames: Sequence[Any], work: Batch) -> bool:
        """Whether frames are FFmpeg's: of H.264 and HEVC, which spare cores decode for the same kernel, bit for bit; of
        MPEG-4, whose inverse transform is not defined bit for bit, so that pictures drift apart from key frame to key
        frame, less than a level away on average and nowhere 40; of others 99.9 % of the values within a level."""
        import torch

        if work[0].codec in NAL_SYNTAX:
            expected = self._reference.submit(work[: len(frames)], color=BARE.color).result()
            return all(torch.equal(mine, other) for mine, other in zip(frames, expected, strict=True))
        on_cpu = self._cpu.submit(work[: len(frames)], color=BARE.color).result()
        pairs = zip(frames, on_cpu, strict=True)
        far = [(mine.cpu().int() - torch.from_numpy(other).int()).abs() for mine, other in pairs]
        if work[0].codec == "mpeg4":
            return all(float(one.float().mean()) < 1 and int(one.max()) < _FAR for one in far)
        return all(float(one.le(1).float().mean()) >= _WITHIN_ONE for one in far)

    def _clip(self, path: Path) -> StoredClip:
        """The clip as a dataset keeps it."""
        if path not in self._stored:
            self._stored[path] = store_clip(path, Path(tempfile.mkdtemp(dir=self._work)))
        return self._stored[path]


def rate(decoder: GpuDecoder, work: Sequence[Batch]) -> float:
    """Pictures a second of a decoder, batch after batch."""
    began = time.perf_counter()
    for _ in _decoded(decoder, work):
        pass
    return _packets(work) / (time.perf_counter() - began)


def warm_up(decoder: GpuDecoder, work: Sequence[Batch]) -> None:
    """Decode for as long as engines need to open their sessions, and the chip to raise its clock."""
    began = time.perf_counter()
    while time.perf_counter() - began < _WARM_UP:
        rate(decoder, work)


def _submit(decoder: GpuDecoder, work: Batch) -> Pending[list[Any]]:
    return decoder.submit(work, color=BARE.color)


def _decoded(decoder: GpuDecoder, work: Sequence[Batch]) -> Iterator[Any]:
    """Batches, as many begun ahead as a `StreamLoader` begins."""
    begun: deque[Pending[list[Any]]] = deque()
    most = min(MOST_BEGUN, 1 + math.ceil(AHEAD_PIXELS / (len(work[0]) * WINDOW * _area(work))))
    for batch in work:
        begun.append(_submit(decoder, batch))
        if len(begun) == most:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


def _seconds_each(results: Iterator[Any]) -> float:
    """Seconds of a batch, behind the first two."""
    import torch

    began = 0.0
    for number, _ in enumerate(results):
        if number == 1:
            torch.cuda.synchronize()
            began = time.perf_counter()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / (number - 1)


def _median(measure: Callable[[], float]) -> float:
    """Of three; of fewer if they take long."""
    began, found = time.perf_counter(), [measure()]
    while len(found) < 3 and (time.perf_counter() - began) * (1 + 1 / len(found)) < _SECONDS:
        found.append(measure())
    return statistics.median(found)


def _packets(work: Sequence[Batch]) -> int:
    return sum(len(one.sizes) for batch in work for one in batch)


def _area(work: Sequence[Batch]) -> int:
    return work[0][0].width * work[0][0].height


def _enough(one: EncodedSlice) -> int:
    return max(PACKETS, PACKETS * 1280 * 720 // (one.width * one.height))


def random_batches(clips: Sequence[StoredClip], case: Case) -> list[Batch]:
    """Windows at random places of random clips: four batches at least, with `PACKETS` packets, or more."""
    window = np.arange(0, WINDOW * case.stride, case.stride)
    draw = np.random.default_rng(0)
    work: list[Batch] = []
    while len(work) < _BATCHES or _packets(work) < _enough(work[0][0]):
        chosen = [clips[n] for n in draw.integers(0, len(clips), case.batch)]
        work.append(
            [slice_of(one, draw.integers(0, len(one.index.visible) - int(window[-1])) + window) for one in chosen]
        )
    return work


class MemoryWatch:
    """`taken`: the most that the GPU had less free than at the start, in bytes, sampled every 5 ms."""

    def __enter__(self) -> MemoryWatch:
        import torch

        torch.cuda.empty_cache()
        self._free = least = torch.cuda.mem_get_info()[0]
        self.taken = 0
        self._stop = threading.Event()

        def watch() -> None:
            nonlocal least
            while not self._stop.wait(0.005):
                least = min(least, torch.cuda.mem_get_info()[0])
                self.taken = self._free - least

        self._thread = threading.Thread(target=watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def main() -> int:
    """Measure the rows that a file names."""
    mark_thread()  # it submits batches, as a thread of a loader does
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(work["clips"]), Path(name))
        for case in work["cases"]:
            # Where it stands still: the process that runs this one shows it.
            faulthandler.dump_traceback_later(0.6 * ROW_SECONDS)
            emit(bench.measure(Case(**case)))
            gc.collect()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
