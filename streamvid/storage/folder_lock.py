"""An exclusive lock on a local folder, held while a dataset is written there."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from streamvid.errors import InputError
from streamvid.storage.url import is_local, local_path


@contextmanager
def lock_folder(path: str, *, make: bool = False) -> Iterator[None]:
    """A context that holds the lock (flock on the folder itself). Does nothing for a folder that is not local.

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
