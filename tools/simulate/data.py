"""The dataset of the lives: small, packed by the product, before and after an append; and what each packet in it is."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from streamvid.dataset.dataset import Dataset
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from tests.support.packed import packing_inline
from tools.clips import Recipe, write
from tools.simulate.store import SimulatedFileSystem

_SIZES = ((64, 64), (96, 64), (64, 96))
_CLIPS = (31, 17)
"""In the dataset at first, and appended."""


@dataclass(frozen=True)
class Data:
    """A dataset before and after an append, on a disk and in the store.

    Attributes:
        local, remote: by version.
        packets: key and frame of each packet, by its content.
    """

    local: tuple[Dataset, ...]
    remote: tuple[Dataset, ...]
    packets: dict[bytes, tuple[str, int]]


@cache
def data() -> Data:
    """The dataset; made once in a process."""
    local, remote, numbers = [], [], itertools.count()
    with tempfile.TemporaryDirectory() as folder, packing_inline():
        root = Path(folder)
        for version, count in enumerate(_CLIPS):
            videos = root / f"videos{version}"
            videos.mkdir()
            for number in range(count):
                width, height = _SIZES[number % 3]
                recipe = Recipe(
                    codec="mjpeg", container="avi", width=width, height=height, frames=2 + number % 4, gop=1, b_frames=0
                )
                # Noise of its own: no two packets are equal.
                random = np.random.default_rng(next(numbers))
                pictures = [random.integers(0, 99, (height, width, 3), np.uint8) for _ in range(recipe.frames)]
                write(recipe, videos / f"{version}{number:02d}.avi", pictures)
            options = PackOptions("any")
            pack([videos], root / "set", shard_size=60_000, options=options, progress=False, append=version > 0)
            local.append(Dataset.open(root / "set"))
            for path in (root / "set").rglob("*"):
                if path.is_file():
                    name = f"set{version}/{path.relative_to(root / 'set')}"
                    SimulatedFileSystem.objects[name] = path.read_bytes()
            remote.append(Dataset.open(f"sim://set{version}"))
        for dataset in (*local, *remote):
            # Blocks of keys are read once and kept: not in the first life alone, whose replay would have other calls.
            for row in range(len(dataset)):
                dataset.key(row)
        return Data(tuple(local), tuple(remote), _packets(local[-1]))


def _packets(dataset: Dataset) -> dict[bytes, tuple[str, int]]:
    packets: dict[bytes, tuple[str, int]] = {}
    for row in range(len(dataset)):
        index, origin = dataset.index(row), int(dataset.clips.mp4_offset[row])
        shard = Path(dataset.shard_path(int(dataset.clips.shard[row]))).read_bytes()
        for frame, (offset, size) in enumerate(zip(index.offset.tolist(), index.size.tolist(), strict=True)):
            packets[shard[origin + offset : origin + offset + size]] = dataset.key(row), frame
    return packets
