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
        data: uint8 [bytes], contiguous.
        sizes: int64 [packets], in bytes.

    Raises:
        ValueError: they are not as long as their sizes say.
    """

    data: UInt8
    sizes: Int64

    def __post_init__(self) -> None:
        if len(self.data) != self._bounds[-1] or self.sizes.min(initial=0) < 0:
            raise ValueError("packets are not as long as their sizes say")

    @classmethod
    def of(cls, packets: Sequence[bytes]) -> Packets:
        """Packets from one `bytes` each."""
        return cls(np.frombuffer(b"".join(packets), dtype=np.uint8), np.array([*map(len, packets)], dtype=np.int64))

    @cached_property
    def _bounds(self) -> list[int]:
        return [0, *np.cumsum(self.sizes).tolist()]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: int) -> bytes:
        return self.joined(number, number + 1)

    def __iter__(self) -> Iterator[bytes]:
        return (self[number] for number in range(len(self)))

    def joined(self, first: int, end: int) -> bytes:
        """The bytes of packets [first, end)."""
        return self.data[self._bounds[first] : self._bounds[end]].tobytes()

    def part(self, first: int, end: int, *, header: bytes = b"") -> Packets:
        """Packets [first, end), with a header before the first."""
        data, sizes = self.data[self._bounds[first] : self._bounds[end]], self.sizes[first:end]
        if not header:
            return Packets(data, sizes)
        sizes = sizes.copy()
        sizes[0] += len(header)
        return Packets(np.concatenate([np.frombuffer(header, dtype=np.uint8), data]), sizes)
