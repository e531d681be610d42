"""The folder of a shard cache: its files and their locks.

The folder is the only state, so a killed process leaves nothing to repair:

    <sha256>                      a published file: complete, verified, linked into place
    <sha256>.<bytes>[.<n>].part   a file being fetched; its name reserves that many bytes of the limit
    <sha256>.<bytes>.ranges       cached ranges of a file: see `streamvid.storage.range_cache`

Locks are kernel locks (flock) on these files, which end with the process. A process that fetches holds an exclusive
lock on its part: one download per file and node. Other processes wait while the part grows. If it does not for
`stalled_after` seconds (its process is stopped, or its disk hangs), the next process fetches into another part, `<n>`.
The first to finish publishes its part, and the others use the published file. A part without a lock was left by a
process that died. A lease is a shared lock on the published file; eviction needs an exclusive lock.

The modification time of a published file is derived from its SHA-256 (`_mark`). Any program that writes to the file
changes that time, and the file is then verified again before it is used. The access time is the time of the last use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import logging
import math
import os
import re
import time
from collections.abc import Container
from io import FileIO
from pathlib import Path
from stat import S_ISDIR
from typing import Self

from streamvid.storage.regular_file import NotAFileError, open_file

_log = logging.getLogger(__name__)

_KEPT = re.compile(r"[0-9a-f]{64}(\.[0-9]{1,20}\.ranges)?", re.ASCII)
_PART = re.compile(r"([0-9a-f]{64})\.([0-9]{1,20})(\.[0-9]{1,4})?\.part", re.ASCII)


class BusyError(Exception):
    """Another process is about to remove the file, or was stopped while it was."""


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """A lock on a complete, verified file, which keeps it from eviction until `release`, or the end of a `with`
    block."""

    path: Path
    _file: FileIO = dataclasses.field(repr=False)
    _pid: int = dataclasses.field(default_factory=os.getpid, repr=False)

    @property
    def opened(self) -> str:
        """A path of the file through this process' descriptor, valid during the lease even if another program removes
        the file or its folder."""
        return f"/proc/self/fd/{self._file.fileno()}"

    def release(self) -> None:
        """Allow eviction. The path must not be used any more; a second call does nothing."""
        if not self._file.closed:
            # Closing is not enough, as a child forked meanwhile shares the descriptor and so the lock. Only the process
            # that made the lease unlocks it. A mounted storage that is away raises for both.
            with contextlib.suppress(OSError), self._file:
                if self._pid == os.getpid():
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def is_of(self, file: FileIO) -> bool:
        """Whether this open file holds the lease."""
        return self._file is file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class CacheFolder:
    """The files of a cache folder. Safe for any number of threads and processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._verified: set[tuple[int, int]] = set()

    def make(self) -> None:
        """Make the folder if it is missing. Raises OSError if the path is not a folder, or is not writable."""
        make_folder(self.root)
        if not os.access(self.root, os.W_OK | os.X_OK):
            code = errno.EROFS if os.statvfs(self.root).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(code, os.strerror(code))
        self.reserved()

    def part(self, sha256: str, size: int, number: int) -> Path:
        """Path of a file being fetched: `number` 0 for the first process that fetches it, 1 and up for others."""
        return self.root / f"{sha256}.{size}{f'.{number}' if number else ''}.part"

    def ranges(self, sha256: str, size: int) -> Path:
        """Path of the cached ranges of a file: see `streamvid.storage.range_cache`."""
        return self.root / f"{sha256}.{size}.ranges"

    def pin(self, size: int | None, sha256: str) -> Lease | None:
        """A lease on the published file; None if it does not exist or is damaged. Raises BusyError while another
        process is about to remove it."""
        path = self.root / sha256
        if (file := _open(path)) is None:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise BusyError from None
        if not _is_at(file, path):
            file.close()  # evicted between open and flock
            return None
        if not self._intact(file, size, sha256):
            _log.warning("The cached file %s is damaged and fetched again.", path)
            file.close()
            self.evict(path)
            return None
        touch(file)
        return Lease(path, file)

    def _intact(self, file: FileIO, size: int | None, sha256: str) -> bool:
        """Whether a published file is unchanged since it was verified. Its content is read only if its modification
        time is not the expected one: another program wrote or copied it there."""
        stat = os.fstat(file.fileno())
        if size is not None and stat.st_size != size:
            return False
        if stat.st_mtime_ns // 10**9 == _mark(sha256) or (stat.st_ino, stat.st_mtime_ns) in self._verified:
            return True
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            return False
        try:
            touch(file, mark=_mark(sha256))
        except PermissionError:  # another user's
            self._verified.add((stat.st_ino, stat.st_mtime_ns))
        return True

    def publish(self, file: FileIO, part: Path, size: int | None, sha256: str) -> Lease | None:
        """Publish a verified part that this process holds. Returns a lease on it, or on the file that another process
        has published meanwhile; None if that is evicted again, or the part was removed."""
        path = self.root / sha256
        touch(file, mark=_mark(sha256))
        # Otherwise, after a power failure the name might exist without the content.
        os.fsync(file.fileno())
        try:
            try:
                # Link the open file, not the part's name, under which another process may fetch if the folder was
                # removed.
                os.link(f"/proc/self/fd/{file.fileno()}", path, src_dir_fd=file.fileno())
            except FileNotFoundError:
                raise
            except OSError as error:
                if isinstance(error, FileExistsError):
                    # Published by another process while this one was suspended; or damaged, and in use.
                    with contextlib.suppress(BusyError):
                        if lease := self.pin(size, sha256):
                            return lease
                # Otherwise no hard links are possible here: EPERM, ENOSYS, or EIO of rclone's mounts.
                if not _is_at(file, part):
                    return None
                os.replace(part, path)
        except FileNotFoundError:
            return None
        fcntl.flock(file, fcntl.LOCK_SH)
        return Lease(path, file) if _is_at(file, path) else None  # evicted at once

    def kept(self) -> list[tuple[Path, int, int]]:
        """The published files, and those of cached ranges: path, bytes on disk, and time of the last use in ns."""
        found: list[tuple[Path, int, int]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root) as entries:
            for entry in entries:
                if match := _KEPT.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):
                        stat = entry.stat(follow_symlinks=False)
                        size = stat.st_blocks * 512 if match[1] else stat.st_size
                        found.append((self.root / entry.name, size, stat.st_atime_ns))
        return found

    def evict(self, path: Path) -> bool:
        """Remove a file unless a process holds it. Returns whether it is gone."""
        for mode in (os.O_RDONLY, os.O_RDWR):
            try:
                if (file := _open(path, mode)) is None:
                    return True
            except (PermissionError, IsADirectoryError):  # another user's file
                return False
            with file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                except OSError as error:
                    if error.errno != errno.EBADF:
                        raise
                    continue  # NFS gives exclusive locks only on what is open for writing
                # Replaced by another file between open and flock.
                if not _is_at(file, path):
                    return False
                try:
                    path.unlink(missing_ok=True)
                except PermissionError:
                    return False
                _log.debug("Removed %s.", path)
                return True
        return False

    def reserved(self) -> int:
        """Bytes reserved by downloads; removes the parts of processes that died."""
        reserved = 0
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self.root)
        for match in filter(None, map(_PART.fullmatch, names)):
            path = self.root / match[0]
            if self.evict(path):
                _log.info("Removed %s, left by a process that died.", path)
            else:
                reserved += int(match[2])
        return reserved

    def evict_oldest(self, wanted: int = 1, *, before: float = math.inf, but: Container[str] = ()) -> bool:
        """Evict files of at least `wanted` bytes in all, least recently used first, among those last used before a time
        in ns whose names are not in `but`. Returns False if none could be evicted, because all are in use."""
        freed = 0
        for path, size, used in sorted(self.kept(), key=lambda item: item[2]):
            if freed >= wanted or used >= before:
                break
            if path.name in but:
                continue
            if self.evict(path):
                freed += size
        return freed > 0


