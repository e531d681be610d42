"""Clips for tests: `write` as in tools/clips.py, but each recipe is encoded once in a run of all workers, and copied
afterwards."""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path

import av

from tools import clips
from tools.clips import Recipe

ENCODED = "STREAMVID_TESTS_CLIPS"
"""The environment variable that names the folder of encoded clips."""


def write(recipe: Recipe, path: Path | str) -> Path:
    """Make the clip, a file that the test may change."""
    path = Path(path)
    kept = Path(os.environ[ENCODED], hashlib.sha256(repr(recipe).encode()).hexdigest())
    if not kept.exists():
        part = clips.write(recipe, f"{kept}.{os.getpid()}")
        part.replace(kept)
    return Path(shutil.copyfile(kept, path))


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
