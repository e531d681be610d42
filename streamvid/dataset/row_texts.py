"""The texts and metadata of a dataset's rows, in blocks, each of which is read when one of its rows is first asked for.

The order of an epoch needs numbers alone, and a batch the texts of a few rows. So of a large dataset those of
consolidated tables are not read when it is opened: each file becomes a block in the cache of rows
(`streamvid.dataset.table_cache`), which the processes of a node share. Of a block that is wanted for the first times,
only the Parquet files of the shards that hold the rows are read, so that a run begins with what its first batches need.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

from streamvid.arrays import Int64
from streamvid.dataset import table_cache
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.meta_columns import ColumnBlock, MetaColumns, concat_columns
from streamvid.dataset.revisions import ended_by
from streamvid.dataset.schema import FIELD_PREFIX
from streamvid.dataset.shard_files import ShardFiles, fetch_table, read_table
from streamvid.dataset.shard_rows import REMEDY, TextBlock, text_block
from streamvid.errors import DatasetError
from streamvid.storage.byte_range import PART_BYTES
from streamvid.storage.client import in_s3
from streamvid.storage.explain import AccessRefused, StorageUnavailable
from streamvid.storage.lru_cache import LruCache
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.retry import Retry
from streamvid.storage.table_bounds import JointLimit
from streamvid.storage.url import is_local

log = logging.getLogger(__name__)

STSD: Final = "stsd"
_LAYOUT: Final = b"streamvid texts 1\n"
"""Part of the cache key: change it together with what `text_batch` makes."""
_METADATA_KEY: Final = b"streamvid"
_THREADS: Final = 16
_ALONE: Final = 4
"""Files of shards that are read of a block, before it is read itself."""
_ROWS: Final = 1 << 14
"""Rows of such files that are kept."""


class RowTexts:
    """The texts of rows. Thread-safe; picklable, but for the blocks that were read since it was made.

    Args:
        blocks: the number of rows of each block in order, and its Arrow IPC stream, or the SHA-256 of the file of a
            consolidated table that has it.
        entries: the shards' entries in dataset.json.
        read: reads such a file, if there are any.
    """

    def __init__(
        self,
        blocks: Iterable[tuple[int, pa.Buffer | str]],
        entries: Sequence[ShardEntry],
        read: TableTexts | None = None,
    ) -> None:
        self._blocks, self._entries, self._read = tuple(blocks), entries, read
        self._starts = _starts(rows for rows, _ in self._blocks)
        self._shards = _starts(entry.clips for entry in entries)
        self._tables: dict[int, pa.Table] = {}
        self._broken: dict[int, DatasetError] = {}
        self._asked: Counter[int] = Counter()
        self._rows: LruCache[int, dict[str, str | bytes]] = LruCache(_ROWS)

    def __len__(self) -> int:
        """Number of rows."""
        return int(self._starts[-1])

    def __reduce__(self) -> tuple[object, ...]:
        return RowTexts, (self._blocks, self._entries, self._read)

    @contextmanager
    def prepared(self, rows: Iterable[int], reader: RangeReader | None = None) -> Iterator[None]:
        """Read what these rows need, side by side, while the block does something else; behind it, it is there.

        Args:
            reader: whose turn it is, and for how long a storage is asked; default: as long as for the dataset.

        Raises:
            StorageUnavailable, AccessRefused: the storage does not give it.
            DatasetError: neither a table nor a shard's own file can be used.
        """
        wanted: dict[int, dict[int, list[int]]] = {}
        for row in rows:
            number = _place(self._starts, row)
            if number not in self._tables and self._rows.get(row) is None:
                wanted.setdefault(number, {}).setdefault(_place(self._shards, row), []).append(row)
        if not wanted:
            yield
            return
        reader = reader or RangeReader(None if self._read is None else self._read.retry)
        with ThreadPoolExecutor(1) as pool:
            fetching = pool.submit(self._fetch, wanted, reader)
            yield
            with reader.turn.waiting():
                files = fetching.result()
        for s, source in files.items():
            self._take(s, wanted[_place(self._starts, int(self._shards[s]))][s], source)

    def _fetch(
        self, wanted: Mapping[int, Mapping[int, Sequence[int]]], reader: RangeReader
    ) -> Mapping[int, str | pa.Buffer | DatasetError]:
        """Read blocks, or give files of shards instead; rows by block and shard."""
        alone: set[int] = set()
        whole = []
        for number, shards in wanted.items():
            self._asked[number] += len(shards)
            if isinstance(self._blocks[number][1], str) and (self._asked[number] <= _ALONE or number in self._broken):
                alone |= shards.keys()
            else:
                whole.append(number)
        for number in self._load(whole, reader.retry):
            alone |= wanted[number].keys()
        return self._read.parquets(sorted(alone), reader) if self._read and alone else {}

    def value(self, name: str, row: int) -> str | bytes:
        """The text of a row. Raises IndexError if there is no such row, else as `prepared`."""
        row = range(len(self))[row]
        number = _place(self._starts, row)
        while True:
            if (table := self._tables.get(number)) is not None:
                text: str | bytes = _column(table, name)[row - int(self._starts[number])].as_py()
                return text
            if (found := self._rows.get(row)) is not None:
                return found.get(name, "")
            with self.prepared([row]):
                pass

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
        every = range(len(self._blocks))
        for number in self._load([number for number in every if number not in self._tables]):
            raise self._broken[number]
        return [self._tables[number] for number in every]

    def _load(self, numbers: Sequence[int], retry: Retry | None = None) -> list[int]:
        """Read blocks; gives those that cannot be used."""

        def load(number: int) -> None:
            stream = self._blocks[number][1]
            try:
                if isinstance(stream, str):
                    assert self._read is not None
                    stream = self._read.stream(stream, retry)
                self._tables[number] = pa.ipc.open_stream(stream).read_all()
            except (StorageUnavailable, AccessRefused):
                raise
            except DatasetError as error:
                self._broken[number] = error

        if numbers:
            with ThreadPoolExecutor(min(_THREADS, len(numbers))) as pool:
                list(pool.map(load, numbers))
        return [number for number in numbers if number not in self._tables]

    def _take(self, s: int, rows: Sequence[int], source: str | pa.Buffer | DatasetError) -> None:
        """Keep the texts of rows of a shard; of a damaged one, the block will be read.

        Raises:
            DatasetError: that cannot be used, either.
        """
        try:
            if isinstance(source, DatasetError):
                raise source
            block = ShardFiles("", self._entries[s], None).read_texts(source)
        except DatasetError as error:
            number = _place(self._starts, rows[0])
            if number in self._broken:
                assert self._read is not None
                raise self._read.told(self._entries[s], error) from error
            log.debug("%s; the table is read instead", error)
            self._asked[number] = _ALONE
            return
        columns = {**block.texts, STSD: block.stsd.take(pa.array(block.stsd_row))}
        for row in rows:
            at = row - int(self._shards[s])
            self._rows.put(row, {name: column[at].as_py() for name, column in columns.items()})


@dataclass(frozen=True)
class TextColumn:
    """A column of `RowTexts`, which `streamvid.dataset.string_column.ArrowColumn` reads when it is asked for."""

    texts: RowTexts
    name: str

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: int) -> str | bytes:
        return self.texts.value(self.name, row)

    def whole(self) -> pa.ChunkedArray:
        """The column of all rows."""
        return self.texts.column(self.name)

    def prepared(self, rows: Sequence[int], reader: RangeReader) -> AbstractContextManager[None]:
        """See `RowTexts.prepared`."""
        return self.texts.prepared(rows, reader)


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

    def parquets(self, shards: Iterable[int], reader: RangeReader) -> dict[int, str | pa.Buffer | DatasetError]:
        """The Parquet files of shards: paths of local ones, else their bytes, or why they cannot be used.

        Raises:
            StorageUnavailable, AccessRefused: the storage does not give them.
        """
        files = {s: ShardFiles(self.dataset, self.shards[s], None) for s in shards}
        beginnings: dict[int, bytes] = {}
        if files and in_s3(self.dataset):
            wanted = [(one.path("parquet"), 0, PART_BYTES) for one in files.values()]
            # Of files that are missing, each is asked for by itself.
            try:
                found = reader.remote.read(wanted, retry=reader.retry, turn=reader.turn.number)
                beginnings = dict(zip(files, found, strict=True))
            except (StorageUnavailable, AccessRefused):
                raise
            except DatasetError:
                pass

        def source(s: int) -> str | pa.Buffer | DatasetError:
            data = beginnings.get(s, b"")
            try:
                if 0 < len(data) < PART_BYTES:
                    return files[s].checked(data)
                return files[s].parquet(reader.retry, threading.Event(), check_sha256=True)
            except (StorageUnavailable, AccessRefused):
                raise
            except DatasetError as error:
                return error

        if is_local(self.dataset) or len(beginnings) == len(files):
            return {s: source(s) for s in files}
        with ThreadPoolExecutor(_THREADS) as pool:
            return dict(zip(files, pool.map(source, files), strict=True))

    def stream(self, sha256: str, retry: Retry | None = None) -> pa.Buffer:
        """The stream of a file, mapped. The shards' own are read instead of one that is damaged, and a warning says so.

        Raises:
            StorageUnavailable, AccessRefused: the storage does not give it.
            DatasetError: the shards' own cannot be used, either.
        """
        retry = retry or self.retry
        entries, stop = self.shards[self.parts[sha256]], threading.Event()

        def build(path: str) -> None:
            data = fetch_table(self.dataset, sha256, cache=None, retry=retry, stop=stop)
            _write(path, read_table(data, sha256, entries, texts=True, joint=self._joint), entries)

        def build_of_shards(path: str) -> None:
            found = []
            for entry in entries:
                files = ShardFiles(self.dataset, entry, None)
                try:
                    found.append(files.read_scalars(check_sha256=True, retry=retry, stop=stop, joint=self._joint))
                except (StorageUnavailable, AccessRefused):
                    raise
                except DatasetError as error:
                    raise self.told(entry, error) from error
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

    def told(self, entry: ShardEntry, error: DatasetError) -> DatasetError:
        """The error of a shard that cannot be read, for whoever reads a revision that a purge has ended."""
        return DatasetError(ended) if (ended := ended_by(self.dataset, entry)) else error


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


def _starts(sizes: Iterable[int]) -> Int64:
    return np.cumsum([0, *sizes], dtype=np.int64)


def _place(starts: Int64, row: int) -> int:
    return int(np.searchsorted(starts, row, side="right")) - 1


def _kind(name: str) -> pa.DataType:
    return pa.large_binary() if name == STSD else pa.large_string()


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    if name in table.column_names:
        return table[name]
    return pa.chunked_array([pa.repeat(pa.scalar("", _kind(name)), len(table))])
