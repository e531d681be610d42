"""Checks the files beside a dataset's shards: tables against dataset.json, and files that readers ignore."""

from __future__ import annotations

import io
import itertools
import re
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from streamvid.dataset.forgotten import read_forgotten
from streamvid.dataset.manifest import FILE_NAME, SHARD_EXTENSIONS, SHARD_FOLDER, UNFINISHED_FILE, Manifest
from streamvid.dataset.overlays import local_file
from streamvid.dataset.revisions import kept_manifests
from streamvid.dataset.shard_files import ShardFiles, fetch_table, read_table
from streamvid.dataset.tables import usable
from streamvid.errors import DatasetError, StreamvidError
from streamvid.inspection.checks import by_shard
from streamvid.storage import filesystem
from streamvid.storage.explain import AccessRefused
from streamvid.storage.retry import Retry
from streamvid.storage.url import join

_SHARD_FILE: Final = re.compile(rf"([0-9]{{8}})\.({'|'.join(SHARD_EXTENSIONS)})")
_NAMED: Final = 5
"""The most shards that a message names; any further ones are counted."""


def notes(path: str, manifest: Manifest) -> Iterator[str]:
    """Files beside the dataset that readers ignore, as far as the storage lists them: most web servers do not, nor do
    buckets that give objects alone. A missing folder is reported as a problem."""
    files: list[str] = []
    known: set[str] = set()
    with suppress(DatasetError):
        known = {entry.name for revision in (manifest, *kept_manifests(path)) for entry in revision.shards}
        files = filesystem.list_files(join(path, SHARD_FOLDER)) if manifest.shards else []
    matches = (_SHARD_FILE.fullmatch(file.rpartition("/")[2]) for file in files)
    strays = sorted({match.group(1) for match in matches if match} - known)
    if strays:
        yield (
            f"{SHARD_FOLDER}/ holds {named(strays)}, not named in dataset.json: "
            "left from a pack that has not finished, or of another version of the dataset"
        )
    unfinished = False
    with suppress(AccessRefused):  # such a bucket refuses what is not there
        unfinished = filesystem.exists(join(path, UNFINISHED_FILE))
    if unfinished:
        yield f"there is {UNFINISHED_FILE}: a pack to this destination is running or was interrupted"


def named(shards: Sequence[str]) -> str:
    """The names of some shards, for messages."""
    more = f" and {len(shards) - _NAMED:,} more" if len(shards) > _NAMED else ""
    return f"shard{'s' if len(shards) > 1 else ''} {', '.join(shards[:_NAMED])}{more}"


def check_tables(path: str, manifest: Manifest) -> Iterator[str]:
    """The problems of the tables, in words. Shards that cannot be read are left to other checks.

    Args:
        path: folder or URL of the dataset.
    """
    yield from _check_others(path, manifest)
    good = dict(usable(manifest.tables, manifest.shards))
    stop, retry = threading.Event(), Retry()
    for table in manifest.tables:
        if table not in good:
            yield f"{table.files[0]} is not of the shards that {FILE_NAME} says"
            continue
        entries = manifest.shards[good[table]]
        try:
            parts = [
                read_table(fetch_table(path, sha256, cache=None, retry=retry, stop=stop), sha256, entries, texts=texts)
                for sha256, texts in ((table.sha256, False), (table.texts, True))
            ]
        except DatasetError as error:
            yield str(error)
            continue
        for entry, end in zip(entries, itertools.accumulate(entry.clips for entry in entries), strict=True):
            try:
                whole = ShardFiles(path, entry, None).read_scalars(check_sha256=True, retry=retry, stop=stop)
            except DatasetError:
                continue
            for file, part in zip(table.files, parts, strict=True):
                found, own = part.slice(end - entry.clips, entry.clips), whole.select(part.column_names)
                if not found.equals(own) and _content(found) != _content(own):
                    yield f"{file} has other rows than shard {entry.name}: write it anew"


def forgotten_by_shard(path: str, manifest: Manifest) -> list[tuple[int, ...]]:
    """For each shard the forgotten clips, by their numbers in it; none if the table is damaged, which `check_tables`
    reports."""
    try:
        return by_shard(manifest, read_forgotten(path, manifest, Retry()))
    except StreamvidError:
        return [()] * len(manifest.shards)


def _check_others(path: str, manifest: Manifest) -> Iterator[str]:
    """The problems of the table of forgotten clips and of the overlays, in words."""
    with tempfile.TemporaryDirectory(prefix="streamvid-verify-") as folder:
        try:
            read_forgotten(path, manifest, Retry())
        except StreamvidError as error:
            yield str(error)
        for overlay in manifest.overlays:
            try:
                local_file(join(path, overlay.file), Path(folder) / overlay.sha256, overlay.sha256)
            except StreamvidError as error:
                yield str(error)


def _content(table: pa.Table) -> bytes:
    """A value that is equal for equal tables, also if numbers are NaN."""
    stream = io.BytesIO()
    pq.write_table(table.combine_chunks(), stream)
    return stream.getvalue()
