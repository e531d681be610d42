"""CRC-32C, the checksum of packets and frame indexes (RFC 3720, 12.1), by the processor's own instructions; SHA-256."""

from __future__ import annotations

import hashlib
import os
from typing import Final, cast

from crc32c import crc32c as checksum

from streamvid.arrays import UInt8

_WITH_GIL: Final = 256 << 10
"""Bytes at most that are read with the GIL held: getting it back from threads that decode takes longer."""


def crc32c(data: bytes | bytearray | memoryview | UInt8, value: int = 0, /) -> int:
    """The CRC-32C of some bytes, which are not copied; with `value`, the CRC-32C of earlier bytes, that of both
    concatenated."""
    return cast(int, checksum(data, value, len(data) > _WITH_GIL))


def file_sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a local file, in lower-case hexadecimal. Raises OSError if it cannot be read."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
