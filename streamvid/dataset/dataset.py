"""A packed dataset, opened for reading. Its rows are in memory; its frame indexes are read on demand."""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from streamvid.arrays import Int64
from streamvid.checks import position, suggest_keywords
from streamvid.dataset import consolidated, table_cache
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.columns import Columns
from streamvid.dataset.forgotten import read_forgotten
from streamvid.dataset.manifest import FILE_NAME, Manifest, ShardEntry
from streamvid.dataset.members import members_of, read_members
from streamvid.dataset.meta_columns import MetaColumns
from streamvid.dataset.overlays import check_overlays, read_labels, with_overlays
from streamvid.dataset.revisions import dataset_path, read_manifest
from streamvid.dataset.roots import Bounds, given_roots, resolve_roots
from streamvid.dataset.row_texts import TableTexts
from streamvid.dataset.schema import CATEGORIES
from streamvid.dataset.shard_files import ShardFiles, fetch_table, read_table
from streamvid.dataset.shard_rows import REMEDY, RowBlock, row_block, row_blocks, unopened
from streamvid.dataset.tables import TableEntry, usable
from streamvid.errors import DatasetError, InputError
from streamvid.host import BROKEN_ERRNOS, limits_named, usable_cores
from streamvid.storage.client import asked
from streamvid.storage.explain import AccessRefused, StorageUnavailable
from streamvid.storage.retry import Retry
from streamvid.storage.shard_cache import ShardCache
from streamvid.storage.table_bounds import JointLimit
from streamvid.storage.url import is_local, local_path, redact

log = logging.getLogger(__name__)

_THREADS: Final = 16
"""Parquet files read at once: of a remote dataset, latency dominates."""
_MANY_SHARDS: Final = 64
"""From so many on, a local dataset is opened by its consolidated tables, too."""
_TOO_MANY_SHARDS: Final = 10_000
_SHARDS_A_SECOND: Final = 400
"""Of which a core reads the own Parquet files."""
_BLOCK_CLIPS: Final = 16_384
"""Rows that are validated together: of few, Python's overhead dominates."""


