"""Byte ranges of remote files in the folder of the shard cache: what a node has fetched of a file, in one sparse file.

    <sha256>.<bytes>.ranges     the file's blocks of 4 KiB, each in its place, and behind them a byte for each: 1 if it
                                is there

A block is written before its byte is, and all who write it write the same: any number of processes may, without a lock,
and a process that is killed leaves nothing to repair. After a power failure a block may be there by its byte alone; and
programs may write to it. So who reads compares packets with their CRCs, and distrusts the file if they differ. A
removed file stays what it was for those that have it open.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from itertools import groupby

import numpy as np

from streamvid.arrays import UInt8
from streamvid.storage.byte_range import BLOCK_BYTES as _BLOCK
from streamvid.storage.byte_range import ByteRange, whole_blocks
from streamvid.storage.cache_folder import BusyError, touch
from streamvid.storage.shard_cache import CacheUnusable, ShardCache


@dataclass(frozen=True)
class FileIdentity:
    """A remote file's content: SHA-256, lower-case hexadecimal, and size in bytes."""

    sha256: str
    size: int


class RangeCache:
    """Keeps ranges of remote files.

    Args:
        cache: whose folder and limit are shared. Files that it holds as a whole are read there.
        files: URLs of the files that are kept, and what they are.
    """

    def __init__(self, cache: ShardCache, files: Mapping[str, FileIdentity]) -> None:
        self._cache, self._files = cache, files

    def read(self, ranges: Sequence[ByteRange]) -> dict[int, UInt8]:
        """The ranges that are there, uint8 [end - start], by their number in `ranges`."""
        found: dict[int, UInt8] = {}
        order = sorted(range(len(ranges)), key=lambda n: ranges[n].path)
        for path, numbers in groupby(order, key=lambda n: ranges[n].path):
            if (known := self._files.get(path)) is None:
                continue
            with contextlib.suppress(OSError, BusyError):
                if lease := self._cache.folder.pin(known.size, known.sha256):
                    with lease, open(lease.path, "rb", buffering=0) as file:
                        found.update((n, _read(file, ranges[n].start, ranges[n].end)) for n in numbers)
                else:
                    with self._open(known, os.O_RDWR) as file:
                        touch(file)
                        for n in numbers:
                            one = ranges[n]
                            first, last = one.start // _BLOCK, -(-one.end // _BLOCK)
                            there = _read(file, _map(known) + first, _map(known) + last)
                            if len(there) == last - first and there.all():
                                found[n] = _read(file, one.start, one.end)
        return {n: block for n, block in found.items() if len(block) == ranges[n].end - ranges[n].start}

    def whole_blocks(self, one: ByteRange) -> ByteRange:
        """The range with all of the blocks that it touches, which can be kept."""
        if (known := self._files.get(one.path)) is None or one.end > known.size:
            return one
        return whole_blocks(one, known.size)

    def keep(self, ranges: Sequence[ByteRange], blocks: Sequence[UInt8]) -> None:
        """Write ranges of whole blocks, if the folder can be used."""
        folder = self._cache.folder
        try:
            self._cache.check_usable()
            with self._cache.usable(), self._cache.writing:
                for one, block in zip(ranges, blocks, strict=True):
                    known = self._files.get(one.path)
                    if known is None or len(block) != one.end - one.start or not len(block):
                        continue
                    self._cache.reserve(len(block) + 2 * _BLOCK)  # the map takes some, too
                    folder.root.mkdir(parents=True, exist_ok=True)
                    with self._open(known, os.O_RDWR | os.O_CREAT) as file:
                        os.truncate(file.fileno(), _map(known) + -(-known.size // _BLOCK))
                        self._cache.write(file, block.data, one.start)
                        first, last = one.start // _BLOCK, -(-one.end // _BLOCK)
                        self._cache.write(file, bytes([1]) * (last - first), _map(known) + first)
        except CacheUnusable as error:
            self._cache.warn("without", "%s Until then ranges are fetched again.", error)

    @contextlib.contextmanager
    def _open(self, known: FileIdentity, flags: int) -> Iterator[FileIO]:
        path = self._cache.folder.ranges(known.sha256, known.size)
        with open(os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "r+b", buffering=0) as file:
            yield file


def _map(known: FileIdentity) -> int:
    """Where in its file the bytes of the blocks begin."""
    return -(-known.size // _BLOCK) * _BLOCK


def _read(file: FileIO, start: int, end: int) -> UInt8:
    """Bytes of a file, uint8, fewer where it ends."""
    return np.frombuffer(os.pread(file.fileno(), end - start, start), dtype=np.uint8)
