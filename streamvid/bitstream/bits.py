"""Reads headers of compressed video bit by bit."""

from __future__ import annotations

from typing import Final

_MOST_BYTES: Final = 1 << 14
"""Bytes of a NAL unit that are read at most; parameter sets are shorter. The time for each code grows with the bytes
of the reader: a unit of a megabyte, as in a damaged packet, would take minutes."""
_MOST_ZEROS: Final = 32
"""Most zeros before the first 1 of an Exponential-Golomb code (9.1 of ITU-T H.264)."""


class BitReader:
    """Reads unsigned and Exponential-Golomb codes, most significant bit first.

    Args:
        data: the bytes to read.

    Raises:
        ValueError: raised by all methods if the data end within the code, or it is none.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    @classmethod
    def of_nal(cls, payload: bytes) -> BitReader:
        """A reader of the beginning of a NAL unit's payload, without its emulation prevention bytes: the 3 of every 0,
        0, 3 (7.3.1 of ITU-T H.264, 7.3.1.1 of H.265)."""
        return cls(payload[:_MOST_BYTES].replace(b"\0\0\3", b"\0\0"))

    def u(self, count: int) -> int:
        """u(n): an unsigned integer of `count` bits."""
        if count > self._left:
            raise ValueError("it ends early")
        self._left -= count
        return self._value >> self._left & ((1 << count) - 1)

    def ue(self) -> int:
        """ue(v): an unsigned Exponential-Golomb code (9.1 of ITU-T H.264)."""
        zeros = 0
        while not self.u(1):
            zeros += 1
            if zeros > _MOST_ZEROS:
                raise ValueError("an Exp-Golomb code has too many leading zeros")
        return (1 << zeros) - 1 + self.u(zeros)

    def se(self) -> int:
        """se(v): a signed Exponential-Golomb code (9.1.1 of ITU-T H.264)."""
        code = self.ue()
        return (code + 1) // 2 if code % 2 else -(code // 2)
