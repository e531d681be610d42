"""How far our pixels are from those of FFmpeg's zscale at exact settings and of torchcodec, and what explains it: the
tables of docs/transforms.md.

    python -m tools.compare_colors [VIDEO ...]

Needs `ffmpeg` with zscale (Debian's has it), or torchcodec: what is missing of the two is left out. No GPU.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final, NamedTuple

import av
import numpy as np
import numpy.typing as npt
from av.filter import Graph

from streamvid.color.render import PlaneFormat, PlaneRenderer
from streamvid.color.tags import _SITINGS, Color, Matrix
from streamvid.decode.cpu import decode_with_pyav
from streamvid.video.remux import store_clip
from tools.clips import Recipe, write
from tools.recipes import Colour

HEIGHT, WIDTH = 144, 192
SIZES: Final = ((HEIGHT, WIDTH), (72, 96), (50, 61), (200, 301))
ZSCALE: Final[dict[Matrix, str]] = {"bt601": "170m", "bt709": "709", "bt2020": "2020_ncl"}
PIX_FMTS: Final = {(2, 2): "yuv420p", (1, 2): "yuv422p", (1, 1): "yuv444p"}
BEYOND: Final = 32
"""Luma samples that are mirrored at edges: more than a filter reaches."""
Levels = npt.NDArray[np.float64]


class Case(NamedTuple):
    """A picture to convert: `smooth` as natural footage, or noise."""

    color: Color
    bits: int
    subsampling: tuple[int, int]
    smooth: bool


def cases(smooth: bool) -> Iterable[Case]:
    """All matrices, ranges and bit depths; then all sitings and samplings."""
    for matrix, full, bits in product(ZSCALE, (False, True), (8, 10)):
        yield Case(Color(matrix, full, (1, 0)), bits, (2, 2), smooth)
    for siting, subsampling in product(_SITINGS.values(), PIX_FMTS):
        yield Case(Color("bt709", False, siting), 8, subsampling, smooth)


def samples(case: Case) -> list[Any]:
    """Planes between two levels of 8 bits: noise, or a smooth picture."""
    planes = []
    for seed, (low, high) in ((1, (40, 215)), (2, (90, 166)), (3, (90, 166))):
        rng, one = np.random.default_rng(seed), 1 << (case.bits - 8)
        down, across = case.subsampling if seed > 1 else (1, 1)
        height, width = HEIGHT // down, WIDTH // across
        if case.smooth:
            coarse = rng.uniform(low * one, high * one, (height // 16 + 2, width // 16 + 2))
            y, x = (np.linspace(0, side - 1.001, n) for side, n in zip(coarse.shape, (height, width), strict=True))
            columns = np.stack([np.interp(x, np.arange(coarse.shape[1]), row) for row in coarse])
            made = np.stack([np.interp(y, np.arange(coarse.shape[0]), column) for column in columns.T], axis=1)
        else:
            made = rng.integers(low * one, high * one, (height, width))
        planes.append(np.ascontiguousarray(made, dtype=np.uint8 if case.bits == 8 else np.uint16))
    return planes


def by_zscale(ffmpeg: str, planes: Sequence[Any], case: Case, size: tuple[int, int], *, alike: bool) -> Levels:
    """float64 [3, height, width], levels of 255, not rounded.

    Args:
        alike: planes are resized first, in 16 bits, and then converted. By itself zscale keeps 10 bits between its
            passes, and converts first what becomes larger.
    """
    pix_fmt = PIX_FMTS[case.subsampling] + ("" if case.bits == 8 else "10le")
    matrix, value_range = ZSCALE[case.color.matrix], "full" if case.color.full_range else "limited"
    if alike:
        factor = 65535 / ((1 << case.bits) - 1) if case.color.full_range else 2.0 ** (16 - case.bits)
        zero = [(0, 0), *2 * [(1 << (case.bits - 1), 32768)]]
        planes = [
            np.rint((plane - float(low)) * factor + high).astype(np.uint16)
            for plane, (low, high) in zip(planes, zero, strict=True)
        ]
        pix_fmt = PIX_FMTS[case.subsampling] + "16le"
    said = f"rangein={value_range}:matrixin={matrix}:primariesin=709:primaries=709:transferin=709:transfer=709"
    siting = next(name for name, place in _SITINGS.items() if place == case.color.siting)
    resize = f"zscale=w={size[1]}:h={size[0]}:chromalin={siting}:filter=bilinear:dither=none:{said}"
    convert = "matrix=gbr:range=full,format=gbrp16le"
    between = f"matrix={matrix}:range={value_range},format=yuv444p16le,zscale=dither=none:{said}:" if alike else ""
    made = subprocess.run(
        [ffmpeg, "-v", "error", "-f", "rawvideo", "-pix_fmt", pix_fmt, "-s", f"{WIDTH}x{HEIGHT}", "-i", "-",
         "-vf", f"{resize}:{between}{convert}", "-f", "rawvideo", "-"],
        input=b"".join(one.tobytes() for one in planes), capture_output=True, check=True,
    )  # fmt: skip
    green, blue, red = np.frombuffer(made.stdout, dtype=np.uint16).reshape(3, *size) * (255 / 65535)
    return np.stack([red, green, blue])


def ours(planes: Sequence[Any], case: Case, size: tuple[int, int], *, mirrored: bool) -> Levels:
    """uint8 [3, height, width]; beyond the edges nothing, or as zscale has it the picture, mirrored."""
    more = BEYOND if mirrored else 0
    down, across = case.subsampling
    planes = [
        np.pad(plane, ((more // (down if n else 1),), (more // (across if n else 1),)), "symmetric")
        for n, plane in enumerate(planes)
    ]
    form = PlaneFormat(HEIGHT + 2 * more, WIDTH + 2 * more, case.subsampling, case.bits)
    made = np.zeros((3, *size), dtype=np.uint8)
    PlaneRenderer(form, case.color, start=(more, more), end=(more + HEIGHT, more + WIDTH), size=size)(planes, made)
    return made.astype(np.float64)


def told(off: Sequence[Levels]) -> str:
    """Mean, the largest, and the worst case's share of values that are more than a level off."""
    most = max((one > 1).mean() for one in off)
    return f"{np.mean(np.concatenate([one.ravel() for one in off])):.2f} | {max(map(np.max, off)):.2f} | {most:.3%}"


