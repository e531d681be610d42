"""The consolidated table: the per-clip columns of all shards' Parquet files as one Arrow table, for `table_cache`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamvid.dataset.clip_table import Categories, ClipTable, clip_table, shard_numbers
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.meta_columns import ColumnBlock, MetaColumns, concat_columns, from_parquet
from streamvid.dataset.schema import FIELD_PREFIX
from streamvid.dataset.string_column import StringColumn

_LAYOUT: Final = b"streamvid rows 2\n"
"""Part of the cache key: change it together with what `to_table` makes."""
_METADATA_KEY: Final = b"streamvid"
_STSD: Final = "stsd"


def cache_key(manifest: bytes, signatures: Sequence[tuple[int, int]]) -> str:
    """The name of a dataset's consolidated table in the cache: SHA-256, in hexadecimal, of all that it depends on.

    Args:
        manifest: dataset.json, which has the checksum of every Parquet file.
        signatures: size and modification time of each local Parquet file, which is not read to compare checksums.
    """
    digest = hashlib.sha256(_LAYOUT + hashlib.sha256(manifest).digest())
    digest.update(np.array(signatures, dtype="<i8").tobytes())
    return digest.hexdigest()


def consolidate(tables: Sequence[pa.Table], entries: Sequence[ShardEntry]) -> tuple[ClipTable, MetaColumns]:
    """The rows and metadata columns of all shards.

    Args:
        tables: what `read_scalars` read of each shard.
        entries: the shards' entries in dataset.json.

    Raises:
        DatasetError: a value out of range. Names shard and clip.
    """
    blocks = []
    # Neighbours with the same metadata columns make one block: shards differ only where videos were appended.
    for schema, group in groupby(range(len(tables)), key=lambda s: _meta_schema(tables[s])):
        numbers = list(group)
        columns = {name: name.removeprefix(FIELD_PREFIX) for name, _ in schema}
        table = pa.concat_tables([tables[s].select(list(columns)) for s in numbers])
        first, last = entries[numbers[0]].name, entries[numbers[-1]].name
        name = f"shard {first}" if first == last else f"shards {first} to {last}"
        rows = sum(tables[s].num_rows for s in numbers)
        blocks.append(ColumnBlock(rows, from_parquet(table.rename_columns(list(columns.values()))), name))
    return clip_table(tables, entries), concat_columns(blocks) if blocks else MetaColumns()


def to_table(clips: ClipTable, meta: MetaColumns) -> pa.Table:
    """Rows and metadata columns as one table, one chunk per column."""
    columns: dict[str, pa.Array] = {}
    for field in fields(ClipTable):
        value = getattr(clips, field.name)
        if isinstance(value, Categories):
            columns[field.name] = _dictionary(value.codes, value.names, pa.large_string())
        elif isinstance(value, StringColumn):
            columns[field.name] = value.array
        elif field.name not in ("shard", "stsd_id", "stsds"):
            columns[field.name] = pa.array(value)
    columns[_STSD] = _dictionary(clips.stsd_id, clips.stsds, pa.large_binary())
    columns |= {FIELD_PREFIX + name: array for name, array in meta.arrays.items()}
    rest = {"errors": dict(meta.errors), "parquet_types": dict(meta.parquet_types)}
    return pa.table(columns).replace_schema_metadata({_METADATA_KEY: json.dumps(rest)})


def from_table(table: pa.Table, entries: Sequence[ShardEntry]) -> tuple[ClipTable, MetaColumns]:
    """What `to_table` was given; arrays are views of the table's memory."""
    columns: dict[str, Any] = {"shard": shard_numbers(entries)}
    for field in fields(ClipTable):
        if field.name in table.column_names:
            column = table[field.name].chunk(0)
            if pa.types.is_dictionary(column.type):
                columns[field.name] = Categories(column.indices.to_numpy(), tuple(column.dictionary.to_pylist()))
            elif pa.types.is_large_string(column.type):
                columns[field.name] = StringColumn(column)
            else:
                columns[field.name] = column.to_numpy()
    stsd = table[_STSD].chunk(0)
    columns["stsd_id"], columns["stsds"] = stsd.indices.to_numpy(), stsd.dictionary.to_pylist()
    names = [name for name in table.column_names if name.startswith(FIELD_PREFIX)]
    arrays = {name.removeprefix(FIELD_PREFIX): table[name].chunk(0) for name in names}
    return ClipTable(**columns), MetaColumns(arrays, **json.loads(table.schema.metadata[_METADATA_KEY]))


def _dictionary(codes: Any, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(values, type=kind))


def _meta_schema(table: pa.Table) -> tuple[tuple[str, str], ...]:
    """Names and types of the metadata columns of a shard's table."""
    return tuple((field.name, str(field.type)) for field in table.schema if field.name.startswith(FIELD_PREFIX))
