"""The rows of large datasets, kept in the user's cache folder: read once from many parquets, then mapped into memory.

One file per dataset, `<SHA-256>.rows`: an Arrow IPC file and, behind it, 32 bytes, its SHA-256. Its name is the
SHA-256 of all that the rows depend on (dataset.json and, of local datasets, size and time of each parquet), so a file
is never out of date; datasets that change get another one. Processes of one machine share its pages.

It is only a copy: whatever is wrong with the folder or a file of it, the parquets are read instead. Files are renamed
into place whole, so any number of processes may read and write at once; the last one to write wins, with the same rows.
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

log = logging.getLogger(__name__)

LIMIT_BYTES: Final = 8 << 30
"""All files together; the ones used longest ago are removed for a new one."""
MIN_CLIPS: Final = 20_000
"""Datasets of fewer clips open fast enough without."""
_DIGEST: Final = 32
_OURS: Final = re.compile(r"[0-9a-f]{64}\.rows|\.[0-9a-f]{16}\.tmp")
_LEFT_BEHIND_SECONDS: Final = 3600
"""A temporary file that nobody wrote to for so long is a dead process'."""


def folder() -> Path:
    """Where the files are: `streamvid` in `XDG_CACHE_HOME`, which is `~/.cache` if not set."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "streamvid"


def load(name: str) -> pa.Table | None:
    """The table kept under that name, mapped into memory and read-only; None if there is none, or a damaged one."""
    try:
        path = folder() / f"{name}.rows"
        with pa.memory_map(os.fspath(path)) as file:
            whole = file.read_buffer()
        if len(whole) <= _DIGEST:
            raise ValueError("too short")
        content = whole.slice(0, len(whole) - _DIGEST)
        if hashlib.sha256(content).digest() != bytes(whole.slice(len(content))):
            raise ValueError("its checksum is wrong")
        table = pa.ipc.open_file(pa.BufferReader(content)).read_all()
        os.utime(path)
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, ValueError, pa.ArrowException) as error:
        log.debug("cannot use the kept rows %s: %s", name, error)
        return None
    return table


def store(name: str, table: pa.Table) -> None:
    """Keep a table, of one chunk per column, under that name; if that cannot be done, it is not kept."""
    temporary: Path | None = None
    try:
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        size = table.nbytes + (1 << 20)
        if size > LIMIT_BYTES:
            return
        _make_room(place, size)
        temporary = place / f".{secrets.token_hex(8)}.tmp"
        with temporary.open("xb") as file:
            hashing = _Hashing(file)
            with pa.ipc.new_file(pa.PythonFile(hashing, "w"), table.schema) as writer:
                writer.write_table(table)
            file.write(hashing.sha256.digest())
        os.replace(temporary, place / f"{name}.rows")
    except (OSError, RuntimeError, pa.ArrowException) as error:
        log.debug("cannot keep the rows %s: %s", name, error)
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


class _Hashing:
    """What Arrow writes an IPC file to: it only ever appends."""

    closed = False

    def __init__(self, file: object) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self._at = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self._file.write(data)  # type: ignore[attr-defined]
        self._at += len(data)
        return len(data)

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _make_room(place: Path, size: int) -> None:
    """Remove files, the one used longest ago first, until one of `size` bytes fits. Whoever has mapped one keeps it."""
    files = []
    for path in place.iterdir():
        if not _OURS.fullmatch(path.name):
            continue
        with contextlib.suppress(FileNotFoundError):
            stat = path.stat()
            if path.suffix == ".tmp" and time.time() - stat.st_mtime < _LEFT_BEHIND_SECONDS:
                continue
            files.append((path.suffix != ".tmp", stat.st_mtime, stat.st_size, path))
    total = sum(item[2] for item in files)
    for keep, _, own, path in sorted(files):
        if keep and total + size <= LIMIT_BYTES:
            break
        path.unlink(missing_ok=True)
        total -= own
