"""The cost of the loader over bare decoding: frames per second by both, on the same clips in the same run.

    python -m tools.bench.stream [--quick] [--json FILE] [--device cpu] [--isolate]

It makes its own clips. The loader streams whole epochs: plan, read, slice, decode, transform, PyTorch batches. The
bare decoder gets the slices of the same epochs, ready in memory, in the same batches, and does nothing but decode
them. Both run in turn; medians count. With --isolate, a loader that decodes in child processes is compared with one
that does not, in the place of the bare decoder.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

import streamvid as sv
from streamvid.dataset.clip_source import ClipSource
from streamvid.decode.cpu import CpuDecoder
from streamvid.decode.gpu import GpuDecoder
from streamvid.fetch.encoded_batch import read_batches
from streamvid.fetch.plan_samples import SampleSpec
from streamvid.fetch.shard_access import ShardAccess
from streamvid.packing.pack import pack
from streamvid.plan.epoch_plan import Plan
from streamvid.plan.mixture import SampleStream
from streamvid.plan.permutation import Pool
from streamvid.plan.world import World, find_device
from streamvid.sampling.base import FrameSampler
from streamvid.video.packet_selection import EncodedSlice
from tools.bench.report import Check, Report, Row, arguments, finish
from tools.bench.sources import write_missing
from tools.clips import Recipe
from tools.processes import cpu_seconds, processes_below

BAR: Final = 0.7
"""The share of the bare decoder's frames per second that the loader must deliver (issue 2)."""
SEED: Final = 0
SAMPLING: Final = sv.Window(frames=16, fps=8)
TRANSFORM: Final = sv.Transform(
    resize=256, crop=224, horizontal_flip=0.5, mean=(0.45,) * 3, std=(0.225,) * 3, layout="CTHW", dtype="float16"
)
ISOLATED_BAR: Final = 0.85
"""The same for a loader that decodes in processes, relative to one that decodes in threads."""
BARE: Final = sv.Transform(layout="THWC", dtype="uint8")
"""Frames as they are: what the loader costs without the work that the transform is asked for."""
STEP: Final = 1.5
"""For the share of waiting, the loop's own work lasts this times as long as bare decoding of a batch."""

