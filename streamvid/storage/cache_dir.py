"""The user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

from streamvid.errors import InputError


def user_cache_dir() -> Path:
    """`streamvid` in `XDG_CACHE_HOME`, or in `~/.cache` if that is not an absolute path: the XDG Base Directory
    Specification. The folder may not exist yet.

    Raises:
        InputError: the user has no home folder, as a user of a container who is not in /etc/passwd.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base, "streamvid")
    try:
        return Path.home() / ".cache" / "streamvid"
    except RuntimeError as error:
        raise InputError(
            "this user has no home folder, in which the cache would lie: set HOME or XDG_CACHE_HOME, or give cache_dir"
        ) from error
