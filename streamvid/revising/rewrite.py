"""Rewrites a shard under a new name, replacing or emptying some clips; rows keep their numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from streamvid.dataset.forgotten import purged_name
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.overlays import local_file
from streamvid.dataset.revisions import Base
from streamvid.dataset.roots import Bounds, resolve_roots
from streamvid.dataset.schema import CATEGORIES, FIELD_PREFIX
from streamvid.errors import DatasetError
from streamvid.inspection.shard_check import ShardTask, check_shard
from streamvid.packing.clip_rows import Row
from streamvid.packing.shard_writer import NewShard
from streamvid.storage import filesystem
from streamvid.storage.parquet import read_parquet
from streamvid.storage.url import join

_COPY_BYTES: Final = 1 << 20
_KEPT: Final = (
    *("label", *CATEGORIES, "width", "height", "rotation", "time_base_num", "time_base_den", "duration"),
    *("frames", "packets", "random_access", "stsd"),
)
"""Columns of a purged clip that are kept, because the order of a run depends on them."""

Clip = tuple[Row, Callable[[], Iterator[bytes]], bytes]
"""The columns of a clip that take the place of another's, its MP4 in chunks, and its frame index."""


def rewrite_shard(
    base: Base,
    entry: ShardEntry,
    clips: Mapping[int, Clip | None],
    number: int,
    work: Path,
    *,
    roots: Sequence[str] | None = None,
) -> ShardEntry:
    """Rewrite a shard, and check the result. Tar and frame indexes of the old shard may be damaged, because clips that
    stay are checked one by one; their JSON is made anew from the Parquet file.

    Args:
        clips: by row in the shard, the replacement of a clip; None: its bytes are removed, and the row stays.
        work: a local folder for the new files, and for copies of a remote shard's files.
        roots: the dataset's new roots, if they change.

    Returns:
        the entry of the new shard, whose files have been written to the dataset.

    Raises:
        DatasetError: the Parquet file or a clip that stays is damaged, or the new shard cannot be written.
    """
    old = {
        extension: local_file(
            join(base.path, entry.file(extension)), work / f"old-{entry.name}.{extension}",
            sha256 if extension == "parquet" else None,
        )
        for extension, sha256 in entry.checksums.items()
        if extension != "idx"
    }  # fmt: skip
    table = read_parquet(os.fspath(old["parquet"]), least=1 << 30)
    metadata = [name for name in table.column_names if name.startswith(FIELD_PREFIX)]
    rows: list[Row] = table.drop_columns(metadata).to_pylist()
    name = f"{number:08d}"
    tar = (work / f"{name}.tar").open("wb", buffering=_COPY_BYTES) if entry.has_tar else None
    with closing(NewShard(name, work, tar)) as new:
        for number_here, row in enumerate(rows):
            given = clips.get(number_here, ())
            if given is None or not row["mp4_size"]:  # emptied now, or purged before
                new.add(_emptied(row, has_tar=entry.has_tar) if row["mp4_size"] else row)
                continue
            index = _range(old["packets"], row["index_offset"], row["index_size"])
            mp4 = iter([b""]) if tar is None else _range(old["tar"], row["mp4_offset"], row["mp4_size"])
            if given:
                columns, mp4_of, stored = given
                row, mp4, index = {**row, **columns}, mp4_of(), iter([stored])
            new.add(row, index, mp4)
        empty = {n for n, clip in clips.items() if clip is None}
        places = pa.array([None if n in empty else n for n in range(len(rows))], pa.int64())
        made = new.finish(table.select(metadata).take(places), table.drop_columns(metadata).schema.remove_metadata())
    made = replace(made, origin=entry.identity)
    for extension in made.checksums:
        filesystem.move_file(new.path(extension), join(base.path, made.file(extension)))
    # Files in place are not checked, because their bytes are not part of this dataset.
    stays = frozenset() if made.has_tar else frozenset(n for n in range(made.clips) if not clips.get(n))
    _verify(base, made, base.manifest.roots if roots is None else roots, stays)
    return made


def _emptied(row: Row, *, has_tar: bool) -> Row:
    """A row without values, except those on which the order of other clips depends."""
    empty: Row = {name: value if name in _KEPT else None for name, value in row.items()}
    empty |= {"key": purged_name(row["key"]), "source": purged_name(row["source"]), "meta": "{}", "sha256": ""}
    zeros = ("mp4_offset", "mp4_size", "json_offset", "json_size", "index_size", "index_blocks", "index_crc32c")
    empty |= dict.fromkeys(zeros, 0)
    return empty if has_tar else empty | {"root": 0, "file": "purged", "file_size": 0}


def _range(path: Path, start: int, size: int) -> Iterator[bytes]:
    """Bytes of a local file in chunks; fewer if it is shorter."""
    with path.open("rb") as file:
        file.seek(start)
        while size > 0 and (block := file.read(min(size, _COPY_BYTES))):
            yield block
            size -= len(block)


def _verify(base: Base, entry: ShardEntry, roots: Sequence[str], unread: frozenset[int]) -> None:
    resolved = resolve_roots(base.path, roots, roots)
    bounds = Bounds.of(base.path, resolved, roots)
    checked = check_shard(ShardTask(base.path, entry, None, False, 4, resolved, bounds, unread=unread))
    if checked.problems:
        problem = checked.problems[0]
        which = f"clip {problem.clip!r}" if problem.clip else f"shard {entry.name}"
        raise DatasetError(
            f"{which}, which was to stay unchanged, is damaged: {problem.what}; repair or forget it, too "
            "(streamvid verify lists all)"
        )
