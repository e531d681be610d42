"""Clips to learn from: textures that drift left, right, up or down. Nothing but the motion tells the classes apart.

`python -m tools.demo_clips FOLDER` makes the demo's 24 clips of many formats; with `--clips 160 --size small` it makes
a uniform set, split into FOLDER/train and FOLDER/held-out, for examples/train_classifier.py.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from tools.clips import write
from tools.pictures import Image, smooth_noise
from tools.recipes import Recipe

# Class → the way the texture goes, as (y, x).
DIRECTIONS = {"down": (1, 0), "left": (0, -1), "right": (0, 1), "up": (-1, 0)}
HELD_OUT = 5
"""One in so many clips of the uniform set is held out."""

_NTSC = Fraction(30000, 1001)


@dataclass(frozen=True)
class DemoClip:
    """A clip, its class, and what is in it."""

    name: str
    recipe: Recipe
    label: str

    @property
    def file(self) -> str:
        """The file's name."""
        return f"{self.name}.{self.recipe.container}"

    @property
    def caption(self) -> str:
        """A sentence about it."""
        return f"a texture that moves {self.label}, {self.recipe.width}x{self.recipe.height} {self.recipe.codec}"


def demo_clips() -> list[DemoClip]:
    """24 clips: codecs, containers, sizes, frame rates and lengths mixed, classes in turn."""
    h264, hevc = Recipe(b_frames=3, gop=48), Recipe(codec="hevc", b_frames=3, gop=48)
    vp9 = Recipe(codec="vp9", container="webm", gop=60)
    kinds = [
        replace(h264, width=320, height=240, fps=Fraction(24), frames=96),
        replace(h264, width=640, height=360, fps=Fraction(25), frames=75),
        replace(hevc, width=320, height=180, fps=Fraction(24), frames=48),
        replace(vp9, width=176, height=144, fps=Fraction(12), frames=48),
        replace(h264, width=180, height=320, fps=_NTSC, frames=90, container="mov"),
        replace(hevc, width=426, height=240, fps=_NTSC, frames=60, container="mkv"),
        replace(h264, width=176, height=144, fps=Fraction(60), frames=240, gop=120, b_frames=7),
        replace(vp9, width=320, height=240, fps=Fraction(25), frames=50),
        replace(h264, width=256, height=256, fps=Fraction(25), frames=5),
        replace(h264, width=320, height=240, fps=Fraction(24), frames=72, jitter=11),
        replace(hevc, width=256, height=144, fps=Fraction(12), frames=96),
        replace(h264, width=320, height=180, fps=_NTSC, frames=60, container="mkv", open_gop=True, gop=24),
        replace(h264, width=224, height=168, fps=Fraction(12), frames=96, audio=True),
        replace(vp9, width=256, height=144, fps=Fraction(24), frames=48, container="mp4"),
        replace(h264, width=320, height=240, fps=Fraction(25), frames=50, rotation=90),
        replace(hevc, width=240, height=320, fps=Fraction(25), frames=50, pix_fmt="yuv420p10le"),
        replace(h264, width=352, height=288, fps=Fraction(25), frames=75, container="ts"),
        replace(vp9, width=160, height=128, fps=_NTSC, frames=60),
        replace(h264, width=320, height=240, fps=Fraction(24), frames=60, trim=12),
        replace(hevc, width=176, height=144, fps=Fraction(60), frames=120, open_gop=True, gop=30),
        replace(h264, width=480, height=270, fps=Fraction(24), frames=24, gop=250),
        replace(vp9, width=200, height=150, fps=Fraction(12), frames=24, container="mkv"),
        replace(hevc, width=320, height=240, fps=_NTSC, frames=90, tag="hvc1"),
        replace(h264, width=320, height=180, fps=Fraction(25), frames=60, b_frames=0),
    ]
    labels = list(DIRECTIONS)
    return [
        DemoClip(f"{i:02d}-{kind.codec}", replace(kind, number=False, seed=i), labels[(i + i // 4) % 4])
        for i, kind in enumerate(kinds)
    ]


def uniform_clips(count: int, width: int, height: int) -> list[DemoClip]:
    """A set all alike, of 2 seconds each, to train on."""
    recipe = Recipe(width=width, height=height, fps=Fraction(12), frames=24, gop=12, number=False)
    labels = list(DIRECTIONS)
    return [DemoClip(f"{i:05d}", replace(recipe, seed=1000 + i), labels[i % 4]) for i in range(count)]


def motion_painter(clip: DemoClip) -> Callable[[int], Image]:
    """What the clip shows: a window onto a texture that drifts, before a ground that stays.

    Colours, ground, window, texture and speed are drawn from the seed, whatever the class.
    """
    width, height = clip.recipe.width, clip.recipe.height
    rng = np.random.default_rng(clip.recipe.seed)
    ground = _coloured(rng, smooth_noise(rng, width, height, cells=int(rng.integers(2, 8))))
    texture = _coloured(rng, smooth_noise(rng, width, height, cells=int(rng.integers(7, 12))))
    top, left = (int(rng.uniform(0, 0.15) * side) for side in (height, width))
    bottom, right = (int(rng.uniform(0.85, 1) * side) for side in (height, width))
    y, x = DIRECTIONS[clip.label]
    if clip.recipe.rotation == 90:
        # A player turns it clockwise: what shall go up on screen must go left in the file.
        y, x = -x, y
    ticks, tick = clip.recipe.frame_ticks(), float(clip.recipe.time_base)
    # In shorter sides per second: at 8 frames per second a few pixels of a small picture, less than a blob's size.
    speed = rng.uniform(0.2, 0.35) * min(width, height)

    def paint(number: int) -> Image:
        way = speed * ticks[number] * tick
        picture = ground.copy()
        moved = np.roll(texture, (round(y * way), round(x * way)), axis=(0, 1))
        picture[top:bottom, left:right] = moved[top:bottom, left:right]
        return picture

    return paint


def make_clips(clips: Sequence[DemoClip], folder: Path) -> None:
    """Write clips and their labels.csv, with the columns path, label and caption."""
    folder.mkdir(parents=True, exist_ok=True)

    def make(clip: DemoClip) -> None:
        paint = motion_painter(clip)
        write(clip.recipe, folder / clip.file, pictures=(paint(n) for n in range(clip.recipe.frames)))

    # Encoders and NumPy work outside Python's lock.
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(make, clips))
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("path", "label", "caption"))
        table.writerows((clip.file, clip.label, clip.caption) for clip in clips)


def make_demo_clips(folder: Path | str) -> None:
    """Make the demo's clips."""
    make_clips(demo_clips(), Path(folder))


def make_training_clips(folder: Path | str, count: int, width: int = 96, height: int = 96) -> None:
    """Make a uniform set, one in five of each class held out."""
    clips = uniform_clips(count, width, height)
    # By blocks of four, so that both parts hold every class alike.
    held_out = [clip for i, clip in enumerate(clips) if i // 4 % HELD_OUT == HELD_OUT - 1]
    make_clips([clip for clip in clips if clip not in held_out], Path(folder) / "train")
    make_clips(held_out, Path(folder) / "held-out")


def _coloured(rng: np.random.Generator, levels: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> Image:
    """Noise as a picture: from one colour, through a second, to a third."""
    colours = rng.uniform(0, 255, (3, 3)).astype(np.float32)
    dark, bright = np.minimum(levels * 2, 1)[..., None], np.maximum(levels * 2 - 1, 0)[..., None]
    picture: Image = (colours[0] + (colours[1] - colours[0]) * dark + (colours[2] - colours[1]) * bright).astype(
        np.uint8
    )
    return picture


def main() -> int:
    """Make clips as the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", type=int, help="make so many clips that are all alike, in train/ and held-out/")
    parser.add_argument("--size", choices=("small", "large"), default="small", help="of those: 96x96 or 320x240")
    arguments = parser.parse_args()
    if arguments.clips is None:
        make_demo_clips(arguments.folder)
    else:
        width, height = (96, 96) if arguments.size == "small" else (320, 240)
        make_training_clips(arguments.folder, arguments.clips, width, height)
    return 0


if __name__ == "__main__":
    sys.exit(main())
