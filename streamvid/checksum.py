"""CRC-32C, the checksum of packets and frame indexes (RFC 3720, 12.1), by the processor's own instructions; SHA-256."""

from __future__ import annotations

import ctypes
import hashlib
import os
from pathlib import Path
from typing import Final, Protocol, cast

import numpy as np

from streamvid.arrays import UInt8


class Checksum(Protocol):
    """The CRC-32C of some bytes; with `value`, the CRC-32C of earlier bytes, that of both concatenated."""

    def __call__(self, data: bytes | bytearray | memoryview | UInt8, value: int = 0, /) -> int: ...


_POLYNOMIAL: Final = 0x82F63B78
_ONES: Final = 0xFFFFFFFF
_TABLE_ENTRIES: Final = 1024
_WITH_GIL: Final = 256 << 10
"""Bytes at most that are read with the GIL held: getting it back from threads that decode takes longer."""


def ffmpeg_crc32c() -> Checksum:
    """The CRC-32C function of libavutil, which PyAV's wheels contain: for machines without the package crc32c.

    Raises:
        ImportError: PyAV contains no libavutil.
    """
    import av

    found = sorted(Path(av.__file__).parent.parent.glob("av.libs/libavutil*"))
    if not found:
        raise ImportError("streamvid needs the package crc32c: pip install crc32c")
    library = ctypes.PyDLL(str(found[0]))
    table = (ctypes.c_uint32 * _TABLE_ENTRIES)()
    library.av_crc_init(table, 1, 32, ctypes.c_uint32(_POLYNOMIAL), ctypes.sizeof(table))
    held, freed = library.av_crc, ctypes.CDLL(str(found[0])).av_crc
    for av_crc in (held, freed):
        av_crc.restype = ctypes.c_uint32
        av_crc.argtypes = (ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)

    def crc(data: bytes | bytearray | memoryview | UInt8, value: int = 0, /) -> int:
        array = np.frombuffer(data, dtype=np.uint8)
        av_crc = held if array.size <= _WITH_GIL else freed
        return int(av_crc(table, value ^ _ONES, array.ctypes.data, array.size)) ^ _ONES

    return crc


def _installed() -> Checksum:
    try:
        from crc32c import crc32c
    except ImportError:
        return ffmpeg_crc32c()

    def crc(data: bytes | bytearray | memoryview | UInt8, value: int = 0, /) -> int:
        return cast(int, crc32c(data, value, len(data) > _WITH_GIL))

    return crc


crc32c = _installed()
"""The CRC-32C of some bytes, which are not copied."""


def file_sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a local file, in lower-case hexadecimal. Raises OSError if it cannot be read."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
