"""Partition of the sources into groups with reserved shard names, fixed before any video is read.

A group is packed independently, and all bytes of its shards follow from its own videos. So the dataset is the same for
any number of workers or machines, in whatever order they finish.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from streamvid.errors import InputError

PARTS: Final = 100
"""Number of shard names of a group, or a divisor of it: the last two digits count the group's shards."""
_SHARDS: Final = 4
"""Full shards in a group. With more, there are fewer groups to distribute; with fewer, more shards end half full."""
_GROWTH: Final = 5
"""A group has names for this many times the bytes of its videos: clips may overlap, and transcoding may add bytes."""
_LEAST_SHARD: Final = 1 << 20
"""Shard sizes below this do not reserve more names."""
_UNKNOWN: Final = 1 << 20
"""Bytes assumed of a video whose storage does not report a size."""
_NAMES: Final = 10**8
"""Shard names: eight digits."""


@dataclass(frozen=True)
class Group:
    """Consecutive sources that are packed together.

    Attributes:
        start, stop: source numbers, half open.
        first: number of the group's first shard, a multiple of `PARTS`.
        names: reserved shard numbers. The last of these shards takes the rest of the clips, whatever their size.
    """

    start: int
    stop: int
    first: int
    names: int


@dataclass(frozen=True)
class GroupCursor:
    """A position in a group, from which packing resumes.

    Attributes:
        source: number of the source.
        clip: number of its clips that are in finished shards.
        part: index of the next shard within the group.
    """

    source: int
    clip: int
    part: int


def partition(sizes: Sequence[int], shard_size: int, *, first: int = 0) -> list[Group]:
    """Put sources into groups, in order.

    Args:
        sizes: bytes of each source, 0 if unknown.
        shard_size: bytes of a full shard.
        first: the lowest unused shard number.

    Returns:
        Groups of about four shards of source bytes, or of one larger source, with names for five times as much.

    Raises:
        InputError: eight digits do not number so many shards.
    """
    limit = _SHARDS * shard_size
    capacity = PARTS * max(shard_size, _LEAST_SHARD) // _GROWTH
    number = -(-first // PARTS) * PARTS
    groups: list[Group] = []
    start, content = 0, 0
    for stop in range(1, len(sizes) + 1):
        content += sizes[stop - 1] or _UNKNOWN
        if stop < len(sizes) and content + (sizes[stop] or _UNKNOWN) <= limit:
            continue
        names = PARTS * max(1, -(-content // capacity))
        groups.append(Group(start, stop, number, names))
        number += names
        start, content = stop, 0
    if number > _NAMES:
        raise InputError(
            f"{len(sizes):,} videos make more shards of {shard_size:,} bytes than there are shard names: give a larger "
            "shard size (--shard-size)"
        )
    return groups
