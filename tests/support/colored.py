"""Clips of all matrices, ranges and bit depths, and what a loader is to make of them."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch

import streamvid as sv
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from tests.support.colors import Box, Levels, reference
from tests.support.packed import packing_inline
from tools.clips import Recipe, write

HEIGHT, WIDTH = 144, 192
CASES = {
    f"{matrix}-{'full' if full else 'limited'}-{bits}": (matrix, full, bits)
    for matrix, full, bits in product(("bt601", "bt709", "bt2020"), (False, True), (8, 10))
}
# Options, and the part of the frame that they show, in what size.
TRANSFORMS: dict[str, tuple[dict[str, Any], Box]] = {
    "whole": ({}, ((0, 0), (HEIGHT, WIDTH), (HEIGHT, WIDTH))),
    "crop": ({"crop": (100, 90), "random_crop": False}, ((22, 51), (122, 141), (100, 90))),
    "smaller": ({"resize": 72}, ((0, 0), (HEIGHT, WIDTH), (72, 96))),
    "much_smaller": ({"resize": (20, 30)}, ((0, 0), (HEIGHT, WIDTH), (20, 30))),
    "larger": ({"resize": (200, 250)}, ((0, 0), (HEIGHT, WIDTH), (200, 250))),
    "resized_and_cropped": (
        {"resize": 96, "crop": 80, "random_crop": False, "horizontal_flip": 1.0, "vertical_flip": 1.0},
        ((12, 36), (132, 156), (80, 80)),
    ),
}


class ColoredClips:
    """A dataset with a clip of each case, whose frames are saturated: many colours lie outside of RGB.

    Attributes:
        path: the dataset.
    """

    def __init__(self, folder: Path) -> None:
        (folder / "videos").mkdir()
        rng = np.random.default_rng(16)
        for name, (matrix, full, bits) in CASES.items():
            small = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
            down, across = np.mgrid[:HEIGHT, :WIDTH]
            flat = small.repeat(16, axis=0).repeat(16, axis=1)
            smooth = np.stack([down * 255 // HEIGHT, across * 255 // WIDTH, 255 - down * 255 // HEIGHT], axis=-1)
            recipe = Recipe(
                codec="hevc" if bits == 10 else "h264", width=WIDTH, height=HEIGHT, frames=2, gop=2, b_frames=0,
                pix_fmt="yuv420p10le" if bits == 10 else "yuv420p", colour=matrix, full_range=full, crf=8,
            )  # fmt: skip
            write(recipe, folder / "videos" / f"{name}.mp4", [flat, smooth.astype(np.uint8)])
        self.path = folder / "set"
        with packing_inline():
            pack([folder / "videos"], self.path, options=PackOptions("any"), workers=1, progress=False)
        self._videos = folder / "videos"

    def expected(self, key: str, box: Box) -> Levels:
        """float64 [frames, 3, height, width]."""
        matrix, full, bits = CASES[key]
        made = []
        with av.open(str(self._videos / f"{key}.mp4")) as container:
            for frame in container.decode(video=0):
                both = frame.to_ndarray()
                luma, chroma = both[:HEIGHT], both[HEIGHT:].reshape(2, HEIGHT // 2, WIDTH // 2)
                made.append(
                    reference(
                        [luma, *chroma], matrix, full_range=full, bits=bits, siting=(1, 0), subsampling=(2, 2), box=box
                    )
                )
        return np.stack(made)


def check(clips: ColoredClips, name: str, *, device: str) -> None:
    """Of each case, 99.9 % of values are within a level of the reference."""
    options, box = TRANSFORMS[name]
    transform = sv.Transform(**options, layout="TCHW", dtype="uint8")
    seen = set()
    with sv.StreamLoader(
        clips.path, sampling=sv.Frames([0, 1]), batch_size=4, transform=transform, shuffle=False, device=device
    ) as loader:
        for batch in loader:
            for key, video in zip(batch["key"], batch["video"], strict=True):
                expected = clips.expected(key, box)
                expected = expected[..., :: -1 if "vertical_flip" in options else 1, :]
                expected = expected[..., :: -1 if "horizontal_flip" in options else 1]
                assert isinstance(video, torch.Tensor)
                off = np.abs(video.cpu().numpy() - expected)
                print(f"{key} {name}: {off.max():.2f} at most, more than 1 in {(off > 1).mean():.3%}")
                assert (off <= 1).mean() >= 0.999, (key, name)
                seen.add(key)
    assert seen == set(CASES)
