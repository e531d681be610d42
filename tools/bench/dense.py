"""Dense streaming on a CPU: random windows of 16 frames at 8 a second, resized to 256, cropped to 224, normalised.

A StreamLoader beside PyTorch's DataLoader with torchcodec, and with PyAV, each with as many threads or workers as there
are cores, on the same windows, with the same transform (by PyTorch's antialiased resize, what torchvision calls). Ways
take turns, and what counts is the median of the turns' ratios, which other programs change less than rates; the turn of
a StreamLoader has an epoch before that is not timed, as it begins an epoch while it ends the one before. Frames are
compared before anything is timed. Then a StreamLoader alone, by the batches of an epoch. torchcodec needs FFmpeg's
libraries; without them its row is missing.

    python -m tools.bench.dense [--quick] [--size 640x360] [--cores 4] [--json FILE]
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from operator import truediv
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import streamvid as sv
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from tools.bench.report import Check, Report, arguments, finish
from tools.clips import Recipe, write

FPS: Final = 30
FRAMES: Final = 16
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCH: Final = 8
TRANSFORM: Final = sv.Transform(resize=256, crop=224, random_crop=False, mean=MEAN, std=STD, dtype="float16")
EPOCHS: Final = (1, 2, 4, 8, 32)
"""Batches of an epoch."""
_MADE: Final = 8
"""Different videos of a size."""


@dataclass(frozen=True)
class Size:
    """Videos of one kind.

    Attributes:
        epochs, rounds: timed epochs of a turn, and turns.
        bar: how many times the better of the others is asked for.
    """

    width: int
    height: int
    gop: int
    epochs: int
    rounds: int
    bar: float

    def __str__(self) -> str:
        return f"{self.width}x{self.height}, GOP {self.gop}"


SIZES: Final = {"640x360": Size(640, 360, 60, 2, 5, 1.5), "1280x720": Size(1280, 720, 250, 1, 3, 2.0)}


@dataclass(frozen=True)
class Window:
    """A clip's file, and the numbers of its frames."""

    path: str
    frames: list[int]


class Windows(Dataset[torch.Tensor]):
    """Samples float16 [3, 16, 224, 224]."""

    def __init__(self, windows: Sequence[Window], decode: Callable[[Window], torch.Tensor]) -> None:
        self._windows, self._decode = windows, decode

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, n: int) -> torch.Tensor:
        frames = self._decode(self._windows[n])
        height, width = frames.shape[2:]
        short = min(height, width)
        size = [round(height * 256 / short), round(width * 256 / short)]
        frames = torch.ops.aten._upsample_bilinear2d_aa(frames, size, False)
        top, left = round((size[0] - 224) / 2), round((size[1] - 224) / 2)
        cut = frames[:, :, top : top + 224, left : left + 224].float().div_(255)
        mean, std = (torch.tensor(one).view(3, 1, 1) for one in (MEAN, STD))
        shown: torch.Tensor = cut.sub_(mean).div_(std).half().permute(1, 0, 2, 3)
        return shown


def by_torchcodec(window: Window) -> torch.Tensor:
    """uint8 [16, 3, height, width]."""
    from torchcodec.decoders import VideoDecoder

    decoder = VideoDecoder(window.path, num_ffmpeg_threads=1, seek_mode="approximate")
    frames: torch.Tensor = decoder.get_frames_at(window.frames).data
    return frames


def by_pyav(window: Window) -> torch.Tensor:
    """uint8 [16, 3, height, width]."""
    import av

    made = []
    with av.open(window.path) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        assert stream.time_base is not None
        container.seek(round(window.frames[0] / FPS / stream.time_base), stream=stream)
        wanted = set(window.frames)
        for frame in container.decode(stream):
            number = round(float(frame.time or 0) * FPS)
            if number in wanted:
                made.append(frame.to_ndarray(format="rgb24"))
            if number >= window.frames[-1]:
                break
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


OURS: Final = "StreamLoader"
OTHERS: Final = {"DataLoader, torchcodec": by_torchcodec, "DataLoader, PyAV": by_pyav}


def windows_of(loader: sv.StreamLoader, videos: Path) -> tuple[list[Window], dict[str, torch.Tensor]]:
    """The windows of an epoch, and the tensors of its first batch by file."""
    windows, first = list[Window](), dict[str, torch.Tensor]()
    for batch in loader:
        for key, seconds, video in zip(batch["key"], batch["pts"], batch["video"], strict=True):
            path = str(videos / f"{key}.mp4")
            windows.append(Window(path, [round(float(at) * FPS) for at in seconds]))
            if len(first) < BATCH:
                first[path] = video.clone()
    return windows, first


def clock() -> tuple[float, float]:
    """Seconds of CPU that this process has used, and that its cores have been idle."""
    own, idle = resource.getrusage(resource.RUSAGE_SELF), 0.0
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in names:
            idle += (int(ticks[3]) + int(ticks[4])) / os.sysconf("SC_CLK_TCK")
    return own.ru_utime + own.ru_stime, idle


