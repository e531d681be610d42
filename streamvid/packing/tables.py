"""Writes consolidated tables of a dataset's shards, before the dataset.json that names them."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamvid.dataset.manifest import Manifest, ShardEntry
from streamvid.dataset.schema import CATEGORIES
from streamvid.dataset.shard_files import ShardFiles, is_text
from streamvid.dataset.tables import TableEntry, digest, file_of, usable
from streamvid.storage import filesystem
from streamvid.storage.retry import Retry
from streamvid.storage.threads import map_in_threads
from streamvid.storage.url import join

_CLIPS: Final = 1 << 15
_BYTES: Final = 32 << 20
"""Most bytes of a table in memory, unless a single shard has more: tables are read concurrently, and one of usual clips
takes one request of `streamvid.storage.byte_range.PART_BYTES`."""
_AT_ONCE: Final = 64
"""Parquet files that are read at once."""


def write_tables(destination: str, manifest: Manifest, written: list[str] | None = None) -> tuple[TableEntry, ...]:
    """Write tables of the shards that have none, and rewrite preceding tables that have no more clips than these shards
    together, so that repeated appends do not make many tables. Files are named by their checksums, so that readers
    never see a wrong one, and a killed call can be repeated.

    Args:
        destination: folder or object-store prefix, with all shards.
        manifest: the manifest, with its shards, and its tables so far.
        written: a list to which the path of each new file, relative to the destination, is appended before it is
            written.

    Returns:
        All tables of the shards.

    Raises:
        DatasetError: a shard cannot be read.
    """
    shards = manifest.shards
    kept = list(usable(manifest.tables, shards))
    clips = sum(entry.clips for entry in shards[kept[-1][1].stop if kept else 0 :])
    while clips and kept and (size := sum(entry.clips for entry in shards[kept[-1][1]])) <= min(clips, _CLIPS // 2):
        kept.pop()
        clips += size
    tables = []
    end = 0
    for table, part in [*kept, (None, slice(len(shards), None))]:
        for entries, rows in _runs(destination, shards[end : part.start] if part.start - end > 1 else ()):
            if len(entries) > 1:
                texts = [name for name in rows.column_names if is_text(name)]
                parts = rows.drop_columns(texts), rows.select(texts)
                numbers, others = (_write(destination, _parquet(part), written) for part in parts)
                tables.append(TableEntry(entries[0].name, len(entries), numbers, others, digest(entries)))
        tables += [] if table is None else [table]
        end = part.stop
    return tuple(tables)


def _write(destination: str, data: bytes, written: list[str] | None) -> str:
    """Write a file of a table; returns its SHA-256."""
    sha256 = hashlib.sha256(data).hexdigest()
    path = join(destination, file_of(sha256))
    if written is not None and filesystem.details(path) is None:
        written.append(file_of(sha256))
    filesystem.write_bytes(path, data)
    return sha256


def _parquet(rows: pa.Table) -> bytes:
    """The Parquet bytes of a file of a table. Only columns with repeated strings have a dictionary, because it makes
    other columns slower to decode, and makes their possible size in memory many times the actual one."""
    several = [name for name in (*CATEGORIES, "stsd") if name in rows.column_names]
    again = [name for name in several if 2 * pc.count_distinct(rows[name]).as_py() <= len(rows)]
    buffer = io.BytesIO()
    pq.write_table(
        rows,
        buffer,
        compression="zstd",
        row_group_size=max(1, len(rows)),
        use_dictionary=again,
        dictionary_pagesize_limit=_BYTES,
    )
    return buffer.getvalue()


def _runs(destination: str, shards: Sequence[ShardEntry]) -> Iterator[tuple[list[ShardEntry], pa.Table]]:
    """Runs of consecutive shards with the same columns, within the limits of a table in clips and bytes, and their
    rows."""
    entries: list[ShardEntry] = []
    tables: list[pa.Table] = []
    clips = size = 0
    for first in range(0, len(shards), _AT_ONCE):
        some = {entry.name: entry for entry in shards[first : first + _AT_ONCE]}
        for entry, table in zip(
            some.values(), map_in_threads(partial(_rows, destination, some), list(some)), strict=True
        ):
            clips, size = clips + entry.clips, size + table.nbytes
            if entries and (clips > _CLIPS or size > _BYTES or not table.schema.equals(tables[0].schema)):
                yield entries, pa.concat_tables(tables)
                entries, tables, clips, size = [], [], entry.clips, table.nbytes
            entries.append(entry)
            tables.append(table)
    if entries:
        yield entries, pa.concat_tables(tables)


def _rows(destination: str, entries: dict[str, ShardEntry], name: str) -> pa.Table:
    files = ShardFiles(destination, entries[name], None)
    return files.read_scalars(check_sha256=True, retry=Retry(), stop=threading.Event())
