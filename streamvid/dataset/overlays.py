"""Overlays: columns that were added or replaced after packing, read from their tables on first use.

A table has a value for each row of the dataset, so that reading it needs no join; each column is in one table only.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Int64
from streamvid.checksum import file_sha256
from streamvid.dataset import table_cache
from streamvid.dataset.manifest import FILE_NAME, Manifest, Overlay
from streamvid.dataset.meta_columns import ColumnBlock, MetaColumns, concat_columns, from_parquet
from streamvid.errors import DatasetError
from streamvid.storage import filesystem
from streamvid.storage.parquet import read_parquet
from streamvid.storage.retry import Retry
from streamvid.storage.shard_cache import WITHOUT, CacheUnusable, ShardCache
from streamvid.storage.url import is_local, join, local_path, redact
from streamvid.text import first_line

LABEL: Final = "label"
"""The column of an overlay that replaces the clips' labels, and is no metadata column."""
_LAYOUT: Final = b"streamvid overlay 1\n"
_REMEDY: Final = "copy it again, or open an older revision"
_ROW_BYTES: Final = 64
"""Of memory that a column's value may take, however well the table is compressed."""


def check_overlays(dataset: str, manifest: Manifest, retry: Retry) -> None:
    """Check that the overlays exist and have the sizes in dataset.json.

    Raises:
        DatasetError: a table is missing or has another size.
    """
    for overlay in manifest.overlays:
        path = join(dataset, overlay.file)
        there = filesystem.details(path, retry=retry)
        if there is None or there.size != overlay.bytes:
            what = "is missing" if there is None else f"has {there.size} bytes, not the {overlay.bytes} of {FILE_NAME}"
            names = ", ".join(name for name, _ in overlay.columns)
            raise DatasetError(f"{redact(path)}, with the columns {names}, {what}: {_REMEDY}")


def with_overlays(
    meta: MetaColumns, dataset: str, manifest: Manifest, cache: ShardCache | None, retry: Retry
) -> MetaColumns:
    """The metadata columns of a dataset; columns of its overlays replace columns of the same names."""
    if not manifest.overlays:
        return meta
    of = {name: overlay for overlay in manifest.overlays for name, _ in overlay.columns if name != LABEL}
    types = {name: kind for overlay in manifest.overlays for name, kind in overlay.columns if name in of}
    whole = {name for name, overlay in of.items() if overlay.rows == manifest.clips}
    errors = {name: error for name, error in meta.errors.items() if name not in whole}
    arrays = _Columns(meta, dataset, of, manifest.clips, cache, retry)
    return MetaColumns(arrays, errors, {**meta.parquet_types, **types})


def read_labels(dataset: str, manifest: Manifest, labels: Int64, cache: ShardCache | None, retry: Retry) -> Int64:
    """int64 [clips]: the clips' labels, -1 for none: those of an overlay, or, if no overlay has labels, those of the
    shards (`labels`).

    Raises:
        DatasetError: the overlay cannot be used.
    """
    for overlay in manifest.overlays:
        if LABEL in dict(overlay.columns):
            found = _read(dataset, overlay, LABEL, cache, retry)
            if found.type != pa.int64() or (pc.min(found).as_py() or 0) < 0:
                raise DatasetError(f"{redact(join(dataset, overlay.file))} has labels that are no class numbers")
            own = pc.fill_null(found, -1).to_numpy()
            return np.concatenate([own, labels[len(own) :]])
    return labels


@dataclass(frozen=True, eq=False)
class _Columns(Mapping[str, pa.Array | pa.ChunkedArray]):
    """Columns by name. A column of an overlay is read at each access; `streamvid.dataset.columns.Columns` keeps it."""

    meta: MetaColumns
    dataset: str
    of: Mapping[str, Overlay]
    clips: int
    cache: ShardCache | None
    retry: Retry

    def __getitem__(self, name: str) -> pa.Array | pa.ChunkedArray:
        overlay = self.of.get(name)
        if overlay is None:
            return self.meta.arrays[name]
        found = _read(self.dataset, overlay, name, self.cache, self.retry)
        if overlay.rows == self.clips:
            return found
        later = self.meta.arrays.get(name)
        blocks = [
            ColumnBlock(overlay.rows, MetaColumns({name: found}), overlay.file),
            ColumnBlock(
                self.clips - overlay.rows,
                MetaColumns({} if later is None else {name: later[overlay.rows :]}),
                "the shards that were added after it",
            ),
        ]
        joined = concat_columns(blocks)
        return joined.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.meta.arrays, *self.of)))

    def __len__(self) -> int:
        return len({*self.meta.arrays, *self.of})

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "cache": None}


