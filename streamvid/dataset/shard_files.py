"""A shard's files by path, and the rows that its Parquet file holds."""

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
from streamvid.errors import DatasetError
from streamvid.storage import filesystem
from streamvid.storage.regular_file import read_file
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
        cache: a remote Parquet file is read through it, if there is one.
        roots: where clips outside of shards lie.
        bounds: out of which they must not lead.
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
        """For `RemoteRanges.tell`: path of a file relative to the dataset, its ETag, and its size if known."""
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
            check_sha256: another checksum than in dataset.json is an error; else of a local file a warning.
            retry: for how long a storage that does not answer is asked again.
            stop: gives up waiting for it.
            joint: counts what the tables take together.

        Raises:
            DatasetError: it cannot be read, has another checksum, or is too large together with others.
        """
        source = self.parquet(retry, stop, check_sha256=check_sha256)
        table = read_scalars(source, self.entry)
        size = os.stat(source).st_size if isinstance(source, str) else source.size
        return _counted(table, size, f"shard {self.entry.name}.parquet", joint)

    def read_checksums(self, retry: Retry) -> StringColumn:
        """The SHA-256 of each clip's MP4. Raises DatasetError as `read_scalars`."""
        source = self.parquet(retry, threading.Event())
        table = read_columns(
            source, f"{self.entry.name}.parquet", self.entry.clips, pa.schema([SCHEMA.field("sha256")])
        )
        return StringColumn(table["sha256"])

    def read_texts(self, source: str | pa.Buffer) -> TextBlock:
        """The texts of its rows; otherwise as `read_scalars`.

        Args:
            source: what `parquet` gives.
        """
        file = f"{self.entry.name}.parquet"
        table = read_columns(source, file, self.entry.clips, _columns(self.entry, texts=True), FIELD_PREFIX)
        return text_block(table, [self.entry])

    def parquet(self, retry: Retry, stop: threading.Event, *, check_sha256: bool = False) -> str | pa.Buffer:
        """The path of the Parquet file, or the bytes of a remote one; otherwise as `read_scalars`."""
        path = self.path("parquet")
        if is_local(path):
            try:
                self.checked(read_file(local_path(path)))
            except OSError:
                pass  # whoever reads it says what is wrong
            except DatasetError as error:
                if check_sha256:
                    raise
                log.warning("%s; until then labels and metadata of its clips may be wrong", error)
            return local_path(path)
        if self.cache is not None:
            return pa.py_buffer(self.cache.read_through(path, size=None, sha256=self.entry.parquet_sha256, stop=stop))
        data = filesystem.read_bytes(path, retry=retry.until(stop))
        return self.checked(data) if check_sha256 else pa.py_buffer(data)

    def checked(self, data: bytes) -> pa.Buffer:
        """The bytes of its Parquet file. Raises DatasetError if they have another checksum than in dataset.json."""
        if hashlib.sha256(data).hexdigest() != self.entry.parquet_sha256:
            raise DatasetError(
                f"shard {self.entry.name}.parquet is not the one in dataset.json, by its SHA-256: "
                "copy it again or run streamvid verify"
            )
        return pa.py_buffer(data)


def fetch_table(dataset: str, sha256: str, *, cache: ShardCache | None, retry: Retry, stop: threading.Event) -> bytes:
    """A file of a table.

    Args:
        dataset: folder or URL.
        sha256: which one.
        cache: keeps a copy of the file, if there is one.
        retry, stop: for how long a storage that does not answer is asked again.

    Raises:
        DatasetError: it cannot be read, or is not what dataset.json says.
    """
    path = join(dataset, file_of(sha256))
    if cache is not None:
        return cache.read_through(path, size=None, sha256=sha256, stop=stop)
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
    """The rows of a table, one shard after the other: of each what `shard_rows.read_scalars` gives, but for the columns
    of the other file.

    Args:
        data: a file of it.
        sha256: of that, for messages.
        entries: the shards that it is of.
        texts: whether it is the second file.
        joint: counts what the tables take together.
        encoded: as of `streamvid.storage.parquet.read_parquet`.

    Raises:
        DatasetError: it is no table of these shards, or is too large together with others.
    """
    clips, file, schema = sum(entry.clips for entry in entries), file_of(sha256), _columns(entries[0], texts=texts)
    rows = read_columns(pa.py_buffer(data), file, clips, schema, FIELD_PREFIX if texts else "", encoded=encoded)
    return _counted(rows, len(data), file, joint)


def _columns(entry: ShardEntry, *, texts: bool) -> pa.Schema:
    """The columns that shards like this one have, of either file of a consolidated table."""
    columns = [*SCHEMA, *(() if entry.has_tar else PLACE_SCHEMA)]
    return pa.schema([one for one in columns if one.name != "sha256" and is_text(one.name) == texts])


def is_text(column: str) -> bool:
    """Whether a column is in the second file of a consolidated table."""
    return column in _TEXTS or column.startswith(FIELD_PREFIX)


def _counted(table: pa.Table, size: int, name: str, joint: JointLimit | None) -> pa.Table:
    """A table that was read from a file of so many bytes. Raises DatasetError if it is too large with others."""
    try:
        if joint is not None:
            joint.take(table, size)
    except TooLargeError as error:
        raise DatasetError(f"{name} cannot be read: {error}") from error
    return table
