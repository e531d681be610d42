"""The layout of a shard's files: names in the tar, DALI's index, columns of the Parquet file. See docs/format.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

EXTENSIONS: Final = ("mp4", "frames.npy", "json")
"""A clip's files, in tar order."""
KINDS: Final = ("mp4", "npy", "json")
"""The same three files in column names: ``mp4_offset`` …"""
BLOCK: Final = 512
"""Bytes of a tar header; a file's data take whole blocks."""

MAX_FILE_BYTES: Final = (8 << 30) - 1
"""The largest size that fits the 11 octal digits of a USTAR header."""

FIELD_PREFIX: Final = "meta_"
"""Prefix of the metadata columns in Parquet; no other column's name begins with it."""

_FILE_COLUMNS: Final[list[tuple[str, pa.DataType]]] = [
    (f"{kind}_{what}", pa.int64()) for kind in KINDS for what in ("offset", "size")
]
_SCALARS: Final[list[pa.Field[Any]]] = [
    pa.field("key", pa.string(), nullable=False),
    pa.field("source", pa.string(), nullable=False),
    pa.field("label", pa.int64()),
    pa.field("meta", pa.string(), nullable=False),
    *[
        pa.field(name, pa.string(), nullable=False)
        for name in ("codec", "profile", "pix_fmt", "color_space", "color_range", "traits")
    ],
    *[
        pa.field(name, pa.int32(), nullable=False)
        for name in ("width", "height", "rotation", "time_base_num", "time_base_den")
    ],
    pa.field("duration", pa.int64(), nullable=False),
    *[pa.field(name, pa.int32(), nullable=False) for name in ("frames", "packets", "random_access")],
    *[pa.field(name, kind, nullable=False) for name, kind in _FILE_COLUMNS],
    pa.field("sha256", pa.string(), nullable=False),
    pa.field("stsd", pa.binary(), nullable=False),
]
SCALAR_SCHEMA: Final = pa.schema(_SCALARS)
"""The columns that hold one value per clip."""

INDEX_TYPES: Final = {"pts": pa.int64(), "offset": pa.int64(), "size": pa.int32(), "flags": pa.uint8()}
"""The columns that hold a list per clip, one value per packet, and the types of the values."""

SCHEMA: Final = pa.schema(
    [
        *_SCALARS,
        *[
            pa.field(name, pa.list_(pa.field("element", kind, nullable=False)), nullable=False)
            for name, kind in INDEX_TYPES.items()
        ],
    ]
)
"""The columns of a shard's Parquet file, without the metadata columns."""


def idx_text(rows: Sequence[Mapping[str, object]]) -> str:
    """DALI's index, v1.2, of a tar.

    Args:
        rows: per clip `key` and `mp4_offset`, `mp4_size`, … as in the parquet.
    """
    lines = [f"v1.2 {len(rows)}"]
    for row in rows:
        files = [
            f"{extension} {row[f'{kind}_offset']} {row[f'{kind}_size']} {row['key']}.{extension}"
            for extension, kind in zip(EXTENSIONS, KINDS, strict=True)
        ]
        lines.append(" ".join(files))
    return "\n".join(lines) + "\n"
