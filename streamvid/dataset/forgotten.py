"""Reads and writes the table of forgotten clips, which are never delivered; dataset.json names it."""

from __future__ import annotations

import hashlib
import io
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamvid.arrays import Int64
from streamvid.dataset.manifest import FILE_NAME, Forgotten, Manifest
from streamvid.dataset.revisions import table_name
from streamvid.errors import DatasetError
from streamvid.storage import filesystem
from streamvid.storage.parquet import read_parquet
from streamvid.storage.retry import Retry
from streamvid.storage.url import join, redact

_BYTES_PER_CLIP: Final = 128
_MIN_BYTES: Final = 1 << 20
"""A larger table is refused: each row has a shard's name, a few numbers and a checksum."""
SCHEMA: Final = pa.schema(
    [
        pa.field("shard", pa.string(), nullable=False),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("revision", pa.int64()),
        pa.field("forgotten", pa.timestamp("ms", "UTC")),
        pa.field("purged", pa.timestamp("ms", "UTC")),
        pa.field("key_sha256", pa.string()),
    ]
)
"""For each forgotten clip: its shard and row in it, the revision and time at which it was forgotten, the time at which
its bytes were purged, and the SHA-256 of its key, so that the table does not contain its name."""
_NEEDED: Final = 2
"""Columns that a table must have, the first ones."""


def digest(text: str) -> str:
    """SHA-256 of a key or source, in hexadecimal."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def purged_name(text: str) -> str:
    """The replacement of a purged key or source: a hash, by which a video is recognised if it is packed again."""
    return f"purged-{digest(text)[:32]}"


def read_forgotten(dataset: str, manifest: Manifest, retry: Retry) -> Int64:
    """int64 [clips]: the row numbers of forgotten clips, ascending.

    Raises:
        DatasetError: the table is missing, is not the one that dataset.json names, or names clips that do not exist.
    """
    if manifest.forgotten is None:
        return np.empty(0, dtype=np.int64)
    return np.unique(forgotten_rows(read_table(dataset, manifest, retry), manifest))


def forgotten_rows(table: pa.Table, manifest: Manifest) -> Int64:
    """int64 [rows of the table]: the row number of each forgotten clip; -1 for one that does not exist."""
    names = pa.array([entry.name for entry in manifest.shards], pa.string())
    shard = pc.fill_null(pc.index_in(table["shard"], value_set=names), -1).to_numpy()
    row = pc.fill_null(table["row"], -1).to_numpy()
    clips = np.array([entry.clips for entry in manifest.shards], dtype=np.int64)
    exists = (shard >= 0) & (row >= 0) & (row < clips[shard])
    return np.where(exists, (np.cumsum(clips) - clips)[shard] + row, -1)


def read_table(dataset: str, manifest: Manifest, retry: Retry) -> pa.Table:
    """The table of forgotten clips, with the columns of `SCHEMA`; errors as in `read_forgotten`."""
    if manifest.forgotten is None:
        return SCHEMA.empty_table()
    path = join(dataset, manifest.forgotten.file)
    try:
        table = _checked(path, manifest, manifest.forgotten, retry)
    except ValueError as error:  # ArrowInvalid is a ValueError
        raise DatasetError(f"{redact(path)} is not the table that {FILE_NAME} names: {error}; copy it again") from error
    for field in SCHEMA:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(SCHEMA.names)


def _checked(path: str, manifest: Manifest, about: Forgotten, retry: Retry) -> pa.Table:
    if about.clips > manifest.clips:
        raise ValueError(f"it would hold {about.clips} of {manifest.clips} clips")
    data = filesystem.read_bytes(path, most=_MIN_BYTES + _BYTES_PER_CLIP * about.clips, retry=retry)
    if hashlib.sha256(data).hexdigest() != about.sha256:
        raise ValueError("it has another SHA-256")

    def choose(schema: pa.Schema, rows: int) -> list[str]:
        there = {field.name: field.type for field in schema}
        if rows != about.clips or any(there.get(field.name) != field.type for field in list(SCHEMA)[:_NEEDED]):
            raise ValueError(f"it does not have {about.clips} rows of shard (string) and row (int32)")
        return [field.name for field in SCHEMA if there.get(field.name) == field.type]

    try:
        table = read_parquet(data, choose)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise ValueError("it cannot be read as Parquet") from error
    if (forgotten_rows(table, manifest) < 0).any():
        raise ValueError("it names clips that do not exist")
    return table


def write_forgotten(rows: pa.Table, revision: int) -> tuple[Forgotten, bytes]:
    """The entry of a table of forgotten clips for dataset.json, and the table's bytes.

    Args:
        rows: some or all columns of `SCHEMA`, each clip once.
        revision: the revision of rows that have none.
    """
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(len(rows), field.type)
        for field in SCHEMA
    ]
    since = SCHEMA.names.index("revision")
    columns[since] = pc.fill_null(columns[since], revision)
    table = pa.table(columns, schema=SCHEMA).sort_by([("shard", "ascending"), ("row", "ascending")])
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="zstd")
    data = stream.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    return Forgotten(table_name("forgotten", revision, digest), digest, len(table)), data
