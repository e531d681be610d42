"""The user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache_dir() -> Path:
    """`streamvid` in `XDG_CACHE_HOME`, or in `~/.cache` if that is not an absolute path: the XDG Base Directory
    Specification. The folder may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "streamvid"
