"""Reading and building boxes of MP4 and MOV files (ISO/IEC 14496-12), and the display matrix. Sections are those of
that standard."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from io import BufferedReader, RawIOBase
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

OpenFile = RawIOBase | BufferedReader
"""A file that is open for reading. If it is raw, each read must give all bytes that it is asked for."""
_CONTAINERS: Final = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts")
MAX_MOOV_BYTES: Final = 256 << 20
"""Bytes of `moov` that are read into memory: enough for days of video."""
NO_MOOV: Final = (
    "it cannot be read without its moov box: it is cut off, or its recording was, or it is a segment (join it behind "
    "its initialization segment)"
)
_MAX_BOXES: Final = 1 << 16
"""Top-level boxes that are looked at."""
MAX_HEAD_BYTES: Final = 1 << 26
_FIXED_1: Final = 1 << 16
"""1.0 in 16.16 fixed point."""
_TURNS: Final = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}
"""a, b, c, d of the display matrix by degrees clockwise."""
MIRRORED: Final = 360
"""Added to a rotation: the frame is mirrored, left to right, before it is turned."""
ROTATIONS: Final = (0, 90, 180, 270, 360, 450, 540, 630)
"""The eight ways of a frame to be shown: degrees clockwise, plus `MIRRORED`."""
_TURN_TOLERANCE: Final = math.tan(math.radians(1))
"""FFmpeg, too, takes a turn for one of 90 degrees if it is one to a degree."""


def iter_boxes(data: bytes | bytearray | memoryview, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """The boxes in data[start:end] as (type, start of payload, end). Stops at the first box that does not fit."""
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


def iter_file_boxes(file: OpenFile, length: int) -> Iterator[tuple[bytes, int, int]]:
    """The top-level boxes of a file as (type, start of payload, end), read lazily.

    Ends follow from the sizes in the file and are not checked: an end may lie before the payload or after the end of
    the file. No box is read after such a box.

    Args:
        file: open for reading.
        length: size of the file, in bytes.

    Raises:
        OSError: the file cannot be read.
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
    """Start of the payload, and end, of the first box of a type at the top level of a file or in one of the containers
    of a sample table; None if there is none."""
    level = [(0, len(data))]
    while level:
        inner = []
        for kind, payload, stop in iter_boxes(data, *level.pop()):
            if kind == name:
                return payload, stop
            if kind in _CONTAINERS:
                inner.append((payload, stop))
        level += reversed(inner)
    return None


def read_moovs(source: Path) -> Iterator[bytes]:
    """The payloads of a file's `moov` boxes: one, unless files were joined. Raises OSError if the file cannot be
    opened."""
    with source.open("rb") as file:
        for kind, payload, end in islice(iter_file_boxes(file, os.fstat(file.fileno()).st_size), _MAX_BOXES):
            if kind == b"moov":
                file.seek(payload)
                yield file.read(min(max(end - payload, 0), MAX_MOOV_BYTES))


def read_moov(source: Path) -> bytes:
    """The payload of a file's first `moov`; empty if there is none. Errors as of `read_moovs`."""
    return next(read_moovs(source), b"")


def lacks_moov(source: Path) -> bool:
    """Whether a file begins like an MP4 or MOV, or a segment of DASH or HLS, but has no `moov`. Raises OSError if the
    file cannot be opened."""
    with source.open("rb") as file:
        boxes = islice(iter_file_boxes(file, os.fstat(file.fileno()).st_size), _MAX_BOXES)
        kinds = [kind for kind, _, _ in boxes]
    return bool(kinds) and kinds[0] in (b"ftyp", b"styp", b"sidx", b"moof") and b"moov" not in kinds


def children(data: bytes, start: int, end: int) -> dict[bytes, tuple[int, int]]:
    """Start and end of the payloads of the boxes in data[start:end], by type; if several have one type, of the last."""
    return {kind: (payload, stop) for kind, payload, stop in iter_boxes(data, start, end)}


def find_track(moov: bytes, number: int) -> dict[bytes, tuple[int, int]]:
    """The `children` of the `trak` box with track_ID `number`.

    Raises:
        KeyError: there is no such track.
        struct.error, IndexError: a box is too short.
    """
    for kind, start, end in iter_boxes(moov, 0, len(moov)):
        if kind == b"trak":
            trak = children(moov, start, end)
            tkhd, _ = trak[b"tkhd"]
            if struct.unpack_from(">I", moov, tkhd + (20 if moov[tkhd] == 1 else 12)) == (number,):
                return trak
    raise KeyError(number)


def read_timescale(data: bytes | bytearray | memoryview, start: int) -> int:
    """Ticks per second from an `mvhd` or `mdhd` box (8.2.2, 8.4.2), whose payload begins at `start`; 0 if the number is
    0, or has more than the 31 bits that FFmpeg takes.

    Raises:
        IndexError, struct.error: the box is too short.
    """
    (ticks,) = struct.unpack_from(">I", data, start + (20 if data[start] == 1 else 12))
    return int(ticks) if ticks < 1 << 31 else 0


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
        rotation: one of `ROTATIONS`.
        width, height: of frames before rotation, in pixels; not used for rotation 0.
    """
    a, b, c, d = _TURNS[rotation % MIRRORED]
    if rotation >= MIRRORED:
        a, b = -a, -b
    x, y = (
        sum(side for side, factor in zip((width, height), row, strict=True) if factor < 0) for row in ((a, c), (b, d))
    )
    return struct.pack(">9i", *(_FIXED_1 * value for value in (a, b, 0, c, d, 0, x, y)), 1 << 30)


def rotation_of_matrix(a: float, b: float, c: float, d: float) -> int | None:
    """The rotation, one of `ROTATIONS`, of a display matrix: x' = a·x + c·y, y' = b·x + d·y, y downwards.

    FFmpeg and players ignore the scale. If a matrix maps everything onto a line or a point, they do not transform
    frames: that is 0, too.

    Returns:
        None if the matrix rotates by other than quarter turns, or shears.
    """
    if not (math.hypot(a, c) and math.hypot(b, d)):
        return 0
    if max(abs(b), abs(c)) <= _TURN_TOLERANCE * min(abs(a), abs(d)):
        a, b, c, d = math.copysign(1, a), 0, 0, math.copysign(1, d)
    elif max(abs(a), abs(d)) <= _TURN_TOLERANCE * min(abs(b), abs(c)):
        a, b, c, d = 0, math.copysign(1, b), math.copysign(1, c), 0
    else:
        return None
    mirrored = a * d - b * c < 0
    turn = (-a, -b, c, d) if mirrored else (a, b, c, d)
    return next(degrees for degrees, matrix in _TURNS.items() if matrix == turn) + MIRRORED * mirrored


def write_rotation(file: BinaryIO, rotation: int, *, width: int, height: int) -> None:
    """Set the display matrix of a file's only track, in place.

    Args:
        file: an MP4 with `moov` before `mdat`, open for reading and writing.
        rotation, width, height: as in `display_matrix`.

    Raises:
        ValueError: the file has no track header.
    """
    data = file.read(MAX_HEAD_BYTES)
    found = find_box(data, b"tkhd")
    if found is None:
        raise ValueError("no track header in the MP4")
    file.seek(found[0] + (52 if data[found[0]] == 1 else 40))
    file.write(display_matrix(rotation, width=width, height=height))
