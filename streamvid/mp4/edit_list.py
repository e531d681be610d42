"""What the edit list of an MP4 or MOV shows of a track: ISO/IEC 14496-12, 8.6.6."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from streamvid.mp4 import boxes

MOST_MOOV: Final = 256 << 20
"""Bytes of `moov` that are read into memory: enough for days of video."""
_MOST_BOXES: Final = 1 << 16
_NEVER: Final = 1 << 62
_ONE: Final = (1, 0)
"""An edit's media rate: 1.0."""


@dataclass(frozen=True)
class Edit:
    """A part of a track.

    Attributes:
        begin, end: ticks of the track; what is shown is shown from `begin` on and before `end`.
    """

    begin: int
    end: int


def only_edit(source: Path, track: int) -> Edit | None:
    """The part of a track that is shown, if it is one part.

    Args:
        source: a local file.
        track: the track's number (`track_ID`).

    Returns:
        None if the file is no MP4, or cannot be read, or the track has no edit list, or one that is not followed here:
        one of which `part` makes nothing; in a fragmented file one that has an end, and in any other one that is empty.

    Raises:
        OSError: it cannot be opened.
    """
    with source.open("rb") as file:
        movie = _movie(file)
    try:
        return _edit(movie, track)
    except (struct.error, IndexError, KeyError):
        return None


def part(movie: bytes, start: int, end: int, *, movie_scale: int, scale: int) -> Edit | None:
    """What an `elst` box says.

    Args:
        movie: the payload of the `moov` box.
        start, end: where in it the payload of the `elst` box lies.
        movie_scale, scale: ticks per second of the movie and of the track.

    Returns:
        None for several parts, and for one at another speed. If the length is 0, what is shown is empty.

    Raises:
        struct.error, IndexError: the box is too short.
    """
    layout = struct.Struct(">Qqhh" if movie[start] == 1 else ">Iihh")
    (count,) = struct.unpack_from(">I", movie, start + 4)
    if not 0 < count <= 2 or start + 8 + count * layout.size != end or not movie_scale:
        return None
    edits = [layout.unpack_from(movie, start + 8 + n * layout.size) for n in range(count)]
    # An empty edit alone may come before: the track is shown later.
    if any(edit[2:] != _ONE for edit in edits) or any(edit[1] != -1 for edit in edits[:-1]):
        return None
    length, begin = edits[-1][:2]
    if begin < 0:
        return None
    # To the nearest tick, as FFmpeg rounds it.
    return Edit(begin, begin + (2 * length * scale + movie_scale) // (2 * movie_scale))


def _movie(file: BinaryIO) -> bytes:
    """The payload of the file's first `moov`; empty if none is found."""
    at, length = 0, os.fstat(file.fileno()).st_size
    for _ in range(_MOST_BOXES):
        if at + 8 > length:
            break
        file.seek(at)
        head = file.read(16)
        size, kind = struct.unpack_from(">I4s", head)
        payload = 8
        if size == 1 and len(head) == 16:
            (size,) = struct.unpack_from(">Q", head, 8)
            payload = 16
        if kind == b"moov":
            file.seek(at + payload)
            return file.read(min(max(size - payload, 0), MOST_MOOV) if size else MOST_MOOV)
        if size < payload:
            break
        at += size
    return b""


def _edit(movie: bytes, track: int) -> Edit | None:
    top = list(boxes.boxes(movie, 0, len(movie)))
    starts = {kind: start for kind, start, _ in top}
    header = starts[b"mvhd"]
    for kind, start, end in top:
        if kind != b"trak":
            continue
        trak = _children(movie, start, end)
        number, _ = trak[b"tkhd"]
        if struct.unpack_from(">I", movie, number + (20 if movie[number] == 1 else 12)) == (track,):
            elst = _children(movie, *trak[b"edts"])[b"elst"]
            mdhd, _ = _children(movie, *trak[b"mdia"])[b"mdhd"]
            found = part(movie, *elst, movie_scale=timescale(movie, header), scale=timescale(movie, mdhd))
            if found is None or (found.end == found.begin) != (b"mvex" in starts):
                # Nothing is shown, or fragments follow that the edit list need not count.
                return None
            return replace(found, end=_NEVER) if found.end == found.begin else found
    return None


def _children(movie: bytes, start: int, end: int) -> dict[bytes, tuple[int, int]]:
    """By type, where the payloads of the boxes in a box begin and end."""
    return {kind: (at, stop) for kind, at, stop in boxes.boxes(movie, start, end)}


def timescale(movie: bytes, start: int) -> int:
    """Ticks per second.

    Args:
        movie: the payload of the `moov` box.
        start: where in it the payload of an `mvhd` or an `mdhd` box lies.
    """
    (ticks,) = struct.unpack_from(">I", movie, start + (20 if movie[start] == 1 else 12))
    return int(ticks)
