"""Clips for tests: `write` as in tools/clips.py, but each recipe is encoded once in a run of all workers, and copied
afterwards."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from tools import clips
from tools.clips import Recipe
from tools.pictures import Image
from tools.recipes import hard_recipes

ENCODED = "STREAMVID_TESTS_CLIPS"
"""The environment variable that names the folder of encoded clips."""


def write(recipe: Recipe, path: Path | str) -> Path:
    """Make the clip, a file that the test may change."""
    path = Path(path)
    kept = Path(os.environ[ENCODED], hashlib.sha256(repr(recipe).encode()).hexdigest())
    if not kept.exists():
        part = Path(f"{kept}.{os.getpid()}")
        if recipe.codec != "av1" or not _made_apart(recipe, part):
            clips.write(recipe, part)
        part.replace(kept)
    return Path(shutil.copyfile(kept, path))


def _made_apart(recipe: Recipe, path: Path) -> bool:
    """Make a clip in a process of its own, as SVT-AV1 ends one in some thousands. Returns False if it is refused."""
    program = "import pickle, sys; from tools import clips; clips.write(*pickle.load(sys.stdin.buffer))"
    for _ in range(3):
        with suppress(subprocess.TimeoutExpired):
            made = subprocess.run(
                [sys.executable, "-c", program],
                input=pickle.dumps((recipe, path)),
                cwd=Path(__file__).parents[2],
                capture_output=True,
                timeout=60,
                check=False,
            )
            if made.returncode >= 0:
                return made.returncode == 0
    raise RuntimeError(f"an encoder did not make {recipe}, three times")


def hard_clips() -> dict[str, Recipe]:
    """`hard_recipes` with a fraction of the pixels, which cost most of the time: about the smallest size that NVDEC
    decodes of each codec. Sizes are as many pixels above a multiple of 16, or of 32, as before."""
    return {name: _small(one) for name, one in hard_recipes().items()}


def _small(one: Recipe) -> Recipe:
    if one.width == 320:
        less = 160 if one.codec in ("hevc", "vp9", "av1") else 224  # of these 144 and 128 pixels are the least
        return replace(one, width=320 - less, height=one.height - (32 if less == 160 else 96))
    if one.width == 1920:  # 1,080 lines are 8 less than a multiple of 16
        return replace(one, width=320, height=184)
    return one


def frames_of(pictures: Iterable[Image], pix_fmt: str = "yuv420p") -> Iterator[av.VideoFrame]:
    """Frames for an encoder, of pictures as `paint` gives them. To open swscale for each takes longer than to convert a
    small one."""
    reformatter = VideoReformatter()
    for picture in pictures:
        yield reformatter.reformat(av.VideoFrame.from_ndarray(picture, format="rgb24"), format=pix_fmt, threads=1)


def decoded_pictures(frames: Iterable[av.VideoFrame]) -> list[Image]:
    """The pictures of decoded frames by swscale, uint8 [height, width, 3]."""
    reformatter = VideoReformatter()
    converted = (reformatter.reformat(frame, format="rgb24", threads=1) for frame in frames)
    return [np.asarray(frame.to_ndarray(), dtype=np.uint8) for frame in converted]


def one_after_the_other(parts: list[Path], path: Path) -> Path:
    """The packets of several videos without B-frames, at 25 frames a second."""
    with ExitStack() as stack:
        sources = [stack.enter_context(av.open(str(part))) for part in parts]
        output = stack.enter_context(av.open(str(path), "w"))
        track = output.add_stream_from_template(sources[0].streams.video[0], opaque=True)
        packets = [packet for source in sources for packet in source.demux(video=0) if packet.size]
        for number, packet in enumerate(packets):
            packet.pts = packet.dts = 40 * number
            packet.time_base, packet.stream = Fraction(1, 1000), track
            output.mux(packet)
    return path


def without_packets(source: Path, path: Path, *lost: int, options: dict[str, str] | None = None) -> Path:
    """A copy of a video without some packets, by their numbers in decode order, with a muxer's options."""
    with av.open(str(source)) as container, av.open(str(path), "w", options=options or {}) as output:
        track = output.add_stream_from_template(container.streams.video[0], opaque=True)
        for number, packet in enumerate(container.demux(video=0)):
            if packet.size and number not in lost:
                packet.stream = track
                output.mux(packet)
    return path
