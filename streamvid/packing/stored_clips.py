"""Clips of datasets as sources of a new dataset: their bytes, copied unchanged after a check, or only their
locations."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.columns import Columns
from streamvid.dataset.meta_columns import MetaColumns
from streamvid.dataset.schema import CATEGORIES, MAX_FILE_BYTES
from streamvid.dataset.shard_files import ShardFiles
from streamvid.fetch.clip_file import ClipFile
from streamvid.packing.options import Place, PreparedClip
from streamvid.packing.source_video import SourceVideo
from streamvid.storage.retry import Retry
from streamvid.storage.url import is_local, local_path
from streamvid.video.stored_clip import StoredClip, UnwrittenMp4

_SIDE_BY_SIDE: Final = 16
"""Clips of a remote dataset that a worker reads at once."""


@dataclass(frozen=True)
class ClipRun(SourceVideo):
    """Some clips of datasets, as one source. Worker processes get only these rows of the datasets.

    Attributes:
        clips: their rows, in the order in which they are written; `shard` is an index into `shards`.
        shards: the shards of these clips.
        keys: their keys in the new dataset.
        numbers: numbers of their rows of metadata.
        sums: SHA-256 of each MP4, "" if unknown.
        places: for each clip the columns with its location in place; empty if the clips are copied.
    """

    clips: ClipTable | None = None
    shards: tuple[ShardFiles, ...] = ()
    keys: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    sums: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()

    @property
    def videos(self) -> int:
        """Number of clips."""
        return len(self.keys)


def prepare_clips(run: ClipRun, folder: Path, retry: Retry) -> list[PreparedClip]:
    """The clips of a run, ready to be written.

    Args:
        folder: for clips that are not contiguous in a local file; created if needed, and removed by the caller.
        retry: for how long requests are repeated while the datasets' storage does not answer.

    Raises:
        ClipError: the bytes of a clip are not those that were stored, or are too many for a tar.
        DatasetError: a file cannot be read.
    """
    clips = run.clips
    assert clips is not None
    columns = Columns(clips, None, meta=MetaColumns)
    source = ClipSource("", clips, columns, None, run.shards, retry)

    def prepare(row: int) -> PreparedClip:
        place = run.places[row] if run.places else None
        if place is None:
            clip = _copy(source, row, run.sums[row], folder)
        else:
            clip = _stored_clip(source, row, Path(), ClipFile(source, row, "place"))
        label = int(clips.label[row])
        return PreparedClip(
            clip,
            "",
            (run.numbers[row],),
            {},
            label if label >= 0 else None,
            key=run.keys[row],
            source=clips.source[row],
            place=place,
        )

    source.indexes(range(len(clips)))  # read all frame indexes together, and keep them
    if source.is_local:
        return [prepare(row) for row in range(len(clips))]
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        return list(pool.map(prepare, range(len(clips))))


def _copy(source: ClipSource, row: int, sha256: str, folder: Path) -> StoredClip:
    """A clip whose bytes were read and checked."""
    file, path = ClipFile(source, row, sha256), source.location(row)
    if file.size > MAX_FILE_BYTES:
        what = f"it is {file.size / 2**30:.1f} GiB large, and a tar holds files below 8 GiB"
        raise source.clip_error(row, what, suspect="source")
    if file.stored and is_local(path):
        name = Path(local_path(path))
        try:
            status = os.stat(name)
        except FileNotFoundError:
            raise source.clip_error(row, "its file is gone", suspect="source") from None
        for _ in file.read():
            pass
        where = UnwrittenMp4(
            b"", np.array([source.clips.mp4_offset[row]]), np.array([file.size]), (status.st_size, status.st_mtime_ns)
        )
        return _stored_clip(source, row, name, file, sha256, where)
    folder.mkdir(parents=True, exist_ok=True)
    name = folder / f"{row}.mp4"
    with name.open("wb") as target:
        for chunk in file.read():
            target.write(chunk)
    return _stored_clip(source, row, name, file, sha256)


def _stored_clip(
    source: ClipSource, row: int, mp4: Path, file: ClipFile, sha256: str = "", unwritten: UnwrittenMp4 | None = None
) -> StoredClip:
    clips = source.clips
    return StoredClip(
        mp4=mp4,
        index=file.index,
        **{name: getattr(clips, name)[row] for name in CATEGORIES},
        width=int(clips.width[row]),
        height=int(clips.height[row]),
        rotation=int(clips.rotation[row]),
        duration=int(clips.duration[row]),
        time_base=(int(clips.time_base_num[row]), int(clips.time_base_den[row])),
        stsd=clips.stsds[clips.stsd_id[row]],
        sha256=sha256,
        unwritten=unwritten,
    )
