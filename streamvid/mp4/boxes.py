"""Reading and building boxes of MP4 and MOV files (ISO/IEC 14496-12), and the display matrix. Sections are those of
that standard."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import RawIOBase
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

_CONTAINERS: Final = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts")
_FIXED_1: Final = 1 << 16
"""1.0 in 16.16 fixed point."""
_TURNS: Final = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}
"""a, b, c, d of the display matrix by degrees clockwise."""
_ROTATIONS: Final = {turn: degrees for degrees, turn in _TURNS.items()}


def iter_boxes(data: bytes | bytearray | memoryview, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """The boxes in data[start:end] as (type, start of payload, end). Stops at the first that does not fit."""
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        payload = start + 8
        if size == 1 and start + 16 <= end:
            (size,) = struct.unpack_from(">Q", data, start + 8)
            payload = start + 16
        elif size == 0:
            size = end - start
        if size < payload - start or start + size > end:
            return
        yield kind, payload, start + size
        start += size


def iter_file_boxes(file: RawIOBase | BinaryIO, length: int) -> Iterator[tuple[bytes, int, int]]:
    """The top-level boxes of a file as (type, start of payload, end), each read when it is asked for.

    Ends follow from the sizes in the file and are not checked: one may lie before its payload or after the end of the
    file. No box is read after such a one.

    Args:
        file: open for reading.
        length: its size, in bytes.

    Raises:
        OSError: it cannot be read.
    """
    at = 0
    while at < length:
        file.seek(at)
        head = file.read(16)
        if len(head) < 8:
            return
        size, kind = struct.unpack_from(">I4s", head)
        payload, end = at + 8, at + size
        if size == 1 and len(head) == 16:
            payload, end = at + 16, at + struct.unpack_from(">Q", head, 8)[0]
        elif size == 0:
            end = length
        yield kind, payload, end
        if end < payload:
            return
        at = end


def find_box(data: bytes | bytearray | memoryview, name: bytes) -> tuple[int, int] | None:
    """Start of the payload and end of the first box of that type at the top of a file or on the way to a sample table;
    None if there is none."""
    level = [(0, len(data))]
    while level:
        start, end = level.pop()
        for kind, payload, stop in iter_boxes(data, start, end):
            if kind == name:
                return payload, stop
            if kind in _CONTAINERS:
                level.append((payload, stop))
    return None


def read_timescale(data: bytes | bytearray | memoryview, start: int) -> int:
    """Ticks per second, of the `mvhd` or `mdhd` box (8.2.2, 8.4.2) whose payload begins there.

    Raises:
        IndexError, struct.error: it is too short.
    """
    (ticks,) = struct.unpack_from(">I", data, start + (20 if data[start] == 1 else 12))
    return int(ticks)


def box(kind: bytes, *parts: bytes) -> bytes:
    """A box with a 32-bit size (4.2)."""
    payload = b"".join(parts)
    return struct.pack(">I4s", 8 + len(payload), kind) + payload


def full_box(kind: bytes, *parts: bytes, version: int = 0, flags: int = 0) -> bytes:
    """A box that begins with a version and flags (4.2)."""
    return box(kind, struct.pack(">I", version << 24 | flags), *parts)


def be32(values: npt.ArrayLike) -> bytes:
    """Integers as big-endian uint32."""
    return np.asarray(values, dtype=">u4").tobytes()


def display_matrix(rotation: int = 0, *, width: int = 0, height: int = 0) -> bytes:
    """The matrix of `mvhd` and `tkhd` (6.2.2) that turns frames upright, and moves them back to positive coordinates.

    Args:
        rotation: degrees clockwise: 0, 90, 180 or 270.
        width, height: of frames before rotation, in pixels; of no account for 0.
    """
    a, b, c, d = (_FIXED_1 * value for value in _TURNS[rotation])
    x, y = {0: (0, 0), 90: (height, 0), 180: (width, height), 270: (0, width)}[rotation]
    return struct.pack(">9i", a, b, 0, c, d, 0, x * _FIXED_1, y * _FIXED_1, 1 << 30)


def rotation_of_matrix(matrix: bytes) -> int | None:
    """Degrees clockwise by which a display matrix turns frames: 0, 90, 180 or 270; None if it does anything else.

    Translation is not looked at.
    """
    a, b, u, c, d, v, _, _, w = struct.unpack(">9i", matrix)
    if (u, v, w) != (0, 0, 1 << 30):
        return None
    return _ROTATIONS.get((a / _FIXED_1, b / _FIXED_1, c / _FIXED_1, d / _FIXED_1))