def make_folder(path: Path) -> None:
    """Make a folder unless it exists. Another program may remove it at any moment. Raises NotADirectoryError if the
    path is something else."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        # pathlib checks afterwards whether it is a folder, which may be gone by then.
        with contextlib.suppress(FileNotFoundError):
            if not S_ISDIR(os.lstat(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None


def claim(part: Path) -> FileIO | None:
    """Claim a part. Returns the locked file; None if another process holds it, or the folder has just been removed. The
    content that a dead process left is taken over."""
    try:
        make_folder(part.parent)
        file = open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=0)  # noqa: SIM115
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if not (held := isinstance(error, BlockingIOError)):
            give_up(part, file)
        file.close()
        if not held:
            raise
        return None
    if not _is_at(file, part):
        file.close()
        return None
    return file


def give_up(part: Path, file: FileIO) -> None:
    """Remove the name of a claimed part before unlocking it, since afterwards another process may claim it. If that
    fails, the next process removes it."""
    with contextlib.suppress(OSError):
        if _is_at(file, part):
            part.unlink(missing_ok=True)


def _open(path: Path, mode: int = os.O_RDONLY) -> FileIO | None:
    """Open a file to read it; None if it does not exist. A link, pipe or the like of this name is removed."""
    try:
        if not path.is_symlink():
            return open(open_file(path, mode), "rb", buffering=0)
    except FileNotFoundError:
        return None
    except NotAFileError:
        pass
    path.unlink(missing_ok=True)
    return None


def modified(path: Path) -> int:
    """A file's modification time in ns; 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _mark(sha256: str) -> int:
    """The modification time of an intact file, in seconds: long ago, and even, because some file systems have a
    resolution of 2 s."""
    return 2 * (500_000_000 + int(sha256[:7], 16))


def _is_at(file: FileIO, path: Path) -> bool:
    """Whether the path still names the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def touch(file: FileIO, *, mark: int | None = None) -> None:
    """Set the time of the last use, and with `mark` the modification time, in seconds. Times are explicit because the
    file system's clock is coarse and would make ties. Raises PermissionError only with `mark`, if another user owns the
    file."""
    now = time.time_ns()
    modified = os.fstat(file.fileno()).st_mtime_ns if mark is None else mark * 10**9
    # The eviction order is less exact for other users' files, and on a read-only disk.
    try:
        os.utime(file.fileno(), ns=(now, modified))
    except OSError as error:
        if mark is not None or error.errno not in (errno.EPERM, errno.EACCES, errno.EROFS):
            raise
