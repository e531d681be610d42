"""A disk cache of consolidated tables: the rows of a large dataset are read from many Parquet files once, then mapped.

One file per dataset in the user's cache folder, `<key>.rows`: an Arrow IPC file followed by its SHA-256, 32 bytes. The
key (`streamvid.dataset.consolidated.cache_key`) is a hash of all that the rows depend on, so an entry is never stale;
a dataset that changes gets another one. All processes of a machine share the mapped pages.

If the folder or an entry cannot be used, the Parquet files are read instead. Entries are renamed into place whole, so
any number of processes may read and write at once; the last writer wins, with the same rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import secrets
import time
from pathlib import Path
from typing import Final

import pyarrow as pa

from streamvid.storage.cache_dir import user_cache_dir

log = logging.getLogger(__name__)

LIMIT_BYTES: Final = 8 << 30
"""Size of all entries; the least recently used ones are removed for a new one."""
MIN_CLIPS: Final = 20_000
"""Datasets of fewer clips open fast enough without the cache."""
_DIGEST_BYTES: Final = 32
_OURS: Final = re.compile(r"[0-9a-f]{64}\.rows|\.[0-9a-f]{16}\.tmp")
_STALE_SECONDS: Final = 3600
"""A temporary file not written to for this long was left by a process that died."""


def load(key: str) -> pa.Table | None:
    """The table of that key, mapped into memory read-only; None if there is none, or it is damaged."""
    try:
        path = user_cache_dir() / f"{key}.rows"
        with pa.memory_map(os.fspath(path)) as file:
            whole = file.read_buffer()
        if len(whole) <= _DIGEST_BYTES:
            raise ValueError("too short")
        content = whole.slice(0, len(whole) - _DIGEST_BYTES)
        if hashlib.sha256(content).digest() != bytes(whole.slice(len(content))):
            raise ValueError("its checksum is wrong")
        table = pa.ipc.open_file(pa.BufferReader(content)).read_all()
        os.utime(path)
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError, pa.ArrowException) as error:
        log.debug("cannot use the cached table %s: %s", key, error)
        return None
    return table


def store(key: str, table: pa.Table) -> None:
    """Keep a table, of one chunk per column. It is dropped if it is larger than the cache or cannot be written."""
    temporary: Path | None = None
    try:
        folder = user_cache_dir()
        folder.mkdir(parents=True, exist_ok=True)
        size = table.nbytes + (1 << 20)
        if size > LIMIT_BYTES:
            return
        _make_room(folder, size)
        temporary = folder / f".{secrets.token_hex(8)}.tmp"
        with pa.OSFile(os.fspath(temporary), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        with temporary.open("rb+") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
            file.write(digest)
        os.replace(temporary, folder / f"{key}.rows")
    except (OSError, RuntimeError, pa.ArrowException) as error:
        log.debug("cannot cache the table %s: %s", key, error)
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _make_room(folder: Path, size: int) -> None:
    """Remove entries, least recently used first, until one of `size` bytes fits. A process that mapped one keeps it."""
    files = []
    for path in folder.iterdir():
        if not _OURS.fullmatch(path.name):
            continue
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            if path.suffix == ".tmp" and time.time() - stat.st_mtime < _STALE_SECONDS:
                continue
            files.append((path.suffix != ".tmp", stat.st_mtime, stat.st_size, path))
    total = sum(item[2] for item in files)
    for keep, _, own, path in sorted(files):
        if keep and total + size <= LIMIT_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= own
