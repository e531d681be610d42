"""The texts and metadata of a dataset's rows, in blocks, each of which is read when one of its rows is first asked for.

The order of an epoch needs numbers alone, and a batch the texts of a few rows. So of a large dataset those of
consolidated tables are not read when it is opened: each file becomes a block in the cache of rows
(`streamvid.dataset.table_cache`), which the processes of a node share.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streamvid.arrays import Int64
from streamvid.dataset import table_cache
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.meta_columns import ColumnBlock, MetaColumns, concat_columns
from streamvid.dataset.schema import FIELD_PREFIX
from streamvid.dataset.shard_files import ShardFiles, fetch_table, read_table
from streamvid.dataset.shard_rows import REMEDY, TextBlock, text_block
from streamvid.errors import DatasetError
from streamvid.storage.explain import AccessRefused, StorageUnavailable
from streamvid.storage.retry import Retry
from streamvid.storage.table_bounds import JointLimit

log = logging.getLogger(__name__)

STSD: Final = "stsd"
_LAYOUT: Final = b"streamvid texts 1\n"
"""Part of the cache key: change it together with what `text_batch` makes."""
_METADATA_KEY: Final = b"streamvid"
_THREADS: Final = 8


class RowTexts:
    """The texts of rows. Thread-safe; picklable, but for the blocks that were read since it was made.

    Args:
        blocks: the number of rows of each block in order, and its Arrow IPC stream, or the SHA-256 of the file of a
            consolidated table that has it.
        entries: the shards' entries in dataset.json.
        read: gives the stream of such a file, if there are any.
    """

    def __init__(
        self,
        blocks: Iterable[tuple[int, pa.Buffer | str]],
        entries: Sequence[ShardEntry],
        read: Callable[[str], pa.Buffer] | None = None,
    ) -> None:
        self._blocks, self._entries, self._read = tuple(blocks), entries, read
        self._starts: Int64 = np.cumsum([0, *(rows for rows, _ in self._blocks)], dtype=np.int64)
        self._tables: dict[int, pa.Table] = {}

    def __len__(self) -> int:
        """Number of rows."""
        return int(self._starts[-1])

    def __reduce__(self) -> tuple[object, ...]:
        return RowTexts, (self._blocks, self._entries, self._read)

    def prepare(self, rows: Sequence[int] | None = None) -> None:
        """Read the blocks of these rows, by default of all, side by side, as far as they are not there. Errors as of
        `TableTexts`."""
        wanted = range(len(self._blocks)) if rows is None else sorted({self._block(row) for row in rows})
        missing = [number for number in wanted if number not in self._tables]
        if missing:
            with ThreadPoolExecutor(min(_THREADS, len(missing))) as pool:
                for number, table in zip(missing, pool.map(self._table, missing), strict=True):
                    self._tables[number] = table

    def value(self, name: str, row: int) -> pa.Scalar[Any]:
        """The text of a row. Raises IndexError if there is no such row, else as `prepare`."""
        row = range(len(self))[row]
        number = self._block(row)
        if number not in self._tables:
            self._tables[number] = self._table(number)
        return _column(self._tables[number], name)[row - int(self._starts[number])]

    def column(self, name: str) -> pa.ChunkedArray:
        """A column of all rows: large_binary for `STSD`, else large_string, empty where a block has none."""
        chunks = [chunk for table in self._all() for chunk in _column(table, name).chunks]
        return pa.chunked_array(chunks, type=_kind(name))

    def metadata(self) -> MetaColumns:
        """The metadata columns."""
        ends = np.cumsum([entry.clips for entry in self._entries])
        blocks, done = [], 0
        for _, same in groupby(self._all(), key=lambda table: (str(table.schema), table.schema.metadata)):
            table = pa.concat_tables(same)
            first, last = (
                self._entries[n].name for n in np.searchsorted(ends, [done, done + len(table) - 1], side="right")
            )
            names = [name for name in table.column_names if name.startswith(FIELD_PREFIX)]
            arrays = {name.removeprefix(FIELD_PREFIX): table[name] for name in names}
            meta = MetaColumns(arrays, **json.loads(table.schema.metadata[_METADATA_KEY]))
            name = f"shard {first}" if first == last else f"shards {first} to {last}"
            blocks.append(ColumnBlock(len(table), meta, name))
            done += len(table)
        return concat_columns(blocks) if blocks else MetaColumns()

    def _all(self) -> list[pa.Table]:
        self.prepare()
        return [self._tables[number] for number in range(len(self._blocks))]

    def _block(self, row: int) -> int:
        return int(np.searchsorted(self._starts, row, side="right")) - 1

    def _table(self, number: int) -> pa.Table:
        stream = self._blocks[number][1]
        if isinstance(stream, str):
            assert self._read is not None
            stream = self._read(stream)
        return pa.ipc.open_stream(stream).read_all()


@dataclass(frozen=True)
class TextColumn:
    """A column of `RowTexts`, which `streamvid.dataset.string_column.ArrowColumn` reads when it is asked for."""

    texts: RowTexts
    name: str

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: int) -> pa.Scalar[Any]:
        return self.texts.value(self.name, row)

    def whole(self) -> pa.ChunkedArray:
        """The column of all rows."""
        return self.texts.column(self.name)

    def prepare(self, rows: Sequence[int]) -> None:
        """Read what these rows need."""
        self.texts.prepare(rows)


@dataclass(frozen=True)
class TableTexts:
    """Reads the files with texts of consolidated tables, by their SHA-256, as streams for `RowTexts`. Picklable.

    Attributes:
        dataset: folder or URL.
        shards: the shards' entries in dataset.json.
        parts: the shards that each of the files is of.
        retry: for how long a storage that does not answer is asked again.
    """

    dataset: str
    shards: Sequence[ShardEntry]
    parts: Mapping[str, slice]
    retry: Retry
    _joint: JointLimit = field(default_factory=JointLimit, repr=False)

    def __call__(self, sha256: str) -> pa.Buffer:
        """The stream of a file, mapped. The shards' own are read instead of one that is damaged, and a warning says so.

        Raises:
            StorageUnavailable, AccessRefused: the storage does not give it.
            DatasetError: the shards' own cannot be used, either.
        """
        entries, stop = self.shards[self.parts[sha256]], threading.Event()

        def build(path: str) -> None:
            data = fetch_table(self.dataset, sha256, cache=None, retry=self.retry, stop=stop)
            _write(path, read_table(data, sha256, entries, texts=True, joint=self._joint), entries)

        def build_of_shards(path: str) -> None:
            found = [
                ShardFiles(self.dataset, entry, None).read_scalars(
                    check_sha256=True, retry=self.retry, stop=stop, joint=self._joint
                )
                for entry in entries
            ]
            try:
                rows = pa.concat_tables(found, promote_options="permissive")
            except pa.ArrowException as error:
                what = f"shards {entries[0].name} to {entries[-1].name} have columns of other types, and one table"
                raise DatasetError(f"{what}: {REMEDY}") from error
            _write(path, rows, entries)

        try:
            return table_cache.open_or_build(cache_key(sha256, entries), build)
        except (StorageUnavailable, AccessRefused):
            raise
        except DatasetError as error:
            log.warning("%s; the Parquet files of its %d shards are read instead", error, len(entries))
            return table_cache.in_memory(build_of_shards)


def cache_key(sha256: str, entries: Sequence[ShardEntry]) -> str:
    """The name of a block in the cache (`streamvid.dataset.table_cache`)."""
    return hashlib.sha256(_LAYOUT + f"{sha256} {entries!r}".encode()).hexdigest()


def text_batch(block: TextBlock, stsd: pa.Array) -> pa.RecordBatch:
    """A block as it is stored.

    Args:
        stsd: large_binary [clips], null where no clip refers to it.
    """
    meta = block.meta
    columns = {**block.texts, STSD: stsd, **{FIELD_PREFIX + name: array for name, array in meta.arrays.items()}}
    about = {"errors": dict(meta.errors), "parquet_types": dict(meta.parquet_types)}
    return pa.record_batch(columns).replace_schema_metadata({_METADATA_KEY: json.dumps(about)})


def _write(path: str, rows: pa.Table, entries: Sequence[ShardEntry]) -> None:
    """Write the texts of rows to a local file, as many bytes as whole words have."""
    block = text_block(rows, entries)
    batch = text_batch(block, block.stsd.take(pa.array(block.stsd_row)) if block.stsd.null_count else block.stsd)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)


def _kind(name: str) -> pa.DataType:
    return pa.large_binary() if name == STSD else pa.large_string()


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    if name in table.column_names:
        return table[name]
    return pa.chunked_array([pa.repeat(pa.scalar("", _kind(name)), len(table))])
