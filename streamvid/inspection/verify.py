"""Checks a dataset from end to end: sizes, checksums, tar structure, indexes, packets, and on request every frame."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from streamvid.errors import DatasetError, InputError
from streamvid.inspection.checks import check_clip, check_idx, check_tar
from streamvid.packing.progress import Progress
from streamvid.packing.workers import WorkerCrashError, Workers
from streamvid.store import storage
from streamvid.store.clips import ClipTable, ShardIndex, clip_table, read_index, read_scalars
from streamvid.store.dataset import read_manifest
from streamvid.store.manifest import SHARD_EXTENSIONS, Manifest, ShardEntry
from streamvid.store.paths import local_path


@dataclass(frozen=True)
class Problem:
    """Something that is not as docs/format.md says. `clip` is a key, or "" if it concerns the shard as a whole."""

    shard: str
    clip: str
    what: str


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found.

    Attributes:
        path: the dataset.
        manifest: its dataset.json.
        decoded: whether every frame was decoded.
        problems: in the order of shards and clips; empty if all is well.
        elapsed: seconds it took.
    """

    path: str
    manifest: Manifest
    decoded: bool
    problems: tuple[Problem, ...]
    elapsed: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True)
class _Checked:
    """What is known of a shard after its check."""

    problems: list[Problem]
    keys: list[str]
    seconds: float


def verify(
    path: str | os.PathLike[str], *, decode: bool = False, workers: int | None = None, progress: bool = True
) -> VerifyReport:
    """Check a dataset.

    Args:
        path: folder or URL; of a remote dataset, each shard is fetched to the temporary folder while it is checked.
        decode: decode every clip and compare its frames with the index.
        workers: processes, one per core by default. A shard is the work of one.
        progress: show a bar on a terminal.

    Raises:
        DatasetError: there is no dataset.json, or none that can be used.
        InputError: an option cannot be used.
    """
    if workers is not None and workers < 1:
        raise InputError(f"{workers} workers cannot verify anything: give 1 or more, or leave it out")
    started = time.monotonic()
    path = os.fspath(path)
    manifest = read_manifest(path)
    cores = len(os.sched_getaffinity(0))
    count = min(workers or cores, max(1, len(manifest.shards)))
    # Fewer shards than cores: the decoders of each get what is left over.
    threads = max(1, (workers or cores) // count)
    problems: list[Problem] = []
    keys: Counter[str] = Counter()
    seconds = 0.0
    complete = True
    with Workers(count) as pool, Progress("verifying", manifest.clips, enabled=progress) as bar:
        futures = [pool.submit(_check_shard, path, entry, decode, threads) for entry in manifest.shards]
        for entry, future in zip(manifest.shards, futures, strict=True):
            try:
                checked = future.result()
            except WorkerCrashError as crash:
                checked = _Checked([Problem(entry.name, "", f"checking it crashes FFmpeg ({crash})")], [], 0.0)
            problems += checked.problems
            keys.update(checked.keys)
            seconds += checked.seconds
            complete = complete and len(checked.keys) == entry.clips
            bar.advance(entry.clips, note=f"{len(problems)} problems" if problems else "")
    problems += [Problem("", key, f"{count} clips have this key") for key, count in keys.items() if count > 1]
    if complete and abs(seconds - manifest.seconds) > 1e-3 + 1e-6 * seconds:
        problems.append(
            Problem("", "", f"dataset.json says {manifest.seconds} seconds, the clips add up to {seconds:.6f}")
        )
    return VerifyReport(path, manifest, decode, tuple(problems), time.monotonic() - started)


def _check_shard(path: str, entry: ShardEntry, decode: bool, threads: int) -> _Checked:
    """In a worker process: all checks of one shard."""
    problems: list[Problem] = []

    def report(what: str, clip: str = "") -> None:
        problems.append(Problem(entry.name, clip, what))

    with _local_files(path, entry) as files:
        for extension, problem in _check_files(files, entry).items():
            report(f"{entry.name}.{extension}: {problem}")
        opened = _open_rows(files, entry, report)
        if opened is None:
            return _Checked(problems, [], 0.0)
        clips, index = opened
        if "idx" in files:
            for what, row in check_idx(files["idx"].read_bytes(), clips):
                report(what, clips.key[row] if row is not None else "")
        if "tar" in files:
            for what, row in check_tar(files["tar"], clips):
                report(what, clips.key[row] if row is not None else "")
            with files["tar"].open("rb") as tar:
                for row in range(len(clips)):
                    frames = None if index is None else index.clip(row)
                    for what in check_clip(tar, entry.bytes, clips, row, frames, decode=decode, threads=threads):
                        report(what, clips.key[row])
    return _Checked(problems, clips.key, float(clips.seconds.sum()))


@contextmanager
def _local_files(path: str, entry: ShardEntry) -> Iterator[dict[str, Path]]:
    """The shard's files by extension, as local files; those that are not there are left out."""
    with tempfile.TemporaryDirectory(prefix="streamvid-verify-") as folder:
        files: dict[str, Path] = {}
        for extension in SHARD_EXTENSIONS:
            source = storage.join(path, entry.file(extension))
            if storage.is_local(source):
                files[extension] = Path(local_path(source))
            elif storage.exists(source):
                files[extension] = Path(folder) / f"{entry.name}.{extension}"
                storage.get_file(source, files[extension])
        yield {extension: file for extension, file in files.items() if file.is_file()}


def _check_files(files: dict[str, Path], entry: ShardEntry) -> dict[str, str]:
    """What is wrong with size and checksum, by extension."""
    wanted = {"tar": entry.sha256, "idx": entry.idx_sha256, "parquet": entry.parquet_sha256}
    wrong: dict[str, str] = {}
    for extension, checksum in wanted.items():
        if extension not in files:
            wrong[extension] = "missing"
            continue
        size = files[extension].stat().st_size
        if extension == "tar" and size != entry.bytes:
            wrong[extension] = f"{size} bytes instead of {entry.bytes}"
            continue
        with files[extension].open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != checksum:
                wrong[extension] = "its SHA-256 is not the one in dataset.json"
    return wrong


def _open_rows(
    files: dict[str, Path], entry: ShardEntry, report: Callable[[str], None]
) -> tuple[ClipTable, ShardIndex | None] | None:
    """The shard's rows and, if they can be read as well, its frame indexes."""
    if "parquet" not in files:
        return None
    source = os.fspath(files["parquet"])
    try:
        clips = clip_table([read_scalars(source, entry)], [entry])
    except DatasetError as error:
        report(str(error))
        return None
    try:
        return clips, read_index(source, entry, clips, 0)
    except DatasetError as error:
        report(str(error))
        return clips, None
