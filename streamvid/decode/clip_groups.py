"""Groups of a dataset's clips that a decoder treats alike, with their rows in the table of GPU support."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from streamvid.arrays import Int64, unique_rows
from streamvid.dataset.clip_source import ClipSource
from streamvid.text import format_count
from streamvid.video.gpu_support import Support, support

_NAMED: Final = 3
"""Most clips of a group that a message names."""


@dataclass(frozen=True)
class ClipGroup:
    """Clips that differ only in size, and have the same row in the table of `streamvid.video.gpu_support`."""

    codec: str
    profile: str
    pix_fmt: str
    all_intra: bool
    traits: str
    support: Support

    def __str__(self) -> str:
        return " ".join(text for text in (self.codec, self.profile, self.pix_fmt) if text)

    def describe(self, dataset: ClipSource, rows: Int64, reason: str) -> str:
        """The clips `rows` of this group in words, for messages: their number, the keys of some, and `reason`."""
        keys = ", ".join(dataset.key(row) for row in rows[:_NAMED].tolist())
        return f"{format_count(len(rows), 'clip')} of {self} such as {keys} ({reason})"


def group_clips(dataset: ClipSource, rows: Int64 | None = None) -> dict[ClipGroup, Int64]:
    """Sort clips into groups that one decoder treats alike.

    Args:
        dataset: the dataset.
        rows: int64 [clips]; default: all.

    Returns:
        int64 [clips], the rows of each group.
    """
    clips = dataset.clips
    rows = np.arange(len(dataset), dtype=np.int64) if rows is None else rows
    intra = (clips.random_access == clips.packets) & (clips.packets > 1)
    categories = clips.codec, clips.profile, clips.pix_fmt, clips.traits
    columns = (*(column.codes for column in categories), intra, clips.width, clips.height)
    first, which = unique_rows(*(column[rows] for column in columns))
    numbers: dict[ClipGroup, int] = {}
    group_of = np.empty(len(first), dtype=np.int64)
    for n, example in enumerate(rows[first].tolist()):
        codec, profile, pix_fmt, traits = (column[example] for column in categories)
        all_intra, width, height = bool(intra[example]), int(clips.width[example]), int(clips.height[example])
        row = support(codec, pix_fmt, width, height, traits=traits, all_intra=all_intra)
        group = ClipGroup(codec, profile, pix_fmt, all_intra, traits, row)
        group_of[n] = numbers.setdefault(group, len(numbers))
    return {group: rows[group_of[which] == n] for group, n in numbers.items()}


def header_faults(
    dataset: ClipSource, rows: Int64, fault: Callable[[str, bytes, int, int], str], *, most: float = math.inf
) -> dict[str, Int64]:
    """The clips that a decoder would decode wrongly, found by their sample descriptions.

    Args:
        dataset: the dataset.
        rows: int64 [clips], the clips to examine.
        fault: codec, sample description, width and height of decoded frames → the fault, or "".
        most: most distinct pairs of sample description and size; if there are more, none is examined.

    Returns:
        int64 [clips], the rows with each fault.
    """
    clips = dataset.clips
    first, which = unique_rows(clips.stsd_id[rows], clips.width[rows], clips.height[rows])
    found: dict[str, list[int]] = {}
    for number, row in enumerate(rows[first].tolist() if len(first) <= most else []):
        stsd, width, height = clips.stsds[int(clips.stsd_id[row])], int(clips.width[row]), int(clips.height[row])
        if reason := fault(clips.codec[row], stsd, width, height):
            found.setdefault(reason, []).append(number)
    return {reason: rows[np.isin(which, numbers)] for reason, numbers in found.items()}
