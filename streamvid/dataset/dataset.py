"""A packed dataset, opened for reading: its rows in memory, its frame indexes at hand, its shards by path."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from streamvid.arrays import Int64
from streamvid.dataset import consolidated, table_cache
from streamvid.dataset.clip_table import ClipTable, ShardIndex, read_index, read_scalars
from streamvid.dataset.columns import Columns
from streamvid.dataset.manifest import FILE_NAME, MAX_BYTES, UNFINISHED_FILE, Manifest, ShardEntry
from streamvid.dataset.meta_fields import Fields
from streamvid.errors import DatasetError
from streamvid.storage import filesystem
from streamvid.storage.url import local_path
from streamvid.video.frame_index import FrameIndex

if TYPE_CHECKING:
    from streamvid.storage.shard_cache import ShardCache

INDEX_BYTES: Final = 256 << 20
"""Memory for frame indexes of shards that were used last."""
_THREADS: Final = 16
"""Parquets read at once: for remote datasets it is requests that take the time."""


class Dataset:
    """A dataset. Made by `Dataset.open`; may be pickled, and used from several threads.

    Attributes:
        path: folder or URL.
        manifest: dataset.json.
        clips: all clips' rows.
        typed: the columns that came with the clips, as the parquets have them; None if they have them as JSON alone.
        columns: the clips' columns by name, for filters and batches.
        cache: what a remote dataset's parquets are read through. It belongs to one process: pickling leaves it behind.
    """

    def __init__(
        self,
        path: str,
        manifest: Manifest,
        clips: ClipTable,
        *,
        typed: Fields | None = None,
        cache: ShardCache | None = None,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.clips = clips
        self.typed = typed
        self.cache = cache
        self.columns = Columns(clips, manifest.classes, fields=None if typed is None else lambda: typed)
        self._indexes = IndexCache([Parquet(path, entry, cache) for entry in manifest.shards], clips)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, cache: ShardCache | None = None) -> Dataset:
        """Open a dataset and check it as far as that is cheap: everything but the tars' content and the frame indexes.

        The rows of a large dataset are kept in the user's cache folder (`streamvid.dataset.table_cache`), so it opens
        faster the next time.

        Args:
            path: a folder, or any URL that fsspec knows.
            cache: keeps copies of a remote dataset's parquets. Without it they are fetched each time they are needed.

        Raises:
            DatasetError: there is no dataset, one of another version, or one that is damaged: a shard is missing or
                truncated, or says what cannot be.
        """
        path = os.fspath(path)
        document = _read_document(path)
        manifest = _parse_document(document, path)
        if not manifest.clips:
            raise DatasetError(f"the dataset at {filesystem.redact(path)} holds no clips: pack it again")
        if filesystem.is_local(path):
            path = local_path(path)
            check_sizes(path, manifest.shards)
        sources = [Parquet(path, entry, cache) for entry in manifest.shards]
        name = consolidated.kept_name(document, [source.stamp() for source in sources])
        keep = manifest.clips >= table_cache.FEW_CLIPS
        kept = table_cache.load(name) if keep else None
        if kept is not None:
            clips, typed = consolidated.from_table(kept, manifest.shards)
        else:
            with ThreadPoolExecutor(max(1, min(_THREADS, len(sources)))) as threads:
                tables = list(threads.map(lambda source: source.scalars(checked=keep), sources))
            clips, typed = consolidated.rows_of(tables, manifest.shards)
            if keep:
                table_cache.store(name, consolidated.to_table(clips, typed))
        return cls(path, manifest, clips, typed=typed, cache=cache)

    def __len__(self) -> int:
        """How many clips there are."""
        return len(self.clips)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the class numbers, if the labels were given as text."""
        return self.manifest.classes

    @property
    def shards(self) -> Sequence[ShardEntry]:
        """What dataset.json says about each shard."""
        return self.manifest.shards

    def key(self, i: int) -> str:
        """The key of clip *i*."""
        return self.clips.key[i]

    def shard(self, s: int) -> ShardEntry:
        """What dataset.json says about shard *s*."""
        return self.manifest.shards[s]

    def shard_path(self, s: int, extension: str = "tar") -> str:
        """Where shard *s* lies: a local path or a URL."""
        return filesystem.join(self.path, self.manifest.shards[s].file(extension))

    @property
    def is_local(self) -> bool:
        """Whether the shards are local files."""
        return filesystem.is_local(self.path)

    def rows(self, s: int) -> slice:
        """The rows of shard *s*, in the order of its tar."""
        return self._indexes.rows(s)

    def index(self, i: int) -> FrameIndex:
        """The frame index of clip *i*. The indexes of a shard are read together and kept for a while.

        Raises:
            DatasetError: the shard's parquet is gone or damaged. Names shard and clip.
            IndexError: there is no such clip.
        """
        return self._indexes.clip(i)

    def shard_index(self, s: int) -> ShardIndex:
        """The frame indexes of all clips of shard *s*; errors as from `index`."""
        return self._indexes.shard(s)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "manifest": self.manifest,
            "clips": self.clips,
            "typed": self.typed,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"], state["manifest"], state["clips"], typed=state["typed"])  # type: ignore[misc]


