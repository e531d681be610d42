"""Packets of a stream in one array, and their conversion to the format of decoders.

MP4 files have a length before each NAL unit of H.264 and HEVC (ISO/IEC 14496-15). NVDEC needs Annex B of ITU-T H.264
and H.265: start codes instead of the lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Final

import numpy as np

from streamvid.arrays import Int64, UInt8

START_CODE: Final = b"\0\0\0\1"


@dataclass(frozen=True, eq=False)
class Packets:
    """Packets in decode order. As a sequence, its items are packets in the format of decoders, the first preceded by
    the header.

    Attributes:
        data: uint8 [bytes], contiguous; its length is the sum of `sizes`.
        sizes: int64 [packets], sizes in bytes.
        header: headers that a decoder needs before the first packet, such as parameter sets in Annex B; may be empty.
        length_size: bytes of the length before each NAL unit, which is replaced by a start code; 0 for packets that
            need no conversion.
    """

    data: UInt8
    sizes: Int64
    header: bytes = b""
    length_size: int = 0

    @classmethod
    def of(cls, packets: Sequence[bytes]) -> Packets:
        """Packets from a `bytes` object each, in the format of decoders."""
        return cls(np.frombuffer(b"".join(packets), dtype=np.uint8), np.array([*map(len, packets)], dtype=np.int64))

    @classmethod
    def checked(cls, data: UInt8, sizes: Int64, *, length_size: int = 0) -> Packets:
        """Packets from arrays.

        Raises:
            ValueError: the sizes contradict the data.
        """
        made = cls(data, sizes, length_size=length_size)
        if len(data) != made.bounds[-1] or min(sizes.tolist(), default=0) < 0:
            raise ValueError("packets are not as long as their sizes say")
        return made

    @cached_property
    def bounds(self) -> list[int]:
        """The start of each packet, and the end of the last."""
        # Not with NumPy, whose sum would wrap around.
        return [*accumulate(self.sizes.tolist(), initial=0)]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: int) -> bytes:
        """A packet.

        Raises:
            ValueError: a NAL unit does not end within the packet.
        """
        packet = self.stored(number).tobytes()
        if self.length_size:
            packet = to_annex_b(packet, self.length_size)
        return packet if number else self.header + packet

    def stored(self, number: int) -> memoryview:
        """A packet in the format of MP4 files, without a header."""
        return self.data.data[self.bounds[number] : self.bounds[number + 1]]

    def __iter__(self) -> Iterator[bytes]:
        return (self[number] for number in range(len(self)))

    def joined(self, first: int, end: int) -> bytes:
        """The bytes of packets [first, end)."""
        return b"".join([self[number] for number in range(first, end)])

    def part(self, first: int, end: int, *, header: bytes = b"") -> Packets:
        """Packets [first, end), with a header before the first."""
        data = self.data[self.bounds[first] : self.bounds[end]]
        return Packets(data, self.sizes[first:end], header, self.length_size)


def packets_in(data: UInt8, sizes: Int64) -> list[memoryview]:
    """The packets that follow one another in uint8 [bytes], by their sizes in bytes, int64 [packets]."""
    view, each = data.data, sizes.tolist()
    return [view[end - size : end] for size, end in zip(each, accumulate(each), strict=True)]


def nal_units(annex_b: bytes) -> list[bytes]:
    """The NAL units of data in Annex B with start codes of four bytes, without these."""
    return [unit for unit in annex_b.split(START_CODE) if unit]


def to_annex_b(packet: bytes, length_size: int) -> bytes:
    """A packet with start codes instead of the lengths of its NAL units.

    Args:
        packet: the packet in the format of MP4 files.
        length_size: bytes of a length.

    Raises:
        ValueError: a unit does not end within the packet.
    """
    units: list[bytes] = []
    at = 0
    while at < len(packet):
        start = at + length_size
        at = start + int.from_bytes(packet[at:start], "big")
        if at > len(packet) or at == start:
            raise ValueError("a NAL unit does not end within its packet")
        units += (START_CODE, packet[start:at])
    return b"".join(units)


def head_of_packet(head: bytes, length_size: int) -> bytes:
    """The first bytes of a packet as a packet of its own, in which the length of the last NAL unit is reduced to the
    given bytes.

    Args:
        head: the first bytes of a packet in the format of MP4 files.
        length_size: bytes of a unit's length.
    """
    position = 0
    while position + length_size < len(head):
        length = int.from_bytes(head[position : position + length_size], "big")
        left = len(head) - position - length_size
        if length > left:
            return head[:position] + left.to_bytes(length_size, "big") + head[position + length_size :]
        position += length_size + length
    return head[:position]
