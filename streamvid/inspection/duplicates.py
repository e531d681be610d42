"""Finds clips of a dataset with the same video, by stored checksums."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.checks import suggest_keywords
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.selection import delivered
from streamvid.mp4.sample_entry import ENTRY_START, without_bit_rate

_AT_ONCE: Final = 1024
"""Frame indexes that are read together."""


@dataclass(frozen=True)
class Duplicates:
    """Clips that are in several rows of a dataset.

    Attributes:
        groups: for each such clip its keys, in the order of rows.
        clips: number of redundant clips: all but the first of each group.
        bytes: size of their MP4s.
        unchecked: number of clips whose packets have equal sizes and times, but no checksums.
    """

    groups: tuple[tuple[str, ...], ...]
    clips: int
    bytes: int
    unchecked: int


@suggest_keywords
def duplicates(dataset: Dataset | str | os.PathLike[str]) -> Duplicates:
    """Find clips with the same bytes.

    Candidates are rows with equal checksum and size of the frame index, which has a CRC-32C per packet. Of these,
    packed clips are the same if their SHA-256 are equal, others if their indexes and sample descriptions are. A video
    that was packed from two different containers is not found.

    Raises:
        DatasetError: the dataset or its storage cannot be read.
    """
    opened = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    clips, rows = opened.clips, delivered(opened)
    marks = (clips.index_crc32c[rows].astype(np.uint64) << np.uint64(32)) | clips.index_size[rows].astype(np.uint64)
    _, which, counts = np.unique(marks, return_inverse=True, return_counts=True)
    rows = rows[counts[which] > 1]
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    unknown: dict[tuple[str, ...], int] = defaultdict(int)
    for first in range(0, len(rows), _AT_ONCE):
        some = rows[first : first + _AT_ONCE]
        for row, (content, known) in zip(some.tolist(), _contents(opened, some), strict=True):
            if known:
                found[content].append(row)
            else:
                unknown[content] += 1
    groups = sorted(group for group in found.values() if len(group) > 1)
    extra = [row for group in groups for row in group[1:]]
    return Duplicates(
        tuple(tuple(map(opened.key, group)) for group in groups),
        len(extra),
        int(clips.mp4_size[np.array(extra, dtype=np.int64)].sum()),
        sum(count for count in unknown.values() if count > 1),
    )


def description(dataset: Dataset, row: int) -> bytes:
    """A clip's sample description without its bit rates, which depend on the writer."""
    clips = dataset.clips
    return without_bit_rate(clips.stsds[clips.stsd_id[row]])[ENTRY_START + 4 :]


def _contents(dataset: Dataset, rows: Int64) -> Sequence[tuple[tuple[str, ...], bool]]:
    """For each clip an identity of its video, and whether that covers all bytes, by SHA-256 or CRC-32C of packets."""
    sums = dataset.checksums(rows)
    others = [row for row, known in zip(rows.tolist(), sums, strict=True) if not known]
    indexes = dict(zip(others, dataset.indexes(others), strict=True))
    found: list[tuple[tuple[str, ...], bool]] = []
    for row, known in zip(rows.tolist(), sums, strict=True):
        if known:
            found.append(((known,), True))
            continue
        index = indexes[row]
        digest = hashlib.sha256(description(dataset, row))
        for column in (index.pts, index.size, index.flags, index.crc32c):
            digest.update(column.tobytes())
        found.append((("", digest.hexdigest()), bool((index.crc32c >= 0).all())))
    return found
