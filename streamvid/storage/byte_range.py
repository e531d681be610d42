"""Byte ranges of files, and joining them into fewer, larger ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WASTE: Final = 0.15
"""Most unwanted bytes of remote files that are read to save requests, as a share of the wanted bytes."""
REQUEST_BYTES: Final = 400_000
"""The cost of a request in bytes: at 2,500 requests a second, a link of 1 GB/s transfers as many in the time of one."""
BLOCK_BYTES: Final = 4096
"""Size of the blocks in which the cache keeps ranges of remote files."""
PART_BYTES: Final = 8 << 20
"""Longer ranges of remote files are read in parts, concurrently."""


@dataclass(frozen=True)
class FileVersion:
    """The version of a file, by which a change of the file is noticed.

    Attributes:
        size: size in bytes.
        mark: of a local file, the time of its last modification in ns; otherwise its ETag, or the storage's equivalent.
        within: for a local file, the real folders in one of which it must lie after links are followed; empty:
            anywhere. For a URL, hosts to which redirects may lead, besides its own.
    """

    size: int
    mark: str
    within: tuple[str, ...] = ()


@dataclass(frozen=True)
class ByteRange:
    """Bytes [start, end) of the file at a local path or URL."""

    path: str
    start: int
    end: int


def whole_blocks(wanted: ByteRange, size: int) -> ByteRange:
    """A range extended to whole blocks of `BLOCK_BYTES`, in a file of `size` bytes."""
    start, end = wanted.start // BLOCK_BYTES * BLOCK_BYTES, -(-wanted.end // BLOCK_BYTES) * BLOCK_BYTES
    return ByteRange(wanted.path, start, min(end, size))


def in_parts(ranges: Sequence[ByteRange]) -> list[tuple[str, int, int]]:
    """Split ranges into requests of at most `PART_BYTES`: path, start and end of each."""
    return [
        (wanted.path, start, min(start + PART_BYTES, wanted.end))
        for wanted in ranges
        for start in range(wanted.start, max(wanted.end, wanted.start + 1), PART_BYTES)
    ]


def join(ranges: Sequence[ByteRange], *, gap: int, waste: float = WASTE) -> tuple[list[ByteRange], list[int]]:
    """Join ranges: overlapping ones, and ranges with gaps of up to `gap` bytes, the smallest gaps first, until the gaps
    add up to `waste` times the wanted bytes. Gaps are not joined to a range of more than `PART_BYTES`.

    Returns:
        the joined ranges, and for each of `ranges` the number of the joined range that contains it.
    """
    order = sorted(range(len(ranges)), key=lambda n: (ranges[n].path, ranges[n].start))
    between: list[tuple[int, int]] = []
    apart = set()
    end = wanted = 0
    for place, n in enumerate(order):
        current = ranges[n]
        if not place or ranges[order[place - 1]].path != current.path:
            apart.add(place)
        elif current.start > end:
            between.append((current.start - end, place))
        else:
            end = max(end, current.end)
            continue
        end = current.end
        wanted += current.end - current.start
    budget = waste * wanted
    for size, place in sorted(between):
        budget -= size
        if size > gap or budget < 0:
            apart.add(place)
    joined: list[ByteRange] = []
    places = [0] * len(ranges)
    for place, n in enumerate(order):
        current = ranges[n]
        if place in apart or (current.start >= joined[-1].end and current.end - joined[-1].start > PART_BYTES):
            joined.append(current)
        elif current.end > joined[-1].end:
            joined[-1] = ByteRange(current.path, joined[-1].start, current.end)
        places[n] = len(joined) - 1
    return joined, places