def turn(loader: Any, *, before: int, epochs: int) -> tuple[float, int, float]:
    """Epochs in a row, after some that are not counted: seconds, clips, and what part of the cores' time that other
    programs left this process used."""
    for _ in range(before):
        for _batch in loader:
            pass
    began, at = time.perf_counter(), clock()
    count = sum(len(batch["video"] if isinstance(batch, dict) else batch) for _ in range(epochs) for batch in loader)
    took = time.perf_counter() - began
    own, idle = (now - then for now, then in zip(clock(), at, strict=True))
    return took, count, own / (own + idle)


@cache
def why_not(name: str) -> str:
    """Why a way cannot be taken; "" if it can."""
    try:
        if name == "DataLoader, torchcodec":
            import torchcodec.decoders  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        return str(error).splitlines()[0][:100]
    return ""


def make(size: Size, folder: Path, clips: int) -> tuple[Path, Path]:
    """Videos, and a dataset of them."""
    videos, dataset = folder / f"{size.height}", folder / f"{size.height}.set"
    videos.mkdir()
    recipes = [
        Recipe(
            width=size.width, height=size.height, frames=10 * FPS, gop=size.gop, b_frames=3, style="texture", seed=seed
        )
        for seed in range(_MADE)
    ]
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        list(pool.map(write, recipes, [videos / f"{n}.mp4" for n in range(_MADE)]))
    for n in range(_MADE, clips):
        (videos / f"{n}.mp4").write_bytes((videos / f"{n % _MADE}.mp4").read_bytes())
    pack([videos], dataset, options=PackOptions("any"), progress=False)
    return videos, dataset


def measure(size: Size, options: Any, folder: Path) -> tuple[list[dict[str, Any]], list[Check]]:
    """The rows of one kind of video."""
    rounds = 1 if options.quick else size.rounds
    videos, dataset = make(size, folder, 16 if options.quick else 64)
    open_loader = partial(
        sv.StreamLoader, dataset, batch_size=BATCH, sampling=sv.Window(FRAMES, fps=8), transform=TRANSFORM,
        device="cpu", num_threads=options.cores, shuffle=False,
    )  # fmt: skip
    with open_loader() as loader:
        windows, first = windows_of(loader, videos)
    ways: dict[str, Any] = {OURS: open_loader()}
    far = {}
    for other, decode in OTHERS.items():
        if reason := why_not(other):
            print(f"{other}: {reason}")
            continue
        samples = Windows(windows, decode)
        spread = torch.tensor(STD).view(3, 1, 1, 1) * 255
        far[other] = statistics.mean(
            float(((samples[n].float() - first[windows[n].path].float()) * spread).abs().mean()) for n in range(BATCH)
        )
        ways[other] = DataLoader(
            samples, batch_size=BATCH, num_workers=options.cores, persistent_workers=True, prefetch_factor=2
        )
        turn(ways[other], before=1, epochs=0)
    rates: dict[str, list[float]] = {way: [] for way in ways}
    busy = []
    for _ in range(rounds):
        for way, loader in ways.items():
            took, count, share = turn(loader, before=int(way == OURS), epochs=size.epochs)
            assert count == size.epochs * len(windows)
            rates[way].append(FRAMES * count / took)
            if way == OURS:
                busy.append(share)
                time.sleep(0.5)  # what it has begun of the next epoch is not to slow the next way down
    ways.clear()
    rows: list[dict[str, Any]] = [
        {
            "videos": str(size),
            "way": way,
            "frames/s": round(statistics.median(found)),
            "of StreamLoader's": round(statistics.median(map(truediv, found, rates[OURS])), 2),
            "cores busy": round(statistics.median(busy), 2) if way == OURS else "",
            "levels off": round(far[way], 2) if way in far else "",
        }
        for way, found in rates.items()
    ]
    times = statistics.median(ours / max(others) for ours, *others in zip(*rates.values(), strict=True))
    checks = []
    for batches in EPOCHS[:1] if options.quick else EPOCHS:
        with open_loader(shuffle=True, steps_per_epoch=batches) as loader:
            epochs = (16 if options.quick else 32) // batches or 1
            took, count, share = turn(loader, before=1 + (batches == 1), epochs=epochs)
        way, rate = f"StreamLoader, epochs of {batches}", FRAMES * count / took
        rows.append({**rows[0], "way": way, "frames/s": round(rate), "cores busy": round(share, 2)})
        rows[-1]["of StreamLoader's"] = round(rate / statistics.median(rates[OURS]), 2)
        checks.append(Check.at_least(f"{size}: share of the cores that is busy in epochs of {batches}", share, 0.95))
    return rows, [
        Check.at_least(f"{size}: times the better of the others", times, size.bar),
        Check.at_least(f"{size}: share of the cores that is busy", statistics.median(busy), 0.95),
        *checks,
        Check.at_most(f"{size}: levels of 255 that frames are off on average", max(far.values()), 3.0),
    ]


def main() -> int:
    """Run it."""
    parser = arguments(__doc__)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="threads and workers")
    parser.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES), help="videos of which size")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    checks: list[Check] = []
    with tempfile.TemporaryDirectory() as folder:
        for size in options.size:
            made, promised = measure(SIZES[size], options, Path(folder))
            rows += made
            checks += promised
    notes = [
        "Medians of turns, and of their ratios. Frames differ by what swscale rounds, and by the order of the steps."
    ]
    return finish(Report("dense", rows, checks, notes), options)


if __name__ == "__main__":
    sys.exit(main())
