"""Videos for benchmarks: encoded where they are missing; long ones, of packets of a part over and over."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Final

import av

from tools.clips import Recipe, write
from tools.recipes import Codec, Container

MINUTE: Final = 60
FPS: Final = 60
GOP: Final = 250
"""x264's default; with B-frames as by its default, too."""


def write_missing(wanted: Mapping[Path, Recipe]) -> None:
    """Encode the files that are not there, the largest first, each whole or not at all."""

    def make(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as draft:
            write(wanted[path], Path(draft) / path.name).replace(path)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(make, sorted((p for p in wanted if not p.exists()), key=lambda path: -wanted[path].height)))


def write_minute(codec: Codec, path: Path, *, seconds: int = MINUTE) -> Path:
    """A video of 1280x720 at 60 frames a second, with a key frame every 250 frames, GOPs closed."""
    container: Container = "mp4" if codec != "vp9" else "webm"
    recipe = Recipe(
        codec=codec,
        container=container,
        width=1280,
        height=720,
        frames=seconds * FPS,
        fps=Fraction(FPS),
        gop=GOP,
        b_frames=3 if codec in ("h264", "hevc") else 0,
        style="texture",
    )
    return write(recipe, path.with_suffix(f".{container}"))


def repeat(piece: Path, times: int, path: Path, *, seconds: Fraction | int = MINUTE) -> Path:
    """A video `times` as long as the piece, which lasts `seconds`: its packets over and over with rising timestamps.

    GOPs are closed, so that every repetition can be decoded as it is.
    """
    path = path.with_suffix(piece.suffix)
    with av.open(str(path), "w") as output:
        track = None
        shift = 0
        for _ in range(times):
            with av.open(str(piece)) as source:
                stream = source.streams.video[0]
                assert stream.time_base is not None
                if track is None:
                    track = output.add_stream_from_template(stream)
                    track.time_base = stream.time_base
                length = round(seconds / stream.time_base)
                for packet in source.demux(stream):
                    if packet.size:
                        assert packet.pts is not None
                        assert packet.dts is not None
                        packet.pts += shift
                        packet.dts += shift
                        packet.stream = track
                        output.mux(packet)
                shift += length
    return path