def local_file(path: str, copy: Path, sha256: str | None) -> Path:
    """A dataset's file on this machine: the file itself if it is local, otherwise `copy`, to which it is fetched.

    Args:
        sha256: its checksum in dataset.json; None: not compared.

    Raises:
        DatasetError: it is missing, cannot be read, or has another checksum.
    """
    if is_local(path):
        copy = Path(local_path(path))
    else:
        filesystem.get_file(path, copy)
    try:
        found = file_sha256(copy)
    except OSError as error:
        what = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise DatasetError(f"{redact(path)} {what}: {_REMEDY}") from error
    if sha256 not in (None, found):
        raise DatasetError(f"{redact(path)} is damaged: its SHA-256 is not the one in {FILE_NAME}; {_REMEDY}")
    return copy


def cache_key(overlay: Overlay, name: str) -> str:
    """The name of a column in the cache (`streamvid.dataset.table_cache`)."""
    return hashlib.sha256(_LAYOUT + f"{overlay.sha256} {name}".encode()).hexdigest()


def _read(dataset: str, overlay: Overlay, name: str, cache: ShardCache | None, retry: Retry) -> pa.Array:
    """A column of an overlay, in its type in memory. Large columns are kept in the cache, for all processes."""

    def build(file: str) -> None:
        column = _decoded(dataset, overlay, name, cache, retry)
        table = pa.table({name: column})
        with pa.OSFile(file, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)

    if overlay.rows < table_cache.MIN_CLIPS:
        return _decoded(dataset, overlay, name, cache, retry)
    content = table_cache.open_or_build(cache_key(overlay, name), build)
    column = pa.ipc.open_stream(content).read_all()[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # a view of the content


def _decoded(dataset: str, overlay: Overlay, name: str, cache: ShardCache | None, retry: Retry) -> pa.Array:
    path = join(dataset, overlay.file)

    def choose(schema: pa.Schema, rows: int) -> list[str]:
        if rows != overlay.rows or schema.names.count(name) != 1:
            raise ValueError(f"it does not have {overlay.rows} rows with a column {name!r}")
        return [name]

    try:
        with contextlib.ExitStack() as stack:
            source, found = _opened(path, overlay, cache, retry, stack)
            if found != overlay.sha256:
                raise ValueError("it has another SHA-256")
            columns = from_parquet(read_parquet(source, choose, least=_ROW_BYTES * overlay.rows))
        if name in columns.errors:
            raise ValueError(columns.errors[name])
    except FileNotFoundError as error:
        raise DatasetError(f"{redact(path)}, with the column {name!r}, is missing: copy it again") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        what = f"{redact(path)} is not the table that {FILE_NAME} names"
        raise DatasetError(f"{what}: {first_line(error)}; copy it again") from error
    array: pa.Array = columns.arrays[name]
    return array


def _opened(
    path: str, overlay: Overlay, cache: ShardCache | None, retry: Retry, stack: contextlib.ExitStack
) -> tuple[str | bytes, str]:
    """The file of a table, as a path that is valid until the stack ends, or as bytes; and its SHA-256."""
    if is_local(path):
        return local_path(path), file_sha256(local_path(path))
    if cache is not None:
        try:
            lease = cache.lease(path, size=overlay.bytes, sha256=overlay.sha256)
            return stack.enter_context(lease).opened, overlay.sha256
        except CacheUnusable as error:
            cache.warn("without", WITHOUT, error)
    data = filesystem.read_bytes(path, most=overlay.bytes, retry=retry)
    return data, hashlib.sha256(data).hexdigest()
