"""Headers of compressed video, bit by bit."""

from __future__ import annotations


class Bits:
    """Reads bits, the highest of each byte first; ValueError at the end."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._value, self._left = int.from_bytes(data, "big"), 8 * len(data)

    @classmethod
    def of_nal(cls, payload: bytes) -> Bits:
        """Those of a NAL unit's payload."""
        # Emulation prevention (7.3.1 of H.264): a 3 after two zeros is not part of the payload.
        return cls(payload.replace(b"\0\0\3", b"\0\0"))

    def u(self, count: int) -> int:
        """Unsigned, of so many bits."""
        if count > self._left:
            raise ValueError("it ends early")
        self._left -= count
        return self._value >> self._left & ((1 << count) - 1)

    def ue(self) -> int:
        """Exponential-Golomb code (9.1 of H.264)."""
        zeros = 0
        while not self.u(1):
            zeros += 1
        return (1 << zeros) - 1 + self.u(zeros)

    def se(self) -> int:
        """The same, signed."""
        code = self.ue()
        return (code + 1) // 2 if code % 2 else -(code // 2)
