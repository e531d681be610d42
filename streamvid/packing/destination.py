"""The destination of a pack: its state, the claim on it, the removal of leftovers, and the final dataset.json.

Two files decide everything here. `unfinished.txt` holds the fingerprint of the pack that owns the destination at
present; it is created by a conditional write, so only one of two packs that begin at once succeeds. `pack-report.json`
holds the fingerprint of the pack that wrote dataset.json last, and the checksum of dataset.json.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from streamvid.dataset.manifest import (
    FILE_NAME,
    FORMAT,
    REVISIONS_FOLDER,
    SHARD_EXTENSIONS,
    SHARD_FOLDER,
    UNFINISHED_FILE,
    Manifest,
)
from streamvid.dataset.revisions import commit, kept_manifests, kept_revisions, table_files, with_etags
from streamvid.dataset.tables import TABLE_FOLDER
from streamvid.errors import InputError
from streamvid.packing.fingerprints import differing_parts
from streamvid.packing.journal import (
    PROGRESS_FOLDER,
    SOURCES_FILE,
    UPLOAD,
    FinishedElsewhereError,
    Journal,
    Rejected,
    is_complete,
    read_claim,
    read_if_there,
    unfinished_text,
    upload_id,
)
from streamvid.packing.places import path_parts
from streamvid.storage import filesystem
from streamvid.storage.client import in_s3
from streamvid.storage.parquet import read_parquet
from streamvid.storage.threads import map_in_threads
from streamvid.storage.upload import abort_upload
from streamvid.storage.url import is_local, is_within, join, local_path, redact
from streamvid.text import is_utf8
from streamvid.video.containers import VIDEO_EXTENSIONS

REJECTED_FILE: Final = "rejected.parquet"
REPORT_FILE: Final = "pack-report.json"

DATASET_EXISTS: Final = (
    "{} holds a dataset already: choose another place, overwrite it (--overwrite), or add to it (--append; of index, "
    "--update)"
)

_OUR_TEMPORARY: Final = re.compile(r"\.[0-9a-f]{16}\.tmp")
"""Temporary files of `streamvid.storage.filesystem.write_bytes`."""
_WORK_PREFIX: Final = ".packing-"
_OUR_SHARD_FILE: Final = re.compile(rf"[0-9]{{8}}\.({'|'.join(SHARD_EXTENSIONS)})")
_OUR_TAR: Final = re.compile(rf"(.+)/{SHARD_FOLDER}/[0-9]{{8}}\.tar")
_OUR_TABLE_FILE: Final = re.compile(r"[0-9a-f]{64}\.parquet")
_FILES_SEEN: Final = 10_000


@dataclass(frozen=True)
class DestinationState:
    """The state of a destination.

    Attributes:
        manifest: the bytes of dataset.json; None if there is no dataset.
        claimed_by: the fingerprint of the unfinished pack; "" if unfinished.txt has none; None without that file.
        report: pack-report.json, if it belongs to this dataset.json.
    """

    manifest: bytes | None
    claimed_by: str | None
    report: Mapping[str, object] | None

    @property
    def packed_by(self) -> str | None:
        """The fingerprint of the pack that wrote the dataset, if known."""
        return None if self.report is None else str(self.report.get("fingerprint"))


def read_state(destination: str) -> DestinationState:
    """Find out the state of a destination.

    Raises:
        InputError: the destination is a file, or within a dataset, or has shards or a dataset.json that streamvid did
            not write.
    """
    shown = redact(destination)
    parent, name = os.path.split(destination.rstrip("/"))
    if name in (SHARD_FOLDER, TABLE_FOLDER, REVISIONS_FOLDER) and holds_dataset(parent or os.path.curdir):
        raise InputError(f"{shown} is within a dataset: name {redact(parent or os.path.curdir)}, or another place")
    if is_local(destination) and os.path.isfile(local_path(destination)):
        raise InputError(f"{shown} is a file: name a folder to pack into")
    manifest = read_if_there(join(destination, FILE_NAME))
    holder = read_claim(destination)
    if manifest is not None and FORMAT.encode() not in manifest:
        raise InputError(f"{shown} holds a {FILE_NAME} that is not streamvid's: choose another destination")
    if manifest is None and holder is None and shard_files(destination):
        raise InputError(f"{shown} holds shards that streamvid did not write: choose another destination")
    report = None
    if manifest is not None:
        with suppress(ValueError, RecursionError):
            document = json.loads(read_if_there(join(destination, REPORT_FILE)) or b"null")
            if isinstance(document, dict) and document.get("dataset_sha256") == hashlib.sha256(manifest).hexdigest():
                report = document
    return DestinationState(manifest, holder, report)


def check_not_swapped(paths: Iterable[str], destination: str) -> None:
    """Refuse shards of a dataset as sources, and a folder of videos as the destination, because then arguments are
    probably swapped, or one is missing.

    Args:
        paths: paths of the videos, or of the tars that contain them.

    Raises:
        InputError: as above.
    """
    sources = set(paths)
    for folder in {match[1] for path in sources if (match := _OUR_TAR.fullmatch(path))}:
        if path_parts(folder) != path_parts(destination) and holds_dataset(folder):
            raise InputError(
                f"{redact(folder)} is a dataset, whose clips are packed already: give videos first and the dataset "
                "last, or make a dataset of datasets by streamvid merge or reshard"
            )
    if not is_local(destination) or not os.path.isdir(folder := os.path.realpath(local_path(destination))):
        return
    files = islice(((root, name) for root, _, names in os.walk(folder) for name in names), _FILES_SEEN)
    videos = sorted(os.path.join(*file) for file in files if file[1].lower().endswith(VIDEO_EXTENSIONS))
    if not videos or any(os.path.exists(os.path.join(folder, name)) for name in (FILE_NAME, UNFINISHED_FILE)):
        return
    if not any(is_within(os.path.realpath(local_path(path)), folder) for path in sources if is_local(path)):
        raise InputError(
            f"{redact(destination)} holds videos, such as {videos[0]}, and no dataset: the last path is where the "
            "dataset is to be; give a folder of its own"
        )


def holds_dataset(folder: str) -> bool:
    """Whether a folder or prefix has a dataset.json of streamvid, and not only a file of that name."""
    return FORMAT.encode() in (read_if_there(join(folder, FILE_NAME)) or b"")


def claim(destination: str, fingerprint: str, *, overwrite: bool, base: str | None = None) -> bool:
    """Claim the destination for a pack.

    From now on until `publish`, there is no dataset at the destination, unless it is appended to. Files of an
    overwritten dataset or an abandoned pack are removed; files that no pack writes stay.

    Args:
        destination: folder or object-store prefix.
        overwrite: whether a dataset, or an unfinished one of another pack, may be removed.
        base: SHA-256 of the dataset.json of the dataset that is appended to.

    Returns:
        Whether an earlier run of the same pack is resumed.

    Raises:
        FinishedElsewhereError: another process has just finished the same pack.
        InputError: another pack has claimed the destination, or it has a dataset and `overwrite` is False.
    """
    shown = redact(destination)
    state = read_state(destination)
    append = base is not None
    if state.packed_by == fingerprint and (not overwrite or state.claimed_by == fingerprint):
        raise FinishedElsewhereError
    if append and (state.manifest is None or hashlib.sha256(state.manifest).hexdigest() != base):
        raise InputError(f"the dataset at {shown} changed while the videos were being looked for: run this again")
    if state.manifest is not None and not (overwrite or append) and state.claimed_by != fingerprint:
        raise InputError(DATASET_EXISTS.format(shown))
    holder = state.claimed_by
    if holder is not None and holder == state.packed_by:
        remove_progress(destination, holder)  # that pack was killed after it had published
        holder = None
    unfinished = join(destination, UNFINISHED_FILE)
    if holder is None and not filesystem.create_bytes(unfinished, unfinished_text(fingerprint)):
        holder = read_claim(destination)
    if holder is not None and holder != fingerprint:
        if not overwrite:
            advice = f"remove {UNFINISHED_FILE} if nobody packs there" if append else "start anew (--overwrite)"
            raise InputError(
                f"a pack to {shown} with other {differing_parts(holder, fingerprint)} is running or was broken off: "
                f"let it finish, run its command again, or {advice}"
            )
        filesystem.write_bytes(unfinished, unfinished_text(fingerprint))
    resumed = holder == fingerprint
    if not resumed:
        _clear(destination, everything=not append)
    elif not append:  # that pack may have been killed before it had removed them
        if state.manifest is not None:
            filesystem.remove_file(join(destination, FILE_NAME))
        _remove_changes(destination)
    return resumed


@contextmanager
def work_folder(destination: str) -> Iterator[Path]:
    """A temporary local folder, on the file system of the destination if that is local."""
    prefix, parent = ("streamvid-pack-", None)
    if is_local(destination):
        prefix, parent = (_WORK_PREFIX, local_path(destination))
        os.makedirs(parent, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def remove_temporaries(destination: str) -> None:
    """Remove the temporary files of killed processes at a local destination. No process may be packing there."""
    if not is_local(destination):
        return
    root = Path(local_path(destination))
    for folder in (root, *(root / name for name in (PROGRESS_FOLDER, REVISIONS_FOLDER, SHARD_FOLDER, TABLE_FOLDER))):
        for path in folder.iterdir() if folder.is_dir() else ():
            if folder == root and path.name.startswith(_WORK_PREFIX):
                shutil.rmtree(path, ignore_errors=True)
            elif _OUR_TEMPORARY.fullmatch(path.name):
                path.unlink(missing_ok=True)


def publish(
    destination: str,
    fingerprint: str,
    manifest: Manifest,
    *,
    rejected: Sequence[Rejected],
    report: Mapping[str, object],
    tables: Mapping[str, bytes] | None = None,
    base: str | None = None,
) -> None:
    """Write dataset.json, which completes the dataset. A killed call can be repeated.

    Args:
        destination: folder or object-store prefix, still claimed by the pack.
        rejected: the rows of rejected.parquet; without any there is no such file.
        report: the content of pack-report.json besides the fingerprint.
        tables: further files that dataset.json names, by name.
        base: SHA-256 of the dataset.json of the dataset that is appended to.

    Raises:
        FinishedElsewhereError: as in `Journal.check`.
        InputError: as in `Journal.check`, or shards are missing or have another size.
    """
    Journal(destination, fingerprint).check()
    named = {f"{shard.name}.{extension}" for shard in manifest.shards for extension in shard.checksums}
    there = filesystem.list_details(join(destination, SHARD_FOLDER))
    # A pack that lost its claim may still upload a shard, or may have removed some while this pack began.
    if not all(is_complete(shard, lambda file: there.get(file.rpartition("/")[2])) for shard in manifest.shards):
        shown = redact(destination)
        raise InputError(f"another pack has removed or replaced shards at {shown}: run this again when it has ended")
    before = filesystem.read_bytes(join(destination, FILE_NAME)) if base is not None else b""
    data = with_etags(destination, manifest, there).to_json()
    if before == data:  # an earlier call came this far
        remove_progress(destination, fingerprint)
        return
    if base is not None and hashlib.sha256(before).hexdigest() != base:
        raise InputError(f"the dataset at {redact(destination)} was changed meanwhile: run this again")
    strays = [path for path in shard_files(destination) if path.rpartition("/")[2] not in named]
    if strays:
        kept = {shard.name for manifest in kept_manifests(destination) for shard in manifest.shards}
        strays = [path for path in strays if path.rpartition("/")[2][:8] not in kept]
    if base is None:
        ours = {join(destination, file) for table in manifest.tables for file in table.files}
        strays += [path for path in consolidated_files(destination) if path not in ours]
    map_in_threads(filesystem.remove_file, strays)
    _write_rejected(destination, rejected)
    for name, content in (tables or {}).items():
        filesystem.write_bytes(join(destination, name), content)
    document = {"fingerprint": fingerprint, "dataset_sha256": hashlib.sha256(data).hexdigest(), **report}
    text = json.dumps(document, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    filesystem.write_bytes(join(destination, REPORT_FILE), text.encode("utf-8", "replace"))
    if base is None:
        filesystem.write_bytes(join(destination, FILE_NAME), data)
    else:
        commit(destination, before, data, manifest.revision - 1)
    remove_progress(destination, fingerprint)


def abandon(destination: str, fingerprint: str, rejected: Sequence[Rejected]) -> None:
    """End a pack without any clip: only rejected.parquet remains.

    Raises:
        FinishedElsewhereError, InputError: as in `Journal.check`.
    """
    Journal(destination, fingerprint).check()
    _write_rejected(destination, rejected)
    remove_progress(destination, fingerprint)


def remove_progress(destination: str, fingerprint: str) -> None:
    """Remove the journal, and then unfinished.txt if it holds this fingerprint."""
    _remove_progress_files(destination)
    if is_local(destination):
        with suppress(OSError):
            os.rmdir(os.path.join(local_path(destination), PROGRESS_FOLDER))
    if read_claim(destination) == fingerprint:
        filesystem.remove_file(join(destination, UNFINISHED_FILE))


def base_name(path: str) -> str:
    """The last component of a path or URL."""
    return os.path.basename(os.path.abspath(local_path(path)) if is_local(path) else path.rstrip("/"))


def given_name(name: object, default: str) -> str:
    """The name of a dataset as given; `default` for None. Raises InputError if it is no possible name."""
    if name is not None and not (isinstance(name, str) and name.strip() and is_utf8(name)):
        raise InputError(f"name must be UTF-8 text that is not empty; it is {name!r}; leave it out for the folder's")
    return default if name is None else name


def read_rejected(destination: str) -> list[Rejected]:
    """The rows of rejected.parquet; empty if it is missing or unreadable, because it is only informative."""
    data = read_if_there(join(destination, REJECTED_FILE))
    try:
        if data is None:
            return []
        rows = read_parquet(data, lambda *_: ["source", "reason"]).to_pylist()
    except (pa.ArrowException, OSError, ValueError):
        return []
    return [Rejected(str(row["source"]), str(row["reason"])) for row in rows]


def _write_rejected(destination: str, rejected: Sequence[Rejected]) -> None:
    """Write rejected.parquet, or remove it if no video was rejected."""
    path = join(destination, REJECTED_FILE)
    if not rejected:
        filesystem.remove_file(path)
        return
    columns = {"source": [video.source for video in rejected], "reason": [video.reason for video in rejected]}
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    filesystem.write_bytes(path, buffer.getvalue())


def _clear(destination: str, *, everything: bool) -> None:
    """Remove the journal of another pack and, if `everything`, the dataset."""
    if everything:
        # dataset.json first: without it, half-removed shards are not taken for a dataset.
        for leftover in (FILE_NAME, REPORT_FILE, REJECTED_FILE):
            filesystem.remove_file(join(destination, leftover))
        _remove_changes(destination)
    _remove_progress_files(destination)
    if everything:
        map_in_threads(filesystem.remove_file, [*shard_files(destination), *consolidated_files(destination)])


def _remove_changes(destination: str) -> None:
    """Remove the earlier revisions of a dataset without dataset.json, and the tables of its changes."""
    tables = [join(destination, name) for name in table_files(destination)]
    map_in_threads(filesystem.remove_file, [*tables, *kept_revisions(destination).values()])


def shard_files(destination: str) -> list[str]:
    """The shards' files at the destination."""
    folder = join(destination, SHARD_FOLDER)
    return [join(folder, file) for file in sorted(filesystem.list_details(folder)) if _OUR_SHARD_FILE.fullmatch(file)]


def consolidated_files(destination: str) -> list[str]:
    """The files of consolidated tables at the destination."""
    folder = join(destination, TABLE_FOLDER)
    return [join(folder, file) for file in sorted(filesystem.list_details(folder)) if _OUR_TABLE_FILE.fullmatch(file)]


def _remove_progress_files(destination: str) -> None:
    """Remove a journal, and abort the uploads whose ids it has."""
    folder = join(destination, PROGRESS_FOLDER)

    def remove(name: str) -> None:
        path = join(folder, name)
        if in_s3(path) and name.endswith(UPLOAD) and (found := upload_id(read_if_there(path) or b"")):
            abort_upload(join(destination, SHARD_FOLDER, name.removesuffix(UPLOAD)), found)
        filesystem.remove_file(path)

    upload = _OUR_SHARD_FILE.pattern + re.escape(UPLOAD)
    ours = "|".join((r"[0-9]{8}\.json", SOURCES_FILE.format("[0-9a-f]{16}"), _OUR_TEMPORARY.pattern, upload))
    map_in_threads(remove, [name for name in sorted(filesystem.list_details(folder)) if re.fullmatch(ours, name)])
