"""Reads byte ranges: with pread from local files, with concurrent ranged requests from object stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from streamvid.arrays import UInt8
from streamvid.errors import DatasetError
from streamvid.storage.lru_cache import LruCache
from streamvid.storage.ranges import RemoteRanges
from streamvid.storage.regular_file import open_file
from streamvid.storage.retry import Retry
from streamvid.storage.url import is_local, local_path, redact

MAX_OPEN_FILES: Final = 64
"""Local files that one reader keeps open at most."""
WASTE: Final = 0.15
"""Bytes of remote files that are read in vain at most to save requests, as a share of those wanted."""
_PART_BYTES: Final = 8 << 20
"""Longer ranges of remote files are read in parts, side by side."""


class FileTooShort(DatasetError):  # noqa: N818
    """A file that ends before a range of it does."""


@dataclass(frozen=True)
class ByteRange:
    """Bytes [start, end) of the file at a local path or URL."""

    path: str
    start: int
    end: int


class RangeReader:
    """Reads byte ranges of files. Local files stay open for the next read, the `MAX_OPEN_FILES` used last.

    Thread-safe, picklable, and usable in forked children: no connection and no event loop is kept here, since
    `streamvid.storage.filesystem` gives a forked child its own.

    Files are read, not mapped: a mapped file that somebody truncates kills the process with SIGBUS.

    Args:
        retry: for how long a remote storage that does not answer is asked again.
        like: another reader: what that knows of remote files is shared, but no open file.

    Attributes:
        remote: reads remote files.
    """

    def __init__(self, retry: Retry | None = None, like: RangeReader | None = None) -> None:
        self.retry = retry or Retry()
        self.remote: RemoteRanges = RemoteRanges() if like is None else like.remote
        self._open: LruCache[str, _LocalFile] = LruCache(MAX_OPEN_FILES)

    def __getstate__(self) -> dict[str, Any]:
        return {"retry": self.retry}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def read(self, ranges: Sequence[ByteRange]) -> list[UInt8]:
        """Read ranges: remote ones concurrently, those close together by one request, then local ones, each file from
        front to back.

        The kernel is told of the next `MAX_OPEN_FILES` local ranges before the first of them is read, so that a disk
        fetches them concurrently: with a cold page cache this halves the time.

        Args:
            ranges: in any order, of any number of files; they may overlap.

        Returns:
            The bytes of each range, uint8 [end - start], in the order of `ranges`.

        Raises:
            DatasetError: a file is missing, cannot be read, ends before a range does, or is an object whose ETag has
                changed since this reader read it first. Names the file.
            StorageUnavailable: the storage did not answer, for as long as `retry` says.
        """
        remote = [n for n, one in enumerate(ranges) if not is_local(one.path)]
        local = sorted(set(range(len(ranges))) - set(remote), key=lambda n: (ranges[n].path, ranges[n].start))
        blocks: dict[int, UInt8] = {}
        if remote:
            blocks = dict(zip(remote, self._read_remote([ranges[n] for n in remote]), strict=True))
        for first in range(0, len(local), MAX_OPEN_FILES):
            some = local[first : first + MAX_OPEN_FILES]
            for n in some:
                self._file(ranges[n].path).read_ahead(ranges[n])
            blocks |= {n: self._file(ranges[n].path).read(ranges[n]) for n in some}
        for n, one in enumerate(ranges):
            if len(blocks[n]) != one.end - one.start:
                raise _unreadable(one.path, f"ends before byte {one.end}", FileTooShort)
        return [blocks[n] for n in range(len(ranges))]

    def _read_remote(self, ranges: Sequence[ByteRange]) -> list[UInt8]:
        joined, places = join(ranges, gap=self.remote.link.gap)
        parts = [
            (one.path, start, min(start + _PART_BYTES, one.end))
            for one in joined
            for start in range(one.start, max(one.end, one.start + 1), _PART_BYTES)
        ]
        read = iter(np.frombuffer(data, dtype=np.uint8) for data in self.remote.read(parts, retry=self.retry))
        blocks = []
        for one in joined:
            pieces = [next(read) for _ in range(max(1, -(-(one.end - one.start) // _PART_BYTES)))]
            blocks.append(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))
        return [
            blocks[n][one.start - joined[n].start : one.end - joined[n].start]
            for one, n in zip(ranges, places, strict=True)
        ]

    def _file(self, path: str) -> _LocalFile:
        return self._open.get(path) or self._open.put(path, _LocalFile(path))


def join(ranges: Sequence[ByteRange], *, gap: int) -> tuple[list[ByteRange], list[int]]:
    """Fewer ranges that hold all of some: overlapping ones become one, and so do those with up to `gap` bytes between
    them, the closest first, until `WASTE` is used up, to `_PART_BYTES` at most.

    Returns:
        the ranges, and for each of `ranges` the number of the one that holds it.
    """
    order = sorted(range(len(ranges)), key=lambda n: (ranges[n].path, ranges[n].start))
    between: list[tuple[int, int]] = []
    apart = set()
    end = wanted = 0
    for place, n in enumerate(order):
        one = ranges[n]
        if not place or ranges[order[place - 1]].path != one.path:
            apart.add(place)
        elif one.start > end:
            between.append((one.start - end, place))
        else:
            end = max(end, one.end)
            continue
        end = one.end
        wanted += one.end - one.start
    budget = WASTE * wanted
    for size, place in sorted(between):
        budget -= size
        if size > gap or budget < 0:
            apart.add(place)
    joined: list[ByteRange] = []
    places = [0] * len(ranges)
    for place, n in enumerate(order):
        one = ranges[n]
        if place in apart or (one.start >= joined[-1].end and one.end - joined[-1].start > _PART_BYTES):
            joined.append(one)
        elif one.end > joined[-1].end:
            joined[-1] = ByteRange(one.path, joined[-1].start, one.end)
        places[n] = len(joined) - 1
    return joined, places


def _unreadable(path: str, what: str, kind: type[DatasetError] = DatasetError) -> DatasetError:
    error = kind(f"{redact(path)} {what}")
    error.path = redact(path)
    return error


class _LocalFile:
    """An open file descriptor, closed with the last reference: another thread may still read from a file that
    `RangeReader` has dropped."""

    def __init__(self, path: str) -> None:
        self._descriptor = -1
        try:
            self._descriptor = open_file(local_path(path))
        except OSError as error:
            raise _unreadable(path, f"cannot be opened ({error.strerror})") from error

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
                raise _unreadable(wanted.path, f"cannot be read ({error.strerror}): check the disk") from error
            if not count:
                break
            done += count
        return block[:done]

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # A default value: at Python's end `os` may be gone before this file is.
        if self._descriptor >= 0:
            close(self._descriptor)
