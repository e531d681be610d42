"""Writing of bitstreams: codes as text of 0 and 1, and NAL units."""

from __future__ import annotations

import re


def to_bits(data: bytes) -> str:
    return "".join(f"{byte:08b}" for byte in data)


def to_bytes(bits: str) -> bytes:
    """Up to the last 1, the stop bit, and zeros up to a whole byte."""
    bits = bits[: bits.rindex("1") + 1]
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def ue(value: int) -> str:
    """An unsigned Exponential-Golomb code (ITU-T H.264, 9.1)."""
    digits = f"{value + 1:b}"
    return "0" * (len(digits) - 1) + digits


def escaped(rbsp: bytes) -> bytes:
    """With emulation prevention bytes (ITU-T H.264, 7.3.1)."""
    return re.sub(rb"\0\0(?=[\0-\3])", b"\0\0\3", rbsp)


def unescaped(payload: bytes) -> bytes:
    """Without them."""
    return payload.replace(b"\0\0\3", b"\0\0")
