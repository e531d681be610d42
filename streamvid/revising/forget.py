"""`streamvid forget`: marks clips as forgotten, so that they are never delivered again, and removes their bytes on
request."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Int64
from streamvid.checks import suggest_keywords
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.forgotten import SCHEMA, digest, forgotten_rows, write_forgotten
from streamvid.dataset.revisions import Base, change, publish_revision
from streamvid.dataset.selection import given_keys, select_rows
from streamvid.errors import InputError
from streamvid.packing.revise import forgotten_clips, opened_to_change
from streamvid.storage.url import given_local_path

if TYPE_CHECKING:
    from streamvid.revising.purge import Caches

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ForgetReport:
    """The result of `forget`.

    Attributes:
        revision: the new revision.
        clips: number of newly forgotten clips.
        forgotten: number of all forgotten clips.
        purged: number of clips whose bytes were removed by this call.
        shards: number of shards that were rewritten for that.
        foreign: number of purged clips in files outside of the dataset, which are unchanged.
    """

    revision: int
    clips: int
    forgotten: int
    purged: int = 0
    shards: int = 0
    foreign: int = 0


@suggest_keywords
def forget(
    dataset: str | os.PathLike[str],
    keys: Sequence[str] | str | os.PathLike[str] | None = None,
    *,
    purge: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    roots: Sequence[str | os.PathLike[str]] = (),
) -> ForgetReport:
    """Forget clips: they are never delivered again. All others keep their places in the order, also in a resumed run.

    docs/revisions.md has the details.

    Args:
        dataset: a folder or URL.
        keys: keys of the clips: a list, or a file as in `streamvid.Subset`. With `purge`, None: all forgotten clips.
        purge: also remove their bytes from the dataset and from this machine's caches, which ends all older revisions.
            If a killed call is repeated, it resumes.
        cache_dir: folder in which loaders on this machine cache shards; default: the user's cache folder.
        roots: as in `Dataset.open`.

    Raises:
        InputError: a key is not in the dataset; another process is changing the dataset, or has changed it meanwhile.
        DatasetError: the dataset is damaged, or cannot be written. In all these cases it is unchanged.
    """
    if keys is None and not purge:
        raise InputError("no keys are given: name the clips to forget")
    folder = _cache_folder(cache_dir, purge=purge)
    with opened_to_change(dataset, roots) as (base, opened):
        table = forgotten_clips(base)
        table = table.take(np.unique(forgotten_rows(table, base.manifest), return_index=True)[1])
        rows = _rows(opened, table, keys)
        new = np.setdiff1d(rows, opened.forgotten)
        if len(new):
            table = pa.concat_tables([table, _tombstones(opened, new)])
        if purge:
            from streamvid.revising.purge import Caches, sweep  # imported here, because it takes a while

            caches = Caches.of(base, folder)
            chosen = opened.forgotten if keys is None else rows
            there = np.union1d(chosen, new)
            there = there[opened.clips.mp4_size[there] > 0]
            if len(there):
                return _purge(base, opened, table, there, len(new), caches)
            if not len(new):
                sweep(base.path, base.manifest, caches)
        if not len(new):
            return ForgetReport(base.manifest.revision, 0, len(table))
        named, data = write_forgotten(table, base.manifest.revision + 1)
        manifest = replace(base.manifest, forgotten=named, change=change("forget", len(new)))
        published = publish_revision(base, manifest, {named.file: data})
        return ForgetReport(published.revision, len(new), len(table))


def _rows(dataset: Dataset, table: pa.Table, keys: Sequence[str] | str | os.PathLike[str] | None) -> Int64:
    """int64: the rows of the clips. Keys of purged clips, which the dataset does not have any more, are ignored."""
    if keys is None:
        return np.empty(0, dtype=np.int64)
    gone = set(table.filter(pc.is_valid(table["purged"]))["key_sha256"].to_pylist())
    if not gone:
        return select_rows(dataset, keys=keys)
    return select_rows(dataset, keys=[key for key in given_keys(keys) if digest(key) not in gone])


def _tombstones(dataset: Dataset, rows: Int64) -> pa.Table:
    shards, places = zip(*map(dataset.place_in_shard, rows.tolist()), strict=True)
    now = datetime.now(UTC)
    none = [None] * len(rows)
    columns = [shards, places, none, [now] * len(rows), none, [digest(dataset.key(r)) for r in rows.tolist()]]
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)


def _purge(base: Base, dataset: Dataset, table: pa.Table, rows: Int64, new: int, caches: Caches) -> ForgetReport:
    at = forgotten_rows(table, base.manifest)
    field = SCHEMA.field("purged")
    purged = pc.if_else(pa.array(np.isin(at, rows)), pa.scalar(datetime.now(UTC), field.type), table["purged"])
    table = table.set_column(SCHEMA.names.index("purged"), field, purged)
    from streamvid.revising.purge import purge_clips

    published, shards = purge_clips(base, dataset, table, rows, caches)
    foreign = sum(not dataset.shards[s].has_tar for s in dataset.clips.shard[rows].tolist())
    return ForgetReport(published.revision, new, len(table), len(rows), shards, foreign)


def _cache_folder(cache_dir: str | os.PathLike[str] | None, *, purge: bool) -> Path | None:
    """The option as a path. Raises InputError if it is none, or has nothing to do."""
    if cache_dir is None:
        return None
    if not purge:
        raise InputError("cache_dir is where bytes are removed: give it with purge=True, or leave it out")
    folder = Path(given_local_path(cache_dir, "cache_dir"))
    if not folder.is_dir():
        log.warning("cache_dir: there is no folder %s, so that no copy of a clip is removed from it", folder)
    return folder
