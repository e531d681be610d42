"""Writes local files beside their place, and then gives them their names; names the folder in errors of its disk."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator

from streamvid.errors import StreamvidError
from streamvid.host import limit_met
from streamvid.storage.url import redact


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
    except FileExistsError:
        raise
    except OSError as exc:  # no hard links here (EPERM, ENOSYS, EIO of rclone's mounts), so no atomic way
        if os.path.exists(name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name) from exc
        os.replace(temporary, name)


@contextlib.contextmanager
def disk_errors_named(destination: str, *, then: str) -> Iterator[None]:
    """A context that adds the destination to an OSError without a file name, as Arrow's, and what to do if the disk is
    full or a limit of this process is met (a StreamvidError), such as its memory or threads."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = f"{os.strerror(error.errno)}; free some, there or in {tempfile.gettempdir()}, and do the same again"
            raise OSError(error.errno, f"{what}: {then}", error.filename or redact(destination)) from error
        if isinstance(error, OSError) and error.errno == errno.EROFS:  # of a temporary file there
            what = f"{os.strerror(error.errno)}; mount it for writing, or name another place: {then}"
            raise OSError(error.errno, what, redact(destination)) from error
        if (limit := limit_met(error)) is not None:
            raise StreamvidError(f"{redact(destination)}: {limit}, and do the same again: {then}") from error
        if not isinstance(error, OSError) or error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, redact(destination)) from error
