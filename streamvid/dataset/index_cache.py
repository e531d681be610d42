"""A shard's files by path, and a bounded cache of the frame indexes that its Parquet file holds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from streamvid.arrays import Int64
from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.index_columns import ShardIndex, read_index
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.shard_rows import read_scalars
from streamvid.errors import DatasetError
from streamvid.storage import filesystem
from streamvid.storage.shard_cache import ShardCache
from streamvid.storage.url import is_local, join, local_path

INDEX_BYTES: Final = 256 << 20
"""Memory for the frame indexes of the shards used last, in bytes."""


@dataclass(frozen=True)
class ShardFiles:
    """The files of one shard.

    Attributes:
        dataset: folder or URL of the dataset.
        entry: the shard's entry in dataset.json.
        cache: a remote Parquet file is read through it, if there is one.
    """

    dataset: str
    entry: ShardEntry
    cache: ShardCache | None

    def path(self, extension: str) -> str:
        """Path or URL of the shard's ``tar``, ``idx`` or ``parquet``."""
        return join(self.dataset, self.entry.file(extension))

    def signature(self) -> tuple[int, int]:
        """Size in bytes and modification time in ns of a local Parquet file; zeros if it is remote or missing."""
        path = self.path("parquet")
        with contextlib.suppress(OSError):
            if is_local(path):
                stat = os.stat(local_path(path))
                return stat.st_size, stat.st_mtime_ns
        return 0, 0

    def read_scalars(self, *, check_sha256: bool) -> pa.Table:
        """The columns with one value per clip: see `streamvid.dataset.shard_rows.read_scalars`.

        Args:
            check_sha256: compare a remote file with its checksum in dataset.json.

        Raises:
            DatasetError: it cannot be read, or has another checksum.
        """
        source = self._parquet()
        found = hashlib.sha256(source).hexdigest() if check_sha256 and not isinstance(source, str) else None
        if found not in (None, self.entry.parquet_sha256):
            raise DatasetError(
                f"shard {self.entry.name}.parquet is not the one in dataset.json, by its SHA-256: "
                "copy it again or run streamvid verify"
            )
        return read_scalars(source, self.entry)

    def read_index(self, clips: ClipTable, first: int) -> ShardIndex:
        """The frame indexes: see `streamvid.dataset.clip_table.read_index`."""
        return read_index(self._parquet(), self.entry, clips, first)

    def _parquet(self) -> str | pa.Buffer:
        path = self.path("parquet")
        if is_local(path):
            return local_path(path)
        if self.cache is None:
            return pa.py_buffer(filesystem.read_bytes(path))
        size = filesystem.size(path)
        return pa.py_buffer(self.cache.read_through(path, size=size, sha256=self.entry.parquet_sha256))


class IndexCache:
    """Frame indexes of the shards used last, at most `INDEX_BYTES` of them. Thread-safe.

    Args:
        shards: the files of each shard.
        clips: the rows of all shards' clips.
    """

    def __init__(self, shards: Sequence[ShardFiles], clips: ClipTable) -> None:
        self._shards = shards
        self._clips = clips
        self._first: Int64 = np.cumsum([0, *(shard.entry.clips for shard in shards)], dtype=np.int64)
        self._indexes: OrderedDict[int, ShardIndex] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, s: int) -> slice:
        """The rows of shard *s*."""
        return slice(int(self._first[s]), int(self._first[s + 1]))

    def shard(self, s: int) -> ShardIndex:
        """The frame indexes of shard *s*. Raises DatasetError if its Parquet file is missing or damaged."""
        with self._lock:
            index = self._indexes.get(s)
            if index is not None:
                self._indexes.move_to_end(s)
                return index
        index = self._shards[s].read_index(self._clips, int(self._first[s]))
        with self._lock:
            self._indexes[s] = index
            self._indexes.move_to_end(s)
            total = sum(one.nbytes for one in self._indexes.values())
            while total > INDEX_BYTES and len(self._indexes) > 1:
                total -= self._indexes.popitem(last=False)[1].nbytes
        return index
