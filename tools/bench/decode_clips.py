"""The clips of `tools.bench.decode`, made once and kept where they are asked for again."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tools.clips import Recipe, write

FRAMES: Final = 400
SHORT: Final = 120
"""Frames of clips of which there are many."""
MIXED_GOP: Final = 60
KINDS: Final = {
    "h264 720p": Recipe(codec="h264", width=1280, height=720),
    "hevc 720p": Recipe(codec="hevc", width=1280, height=720),
    "h264 1080p": Recipe(codec="h264", width=1920, height=1080),
    "hevc 1080p": Recipe(codec="hevc", width=1920, height=1080),
    "hevc10 640x272": Recipe(codec="hevc", width=640, height=272, pix_fmt="yuv420p10le"),
}
SIZES: Final = (
    (1280, 720), (1152, 648), (1024, 576), (960, 540), (848, 480), (768, 432), (640, 480), (640, 360),
)  # fmt: skip
"""Of the mixed clips."""
_SETS: Final = list(itertools.product((1, 2, 3, 4), (0, 1), (0, 1), ("4.0", "4.2")))
"""Reference frames, arithmetic coding, large transform, level: each combination is another parameter set."""


def names_of_sets() -> list[str]:
    """Clips of one size and GOP with 32 parameter sets."""
    return [f"set {number}" for number in range(len(_SETS))]


def names_of_sizes() -> list[str]:
    """Clips of 8 sizes."""
    return [f"size {width}x{height}" for width, height in SIZES]


def recipe(name: str) -> Recipe:
    """What a clip is made of: "h264 720p 15" is a kind and its GOP; "set 3" and "size 640x360" are the mixed ones."""
    what, _, which = name.rpartition(" ")
    base = Recipe(codec="h264", width=1280, height=720, frames=SHORT, gop=MIXED_GOP, b_frames=2, style="texture")
    if what == "set":
        references, cabac, transform, level = _SETS[int(which)]
        params = {"ref": references, "cabac": cabac, "8x8dct": transform, "level": level}
        return replace(base, params=tuple((key, str(value)) for key, value in params.items()))
    if what == "size":
        width, height = which.split("x")
        return replace(base, width=int(width), height=int(height))
    return replace(KINDS[what], frames=FRAMES, gop=int(which), b_frames=2, style="texture")


def source(name: str, folder: Path) -> Path:
    """The clip's file; made if it is not there."""
    path = folder / f"{name.replace(' ', '-')}.mp4"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            write(recipe(name), Path(draft) / path.name).replace(path)
    return path


def make_all(names: Sequence[str], folder: Path) -> None:
    """Make what is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: source(name, folder), names))


def stored(name: str, folder: Path, work: Path) -> StoredClip:
    """The clip as a dataset keeps it."""
    inner = work / name.replace(" ", "-")
    inner.mkdir()
    return store_clip(source(name, folder), inner)
