"""Byte ranges of remote files, cached in the folder of the shard cache: one sparse file for each remote file.

    <sha256>.<bytes>.ranges     the remote file's blocks of 4 KiB at their offsets, then the map: a byte for each
                                block, 1 if the block is there

A block is written before its byte in the map, and every writer writes the same bytes. So any number of processes may
write under a shared lock (flock), and a killed process leaves nothing to repair. Blocks are evicted under an exclusive
lock: their bytes in the map become 0, then holes are punched at their offsets. After a power failure the map may name a
block that was not written, and other programs may change the file: readers compare packets with their CRCs, and discard
the file if they differ. Processes that have a removed file open can still read it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from io import FileIO
from itertools import groupby
from typing import Final

import numpy as np

from streamvid.arrays import Float64, Int64, UInt8
from streamvid.storage.byte_range import BLOCK_BYTES as _BLOCK
from streamvid.storage.byte_range import REQUEST_BYTES, ByteRange, whole_blocks
from streamvid.storage.cache_folder import BusyError, CacheFolder, make_folder, touch
from streamvid.storage.shard_cache import CacheUnusable, ShardCache

_BUSY_SECONDS: Final = 0.2
"""Seconds to wait for other processes that have locked a file, before it is left alone."""
_EVICTED_SECONDS: Final = 10.0
"""A cache that has given up files or blocks within this many seconds counts as full."""
_LOOK_SECONDS: Final = 0.002
_PUNCH: Final = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE of fallocate(2)."""


@dataclass(frozen=True)
class FileIdentity:
    """A remote file's content: SHA-256, lower-case hexadecimal, and size in bytes."""

    sha256: str
    size: int


