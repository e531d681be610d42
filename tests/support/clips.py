"""Clips for tests: `write` as in tools/clips.py, but each recipe is encoded once in a session and copied afterwards,
and no test waits for an encoder that hangs."""

from __future__ import annotations

from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path

import av

from streamvid.workers import WorkerProcess, WorkerStuckError
from tools import clips
from tools.clips import Recipe

LIMIT_S = 60.0
"""Seconds after which the encoding of a clip is taken to hang. Most take tenths, on a busy machine seconds."""
_LARGEST = 4 << 20
"""Bytes of a file that is kept."""
_encoded: dict[Recipe, bytes] = {}
_encoder: list[WorkerProcess] = []
"""The process that encodes for this one, once it was needed."""


def write(recipe: Recipe, path: Path | str) -> Path:
    """Make the clip, a file that the test may change."""
    path = Path(path)
    if recipe in _encoded:
        path.write_bytes(_encoded[recipe])
        return path
    if recipe.codec in ("av1", "hevc"):
        _write_in_child(recipe, path)
    else:
        clips.write(recipe, path)
    if path.stat().st_size <= _LARGEST:
        _encoded[recipe] = path.read_bytes()
    return path


def _write_in_child(recipe: Recipe, path: Path) -> None:
    """SVT-AV1 and x265 work in many threads, and in CI one of the two, fewer than one clip in 50,000, waited for ever:
    then it is killed, and tried again."""
    for tries_left in (2, 1, 0):
        if not (_encoder and _encoder[0].is_alive()):
            _encoder[:] = [WorkerProcess()]
            _encoder[0].handshake()
        try:
            _encoder[0].call(clips.write, recipe, path.absolute(), limit_s=LIMIT_S)
            return
        except WorkerStuckError:
            if not tries_left:
                raise


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
