"""The texts and metadata of a dataset's rows, in blocks that are read on demand.

The order of an epoch needs only numbers, and a batch needs the texts of a few rows. So the texts of a large dataset are
not read when it is opened. Each of its text tables becomes a block in the cache of rows
(`streamvid.dataset.table_cache`), which the processes of a node share. The first few requests for a block read only the
Parquet files of the shards that hold the rows, so that a run starts quickly.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

import numpy as np
import pyarrow as pa

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
"""Part of the cache key: change it together with the format of `text_batch`."""
_METADATA_KEY: Final = b"streamvid"
_THREADS: Final = 16
_ALONE: Final = 4
"""Shard files that are read in place of a block before the block itself is read."""
_ROWS: Final = 1 << 14
"""Most rows from shard files that are kept."""


class RowTexts:
    """The texts of rows. Thread-safe; picklable, without the blocks that were read.

    Args:
        blocks: for each block in order its number of rows, and its Arrow IPC stream or the SHA-256 of the consolidated
            table's file that has it.
        entries: the shards' entries in dataset.json.
        read: reads files of consolidated tables; None if no block is in one.
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
        self._columns: dict[tuple[int, str], pa.ChunkedArray] = {}
        self._broken: dict[int, DatasetError] = {}
        self._asked: Counter[int] = Counter()
        self._rows: LruCache[int, dict[str, str | bytes]] = LruCache(_ROWS)

    def __len__(self) -> int:
        """Number of rows."""
        return self._starts[-1]

    def __reduce__(self) -> tuple[object, ...]:
        return RowTexts, (self._blocks, self._entries, self._read)

    @contextmanager
    def prepared(self, rows: Iterable[int], reader: RangeReader | None = None) -> Iterator[None]:
        """A context that reads the texts of these rows while its body runs; they are in memory when it ends.

        Args:
            rows: row numbers.
            reader: its turn and retries apply; default: the dataset's retries.

        Raises:
            StorageUnavailable, AccessRefused: the storage failed.
            DatasetError: neither the table nor a shard's own file is usable.
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
            self._take(s, wanted[_place(self._starts, self._shards[s])][s], source)

    def _fetch(
        self, wanted: Mapping[int, Mapping[int, Sequence[int]]], reader: RangeReader
    ) -> Mapping[int, str | pa.Buffer | DatasetError]:
        """Read blocks, or instead of a block the files of the shards that hold its rows.

        Args:
            wanted: rows by block and shard.

        Returns:
            the shards' files, as in `TableTexts.parquets`.
        """
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
        """The text of a row. Raises IndexError if there is no such row, and the errors of `prepared`."""
        if not 0 <= row < self._starts[-1]:
            row = range(len(self))[row]
        number = _place(self._starts, row)
        while True:
            if (table := self._tables.get(number)) is not None:
                if (column := self._columns.get((number, name))) is None:
                    column = self._columns[number, name] = _column(table, name)
                text: str | bytes = column[row - self._starts[number]].as_py()
                return text
            if (found := self._rows.get(row)) is not None:
                return found.get(name, "")
            with self.prepared([row]):
                pass

    def column(self, name: str) -> pa.ChunkedArray:
        """A column of all rows: large_binary for `STSD`, otherwise large_string; empty strings for blocks without
        it."""
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
        """Read blocks. Returns the numbers of unusable ones."""

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
        """Keep the texts of rows of a shard. If the shard's file is damaged, the block will be read instead.

        Raises:
            DatasetError: the block is unusable, too.
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
            at = row - self._shards[s]
            self._rows.put(row, {name: column[at].as_py() for name, column in columns.items()})


@dataclass(frozen=True)
class TableTexts:
    """Reads the text files of consolidated tables, by their SHA-256, as streams for `RowTexts`. Picklable.

    Attributes:
        dataset: folder or URL.
        shards: the shards' entries in dataset.json.
        parts: SHA-256 of each file → its shards.
        retry: for how long requests are repeated while a storage does not answer.
    """

    dataset: str
    shards: Sequence[ShardEntry]
    parts: Mapping[str, slice]
    retry: Retry
    _joint: JointLimit = field(default_factory=JointLimit, repr=False)

    def parquets(self, shards: Iterable[int], reader: RangeReader) -> dict[int, str | pa.Buffer | DatasetError]:
        """The Parquet files of shards, as `ShardFiles.parquet` returns them, or the error of an unusable one.

        Raises:
            StorageUnavailable, AccessRefused: the storage failed.
        """
        files = {s: ShardFiles(self.dataset, self.shards[s], None) for s in shards}
        beginnings: dict[int, bytes] = {}
        if files and in_s3(self.dataset):
            wanted = [(file.path("parquet"), 0, PART_BYTES) for file in files.values()]
            # If a file is missing, all are read one by one below.
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
        """The stream of a file, mapped. If the file is damaged, a warning says so, and the shards' own files are read.

        Raises:
            StorageUnavailable, AccessRefused: the storage failed.
            DatasetError: the shards' own files are unusable, too.
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
        """The error of an unreadable shard, or an error which says that a purge has ended this revision."""
        return DatasetError(ended) if (ended := ended_by(self.dataset, entry)) else error


def cache_key(sha256: str, entries: Sequence[ShardEntry]) -> str:
    """The name of a block in the cache (`streamvid.dataset.table_cache`)."""
    return hashlib.sha256(_LAYOUT + f"{sha256} {entries!r}".encode()).hexdigest()


def text_batch(block: TextBlock, stsd: pa.Array) -> pa.RecordBatch:
    """A block in the cache's format.

    Args:
        block: the texts and metadata.
        stsd: large_binary [clips], null where no clip refers to it.
    """
    meta = block.meta
    columns = {**block.texts, STSD: stsd, **{FIELD_PREFIX + name: array for name, array in meta.arrays.items()}}
    about = {"errors": dict(meta.errors), "parquet_types": dict(meta.parquet_types)}
    return pa.record_batch(columns).replace_schema_metadata({_METADATA_KEY: json.dumps(about)})


def _write(path: str, rows: pa.Table, entries: Sequence[ShardEntry]) -> None:
    """Write the texts of rows to a local file as an Arrow IPC stream."""
    block = text_block(rows, entries)
    batch = text_batch(block, block.stsd.take(pa.array(block.stsd_row)) if block.stsd.null_count else block.stsd)
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)


def _starts(sizes: Iterable[int]) -> list[int]:
    return list(itertools.accumulate(sizes, initial=0))


def _place(starts: Sequence[int], row: int) -> int:
    return bisect.bisect_right(starts, row) - 1


def _kind(name: str) -> pa.DataType:
    return pa.large_binary() if name == STSD else pa.large_string()


def _column(table: pa.Table, name: str) -> pa.ChunkedArray:
    if name in table.column_names:
        return table[name]
    return pa.chunked_array([pa.repeat(pa.scalar("", _kind(name)), len(table))])
