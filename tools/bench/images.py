"""Folders of JPEGs: a StreamLoader on either device, DALI by hand, and Pillow in PyTorch's DataLoader.

    python -m tools.bench.images [--quick] [--device cpu] [--json FILE]

JPEGs of 500x375 (4:2:0, quality 90; ImageNet's usual size) become batches of 128, float32: a random resized crop to
224x224, a flip, normalised. Of each way the images a second of the batches behind the first four; the ways in turn,
medians. The first batch of each StreamLoader is compared with the CPU's: levels that its values are apart, on average.
DALI by hand is `fn.readers.file`, `fn.decoders.image`, `fn.random_resized_crop`, `fn.crop_mirror_normalize`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

import streamvid as sv
from streamvid.loader.engine import ENGINES, EngineName
from tools.bench.pairs import rate
from tools.bench.report import Check, Report, Row, arguments, finish

BATCH, SIDE, HEIGHT, WIDTH = 128, 224, 375, 500
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
AREA: Final = (0.08, 1.0)
APART: Final = 1.0
TRANSFORM: Final = sv.Transform(random_resized_crop=AREA, crop=SIDE, horizontal_flip=0.5, mean=MEAN, std=STD)


def write_images(folder: Path, count: int) -> None:
    """JPEGs of noise that is smooth over some pixels, in ten folders: 70 to 90 kB each, as photographs are."""
    from PIL import Image

    def write(number: int) -> None:
        draw = np.random.default_rng(number)
        coarse = Image.fromarray(draw.integers(0, 256, (HEIGHT // 5, WIDTH // 5, 3), dtype=np.uint8))
        pixels = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(np.int16)
        pixels += draw.integers(-8, 9, pixels.shape, dtype=np.int16)
        path = folder / f"class{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(count)))


def streamed(dataset: Path, device: str, threads: int, engine: EngineName) -> Iterator[Any]:
    """Epochs of a StreamLoader, without end."""
    options: dict[str, Any] = {"device": device, "num_threads": threads, "engine": engine}
    with sv.StreamLoader(dataset, batch_size=BATCH, sampling=sv.Window(1), transform=TRANSFORM, **options) as loader:
        while True:
            yield from loader


def by_dali(folder: Path, device: str, threads: int) -> Iterator[Any]:
    """DALI's own graph for ImageNet."""
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(batch_size=BATCH, num_threads=threads, device_id=None if device == "cpu" else 0)
    def pipeline() -> tuple[Any, Any]:
        encoded, label = fn.readers.file(file_root=str(folder), random_shuffle=True, name="Reader")
        images = fn.decoders.image(encoded, device="cpu" if device == "cpu" else "mixed", output_type=types.RGB)
        images = fn.random_resized_crop(images, size=(SIDE, SIDE), random_area=AREA)
        mean, std = ([255 * value for value in values] for values in (MEAN, STD))
        made = fn.crop_mirror_normalize(images, mirror=fn.random.coin_flip(), mean=mean, std=std, dtype=types.FLOAT)
        return made, label

    batches = DALIGenericIterator([pipeline()], ["image", "label"], reader_name="Reader", auto_reset=True)
    while True:
        yield from batches


class Files:
    """PyTorch's usual Dataset: Pillow decodes, crops and resizes."""

    def __init__(self, folder: Path) -> None:
        self._files = sorted(folder.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: int) -> Any:
        import torch
        from PIL import Image

        draw = np.random.default_rng()
        image = Image.open(self._files[number]).convert("RGB")
        area, ratio = draw.uniform(*AREA) * HEIGHT * WIDTH, np.exp(draw.uniform(np.log(3 / 4), np.log(4 / 3)))
        width, height = min(WIDTH, (area * ratio) ** 0.5), min(HEIGHT, (area / ratio) ** 0.5)
        left, top = draw.uniform(0, WIDTH - width), draw.uniform(0, HEIGHT - height)
        box = (left, top, left + width, top + height)
        pixels = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box))
        pixels = pixels[:, ::-1] if draw.random() < 0.5 else pixels
        made = torch.from_numpy(np.array(pixels)).permute(2, 0, 1).float().div_(255)
        return made.sub_(torch.tensor(MEAN)[:, None, None]).div_(torch.tensor(STD)[:, None, None])


def by_workers(folder: Path, device: str, threads: int) -> Iterator[Any]:
    """Pillow in as many workers as the others have threads; batches go to the GPU if there is one."""
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(
        Files(folder),  # type: ignore[arg-type]
        batch_size=BATCH, shuffle=True, num_workers=threads, persistent_workers=True, pin_memory=device != "cpu",
    )  # fmt: skip
    while True:
        for batch in loader:
            yield batch.to(device, non_blocking=True)


def measure(folder: Path, device: str, *, images: int, batches: int, rounds: int, threads: int) -> list[Row]:
    """A row for each way."""
    write_images(folder / "images", images)
    sv.pack(folder / "images", folder / "set", images=True, labels="folders", progress=False)
    ways: dict[str, Callable[[], Iterator[Any]]] = {}
    for engine in ENGINES if device == "cpu" else ENGINES[:1]:
        ways[f"StreamLoader, {device}, engine={engine!r}"] = partial(streamed, folder / "set", device, threads, engine)
    ways[f"DALI by hand, {device}"] = partial(by_dali, folder / "images", device, threads)
    ways["Pillow in a DataLoader"] = lambda: by_workers(folder / "images", device, threads)
    # By one thread: where there is a GPU, nvImageCodec takes seconds to start for each.
    reference = next(streamed(folder / "set", "cpu", 1, "default"))
    found: dict[str, list[float]] = {name: [] for name in ways}
    apart: dict[str, float] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            running = way()
            if "StreamLoader" in name and name not in apart:
                apart[name] = levels_apart(next(running), reference)
            found[name].append(rate(running, BATCH, batches))
            print(f"{name}: {found[name][-1]:.0f} images/s", file=sys.stderr, flush=True)
    return [
        {
            "way": name, "images/s": median(rates), "threads": threads,
            "levels apart": f"{apart[name]:.2f}" if name in apart else "",
        }
        for name, rates in found.items()
    ]  # fmt: skip


def levels_apart(batch: Any, reference: Any) -> float:
    """Mean difference of two batches of the same clips, in levels of 255."""
    import torch

    assert torch.equal(batch["clip"].cpu(), reference["clip"].cpu())
    difference = (batch["video"].cpu() - reference["video"].cpu()).abs().mean(dim=(0, 2, 3, 4))
    return float((difference * 255 * torch.tensor(STD)).mean())


def main() -> int:
    """Measure and report."""
    parser = arguments(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=min(16, len(os.sched_getaffinity(0))))
    options = parser.parse_args()
    size = {"images": 4096, "batches": 60, "rounds": options.rounds}
    if options.quick:
        size = {"images": 1024, "batches": 10, "rounds": 1}
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), options.device, threads=options.threads, **size)
    apart = [(str(row["way"]), float(row["levels apart"])) for row in rows if row["levels apart"]]
    checks = [Check.at_most(f"levels apart, {way}", value, APART) for way, value in apart]
    return finish(Report("images", rows, checks), options)


if __name__ == "__main__":
    sys.exit(main())
