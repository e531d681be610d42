"""Tells a local file of which the disk cannot read a sector from one whose storage, mounted from elsewhere, is away."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from itertools import islice
from typing import Final, Literal

from streamvid.host import BROKEN_ERRNOS
from streamvid.storage.regular_file import regular_file

_PROBED: Final = 4096
_BLOCK: Final = 1 << 20
_NEIGHBOURS: Final = 16
"""Files of a folder that are looked at."""

Readable = Literal["all", "some", "none"]


def answers(descriptor: int) -> bool:
    """Whether the beginning, middle or end of an open file can be read from its disk, past the kernel's cache."""
    try:
        size = os.fstat(descriptor).st_size
    except OSError:
        return False
    for start in (0, size // 2, max(0, size - _PROBED)):
        with suppress(OSError):
            os.posix_fadvise(descriptor, start, _PROBED, os.POSIX_FADV_DONTNEED)
            os.pread(descriptor, _PROBED, start)
            return True
    return False


def _of_file_alone(descriptor: int) -> bool:
    """Whether the disk of an open file reads other parts of it, or files beside it. Of a storage without a disk of its
    own (NFS, Lustre), some files may be away while it reads others, so only the file itself counts."""
    if answers(descriptor):
        return True
    if not os.major(os.fstat(descriptor).st_dev):
        return False
    with os.scandir(os.path.dirname(os.readlink(f"/proc/self/fd/{descriptor}"))) as entries:
        for entry in islice(entries, _NEIGHBOURS):
            with suppress(OSError), regular_file(entry.path) as other:
                if os.fstat(other).st_size and answers(other):
                    return True
    return False


def readable(path: str, *, whole: bool) -> Readable:
    """How much of a local file can be read: "none" if its storage does not answer, "some" if the disk fails within it,
    or for all of it, but reads the files beside it.

    Args:
        path: the file. "all" if it is a folder, missing, or may not be read.
        whole: look at all of it; if not, "some" is not told from "all".
    """
    try:
        with regular_file(path) as descriptor:
            try:
                at = 0
                while whole and (count := len(os.pread(descriptor, _BLOCK, at))):
                    at += count
            except OSError as error:
                return "some" if error.errno == errno.EIO and _of_file_alone(descriptor) else "none"
            return "all" if answers(descriptor) else "some" if _of_file_alone(descriptor) else "none"
    except OSError as error:
        return "none" if error.errno in BROKEN_ERRNOS else "all"
