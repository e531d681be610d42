"""How far our pixels are from those of FFmpeg's zscale at exact settings and of torchcodec: see docs/transforms.md.

    python -m tools.compare_colors --ffmpeg /usr/bin/ffmpeg      one with zscale, such as imageio-ffmpeg's
    python -m tools.compare_colors VIDEO ...                     frames as torchcodec decodes them

Needs no GPU. What is missing of the two is left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamvid.color.render import PlaneFormat, PlaneRenderer
from streamvid.color.tags import Color, Matrix
from streamvid.decode.cpu import decode_with_pyav
from streamvid.video.remux import store_clip
from tools.clips import Recipe, write
from tools.recipes import Colour

HEIGHT, WIDTH = 144, 192
SIZES: Final = ((HEIGHT, WIDTH), (72, 96), (50, 61), (200, 301))
ZSCALE: Final[dict[Matrix, str]] = {"bt601": "170m", "bt709": "709", "bt2020": "2020_ncl"}
Levels = npt.NDArray[np.float64]


def plane(height: int, width: int, bits: int, span: tuple[int, int], *, smooth: bool, seed: int) -> Any:
    """Samples between two levels of 8 bits: noise, or a smooth picture."""
    rng, one = np.random.default_rng(seed), 1 << (bits - 8)
    low, high = span[0] * one, span[1] * one
    if not smooth:
        made = rng.integers(low, high, (height, width))
    else:
        coarse = rng.uniform(low, high, (height // 16 + 2, width // 16 + 2))
        y, x = (np.linspace(0, side - 1.001, count) for side, count in zip(coarse.shape, (height, width), strict=True))
        columns = np.stack([np.interp(x, np.arange(coarse.shape[1]), row) for row in coarse])
        made = np.stack([np.interp(y, np.arange(coarse.shape[0]), column) for column in columns.T], axis=1)
    return np.ascontiguousarray(made, dtype=np.uint8 if bits == 8 else np.uint16)


def by_zscale(ffmpeg: str, planes: Sequence[Any], color: Color, bits: int, size: tuple[int, int]) -> Levels:
    """float64 [3, height, width], levels of 255, not rounded."""
    settings = (
        f"w={size[1]}:h={size[0]}:matrixin={ZSCALE[color.matrix]}:rangein={'full' if color.full_range else 'limited'}:"
        "matrix=gbr:range=full:chromalin=left:filter=bilinear:dither=none:"
        "primariesin=709:primaries=709:transferin=709:transfer=709"
    )
    pix_fmt = "yuv420p" if bits == 8 else "yuv420p10le"
    source = ["-f", "rawvideo", "-pix_fmt", pix_fmt, "-s", f"{WIDTH}x{HEIGHT}", "-i", "-"]
    made = subprocess.run(
        [ffmpeg, "-v", "error", *source, "-vf", f"zscale={settings},format=gbrp16le", "-f", "rawvideo", "-"],
        input=b"".join(one.tobytes() for one in planes), capture_output=True, check=True,
    )  # fmt: skip
    green, blue, red = np.frombuffer(made.stdout, dtype=np.uint16).reshape(3, *size) * (255 / 65535)
    return np.stack([red, green, blue])


def compare_zscale(ffmpeg: str) -> None:
    """Print, for each size and kind of picture, the worst of all matrices, ranges and bit depths."""
    for smooth, size in product((False, True), SIZES):
        off = []
        for matrix, full, bits in product(ZSCALE, (False, True), (8, 10)):
            luma = plane(HEIGHT, WIDTH, bits, (40, 215), smooth=smooth, seed=1)
            chroma = [plane(HEIGHT // 2, WIDTH // 2, bits, (90, 166), smooth=smooth, seed=n) for n in (2, 3)]
            color = Color(matrix, full, (1, 0))
            made = np.zeros((3, *size), dtype=np.uint8)
            form = PlaneFormat(HEIGHT, WIDTH, (2, 2), bits)
            PlaneRenderer(form, color, start=(0, 0), end=(HEIGHT, WIDTH), size=size)([luma, *chroma], made)
            # zscale leaves out what lies beyond the edge.
            off.append(np.abs(made - by_zscale(ffmpeg, [luma, *chroma], color, bits, size))[:, 4:-4, 4:-4])
        print(
            f"zscale, {'smooth' if smooth else 'noise'}, {size[1]}x{size[0]}: {np.mean(off):.2f} on average, "
            f"{np.max(off):.2f} at most, more than 1 in {max((one > 1).mean() for one in off):.3%}"
        )


def compare_torchcodec(videos: Sequence[Path], folder: Path) -> None:
    """Print, for test clips of each matrix and range and for videos, the distance by tags, and of BT.601 for all."""
    from torchcodec.decoders import VideoDecoder

    shapes = Recipe(width=640, height=360, frames=4, crf=10)
    colours: tuple[Colour, ...] = ("bt601", "bt709", "bt2020")
    made = [
        write(replace(shapes, colour=colour, full_range=full), folder / f"{colour}-{'full' if full else 'limited'}.mp4")
        for colour, full in product(colours, (False, True))
    ]
    for video in (*made, *videos):
        (folder / video.stem).mkdir()
        clip = store_clip(video, folder / video.stem)
        theirs = VideoDecoder(str(clip.mp4)).get_frames_at([0, 2]).data.permute(0, 2, 3, 1).numpy().astype(int)
        line = f"torchcodec, {video.stem}, {clip.color_space} {clip.color_range}:"
        for color in ("auto", "bt601"):
            off = np.abs(decode_with_pyav(clip.slice(np.array([0, 2])), color=color) - theirs)
            line += f" {color} {off.mean():.2f} on average, more than 2 in {(off > 2).mean():.1%};"
        print(line)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", nargs="*", type=Path)
    parser.add_argument("--ffmpeg", help="compare with this FFmpeg's zscale")
    options = parser.parse_args()
    if options.ffmpeg:
        compare_zscale(options.ffmpeg)
    try:
        import torchcodec.decoders  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        print(f"torchcodec: {str(error).splitlines()[0]}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        compare_torchcodec(options.videos, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
