"""What mounted file systems do otherwise than a disk, as system calls see it; tried with the real ones (docs)."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from typing import Any

import pytest

from streamvid.storage import folder_lock


def without_hard_links(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """EPERM of vfat and s3fs, ENOSYS of FUSE, EIO of rclone."""

    def link(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)


def with_locks_of_nfs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`flock` as NFS has it (flock(2)), where others are on other machines: a lock on all bytes, which is in the way of
    those on ranges, and exclusive only on what is open for writing; for folders none. Fails where the real one would
    wait for ever."""

    def flock(file: Any, operation: int) -> None:
        if stat.S_ISDIR(os.stat(file if isinstance(file, int) else file.fileno()).st_mode):
            return
        kind = {fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}
        lock = struct.pack("hhqqi4x", kind[operation & ~fcntl.LOCK_NB], 0, 0, 0, 0)
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES) and not operation & fcntl.LOCK_NB:
                pytest.fail("it would wait for ever")
            raise

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(folder_lock, "_is_nfs", lambda _: True)
