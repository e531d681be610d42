"""Files are mapped on file systems without shared mappings, too."""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from tests.support.clips import write
from tools.clips import Recipe


def test_sources_and_destination_without_shared_mappings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of FUSE with direct_io, where such a mapping fails with ENODEV; a private one is possible."""
    small = Recipe(codec="h264", container="ts", width=96, height=64, frames=30, gop=10)
    sources = [write(small, tmp_path / "a.ts"), write(replace(small, container="mkv"), tmp_path / "b.mkv")]
    real: Any = mmap.mmap

    def private(descriptor: int, *sizes: int, **options: Any) -> Any:
        if descriptor >= 0 and options.get("flags", mmap.MAP_SHARED) & mmap.MAP_SHARED:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return real(descriptor, *sizes, **options)

    monkeypatch.setattr(mmap, "mmap", private)
    for name, cutting, clips in (("whole", None, 1), ("cut", FixedLength(15, "frames"), 2)):
        report = pack([*map(str, sources)], tmp_path / name, options=PackOptions(cutting=cutting))
        assert (report.rejected, report.clips) == ((), clips * len(sources))
