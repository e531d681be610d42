"""Checks of the tables beside shards: consolidated ones hold their rows, and others are what dataset.json names."""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from streamvid.dataset.forgotten import read_forgotten
from streamvid.dataset.manifest import FILE_NAME, Manifest
from streamvid.dataset.overlays import local_table
from streamvid.dataset.shard_files import ShardFiles, read_table
from streamvid.dataset.tables import usable
from streamvid.errors import DatasetError, StreamvidError
from streamvid.storage.retry import Retry


def check_tables(path: str, manifest: Manifest) -> Iterator[str]:
    """The problems of the tables beside shards, in words. Shards that cannot be read are left to other checks.

    Args:
        path: folder or URL of the dataset.
    """
    yield from _check_others(path, manifest)
    good = dict(usable(manifest.tables, manifest.shards))
    stop, retry = threading.Event(), Retry()
    for table in manifest.tables:
        if table not in good:
            yield f"{table.file} is not of the shards that {FILE_NAME} says"
            continue
        entries = manifest.shards[good[table]]
        try:
            tables = read_table(path, table, entries, cache=None, retry=retry, stop=stop)
        except DatasetError as error:
            yield str(error)
            continue
        for entry, found in zip(entries, tables, strict=True):
            try:
                own = ShardFiles(path, entry, None).read_scalars(check_sha256=True, retry=retry, stop=stop)
            except DatasetError:
                continue
            own = own.select(found.column_names)
            if not found.equals(own) and _content(found) != _content(own):
                yield f"{table.file} has other rows than shard {entry.name}: write it anew"


def _check_others(path: str, manifest: Manifest) -> Iterator[str]:
    """Those of the table of forgotten clips and of tables of columns."""
    with tempfile.TemporaryDirectory(prefix="streamvid-verify-") as folder:
        try:
            read_forgotten(path, manifest, Retry())
        except StreamvidError as error:
            yield str(error)
        for overlay in manifest.overlays:
            try:
                local_table(path, overlay, Path(folder))
            except StreamvidError as error:
                yield str(error)


def _content(table: pa.Table) -> bytes:
    """Equal of equal tables, also where numbers are NaN."""
    stream = io.BytesIO()
    pq.write_table(table.combine_chunks(), stream)
    return stream.getvalue()
