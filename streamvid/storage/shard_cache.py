"""A bounded cache of whole shard files on local disk, shared by all processes of one node.

`streamvid.storage.cache_folder` has the files and their locks; this module fetches them, ahead of time or on demand.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Final, Self

from streamvid.checks import is_integer
from streamvid.errors import DatasetError, InputError
from streamvid.host import BROKEN_ERRNOS
from streamvid.storage import filesystem
from streamvid.storage.cache_folder import BusyError, CacheFolder, Lease, claim, give_up, modified
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.link import Link
from streamvid.storage.retry import Retry
from streamvid.storage.url import redact

_log = logging.getLogger(__name__)

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_PREFETCH_THREADS = 4
_CORRUPT_ATTEMPTS = 2
_POLL_SECONDS = 0.1
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OF_THE_DISK: Final = {*_FULL, errno.EROFS, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, *BROKEN_ERRNOS}
"""Errors of a disk, without which a run goes on; the second three are of file systems without locks, as Lustre's."""
WITHOUT: Final = "%s Until then shards are read where they are."
"""The warning about an unusable cache, logged once."""
UNUSABLE_SECONDS = 60.0
"""How long nothing more is put into a folder that could not be written to, or read from it."""


class CacheUnusable(InputError):  # noqa: N818
    """The cache's folder is full, or cannot be written to."""


class DamagedFile(DatasetError):  # noqa: N818
    """A file whose bytes in the storage contradict dataset.json."""


