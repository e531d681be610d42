"""Peak GPU memory of `sv.dali.pipeline` with DALI's dynamic executor and without.

    python -m tools.bench.dali_memory

Each runs in a process of its own, over the same dataset: what the device has in use beside what it had before, sampled
every 5 ms while batches are taken.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import streamvid as sv
from tools.bench.decode_rows import MemoryWatch
from tools.clips import Recipe, write

_FILMS = 4
"""Clips that are encoded; the others are copies."""
TRANSFORM = sv.Transform(
    resize=256, crop=224, horizontal_flip=0.5, brightness=0.4, saturation=0.4, blur=0.5, mean=0.45, std=0.225,
    dtype="float16",
)  # fmt: skip


def measure(dataset: str, *, dynamic: bool, batch_size: int, steps: int) -> tuple[int, float]:
    """Bytes at the peak, and frames a second."""
    import torch

    torch.zeros(1, device="cuda")
    with MemoryWatch() as memory:
        pipe = sv.dali.pipeline(
            dataset, batch_size=batch_size, sampling=sv.Window(16, stride=2), transform=TRANSFORM, device="cuda",
            exec_dynamic=dynamic,
        )  # fmt: skip
        batches = sv.dali.iterator(pipe, auto_reset=True)
        taken, started = 0, time.perf_counter()
        while taken < steps:
            for (batch,) in batches:
                taken += 1
                batch["video"].sum()
                if taken == steps // 4:
                    torch.cuda.synchronize()
                    started = time.perf_counter()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    return memory.taken, 16 * batch_size * (taken - steps // 4) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--dynamic", choices=["yes", "no"], help="measure one, here")
    parser.add_argument("--dataset")
    given = parser.parse_args()
    if given.dynamic:
        peak, rate = measure(
            given.dataset, dynamic=given.dynamic == "yes", batch_size=given.batch_size, steps=given.steps
        )
        print(f"| exec_dynamic={given.dynamic == 'yes'} | {peak / 2**20:,.0f} MiB | {rate:,.0f} frames/s |")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "videos").mkdir()
        recipe = Recipe(width=1280, height=720, frames=60, gop=30)
        for n in range(2 * given.batch_size):
            if n < _FILMS:
                write(replace(recipe, seed=n), path / "videos" / f"{n}.mp4")
            else:
                shutil.copy(path / "videos" / f"{n % _FILMS}.mp4", path / "videos" / f"{n}.mp4")
        sv.pack([path / "videos"], path / "set", progress=False)
        for dynamic in ("yes", "no") * given.repeat:
            options = ["--dataset", path / "set", "--batch-size", str(given.batch_size), "--steps", str(given.steps)]
            command = [sys.executable, "-m", "tools.bench.dali_memory", "--dynamic", dynamic, *options]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
