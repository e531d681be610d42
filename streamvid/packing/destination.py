"""Where a dataset is written to: what is there already, what of it may be removed, and when it is finished."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from streamvid.errors import InputError
from streamvid.store import storage
from streamvid.store.manifest import FILE_NAME, FORMAT, SHARD_EXTENSIONS, SHARD_FOLDER, UNFINISHED_FILE, Manifest
from streamvid.store.paths import local_path, remove_file

REJECTED_FILE: Final = "rejected.parquet"

_UNFINISHED_TEXT: Final = (
    b"streamvid pack has not finished here. Packing to the same place again replaces what is there.\n"
)
_OUR_TEMPORARY: Final = re.compile(r"\.[0-9a-f]{16}\.tmp")
"""What `storage.write_bytes` calls a file until it is whole."""
_WORK_PREFIX: Final = ".packing-"
_OUR_SHARD_FILE: Final = re.compile(rf"[0-9]{{8}}\.({'|'.join(SHARD_EXTENSIONS)})")


def check_destination(destination: str, overwrite: bool) -> None:
    """Refuse a destination that something would be lost at.

    Raises:
        InputError: there is a dataset and `overwrite` is False, or there are shards that no `pack` left there.
    """
    shown = storage.redact(destination)
    if storage.is_local(destination) and os.path.isfile(local_path(destination)):
        raise InputError(f"{shown} is a file: name a folder to pack into")
    manifest = storage.join(destination, FILE_NAME)
    if storage.exists(manifest):
        if FORMAT.encode() not in storage.read_bytes(manifest):
            raise InputError(f"{shown} holds a {FILE_NAME} that is not streamvid's: choose another destination")
        if not overwrite:
            raise InputError(f"{shown} holds a dataset already: choose another place, or overwrite it (--overwrite)")
    elif not storage.exists(storage.join(destination, UNFINISHED_FILE)) and _shard_files(destination):
        raise InputError(f"{shown} holds shards that streamvid did not write: choose another destination")


@contextmanager
def working(destination: str, overwrite: bool) -> Iterator[Path]:
    """Prepare the destination and give a local folder for temporary files, on the same file system if it is local.

    From here on there is no dataset at the destination, until `finish`. What an unfinished pack or an overwritten
    dataset left is removed, if its name is one that `pack` gives.

    Raises:
        InputError: another process is packing to the same folder, or as from `check_destination`.
    """
    with _locked(destination):
        check_destination(destination, overwrite)  # once more: another pack may have finished while we searched
        unfinished = storage.join(destination, UNFINISHED_FILE)
        storage.write_bytes(unfinished, _UNFINISHED_TEXT)
        # dataset.json first: without it, nothing of what is half removed or half written is taken for a dataset.
        for leftover in (FILE_NAME, REJECTED_FILE):
            remove_file(storage.join(destination, leftover))
        for stray in _shard_files(destination):
            remove_file(stray)
        local = storage.is_local(destination)
        if local:
            for path in Path(local_path(destination)).iterdir():
                if path.name.startswith(_WORK_PREFIX):
                    shutil.rmtree(path, ignore_errors=True)
                elif _OUR_TEMPORARY.fullmatch(path.name):
                    path.unlink(missing_ok=True)
        prefix, parent = (_WORK_PREFIX, local_path(destination)) if local else ("streamvid-pack-", None)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name:
            yield Path(name)


def finish(destination: str, manifest: Manifest) -> None:
    """Write dataset.json, which makes a dataset of the shards."""
    storage.write_bytes(storage.join(destination, FILE_NAME), manifest.to_json())
    remove_file(storage.join(destination, UNFINISHED_FILE))


def base_name(path: str) -> str:
    """The last component of a path or URL."""
    return os.path.basename(os.path.abspath(local_path(path)) if storage.is_local(path) else path.rstrip("/"))


def _shard_files(destination: str) -> list[str]:
    folder = storage.join(destination, SHARD_FOLDER)
    if not storage.exists(folder):
        return []
    return [path for path in storage.list_files(folder) if _OUR_SHARD_FILE.fullmatch(path.rpartition("/")[2])]


@contextmanager
def _locked(destination: str) -> Iterator[None]:
    """Keep other packs on this machine out of a local destination, without leaving a lock file behind."""
    if not storage.is_local(destination):
        yield
        return
    folder = local_path(destination)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}; choose another destination") from error
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another process packs to {destination}: wait for it or choose another place") from None
        except OSError:
            pass  # a file system without locks: then it is up to the user
        yield
    finally:
        os.close(handle)
