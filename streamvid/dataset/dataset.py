"""A packed dataset, opened for reading: its rows in memory, its frame indexes on demand, its shards by path."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from streamvid.dataset import consolidated, table_cache
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.columns import Columns
from streamvid.dataset.index_cache import ShardFiles
from streamvid.dataset.manifest import FILE_NAME, MAX_BYTES, UNFINISHED_FILE, Manifest, ShardEntry
from streamvid.dataset.meta_columns import MetaColumns
from streamvid.errors import DatasetError
from streamvid.storage import filesystem
from streamvid.storage.shard_cache import ShardCache
from streamvid.storage.url import is_local, join, local_path, redact

_THREADS: Final = 16
"""Parquet files read at once: of a remote dataset, latency dominates."""


class Dataset(ClipSource):
    """A packed dataset. Made by `Dataset.open`; picklable and thread-safe.

    Attributes:
        manifest: dataset.json.
        meta: the metadata columns of the clips.
        cache: keeps copies of a remote dataset's Parquet files. It belongs to one process: pickling leaves it behind.
    """

    def __init__(
        self,
        path: str,
        manifest: Manifest,
        clips: ClipTable,
        *,
        meta: MetaColumns | None = None,
        cache: ShardCache | None = None,
    ) -> None:
        self.manifest = manifest
        self.meta = meta = meta or MetaColumns()
        self.cache = cache
        shards = [ShardFiles(path, entry, cache) for entry in manifest.shards]
        super().__init__(path, clips, Columns(clips, manifest.classes, meta=lambda: meta), manifest.classes, shards)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, cache: ShardCache | None = None) -> Dataset:
        """Open a dataset, and check all but the content of the tars and the frame indexes.

        The rows of a large dataset are kept in the user's cache folder (`streamvid.dataset.table_cache`), so it opens
        faster the next time.

        Args:
            path: a folder, or any URL that fsspec knows.
            cache: keeps copies of a remote dataset's Parquet files. Without it they are fetched whenever needed.

        Raises:
            DatasetError: there is no dataset, it has another format version, or it is damaged: a shard is missing,
                truncated, or contradicts itself.
        """
        path = os.fspath(path)
        document = _read_document(path)
        manifest = _parse_document(document, path)
        if not manifest.clips:
            raise DatasetError(f"the dataset at {redact(path)} holds no clips: pack it again")
        if is_local(path):
            path = local_path(path)
            check_sizes(path, manifest.shards)
        shards = [ShardFiles(path, entry, cache) for entry in manifest.shards]
        cached = manifest.clips >= table_cache.MIN_CLIPS
        key = consolidated.cache_key(document, [shard.signature() for shard in shards])
        table = table_cache.load(key) if cached else None
        if table is not None:
            clips, meta = consolidated.from_table(table, manifest.shards)
        else:
            with ThreadPoolExecutor(max(1, min(_THREADS, len(shards)))) as threads:
                tables = list(threads.map(lambda shard: shard.read_scalars(check_sha256=cached), shards))
            clips, meta = consolidated.consolidate(tables, manifest.shards)
            if cached:
                table_cache.store(key, consolidated.to_table(clips, meta))
        return cls(path, manifest, clips, meta=meta, cache=cache)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "manifest": self.manifest, "clips": self.clips, "meta": self.meta}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def read_manifest(path: str) -> Manifest:
    """dataset.json of the dataset at `path`, a folder or URL.

    Raises:
        DatasetError: there is none, it is damaged, or of another version.
    """
    return _parse_document(_read_document(path), path)


def _parse_document(document: bytes, path: str) -> Manifest:
    return Manifest.from_json(document, path=redact(join(path, FILE_NAME)))


def _read_document(path: str) -> bytes:
    shown = redact(path)
    file = join(path, FILE_NAME)
    if not filesystem.exists(file):
        if filesystem.exists(join(path, UNFINISHED_FILE)):
            raise DatasetError(f"packing to {shown} has not finished: wait for it or pack again")
        raise DatasetError(f"no dataset at {shown}: there is no {FILE_NAME}; check the path")
    size = filesystem.size(file)
    if size > MAX_BYTES:
        raise DatasetError(f"{FILE_NAME} of {shown} has {size} bytes, more than any dataset needs: pack it again")
    return filesystem.read_bytes(file)


def check_sizes(folder: str, entries: Sequence[ShardEntry]) -> None:
    """Check that the tars of a local dataset exist and have the sizes in dataset.json.

    A reader that maps a truncated file into memory crashes, so this comes before any reading.

    Raises:
        DatasetError: names the first that is missing or has another size.
    """
    for entry in entries:
        try:
            size = os.stat(os.path.join(folder, entry.file("tar"))).st_size
        except OSError as error:
            raise DatasetError(
                f"shard {entry.name}.tar cannot be opened ({error.strerror}): copy it again or run streamvid verify"
            ) from error
        if size != entry.bytes:
            state = "truncated" if size < entry.bytes else "too long"
            raise DatasetError(
                f"shard {entry.name}.tar is {state}: {size} of {entry.bytes} bytes; "
                "copy it again or run streamvid verify"
            )