_BASE: Final = Recipe(width=640, height=360, frames=150, gop=60, b_frames=3, style="texture")
CODECS: Final = {
    "h264": _BASE,
    "hevc": replace(_BASE, codec="hevc"),
    "vp9": replace(_BASE, codec="vp9", container="webm", options=(("cpu-used", "8"), ("deadline", "realtime"))),
}


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        made: different clips encoded per codec.
        clips: clips per dataset; the different ones over and over.
        batch: clips per batch.
        rounds: how often loader and decoder are measured in turn.
    """

    made: int
    clips: int
    batch: int
    rounds: int


FULL: Final = Size(made=4, clips=96, batch=8, rounds=5)
QUICK: Final = Size(made=2, clips=24, batch=4, rounds=3)


@dataclass(frozen=True)
class Run:
    """One epoch of one of the two.

    Attributes:
        seconds: how long it took.
        cpu: seconds of processor time that the process and its children used meanwhile.
    """

    seconds: float
    cpu: float


@dataclass(frozen=True)
class Measured:
    """One dataset's figures, medians over the rounds.

    Attributes:
        frames: frames of an epoch.
        loader, decoder: frames per second.
        ratio: the median of the rounds' ratios.
        loader_cpu, decoder_cpu: milliseconds of processor time per frame; other load hardly changes it.
        waiting: share of the loop's time spent waiting, when the loop itself does as much as `STEP` says.
        read: bytes read in an epoch over bytes of the shards.
    """

    frames: int
    loader: float
    decoder: float
    ratio: float
    loader_cpu: float
    decoder_cpu: float
    waiting: float
    read: float


def make_clips(folder: Path, made: int) -> dict[str, list[Path]]:
    """Encode the different clips: codec → files."""
    files = {
        codec: [folder / f"{codec}-{seed}.{recipe.container}" for seed in range(made)]
        for codec, recipe in CODECS.items()
    }
    write_missing({path: replace(CODECS[codec], seed=n) for codec in CODECS for n, path in enumerate(files[codec])})
    return files


def make_dataset(folder: Path, name: str, files: Sequence[Path], clips: int) -> str:
    """Pack `clips` copies of the files in turn."""
    inputs = folder / f"{name}-videos"
    inputs.mkdir()
    for number in range(clips):
        file = files[number % len(files)]
        shutil.copy(file, inputs / f"{number:04d}{file.suffix}")
    pack([inputs], folder / name, progress=False)
    return str(folder / name)


class Bench:
    """Loader and bare decoder on one dataset, with the same frames of the same clips in the same batches."""

    def __init__(
        self, path: str, size: Size, transform: sv.Transform, device: str | None, *, isolate: bool = False
    ) -> None:
        make = partial(
            sv.StreamLoader,
            path,
            batch_size=size.batch,
            sampling=SAMPLING,
            transform=transform,
            seed=SEED,
            device=device,
            rank=0,
            world_size=1,
        )
        self._loader = make(isolate=isolate)
        self._other = make() if isolate else None
        self._device_id = find_device(device)
        self._size = size
        self._dataset, self._tar_bytes = self._loader.dataset, sv.Dataset.open(path).manifest.tar_bytes

    def measure(self) -> Measured:
        """Measure in turn, after a round that does not count."""
        decoder = self._decoder()
        try:
            self._stream(0)
            self._decode(decoder, 0)
            loaded, decoded = [], []
            before = self._loader.stats()
            for epoch in range(1, self._size.rounds + 1):
                if epoch % 2:
                    loaded.append(self._stream(epoch))
                    decoded.append(self._decode(decoder, epoch))
                else:
                    decoded.append(self._decode(decoder, epoch))
                    loaded.append(self._stream(epoch))
            after = self._loader.stats()
            step = STEP * statistics.median(run.seconds for run in decoded) / len(self._loader)
            busy = self._stream(self._size.rounds + 1, step=step)
            waited = self._loader.stats().wait_seconds - after.wait_seconds
        finally:
            decoder.close()
            self._loader.close()
            if self._other is not None:
                self._other.close()
        frames = (after.frames - before.frames) // self._size.rounds
        read = (after.bytes_read - before.bytes_read) / self._size.rounds
        return Measured(
            frames=frames,
            loader=frames / statistics.median(run.seconds for run in loaded),
            decoder=frames / statistics.median(run.seconds for run in decoded),
            ratio=statistics.median(bare.seconds / whole.seconds for bare, whole in zip(decoded, loaded, strict=True)),
            loader_cpu=statistics.median(run.cpu for run in loaded) / frames * 1e3,
            decoder_cpu=statistics.median(run.cpu for run in decoded) / frames * 1e3,
            waiting=waited / busy.seconds,
            read=read / self._tar_bytes,
        )

    def _stream(self, epoch: int, *, step: float = 0.0, loader: sv.StreamLoader | None = None) -> Run:
        """An epoch of the loader; after each batch the loop sleeps for `step` seconds, as if a GPU worked."""
        loader = loader or self._loader
        loader.set_epoch(epoch)
        started, cpu = time.perf_counter(), _processor_time()
        for _ in loader:
            if step:
                time.sleep(step)
        self._synchronize()
        return Run(time.perf_counter() - started, _processor_time() - cpu)

    def _decode(self, decoder: CpuDecoder | GpuDecoder, epoch: int) -> Run:
        """The batches of that epoch, decoded one after another; or the epoch of the loader that is compared."""
        if self._other is not None:
            return self._stream(epoch, loader=self._other)
        batches = epoch_slices(self._dataset, SAMPLING, self._size.batch, epoch)
        started, cpu = time.perf_counter(), _processor_time()
        for batch in batches:
            decoder.submit(batch).result()
        self._synchronize()
        return Run(time.perf_counter() - started, _processor_time() - cpu)

    def _decoder(self) -> CpuDecoder | GpuDecoder:
        threads = len(os.sched_getaffinity(0))
        if self._device_id is None:
            return CpuDecoder(threads=threads)
        return GpuDecoder(device_id=self._device_id, threads=threads, max_batch=self._size.batch)

    def _synchronize(self) -> None:
        if self._device_id is not None:
            import torch

            torch.cuda.synchronize(self._device_id)


def epoch_slices(dataset: ClipSource, sampling: FrameSampler, batch: int, epoch: int) -> list[list[EncodedSlice]]:
    """The slices that a loader of one rank, seeded with `SEED`, decodes in an epoch, by batches."""
    clips = np.arange(len(dataset), dtype=np.int64)
    stream = SampleStream((Pool(clips, dataset.clips.shard),), (1,), SEED, "full", block_shards=1)
    plan = Plan(stream, batch, World(0, 1))
    spec = SampleSpec(sampling, seed=SEED, num_random=0)
    access, rest = ShardAccess(dataset, cache=None, limit_bytes=0), plan.epoch(plan.start(epoch))
    steps = [rest.step(n) for n in range(rest.steps)]
    return [one.slices for one in read_batches(dataset, steps, spec, access)]


def _processor_time() -> float:
    """Seconds, of this process and its children."""
    return time.process_time() + sum(map(cpu_seconds, processes_below(os.getpid())))


def run(size: Size, device: str | None, *, isolate: bool = False) -> Report:
    """Make clips and datasets, and measure each codec by itself and all together."""
    measured: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(prefix="streamvid-bench-") as temporary:
        folder = Path(temporary)
        files = make_clips(folder, size.made)
        for codec, chosen in files.items():
            path = make_dataset(folder, codec, chosen, size.clips)
            measured[codec] = Bench(path, size, TRANSFORM, device, isolate=isolate).measure()
        mixed = [file for group in zip(*files.values(), strict=True) for file in group]
        path = make_dataset(folder, "mixed", mixed, size.clips)
        measured["mixed"] = Bench(path, size, TRANSFORM, device, isolate=isolate).measure()
        measured["mixed, untransformed"] = Bench(path, size, BARE, device, isolate=isolate).measure()
    where = "CPU" if find_device(device) is None else "GPU"
    rows: list[Row] = [
        {
            "clips": name,
            "device": where,
            "frames": m.frames,
            "loader, frames/s": m.loader,
            "decoder, frames/s": m.decoder,
            "ratio": m.ratio,
            "loader, CPU ms/frame": m.loader_cpu,
            "decoder, CPU ms/frame": m.decoder_cpu,
            "waiting": m.waiting,
            "read / shards": m.read,
        }
        for name, m in measured.items()
    ]
    name = "frames per second, loader / " + ("one that decodes in threads" if isolate else "bare decoder")
    bar = ISOLATED_BAR if isolate else BAR
    checks = [Check.at_least(f"{name}, {clips}", one.ratio, bar) for clips, one in measured.items()]
    return Report("stream", rows, checks, _notes(size))


def _notes(size: Size) -> list[str]:
    clip = f"{_BASE.width}x{_BASE.height}, {_BASE.frames} frames, {_BASE.fps} a second, a key frame every {_BASE.gop}"
    wanted = f"{SAMPLING.frames} frames of each at {SAMPLING.fps} a second"
    return [
        f"{size.clips} clips of {clip}; {wanted}, in batches of {size.batch}; medians of {size.rounds} rounds.",
        "With --isolate, decoder: the loader that decodes in threads.",
        f"Transform: resize {TRANSFORM.resize}, crop {TRANSFORM.crop}, flip, normalise, {TRANSFORM.dtype}.",
        f"Waiting: share of the loop's time, when each of its steps takes {STEP} times as long as decoding a batch.",
        "Read / shards: bytes read in an epoch over bytes of the shards.",
    ]


def main() -> int:
    """Run as the command line asks."""
    parser = arguments(__doc__)
    parser.add_argument("--device", help="cpu, cuda or cuda:1; default: the GPU if there is one")
    parser.add_argument("--isolate", action="store_true", help="compare decoding in child processes and in threads")
    options: Any = parser.parse_args()
    return finish(run(QUICK if options.quick else FULL, options.device, isolate=options.isolate), options)


if __name__ == "__main__":
    sys.exit(main())
