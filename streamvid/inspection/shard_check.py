"""Checks one shard of a dataset: its files, indexes, tar, and clips, in a worker process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.consolidated import read_rows, write_rows
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.roots import Bounds
from streamvid.dataset.schema import BLOCK, EXTENSIONS
from streamvid.dataset.shard_rows import read_scalars, row_blocks
from streamvid.dataset.table_cache import in_memory
from streamvid.errors import DatasetError
from streamvid.inspection.checks import (
    Read,
    check_clip,
    check_fields,
    check_headers,
    check_idx,
    check_index,
    check_packets_file,
    check_place,
    check_sha256,
    check_tar,
    or_unreadable,
    source_of_shard,
)
from streamvid.inspection.stored_checksums import fill_shard
from streamvid.storage import filesystem
from streamvid.storage.ranges import read_ranges
from streamvid.storage.regular_file import MAX_BYTES
from streamvid.storage.retry import Retry
from streamvid.storage.url import is_local, join, local_path
from streamvid.video.frame_index import FrameIndex


@dataclass(frozen=True)
class Problem:
    """A deviation from docs/format.md.

    Attributes:
        shard: the shard's name; "" for a problem of the whole dataset.
        clip: the clip's key; "" for a problem of the whole shard.
        what: the problem, in words.
    """

    shard: str
    clip: str
    what: str


@dataclass(frozen=True)
class ShardTask:
    """The check of a shard by a worker process.

    Attributes:
        path: of the dataset.
        entry: the shard's entry in dataset.json.
        rows: numbers of the sampled clips; None: all clips and the whole tar.
        decode: whether to decode the clips.
        threads: number of clips that are checked at the same time.
        roots, bounds: locations of clips in place; see `streamvid.dataset.shard_files.ShardFiles`.
        fill: a folder for the shards' new files with missing checksums added; "": none are added.
        work: a folder for temporary files, which outlives a killed worker; None: the system's temporary folder.
        unread: clips that are not decoded, and, in place, not read either.
    """

    path: str
    entry: ShardEntry
    rows: tuple[int, ...] | None
    decode: bool
    threads: int
    roots: tuple[str, ...] = ()
    bounds: Bounds = field(default_factory=Bounds)
    fill: str = ""
    work: str | None = None
    unread: Collection[int] = ()


@dataclass(frozen=True)
class CheckedShard:
    """The result of checking a shard.

    Attributes:
        problems: problems of the shard and its clips.
        keys: keys of its clips; empty if they cannot be read.
        seconds: total duration of its clips.
        foreign: whether the checksums of both idx and Parquet differ from those in dataset.json.
        filled: number of clips whose missing checksums of packets are in the shard's new files.
    """

    problems: list[Problem]
    keys: list[str]
    seconds: float
    foreign: bool = False
    filled: int = 0


def check_shard(task: ShardTask) -> CheckedShard:
    """Check one shard, in a worker process."""
    entry = task.entry
    problems: list[Problem] = []
    count = 0

    def report(what: str, clip: str = "") -> None:
        problems.append(Problem(entry.name, clip, what))

    with _local_files(task) as files:
        wrong = _check_files(files, task)
        for extension, problem in wrong.items():
            report(f"{entry.name}.{extension}: {problem}")
        foreign = {"idx", "parquet"} <= set(wrong) & set(files)
        opened = _open_rows(files, entry, report)
        if opened is None:
            return CheckedShard(problems, [], 0.0, foreign)
        clips, checksums = opened
        for at in check_packets_file(clips, entry.packets_bytes):
            report("the frame indexes in the .packets file are not one after the other", clips.key[at])
        wrong_rows = [*check_idx(files["idx"], clips)] if "idx" in files else []
        if task.rows is None and "tar" in files:
            wrong_rows += check_tar(files["tar"], clips)
        for what, row in wrong_rows:
            report(what, clips.key[row] if row is not None else "")
        source = None if entry.has_tar else source_of_shard(task.path, entry, clips, task.roots, task.bounds)
        if {"tar", "packets"} & set(files) and not (task.rows is not None and "tar" in wrong):
            rows = range(len(clips)) if task.rows is None else task.rows
            filled = {}
            with ThreadPoolExecutor(task.threads) as threads:
                check = partial(or_unreadable, partial(_check_row, task, files, clips, checksums, source))
                for row, (found, index) in zip(rows, threads.map(check, rows), strict=True):
                    for what in found:
                        report(what, clips.key[row])
                    if index is not None and not found:
                        filled[row] = index
            if filled and task.fill and not wrong:
                fill_shard(files, clips, filled, Path(task.fill, entry.name))
                count = len(filled)
    return CheckedShard(problems, clips.key[:], float(clips.seconds.sum()), foreign, count)


def _check_row(
    task: ShardTask, files: dict[str, Path], clips: ClipTable, checksums: list[str], source: ClipSource | None, row: int
) -> tuple[list[str], FrameIndex | None]:
    """The problems of a clip; and its index, if checksums were added to it."""
    found: list[str] = []
    index = filled = None
    decode = task.decode and row not in task.unread
    if not clips.mp4_size[row] or (source is not None and row in task.unread):
        return [], None  # purged, or in a file that may have been replaced
    if "packets" in files:
        stored = _read_local(files["packets"], int(clips.index_offset[row]), int(clips.index_size[row]))
        index, found = check_index(stored, clips, row)
    if "tar" in files or (task.rows is not None and task.entry.has_tar):
        read = _reader(task, files, clips, row)
        if task.rows is not None:
            found += check_headers(read, clips, row)
        found += check_clip(read, clips, row, index, sha256=checksums[row], decode=decode)
    if source is not None and index is not None:
        wrong, known = check_place(source, row, index, decode=decode)
        found += wrong
        filled = known if (known.crc32c != index.crc32c).any() else None
    return found, filled


def _reader(task: ShardTask, files: dict[str, Path], clips: ClipTable, row: int) -> Read:
    """A reader of the local tar; for a remote tar, of one clip's files and headers, which are fetched together."""
    if "tar" in files:
        return partial(_read_local, files["tar"])
    url = join(task.path, task.entry.file("tar"))
    starts = [int(getattr(clips, f"{kind}_offset")[row]) - BLOCK for kind in EXTENSIONS]
    sizes = [int(getattr(clips, f"{kind}_size")[row]) + BLOCK for kind in EXTENSIONS]
    blocks = read_ranges([(url, start, start + size) for start, size in zip(starts, sizes, strict=True)], retry=Retry())

    def read(start: int, size: int) -> bytes:
        for first, block in zip(starts, blocks, strict=True):
            if first <= start < first + max(1, len(block)):
                return block[start - first : start - first + size]
        return b""

    return read


