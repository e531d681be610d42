"""streamvid's two loaders as ways to single frames of long videos, for `tools.bench.random_access`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from tools.bench.baselines import BATCH, CORES, SIDE
from tools.bench.sources import FPS
from tools.bench.timing import FRAMES, STRIDE, FrameNumbers, Way, random_clips

_MOST_WORKERS: Final = 4
_SAMPLED: Final = 64
"""Clips of which the packets are counted."""


def stream_loader(dataset: Path, length: int, device: str, clips: int) -> Way:
    """A StreamLoader, which draws as many random windows itself: an epoch for every run."""
    import streamvid as sv

    size = min(BATCH, clips)
    loader = sv.StreamLoader(
        sv.Mix([(str(dataset), 1)]),
        batch_size=size,
        steps_per_epoch=-(-clips // size),
        sampling=sv.Window(FRAMES, stride=STRIDE),
        transform=_transform(),
        device=device,
    )
    times = _Times()
    return Way(
        run=lambda _: times.all_of(loader),
        few=clips,
        first=lambda: times.first,
        packets=_packets(sv.ClipDataset(dataset), length),
        draws=True,
        numbers=lambda: times.numbers,
    )


def gpu_loader(dataset: Path, length: int, device: str, clips: int) -> Way:
    """A GpuDataLoader over a ClipDataset, which is asked for just those frames."""
    import streamvid as sv

    opened = sv.ClipDataset(dataset, transform=_transform())
    wanted: list[Any] = []
    loader = sv.GpuDataLoader(
        opened,
        batch_size=min(BATCH, clips),
        sampler=wanted,
        num_workers=min(_MOST_WORKERS, CORES),
        persistent_workers=True,
        device=device,
    )
    times = _Times()

    def run(numbers: FrameNumbers) -> Any:
        wanted[:] = [sv.At(0, frames=frames) for frames in numbers]
        return times.all_of(loader)

    return Way(run=run, few=clips, first=lambda: times.first, packets=_packets(opened, length))


class _Times:
    """Iterates over a loader.

    Attributes:
        first: when the first batch of the last run came, in seconds.
        numbers: of the frames of the very first clip.
    """

    def __init__(self) -> None:
        self.first, self.numbers = 0.0, list[int]()

    def all_of(self, loader: Any) -> list[Any]:
        """The frames of all batches, on the host."""
        started = time.perf_counter()
        frames = []
        for batch in loader:
            frames.append(batch["video"].cpu())
            self.numbers = self.numbers or (batch["pts"][0].cpu() * FPS).round().int().tolist()
            if len(frames) == 1:
                self.first = time.perf_counter() - started
        return frames


def _transform() -> Any:
    import streamvid as sv

    return sv.Transform(resize=(SIDE, SIDE), dtype="uint8", layout="THWC")


def _packets(clips: Any, length: int) -> float:
    """Packets that a clip at a random place needs, on average."""
    import streamvid as sv

    wanted = random_clips(length, _SAMPLED, 4)
    return sum(len(clips.encoded(sv.At(0, frames=frames)).sizes) for frames in wanted) / len(wanted)
