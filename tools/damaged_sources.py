"""What packing accepts of damaged videos, and which of that raises when it is loaded, by level of `pack --decode`.

`python -m tools.damaged_sources [COUNT]`
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from streamvid.errors import InputError, StreamvidError
from streamvid.inspection.verify import verify
from streamvid.loader.clip_dataset import ClipDataset
from streamvid.loader.clip_items import At, Item
from streamvid.packing.options import DECODE_LEVELS, DecodeLevel, PackOptions
from streamvid.packing.pack import pack
from streamvid.sampling.windows import Window
from tools.clips import Recipe, write

SECTOR = 512
"""Bytes of a disk's sector, which a lost one leaves zeroed."""
_BASE = Recipe(width=208, height=120, frames=150, gop=50, b_frames=3, style="texture")
RECIPES = (
    _BASE,
    replace(_BASE, gop=250),
    replace(_BASE, codec="hevc"),
    replace(_BASE, codec="vp9", container="webm"),
    replace(_BASE, codec="vp8", container="webm"),
    replace(_BASE, codec="av1", container="webm"),
    replace(_BASE, container="mkv"),
    replace(_BASE, container="ts"),
    replace(_BASE, codec="mpeg4", container="avi", b_frames=0),
    replace(_BASE, codec="mjpeg", container="mov", frames=75),
)


@dataclass(frozen=True)
class Outcome:
    """What became of damaged sources that were packed with one level of `--decode`.

    Attributes:
        accepted: number of clips in the dataset.
        centre: keys of those whose centre window of 16 frames raises when it is loaded.
        whole: keys of those of which any frame raises when it is loaded alone.
        verified: keys of those of which `verify --decode` reports a problem.
        seconds: that packing took.
    """

    accepted: int
    centre: frozenset[str]
    whole: frozenset[str]
    verified: frozenset[str]
    seconds: float


def make_damaged(folder: Path, count: int, recipes: tuple[Recipe, ...] = RECIPES) -> None:
    """Write `count` videos, half of them with three bytes inverted, half with a sector zeroed."""
    folder.mkdir()
    sources: dict[Recipe, bytes] = {}
    for recipe in recipes:
        sources[recipe] = write(recipe, folder / "whole").read_bytes()
    (folder / "whole").unlink()
    rng = np.random.default_rng(0)
    for number in range(count):
        recipe = recipes[number % len(recipes)]
        data = bytearray(sources[recipe])
        if number // len(recipes) % 2:
            start = int(rng.integers(0, len(data) // SECTOR)) * SECTOR
            data[start : start + SECTOR] = bytes(len(data[start : start + SECTOR]))
        else:
            for place in rng.integers(0, len(data), 3):
                data[place] ^= 0xFF
        (folder / f"{number:03d}_{recipe.codec}.{recipe.container}").write_bytes(data)


def try_level(sources: Path, dataset: Path, level: DecodeLevel) -> Outcome:
    """Pack the sources, verify the dataset, and load every clip: its centre, and each frame alone."""
    started = time.perf_counter()
    try:
        pack([sources], dataset, options=PackOptions(compatible_with="any", decode=level), progress=False)
    except InputError:  # none was accepted
        return Outcome(0, frozenset(), frozenset(), frozenset(), 0.0)
    seconds = time.perf_counter() - started
    windows = ClipDataset(dataset, sampling=Window(16, start="center"), on_error="raise")
    rows = windows.dataset.clips
    centre = {key for key in rows.key[:] if not _loads(windows, key)}
    whole = {
        key
        for key, frames in zip(rows.key[:], rows.frames.tolist(), strict=True)
        if not all(_loads(windows, At(key, frames=[frame])) for frame in range(frames))
    }
    problems = verify(dataset, decode=True, progress=False).problems
    return Outcome(
        len(rows), frozenset(centre), frozenset(whole), frozenset(problem.clip for problem in problems), seconds
    )


def _loads(dataset: ClipDataset, item: Item) -> bool:
    try:
        dataset[item]
    except StreamvidError:
        return False
    return True


def main() -> None:
    """Print the outcome of every level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=100)
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as folder:
        make_damaged(Path(folder) / "sources", count)
        for level in DECODE_LEVELS:
            found = try_level(Path(folder) / "sources", Path(folder) / level, level)
            print(
                f"--decode {level}: {found.accepted} of {count} accepted in {found.seconds:.1f} s; of "
                f"{len(found.centre)} the centre window raises, of {len(found.whole)} some frame; "
                f"verify --decode reports {len(found.verified)}"
            )


if __name__ == "__main__":
    main()
