"""The cases of `tools.bench.decode`, each a row of its table, and the clips that they decode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tools.bench.sources import write_missing
from tools.clips import Recipe

FRAMES: Final = 150
SIZES: Final = 132
LOOP_CLIPS: Final = 512
_BASE: Final = Recipe(frames=FRAMES, b_frames=2, style="texture")
_VPX: Final = replace(_BASE, b_frames=0, options=(("cpu-used", "8"), ("deadline", "realtime")))
FORMATS: Final = {
    "H.264 720p": replace(_BASE, width=1280, height=720),
    "HEVC 720p": replace(_BASE, codec="hevc", width=1280, height=720),
    "H.264 1080p": replace(_BASE, width=1920, height=1080),
    "HEVC 1080p": replace(_BASE, codec="hevc", width=1920, height=1080),
    "HEVC Main10 640x272": replace(_BASE, codec="hevc", width=640, height=272, pix_fmt="yuv420p10le"),
    "VP9 720p": replace(_VPX, codec="vp9", container="webm", width=1280, height=720),
    "VP8 720p": replace(_VPX, codec="vp8", container="webm", width=1280, height=720),
    "MPEG-4 720p": replace(_BASE, codec="mpeg4", b_frames=0, width=1280, height=720),
    f"H.264, {SIZES} sizes": replace(_BASE, frames=30),
}


@dataclass(frozen=True)
class Case:
    """A row.

    Attributes:
        kind: of the clips, a key of `FORMATS`.
        gop: frames from key frame to key frame.
        stride: frames from one frame of a sample to the next.
        batch: samples in a batch.
        cores: that the process may use; 0 for all.
        loop: measure a `StreamLoader`, too, whose loop sums each batch.
        stock: measure `fn.decoders.video`, too.
    """

    kind: str
    gop: int
    stride: int
    batch: int
    cores: int = 0
    loop: bool = False
    stock: bool = False

    @property
    def name(self) -> str:
        """How checks and `--only` call it."""
        where = f", {self.cores} cores" if self.cores else ""
        return f"{self.kind}, GOP {self.gop}, stride {self.stride}, batch {self.batch}{where}{', stock' * self.stock}"


def clip_path(case: Case, folder: Path) -> Path:
    """The file of a case's clip; of one for a loop, which is packed many times, it is short."""
    recipe = FORMATS[case.kind]
    name = f"{case.kind} {case.gop}{' short' if case.loop else ''}".replace(" ", "-")
    return folder / f"{name}.{recipe.container}"


def size_paths(case: Case, folder: Path) -> list[Path]:
    """The files of clips of many sizes."""
    return [folder / f"size-{case.gop}-{n}.mp4" for n in range(SIZES)]


def make_clips(cases: Sequence[Case], folder: Path) -> None:
    """Encode what is missing, each clip once."""
    wanted: dict[Path, Recipe] = {}
    for case in cases:
        recipe = replace(FORMATS[case.kind], gop=case.gop)
        if f"{SIZES} sizes" in case.kind:
            widths = [384 + 6 * n for n in range(SIZES)]
            wanted |= {
                path: replace(recipe, width=w, height=round(640 * 360 / w / 2) * 2, seed=w)
                for path, w in zip(size_paths(case, folder), widths, strict=True)
            }
            continue
        wanted[clip_path(replace(case, loop=False), folder)] = recipe
        if case.loop:
            wanted[clip_path(case, folder)] = replace(recipe, frames=64)
    write_missing(wanted)
