"""Stretches of a file, read one after the other in large pieces, however small the stretches and the gaps between."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from streamvid.arrays import Int64

PIECE: Final = 1 << 20
"""Bytes that are read at once: few calls, and what was read is still in the processor's cache when it is written."""


@dataclass(frozen=True)
class ReadBuffer:
    """What was read at once; valid until the next piece is.

    Attributes:
        stretches: each of the stretches in it.
        runs: the same bytes, with stretches together that are neighbours in the file.
    """

    stretches: list[memoryview]
    runs: list[memoryview]


def read_pieces(file: io.RawIOBase, offset: Int64, size: Int64) -> Iterator[ReadBuffer]:
    """Read stretches of a file in order.

    Args:
        file: open for reading, without a buffer.
        offset, size: int64 [stretches], in bytes; offsets rise, and stretches do not overlap.

    Raises:
        EOFError: the file is too short.
        OSError: it cannot be read.
    """
    ends = offset + size
    buffer = memoryview(bytearray(min(PIECE, int(ends[-1] - offset[0]))))
    first = 0
    while first < len(offset):
        origin = int(offset[first])
        stop = max(first + 1, int(np.searchsorted(ends, origin + PIECE, side="right")))
        length = int(ends[stop - 1]) - origin
        if length > len(buffer):
            buffer = memoryview(bytearray(length))
        view = buffer[:length]
        _fill(file, origin, view)
        starts, last = offset[first:stop] - origin, ends[first:stop] - origin
        apart = starts[1:] != last[:-1]
        stretches = _views(view, starts, last)
        runs = _views(view, starts[np.append(True, apart)], last[np.append(apart, True)]) if apart.any() else [view]
        yield ReadBuffer(stretches, runs)
        first = stop


def _views(view: memoryview, starts: Int64, ends: Int64) -> list[memoryview]:
    return [view[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def coalesce(offset: Int64, size: Int64) -> tuple[Int64, Int64]:
    """The same bytes in fewer stretches: neighbours together, and none longer than a piece."""
    starts = np.flatnonzero(np.concatenate([[True], offset[1:] != offset[:-1] + size[:-1]]))
    offset, size = offset[starts], np.add.reduceat(size, starts)
    counts = -(-size // PIECE)
    nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    offset, size = np.repeat(offset, counts) + nth * PIECE, np.repeat(size, counts) - nth * PIECE
    return offset, np.minimum(size, PIECE)


def _fill(file: io.RawIOBase, at: int, view: memoryview) -> None:
    file.seek(at)
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise EOFError("it became shorter while it was read")
        done += count
