"""Removes the bytes of forgotten clips from shards and tables, by rewriting these, and from this machine's caches."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamvid.arrays import Int64
from streamvid.checksum import file_sha256
from streamvid.dataset import consolidated, row_texts
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.manifest import FILE_NAME, SHARD_EXTENSIONS, SHARD_FOLDER, Manifest, Overlay
from streamvid.dataset.overlays import LABEL, cache_key, local_file
from streamvid.dataset.revisions import (
    Base,
    change,
    kept_manifests,
    kept_revisions,
    read_manifest,
    table_files,
    table_name,
)
from streamvid.dataset.shard_files import ShardFiles
from streamvid.dataset.tables import usable
from streamvid.errors import DatasetError, InputError
from streamvid.packing.destination import REPORT_FILE, consolidated_files, work_folder
from streamvid.packing.revise import RewrittenShards, named_files
from streamvid.revising.rewrite import rewrite_shard
from streamvid.storage import filesystem
from streamvid.storage.cache_dir import user_cache_dir
from streamvid.storage.parquet import read_parquet
from streamvid.storage.threads import map_in_threads
from streamvid.storage.url import join, redact
from streamvid.text import first_line

_SHARD_FILE: Final = re.compile(rf"([0-9]{{8}})\.({'|'.join(SHARD_EXTENSIONS)})")


@dataclass(frozen=True)
class Caches:
    """The caches of this machine that may hold a dataset.

    Attributes:
        folders: cache folders of shards and of rows.
        rows: cache names of the rows and columns of all revisions that still exist.
    """

    folders: tuple[Path, ...]
    rows: frozenset[str]

    @classmethod
    def of(cls, base: Base, cache_dir: Path | None) -> Caches:
        """The user's cache folder and `cache_dir`, with the names for `base` and its older revisions."""
        names: set[str] = set()
        for manifest in (base.manifest, *kept_manifests(base.path)):
            signatures = [ShardFiles(base.path, entry, None).signature() for entry in manifest.shards]
            names.add(consolidated.cache_key(manifest.shards, signatures))
            names |= {
                row_texts.cache_key(table.texts, manifest.shards[at])
                for table, at in usable(manifest.tables, manifest.shards)
            }
            names |= {cache_key(overlay, name) for overlay in manifest.overlays for name, _ in overlay.columns}
        folders = set() if cache_dir is None else {cache_dir}
        with contextlib.suppress(InputError):  # without a home folder there is no cache of this user
            folders.add(user_cache_dir())
        return cls(tuple(sorted(folders)), frozenset(names))

    def forget(self, sums: Iterable[str]) -> None:
        """Remove the rows, and files by their SHA-256. Processes that have such a file open can still read it."""
        gone = {*sums, *self.rows}
        for folder in self.folders:
            with contextlib.suppress(OSError):
                for file in folder.iterdir():
                    if file.name.partition(".")[0] in gone:
                        file.unlink(missing_ok=True)


def purge_clips(base: Base, dataset: Dataset, forgotten: pa.Table, rows: Int64, caches: Caches) -> tuple[Manifest, int]:
    """Rewrite the files with these clips without them, publish that, and remove the old files.

    Args:
        forgotten: the table of forgotten clips, including these.
        rows: int64 [clips], ascending.

    Returns:
        the new manifest, and the number of rewritten shards.

    Raises:
        DatasetError: a shard is damaged, or a new one cannot be written. The dataset is unchanged.
    """
    shards = np.unique(dataset.clips.shard[rows]).tolist()
    with RewrittenShards(base) as new, work_folder(base.path) as work:
        for s in shards:
            entry, first = base.manifest.shards[s], dataset.rows(s).start
            here = rows[dataset.clips.shard[rows] == s] - first
            new.put(entry.name, rewrite_shard(base, entry, dict.fromkeys(here.tolist()), new.number(), work))
        overlays, tables = _without(base, rows, work)
        manifest = replace(
            base.manifest,
            overlays=overlays,
            oldest=base.manifest.revision + 1,
            change=change("forget --purge", len(rows)),
        )
        published = new.publish(manifest, forgotten=forgotten, tables=tables)
    sweep(base.path, published, caches)
    return published, len(shards)


