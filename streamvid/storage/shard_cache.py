"""A bounded cache of whole shard files on local disk, shared by all processes of one node.

The folder is the only state, so a killed process leaves nothing to repair:

    <sha256>                 a published file: complete, verified, renamed into place
    <sha256>.<bytes>.part    a file being fetched; its name reserves that many bytes of the limit
    locks/<sha256>.lock      held while a file is fetched: one download per file and node
    locks/folder.lock        held briefly, while files are evicted and bytes reserved

A lease is a shared flock on the published file; eviction needs an exclusive one. The kernel releases both when a
process dies. A part belongs to the process that holds its file's lock; if nobody does, that process has died.

Lock order: a file's lock before the folder's. While the folder's lock is held, file locks are taken without waiting, so
there is no deadlock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import BinaryIO, Self

from filelock import BaseFileLock, FileLock, Timeout

from streamvid.checks import is_integer
from streamvid.errors import DatasetError, InputError
from streamvid.storage import filesystem
from streamvid.storage.client import has_ranges
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.ranges import read_ranges
from streamvid.storage.retry import Retry
from streamvid.storage.url import redact

_log = logging.getLogger(__name__)

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_PART = re.compile(r"([0-9a-f]{64})\.([0-9]{1,20})\.part", re.ASCII)

_PREFETCH_THREADS = 4
_RANGE_BYTES = 8 << 20
_RANGES_AT_ONCE = 4
_POLL_SECONDS = 0.1
_CORRUPT_ATTEMPTS = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """A complete, verified file that is not evicted until `release`, or the end of a `with` block."""

    path: Path
    _file: BinaryIO = dataclasses.field(repr=False)

    def release(self) -> None:
        """Allow eviction. The path must not be used any more; a second call does nothing."""
        if not self._file.closed:
            # Closing is not enough: a child forked meanwhile has a copy of the descriptor, and with it the lock.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class ShardCache:
    """Copies of remote files in a local folder of at most `limit_bytes`.

    Thread-safe. Any number of processes may share a folder, each with a ShardCache of its own; an object must not be
    used in a forked child. Use it as a context manager, or call `close`.

    The limit covers published files and downloads of all processes. If all files are leased it is exceeded, since
    waiting for their release might deadlock, and a warning is logged once.
    """

    def __init__(self, root: Path, *, limit_bytes: int, retry: Retry | None = None) -> None:
        """Make the folder if it is missing. Raises InputError if it cannot be used or the limit is not positive.

        Args:
            root: the folder.
            limit_bytes: of all files in it.
            retry: for how long a storage that does not answer is asked again.
        """
        if limit_bytes <= 0:
            raise InputError(f"The cache limit must be a positive number of bytes, not {limit_bytes}.")
        self._root = Path(root)
        self._limit = limit_bytes
        self._pid = os.getpid()
        self._closed = threading.Event()
        self.retry = retry or Retry()
        self._mutex = threading.Lock()  # guards the three below
        self._pool: ThreadPoolExecutor | None = None
        self._prefetches: dict[str, Future[None]] = {}
        self._warned = False
        with self._usable():
            (self._root / "locks").mkdir(parents=True, exist_ok=True)
            with self._lock("folder"):
                self._in_flight(own=None)

    def lease(self, url: str, *, size: int | None, sha256: str, stop: threading.Event | None = None) -> Lease:
        """A lease on the file at `url`, downloaded if it is not cached, and verified. Of a cached file the storage is
        asked nothing.

        Args:
            url: of a remote file.
            size: in bytes; None: as its storage says.
            sha256: lower-case hexadecimal.
            stop: gives up waiting when it is set: the storage's last error is raised.

        Raises:
            InputError: the file is larger than the limit.
            StorageUnavailable: the storage did not answer, for as long as `retry` says.
            DatasetError: the file is missing, or has another size or SHA-256.
        """
        self._check(url, size, sha256)
        with self._mutex:
            future = self._prefetches.pop(sha256, None)
        # A prefetch that has not begun is cancelled. Otherwise it is waited for, and if it failed its error is raised.
        if future is not None and not future.cancel():
            while not wait([future], _POLL_SECONDS).done:
                if stop is not None and stop.is_set():
                    raise StorageUnavailable(f"Waiting for {redact(url)} was given up.")
            future.result()
        return self._lease(url, size, sha256, stop or self._closed)

    def prefetch(self, url: str, *, size: int, sha256: str) -> None:
        """Start to download the file in the background; further calls for the same file do nothing.

        Raises InputError or DatasetError for arguments that `lease` refuses at once. Errors of the download are raised
        by the next `lease` of the file; the one after that downloads again.
        """
        self._check(url, size, sha256)
        with self._mutex:
            if sha256 in self._prefetches:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_PREFETCH_THREADS, thread_name_prefix="streamvid-cache")
            future = self._pool.submit(self._fetch_ahead, url, size, sha256)
            self._prefetches[sha256] = future
        future.add_done_callback(lambda done: self._forget(sha256, done))

    def read_through(self, url: str, *, size: int | None, sha256: str, stop: threading.Event | None = None) -> bytes:
        """The content of a small file, cached like any other; arguments and errors as of `lease`."""
        with self.lease(url, size=size, sha256=sha256, stop=stop) as lease, self._usable():
            return lease.path.read_bytes()

    def close(self) -> None:
        """Cancel prefetches that have not begun and wait for the others. Leases stay valid until released."""
        self._closed.set()
        with self._mutex:
            pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, url: str, size: int | None, sha256: str) -> None:
        """Validate arguments, which come from an untrusted dataset.json and become file names and reservations."""
        if self._pid != os.getpid():
            raise RuntimeError("this ShardCache was made before a fork; make one in the child, on the same folder")
        if self._closed.is_set():
            raise RuntimeError("this ShardCache is closed")
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise DatasetError(f"The SHA-256 given for {redact(url)} is not 64 lower-case hexadecimal digits.")
        if size is None:
            return
        if not is_integer(size) or size < 0:
            raise DatasetError(f"The size given for {redact(url)} is not a number of bytes.")
        if size > self._limit:
            raise InputError(
                f"{redact(url)} has {size} bytes, more than the whole cache of {self._limit}; "
                "raise the cache's limit (cache_bytes) to a few shards at least."
            )

    def _forget(self, sha256: str, done: Future[None]) -> None:
        """Forget a prefetch that succeeded or was cancelled; of one that failed, the next lease raises the error."""
        if done.cancelled() or done.exception() is None:
            with self._mutex:
                if self._prefetches.get(sha256) is done:
                    del self._prefetches[sha256]

    def _fetch_ahead(self, url: str, size: int, sha256: str) -> None:
        # If the main thread ended without close(), nobody will read the file.
        if not self._closed.is_set() and threading.main_thread().is_alive():
            self._lease(url, size, sha256, self._closed).release()

    def _lease(self, url: str, size: int | None, sha256: str, stop: threading.Event) -> Lease:
        with self._usable():
            if lease := self._pin(size, sha256):
                return lease
            with self._lock(sha256):
                # Another process may have fetched it while this one waited for the lock.
                if lease := self._pin(size, sha256):
                    return lease
                retry = self.retry.until(stop)
                actual = filesystem.size(url, retry=retry)
                if size is not None and actual != size:
                    raise DatasetError(
                        f"{redact(url)} has {actual} bytes, but the dataset says {size}; "
                        "restore the file or pack the dataset again."
                    )
                self._check(url, actual, sha256)
                return self._fetch(url, actual, sha256, retry)

    def _pin(self, size: int | None, sha256: str) -> Lease | None:
        """A lease on the published file; None if there is none, or it has another size."""
        path = self._root / sha256
        try:
            file = open(path, "rb")  # noqa: SIM115  the lease closes it
        except FileNotFoundError:
            return None
        # Waits only for an eviction that is about to unlink the file.
        fcntl.flock(file, fcntl.LOCK_SH)
        if not _is_at(file, path):
            file.close()  # evicted between open and flock
            return None
        if size is not None and os.fstat(file.fileno()).st_size != size:
            _log.warning("The cached file %s is damaged and fetched again.", path)
            file.close()
            return None
        _touch(file)
        return Lease(path, file)

    def _fetch(self, url: str, size: int, sha256: str, retry: Retry) -> Lease:
        """Download, verify and publish; the caller holds the file's lock. The lease is taken before publishing."""
        path = self._root / sha256
        part = self._root / f"{sha256}.{size}.part"
        self._reserve(part, size, sha256)
        try:
            for attempt in range(_CORRUPT_ATTEMPTS):
                self._download(url, part, size, retry)
                file = open(part, "rb")  # noqa: SIM115  the lease closes it
                try:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
                    if found == sha256 and os.fstat(file.fileno()).st_size == size:
                        fcntl.flock(file, fcntl.LOCK_SH)
                        _touch(file)
                        # Else after a power failure the name might exist without the content.
                        os.fsync(file.fileno())
                        os.replace(part, path)
                        return Lease(path, file)
                except BaseException:
                    file.close()
                    raise
                file.close()
                if attempt + 1 < _CORRUPT_ATTEMPTS:
                    _log.warning("%s arrived damaged and is fetched again.", redact(url))
            raise DatasetError(
                f"{redact(url)} is damaged: its SHA-256 is {found}, but the dataset says {sha256}; "
                "restore the file or pack the dataset again."
            )
        finally:
            part.unlink(missing_ok=True)

    def _download(self, url: str, part: Path, size: int, retry: Retry) -> None:
        """Fetch `url` into `part`, in ranges that are tried again one by one where its storage gives ranges."""
        _log.info("Fetching %s (%d bytes).", redact(url), size)
        if size > _RANGE_BYTES and not has_ranges(url):
            filesystem.get_file(url, part, retry=retry)
            return
        marks: dict[str, str] = {}
        window = _RANGE_BYTES * _RANGES_AT_ONCE
        with part.open("wb") as file:
            for first in range(0, size, window):
                last = min(first + window, size)
                ranges = [(url, start, min(start + _RANGE_BYTES, last)) for start in range(first, last, _RANGE_BYTES)]
                for block in read_ranges(ranges, retry=retry, marks=marks):
                    file.write(block)

    def _reserve(self, part: Path, size: int, sha256: str) -> None:
        """Evict unleased files, least recently used first, until `size` bytes fit; reserve them with a part file."""
        with self._lock("folder"):
            used = self._in_flight(own=sha256)
            # A published file has the wrong size here. Processes that lease it keep its inode.
            (self._root / sha256).unlink(missing_ok=True)
            published = self._published()
            used += sum(stat.st_size for _, stat in published)
            for path, stat in sorted(published, key=lambda item: item[1].st_mtime_ns):
                if used + size <= self._limit:
                    break
                if self._evict(path):
                    used -= stat.st_size
            part.touch()
        with self._mutex:
            warn = used + size > self._limit and not self._warned
            self._warned = self._warned or warn
        if warn:
            _log.warning(
                "The cache in %s grows to %d bytes, over its limit of %d, as all files in it are in use; "
                "raise the limit to the shards that all processes of this node read at once.",
                self._root,
                used + size,
                self._limit,
            )

    def _in_flight(self, *, own: str | None) -> int:
        """Bytes reserved by other downloads; removes parts of processes that died. The caller holds the folder's lock.

        `own` is the file whose lock the caller holds: any part of it was left by an earlier download.
        """
        reserved = 0
        for path in self._root.glob("*.part"):
            match = _PART.fullmatch(path.name)
            if match is None:
                continue
            if match[1] == own:
                path.unlink(missing_ok=True)
                continue
            try:
                with self._lock(match[1], wait=False):
                    path.unlink(missing_ok=True)
                    _log.info("Removed %s, left by a process that died.", path)
            except Timeout:
                reserved += int(match[2])
        return reserved

    def _published(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        with os.scandir(self._root) as entries:
            for entry in entries:
                if _SHA256.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        found.append((self._root / entry.name, entry.stat(follow_symlinks=False)))
        return found

    def _evict(self, path: Path) -> bool:
        """Remove a published file unless a process leases it. Returns whether it is gone."""
        try:
            file = open(path, "rb")  # noqa: SIM115  closed below
        except FileNotFoundError:
            return True
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            # Replaced between open and flock: another file than the one chosen.
            if not _is_at(file, path):
                return False
            path.unlink()
            _log.debug("Evicted %s.", path)
            return True

    def _lock(self, name: str, *, wait: bool = True) -> BaseFileLock:
        """The lock of a file or of the folder, for a `with` block, which raises filelock.Timeout if `wait` is False and
        another process holds it."""
        return FileLock(self._root / "locks" / f"{name}.lock", timeout=-1 if wait else 0)

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Translate an OSError into an InputError about the cache folder."""
        try:
            yield
        except OSError as exc:
            if isinstance(exc, Timeout):
                raise
            reason = os.strerror(exc.errno) if exc.errno else str(exc)
            raise InputError(
                f"The cache folder {self._root} cannot be used: {reason}; "
                "name a folder on a local disk with room to spare that this user may write to."
            ) from exc


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether the open file is the one that the path names now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _touch(file: BinaryIO) -> None:
    """Set the time of last use. Explicitly, as the file system's own clock is coarse and would make ties."""
    now = time.time_ns()
    # Only the file's owner may set it; of other users the eviction order is less exact.
    with contextlib.suppress(PermissionError):
        os.utime(file.fileno(), ns=(now, now))
