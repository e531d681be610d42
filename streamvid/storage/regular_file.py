"""Opens local files by untrusted names, such as those in a dataset: regular files only.

Opening a pipe waits for a writer, and reading from a device may never end or have side effects.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from streamvid.storage.url import AnyPath

MAX_BYTES: Final = 4 << 30
"""The most bytes that are read of a file as a whole."""
_SPARSE_BYTES: Final = 64 << 20
_SPARSE_RATIO: Final = 64
_KINDS: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFileError(OSError):
    """A path names a pipe, socket or device, or a file that cannot be read as a whole; `strerror` says which."""


def open_file(path: AnyPath, mode: int = os.O_RDONLY) -> int:
    """Open a regular file for reading, or also for writing (O_RDWR); returns its descriptor.

    Raises:
        OSError: the file cannot be opened, or is no regular file; IsADirectoryError for a folder.
    """
    try:
        # O_NONBLOCK, so that opening a pipe without a writer returns immediately.
        descriptor = os.open(path, mode | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ENXIO:  # raised by open() for a socket
            raise _not_a_file("a socket or device, not a file", path) from error
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise _not_a_file(f"{_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def regular_file(path: AnyPath) -> Iterator[int]:
    """A context with the descriptor of `open_file`; its name is ``/proc/self/fd/N`` meanwhile."""
    descriptor = open_file(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_file(path: AnyPath, most: int = MAX_BYTES) -> bytes:
    """Read a whole regular file.

    Raises:
        OSError: as in `open_file`, or the file has more than `most` bytes, or is large and sparse.
    """
    with regular_file(path) as descriptor:
        status = os.fstat(descriptor)
        if status.st_size > most:
            raise _not_a_file(f"a file of {status.st_size} bytes, where {most} are the most", path)
        if status.st_size > max(_SPARSE_BYTES, _SPARSE_RATIO * 512 * status.st_blocks):
            raise _not_a_file("a file of which most was never written (sparse)", path)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)


def _not_a_file(what: str, path: AnyPath) -> NotAFileError:
    return NotAFileError(errno.EINVAL, what, os.fspath(path))