def _without(base: Base, rows: Int64, work: Path) -> tuple[tuple[Overlay, ...], Mapping[str, Path]]:
    """The overlays without values for these rows, and the tables that had to be rewritten for that."""
    overlays: list[Overlay] = []
    tables: dict[str, Path] = {}
    for overlay in base.manifest.overlays:
        names = [name for name, _ in overlay.columns]
        if set(names) == {LABEL} or not (rows < overlay.rows).any():
            overlays.append(overlay)  # a purged clip keeps its class number: see `streamvid.revising.rewrite`
            continue
        path = work / "overlay.parquet"
        old = local_file(join(base.path, overlay.file), work / "old-overlay.parquet", overlay.sha256)
        try:
            _write_without(os.fspath(old), names, rows, path)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            shown = redact(join(base.path, overlay.file))
            raise DatasetError(f"{shown} cannot be rewritten: {first_line(error)}") from error
        sha256 = file_sha256(path)
        name = table_name("columns", base.manifest.revision + 1, sha256)
        tables[name] = path.rename(work / name)
        overlays.append(replace(overlay, file=name, sha256=sha256, bytes=tables[name].stat().st_size))
    return tuple(overlays), tables


def _write_without(old: str, names: Sequence[str], rows: Int64, path: Path) -> None:
    """Write columns of an overlay without the values of these rows. Raises Arrow's errors, OSError,
    ValueError and KeyError."""
    read_parquet(old, lambda *_: [])  # checks the file; what is read of it may be large
    done = 0
    with pq.ParquetFile(old) as parquet:
        schema = parquet.schema_arrow.empty_table().select(names).schema
        # Without compression if the old file has none, see `streamvid.storage.parquet_writer`.
        zstd = not parquet.num_row_groups or parquet.metadata.row_group(0).column(0).compression != "UNCOMPRESSED"
        compression = "zstd" if zstd else "none"
        with (
            open(path, "wb") as file,
            pq.ParquetWriter(file, schema, compression=compression, use_dictionary=zstd) as writer,
        ):
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group, columns=names).select(names)
                empty = np.isin(np.arange(done, done + len(table)), rows)
                places = pa.array(np.arange(len(table)), mask=empty)
                columns = [table[name].take(places) if name != LABEL else table[name] for name in names]
                writer.write_table(pa.table(columns, schema=schema))
                done += len(table)


def sweep(path: str, newest: Manifest, caches: Caches) -> None:
    """Remove all files of ended revisions, and files that killed changes left, but no others.

    Raises:
        DatasetError: the storage has lost the newest dataset.json, and so still needs these files.
        InputError: another process has replaced it, whose files these may be.
    """
    there = read_manifest(path)
    if there.revision < newest.revision:
        file = redact(join(path, FILE_NAME))
        raise DatasetError(
            f"the storage does not hold {file} of revision {newest.revision}, though it took it, but that of "
            f"{there.revision}: run this again"
        )
    if there.to_json() != newest.to_json():
        raise InputError(f"another process has changed the dataset at {redact(path)} meanwhile: run this again")
    older = kept_manifests(path)
    kept = [newest, *(manifest for manifest in older if manifest.revision >= newest.oldest)]
    named = named_files(kept)
    ended = [manifest for manifest in older if manifest.revision < newest.oldest]
    gone = [entry for manifest in ended for entry in manifest.shards if entry.name not in named]
    sums = {checksum for entry in gone for checksum in entry.checksums.values()}
    sums |= {overlay.sha256 for manifest in ended for overlay in manifest.overlays if overlay.file not in named}
    tables = {file for manifest in ended for table in manifest.tables for file in table.files} - named
    sums |= {Path(file).stem for file in tables}
    folder = join(path, SHARD_FOLDER)
    shards = (_SHARD_FILE.fullmatch(name) for name in filesystem.list_details(folder))
    files = [join(folder, name[0]) for name in shards if name and name[1] not in named]
    files += [join(path, name) for name in table_files(path) if name not in named]
    files += [file for file in consolidated_files(path) if file.removeprefix(join(path, "")) not in named]
    caches.forget(sums)
    # The manifests last: the next sweep needs them to complete one that was killed.
    map_in_threads(filesystem.remove_file, [*files, join(path, REPORT_FILE)])
    manifests = kept_revisions(path).items()
    map_in_threads(filesystem.remove_file, [file for number, file in manifests if number < newest.oldest])