def _read_local(path: Path, start: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(size)


@contextmanager
def _local_files(task: ShardTask) -> Iterator[dict[str, Path]]:
    """The files of a shard by extension, remote ones fetched; without missing files and tars that are only sampled."""
    entry = task.entry
    with tempfile.TemporaryDirectory(prefix="streamvid-verify-", dir=task.work) as folder:
        files: dict[str, Path] = {}
        for extension in entry.checksums:
            source = join(task.path, entry.file(extension))
            if is_local(source):
                files[extension] = Path(local_path(source))
            elif (extension != "tar" or task.rows is None) and filesystem.exists(source):
                files[extension] = Path(folder) / f"{entry.name}.{extension}"
                filesystem.get_file(source, files[extension])
        yield {extension: file for extension, file in files.items() if file.is_file()}


def _size(files: dict[str, Path], task: ShardTask, extension: str) -> int | None:
    """Size of a file of the shard in bytes; None if it is missing."""
    if extension in files:
        return files[extension].stat().st_size
    source = join(task.path, task.entry.file(extension))
    if is_local(source) or not filesystem.exists(source):
        return None
    return filesystem.size(source)


def _check_files(files: dict[str, Path], task: ShardTask) -> dict[str, str]:
    """Problems of size and checksum, by extension. The checksum of a sampled tar is not computed."""
    entry = task.entry
    wrong: dict[str, str] = {}
    for extension, checksum in entry.checksums.items():
        size = _size(files, task, extension)
        if size is None:
            wrong[extension] = "missing"
        elif size != entry.sizes.get(extension, size):
            wrong[extension] = f"{size} bytes instead of {entry.sizes[extension]}"
        elif extension != "tar" and size > MAX_BYTES:
            wrong[extension] = f"{size} bytes, more than any shard needs"
            files.pop(extension)
        elif (extension != "tar" or task.rows is None) and (problem := check_sha256(files[extension], checksum)):
            wrong[extension] = problem
    return wrong


def _open_rows(
    files: dict[str, Path], entry: ShardEntry, report: Callable[..., None]
) -> tuple[ClipTable, list[str]] | None:
    """The rows of the shard, and the SHA-256 of its clips; None if they cannot be read."""
    if "parquet" not in files:
        return None
    source = os.fspath(files["parquet"])
    try:
        table = read_scalars(source, entry, checksums=True)
        content = in_memory(lambda path: write_rows(path, row_blocks([table], [entry]), [entry]))
        clips, _ = read_rows(content, [entry])
    except DatasetError as error:
        report(str(error))
        return None
    for what, row in check_fields(table, clips):
        report(what, clips.key[row] if row is not None else "")
    return clips, table["sha256"].to_pylist()
