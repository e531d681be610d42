"""Where a dataset is written to: what is there already, whose turn it is, what may be removed, and when it is finished.

`unfinished.txt` holds the fingerprint of the pack that the destination belongs to at present. It is made by one
conditional write, so of two packs that begin at once one is first. `pack-report.json` holds the fingerprint of the
pack that made dataset.json last, and the checksum of that. All that follows, follows from these two.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from streamvid.dataset.manifest import FILE_NAME, FORMAT, SHARD_EXTENSIONS, SHARD_FOLDER, UNFINISHED_FILE, Manifest
from streamvid.errors import InputError
from streamvid.packing.job import differences
from streamvid.packing.journal import (
    PROGRESS_FOLDER,
    FinishedElsewhereError,
    Journal,
    claimed,
    read_if_there,
    unfinished_text,
)
from streamvid.storage import filesystem
from streamvid.storage.url import local_path

REJECTED_FILE: Final = "rejected.parquet"
REPORT_FILE: Final = "pack-report.json"

TAKEN: Final = "{} holds a dataset already: choose another place, overwrite it (--overwrite), or add to it (--append)"

_OUR_TEMPORARY: Final = re.compile(r"\.[0-9a-f]{16}\.tmp")
"""What `storage.write_bytes` calls a file until it is whole."""
_WORK_PREFIX: Final = ".packing-"
_OUR_SHARD_FILE: Final = re.compile(rf"[0-9]{{8}}\.({'|'.join(SHARD_EXTENSIONS)})")
_THREADS: Final = 16


@dataclass(frozen=True)
class Standing:
    """What is at a destination.

    Attributes:
        manifest: dataset.json as it is, None if there is no dataset.
        claimed: the fingerprint of the pack that has not finished; "" if it cannot be told; None if there is none.
        report: pack-report.json, if it belongs to this dataset.json.
    """

    manifest: bytes | None
    claimed: str | None
    report: dict[str, Any] | None

    @property
    def made_by(self) -> str | None:
        """The fingerprint of the pack that made the dataset, if that is known."""
        return None if self.report is None else str(self.report.get("fingerprint"))


def survey(destination: str) -> Standing:
    """Look what is at a destination.

    Raises:
        InputError: something that no `pack` left there, and that would be lost or mistaken.
    """
    shown = filesystem.redact(destination)
    if filesystem.is_local(destination) and os.path.isfile(local_path(destination)):
        raise InputError(f"{shown} is a file: name a folder to pack into")
    manifest = read_if_there(filesystem.join(destination, FILE_NAME))
    holder = claimed(destination)
    if manifest is not None and FORMAT.encode() not in manifest:
        raise InputError(f"{shown} holds a {FILE_NAME} that is not streamvid's: choose another destination")
    if manifest is None and holder is None and _shard_files(destination):
        raise InputError(f"{shown} holds shards that streamvid did not write: choose another destination")
    report = None
    if manifest is not None:
        with suppress(ValueError, RecursionError):
            document = json.loads(read_if_there(filesystem.join(destination, REPORT_FILE)) or b"null")
            if isinstance(document, dict) and document.get("dataset_sha256") == hashlib.sha256(manifest).hexdigest():
                report = document
    return Standing(manifest, holder, report)


def claim(destination: str, fingerprint: str, *, overwrite: bool, base: str | None = None) -> bool:
    """Make the destination this pack's.

    From here on there is no dataset at the destination until `finish`, unless it is appended to. What an overwritten
    or given up pack left is removed, if its name is one that `pack` gives.

    Args:
        destination: where.
        fingerprint: of the pack.
        overwrite: whether a dataset, or what another pack has left, may be removed.
        base: SHA-256 of the dataset.json that is appended to.

    Returns:
        Whether the same pack has begun here before.

    Raises:
        FinishedElsewhereError: another process has just finished the same pack.
        InputError: it belongs to another pack, or there is a dataset already and `overwrite` is False.
    """
    shown = filesystem.redact(destination)
    standing = survey(destination)
    append = base is not None
    if standing.made_by == fingerprint and (not overwrite or standing.claimed == fingerprint):
        raise FinishedElsewhereError
    if append and (standing.manifest is None or hashlib.sha256(standing.manifest).hexdigest() != base):
        raise InputError(f"the dataset at {shown} changed while the videos were being looked for: run this again")
    if standing.manifest is not None and not (overwrite or append) and standing.claimed != fingerprint:
        raise InputError(TAKEN.format(shown))
    holder = standing.claimed
    if holder is not None and holder == standing.made_by:
        tidy(destination, holder)  # it finished, and was killed while it cleared up
        holder = None
    unfinished = filesystem.join(destination, UNFINISHED_FILE)
    if holder is None and not filesystem.create_bytes(unfinished, unfinished_text(fingerprint)):
        holder = claimed(destination)
    if holder is not None and holder != fingerprint:
        if not overwrite:
            anew = f"remove {UNFINISHED_FILE} if nobody packs there" if append else "start anew (--overwrite)"
            raise InputError(
                f"a pack to {shown} with other {differences(holder, fingerprint)} is running or was broken off: let "
                f"it finish, run its command again, or {anew}"
            )
        filesystem.write_bytes(unfinished, unfinished_text(fingerprint))
    resumed = holder == fingerprint
    if not resumed:
        _clear(destination, everything=not append)
    elif standing.manifest is not None and not append:
        filesystem.remove_file(filesystem.join(destination, FILE_NAME))  # of the dataset that this pack replaces
    return resumed


@contextmanager
def working(destination: str) -> Iterator[Path]:
    """A local folder for temporary files, on the same file system as the destination if that is local."""
    prefix, parent = ("streamvid-pack-", None)
    if filesystem.is_local(destination):
        prefix, parent = (_WORK_PREFIX, local_path(destination))
        os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def sweep(destination: str) -> None:
    """Remove the temporary files that killed processes left at a local destination. Nobody may be packing there."""
    if not filesystem.is_local(destination):
        return
    root = Path(local_path(destination))
    for folder in (root, root / PROGRESS_FOLDER):
        for path in folder.iterdir() if folder.is_dir() else ():
            if folder == root and path.name.startswith(_WORK_PREFIX):
                shutil.rmtree(path, ignore_errors=True)
            elif _OUR_TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)


def finish(
    destination: str, fingerprint: str, manifest: Manifest, *, rejected: bytes | None, report: dict[str, Any]
) -> None:
    """Write dataset.json, which makes a dataset of the shards. Killed anywhere in here, it can be called again.

    Args:
        destination: where.
        fingerprint: of the pack, whose the destination must still be.
        manifest: what dataset.json is to say.
        rejected: the content of rejected.parquet, None for none.
        report: what pack-report.json is to say besides.

    Raises:
        FinishedElsewhereError: as from `Journal.check`.
        InputError: as from there, or shards are gone or of another size.
    """
    Journal(destination, fingerprint).check()
    named = {f"{shard.name}.{extension}" for shard in manifest.shards for extension in SHARD_EXTENSIONS}
    there = filesystem.list_details(filesystem.join(destination, SHARD_FOLDER))
    # A pack that was driven out may have come through late, or another may have been clearing up while this one began.
    sizes_agree = all(there[f"{s.name}.tar"].size == s.bytes for s in manifest.shards if f"{s.name}.tar" in there)
    if not (named <= there.keys() and sizes_agree):
        shown = filesystem.redact(destination)
        raise InputError(f"another pack has removed or replaced shards at {shown}: run this again when it has ended")
    _remove([path for path in _shard_files(destination) if path.rpartition("/")[2] not in named])
    if rejected is not None:
        filesystem.write_bytes(filesystem.join(destination, REJECTED_FILE), rejected)
    else:
        filesystem.remove_file(filesystem.join(destination, REJECTED_FILE))
    data = manifest.to_json()
    document = {"fingerprint": fingerprint, "dataset_sha256": hashlib.sha256(data).hexdigest(), **report}
    text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    filesystem.write_bytes(filesystem.join(destination, REPORT_FILE), text.encode("utf-8", "replace"))
    filesystem.write_bytes(filesystem.join(destination, FILE_NAME), data)
    tidy(destination, fingerprint)


def give_up(destination: str, fingerprint: str, rejected: bytes | None) -> None:
    """End a pack that has made no clip: all that it leaves is rejected.parquet.

    Raises:
        FinishedElsewhereError, InputError: as from `Journal.check`.
    """
    Journal(destination, fingerprint).check()
    if rejected is not None:
        filesystem.write_bytes(filesystem.join(destination, REJECTED_FILE), rejected)
    tidy(destination, fingerprint)


def tidy(destination: str, fingerprint: str) -> None:
    """Remove what tells of a pack's progress; unfinished.txt last, and only if it is this pack's."""
    _remove(_progress_files(destination))
    if filesystem.is_local(destination):
        with suppress(OSError):
            os.rmdir(os.path.join(local_path(destination), PROGRESS_FOLDER))
    if claimed(destination) == fingerprint:
        filesystem.remove_file(filesystem.join(destination, UNFINISHED_FILE))


def base_name(path: str) -> str:
    """The last component of a path or URL."""
    return os.path.basename(os.path.abspath(local_path(path)) if filesystem.is_local(path) else path.rstrip("/"))


def _clear(destination: str, *, everything: bool) -> None:
    """Remove what another pack left: its progress, and unless it is appended to, the dataset."""
    if everything:
        # dataset.json first: without it, nothing of what is half removed or half written is taken for a dataset.
        for leftover in (FILE_NAME, REPORT_FILE, REJECTED_FILE):
            filesystem.remove_file(filesystem.join(destination, leftover))
    _remove(_progress_files(destination))
    if everything:
        _remove(_shard_files(destination))


def _shard_files(destination: str) -> list[str]:
    folder = filesystem.join(destination, SHARD_FOLDER)
    names = sorted(filesystem.list_details(folder))
    return [filesystem.join(folder, name) for name in names if _OUR_SHARD_FILE.fullmatch(name)]


def _progress_files(destination: str) -> list[str]:
    folder = filesystem.join(destination, PROGRESS_FOLDER)
    pattern = re.compile(rf"[0-9]{{8}}\.json|{_OUR_TEMPORARY.pattern}")
    return [
        filesystem.join(folder, name) for name in sorted(filesystem.list_details(folder)) if pattern.fullmatch(name)
    ]


def _remove(paths: Iterable[str]) -> None:
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(filesystem.remove_file, paths))


@contextmanager
def locked(destination: str) -> Iterator[None]:
    """Keep other packs on this machine out of a local destination, without leaving a lock file behind.

    Raises:
        InputError: another process is packing there, or the folder cannot be made.
    """
    if not filesystem.is_local(destination):
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
