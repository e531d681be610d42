"""A shard's files by path, and the rows of its Parquet file."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.roots import Bounds
from streamvid.dataset.schema import FIELD_PREFIX, PLACE_SCHEMA, SCHEMA
from streamvid.dataset.shard_rows import REMEDY, TextBlock, read_columns, read_scalars, text_block
from streamvid.dataset.string_column import StringColumn
from streamvid.dataset.tables import file_of
from streamvid.errors import DatasetError, StreamvidError
from streamvid.storage import filesystem
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.retry import Retry
from streamvid.storage.shard_cache import ShardCache
from streamvid.storage.table_bounds import JointLimit, TooLargeError
from streamvid.storage.url import is_local, join, local_path, redact

log = logging.getLogger(__name__)

_TEXTS: Final = ("key", "source", "meta", "stsd", "file", "file_etag")
"""Of a table's second file, with the metadata columns. `sha256`, which no loader reads, is in none."""


@dataclass(frozen=True)
class ShardFiles:
    """The files of one shard.

    Attributes:
        dataset: folder or URL of the dataset.
        entry: the shard's entry in dataset.json.
        cache: the cache through which a remote Parquet file is read; None: none.
        roots: folders and URLs of clips in place.
        bounds: folders and hosts in which their files must lie.
    """

    dataset: str
    entry: ShardEntry
    cache: ShardCache | None
    roots: tuple[str, ...] = ()
    bounds: Bounds = field(default_factory=Bounds)

    def path(self, extension: str) -> str:
        """Path or URL of the shard's ``tar``, ``idx``, ``packets`` or ``parquet``."""
        return join(self.dataset, self.entry.file(extension))

    def told(self) -> Iterator[tuple[str, tuple[str, int | None]]]:
        """The arguments of `RemoteRanges.tell`: path of a file relative to the dataset, its ETag, and its size if
        known."""
        for extension, etag in self.entry.etags.items():
            yield self.entry.file(extension), (f'"{etag}"', self.entry.sizes.get(extension))

    def signature(self) -> tuple[int, int]:
        """Size in bytes and modification time in ns of a local Parquet file; zeros if it is remote or missing."""
        path = self.path("parquet")
        with contextlib.suppress(OSError):
            if is_local(path):
                stat = os.stat(local_path(path))
                return stat.st_size, stat.st_mtime_ns
        return 0, 0

    def read_scalars(
        self, *, check_sha256: bool, retry: Retry, stop: threading.Event, joint: JointLimit | None = None
    ) -> pa.Table:
        """The columns with one value per clip: see `streamvid.dataset.shard_rows.read_scalars`.

        Args:
            check_sha256: whether another checksum than that in dataset.json is an error; if not, it is a warning for
                local files.
            retry: for how long requests are repeated while a storage does not answer.
            stop: set to end such waits.
            joint: limits the memory of all tables together.

        Raises:
            DatasetError: the file cannot be read, has another checksum, or is too large together with others.
        """
        source = self.parquet(retry, stop, check_sha256=check_sha256)
        table = read_scalars(source, self.entry)
        size = os.stat(source).st_size if isinstance(source, str) else source.size
        return _counted(table, size, f"shard {self.entry.name}.parquet", joint)

    def read_checksums(self, retry: Retry) -> StringColumn:
        """The SHA-256 of each clip's MP4. Raises DatasetError as `read_scalars` does."""
        source = self.parquet(retry, threading.Event())
        table = read_columns(
            source, f"{self.entry.name}.parquet", self.entry.clips, pa.schema([SCHEMA.field("sha256")])
        )
        return StringColumn(table["sha256"])

    def read_texts(self, source: str | pa.Buffer) -> TextBlock:
        """The texts of the shard's rows; otherwise as `read_scalars`.

        Args:
            source: the result of `parquet`.
        """
        file = f"{self.entry.name}.parquet"
        table = read_columns(source, file, self.entry.clips, _columns(self.entry, texts=True), FIELD_PREFIX)
        return text_block(table, [self.entry])

    def parquet(self, retry: Retry, stop: threading.Event, *, check_sha256: bool = False) -> str | pa.Buffer:
        """The bytes of the Parquet file, or the path of a local one that cannot be read, whose reader raises the error;
        otherwise as `read_scalars`. Also raises DatasetError if the shard was replaced by another one."""
        path = self.path("parquet")
        local = local_path(path) if is_local(path) else ""
        if not local and self.cache is not None:
            return pa.py_buffer(self.cache.read_through(path, sha256=self.entry.parquet_sha256, stop=stop))
        try:
            data = filesystem.read_bytes(path, retry=retry.until(stop))
        except DatasetError as error:
            if not local or isinstance(error, StorageUnavailable):
                raise
            return local
        try:
            self.checked(data)
        except DatasetError as error:
            if check_sha256:
                raise
            if why := replaced(self.dataset, self.entry):
                raise DatasetError(why) from error
            log.warning("%s; until then labels and metadata of its clips may be wrong", error)
        return pa.py_buffer(data)

    def checked(self, data: bytes) -> pa.Buffer:
        """Check the bytes of the shard's Parquet file, and return them. Raises DatasetError if their checksum is not
        that in dataset.json."""
        if hashlib.sha256(data).hexdigest() != self.entry.parquet_sha256:
            raise DatasetError(
                f"shard {self.entry.name}.parquet is not the one in dataset.json, by its SHA-256: "
                "copy it again or run streamvid verify"
            )
        return pa.py_buffer(data)