def read_manifest(path: str) -> Manifest:
    """dataset.json of the dataset at `path`, a folder or URL.

    Raises:
        DatasetError: there is none, it is damaged, or of another version.
    """
    return _parse_document(_read_document(path), path)


def _parse_document(document: bytes, path: str) -> Manifest:
    return Manifest.from_json(document, path=filesystem.redact(filesystem.join(path, FILE_NAME)))


def _read_document(path: str) -> bytes:
    shown = filesystem.redact(path)
    file = filesystem.join(path, FILE_NAME)
    if not filesystem.exists(file):
        if filesystem.exists(filesystem.join(path, UNFINISHED_FILE)):
            raise DatasetError(f"packing to {shown} has not finished: wait for it or pack again")
        raise DatasetError(f"no dataset at {shown}: there is no {FILE_NAME}; check the path")
    size = filesystem.size(file)
    if size > MAX_BYTES:
        raise DatasetError(f"{FILE_NAME} of {shown} has {size} bytes, more than any dataset needs: pack it again")
    return filesystem.read_bytes(file)


def check_sizes(folder: str, entries: Sequence[ShardEntry]) -> None:
    """Check that the tars of a local dataset are there, and whole as far as their size tells.

    A reader that maps a truncated file into memory crashes, so this is done before any reading.

    Raises:
        DatasetError: names the first that is not.
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


class Parquet:
    """A shard's parquet, wherever it is."""

    def __init__(self, path: str, entry: ShardEntry, cache: ShardCache | None) -> None:
        self._path = filesystem.join(path, entry.file("parquet"))
        self.entry = entry
        self._cache = cache

    def _source(self) -> str | pa.Buffer:
        if filesystem.is_local(self._path):
            return local_path(self._path)
        if self._cache is None:
            return pa.py_buffer(filesystem.read_bytes(self._path))
        size = filesystem.size(self._path)
        return pa.py_buffer(self._cache.read_through(self._path, size=size, sha256=self.entry.parquet_sha256))

    def stamp(self) -> tuple[int, int]:
        """Size in bytes and time of the last change in ns; of a remote file, or one that is not there, zeros."""
        if not filesystem.is_local(self._path):
            return 0, 0
        try:
            stat = os.stat(local_path(self._path))
        except OSError:
            return 0, 0
        return stat.st_size, stat.st_mtime_ns

    def scalars(self, *, checked: bool = False) -> pa.Table:
        """The columns of one value per clip: see `read_scalars`.

        Args:
            checked: compare a remote file with its checksum in dataset.json.

        Raises:
            DatasetError: it cannot be read, or is not the one that dataset.json means.
        """
        source = self._source()
        if checked and not isinstance(source, str) and hashlib.sha256(source).hexdigest() != self.entry.parquet_sha256:
            raise DatasetError(
                f"shard {self.entry.name}.parquet is not the one in dataset.json, by its SHA-256: "
                "copy it again or run streamvid verify"
            )
        return read_scalars(source, self.entry)

    def index(self, clips: ClipTable, first: int) -> ShardIndex:
        """The frame indexes: see `read_index`."""
        return read_index(self._source(), self.entry, clips, first)


class IndexCache:
    """Frame indexes of the shards that were used last, at most `INDEX_BYTES` of them. For several threads.

    Args:
        parquets: per shard.
        clips: the rows of all shards' clips.
    """

    def __init__(self, parquets: Sequence[Parquet], clips: ClipTable) -> None:
        self._parquets = parquets
        self._clips = clips
        counts = [parquet.entry.clips for parquet in parquets]
        self._first: Int64 = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._kept: OrderedDict[int, ShardIndex] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, s: int) -> slice:
        """The rows of shard *s*."""
        return slice(int(self._first[s]), int(self._first[s + 1]))

    def clip(self, i: int) -> FrameIndex:
        """The frame index of clip *i*. Raises IndexError if there is no such clip, else as `shard`."""
        if not 0 <= i < len(self._clips):
            raise IndexError(f"clip {i} of {len(self._clips)}")
        s = int(self._clips.shard[i])
        return self.shard(s).clip(int(i - self._first[s]))

    def shard(self, s: int) -> ShardIndex:
        """The frame indexes of shard *s*. Raises DatasetError if its parquet is gone or damaged."""
        with self._lock:
            index = self._kept.get(s)
            if index is not None:
                self._kept.move_to_end(s)
                return index
        index = self._parquets[s].index(self._clips, int(self._first[s]))
        with self._lock:
            self._kept[s] = index
            self._kept.move_to_end(s)
            total = sum(kept.nbytes for kept in self._kept.values())
            while total > INDEX_BYTES and len(self._kept) > 1:
                total -= self._kept.popitem(last=False)[1].nbytes
        return index
