"""Reads byte ranges: with pread from local files, with concurrent ranged requests from object stores."""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any, Final

import numpy as np

from streamvid.arrays import UInt8
from streamvid.errors import DatasetError, StreamvidError
from streamvid.host import BROKEN_ERRNOS, limit_met
from streamvid.storage.byte_range import PART_BYTES, REQUEST_BYTES, WASTE, ByteRange, FileVersion, in_parts, join
from streamvid.storage.explain import FileChangedError, MissingFile, StorageUnavailable
from streamvid.storage.lru_cache import LruCache
from streamvid.storage.range_cache import RangeCache
from streamvid.storage.ranges import RemoteRanges
from streamvid.storage.readable import answers
from streamvid.storage.regular_file import open_file
from streamvid.storage.retry import SAY_SECONDS, Retry
from streamvid.storage.turn import Turn
from streamvid.storage.url import is_local, is_within, local_path, redact

MAX_OPEN_FILES: Final = 64
"""Local files that one reader keeps open at most."""
_PATIENCE: Final = 1.0
"""Seconds to wait for ranges that other processes are fetching into the cache."""
_log = logging.getLogger(__name__)


@dataclass
class _Reading:
    """What a thread reads: a local file, since when, and when the log said so last, in seconds (monotonic)."""

    path: str = ""
    since: float = 0.0
    said: float = 0.0

    def begin(self, path: str) -> None:
        """Open or read another file."""
        self.path, self.since = path, time.monotonic()
        self.said = self.since


class LocalReads:
    """The local files that are being opened or read. Thread-safe."""

    def __init__(self) -> None:
        self._by_thread: dict[int, _Reading] = {}

    @contextmanager
    def noted(self) -> Iterator[_Reading]:
        """A context in which this thread reads files, each of which it begins."""
        self._by_thread[get_ident()] = reading = _Reading()
        try:
            yield reading
        finally:
            self._by_thread.pop(get_ident(), None)

    def tell(self) -> None:
        """Log which files are being read for `SAY_SECONDS`, every so often: the kernel may wait for ever for a mounted
        storage that is away (NFS)."""
        now = time.monotonic()
        for reading in list(self._by_thread.values()):
            if reading.path and now - reading.said >= SAY_SECONDS:
                reading.said = now
                _log.warning(
                    "%s is being read for %.0f s: check the disk, or the network if it is mounted from there.",
                    redact(reading.path), now - reading.since,
                )  # fmt: skip


class FileTooShort(DatasetError):  # noqa: N818
    """A file ends before a range, or its disk cannot read the range."""


