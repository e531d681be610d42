"""An exclusive lock on a local folder, for whoever writes a dataset there."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from streamvid.errors import InputError
from streamvid.storage.url import is_local, local_path


@contextmanager
def lock_folder(path: str, *, make: bool = False) -> Iterator[None]:
    """Hold the lock (flock), which needs no file; of a folder that is not local there is none.

    Args:
        path: the folder.
        make: it may be missing, and is made.

    Raises:
        InputError: another process holds it; it cannot be made, or opened.
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
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another process writes to {path}: wait for it or choose another place") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)
