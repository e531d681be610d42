"""A disk cache of consolidated rows, so that a large dataset's many Parquet files are read once, and then mapped.

One file per dataset in the user's cache folder:

    <key>.rows                what `streamvid.dataset.consolidated.write_rows` wrote, and its checksum, 32 bytes
    <key>.<n>.part            the same being written, and locked by the process that writes it

The key (`cache_key` there) is a hash of everything that the rows depend on, so entries are never stale; a changed
dataset has another key. All processes of a machine share the mapped pages.

One process of a machine builds an entry, and the others wait for it. Parts are claimed like those of a shard cache
(`streamvid.storage.cache_folder`), which may use the same folder: the lock ends with its process, and the next process
builds. If a live process has not written to its part for `STALLED_SECONDS` (the process is suspended, or its storage
hangs), a waiting process builds another part, with its own lock. Finished entries are renamed into place.

If the folder or the entry cannot be used, the rows are built in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from streamvid.errors import InputError
from streamvid.storage.cache_dir import user_cache_dir
from streamvid.storage.cache_folder import CacheFolder, claim, give_up

log = logging.getLogger(__name__)

LIMIT_BYTES: Final = 32 << 30
"""Size of all entries; the least recently used ones are removed for a new one."""
MIN_CLIPS: Final = 20_000
"""Datasets of fewer clips open fast enough without the cache."""
STALLED_SECONDS: Final = 30.0
"""Seconds for which a process that builds an entry may write nothing, before another one builds it, too."""
_POLL_SECONDS: Final = 0.2
_DIGEST_BYTES: Final = 32
_PART_BYTES: Final = 8 << 20
_BLOCK_WORDS: Final = 1 << 13
_THREADS: Final = 4
_LARGE: Final = 256 << 20
_OURS: Final = re.compile(r"[0-9a-f]{64}\.rows")


Build = Callable[[str], None]
"""Writes the content, a multiple of 8 bytes, to the file at a path."""


def open_or_build(key: str, build: Build, otherwise: Build | None = None) -> pa.Buffer:
    """The entry of a key, mapped into memory read-only; built first if it is missing.

    Args:
        key: 64 hexadecimal digits.
        build: writes the content.
        otherwise: writes the content if the cache cannot be used; default: `build`.

    Raises:
        StreamvidError: as raised by `build`.
    """
    try:
        return _shared(key, build)
    except _UnusableError as error:
        content = in_memory(otherwise or build)
        log.log(
            logging.WARNING if content.size > _LARGE else logging.DEBUG,
            "every process holds its own copy of this dataset's rows, %d MiB, as the cache cannot be used (%s): "
            "set XDG_CACHE_HOME to a folder on a local disk with room for them",
            content.size >> 20, error,
        )  # fmt: skip
        return content


def in_memory(build: Build) -> pa.Buffer:
    """The content that `build` writes, in memory without a named file; otherwise as `open_or_build`."""
    descriptor = os.memfd_create("streamvid-rows")
    try:
        path = f"/proc/self/fd/{descriptor}"
        build(path)
        return _mapped(path)
    finally:
        os.close(descriptor)


def load(key: str) -> pa.Buffer | None:
    """The entry of a key, mapped into memory read-only; None if it is missing or damaged."""
    try:
        path = _entry(key)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size - _DIGEST_BYTES
            if size <= 0 or size % 8 or _digest(file.fileno(), size) != os.pread(file.fileno(), _DIGEST_BYTES, size):
                raise ValueError("its checksum is wrong")
        content = _mapped(os.fspath(path)).slice(0, size)
        os.utime(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, pa.ArrowException) as error:
        log.debug("cannot use the cached rows %s: %s", key, error)
        return None
    return content


class _UnusableError(Exception):
    """The cache cannot be used."""


def _shared(key: str, build: Build) -> pa.Buffer:
    try:
        entry = _entry(key)
    except InputError as error:
        raise _UnusableError(error) from error
    damaged = None
    written: tuple[int, ...] | None
    for attempt in itertools.count():
        part, written, since = entry.with_suffix(f".{attempt}.part"), None, time.monotonic()
        while time.monotonic() - since < STALLED_SECONDS:
            if (found := _identity(entry)) not in (None, damaged):
                if (content := load(key)) is not None:
                    return content
                damaged = found
            with _claimed(part) as held:
                # Another process may have built the entry before this one held the part.
                if held and _identity(entry) in (None, damaged):
                    return _build(entry, part, build)
            if not held:
                if (now := _identity(part)) != written:
                    written, since = now, time.monotonic()
                time.sleep(_POLL_SECONDS)
        log.warning("the process that keeps this dataset's rows in %s has stalled: reading them here too", part)
    raise AssertionError


def _build(entry: Path, part: Path, build: Build) -> pa.Buffer:
    """Write a part, and publish it as the entry. If it cannot be published, only this process uses it."""
    try:
        build(os.fspath(part))
        with part.open("rb+") as file:
            size = os.fstat(file.fileno()).st_size
            os.pwrite(file.fileno(), _digest(file.fileno(), size), size)
        content = _mapped(os.fspath(part)).slice(0, size)
        if size > LIMIT_BYTES:
            log.warning("the rows of this dataset, %d MiB, are too many to be kept for other processes", size >> 20)
            return content
        with contextlib.suppress(OSError):
            _make_room(entry.parent, size)
            os.replace(part, entry)
        return content
    except OSError as error:
        raise _UnusableError(error) from error


def _entry(key: str) -> Path:
    return user_cache_dir() / f"{key}.rows"


@contextlib.contextmanager
def _claimed(part: Path) -> Iterator[bool]:
    """A context that tries to claim a part, and removes its name at the end. Its value is whether this process holds
    the part, which may have content of a dead process."""
    try:
        file = claim(part)
    except OSError as error:  # also raised on a file system without locks
        raise _UnusableError(error) from error
    try:
        yield file is not None
    finally:
        if file is not None:
            give_up(part, file)
            file.close()


def _identity(path: Path) -> tuple[int, ...] | None:
    """Inode, size and modification time of a file; None if it does not exist. The size alone does not show that rows
    are written: those of numbers have it from the beginning."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _mapped(path: str) -> pa.Buffer:
    with pa.memory_map(path) as file:
        return file.read_buffer()