class RangeCache:
    """Keeps ranges of remote files.

    Args:
        cache: the shard cache, whose folder and size limit are shared. Whole files in it are used, too.
        files: the files whose ranges are cached, by URL; ranges of other files are not.
    """

    def __init__(self, cache: ShardCache, files: Mapping[str, FileIdentity]) -> None:
        self._cache, self._files = cache, files
        self._claims = True

    def read(self, ranges: Sequence[ByteRange]) -> dict[int, UInt8]:
        """The bytes of those ranges that are cached, uint8 [end - start], by index in `ranges`."""
        found: dict[int, UInt8] = {}
        order = sorted(range(len(ranges)), key=lambda n: ranges[n].path)
        for path, numbers in groupby(order, key=lambda n: ranges[n].path):
            if (known := self._files.get(path)) is None:
                continue
            with contextlib.suppress(OSError, BusyError):
                if lease := self._cache.folder.pin(known.size, known.sha256):
                    with lease, open(lease.opened, "rb", buffering=0) as file:
                        found.update((n, _read(file, ranges[n].start, ranges[n].end)) for n in numbers)
                else:
                    with _opened(self._cache.folder, known) as file:
                        self._share(file)
                        touch(file)
                        for n in numbers:
                            wanted = ranges[n]
                            first, last = wanted.start // _BLOCK, -(-wanted.end // _BLOCK)
                            there = _read(file, _map(known) + first, _map(known) + last)
                            if len(there) == last - first and there.all():
                                found[n] = _read(file, wanted.start, wanted.end)
        return {n: block for n, block in found.items() if len(block) == ranges[n].end - ranges[n].start}

    def whole_blocks(self, wanted: ByteRange) -> ByteRange:
        """The range extended to whole blocks, which `keep` can write."""
        if (known := self._files.get(wanted.path)) is None or wanted.end > known.size:
            return wanted
        return whole_blocks(wanted, known.size)

    def file_or(self, wanted: ByteRange) -> ByteRange:
        """The whole file of a range if that costs no more than another request; otherwise the range."""
        known = self._files.get(wanted.path)
        return wanted if known is None or known.size > REQUEST_BYTES else ByteRange(wanted.path, 0, known.size)

    @contextlib.contextmanager
    def claimed(self, ranges: Sequence[ByteRange], until: float) -> Iterator[list[int]]:
        """A context that claims ranges of whole blocks while they are fetched. Its value is the numbers of the claimed
        ranges: all that no other reader on the node has claimed; if there are none, the first that becomes free; all
        after `until` (`time.monotonic`), or if the cache is full and would not keep them. No reader waits while it
        holds a claim."""
        own: list[int] = []
        taken: list[tuple[int, FileIO]] = []
        # By content, as several URLs may have the same file.
        files: dict[FileIdentity, FileIO] = {}
        claims = contextlib.ExitStack()
        try:
            with contextlib.suppress(OSError):
                make_folder(self._cache.folder.root)
                for n, wanted in enumerate(ranges if self._claims else ()):
                    if known := self._files.get(wanted.path):
                        if known not in files:
                            opened = _opened(self._cache.folder, known, os.O_RDWR | os.O_CREAT)
                            files[known] = claims.enter_context(opened)
                        if _lock(files[known], wanted):
                            own.append(n)
                        else:
                            taken.append((n, files[known]))
                while taken and not own and self._waits(until):
                    time.sleep(_LOOK_SECONDS)
                    if _lock(taken[0][1], ranges[taken[0][0]]):
                        own.append(taken[0][0])
            yield own or list(range(len(ranges)))
        finally:
            with contextlib.suppress(OSError):  # some storages tell at close what they could not write
                claims.close()

    def _waits(self, until: float) -> bool:
        return (now := time.monotonic()) < until and now - self._cache.evicted >= _EVICTED_SECONDS

    def _share(self, file: FileIO) -> None:
        """Keep a file from eviction until it is closed. Raises BusyError if that cannot be had: on NFS, for one, locks
        of ranges are in the way of those of files, even this process' own. So this cache claims nothing any more."""
        try:
            _flock(file, fcntl.LOCK_SH)
        except BusyError:
            self._claims = False
            raise

    def part(self, wanted: ByteRange) -> tuple[UInt8, list[ByteRange]]:
        """The cached blocks of a range of whole blocks, with arbitrary bytes elsewhere; and the missing ranges."""
        known = self._files.get(wanted.path)
        with contextlib.suppress(OSError, BusyError):
            if known is not None:
                with _opened(self._cache.folder, known) as file:
                    self._share(file)
                    first, last = wanted.start // _BLOCK, -(-wanted.end // _BLOCK)
                    there = _read(file, _map(known) + first, _map(known) + last)
                    data = _read(file, wanted.start, wanted.end)
                if len(there) == last - first and len(data) == wanted.end - wanted.start:
                    edges = np.flatnonzero(np.diff(np.concatenate([[1], there != 0, [1]]))) + first
                    missing = [
                        ByteRange(wanted.path, a * _BLOCK, min(b * _BLOCK, wanted.end))
                        for a, b in edges.reshape(-1, 2).tolist()
                    ]
                    return data.copy(), missing
        return np.empty(wanted.end - wanted.start, dtype=np.uint8), [wanted]

    def keep(self, ranges: Sequence[ByteRange], blocks: Sequence[UInt8]) -> None:
        """Write ranges of whole blocks to the cache, if the folder can be used."""
        folder = self._cache.folder
        try:
            self._cache.check_usable()
            # They are not kept if another program removes the folder meanwhile.
            with self._cache.usable(), self._cache.writing, contextlib.suppress(FileNotFoundError, BusyError):
                make_folder(folder.root)
                for wanted, block in zip(ranges, blocks, strict=True):
                    known = self._files.get(wanted.path)
                    if known is None or len(block) != wanted.end - wanted.start or not len(block):
                        continue
                    self._cache.reserve(len(block) + 2 * _BLOCK)  # the map takes space, too
                    with _opened(folder, known, os.O_RDWR | os.O_CREAT) as file:
                        self._share(file)
                        os.truncate(file.fileno(), _map(known) + -(-known.size // _BLOCK))
                        self._cache.write(file, block.data, wanted.start)
                        first, last = wanted.start // _BLOCK, -(-wanted.end // _BLOCK)
                        self._cache.write(file, bytes([1]) * (last - first), _map(known) + first)
        except CacheUnusable as error:
            self._cache.warn("without", "%s Until then ranges are fetched again.", error)


def _flock(file: FileIO, kind: int) -> None:
    """Lock a file. Raises BusyError if other processes are in the way for `_BUSY_SECONDS`."""
    end = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            return fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise BusyError from None
            time.sleep(_LOOK_SECONDS)


def _lock(file: FileIO, wanted: ByteRange) -> bool:
    """Lock a range for this open file description (fcntl(2), F_OFD_SETLK), until it is closed. Returns False if another
    one has locked a part of the range."""
    try:
        lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, wanted.start, wanted.end - wanted.start, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def _map(known: FileIdentity) -> int:
    """Offset of the map in the cache's file."""
    return -(-known.size // _BLOCK) * _BLOCK


def _read(file: FileIO, start: int, end: int) -> UInt8:
    """Bytes of a file, uint8, fewer if it ends."""
    return np.frombuffer(os.pread(file.fileno(), end - start, start), dtype=np.uint8)


@dataclass(frozen=True)
class Extents:
    """When the parts of a file are needed next, to choose the blocks to evict.

    Attributes:
        file: the file.
        starts: int64 [parts], first byte of each, ascending. A part ends at the start of the next.
        when: float64 [parts], when each is needed next; higher is later.
    """

    file: FileIdentity
    starts: Int64
    when: Float64


def give_up_latest(folder: CacheFolder, extents: Sequence[Extents], wanted: int) -> int:
    """Free cached blocks, the ones that are needed latest first.

    Args:
        folder: the cache's folder.
        extents: when the cached files' parts are needed.
        wanted: bytes to free, at least.

    Returns:
        bytes freed; 0 if the file system cannot punch holes.
    """
    blocks: list[Int64] = []
    when: list[Float64] = []
    for extent in extents:
        there = np.empty(0, dtype=np.int64)
        with contextlib.suppress(OSError), _opened(folder, extent.file) as file:
            there = np.flatnonzero(_read(file, _map(extent.file), _map(extent.file) + -(-extent.file.size // _BLOCK)))
        # A block that two parts share is needed as soon as one of them is.
        parts = [np.searchsorted(extent.starts, there * _BLOCK + at, side="right") - 1 for at in (0, _BLOCK - 1)]
        blocks.append(there)
        when.append(np.minimum(*(extent.when[np.maximum(part, 0)] for part in parts)))
    every = np.concatenate([np.empty(0), *when])
    count = min(-(-wanted // _BLOCK), len(every))
    if not count:
        return 0
    latest = np.partition(every, len(every) - count)[len(every) - count]
    freed = 0
    for extent, own, needed in zip(extents, blocks, when, strict=True):
        if (needed >= latest).any() and freed < wanted:
            with contextlib.suppress(OSError, BusyError):
                freed += _punch(folder, extent.file, own[needed >= latest])
    return freed


def _punch(folder: CacheFolder, known: FileIdentity, blocks: Int64) -> int:
    """Free blocks of a file, and blocks outside the map that killed processes left. Returns the bytes freed."""
    with _opened(folder, known) as file:
        _flock(file, fcntl.LOCK_EX)
        used = os.fstat(file.fileno()).st_blocks
        there = _read(file, _map(known), _map(known) + -(-known.size // _BLOCK)).copy()
        there[blocks[blocks < len(there)]] = 0
        os.pwrite(file.fileno(), there.data, _map(known))
        edges = np.flatnonzero(np.diff(np.concatenate([[1], there != 0, [1]])))
        for first, last in edges.reshape(-1, 2).tolist():
            _punch_hole(file, first * _BLOCK, (last - first) * _BLOCK)
        return 512 * (used - os.fstat(file.fileno()).st_blocks)


@cache
def _fallocate() -> Callable[[int, int, int, int], int]:
    call: Callable[[int, int, int, int], int] = (libc := ctypes.CDLL(None, use_errno=True)).fallocate64
    libc.fallocate64.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return call


def _punch_hole(file: FileIO, start: int, size: int) -> None:
    call = _fallocate()
    while call(file.fileno(), _PUNCH, start, size):
        if ctypes.get_errno() != errno.EINTR:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextlib.contextmanager
def _opened(folder: CacheFolder, known: FileIdentity, flags: int = os.O_RDWR) -> Iterator[FileIO]:
    path = folder.ranges(known.sha256, known.size)
    with open(os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "r+b", buffering=0) as file:
        yield file
