"""All that is read of a dataset's shards when it is opened, and how that is kept in one table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamvid.dataset.clip_table import Categories, ClipTable, clip_table, shard_numbers
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.meta_fields import Fields, Stretch, joined, of_table
from streamvid.dataset.meta_json import meta_columns
from streamvid.dataset.schema import FIELD_PREFIX
from streamvid.dataset.string_column import StringColumn

Rows = tuple[ClipTable, Fields | None]
"""The clips, and the columns that came with them; None if no shard has typed ones, and JSON has to be parsed."""

_LAYOUT: Final = b"streamvid rows 1\n"
"""To be changed with what `to_table` makes: other layouts then have other names."""
_ABOUT: Final = b"streamvid"
_STSD: Final = "stsd"
_REMEDY: Final = "pack one of them again with a list in which it is like the other's, or name it otherwise there"


def kept_name(manifest: bytes, stamps: Sequence[tuple[int, int]]) -> str:
    """What the rows of a dataset are kept under: SHA-256 of all that they depend on.

    Args:
        manifest: dataset.json, which has the checksum of every parquet.
        stamps: of local parquets, size and time of the last change: they are not read to compare checksums.
    """
    digest = hashlib.sha256(_LAYOUT + hashlib.sha256(manifest).digest())
    digest.update(np.array(stamps, dtype="<i8").tobytes())
    return digest.hexdigest()


def rows_of(tables: Sequence[pa.Table], entries: Sequence[ShardEntry]) -> Rows:
    """Put together what `read_scalars` read of every shard.

    Raises:
        DatasetError: a value that cannot be right. Names shard and clip.
    """
    return clip_table(tables, entries), _fields(tables, entries)


def to_table(clips: ClipTable, typed: Fields | None) -> pa.Table:
    """The rows as one table, one chunk per column."""
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
    about: dict[str, Any] = {"typed": typed is not None}
    if typed is not None:
        columns |= {FIELD_PREFIX + name: array for name, array in typed.arrays.items()}
        about |= {"wrong": dict(typed.wrong), "types": dict(typed.types)}
    return pa.table(columns).replace_schema_metadata({_ABOUT: json.dumps(about)})


def from_table(table: pa.Table, entries: Sequence[ShardEntry]) -> Rows:
    """What `to_table` was given; arrays are views of the table's memory."""
    columns: dict[str, Any] = {"shard": shard_numbers(entries)}
    for field in fields(ClipTable):
        if field.name in table.column_names:
            column = _whole(table[field.name])
            if pa.types.is_dictionary(column.type):
                columns[field.name] = Categories(column.indices.to_numpy(), tuple(column.dictionary.to_pylist()))
            elif pa.types.is_large_string(column.type):
                columns[field.name] = StringColumn(column)
            else:
                columns[field.name] = column.to_numpy()
    stsd = _whole(table[_STSD])
    columns["stsd_id"], columns["stsds"] = stsd.indices.to_numpy(), stsd.dictionary.to_pylist()
    about = json.loads(table.schema.metadata[_ABOUT])
    typed = None
    if about["typed"]:
        names = [name for name in table.column_names if name.startswith(FIELD_PREFIX)]
        arrays = {name.removeprefix(FIELD_PREFIX): _whole(table[name]) for name in names}
        typed = Fields(arrays, about["wrong"], about["types"])
    return ClipTable(**columns), typed


def _dictionary(codes: Any, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(values, type=kind))


def _whole(column: pa.ChunkedArray) -> Any:
    return column.chunk(0)


def _fields(tables: Sequence[pa.Table], entries: Sequence[ShardEntry]) -> Fields | None:
    """The columns that came with the clips. Shards that have none typed but JSON are from before there were any."""
    names = [tuple(name for name in table.column_names if name.startswith(FIELD_PREFIX)) for table in tables]
    if not any(names):
        return None
    stretches = []
    for numbers in _alike(
        [pa.schema([table.schema.field(n) for n in own]) for table, own in zip(tables, names, strict=True)]
    ):
        own = names[numbers[0]]
        first, last = entries[numbers[0]].name, entries[numbers[-1]].name
        there = [tables[s] for s in numbers]
        if own:
            table = pa.concat_tables([table.select(list(own)) for table in there])
            found = of_table(table.rename_columns([name.removeprefix(FIELD_PREFIX) for name in own]))
        else:
            texts, keys = ([one for table in there for one in table[name].to_pylist()] for name in ("meta", "key"))
            found = Fields(meta_columns(texts, keys))
        name = f"shard {first}" if first == last else f"shards {first} to {last}"
        stretches.append(Stretch(sum(table.num_rows for table in there), found, name))
    return joined(stretches, _REMEDY)


def _alike(schemas: Sequence[pa.Schema]) -> Iterator[list[int]]:
    """Numbers of neighbours with equal schemas."""
    for _, group in groupby(range(len(schemas)), key=lambda s: _comparable(schemas[s])):
        yield list(group)


def _comparable(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, str(field.type)) for field in schema)