class ShardCache:
    """Copies of remote files in a local folder of at most `limit_bytes`.

    Thread-safe. Any number of processes may share a folder, each with a ShardCache of its own; an object must not be
    used in a forked child. Use it as a context manager, or call `close`.

    The limit covers published files and downloads of all processes. If all files are leased it is exceeded, since
    waiting for their release might deadlock, and a warning is logged once.
    """

    def __init__(
        self, root: Path, *, limit_bytes: int, retry: Retry | None = None, stalled_after: float = 60.0
    ) -> None:
        """Make the folder if it is missing. Raises CacheUnusable if it is no folder or not writable, InputError if the
        limit is not positive. On a disk that is full, read-only, away or without locks nothing is cached, with a
        warning.

        Args:
            root: the folder.
            retry: for how long requests are repeated while a storage does not answer.
            stalled_after: seconds without progress after which another process' download is not awaited any more.
        """
        if limit_bytes <= 0:
            raise InputError(f"The cache limit must be a positive number of bytes, not {limit_bytes}.")
        self._root = Path(root)
        self.folder = CacheFolder(self._root)
        self._limit = limit_bytes
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._retry = retry or Retry()
        self._stalled_after = stalled_after
        self.give_up: Callable[[int], int] = lambda _: 0
        """Evicts so many bytes of ranges by the plan of a run; gives the bytes that it has evicted."""
        self.link = Link()
        """The way that files come."""
        self._mutex = threading.Lock()  # guards those below
        self._pool: ThreadPoolExecutor | None = None
        self._prefetches: dict[str, Future[None]] = {}
        self._warned: set[str] = set()
        self._unusable: tuple[float, str] | None = None
        self._damaged: dict[str, str] = {}
        self._reserved, self.evicted = 0, float("-inf")  # by `reserve`; time of the last eviction, monotonic
        self.writing = threading.Lock()
        """Held from `reserve` until the ranges are written."""
        try:
            with self.usable():
                self.folder.make()
        except CacheUnusable as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in _OF_THE_DISK:
                raise
            self.warn("without", WITHOUT, error)

    def lease(self, url: str, *, size: int | None, sha256: str, stop: threading.Event | None = None) -> Lease:
        """A lease on the file at `url`, which is downloaded and verified if it is not cached. A cached file needs no
        request to the storage.

        Args:
            size: size in bytes; None, for a small file: the size is learned with its content.
            sha256: lower-case hexadecimal.
            stop: gives up waiting when it is set: the storage's last error is raised.

        Raises:
            InputError: the file is larger than the limit.
            CacheUnusable: the folder is full of files in use, or cannot be written to; the file may still be readable
                in its storage.
            StorageUnavailable: the storage did not answer, for as long as `retry` says.
            DatasetError: the file is missing; as DamagedFile: it has another size or SHA-256, and is not fetched again.
        """
        self._check(url, size, sha256)
        with self._mutex:
            future = self._prefetches.pop(sha256, None)
        # Cancel a prefetch that has not begun; otherwise wait for it, and raise its error if it failed.
        if future is not None and not future.cancel():
            while not wait([future], _POLL_SECONDS).done:
                if stop is not None and stop.is_set():
                    raise StorageUnavailable(f"Waiting for {redact(url)} was given up.")
            future.result()
        return self._lease(url, size, sha256, stop or self._closed)

    def holds(self, sha256: str) -> bool:
        """Whether a file is published."""
        return bool(_SHA256.fullmatch(sha256)) and (self._root / sha256).exists()

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

    def read_through(self, url: str, *, sha256: str, stop: threading.Event) -> bytes:
        """The content of a small file, cached like any other if the cache can be used; arguments and errors as in
        `lease`."""
        try:
            with self.lease(url, size=None, sha256=sha256, stop=stop) as lease, self.usable():
                return Path(lease.opened).read_bytes()
        except CacheUnusable as error:
            self.warn("without", "%s Files are fetched again for every process.", error)
        content = filesystem.read_bytes(url, retry=self._retry.until(stop))
        if (found := hashlib.sha256(content).hexdigest()) != sha256:
            what = f"is damaged: its SHA-256 is {found}, but the dataset says {sha256}"
            raise self._is_damaged(url, sha256, what)
        return content

    def distrust(self, sha256: str, size: int) -> bool:
        """Make the cache compare a file with its SHA-256 before its next use, and fetch it again if it differs; drop
        cached ranges of it. Returns whether the cache had the file or ranges."""
        ranges, had = self.folder.ranges(sha256, size), self.holds(sha256)
        with contextlib.suppress(OSError):
            had = (ranges.exists() and self.folder.evict(ranges)) or had
            os.utime(self._root / sha256)
        return had

    def warn(self, about: str, message: str, *values: object) -> None:
        """Log a warning, once for each subject."""
        with self._mutex:
            known, self._warned = about in self._warned, self._warned | {about}
        if not known:
            _log.warning(message, *values)

    def close(self) -> None:
        """Cancel prefetches that have not begun and wait for the others. Leases stay valid until released."""
        if self._pid != os.getpid():
            return
        self._closed.set()
        with self._mutex:
            pool, self._pool = self._pool, None
        if pool is not None:
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
        """Drop a prefetch that succeeded or was cancelled; the error of one that failed is raised by the next lease."""
        if done.cancelled() or done.exception() is None:
            with self._mutex:
                if self._prefetches.get(sha256) is done:
                    del self._prefetches[sha256]

    def _fetch_ahead(self, url: str, size: int, sha256: str) -> None:
        # If the main thread ended without close(), the file is not needed.
        if not self._closed.is_set() and threading.main_thread().is_alive():
            self._lease(url, size, sha256, self._closed).release()

    def _lease(self, url: str, size: int | None, sha256: str, stop: threading.Event) -> Lease:
        if sha256 in self._damaged:
            raise DamagedFile(self._damaged[sha256])
        with self.usable():
            try:
                if lease := self.folder.pin(size, sha256):
                    return lease
            except BusyError:
                pass
            self.check_usable()
            return self._take_or_fetch(url, size, sha256, self._retry.until(stop), stop)

    def _take_or_fetch(self, url: str, size: int | None, sha256: str, retry: Retry, stop: threading.Event) -> Lease:
        """Fetch the file, unless another process does: then wait for that as long as its download progresses."""
        for number in itertools.count():
            part = self.folder.part(sha256, size or 0, number)
            seen, since = -1, time.monotonic()
            while time.monotonic() - since < self._stalled_after:
                busy = False
                try:
                    if lease := self.folder.pin(size, sha256):
                        return lease
                except BusyError:
                    busy = True
                if not busy and (file := claim(part)) is not None:
                    if lease := self._fetch(url, size, sha256, part, file, retry):
                        return lease
                    continue
                changed = modified(part)
                seen, since = changed, (since if changed == seen else time.monotonic())
                if stop.wait(_POLL_SECONDS):
                    raise StorageUnavailable(f"Waiting for {redact(url)} was given up.")
            if busy:
                raise BlockingIOError(errno.EBUSY, f"{self._root / sha256} is locked by a process that is stopped")
            _log.warning(
                "The process that fetches %s has not gone on for %g s: fetching it here, too.",
                redact(url), self._stalled_after,
            )  # fmt: skip
        raise AssertionError

    def _fetch(self, url: str, size: int | None, sha256: str, part: Path, file: FileIO, retry: Retry) -> Lease | None:
        """Download into the claimed part, verify and publish. None if another process has published the file meanwhile
        and it is evicted again, or the part is gone."""
        lease: Lease | None = None
        try:
            # Published between the last check and the claim.
            with contextlib.suppress(BusyError):
                if lease := self.folder.pin(size, sha256):
                    return lease

            # Other processes wait while the part changes, and so also while a storage does not answer.
            def sleep(seconds: float) -> object:
                os.utime(file.fileno())
                return retry.sleep(seconds)

            patient = dataclasses.replace(retry, sleep=sleep, retry_missing=size is not None)  # a shard is there
            mark = ""
            if size is not None:
                actual, mark = filesystem.size_now(url, retry=patient)
                self.link.count(1, 0)
                # A file larger than the dataset says would fill the disk beyond its reservation.
                if actual not in (None, size):
                    raise self._is_damaged(url, sha256, f"has {actual} bytes, but the dataset says {size}")
            self._make_room()
            for attempt in range(_CORRUPT_ATTEMPTS):
                self._download(url, file, size, mark, patient)
                file.seek(0)
                found = hashlib.file_digest(file, "sha256").hexdigest()
                if found == sha256:
                    lease = self.folder.publish(file, part, size, sha256)
                    return lease
                if attempt + 1 < _CORRUPT_ATTEMPTS:
                    _log.warning("%s arrived damaged and is fetched again.", redact(url))
            what = f"is damaged: its SHA-256 is {found}, but the dataset says {sha256}"
            raise self._is_damaged(url, sha256, what)
        finally:
            give_up(part, file)
            if lease is None or not lease.is_of(file):
                file.close()

    def _download(self, url: str, file: FileIO, size: int | None, mark: str, retry: Retry) -> None:
        """Fetch `url` into the file."""
        _log.info("Fetching %s%s.", redact(url), "" if size is None else f" ({size} bytes)")
        os.truncate(file.fileno(), 0)
        if size is None:  # a small one
            content = filesystem.read_bytes(url, most=self._limit, retry=retry, link=self.link)
            self._make_room(len(content))
            self.write(file, content, 0)
            return
        filesystem.fetch(url, partial(self.write, file), length=size, mark=mark, retry=retry, link=self.link)

    def write(self, file: FileIO, block: bytes | memoryview, start: int) -> None:
        """Write at an offset. If the disk is full, evicts unused files. Raises CacheUnusable."""
        done = 0
        while done < len(block):
            try:
                done += os.pwrite(file.fileno(), memoryview(block)[done:], start + done)
            except OSError as error:
                if error.errno not in _FULL or not self._evict():
                    with self.usable():
                        raise
                self.warn(
                    "full",
                    "The disk of the cache folder %s is full, below the cache's limit of %d bytes: the cache goes on "
                    "with fewer files; free some space, or name another folder (cache_dir).",
                    self._root, self._limit,
                )  # fmt: skip

    def check_usable(self) -> None:
        """Raise CacheUnusable again for a while after the folder could not be used."""
        if self._unusable is not None and time.monotonic() < self._unusable[0]:
            raise CacheUnusable(self._unusable[1])

    def reserve(self, size: int) -> None:
        """Make room for bytes of ranges: for 1/64 of the limit at a time, because that means looking at all files."""
        if size > self._reserved:
            self._reserved = max(self._limit // 64, size)
            self._make_room(self._reserved)
        self._reserved -= size

    def _evict(self, wanted: int = 1) -> bool:
        """Evict at least `wanted` bytes: those needed latest by the plan, or without a plan the least recently used."""
        self.evicted = time.monotonic()
        return self.give_up(wanted) > 0 or self.folder.evict_oldest(wanted)

    def _make_room(self, more: int = 0) -> None:
        """Evict until the limit holds for cached files, files being fetched, and `more` bytes."""
        while (used := self.folder.reserved() + sum(size for _, size, _ in self.folder.kept()) + more) > self._limit:
            if not self._evict(used - self._limit):
                self.warn(
                    "limit",
                    "The cache in %s grows to %d bytes, over its limit of %d, as all files in it are in use; "
                    "raise the limit to the shards that all processes of this node read at once.",
                    self._root, used, self._limit,
                )  # fmt: skip
                return

    def _is_damaged(self, url: str, sha256: str, what: str) -> DamagedFile:
        """The error for a damaged file. It is remembered, because fetching the file again would be useless until it is
        restored."""
        error = DamagedFile(f"{redact(url)} {what}; restore the file or pack the dataset again.")
        with self._mutex:
            self._damaged[sha256] = str(error)
        return error

    @contextlib.contextmanager
    def usable(self) -> Iterator[None]:
        """A context that translates an OSError into CacheUnusable, which is remembered for a while."""
        try:
            yield
        except OSError as exc:
            remedy = "free some space there, or " if exc.errno in _FULL else ""
            raise self.gave_up(exc.strerror or str(exc), remedy) from exc

    def gave_up(self, reason: str, remedy: str = "") -> CacheUnusable:
        """The error of a folder that cannot be used, which is remembered for a while."""
        error = CacheUnusable(
            f"The cache folder {self._root} cannot be used: {reason}; {remedy}"
            "name a folder on a local disk with room to spare that this user may write to."
        )
        self._unusable = time.monotonic() + UNUSABLE_SECONDS, str(error)
        return error
