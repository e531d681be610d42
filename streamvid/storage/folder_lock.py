"""An exclusive lock on a local folder, held while a dataset is written there."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from streamvid.errors import InputError
from streamvid.storage.cache_folder import claim, give_up
from streamvid.storage.url import is_local, local_path

_LOCK_FILE: Final = ".streamvid.lock"
"""In the folder while it is locked, on NFS, where a lock on a folder holds only on this machine."""


@contextmanager
def lock_folder(path: str, *, make: bool = False) -> Iterator[None]:
    """A context that holds the lock: flock on the folder, on NFS also on a file in it. Does nothing for a URL.

    Args:
        path: the folder.
        make: whether to make the folder if it is missing.

    Raises:
        InputError: another process holds the lock, or the folder cannot be made or opened.
    """
    if not is_local(path):
        yield
        return
    folder = local_path(path)
    try:
        if make:
            os.makedirs(folder, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        what = "make" if make else "open"
        raise InputError(f"cannot {what} the folder {folder}: {error.strerror}; choose another place") from error
    part, file, free = Path(folder, _LOCK_FILE), None, True
    try:
        with suppress(OSError):  # file systems without locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = not _is_nfs(handle) or (file := claim(part)) is not None
            except BlockingIOError:
                free = False
        if not free:
            raise InputError(f"another process writes to {path}: wait for it or choose another place")
        yield
    finally:
        os.close(handle)
        if file is not None:
            give_up(part, file)
            with suppress(OSError):
                file.close()


def _is_nfs(handle: int) -> bool:
    """Whether an open folder is on NFS: proc_pid_mountinfo(5)."""
    device = os.fstat(handle).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        found = (line.split() for line in mounts)
        return any(one[2] == number and one[one.index("-") + 1] in ("nfs", "nfs4") for one in found)
