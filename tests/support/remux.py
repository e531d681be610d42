"""Copies of videos with other packets: FFmpeg's muxer gets them as a test changed them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av


@dataclass(frozen=True)
class Remux:
    """A copy that is being made: the source's stream and its packets in decode order, and the copy's track."""

    stream: Any
    packets: list[Any]
    track: Any
    output: Any

    def mux(self, packet: Any, data: bytes | None = None) -> None:
        """Give the muxer a packet, or other bytes with its times and as a key frame if it is one."""
        if data is not None:
            source, packet = packet, av.Packet(data)
            packet.pts, packet.dts, packet.duration = source.pts, source.dts, source.duration
            packet.time_base, packet.is_keyframe = source.time_base, source.is_keyframe
        packet.stream = self.track
        self.output.mux(packet)


@contextmanager
def remuxing(source: Path, target: Path, **output: Any) -> Iterator[Remux]:
    """Open both; `output` are arguments of `av.open` for the copy, such as its format. Nothing is muxed by itself."""
    with av.open(str(source)) as container, av.open(str(target), "w", **output) as made:
        stream = container.streams.video[0]
        track = made.add_stream_from_template(stream, opaque=True)
        yield Remux(stream, [packet for packet in container.demux(stream) if packet.size], track, made)
