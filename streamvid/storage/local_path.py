"""Local paths among URLs, and the two things that a writer does to files beyond `streamvid.storage.filesystem`."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
from fsspec.core import url_to_fs

from streamvid.errors import DatasetError
from streamvid.storage import filesystem


def local_path(path: str) -> str:
    """The absolute path that a local path, with or without ``file://``, stands for."""
    return str(fsspec.filesystem("file")._strip_protocol(path))


def move_file(local: Path, path: str) -> None:
    """Move a finished local file to `path`, which has it whole or not at all. A file that is there is replaced.

    Args:
        local: on the same file system as `path`, if that is local, so that nothing is copied.

    Raises:
        StreamvidError: the place cannot be written to.
    """
    if not filesystem.is_local(path):
        filesystem.put_file(local, path)
        local.unlink()
        return
    target = local_path(path)
    try:
        with local.open("rb") as file:
            os.fsync(file.fileno())
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(local, target)
    except OSError as error:
        raise DatasetError(f"cannot write {target}: {error.strerror}; make room or choose another place") from error


def remove_file(path: str) -> None:
    """Remove a file if it is there.

    Raises:
        DatasetError: it is there and cannot be removed.
    """
    try:
        if filesystem.is_local(path):
            Path(local_path(path)).unlink(missing_ok=True)
        elif filesystem.exists(path):
            remote, name = url_to_fs(path)
            remote.rm_file(name)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DatasetError(
            f"cannot remove {filesystem.redact(path)}: {reason}; allow it or choose another place"
        ) from error