class Dataset(ClipSource):
    """A packed dataset, opened by `Dataset.open`. Picklable and thread-safe.

    Attributes:
        manifest: dataset.json.
        cache: keeps copies of a remote dataset's Parquet files. It belongs to one process, so pickles do not have it.
        roots: folders and URLs of clips in place.
    """

    def __init__(
        self,
        path: str,
        manifest: Manifest | None = None,
        clips: ClipTable | None = None,
        *,
        meta: MetaColumns | Callable[[], MetaColumns] | None = None,
        cache: ShardCache | None = None,
        retry: Retry | None = None,
        roots: Sequence[str] = (),
        forgotten: Int64 | None = None,
    ) -> None:
        if manifest is None or clips is None:
            raise InputError(f"Dataset({path!r}) does not open a dataset: write Dataset.open({path!r})")
        self.manifest = manifest
        self._own_meta = own = meta or MetaColumns()
        self.cache = cache
        self.roots = tuple(roots)
        resolved = resolve_roots(path, manifest.roots, self.roots)
        if clips.files is not None and clips.files.root.max() >= len(resolved):
            raise DatasetError(f"the dataset at {redact(path)} has clips of a root that {FILE_NAME} does not name")
        bounds = Bounds.of(path, resolved, self.roots)
        shards = [ShardFiles(path, entry, cache, resolved, bounds) for entry in manifest.shards]

        def columns_of_all() -> MetaColumns:
            found = own if isinstance(own, MetaColumns) else own()
            return with_overlays(found, path, manifest, cache, retry or Retry())

        columns = Columns(clips, manifest.classes, meta=columns_of_all)
        super().__init__(path, clips, columns, manifest.classes, shards, retry, forgotten)

    def __getitem__(self, index: object) -> NoReturn:
        """Refused: called if this is iterated over, or given to a DataLoader, as a dataset of samples."""
        raise TypeError(
            "a Dataset has rows, in its clips and columns, and no samples: ClipDataset(dataset, sampling=…) has these "
            "one by one, StreamLoader(dataset, …) in batches"
        )

    @classmethod
    @suggest_keywords
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        cache: ShardCache | None = None,
        retry_for: float | Retry = 600.0,
        roots: Sequence[str | os.PathLike[str]] = (),
        revision: int | None = None,
    ) -> Dataset:
        """Open a dataset. Checks everything except the content of tars and frame indexes.

        The rows of a large dataset are kept in the user's cache folder (`streamvid.dataset.table_cache`), so it opens
        faster the next time.

        Args:
            path: a folder, or any URL that fsspec knows.
            cache: keeps copies of a remote dataset's Parquet files; None: they are fetched each time.
            retry_for: seconds for which requests are repeated while a storage does not answer, now and when clips are
                read; docs/reliability.md lists the errors that are retried.
            roots: folders and URLs outside of the dataset whose files it may read.
            revision: number of the revision (docs/revisions.md); default: the newest.

        Raises:
            DatasetError: there is no dataset, it has another format version, or it is damaged: a shard is missing,
                truncated, or contradicts itself; the revision is not kept.
            InputError: the path is invalid; the dataset has clips below other roots than `roots`; there is no such
                revision.
        """
        place = dataset_path(path)
        try:
            return cls._open(place, cache, Retry.of(retry_for), given_roots(roots), revision)
        except DatasetError as error:
            # Name the dataset, as several with equal names of shards may be open.
            named = re.search(rf"(?<!\w){re.escape(redact(place))}(?!\w)", str(error))
            if type(error) is DatasetError and not named:
                raise DatasetError(f"the dataset at {redact(place)}: {error}") from error.__cause__
            raise

    @classmethod
    @limits_named()
    def _open(
        cls, path: str, cache: ShardCache | None, retry: Retry, roots: tuple[str, ...], revision: int | None
    ) -> Dataset:
        manifest = read_manifest(path, revision=revision, retry_for=retry)
        if not manifest.clips:
            raise DatasetError(f"the dataset at {redact(path)} holds no clips: pack it again")
        if is_local(path):
            path = local_path(path)
            asked(path, partial(check_sizes, path, manifest.shards), retry)
        resolve_roots(path, manifest.roots, roots)
        forgotten = read_forgotten(path, manifest, retry)
        check_overlays(path, manifest, retry)
        cached = manifest.clips >= table_cache.MIN_CLIPS

        def build(file: str, tables_cache: ShardCache | None = cache) -> None:
            try:
                blocks = _read_blocks(path, manifest, cache, tables_cache, kept=cached, retry=retry)
                consolidated.write_rows(file, blocks, manifest.shards)
            except MemoryError as error:
                raise DatasetError(
                    f"the rows of the {manifest.clips:,} clips at {redact(path)} do not fit into memory: use a machine "
                    "with more, or pack fewer clips"
                ) from error

        if cached:
            signatures = [ShardFiles(path, entry, cache).signature() for entry in manifest.shards]
            if is_local(path) and (0, 0) in signatures:
                name = manifest.shards[signatures.index((0, 0))].name
                raise DatasetError(f"shard {name}.parquet is missing: {REMEDY}")
            key = consolidated.cache_key(manifest.shards, signatures)
            # Cached rows need no cached copies of their Parquet files.
            content = table_cache.open_or_build(key, partial(build, tables_cache=None), build)
        else:
            content = table_cache.in_memory(build)
        parts = {table.texts: part for table, part in usable(manifest.tables, manifest.shards)}
        read = TableTexts(path, manifest.shards, parts, retry)
        clips, texts = consolidated.read_rows(content, manifest.shards, read)
        if len(lost := np.setdiff1d(np.flatnonzero(clips.mp4_size == 0), forgotten)):
            key = clips.key[int(lost[0])]
            raise DatasetError(f"clip {key!r} has no bytes, and is not forgotten: run streamvid verify {redact(path)}")
        clips = replace(clips, label=read_labels(path, manifest, clips.label, cache, retry))
        return cls(
            path, manifest, clips, meta=texts.metadata, cache=cache, retry=retry, roots=roots, forgotten=forgotten
        )

    @property
    def meta(self) -> MetaColumns:
        """The metadata columns of the clips. The first use reads all of those of a large dataset."""
        return self.columns.meta

    def members(self, clip: str | int) -> list[str]:
        """The names of the other members of a clip's WebDataset sample, in the tar in which it was indexed: everything
        after the first dot, such as "json" and "depth.npy". A packed clip has none. Errors as in `member`."""
        return list(members_of(self, self._row(clip)))

    def member(self, clip: str | int, name: str) -> bytes:
        """Read another member of a clip's WebDataset sample.

        Args:
            clip: its key, or its row number.
            name: one of `members`.

        Raises:
            InputError: there is no such clip or member.
            ClipError: the tar has changed since it was indexed.
            DatasetError: the tar cannot be read.
        """
        row = self._row(clip)
        data = read_members(self, [name], [row])[name][0] if isinstance(name, str) else None
        if data is None:
            there = ", ".join(members_of(self, row)) or "none"
            raise InputError(f"clip {self.key(row)!r} has no member {repr(name)[:100]}: it has {there}")
        return data

    def _row(self, clip: str | int) -> int:
        name = "clip, if it is no key,"
        return self.row(clip) if isinstance(clip, str) else position(clip, name, len(self))

    def __getstate__(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "manifest": self.manifest,
            "clips": self.clips,
            "meta": self._own_meta,
            "retry": self.reader.retry,
            "roots": self.roots,
            "forgotten": self.forgotten,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _read_blocks(
    path: str,
    manifest: Manifest,
    cache: ShardCache | None,
    tables_cache: ShardCache | None,
    *,
    kept: bool,
    retry: Retry,
) -> Iterator[RowBlock]:
    """The rows of all shards in order, read by threads a little ahead of the consumer: from consolidated tables, if
    there are any, and, for a local dataset, if it has many shards; otherwise from the shards' own Parquet files. Rows
    that are `kept` in the cache come without the texts of consolidated tables."""
    shards = [ShardFiles(path, entry, cache) for entry in manifest.shards]
    local, cores = is_local(path), usable_cores()
    tables = () if local and len(shards) < _MANY_SHARDS else manifest.tables
    threads = max(1, min(len(shards), cores if local else _THREADS, _THREADS))
    stop, joint = threading.Event(), JointLimit()
    decoding = threading.Semaphore(cores)

    def read(some: Sequence[ShardFiles], table: TableEntry | None) -> list[RowBlock]:
        entries = [shard.entry for shard in some]
        if table is not None:
            try:
                fetch = partial(fetch_table, path, cache=tables_cache, retry=retry, stop=stop)
                with ThreadPoolExecutor(1) as beside:
                    of_texts = None if kept else beside.submit(fetch, table.texts)
                    data = fetch(table.sha256)
                    with decoding:  # more threads than cores would take more memory and time
                        rows = read_table(data, table.sha256, entries, texts=False, joint=joint, encoded=CATEGORIES)
                        if of_texts is None:
                            return [row_block(rows, entries, table.texts)]
                    texts = read_table(of_texts.result(), table.texts, entries, texts=True, joint=joint)
                names = [*rows.column_names, *texts.column_names]
                return [row_block(pa.table([*rows.columns, *texts.columns], names), entries)]
            except (StorageUnavailable, AccessRefused):
                raise
            except DatasetError as error:
                log.warning("%s; the Parquet files of its %d shards are read instead", error, len(some))
        strict = kept and not local  # in a local dataset, a damaged row costs only its clip
        found = [shard.read_scalars(check_sha256=strict, retry=retry, stop=stop, joint=joint) for shard in some]
        return row_blocks(found, entries)

    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[Future[list[RowBlock]]] = deque()
        try:
            for some, table in _parts(shards, tables, most=-(-len(shards) // threads)):
                ahead.append(pool.submit(read, some, table))
                if len(ahead) > threads + 2:
                    yield from ahead.popleft().result()
            while ahead:
                yield from ahead.popleft().result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _parts(
    shards: Sequence[ShardFiles], tables: Sequence[TableEntry], *, most: int
) -> Iterator[tuple[Sequence[ShardFiles], TableEntry | None]]:
    """Groups of shards that are read together: those of a consolidated table, or `_groups` of shards without one."""
    good = list(usable(tables, [shard.entry for shard in shards]))
    if len(good) < len(tables):
        log.warning("%d consolidated tables are not of the shards that dataset.json names", len(tables) - len(good))
    alone = len(shards) - sum(table.shards for table, _ in good)
    if alone >= _TOO_MANY_SHARDS:
        log.warning(
            "to open %s takes about %d s until its rows are in the cache, as %d of its shards are in no consolidated "
            "table: streamvid reshard makes a dataset of fewer shards",
            redact(shards[0].dataset), alone // _SHARDS_A_SECOND, alone,
        )  # fmt: skip
    end = 0
    for table, part in good:
        yield from ((some, None) for some in _groups(shards[end : part.start], most=most))
        yield shards[part], table
        end = part.stop
    yield from ((some, None) for some in _groups(shards[end:], most=most))


def _groups(shards: Sequence[ShardFiles], *, most: int) -> Iterator[Sequence[ShardFiles]]:
    """Groups of consecutive shards, with about `_BLOCK_CLIPS` clips and at most `most` shards each."""
    first = clips = 0
    for number, shard in enumerate(shards):
        clips += shard.entry.clips
        if clips >= _BLOCK_CLIPS or number + 1 - first >= most or number + 1 == len(shards):
            yield shards[first : number + 1]
            first, clips = number + 1, 0


def check_sizes(folder: str, entries: Sequence[ShardEntry]) -> None:
    """Check that the files of a local dataset may be read, and have the sizes in dataset.json, if it has them.

    Raises:
        DatasetError: a file is missing, may not be read, or has another size; the message names the first.
        OSError: a mounted storage does not answer.
    """
    for entry in entries:
        for extension, wanted in entry.sizes.items():
            file = os.path.join(folder, entry.file(extension))
            try:
                size = os.stat(file).st_size
                if not os.access(file, os.R_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            except OSError as error:
                if error.errno in BROKEN_ERRNOS:
                    raise
                raise unopened(f"{entry.name}.{extension}", error) from error
            if size != wanted:
                raise DatasetError(
                    f"shard {entry.name}.{extension} is {'truncated' if size < wanted else 'too long'}: {size} of "
                    f"{wanted} bytes; copy it again or run streamvid verify"
                )
