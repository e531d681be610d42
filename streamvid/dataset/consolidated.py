"""The consolidated rows of a dataset: the per-clip columns of all shards as Arrow IPC streams, one after another.

They are written block by block, so that memory holds a few blocks and the numbers. The streams of texts and metadata
have a record batch for each block; a new one begins where the metadata columns change. The last stream has the numbers
of all clips in one record batch, as NumPy needs them. Read back, all arrays are views of the bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.dataset.clip_table import CATEGORIES, TEXTS, Categories, ClipTable, FileColumns
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.meta_columns import ColumnBlock, MetaColumns, concat_columns
from streamvid.dataset.schema import FIELD_PREFIX, NUMBERS
from streamvid.dataset.shard_rows import RowBlock, shard_numbers
from streamvid.dataset.string_column import BinaryColumn, StringColumn, repeated
from streamvid.errors import DatasetError

_LAYOUT: Final = b"streamvid rows 5\n"
"""Part of the cache key: change it together with what `write_rows` writes."""
_METADATA_KEY: Final = b"streamvid"
_STSD: Final = "stsd"
_FILE_NUMBERS: Final = {"root": "int32", "file_size": "int64", "file_mtime_ns": "int64"}
_FILE_TEXTS: Final = ("file", "file_etag")
"""Columns of clips outside of shards, which only datasets with such clips have."""
_KNOWN: Final = 4096
"""Sample descriptions that are recognised wherever they come again; others only within a block."""


def cache_key(entries: Sequence[ShardEntry], signatures: Sequence[tuple[int, int]]) -> str:
    """The name of a dataset's consolidated rows in the cache: SHA-256, in hexadecimal, of all that they depend on.

    Args:
        entries: the shards' entries in dataset.json, with the checksum of every Parquet file. What else a revision
            changes is no part of the rows.
        signatures: size and modification time of each local Parquet file, which is not read to compare checksums.
    """
    digest = hashlib.sha256(_LAYOUT + repr(entries).encode())
    digest.update(np.array(signatures, dtype="<i8").tobytes())
    return digest.hexdigest()


def write_rows(path: str, blocks: Iterable[RowBlock], entries: Sequence[ShardEntry]) -> None:
    """Write the rows of all shards to a local file, whose length will be a multiple of 8 bytes.

    Args:
        path: of the file.
        blocks: the rows in order.
        entries: the shards' entries in dataset.json.

    Raises:
        DatasetError: two clips have the same key, or what reading the blocks raises.
        OSError: the file cannot be written.
    """
    joined = _Joined(sum(entry.clips for entry in entries))
    with pa.OSFile(path, "wb") as sink, ExitStack() as streams:
        writer: pa.RecordBatchStreamWriter | None = None
        schema = pa.schema([])
        for block in blocks:
            batch = joined.add(block)
            if writer is None or not batch.schema.equals(schema, check_metadata=True):
                streams.close()
                schema = batch.schema
                writer = streams.enter_context(pa.ipc.new_stream(sink, schema))
            writer.write_batch(batch)
        streams.close()
        numbers = joined.numbers()
        with pa.ipc.new_stream(sink, numbers.schema) as last:
            last.write_batch(numbers)
    with pa.memory_map(path) as file:
        key = read_rows(file.read_buffer(), entries)[0].key
    for twice in repeated(key, joined.key_hashes):
        raise DatasetError(f"the dataset holds the clip {twice!r} more than once: pack it again")


def read_rows(content: pa.Buffer, entries: Sequence[ShardEntry]) -> tuple[ClipTable, MetaColumns]:
    """The rows and metadata columns that `write_rows` wrote; arrays are views of `content`."""
    reader = pa.BufferReader(content)
    tables: list[pa.Table] = []
    while reader.tell() < content.size:
        tables.append(pa.ipc.open_stream(reader).read_all())
    *texts, last = tables
    columns: dict[str, Any] = {"shard": shard_numbers(entries)}
    for name in last.column_names:
        column = last[name].chunk(0)
        if pa.types.is_dictionary(column.type):
            columns[name] = Categories(column.indices.to_numpy(), tuple(column.dictionary.to_pylist()))
        else:
            columns[name] = column.to_numpy()
    for name in TEXTS:
        columns[name] = StringColumn(_chunks(texts, name, pa.large_string()))
    columns["stsds"] = BinaryColumn(_chunks(texts, _STSD, pa.large_binary()))
    if "root" in columns:
        numbers = [columns.pop(name) for name in _FILE_NUMBERS]
        file, etag = (StringColumn(_chunks(texts, name, pa.large_string())) for name in _FILE_TEXTS)
        columns["files"] = FileColumns(numbers[0], file, numbers[1], numbers[2], etag)
    return ClipTable(**columns), _metadata(texts, entries)


class _Joined:
    """Joins blocks: their numbers in memory, renumbered where they refer to others.

    A clip's `stsd_id` is the row of the first clip that has its sample description, and only there it is written.
    """

    def __init__(self, clips: int) -> None:
        self._numbers = {name: np.empty(clips, dtype=dtype) for name, dtype in NUMBERS.items()}
        self._codes = {name: np.empty(clips, dtype=np.int32) for name in CATEGORIES}
        self._names: dict[str, dict[str, int]] = {name: {} for name in CATEGORIES}
        self._stsd_id = np.empty(clips, dtype=np.int32)
        self._known = pa.array([], type=pa.large_binary())
        self._known_rows = np.empty(0, dtype=np.int32)
        self.key_hashes = np.empty(clips, dtype=np.uint64)
        self._done = 0

    def add(self, block: RowBlock) -> pa.RecordBatch:
        """Take a block's numbers; gives its texts and metadata."""
        rows = slice(self._done, self._done + len(block))
        for name, values in block.numbers.items():
            self._numbers[name][rows] = values
        for name, category in block.categories.items():
            numbers = self._names[name]
            renumbered = [numbers.setdefault(text, len(numbers)) for text in category.names]
            self._codes[name][rows] = np.array(renumbered, dtype=np.int32)[category.codes]
        self.key_hashes[rows] = block.key_hashes
        self._done = rows.stop
        meta = block.meta
        columns = {**block.texts, _STSD: self._sample_descriptions(block, rows)}
        columns |= {FIELD_PREFIX + name: array for name, array in meta.arrays.items()}
        if block.files is not None:
            columns |= self._files(block.files, rows)
        about = {"errors": dict(meta.errors), "parquet_types": dict(meta.parquet_types)}
        return pa.record_batch(columns).replace_schema_metadata({_METADATA_KEY: json.dumps(about)})

    def _files(self, files: pa.Table, rows: slice) -> dict[str, pa.Array]:
        """The texts of clips outside of shards; their numbers are kept, -1 for all other clips."""
        for name, dtype in _FILE_NUMBERS.items():
            every = self._numbers.setdefault(name, np.full(len(self._stsd_id), -1, dtype=dtype))
            every[rows] = pc.fill_null(files[name], -1).to_numpy()
        return {name: pc.fill_null(files[name], "").cast(pa.large_string()).combine_chunks() for name in _FILE_TEXTS}

    def numbers(self) -> pa.RecordBatch:
        """The numbers of all clips."""
        columns: dict[str, pa.Array] = {name: pa.array(values) for name, values in self._numbers.items()}
        for name, codes in self._codes.items():
            names = pa.array(list(self._names[name]), type=pa.large_string())
            columns[name] = pa.DictionaryArray.from_arrays(pa.array(codes), names)
        columns["stsd_id"] = pa.array(self._stsd_id)
        return pa.record_batch(columns)

    def _sample_descriptions(self, block: RowBlock, rows: slice) -> pa.Array:
        """large_binary [rows]: sample descriptions, null where an earlier clip has the same."""
        at = pc.index_in(block.stsd, value_set=self._known)
        known = np.asarray(pc.is_valid(at))
        row_of = np.arange(rows.start, rows.stop, dtype=np.int32)
        row_of[known] = self._known_rows[at.filter(pa.array(known)).to_numpy()]
        self._stsd_id[rows] = row_of[block.stsd_row]
        new = np.flatnonzero((block.stsd_row == np.arange(len(block))) & ~known)[: _KNOWN - len(self._known)]
        if len(new):
            self._known = pa.concat_arrays([self._known, block.stsd.take(pa.array(new))])
            self._known_rows = np.concatenate([self._known_rows, row_of[new]])
        return pc.if_else(pa.array(known), pa.scalar(None, block.stsd.type), block.stsd) if known.any() else block.stsd


def _chunks(tables: Sequence[pa.Table], name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """A column of all tables, empty texts where one lacks it."""
    chunks = [
        chunk
        for table in tables
        for chunk in (
            table[name].chunks if name in table.column_names else [pa.repeat(pa.scalar("", kind), len(table))]
        )
    ]
    return pa.chunked_array(chunks, type=kind)


def _metadata(tables: Sequence[pa.Table], entries: Sequence[ShardEntry]) -> MetaColumns:
    ends = np.cumsum([entry.clips for entry in entries])
    blocks, done = [], 0
    for table in tables:
        first, last = np.searchsorted(ends, [done, done + table.num_rows - 1], side="right")
        done += table.num_rows
        arrays = {
            name.removeprefix(FIELD_PREFIX): table[name] for name in table.column_names if name.startswith(FIELD_PREFIX)
        }
        meta = MetaColumns(arrays, **json.loads(table.schema.metadata[_METADATA_KEY]))
        name = (
            f"shard {entries[first].name}" if first == last else f"shards {entries[first].name} to {entries[last].name}"
        )
        blocks.append(ColumnBlock(table.num_rows, meta, name))
    return concat_columns(blocks) if blocks else MetaColumns()