def _digest(descriptor: int, size: int) -> bytes:
    """A checksum of the first bytes of a file, a multiple of 8: SHA-256 over the sums of its blocks of 64 KiB as 64-bit
    integers. It detects damage by disks and crashes, at ten times the speed of SHA-256 over everything. The bytes are
    read instead of mapped, because all pages of a mapped file would count as this process' memory."""
    own = threading.local()

    def sums(start: int) -> bytes:
        if not hasattr(own, "part"):
            own.part = bytearray(_PART_BYTES)
        part = memoryview(own.part)[: min(_PART_BYTES, size - start)]
        if os.preadv(descriptor, [part], start) != len(part):
            raise ValueError("it is too short")
        words = np.frombuffer(part, dtype="<u8")
        return np.add.reduceat(words, range(0, len(words), _BLOCK_WORDS)).tobytes()

    with ThreadPoolExecutor(_THREADS) as pool:
        return hashlib.sha256(b"".join(pool.map(sums, range(0, size, _PART_BYTES)))).digest()


def _make_room(folder: Path, size: int) -> None:
    """Remove entries, least recently used first, until one of `size` bytes fits, and parts that dead processes left. A
    process that has mapped an entry keeps it."""
    CacheFolder(folder).reserved()
    entries = []
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                entries.append((stat.st_mtime, stat.st_size, path))
    total = sum(entry[1] for entry in entries)
    for _, own, path in sorted(entries):
        if total + size <= LIMIT_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= own
