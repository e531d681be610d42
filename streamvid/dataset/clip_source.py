"""`ClipSource`: the common interface of one dataset (`Dataset`) and several (`ConcatDataset`) for all readers."""

from __future__ import annotations

import bisect
import contextlib
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import chain, groupby
from typing import TYPE_CHECKING, Final, NoReturn, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Int64
from streamvid.checks import position
from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.columns import Columns
from streamvid.dataset.frame_indexes import INDEX_BYTES, memory_of, parse_together, spans_to_read, with_parts
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.revisions import ended_by
from streamvid.dataset.shard_files import ShardFiles
from streamvid.dataset.string_column import StringColumn, repeated
from streamvid.errors import ClipError, DatasetError, InputError, Suspect
from streamvid.storage.byte_range import ByteRange, FileVersion
from streamvid.storage.explain import AccessRefused, NoRangesError, StorageUnavailable
from streamvid.storage.lru_cache import LruCache
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.retry import Retry
from streamvid.storage.url import is_local, join, redact
from streamvid.video.frame_index import FrameIndex
from streamvid.video.index_blocks import AnyIndex, MissingBlocks
from streamvid.video.packet_selection import PacketSelection

if TYPE_CHECKING:
    from pandas import DataFrame


_CHECKED_BYTES: Final = 64 << 20
_THREADS: Final = 16
_CHECKSUM_CLIPS: Final = 1 << 18
"""Clips whose SHA-256 are kept, per dataset and process."""
T = TypeVar("T")


class ShardPaths(Protocol):
    """Returns the path or URL of a shard's ``tar``, ``packets``, ``idx`` or ``parquet``, by the shard's number."""

    def __call__(self, s: int, extension: str = "tar", /) -> str: ...


