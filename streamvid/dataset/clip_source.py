"""What samplers, loaders and reports know of a dataset, be it one (`Dataset`) or several (`ConcatDataset`)."""

from __future__ import annotations

import bisect
import contextlib
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Int64, UInt8
from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.columns import Columns
from streamvid.dataset.frame_indexes import INDEX_BYTES, memory_of, parse_index
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.shard_files import ShardFiles
from streamvid.errors import ClipError, DatasetError, InputError
from streamvid.storage.explain import AccessRefused, StorageUnavailable
from streamvid.storage.lru_cache import LruCache
from streamvid.storage.range_reader import ByteRange, RangeReader
from streamvid.storage.retry import Retry
from streamvid.storage.url import is_local, redact
from streamvid.video.frame_index import FrameIndex

if TYPE_CHECKING:
    from pandas import DataFrame


class ClipSource:
    """Clips by row number, their columns and frame indexes, and the shards that hold them.

    Attributes:
        path: folder or URL; of several datasets all of them, with ``+`` between.
        clips: the rows of all clips.
        columns: the clips' columns by name.
        classes: names of the class numbers, if the labels were given as text.
        shards: the shards' entries in dataset.json; `ClipTable.shard` counts in this order.
        reader: reads byte ranges of shards where they are, and keeps local ones open.
    """

    def __init__(
        self,
        path: str,
        clips: ClipTable,
        columns: Columns,
        classes: tuple[str, ...] | None,
        shards: Sequence[ShardFiles],
        retry: Retry | None = None,
    ) -> None:
        self.path = path
        self.clips = clips
        self.columns = columns
        self.classes = classes
        self.shards: tuple[ShardEntry, ...] = tuple(shard.entry for shard in shards)
        self._files = shards
        self._first_rows: Int64 = np.cumsum([0, *(shard.entry.clips for shard in shards)], dtype=np.int64)
        self.reader = RangeReader(retry)
        self._indexes: LruCache[int, FrameIndex] = LruCache(INDEX_BYTES, memory_of)
        self._by_key: Int64 | None = None

    def __len__(self) -> int:
        """Number of clips."""
        return len(self.clips)

    def __repr__(self) -> str:
        duration = timedelta(seconds=round(float(self.clips.seconds.sum())))
        shown = f"{redact(self.path)!r}, clips={len(self)}, shards={len(self.shards)}, duration={str(duration)!r}"
        return f"{type(self).__name__}({shown})"

    @property
    def is_local(self) -> bool:
        """Whether every shard is a local file."""
        return all(map(is_local, {shard.dataset for shard in self._files}))

    def key(self, i: int) -> str:
        """The key of clip *i*; no other clip has it."""
        return self.clips.key[i]

    def row(self, key: str) -> int:
        """The row of a clip. Raises KeyError if there is no such key, with the key that was probably meant."""
        row = self._find(key)
        if row is None:
            meant = self.keys_meant(key)[:3] if isinstance(key, str) else []
            hint = f"; did you mean {' or '.join(map(repr, meant))}?" if meant else ""
            raise KeyError(f"there is no clip {key[:100]!r} in {redact(self.path)}{hint}")
        return row

    def keys_meant(self, name: str) -> list[str]:
        """Keys of clips that someone may mean by a name that is no key: of the video's file or path, with or without
        its extension, or, in a concatenated dataset, without the part's name before it."""
        stem = posixpath.splitext(name)[0]
        likely = pa.array([stem, posixpath.basename(stem), posixpath.basename(name)], pa.string())
        keys, sources = self.clips.key.array, self.clips.source.array
        mask = pc.is_in(pc.cast(keys, pa.string()), value_set=likely)
        for column in (keys, sources):
            mask = pc.or_(mask, pc.or_(pc.equal(column, name), pc.ends_with(column, pattern=f"/{name}")))
        return [str(key) for key in keys.filter(mask).to_pylist()]

    def _find(self, key: str) -> int | None:
        if self._by_key is None:
            # Rows sorted by key: a tenth of the memory of a dict. Two threads may both compute it, with equal results.
            self._by_key = pc.sort_indices(self.clips.key.array).to_numpy().astype(np.int64)
        place = bisect.bisect_left(self._by_key, key, key=lambda row: self.clips.key[int(row)])
        if place < len(self) and self.clips.key[row := int(self._by_key[place])] == key:
            return row
        return None

    def shard_path(self, s: int, extension: str = "tar") -> str:
        """Path or URL of a file of shard *s*: its ``tar``, ``idx`` or ``parquet``."""
        return self._files[s].path(extension)

    def shard_error(self, s: int, error: DatasetError) -> DatasetError:
        """An error of reading shard *s*, for a user who knows neither shard nor dataset."""
        restore = (
            ""
            if isinstance(error, StorageUnavailable | AccessRefused)
            else "restore it (streamvid verify checks all), and "
        )
        return type(error)(
            f"shard {self.shards[s].name} of the dataset {redact(self._files[s].dataset)} cannot be read: "
            f"{str(error).rstrip('.')}; {restore}go on from the last checkpoint"
        )

    def rows(self, s: int) -> slice:
        """The rows of shard *s*, in the order of its tar."""
        return slice(int(self._first_rows[s]), int(self._first_rows[s + 1]))

    def index(self, i: int) -> FrameIndex:
        """The frame index of clip *i*; errors as from `indexes`, and IndexError if there is no such clip."""
        if not 0 <= i < len(self):
            raise IndexError(f"clip {i} of {len(self)}")
        return self.indexes([i])[0]

    def indexes(
        self,
        rows: Sequence[int],
        *,
        reader: RangeReader | None = None,
        path_of: Callable[[int], str] | None = None,
    ) -> list[FrameIndex]:
        """The frame indexes of clips. Those used last are kept, the others are read from the shards' tars together.

        Args:
            rows: the clips.
            reader: reads the tars; default: the dataset's own.
            path_of: gives the path or URL of a shard's tar by its number; default: where it is.

        Raises:
            DatasetError: a shard cannot be read, or an index is damaged. Names the clip.
        """
        found = {row: self._indexes.get(row) for row in rows}
        missing = [row for row, index in found.items() if index is None]
        if missing:
            path_of = path_of or self.shard_path
            starts, sizes = self.clips.npy_offset[missing], self.clips.npy_size[missing]
            shards = self.clips.shard[missing].tolist()
            ends = (starts + sizes).tolist()
            wanted = [ByteRange(path_of(s), a, b) for s, a, b in zip(shards, starts.tolist(), ends, strict=True)]
            with shard_errors(self, shards, path_of):
                blocks = (reader or self.reader).read(wanted)
            for row, data in zip(missing, blocks, strict=True):
                found[row] = self._indexes.put(row, self._parse(row, data))
        return [index for row in rows if (index := found[row]) is not None]

    def _parse(self, row: int, data: UInt8) -> FrameIndex:
        try:
            return parse_index(data, self.clips, row)
        except ValueError as error:
            raise ClipError(
                f"its frame index is damaged: {error}",
                row=row,
                key=self.key(row),
                shard=self.shards[int(self.clips.shard[row])].name,
                suspect="index",
            ) from error

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Columns of all clips, one row per clip in the order of row numbers, null where a clip has no value.

        Args:
            columns: names, in the order of the result; default: all. docs/selecting.md lists them.

        Raises:
            InputError: there is no such column.
            DatasetError: a column's types contradict each other between shards or datasets.
        """
        if isinstance(columns, str):
            raise InputError(f"columns must be a list of column names, it is {columns!r}: write [{columns!r}]")
        return self.columns.table(self.columns.names if columns is None else columns)

    def to_pandas(self, columns: Sequence[str] | None = None) -> DataFrame:
        """The same as a pandas DataFrame. Raises InputError if pandas is not installed, else as `to_arrow`."""
        table = self.to_arrow(columns)
        try:
            return table.to_pandas()
        except ImportError as error:
            raise InputError("to_pandas needs the package pandas: pip install pandas, or call to_arrow") from error


@contextlib.contextmanager
def shard_errors(
    dataset: ClipSource, shards: Iterable[int], path_of: Callable[[int], str] | None = None
) -> Iterator[None]:
    """Let a DatasetError of the block name the shard and its dataset.

    Args:
        dataset: whose shards are read.
        shards: their numbers.
        path_of: where they are. Of several shards, it is the one at the error's path.
    """
    try:
        yield
    except DatasetError as error:
        for number in shards:
            if path_of is None or redact(path_of(number)) == error.path:
                raise dataset.shard_error(number, error) from error
        raise