def compare_zscale(ffmpeg: str) -> None:
    """Print, for each size and kind of picture, how far apart we are in all cases: as zscale comes, but for edges; and
    at edges, too, where both go the same way."""
    print("| zscale | mean | largest | more than 1 | alike: mean | largest | more than 1 |\n" + 7 * "| --- " + "|")
    for smooth, size in product((False, True), SIZES):
        plain, alike = [], []
        for case in cases(smooth):
            planes = samples(case)
            theirs = by_zscale(ffmpeg, planes, case, size, alike=False)
            plain.append(np.abs(ours(planes, case, size, mirrored=False) - theirs)[:, 4:-4, 4:-4])
            theirs = by_zscale(ffmpeg, planes, case, size, alike=True)
            alike.append(np.abs(ours(planes, case, size, mirrored=True) - theirs))
        name = f"{'smooth' if smooth else 'noise'}, {WIDTH}x{HEIGHT} to {size[1]}x{size[0]}"
        print(f"| {name} | {told(plain)} | {told(alike)} |", flush=True)


def by_swscale(video: Path, frames: Sequence[int], settings: str) -> Levels:
    """Frames by FFmpeg's scale filter, uint8 [frames, height, width, 3]."""
    made = []
    with av.open(str(video)) as container:
        for number, frame in enumerate(container.decode(video=0)):
            if number in frames:
                graph = Graph()
                source = graph.add_buffer(
                    width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1, 25)
                )
                scale, form, sink = graph.add("scale", settings), graph.add("format", "rgb24"), graph.add("buffersink")
                for one, other in pairwise((source, scale, form, sink)):
                    one.link_to(other)
                graph.configure()
                graph.push(frame)
                converted: Any = graph.pull()
                made.append(converted.to_ndarray(format="rgb24"))
    return np.stack(made).astype(np.float64)


def compare_torchcodec(videos: Sequence[Path], folder: Path) -> None:
    """Print, for test clips of each matrix and range and for videos, how far we are from torchcodec; torchcodec from
    swscale as it comes; and we from swscale at exact settings."""
    from torchcodec.decoders import VideoDecoder

    shapes = Recipe(width=640, height=360, frames=4, crf=10)
    colours: tuple[Colour, ...] = ("bt601", "bt709", "bt2020")
    made = [
        write(replace(shapes, colour=colour, full_range=full), folder / f"{colour}-{'full' if full else 'limited'}.mp4")
        for colour, full in product(colours, (False, True))
    ]
    ten = replace(shapes, codec="hevc", pix_fmt="yuv420p10le")
    made += [write(replace(ten, colour=one), folder / f"{one}-limited-10.mp4") for one in colours[1:]]
    pairs = ("from torchcodec", "torchcodec from swscale", "from swscale, exact")
    print(
        "\n| | " + " | ".join(f"{pair}: mean | more than 2 | largest" for pair in pairs) + " |\n" + 10 * "| --- " + "|"
    )
    for video in (*made, *videos):
        (folder / video.stem).mkdir()
        clip, frames = store_clip(video, folder / video.stem), [0, 2]
        mine = decode_with_pyav(clip.slice(np.array(frames)), color="auto").astype(np.float64)
        theirs = VideoDecoder(str(clip.mp4)).get_frames_at(frames).data.permute(0, 2, 3, 1).numpy().astype(np.float64)
        meant = f"in_color_matrix={clip.color.matrix}:in_range={clip.color_range}:out_range=pc"
        exact = f"flags=bilinear+accurate_rnd+full_chroma_int:in_chroma_loc=left:{meant}"
        usual = by_swscale(clip.mp4, frames, "flags=bilinear:out_range=pc")
        off = (mine - theirs, theirs - usual, mine - by_swscale(clip.mp4, frames, exact))
        line = " | ".join(f"{abs(o).mean():.2f} | {(abs(o) > 2).mean():.1%} | {abs(o).max():.0f}" for o in off)
        print(f"| {video.stem}, {clip.color_space} {clip.color_range} | {line} |", flush=True)


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", nargs="*", type=Path)
    parser.add_argument("--ffmpeg", default=shutil.which("ffmpeg"), help="one with zscale")
    options = parser.parse_args()
    if options.ffmpeg:
        compare_zscale(options.ffmpeg)
    else:
        print("zscale: there is no ffmpeg")
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
