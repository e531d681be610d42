"""Sequences for super-resolution: DALI's video reader with a crop, as in its example, and pairs of a StreamLoader.

    python -m tools.bench.pairs [--quick] [--device cpu] [--json FILE]

Sequences of three frames, every second one, of 720p H.264 at 30 frames a second; a crop of 512x512, float32, CFHW, in
batches of 8. Of each way the sequences a second of the batches behind the first four; the ways in turn, medians. DALI's
reader makes the large view alone, and runs on a GPU alone.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import streamvid as sv
from tools.bench.report import Report, Row, arguments, finish
from tools.clips import Recipe, write

FRAMES, STRIDE, BATCH, CROP, WARM = 3, 2, 8, 512, 4
RECIPE: Final = Recipe(width=1280, height=720, gop=30, number=False)
HIGH: Final = sv.Transform(crop=CROP, horizontal_flip=0.5, layout="CTHW", dtype="float32")
LOW: Final = sv.Transform(crop=CROP // 2, horizontal_flip=0.5, layout="CTHW", dtype="float32")
WAYS: Final[dict[str, sv.Transform | sv.Views]] = {
    "streamvid, high alone": HIGH,
    "streamvid, low and high": sv.Views(low=LOW, high=HIGH, share=("crop", "flip")),
}
READER: Final = "fn.readers.video, high alone"


def streamed(dataset: Path, transform: sv.Transform | sv.Views, device: str) -> Iterator[Any]:
    """Epochs of a StreamLoader, without end."""
    sampling = sv.TiledWindows(FRAMES, stride=STRIDE, pad="none")
    with sv.StreamLoader(dataset, batch_size=BATCH, sampling=sampling, transform=transform, device=device) as loader:
        while True:
            yield from loader


def read_by_dali(files: Sequence[Path]) -> Iterator[Any]:
    """DALI's example: its reader, a random crop, floats, CFHW."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(batch_size=BATCH, num_threads=4, device_id=0)
    def pipeline() -> Any:
        video = fn.readers.video(
            device="gpu", filenames=[str(path) for path in files], sequence_length=FRAMES, stride=STRIDE,
            random_shuffle=True, initial_fill=16, name="Reader",
        )  # fmt: skip
        x, y = (fn.random.uniform(range=(0.0, 1.0)) for _ in "xy")
        cropped = fn.crop(video, crop=(CROP, CROP), crop_pos_x=x, crop_pos_y=y, dtype=types.FLOAT)
        return fn.transpose(cropped, perm=[3, 0, 1, 2])

    batches = DALIGenericIterator(
        [pipeline()], ["data"], reader_name="Reader", auto_reset=True, last_batch_policy=LastBatchPolicy.PARTIAL
    )
    while True:
        yield from batches


def rate(batches: Iterable[Any], size: int, count: int) -> float:
    """Samples a second, of `count` batches of this size behind the first `WARM`."""
    import torch

    run = iter(batches)
    started = 0.0
    for number in range(WARM + count):
        next(run)
        if number == WARM - 1 or number == WARM + count - 1:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number == WARM - 1:
                started = time.perf_counter()
    seconds = time.perf_counter() - started
    run.close()  # type: ignore[attr-defined]
    return size * count / seconds


def measure(folder: Path, device: str, *, videos: int, frames: int, batches: int, rounds: int) -> list[Row]:
    """A row for each way."""
    (folder / "videos").mkdir()
    recipes = {folder / "videos" / f"{n}.mp4": replace(RECIPE, frames=frames, seed=n) for n in range(videos)}
    with ThreadPoolExecutor(8) as pool:
        files = list(pool.map(write, recipes.values(), recipes))
    dataset = folder / "set"
    sv.pack(files, dataset, progress=False)
    ways: dict[str, Callable[[], Iterator[Any]]] = {
        name: lambda transform=transform: streamed(dataset, transform, device)  # type: ignore[misc]
        for name, transform in WAYS.items()
    }
    if device != "cpu":
        ways = {READER: lambda: read_by_dali(files), **ways}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(rate(way(), BATCH, batches))
            print(f"{name}: {found[name][-1]:.1f} sequences/s", file=sys.stderr, flush=True)
    return [
        {"way": name, "sequences/s": median(rates), "ms a sequence": 1000 / median(rates), "runs": len(rates)}
        for name, rates in found.items()
    ]


def main() -> int:
    """Measure and report."""
    parser = arguments(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    size = {"videos": 8, "frames": 300, "batches": 60, "rounds": 3}
    if options.quick:
        size = {"videos": 4, "frames": 120, "batches": 20, "rounds": 1}
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), options.device, **size)
    return finish(Report("pairs", rows, []), options)


if __name__ == "__main__":
    sys.exit(main())
