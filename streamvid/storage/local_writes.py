"""Writes local files beside their place, and then gives them their names."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable, Iterator


@contextlib.contextmanager
def written_beside(name: str, content: Iterable[bytes | memoryview]) -> Iterator[str]:
    """A context with a synced file of this content in the folder of the local path `name`, removed at the end if it
    still exists."""
    folder = os.path.dirname(name)
    os.makedirs(folder, exist_ok=True)
    # Not made by tempfile, whose files only their owner can read.
    temporary = os.path.join(folder, f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            for chunk in content:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def name_new(temporary: str, name: str) -> None:
    """Give a local file a name that does not exist yet. Raises FileExistsError."""
    try:
        os.link(temporary, name)
    except OSError as exc:
        if exc.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK) or os.path.exists(name):
            raise
        os.replace(temporary, name)  # no hard links here, so no atomic way
