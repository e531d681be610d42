"""Takes the "packed bitstream" apart in which DivX and Xvid put MPEG-4 into AVI.

A B-VOP lies in the packet of the VOP that it precedes, and a placeholder, which is not coded, in a packet after it.
FFmpeg's filter for this, mpeg4_unpack_bframes, takes every packet of 19 bytes or less for a placeholder, which may be a
B-VOP of a picture that does not change; FFmpeg's decoder does not.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, Final

from av.packet import Packet

from streamvid.bitstream.mpeg4 import VOP_START_CODE, VopClock
from streamvid.video.codec_context import padded_packet

_SAYS_PACKED: Final = re.compile(rb"(\0\0\x01\xb2[^\0]{0,255})p\0")
"""User data by which decoders expect such packets."""


class VopUnpacker:
    """Gives each VOP of a track a packet of its own.

    Args:
        headers: what comes before the first packet.
    """

    def __init__(self, headers: bytes) -> None:
        self._clock, self._held = VopClock(), b""
        self._vop_of(headers)

    def take(self, packet: Packet[Any] | None) -> list[Packet[Any]]:
        """The packet of the next VOP, at the place and times of the next packet; none behind the last."""
        if packet is None:
            return []
        data = given = bytes(packet)
        at = self._vop_of(data)
        second = data.find(VOP_START_CODE, at or len(data))
        if second >= 0:
            data, self._held = data[:second], data[second:]
        elif self._held and at is not None:
            data, self._held = self._held, data if self._is_coded(data[at:]) else b""
        data = _SAYS_PACKED.sub(rb"\1\0\0", data)
        return [packet if data == given else _with_data(packet, data)]

    def _vop_of(self, data: bytes) -> int | None:
        with suppress(ValueError):
            return self._clock.read_headers(data)
        return None

    def _is_coded(self, vop: bytes) -> bool:
        try:
            return not self._clock.resolution or self._clock.take(vop[:64])[2]
        except ValueError:
            return False


def _with_data(packet: Packet[Any], data: bytes) -> Packet[Any]:
    made = padded_packet(data)
    made.stream, made.time_base = packet.stream, packet.time_base
    made.pts, made.dts, made.duration, made.is_keyframe = packet.pts, packet.dts, packet.duration, packet.is_keyframe
    return made
