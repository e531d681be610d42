"""Maps files into memory."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from streamvid.arrays import UInt8


def mapped(file: Path) -> UInt8:
    """The bytes of a file, uint8, read-only, as a private mapping: some file systems have no shared ones, which fail
    with ENODEV (FUSE with direct_io, 9p without a cache).

    Raises:
        OSError: the file cannot be opened, or its file system has no mappings.
        ValueError: it is empty.
    """
    with file.open("rb") as opened:
        whole = mmap.mmap(opened.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    return np.frombuffer(whole, dtype=np.uint8)
