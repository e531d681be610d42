"""Byte ranges of a file, read in order in large blocks, however small the ranges and the gaps between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from streamvid.arrays import Int64, UInt8
from streamvid.mp4.boxes import OpenFile

BLOCK_BYTES: Final = 1 << 20
"""Bytes that are read at once: few calls, and what was read is still in the processor's cache when it is written."""


@dataclass(frozen=True)
class ReadBuffer:
    """The ranges of one block; valid until the next block is read.

    Attributes:
        ranges: the bytes of each range.
        runs: the same bytes, with ranges that adjoin in the file in one view.
    """

    ranges: list[memoryview]
    runs: list[memoryview]


def read_blocks(file: OpenFile, offset: Int64, size: Int64) -> Iterator[ReadBuffer]:
    """Read byte ranges of a file in order, and the gaps between them.

    Args:
        file: open for reading.
        offset, size: int64 [ranges], in bytes; offsets rise, and ranges do not overlap.

    Raises:
        EOFError: the file is too short.
        OSError: it cannot be read.
    """
    ends = offset + size
    buffer = memoryview(bytearray(min(BLOCK_BYTES, int(ends[-1] - offset[0]))))
    first = 0
    while first < len(offset):
        origin = int(offset[first])
        stop = max(first + 1, int(np.searchsorted(ends, origin + BLOCK_BYTES, side="right")))
        length = int(ends[stop - 1]) - origin
        if length > len(buffer):
            buffer = memoryview(bytearray(length))
        view = buffer[:length]
        _fill(file, origin, view)
        starts, last = offset[first:stop] - origin, ends[first:stop] - origin
        apart = starts[1:] != last[:-1]
        ranges = _views(view, starts, last)
        runs = _views(view, starts[np.append(True, apart)], last[np.append(apart, True)]) if apart.any() else [view]
        yield ReadBuffer(ranges, runs)
        first = stop


def read_range(file: OpenFile, start: int, end: int) -> UInt8:
    """The bytes of a file from a start to an end, uint8 [bytes]; errors as in `read_blocks`."""
    data = np.empty(end - start, dtype=np.uint8)
    _fill(file, start, data.data)
    return data


def _views(view: memoryview, starts: Int64, ends: Int64) -> list[memoryview]:
    return [view[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]


def coalesce(offset: Int64, size: Int64) -> tuple[Int64, Int64]:
    """The same bytes in fewer ranges: adjoining ones are merged, and none is longer than a block.

    Args:
        offset, size: int64 [ranges], in bytes, in the order of the bytes wanted.

    Returns:
        the same for the merged ranges.
    """
    starts = np.flatnonzero(np.concatenate([[True], offset[1:] != offset[:-1] + size[:-1]]))
    offset, size = offset[starts], np.add.reduceat(size, starts)
    counts = -(-size // BLOCK_BYTES)
    nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    offset, size = np.repeat(offset, counts) + nth * BLOCK_BYTES, np.repeat(size, counts) - nth * BLOCK_BYTES
    return offset, np.minimum(size, BLOCK_BYTES)


def _fill(file: OpenFile, at: int, view: memoryview) -> None:
    file.seek(at)
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise EOFError("it became shorter while it was read")
        done += count
