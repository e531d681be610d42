"""The rows of clips in the Parquet file of their shard. docs/format.md specifies the columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamvid.dataset.schema import CATEGORIES, SCHEMA
from streamvid.packing.options import Place
from streamvid.packing.source_video import SourceVideo
from streamvid.storage import parquet_writer
from streamvid.storage.byte_range import FileVersion
from streamvid.storage.url import is_local
from streamvid.video.frame_index import RANDOM_ACCESS
from streamvid.video.index_file import EncodedIndex
from streamvid.video.stored_clip import StoredClip

_CLIP_COLUMNS: Final = (*CATEGORIES, "width", "height", "rotation", "duration", "stsd")
"""Attributes of a stored clip that are columns of the same names."""

Row = dict[str, Any]


def clip_columns(clip: StoredClip, index: EncodedIndex) -> Row:
    """The columns of a row that are derived from the video."""
    return {
        **{name: getattr(clip, name) for name in _CLIP_COLUMNS},
        "time_base_num": clip.time_base[0],
        "time_base_den": clip.time_base[1],
        "frames": len(clip.index.visible),
        "packets": len(clip.index),
        "random_access": int(np.count_nonzero(clip.index.flags & RANDOM_ACCESS)),
        "index_size": len(index.data),
        "index_blocks": index.blocks,
        "index_crc32c": index.crc32c,
    }


def place_columns(source: SourceVideo, root: int) -> Place:
    """The columns of a row with the location of a video in place; `root` is the number of its root."""
    version = FileVersion(source.file_bytes or source.size, source.mark)
    return place_of_clip(source.part or (0, source.size), root, source.file, version, local=is_local(source.path))


def place_of_clip(
    part: tuple[int, int], root: int, file: str, version: FileVersion, *, local: bool, sha256: str = ""
) -> Place:
    """The columns of a row with the location of a clip in place.

    Args:
        part: offset and size in bytes, of the clip's MP4 or of the file that it is cut out of.
        root, file: number of the root, and the path below it.
        version: the file's version.
        local: whether the file is local.
        sha256: SHA-256 of the clip's MP4; "" if unknown.
    """
    return {
        "mp4_offset": part[0],
        "mp4_size": part[1],
        "json_offset": 0,
        "json_size": 0,
        "sha256": sha256,
        "root": root,
        "file": file,
        "file_size": version.size,
        "file_mtime_ns": int(version.mark) if local else None,
        "file_etag": None if local else version.mark,
    }


def write_parquet(rows: Sequence[Row], path: Path, fields: pa.Table, schema: pa.Schema = SCHEMA) -> None:
    """Write the Parquet file of a shard.

    Args:
        rows: the clips' rows.
        path: the file.
        fields: the metadata columns, from `streamvid.packing.metadata.Metadata.columns`.
        schema: the schema of all other columns.
    """
    columns = [pa.array([row[field.name] for row in rows], type=field.type) for field in schema]
    table = pa.Table.from_arrays(
        [*columns, *fields.columns], schema=pa.schema([*schema, *fields.schema], metadata=schema.metadata)
    )
    # One row group, because a shard's file is read as a whole, and more would cost requests.
    parquet_writer.write_parquet(table, path, group_rows=max(1, len(rows)))
