"""Frames of any clip by number or time, a Sampler that names frames, and batches decoded on the GPU if there is one.

Run it as:

    python examples/random_access.py datasets/mine --batches 4 --workers 2
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

import streamvid as sv


class Moments:
    """A Sampler: of random clips some frames, a second apart, from a random place on.

    Args:
        dataset: whose clips.
        samples: in an epoch.
        frames: in a sample; a clip of fewer seconds gives fewer, and its batch pads them.
    """

    def __init__(self, dataset: sv.ClipDataset, *, samples: int, frames: int) -> None:
        self._seconds = dataset.dataset.clips.seconds
        self._samples, self._frames = samples, frames
        self._epoch = 0

    def __len__(self) -> int:
        return self._samples

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[sv.At]:
        random = np.random.default_rng(self._epoch)
        for _ in range(self._samples):
            row = int(random.integers(len(self._seconds)))
            end = float(self._seconds[row])
            start = random.uniform(0, max(end - self._frames, end / 2))
            instants = start + np.arange(self._frames)
            yield sv.At(row, seconds=instants[instants < 0.999 * end])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="a packed dataset: a folder or a URL")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--frames", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", help="cuda or cpu; default: the GPU if there is one")
    options = parser.parse_args()

    transform = sv.Transform(resize=(224, 224), mean=(0.45,) * 3, std=(0.225,) * 3)
    dataset = sv.ClipDataset(options.dataset, sampling=sv.Uniform(options.frames), transform=transform)

    one = dataset.get(0, frames=[0])
    print(f"the first frame of {one['key']}: {tuple(one['video'].shape)} {one['video'].dtype}")

    sampler = Moments(dataset, samples=options.batches * options.batch_size, frames=options.frames)
    with sv.GpuDataLoader(
        dataset,
        batch_size=options.batch_size,
        sampler=sampler,
        num_workers=options.workers,
        device=options.device,
    ) as loader:
        for batch in loader:
            frames = int(batch["mask"].sum())
            print(f"{tuple(batch['video'].shape)} on {batch['video'].device}, {frames} frames, from {batch['key'][0]}")
        print(loader.stats())


if __name__ == "__main__":
    main()
