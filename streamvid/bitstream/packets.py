"""Packets of a stream, one after another in one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamvid.arrays import Int64, UInt8


@dataclass(frozen=True, eq=False)
class Packets:
    """Packets in decode order.

    Attributes:
        data: uint8 [bytes], contiguous, as long as `sizes` say.
        sizes: int64 [packets], in bytes.
    """

    data: UInt8
    sizes: Int64

    @classmethod
    def of(cls, packets: Sequence[bytes]) -> Packets:
        """Packets from one `bytes` each."""
        return cls(np.frombuffer(b"".join(packets), dtype=np.uint8), np.array([*map(len, packets)], dtype=np.int64))

    @classmethod
    def checked(cls, data: UInt8, sizes: Int64) -> Packets:
        """Packets from arrays.

        Raises:
            ValueError: the sizes are not those of the data.
        """
        made = cls(data, sizes)
        # They never fall: a sum beyond 2⁶³ would, which wraps around.
        if len(data) != made.bounds[-1] or made.bounds != sorted(made.bounds):
            raise ValueError("packets are not as long as their sizes say")
        return made

    @cached_property
    def bounds(self) -> list[int]:
        """Where each packet begins, and where the last one ends."""
        return [0, *self.sizes.cumsum().tolist()]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: int) -> bytes:
        return self.joined(number, number + 1)

    def __iter__(self) -> Iterator[bytes]:
        return (self[number] for number in range(len(self)))

    def joined(self, first: int, end: int) -> bytes:
        """The bytes of packets [first, end)."""
        return self.data[self.bounds[first] : self.bounds[end]].tobytes()

    def part(self, first: int, end: int, *, header: bytes = b"") -> Packets:
        """Packets [first, end), with a header before the first."""
        data, sizes = self.data[self.bounds[first] : self.bounds[end]], self.sizes[first:end]
        if not header:
            return Packets(data, sizes)
        sizes = sizes.copy()
        sizes[0] += len(header)
        # NumPy's concatenate would let go of the GIL, which may take milliseconds to get back.
        return Packets(np.frombuffer(header + data.tobytes(), dtype=np.uint8), sizes)