class RangeReader:
    """Reads byte ranges of files. The `MAX_OPEN_FILES` most recently used local files stay open for the next read.

    Thread-safe, picklable, and usable in forked children: no connection and no event loop is kept here, since
    `streamvid.storage.filesystem` gives a forked child its own.

    Files are read, not mapped: a mapped file that somebody truncates kills the process with SIGBUS.

    Args:
        retry: for how long requests are repeated while a remote storage does not answer.
        like: another reader, whose `remote` and `reads` are shared, but not its open files.
        cache: keeps ranges of remote files on a local disk.
        turn: priority among readers: remote ranges of earlier turns are read first.

    Attributes:
        remote: reads remote files.
        reads: the reads of local files that are under way.
    """

    def __init__(
        self,
        retry: Retry | None = None,
        like: RangeReader | None = None,
        cache: RangeCache | None = None,
        turn: Turn | None = None,
    ) -> None:
        self.retry = retry or Retry()
        self.cache, self.turn = cache, turn or Turn()
        self.remote: RemoteRanges = RemoteRanges() if like is None else like.remote
        self.reads: LocalReads = LocalReads() if like is None else like.reads
        self._open: LruCache[str, _LocalFile] = LruCache(MAX_OPEN_FILES)

    def __getstate__(self) -> dict[str, Any]:
        return {"retry": self.retry}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def read(
        self,
        ranges: Sequence[ByteRange],
        versions: Mapping[str, FileVersion] | None = None,
        *,
        neighbours: bool = False,
    ) -> list[UInt8]:
        """Read ranges: remote ones concurrently, those close together by one request, then local ones, each file from
        front to back.

        The kernel is told of the next `MAX_OPEN_FILES` local ranges before the first of them is read, so that a disk
        fetches them concurrently: with a cold page cache this halves the time.

        Args:
            ranges: in any order, of any number of files; they may overlap.
            versions: by path, the version that a file must have.
            neighbours: whether the bytes between the ranges will be wanted, too. Then, if there is a cache, gaps that
                are cheaper to read than another request are read into it.

        Returns:
            The bytes of each range, uint8 [end - start], in the order of `ranges`.

        Raises:
            DatasetError: a file is missing, cannot be read, ends before a range does, or is an object whose ETag has
                changed since this reader read it first; the message names the file.
            FileChangedError: a file is not of its version in `versions`.
            StorageUnavailable: the storage did not answer for as long as `retry` says.
        """
        versions = versions or {}
        remote = [n for n, wanted in enumerate(ranges) if not is_local(wanted.path)]
        local = sorted(set(range(len(ranges))) - set(remote), key=lambda n: (ranges[n].path, ranges[n].start))
        blocks: dict[int, UInt8] = {}
        if remote:
            with self.turn.waiting():
                found = self._read_remote([ranges[n] for n in remote], versions, neighbours)
            blocks = dict(zip(remote, found, strict=True))
        with self.reads.noted() as reading:
            for first in range(0, len(local), MAX_OPEN_FILES):
                some = local[first : first + MAX_OPEN_FILES]
                for n in some:
                    reading.begin(ranges[n].path)
                    with suppress(StorageUnavailable, MissingFile, OSError):
                        self._file(ranges[n].path, versions).read_ahead(ranges[n])
                blocks |= {n: self._read_local(ranges[n], versions, reading) for n in some}
        for n, wanted in enumerate(ranges):
            if len(blocks[n]) != wanted.end - wanted.start:
                raise _unreadable(wanted.path, f"ends before byte {wanted.end}", FileTooShort)
        return [blocks[n] for n in range(len(ranges))]

    def _read_remote(
        self, ranges: Sequence[ByteRange], versions: Mapping[str, FileVersion], neighbours: bool
    ) -> list[UInt8]:
        if self.cache is not None:
            kept = self.cache.read(ranges)
            missing = [n for n in range(len(ranges)) if n not in kept]
            wanted = [ranges[n] for n in missing]
            if neighbours:
                fetched = self._fetch_neighbours(self.cache, wanted, versions) if missing else []
            else:
                fetched = self._fetch(wanted, versions) if missing else []
            kept.update(zip(missing, fetched, strict=True))
            return [kept[n] for n in range(len(ranges))]
        return self._fetch(ranges, versions)

    def _fetch(self, ranges: Sequence[ByteRange], versions: Mapping[str, FileVersion]) -> list[UInt8]:
        joined, places = self.joined(ranges, self.remote.link.gap)
        blocks = self.fetch_joined(joined, versions)
        return [cut_out(wanted, joined[n], blocks[n]) for wanted, n in zip(ranges, places, strict=True)]

    def _fetch_neighbours(
        self, cache: RangeCache, ranges: Sequence[ByteRange], versions: Mapping[str, FileVersion]
    ) -> list[UInt8]:
        """Read ranges with the gaps between them into the cache, and return the ranges. Blocks that other processes
        have put there meanwhile are not fetched again."""
        joined, places = self.joined([cache.file_or(wanted) for wanted in ranges], REQUEST_BYTES, math.inf)
        blocks: dict[int, UInt8] = {}
        until = time.monotonic() + _PATIENCE
        while left := [n for n in range(len(joined)) if n not in blocks]:
            with cache.claimed([joined[n] for n in left], until) as own:
                parts = {left[n]: cache.part(joined[left[n]]) for n in own}
                missing = [(n, wanted) for n, (_, rest) in parts.items() for wanted in rest]
                fetched = self.fetch_joined([wanted for _, wanted in missing], versions) if missing else []
            blocks.update((n, block) for n, (block, _) in parts.items())
            for (n, wanted), block in zip(missing, fetched, strict=True):
                start = wanted.start - joined[n].start
                blocks[n][start : start + len(block)] = block
                if len(block) < wanted.end - wanted.start:  # the file ends
                    blocks[n] = blocks[n][: start + len(block)]
        return [cut_out(wanted, joined[n], blocks[n]) for wanted, n in zip(ranges, places, strict=True)]

    def joined(self, ranges: Sequence[ByteRange], gap: int, waste: float = WASTE) -> tuple[list[ByteRange], list[int]]:
        """The requests for remote ranges, as in `streamvid.storage.byte_range.join`; of whole blocks if a cache keeps
        them."""
        wanted = ranges if self.cache is None else [self.cache.whole_blocks(wanted) for wanted in ranges]
        return join(wanted, gap=gap, waste=waste)

    def fetch_joined(self, joined: Sequence[ByteRange], versions: Mapping[str, FileVersion]) -> list[UInt8]:
        """Read remote ranges without joining them, and write them to the cache."""
        parts, retry = in_parts(joined), replace(self.retry, retry_missing=True)
        asked = self.remote.read(parts, retry=retry, versions=versions, turn=self.turn.number)
        read = iter(np.frombuffer(data, dtype=np.uint8) for data in asked)
        blocks = []
        for wanted in joined:
            pieces = [next(read) for _ in range(max(1, -(-(wanted.end - wanted.start) // PART_BYTES)))]
            blocks.append(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))
        if self.cache is not None:
            self.cache.keep(joined, blocks)
        return blocks

    def _read_local(self, wanted: ByteRange, versions: Mapping[str, FileVersion], reading: _Reading) -> UInt8:
        """Read a range of a local file. If it is on a mounted storage that does not answer, the file is reopened and
        read again, as `retry` says, unless it is a copy in a cache (`Lease.opened`), which can do without."""

        def attempt() -> UInt8:
            reading.begin(wanted.path)
            file = self._file(wanted.path, versions)
            try:
                block = file.read(wanted)
            except StorageUnavailable:
                self._open.drop(wanted.path)
                raise
            file.check(wanted.path, versions)
            return block

        try:
            return attempt()
        except (StorageUnavailable, MissingFile):
            if wanted.path.startswith("/proc/self/fd/"):
                raise
            # The file of a clip in place may be gone; of a shard, its folder is there, unless its storage is unmounted.
            return replace(self.retry, retry_missing=wanted.path not in versions)(attempt)

    def _file(self, path: str, versions: Mapping[str, FileVersion]) -> _LocalFile:
        """The open file of a path, reopened if it is of another version: the path may name another file now."""
        kept = self._open.get(path)
        with suppress(StorageUnavailable):  # it may be open elsewhere
            if kept is not None and kept.is_version(versions.get(path)):
                return kept
        if kept is not None:
            self._open.drop(path)
        return self._open.put(path, _LocalFile(path, versions.get(path)))


def cut_out(wanted: ByteRange, whole: ByteRange, block: UInt8) -> UInt8:
    """The bytes of `wanted`, cut out of the bytes of `whole`; fewer if the file ends before."""
    return block[wanted.start - whole.start : wanted.end - whole.start]


def _failed(path: str, done: str, error: OSError) -> DatasetError:
    """The error for a local file that cannot be opened or read; a StorageUnavailable if a repetition may succeed, a
    MissingFile if its folder is gone, too.

    Raises:
        StreamvidError: the cause is not the file but a limit of this process.
    """
    if error.errno in BROKEN_ERRNOS:
        what = f"cannot be {done} ({error.strerror}): check the disk, or the network if it is mounted from there"
        return _unreadable(path, what, StorageUnavailable)
    if (limit := limit_met(error)) is not None:
        raise StreamvidError(limit) from error
    gone = error.errno == errno.ENOENT and not os.path.isdir(os.path.dirname(local_path(path)))
    remedy = "; check who owns it and its mode" if isinstance(error, PermissionError) else ""
    return _unreadable(path, f"cannot be {done} ({error.strerror}{remedy})", MissingFile if gone else DatasetError)


def _unreadable(path: str, what: str, kind: type[DatasetError] = DatasetError) -> DatasetError:
    return kind(f"{redact(path)} {what}", path=redact(path))


class _LocalFile:
    """An open file descriptor, closed with the last reference: another thread may still read from a file that
    `RangeReader` has dropped."""

    def __init__(self, path: str, wanted: FileVersion | None) -> None:
        self._path, self._descriptor = path, -1
        try:
            self._descriptor = open_file(local_path(path))
        except OSError as error:
            raise _failed(path, "opened", error) from error

        folders = wanted.within if wanted else ()
        real = os.readlink(f"/proc/self/fd/{self._descriptor}") if folders else ""
        if real and not any(is_within(real, folder) for folder in folders):
            raise _unreadable(path, f"is a link to {real}: if that is meant, name its folder with roots=")

    def is_version(self, wanted: FileVersion | None) -> bool:
        """Whether the open file, which may have been renamed or removed, has the wanted size and modification time."""
        if wanted is None:
            return True
        now = self._status()
        return (now.st_size, str(now.st_mtime_ns)) == (wanted.size, wanted.mark)

    def _status(self) -> os.stat_result:
        try:
            return os.fstat(self._descriptor)
        except OSError as error:  # ESTALE, of a file that is open
            raise _failed(self._path, "read", error) from error

    def check(self, path: str, versions: Mapping[str, FileVersion]) -> None:
        """Raise FileChangedError if the open file is not of its version in `versions`."""
        wanted = versions.get(path)
        if wanted is not None and not self.is_version(wanted):
            now = self._status().st_size
            what = f"of {now} instead of {wanted.size} bytes" if now != wanted.size else "written at another time"
            raise _unreadable(path, f"was changed since it was indexed: it is {what}", FileChangedError)

    def read_ahead(self, wanted: ByteRange) -> None:
        """Let the kernel fetch the range into the page cache, in the background."""
        os.posix_fadvise(self._descriptor, wanted.start, wanted.end - wanted.start, os.POSIX_FADV_WILLNEED)

    def read(self, wanted: ByteRange) -> UInt8:
        """The range, uint8, or the part of it before the end of the file."""
        block = np.empty(wanted.end - wanted.start, dtype=np.uint8)
        view, done = block.data, 0
        while done < len(block):
            try:
                count = os.preadv(self._descriptor, [view[done:]], wanted.start + done)
            except OSError as error:
                if error.errno == errno.EIO and answers(self._descriptor):
                    what = f"cannot be read at byte {wanted.start + done} ({error.strerror}): check the disk"
                    raise _unreadable(wanted.path, what, FileTooShort) from error
                raise _failed(wanted.path, "read", error) from error
            if not count:
                break
            done += count
        return block[:done]

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # A default argument, because `os` may be gone before this file when the interpreter exits.
        if self._descriptor >= 0:
            try:
                close(self._descriptor)
            except OSError:  # of a mounted storage that is away, whose file is closed all the same
                self._descriptor = -1
