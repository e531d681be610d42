"""Clips of all matrices, ranges and bit depths, and what a loader is to make of them."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import torch

import streamvid as sv
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from tests.support.colors import Box, Levels, reference
from tools.clips import Recipe, write

HEIGHT, WIDTH = 144, 192
_SITINGS = {
    "left": (1, 0),
    "center": (0, 0),
    "topleft": (1, 1),
    "top": (0, 1),
    "bottomleft": (1, -1),
    "bottom": (0, -1),
}
"""By chroma_sample_loc_type."""


class Case(NamedTuple):
    """The format and the tags of a clip."""

    matrix: Any
    full: bool
    pix_fmt: str = "yuv420p"
    siting: str = "left"

    @property
    def bits(self) -> int:
        return 10 if self.pix_fmt.endswith("10le") else 8

    @property
    def subsampling(self) -> tuple[int, int]:
        """Down and across."""
        return {"yuv422p": (1, 2), "yuv444p": (1, 1)}.get(self.pix_fmt, (2, 2))


CASES = {
    f"{matrix}-{'full' if full else 'limited'}-{8 if bits == '' else 10}": Case(matrix, full, f"yuv420p{bits}")
    for matrix, full, bits in product(("bt601", "bt709", "bt2020"), (False, True), ("", "10le"))
}
CASES |= {one: Case("bt709", False, siting=one) for one in list(_SITINGS)[1:]}
CASES |= {one: Case("bt709", False, one) for one in ("yuv422p", "yuv444p", "gray")}
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
        for name, case in CASES.items():
            small = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
            down, across = np.mgrid[:HEIGHT, :WIDTH]
            flat = small.repeat(16, axis=0).repeat(16, axis=1)
            smooth = np.stack([down * 255 // HEIGHT, across * 255 // WIDTH, 255 - down * 255 // HEIGHT], axis=-1)
            sited = () if case.siting == "left" else (("chromaloc", str(list(_SITINGS).index(case.siting))),)
            recipe = Recipe(
                codec="hevc" if case.bits == 10 else "h264", width=WIDTH, height=HEIGHT, frames=2, gop=2, b_frames=0,
                pix_fmt=case.pix_fmt, colour=case.matrix, full_range=case.full, crf=8, params=sited,
            )  # fmt: skip
            write(recipe, folder / "videos" / f"{name}.mp4", [flat, smooth.astype(np.uint8)])
        self.path = folder / "set"
        pack([folder / "videos"], self.path, options=PackOptions("any"), workers=1, progress=False)
        self._videos = folder / "videos"

    def expected(self, key: str, box: Box) -> Levels:
        """float64 [frames, 3, height, width]."""
        case = CASES[key]
        made = []
        with av.open(str(self._videos / f"{key}.mp4")) as container:
            for frame in container.decode(video=0):
                planes = [_samples(plane, case.bits) for plane in frame.planes]
                gray = [np.full((HEIGHT // 2, WIDTH // 2), 1 << (case.bits - 1))] * 2
                made.append(
                    reference(
                        planes if len(planes) == 3 else [*planes, *gray], case.matrix, full_range=case.full,
                        bits=case.bits, siting=_SITINGS[case.siting], subsampling=case.subsampling, box=box,
                    )
                )  # fmt: skip
        return np.stack(made)


def _samples(plane: Any, bits: int) -> Any:
    lines = np.frombuffer(plane, dtype=np.uint8).reshape(plane.height, plane.line_size)
    return (lines if bits == 8 else lines.view(np.uint16))[:, : plane.width]


def check(clips: ColoredClips, name: str, *, device: str) -> None:
    """Assert that 99.9 % of the values of each case are within a level of the reference."""
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
