"""Which videos are packed together, and what their shards are called: decided before anything is read.

A group is packed by itself, by whoever comes to it first, and all of its bytes follow from its own videos. So neither
the number of workers or machines nor their order can show in a dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from streamvid.errors import InputError

PARTS: Final = 100
"""Shard names that a group has at least: its last two digits count them."""
_SHARDS: Final = 4
"""Full shards in a group: more, and little is left to share out; fewer, and more of them end half full."""
_GROWTH: Final = 5
"""A group has names for so many times the bytes of its videos: clips may overlap, and converting may add."""
_LEAST_SHARD: Final = 1 << 20
"""Shards smaller than this are not what names are saved for."""
_UNKNOWN: Final = 1 << 20
"""What a video counts for whose size nobody tells."""
_NAMES: Final = 10**8
"""Eight digits."""


@dataclass(frozen=True)
class Group:
    """Sources that are packed together.

    Attributes:
        start, stop: their numbers, half open.
        first: number of the group's first shard, a multiple of `PARTS`.
        names: how many numbers it may use. The last shard takes all that is left, however large it becomes.
    """

    start: int
    stop: int
    first: int
    names: int


def partition(sizes: Sequence[int], shard_size: int, *, first: int = 0) -> list[Group]:
    """Put sources into groups, in order.

    Args:
        sizes: bytes of each source, 0 where nobody tells.
        shard_size: of the dataset.
        first: a shard number that is not taken, nor any after it.

    Returns:
        Groups of about four shards' worth of sources, or of one larger source, with names for five times as much.

    Raises:
        InputError: there are not enough names for so many shards.
    """
    limit = _SHARDS * shard_size
    room = PARTS * max(shard_size, _LEAST_SHARD) // _GROWTH
    number = -(-first // PARTS) * PARTS
    groups: list[Group] = []
    start, content = 0, 0
    for stop in range(1, len(sizes) + 1):
        content += sizes[stop - 1] or _UNKNOWN
        if stop < len(sizes) and content + (sizes[stop] or _UNKNOWN) <= limit:
            continue
        names = PARTS * max(1, -(-content // room))
        groups.append(Group(start, stop, number, names))
        number += names
        start, content = stop, 0
    if number > _NAMES:
        raise InputError(
            f"{len(sizes):,} videos make more shards of {shard_size:,} bytes than have names: give a larger shard size "
            "(--shard-size)"
        )
    return groups
