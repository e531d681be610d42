"""The revisions of a dataset: dataset.json is the newest; earlier ones are kept beside it.

A change writes new files under new names, copies the previous dataset.json to ``revisions/00000012.json``, and replaces
dataset.json last and atomically. So readers of an older revision are not disturbed, and a change that is killed, or
finds the disk full, leaves the dataset unchanged; its files are removed by the next change of a local dataset. Of two
concurrent changes, one succeeds.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Final

from streamvid.checks import integer
from streamvid.dataset.manifest import (
    FILE_NAME,
    MAX_BYTES,
    REVISIONS_FOLDER,
    SHARD_FOLDER,
    UNFINISHED_FILE,
    Change,
    Manifest,
    ShardEntry,
)
from streamvid.dataset.shard_files import replaced
from streamvid.errors import DatasetError, InputError, StreamvidError
from streamvid.storage import filesystem
from streamvid.storage.client import in_s3
from streamvid.storage.explain import MissingFile
from streamvid.storage.filesystem import Details
from streamvid.storage.folder_lock import lock_folder
from streamvid.storage.retry import COMMAND_SECONDS, Retry
from streamvid.storage.threads import map_in_threads
from streamvid.storage.url import given_path, is_local, join, local_path, redact
from streamvid.video.containers import VIDEO_EXTENSIONS

_REVISION_FILE: Final = re.compile(r"([0-9]{8})\.json")
_TABLE_FILE: Final = re.compile(r"(forgotten|columns)-[0-9]+(-[0-9a-f]{8})?\.parquet")


def dataset_path(path: object) -> str:
    """The path or URL of a dataset as text.

    Raises:
        InputError: the value is no path; for several paths, the message says what to write.
    """
    if not isinstance(path, str | os.PathLike):
        hint, several = "", "; for several datasets write Mix([(first, 1), (second, 1)])"
        if isinstance(path, list | tuple):
            hint = several
        elif hasattr(path, "parts"):
            hint = "; a Mix has all its parts in one list, and is for StreamLoader: for others, merge them"
        elif hasattr(path, "__getitem__"):  # as PyTorch's Subset and ConcatDataset, which are of samples
            hint = f"; for some of its clips write Subset(path, keys=…){several}"
        raise InputError(f"dataset must be a path, a URL or a Dataset, it is {path!r}"[:300] + hint)
    return given_path(path, "dataset")


def read_manifest(path: str, *, revision: int | None = None, retry_for: float | Retry = COMMAND_SECONDS) -> Manifest:
    """Read dataset.json of a dataset, or that of an earlier revision.

    Args:
        path: of the dataset.
        revision: number of the revision; default: the newest.
        retry_for: as in `Dataset.open`.

    Raises:
        DatasetError: there is no dataset.json, it is damaged or of another version, or the revision is not kept.
        InputError: there is no such revision.
    """
    retry, shown = Retry.of(retry_for), redact(path)
    document, file = _read_newest(path, retry), join(path, FILE_NAME)
    try:
        newest = _parsed(document, file)
    except DatasetError:
        if is_local(path):
            raise
        # It may have been damaged on its way, or be the page of a proxy.
        newest = _parsed(_read_newest(path, retry), file)
    if revision is None or integer(revision, "revision", least=0, most=None) == newest.revision:
        return newest
    if revision > newest.revision:
        raise InputError(f"there is no revision {revision} of {shown}: its newest is {newest.revision}")
    if revision < newest.oldest:
        raise DatasetError(
            f"revision {revision} of {shown} was ended by revision {newest.oldest}, in which clips were purged: open "
            f"revision {newest.oldest} or a later one"
        )
    file = join(path, revision_file(revision))
    try:
        manifest = _parsed(filesystem.read_bytes(file, most=MAX_BYTES, retry=retry), file)
    except MissingFile:
        missing = f"revision {revision} of {shown} is not kept: there is no {revision_file(revision)}"
        raise DatasetError(missing) from None
    if manifest.revision != revision:
        raise DatasetError(f"{redact(file)} is of revision {manifest.revision}: copy it again")
    return manifest


def revision_file(revision: int) -> str:
    """Path of the dataset.json of an earlier revision, relative to the dataset."""
    return f"{REVISIONS_FOLDER}/{revision:08d}.json"


def kept_revisions(path: str) -> dict[int, str]:
    """The files of earlier revisions that a dataset keeps, by number, including those that a purge has ended."""
    folder = join(path, REVISIONS_FOLDER)
    names = (_REVISION_FILE.fullmatch(name) for name in sorted(filesystem.list_details(folder)))
    return {int(name[1]): join(folder, name[0]) for name in names if name}


def kept_manifests(path: str) -> list[Manifest]:
    """The earlier revisions of a dataset that can be parsed, in order. Raises DatasetError if one cannot be read: it
    may name files that no other revision does."""
    retry = Retry(COMMAND_SECONDS)

    def read(file: str) -> Manifest | None:
        try:
            document = filesystem.read_bytes(file, retry=retry)
        except MissingFile:  # removed meanwhile
            return None
        with contextlib.suppress(DatasetError):
            return _parsed(document, file)
        return None

    return [manifest for manifest in map_in_threads(read, [*kept_revisions(path).values()]) if manifest is not None]


def table_files(path: str) -> list[str]:
    """The names of the files beside dataset.json that changes have written, including those that no revision names."""
    return [name for name in sorted(filesystem.list_details(path)) if _TABLE_FILE.fullmatch(name)]


def table_name(kind: str, revision: int, sha256: str) -> str:
    """The name of a table that a revision adds. It depends on the content, so that two writers never share a file."""
    return f"{kind}-{revision}-{sha256[:8]}.parquet"


def ended_by(path: str, shard: ShardEntry) -> str:
    """The reason, in words, why a revision that is being read has ended: its shard was purged, or another dataset or
    shard is in its place. "" if neither, or if that cannot be determined.

    Args:
        path: folder or URL of the dataset.
        shard: a shard that cannot be read, or is damaged.
    """
    try:
        newest = read_manifest(path, retry_for=0.0)
    except StreamvidError:
        return ""
    if shard in newest.shards:
        return replaced(path, shard)
    # A revision gives shards with new content new names, and keeps the earlier shards.
    if not newest.revision or any(entry.name == shard.name for entry in newest.shards):
        return (
            f"shard {shard.name} of the dataset {redact(path)} is gone: the dataset was replaced by another one since "
            "it was opened; put it back, and go on from the last checkpoint, or begin anew"
        )
    if not newest.oldest:
        return ""
    return (
        f"shard {shard.name} of the dataset {redact(path)} is gone: revision {newest.oldest}, in which clips were "
        "purged, ended the one that is read; begin again, and go on from the last checkpoint"
    )


FIRST_REWRITTEN: Final = 50_000_000
"""The first number of rewritten shards, which concurrent packs, whose numbers start at 0, do not reach."""


def next_number(path: str, manifest: Manifest) -> int:
    """The number for the next shard that is packed: above those of all packed shards of all revisions, of which
    `manifest` is the newest. Earlier ones are read only if it has the last packed shard in a rewritten form."""
    numbers = [int(shard.name) for shard in manifest.shards]
    if not numbers or numbers[-1] >= FIRST_REWRITTEN:
        numbers += [int(shard.name) for revision in kept_manifests(path) for shard in revision.shards]
    return max((number for number in numbers if number < FIRST_REWRITTEN), default=-1) + 1


def rewritten_numbers(path: str, manifest: Manifest) -> Iterator[int]:
    """Numbers for shards that are rewritten, above all of the newest revision, which has the latest of each. Each is
    reserved when it is taken, by an empty .parquet, so that no other writer uses it."""
    for number in count(max([FIRST_REWRITTEN - 1, *(int(shard.name) for shard in manifest.shards)]) + 1):
        if filesystem.create_bytes(join(path, SHARD_FOLDER, f"{number:08d}.parquet"), b""):
            yield number


@dataclass(frozen=True)
class Base:
    """The dataset that a change begins with.

    Attributes:
        path: folder or URL.
        document: the bytes of dataset.json.
        manifest: dataset.json, parsed.
    """

    path: str
    document: bytes
    manifest: Manifest


@contextmanager
def changing(path: str | os.PathLike[str]) -> Iterator[Base]:
    """A context for changing a dataset. No other process can change a local dataset meanwhile.

    Raises:
        InputError: another process is changing the dataset, or a pack to it is not finished.
        DatasetError: there is no dataset, or it is damaged.
    """
    path = dataset_path(path)
    retry = Retry.of(COMMAND_SECONDS)
    document = _read_newest(path, retry)
    with lock_folder(path):
        document = _read_newest(path, retry)
        manifest = _parsed(document, join(path, FILE_NAME))
        if filesystem.exists(join(path, UNFINISHED_FILE), retry=retry):
            raise InputError(
                f"a pack to {redact(path)} is running or was broken off: let it finish, or run its command again, "
                f"before the dataset is changed; remove {UNFINISHED_FILE} if nobody packs there"
            )
        yield Base(local_path(path) if is_local(path) else path, document, manifest)


def with_etags(path: str, manifest: Manifest, listed: Mapping[str, Details] | None = None) -> Manifest:
    """A manifest with the ETags of its shards' objects in S3, with which every range is requested (If-Match).

    Args:
        path: the dataset; outside of S3 the manifest is returned unchanged.
        manifest: the dataset's manifest.
        listed: a listing of its shard folder, if the caller has one.

    Raises:
        InputError: a new shard has no files any more, as a purge removes all that no revision names.
    """
    if not in_s3(path):
        return manifest
    if listed is None and all(entry.etags for entry in manifest.shards):
        kind, etag = next(iter(manifest.shards[0].etags.items()))
        there = filesystem.details(join(path, manifest.shards[0].file(kind)))
        if there is not None and there.mark == f'"{etag}"':  # otherwise the dataset is a copy
            return manifest
    found = filesystem.list_details(join(path, SHARD_FOLDER)) if listed is None else listed
    marks = {name: details.mark for name, details in found.items()}
    for entry in manifest.shards:
        if not entry.etags and f"{entry.name}.parquet" not in marks:
            file = redact(join(path, entry.file("parquet")))
            raise InputError(f"another process has removed {file} meanwhile: run this again")
    return replace(manifest, shards=tuple(entry.with_etags(marks) for entry in manifest.shards))


def publish_revision(base: Base, manifest: Manifest, tables: Mapping[str, bytes | Path] | None = None) -> Manifest:
    """Write the next revision of a dataset.

    Args:
        base: the value of `changing`.
        manifest: the new manifest, all of whose files except `tables` are written; its number is set here.
        tables: further files that it names, by name: bytes, or finished local files, which are moved.

    Returns:
        The manifest with its number.

    Raises:
        InputError: another process has changed the dataset meanwhile.
        DatasetError: a file cannot be written. In both cases the dataset is unchanged, and the tables are removed.
    """
    manifest = with_etags(base.path, replace(manifest, revision=base.manifest.revision + 1))
    try:
        for name, content in (tables or {}).items():
            file = join(base.path, name)
            size = content.stat().st_size if isinstance(content, Path) else len(content)
            if isinstance(content, Path):
                filesystem.move_file(content, file)
            else:
                filesystem.write_bytes(file, content)
            # Without a table that it names, no revision opens.
            found = filesystem.details(file)
            if found is None or found.size != size:
                raise DatasetError(f"the storage does not hold {redact(file)}, though it took it: run this again")
        commit(base.path, base.document, manifest.to_json(), base.manifest.revision)
    except BaseException:
        with contextlib.suppress(StreamvidError, OSError):
            _take_back(base.path, tables or {}, manifest)
        raise
    return manifest


def commit(path: str, before: bytes, after: bytes, revision: int) -> None:
    """Replace dataset.json, and keep the previous one as a revision.

    Raises:
        InputError: another process has replaced dataset.json.
    """
    filesystem.write_bytes(join(path, revision_file(revision)), before)
    if not filesystem.replace_bytes(join(path, FILE_NAME), after, expected=before):
        raise InputError(f"another process has changed the dataset at {redact(path)} meanwhile: run this again")


def change(command: str, clips: int) -> Change:
    """The `Change` of a command at the current time."""
    return Change(command, datetime.now(UTC).isoformat(timespec="seconds"), clips)


def _take_back(path: str, tables: Mapping[str, object], manifest: Manifest) -> None:
    """Remove the tables of a revision that was not published, except those that the published one has, too."""
    there = filesystem.read_bytes(join(path, FILE_NAME))
    if there == manifest.to_json():
        return  # the interrupt came just after publishing
    for name in tables:
        if name.encode() not in there:
            filesystem.remove_file(join(path, name))


def _parsed(document: bytes, path: str) -> Manifest:
    return Manifest.from_json(document, path=redact(path))


def _read_newest(path: str, retry: Retry) -> bytes:
    shown = redact(path)
    file = join(path, FILE_NAME)
    if is_local(path) and os.path.isfile(local_path(path)):
        raise DatasetError(f"no dataset at {shown}: {_what_is_there(path)}")
    try:
        return filesystem.read_bytes(file, most=MAX_BYTES, retry=retry)
    except MissingFile:
        if filesystem.exists(join(path, UNFINISHED_FILE), retry=retry):
            raise DatasetError(f"packing to {shown} has not finished: wait for it or pack again") from None
        raise DatasetError(f"no dataset at {shown}: {_what_is_there(path)}") from None


_PACK: Final = "pack it first (streamvid pack VIDEOS DATASET), and open the dataset that this makes"


def _what_is_there(path: str) -> str:
    """A description of a path that holds no dataset, from its name and, on a local disk, its files."""
    name = path.rstrip("/").lower()
    if name.endswith(f"/{FILE_NAME}") or name == FILE_NAME:
        return f"this is the file in it; give its folder, {redact(os.path.dirname(path) or '.')}"
    if name.endswith(VIDEO_EXTENSIONS):
        return f"this is a video; {_PACK}"
    # Shards lie in a dataset, one of which may be given, or a pattern of all, as to WebDataset; not any name there.
    part = is_local(path) and (os.path.lexists(local_path(path)) or re.search(r"[*?\[{]", path))
    for parent in islice(Path(os.path.abspath(local_path(path))).parents, 2) if part else ():
        if (parent / FILE_NAME).is_file():
            return f"this is a part of a dataset; give its folder, {parent}"
    names = [name]
    if is_local(path) and os.path.isdir(local_path(path)):
        folder = local_path(path)
        if inner := sorted(file.parent.name for file in islice(Path(folder).glob(f"*/{FILE_NAME}"), _FOLDERS_SEEN)):
            return f"this is a folder of datasets; give one of them: {', '.join(inner[:3])}{', …' * (len(inner) > 3)}"
        # Look a few folders deep, as videos often lie in one folder for each class.
        files = (file.lower() for _, _, files in islice(os.walk(folder), _FOLDERS_SEEN) for file in files)
        names = list(islice(files, _FILES_SEEN))
    if any(file.endswith(".packets") for file in names):
        return f"there are shards of a dataset without its {FILE_NAME}, as in an unfinished copy: copy that file, too"
    if any(file.endswith((".tar", ".tar.gz", ".tgz")) for file in names):
        return (
            f"there are tar files but no {FILE_NAME}, so streamvid has not packed them; index them where they lie "
            "(streamvid index TARS DATASET), or copy their videos (streamvid pack TARS DATASET)"
        )
    if any(file.endswith(VIDEO_EXTENSIONS) for file in names):
        return f"this is a folder of videos; {_PACK}"
    return f"there is no {FILE_NAME}; check the path"


_FOLDERS_SEEN: Final = 100
_FILES_SEEN: Final = 1000
