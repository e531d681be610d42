"""The layout of a shard's files: names in the tar, DALI's index, columns of the Parquet file. See docs/format.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

EXTENSIONS: Final = ("mp4", "json")
"""A clip's files, in tar order; their columns have the same names: ``mp4_offset`` …"""
BLOCK: Final = 512
"""Bytes of a tar header; a file's data take whole blocks."""

MAX_FILE_BYTES: Final = (8 << 30) - 1
"""The largest size that fits the 11 octal digits of a USTAR header."""

FIELD_PREFIX: Final = "meta_"
"""Prefix of the metadata columns in Parquet; no other column's name begins with it."""

CATEGORIES: Final = ("codec", "profile", "pix_fmt", "color_space", "color_range", "traits")
"""Columns of strings that many clips share."""
TEXTS: Final = ("key", "source", "meta")
"""Columns of strings that are distinct per clip."""
_INT32_COLUMNS: Final = ("width", "height", "rotation", "time_base_num", "time_base_den")
_FILE_COLUMNS: Final = [f"{kind}_{what}" for kind in EXTENSIONS for what in ("offset", "size")]

SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("label", pa.int64()),
        pa.field("meta", pa.string(), nullable=False),
        *(pa.field(name, pa.string(), nullable=False) for name in CATEGORIES),
        *(pa.field(name, pa.int32(), nullable=False) for name in _INT32_COLUMNS),
        pa.field("duration", pa.int64(), nullable=False),
        *(pa.field(name, pa.int32(), nullable=False) for name in ("frames", "packets", "random_access")),
        *(pa.field(name, pa.int64(), nullable=False) for name in _FILE_COLUMNS),
        pa.field("index_offset", pa.int64(), nullable=False),
        pa.field("index_size", pa.int32(), nullable=False),
        pa.field("index_blocks", pa.int32(), nullable=False),
        pa.field("index_crc32c", pa.uint32(), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
        pa.field("stsd", pa.binary(), nullable=False),
    ]
)
"""The columns of a shard's Parquet file, without the metadata columns."""

PLACE_SCHEMA: Final = pa.schema(
    [
        pa.field("root", pa.int32(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("file_size", pa.int64(), nullable=False),
        pa.field("file_mtime_ns", pa.int64()),
        pa.field("file_etag", pa.string()),
    ]
)
"""Further columns of a shard without a tar: where the bytes of each clip are."""

NUMBERS: Final = {
    field.name: str(field.type) for field in SCHEMA if pa.types.is_integer(field.type) and field.name != "index_blocks"
}
"""The columns of numbers that are kept in memory, and their dtypes; `index_blocks` follows from others."""
PLACE_NUMBERS: Final = {field.name: str(field.type) for field in PLACE_SCHEMA if pa.types.is_integer(field.type)}
PLACE_TEXTS: Final = tuple(field.name for field in PLACE_SCHEMA if field.name not in PLACE_NUMBERS)


def idx_text(rows: Sequence[Mapping[str, object]]) -> str:
    """DALI's index, v1.2, of a tar.

    Args:
        rows: for each clip its `key`, `mp4_offset`, `mp4_size`, … as in the Parquet file.
    """
    lines = [f"v1.2 {len(rows)}"]
    for row in rows:
        files = [f"{kind} {row[f'{kind}_offset']} {row[f'{kind}_size']} {row['key']}.{kind}" for kind in EXTENSIONS]
        lines.append(" ".join(files))
    return "\n".join(lines) + "\n"
