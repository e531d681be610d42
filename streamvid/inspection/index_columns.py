"""The frame indexes of a shard's clips, read from the columns of its Parquet file and validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Bool, Int64, UInt8
from streamvid.dataset.clip_table import ClipTable, Int32
from streamvid.dataset.frame_indexes import packet_rules
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.schema import INDEX_TYPES, SCHEMA
from streamvid.dataset.shard_rows import REMEDY, damaged, read_columns
from streamvid.errors import DatasetError
from streamvid.video.frame_index import HIDDEN, FrameIndex


@dataclass(frozen=True)
class ShardIndex:
    """The frame indexes of all clips of a shard, one after another.

    Attributes:
        starts: int64 [clips + 1], where each clip's packets begin.
        pts, offset: int64 [packets].
        size: int32 [packets].
        flags: uint8 [packets].
    """

    starts: Int64
    pts: Int64
    offset: Int64
    size: Int32
    flags: UInt8

    def clip(self, row: int) -> FrameIndex:
        """The frame index of the clip in that row of the shard."""
        part = slice(int(self.starts[row]), int(self.starts[row + 1]))
        return FrameIndex(
            self.pts[part], self.offset[part], self.size[part].astype(np.int64), self.flags[part].astype(np.int64)
        )


def read_index(source: str | pa.Buffer, entry: ShardEntry, clips: ClipTable, first: int) -> ShardIndex:
    """The frame indexes of a shard.

    Args:
        source: its Parquet file: path of a local file, or its bytes.
        entry: the shard's entry in dataset.json.
        clips: the dataset's rows, with which the indexes must agree.
        first: the row of the shard's first clip.

    Raises:
        DatasetError: the file cannot be read, or an index is invalid. Names shard and clip.
    """
    table = read_columns(source, entry, pa.schema([SCHEMA.field(name) for name in INDEX_TYPES]))
    columns: dict[str, npt.NDArray[Any]] = {}
    rows = slice(first, first + entry.clips)
    starts = np.concatenate([[0], np.cumsum(clips.packets[rows], dtype=np.int64)])
    for name in INDEX_TYPES:
        lists: Any = table[name].combine_chunks()
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        _require(lengths == clips.packets[rows], f"{name!r} has not one value per packet", clips, entry, first)
        values = lists.flatten()
        if values.null_count:
            raise DatasetError(f"shard {entry.name}.parquet has empty values in {name!r}: {REMEDY}")
        columns[name] = values.to_numpy(zero_copy_only=True)
    index = ShardIndex(starts, **columns)
    _check_index(index, entry, clips, first)
    return index


def _check_index(index: ShardIndex, entry: ShardEntry, clips: ClipTable, first: int) -> None:
    rows = slice(first, first + entry.clips)
    if entry.clips:
        mp4_size = np.repeat(clips.mp4_size[rows], clips.packets[rows])
        # Every clip has packets (`_check`), so `reduceat` reduces over the packets of each clip.
        for what, good in packet_rules(index.pts, index.offset, index.size, index.flags, mp4_size).items():
            _require(np.logical_and.reduceat(good, index.starts[:-1]), what, clips, entry, first)
        frames = np.add.reduceat((index.flags & HIDDEN) == 0, index.starts[:-1], dtype=np.int64)
        _require(frames == clips.frames[rows], "it has not as many visible packets as frames", clips, entry, first)


def _require(good: Bool, what: str, clips: ClipTable, entry: ShardEntry, first: int) -> None:
    if not good.all():
        raise damaged(entry, clips.key[first + int(np.argmin(good))], what)