class ClipSource:
    """Clips by row number, with their columns and frame indexes, and the shards that hold them.

    Attributes:
        path: folder or URL; for several datasets all of them, joined by ``+``.
        clips: the rows of all clips.
        columns: the clips' columns by name.
        classes: names of the class numbers, if the labels are text.
        shards: the shards' entries in dataset.json; `ClipTable.shard` counts in this order.
        shard_files: the shards' files by path.
        forgotten: int64 [clips], rows of forgotten clips, ascending.
        reader: reads byte ranges of shards in their storage, and keeps local files open.
    """

    def __init__(
        self,
        path: str,
        clips: ClipTable,
        columns: Columns,
        classes: tuple[str, ...] | None,
        shards: Sequence[ShardFiles],
        retry: Retry | None = None,
        forgotten: Int64 | None = None,
    ) -> None:
        self.path, self.clips, self.columns, self.classes = path, clips, columns, classes
        self.shards: tuple[ShardEntry, ...] = tuple(shard.entry for shard in shards)
        self.shard_files = shards
        self._first_rows: Int64 = np.cumsum([0, *(shard.entry.clips for shard in shards)], dtype=np.int64)
        self.forgotten = np.empty(0, dtype=np.int64) if forgotten is None else forgotten
        self.reader = RangeReader(retry)
        for folder, some in groupby(shards, key=lambda shard: shard.dataset):
            self.reader.remote.tell(folder, dict(chain.from_iterable(shard.told() for shard in some)))
        self._indexes: LruCache[int, AnyIndex] = LruCache(INDEX_BYTES, memory_of)
        self._checked: LruCache[int, Int64] = LruCache(_CHECKED_BYTES, lambda numbers: numbers.nbytes)
        self._checksums: LruCache[int, StringColumn] = LruCache(_CHECKSUM_CLIPS, len)
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
        """Whether every file that holds clips is local."""
        return all(is_local(place) for shard in self.shard_files for place in (shard.dataset, *shard.roots))

    def key(self, i: int) -> str:
        """The key of clip *i*; no other clip has it. Raises InputError if there is no such clip."""
        return self.clips.key[position(i, "the row of a clip", len(self))]

    def row(self, key: str) -> int:
        """The row of a clip. Raises InputError if there is no such key, with the key that was probably meant."""
        if not isinstance(key, str):
            raise InputError(f"key must be the text of a clip's key; it is {key!r}"[:300])
        if (row := self._find(key)) is None:
            meant = self.keys_meant(key)[:3]
            hint = f"; did you mean {' or '.join(map(repr, meant))}?" if meant else ""
            raise InputError(f"there is no clip {key[:100]!r} in {redact(self.path)}{hint}")
        return row

    def keys_meant(self, name: str) -> list[str]:
        """Keys of clips that a user may mean by a name that is no key: the name or path of the video's file, with or
        without its extension, a key without its ``-<digits>``, or without a concatenated dataset's part in front."""
        name = name.encode("utf-8", "replace").decode()
        stem = posixpath.splitext(name)[0]
        likely = pa.array([stem, posixpath.basename(stem), posixpath.basename(name)], pa.string())
        keys, sources = self.clips.key.array, self.clips.source.array
        mask = pc.or_(pc.is_in(pc.cast(keys, pa.string()), value_set=likely), pc.starts_with(keys, pattern=f"{stem}-"))
        for column in (keys, sources):
            mask = pc.or_(mask, pc.or_(pc.equal(column, name), pc.ends_with(column, pattern=f"/{name}")))
        return [str(key) for key in keys.filter(mask).to_pylist()]

    def _find(self, key: str) -> int | None:
        if self._by_key is None:
            if twice := repeated(self.clips.key):
                raise DatasetError(f"the dataset holds the clip {twice[0]!r} more than once: pack it again")
            # Sorted rows take a tenth of the memory of a dict. Two threads may both compute them, with equal results.
            self._by_key = pc.sort_indices(self.clips.key.array).to_numpy().astype(np.int64)
        place = bisect.bisect_left(self._by_key, key, key=lambda row: self.clips.key[int(row)])
        if place < len(self) and self.clips.key[row := int(self._by_key[place])] == key:
            return row
        return None

    def shard_path(self, s: int, extension: str = "tar") -> str:
        """Path or URL of a file of shard *s*: its ``tar``, ``idx``, ``packets`` or ``parquet``."""
        return self.shard_files[s].path(extension)

    def location(self, row: int, path_of: ShardPaths | None = None) -> str:
        """Path or URL of the file that holds a clip's MP4, at `mp4_offset`. `path_of` returns the paths of shards; by
        default they are the dataset's own."""
        s = int(self.clips.shard[row])
        if self.shards[s].has_tar:
            return (path_of or self.shard_path)(s)
        files = self.clips.files
        assert files is not None
        return join(self.shard_files[s].roots[int(files.root[row])], files.file[row])

    def version(self, row: int) -> FileVersion | None:
        """Size, and modification time or ETag, of the file of a clip in place when it was indexed; else None."""
        files, s = self.clips.files, int(self.clips.shard[row])
        if self.shards[s].has_tar or files is None:
            return None
        local = is_local(self.shard_files[s].roots[int(files.root[row])])
        mark = str(files.mtime_ns[row]) if local else files.etag[row]
        bounds = self.shard_files[s].bounds
        return FileVersion(int(files.size[row]), mark, bounds.folders if local else bounds.hosts)

    def raise_file_error(self, error: DatasetError, rows: Mapping[str, int]) -> NoReturn:
        """Raise the error of a file outside of shards as the error of a clip in it; raise others again, unchanged.

        Args:
            error: the error of reading.
            rows: a clip of each such file, by path.
        """
        row = next((row for path, row in rows.items() if redact(path) == error.path), None)
        if row is None or isinstance(error, StorageUnavailable | AccessRefused | ClipError):
            raise error
        told = str(error).replace(f"Cannot read {error.path}:", "cannot be read:")
        what = told.removeprefix(f"{error.path} ").rstrip(".")
        raise self.clip_error(row, f"its file {what}") from error

    def shard_error(self, s: int, error: DatasetError) -> DatasetError:
        """An error of reading shard *s* that names the shard and its dataset."""
        away = isinstance(error, StorageUnavailable | AccessRefused | NoRangesError)
        if not away and (ended := ended_by(self.shard_files[s].dataset, self.shards[s])):
            return type(error)(ended)
        restore = "" if away else "restore it (streamvid verify checks all), and "
        named = f"shard {self.shards[s].name} of the dataset {redact(self.shard_files[s].dataset)}"
        what = f"{named} cannot be read: {str(error).rstrip('.')}; {restore}go on from the last checkpoint"
        return type(error)(what, path=error.path)

    def rows(self, s: int) -> slice:
        """The rows of shard *s*, in the order of its tar."""
        return slice(int(self._first_rows[s]), int(self._first_rows[s + 1]))

    def place_in_shard(self, row: int) -> tuple[str, int]:
        """The name of a clip's shard, and the clip's row in the shard."""
        s = int(self.clips.shard[row])
        return self.shards[s].name, row - int(self._first_rows[s])

    def index(self, i: int) -> FrameIndex:
        """The frame index of clip *i*; errors as in `indexes`, and InputError if there is no such clip."""
        return self.indexes([position(i, "the row of a clip", len(self))])[0]

    def indexes(self, rows: Sequence[int]) -> list[FrameIndex]:
        """The whole frame indexes of clips; errors as in `use_indexes`."""
        return self.use_indexes(rows, lambda _, own: own if isinstance(own, FrameIndex) else own.whole, whole=True)

    def forget_indexes(self) -> None:
        """Drop the frame indexes that are kept in memory."""
        self._indexes = LruCache(INDEX_BYTES, memory_of)

    def use_indexes(
        self,
        rows: Sequence[int],
        use: Callable[[int, AnyIndex], T],
        *,
        reader: RangeReader | None = None,
        path_of: ShardPaths | None = None,
        whole: bool = False,
    ) -> list[T]:
        """Call a function with the frame index of each clip, and return its results. Of long indexes, only blocks that
        it needs are read, for all clips together, before it is called again. Indexes used last are kept.

        Args:
            rows: the clips.
            use: a function of a number in `rows` and the clip's index. If it raises MissingBlocks, it is called again.
            reader: reads the shards' .packets files; default: the dataset's own.
            path_of: returns the paths of shards; default: the dataset's own.
            whole: whether to read indexes that are not in memory as a whole.

        Raises:
            DatasetError: a shard cannot be read.
            ClipError: an index is damaged.
        """
        known: dict[int, AnyIndex] = {row: index for row in rows if (index := self._indexes.get(row)) is not None}
        wanted: dict[int, set[int]] = {row: set() for row in rows if row not in known}
        made: dict[int, T] = {}
        reader, path_of = reader or self.reader, path_of or self.shard_path
        with self.clips.key.prepared(rows, reader):
            self._read_indexes(known, wanted, reader, path_of, whole)
        while True:
            wanted = {}
            for n, row in enumerate(rows):
                if n not in made:
                    try:
                        made[n] = use(n, known[row])
                    except MissingBlocks as missing:
                        wanted.setdefault(row, set()).update(missing.blocks)
            if not wanted:
                return [made[n] for n in range(len(rows))]
            self._read_indexes(known, wanted, reader, path_of, whole)

    def _read_indexes(
        self,
        known: dict[int, AnyIndex],
        wanted: Mapping[int, Collection[int]],
        reader: RangeReader,
        path_of: ShardPaths,
        whole: bool,
    ) -> None:
        """Read wanted blocks of clips, or the beginnings of indexes, together."""
        ranges: dict[int, list[ByteRange]] = {}
        shard_of: dict[str, int] = {}
        for row, blocks in wanted.items():
            s, start = int(self.clips.shard[row]), int(self.clips.index_offset[row])
            path = path_of(s, "packets")
            spans = spans_to_read(self.clips, row, known.get(row), blocks, whole=whole)
            ranges[row] = [ByteRange(path, start + first, start + last) for first, last in spans]
            shard_of[path] = s
        if not ranges:
            return
        with shard_errors(self, shard_of):
            read = iter(reader.read([wanted for some in ranges.values() for wanted in some], neighbours=True))
        parts = {row: [next(read) for _ in own] for row, own in ranges.items()}
        together = parse_together({row: own[0] for row, own in parts.items() if row not in known}, self.clips)
        for row, own in ranges.items():
            try:
                index = together.get(row) or with_parts(self.clips, row, known.get(row), wanted[row], parts[row])
            except ValueError as error:
                what = f"its frame index is damaged: {error}"
                raise self.clip_error(row, what, own[0].path, suspect="index") from error
            self._indexes.drop(row)
            known[row] = self._indexes.put(row, index)

    def sha256(self, row: int) -> str:
        """SHA-256 of a clip's MP4 in lower-case hexadecimal, from its shard's Parquet file; "" if it is not known.

        Raises:
            DatasetError: the file cannot be read.
        """
        s = int(self.clips.shard[row])
        sums = self._checksums.get(s)
        if sums is None:
            sums = self._checksums.put(s, self.shard_files[s].read_checksums(self.reader.retry))
        return str(sums[row - self.rows(s).start])

    def checksums(self, rows: Int64) -> list[str]:
        """`sha256` of many clips. Reads each shard's file once, several at the same time."""
        found = np.full(len(rows), "", dtype=object)
        shard = self.clips.shard[rows]

        def read(s: int) -> None:
            at = np.flatnonzero(shard == s)
            column = self.shard_files[s].read_checksums(self.reader.retry).array
            found[at] = column.take(pa.array(rows[at] - self.rows(s).start)).to_pylist()

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(read, np.unique(shard).tolist()))
        return list(found)

    def clip_error(
        self,
        row: int,
        reason: str,
        path: str | None = None,
        *,
        packet: tuple[PacketSelection, int] | None = None,
        suspect: Suspect | None = None,
    ) -> ClipError:
        """An error about a clip's bytes.

        Args:
            row: the clip.
            reason: what is wrong.
            path: the file that was read: a copy in the cache, or, by default, the file with the clip or its index.
            packet: some packets of the clip, and which of them is damaged.
            suspect: what is probably damaged, if it is not the copy in the cache; default: the shard, or of a clip in
                place the source.
        """
        s, in_index, number = int(self.clips.shard[row]), suspect == "index", None
        place = self.shard_path(s, "packets") if in_index else self.location(row)
        offset = int((self.clips.index_offset if in_index else self.clips.mp4_offset)[row])
        suspect = suspect or ("shard" if self.shards[s].has_tar else "source")
        if packet is not None:
            part, at = packet
            offset, number = offset + int(part.offsets[at]), int(part.numbers[at])
        path = path or place
        error = ClipError(
            f"{reason} ({redact(path)})",
            row=row,
            key=self.key(row),
            shard=self.shards[s].name,
            offset=offset,
            packet=number,
            suspect=suspect if path == place else "cache",
        )
        error.path = redact(path)
        return error

    def is_checked(self, row: int, packets: Int64) -> bool:
        """Whether these packets of a clip, int64 [packets], have been compared with their bitstream."""
        known = self._checked.get(row)
        return known is not None and bool(np.isin(packets, known).all())

    def set_checked(self, row: int, packets: Int64) -> None:
        """Note that these packets of a clip have been compared with their bitstream."""
        known = self._checked.get(row)
        self._checked.drop(row)
        self._checked.put(row, packets if known is None else np.union1d(known, packets))

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
        """`to_arrow` as a pandas DataFrame. Raises InputError if pandas is not installed; otherwise as `to_arrow`."""
        table = self.to_arrow(columns)
        try:
            return table.to_pandas()
        except ImportError as error:
            raise InputError("to_pandas needs the package pandas: pip install pandas, or call to_arrow") from error


@contextlib.contextmanager
def shard_errors(dataset: ClipSource, shard_of: Mapping[str, int]) -> Iterator[None]:
    """A context that makes a DatasetError name the shard and its dataset.

    Args:
        dataset: the dataset whose shards are read.
        shard_of: numbers of the shards, by path. If there are several, the error's path decides.
    """
    try:
        yield
    except ClipError:
        raise
    except DatasetError as error:
        for path, number in shard_of.items():
            if redact(path) == error.path or (error.path is None and len(shard_of) == 1):
                raise dataset.shard_error(number, error) from error
        raise
