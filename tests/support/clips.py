"""Clips for tests: `write` as in tools/clips.py, but each recipe is encoded once in a session and copied afterwards."""

from __future__ import annotations

from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path

import av

from tools import clips
from tools.clips import Recipe

_LARGEST = 4 << 20
"""Bytes of a file that is kept."""
_encoded: dict[Recipe, bytes] = {}


def write(recipe: Recipe, path: Path | str) -> Path:
    """Make the clip, a file that the test may change."""
    path = Path(path)
    if recipe in _encoded:
        path.write_bytes(_encoded[recipe])
        return path
    clips.write(recipe, path)
    if path.stat().st_size <= _LARGEST:
        _encoded[recipe] = path.read_bytes()
    return path


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