def replaced(dataset: str, shard: ShardEntry) -> str:
    """A message if the files of another shard are in the place of one that dataset.json names, as while a dataset is
    copied there; "" if not. Of a replaced shard both files differ from dataset.json, of a damaged one a single file."""
    try:
        for extension, sha256 in (("packets", shard.packets_sha256), ("parquet", shard.parquet_sha256)):
            data = filesystem.read_bytes(join(dataset, shard.file(extension)), retry=Retry(0.0))
            if hashlib.sha256(data).hexdigest() == sha256:
                return ""
    except StreamvidError:
        return ""
    return (
        f"shard {shard.name} of the dataset {redact(dataset)} is gone: files of another one are in its place, which "
        "dataset.json does not name; put its own back, and go on from the last checkpoint"
    )


def fetch_table(dataset: str, sha256: str, *, cache: ShardCache | None, retry: Retry, stop: threading.Event) -> bytes:
    """The bytes of a file of a consolidated table.

    Args:
        dataset: folder or URL.
        sha256: SHA-256 of the file.
        cache: keeps a copy of the file; None: no cache.
        retry, stop: for how long requests are repeated while a storage does not answer.

    Raises:
        DatasetError: the file cannot be read, or is not the one in dataset.json.
    """
    path = join(dataset, file_of(sha256))
    if cache is not None:
        return cache.read_through(path, sha256=sha256, stop=stop)
    data = filesystem.read_bytes(path, retry=retry.until(stop))
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DatasetError(f"{redact(path)} is not the one in dataset.json, by its SHA-256: {REMEDY}")
    return data


def read_table(
    data: bytes,
    sha256: str,
    entries: Sequence[ShardEntry],
    *,
    texts: bool,
    joint: JointLimit | None = None,
    encoded: Sequence[str] = (),
) -> pa.Table:
    """The rows of a consolidated table, shard by shard: for each the columns of `shard_rows.read_scalars` that this
    file has.

    Args:
        data: one of its two files.
        sha256: SHA-256 of the file, for messages.
        entries: the table's shards.
        texts: whether this is the second file, with texts.
        joint: limits the memory of all tables together.
        encoded: as in `streamvid.storage.parquet.read_parquet`.

    Raises:
        DatasetError: the file is no table of these shards, or is too large together with others.
    """
    clips, file, schema = sum(entry.clips for entry in entries), file_of(sha256), _columns(entries[0], texts=texts)
    rows = read_columns(pa.py_buffer(data), file, clips, schema, FIELD_PREFIX if texts else "", encoded=encoded)
    return _counted(rows, len(data), file, joint)


def _columns(entry: ShardEntry, *, texts: bool) -> pa.Schema:
    """The columns of shards like this one that are in one of the files of a consolidated table."""
    columns = [*SCHEMA, *(() if entry.has_tar else PLACE_SCHEMA)]
    return pa.schema([column for column in columns if column.name != "sha256" and is_text(column.name) == texts])


def is_text(column: str) -> bool:
    """Whether a column is in the second file of a consolidated table."""
    return column in _TEXTS or column.startswith(FIELD_PREFIX)


def _counted(table: pa.Table, size: int, name: str, joint: JointLimit | None) -> pa.Table:
    """Count the memory of a table that was read from a file of `size` bytes, and return it. Raises DatasetError if it
    is too large together with others."""
    try:
        if joint is not None:
            joint.take(table, size)
    except TooLargeError as error:
        raise DatasetError(f"{name} cannot be read: {error}") from error
    return table
