"""Verifies a dataset: its shards, each in a worker process, and the tables of all."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from streamvid.checks import MAX_WORKERS, integer, is_real, suggest_keywords
from streamvid.dataset.manifest import Manifest, ShardEntry
from streamvid.dataset.revisions import dataset_path, read_manifest
from streamvid.dataset.roots import Bounds, given_roots, resolve_roots
from streamvid.errors import InputError
from streamvid.host import usable_cores
from streamvid.inspection.beside import check_tables, forgotten_by_shard, named, notes
from streamvid.inspection.checks import sampled
from streamvid.inspection.shard_check import CheckedShard, Problem, ShardTask, check_shard
from streamvid.inspection.stored_checksums import publish_shards
from streamvid.loader.quarantine import quarantined
from streamvid.progress import Progress
from streamvid.workers import WorkerCrashError, Workers


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify`.

    Attributes:
        path: folder or URL of the dataset.
        manifest: its dataset.json.
        checked: number of clips whose files were checked. The structure of all shards is checked in any case.
        decoded: whether every frame of these clips was decoded.
        problems: the problems, in the order of shards and clips.
        notes: observations that are not problems.
        elapsed: duration of the call in seconds.
    """

    path: str
    manifest: Manifest
    checked: int
    decoded: bool
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    elapsed: float

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@suggest_keywords
def verify(
    path: str | os.PathLike[str],
    *,
    decode: bool = False,
    sample: float | None = None,
    seed: int = 0,
    quarantine: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    progress: bool = True,
    roots: Sequence[str | os.PathLike[str]] = (),
    revision: int | None = None,
) -> VerifyReport:
    """Check a dataset. The packets of clips that `streamvid index --fast` has not read get their checksums.

    Args:
        path: folder or URL; shards of a remote dataset are fetched to the temporary folder while they are checked.
        decode: decode every frame of every clip as a loader does, and report the frames that fail.
        sample: share of clips to check, above 0 and up to 1, drawn at random. The idx and Parquet files of all shards
            are then checked completely, but only the drawn clips are read from tars.
        seed: seed of the sample.
        quarantine: check and decode only the clips that a run's quarantine names: one of its files, or the folder.
            Shards without such clips are not checked.
        workers: number of processes, each of which checks a shard at a time; default: one per core.
        progress: show a progress bar if stderr is a terminal.
        roots, revision: as in `Dataset.open`.

    Raises:
        DatasetError: dataset.json is missing or damaged.
        InputError: an option is out of range.
    """
    if workers is not None:
        integer(workers, "workers", most=MAX_WORKERS)
    if sample is not None and not (is_real(sample) and 0 < sample <= 1):
        raise InputError(f"a sample of {sample!r} is no share of the clips: give one above 0 and up to 1, such as 0.01")
    integer(seed, "seed", least=0, most=None)
    if quarantine is not None and sample is not None:
        raise InputError("a sample and a quarantine are different clips: give one of the two")
    started = time.monotonic()
    path = dataset_path(path)
    manifest = read_manifest(path, revision=revision)
    allowed = given_roots(roots)
    resolved = resolve_roots(path, manifest.roots, allowed)
    bounds = Bounds.of(path, resolved, allowed)
    cores = workers or usable_cores()
    count = min(cores, max(1, len(manifest.shards)))
    threads = max(1, cores // count)  # with fewer shards than cores, check several clips of a shard at a time
    drawn = None if sample is None else sampled(manifest, sample, seed)
    shards: Sequence[int] = range(len(manifest.shards))
    if quarantine is not None:
        decode, drawn = True, quarantined(manifest, quarantine)
        shards = [s for s in shards if drawn[s]]
    unread = forgotten_by_shard(path, manifest) if quarantine is None else [()] * len(manifest.shards)
    problems: list[Problem] = []
    keys: Counter[str] = Counter()
    seconds = 0.0
    foreign: list[str] = []
    told: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="streamvid-verify-") as work,
        Workers(count, work=work) as pool,
        Progress("verifying", manifest.clips, enabled=progress) as bar,
    ):
        fill = work if revision is None else ""
        task = partial(ShardTask, decode=decode, threads=threads, roots=resolved, bounds=bounds, fill=fill, work=work)
        tasks = [task(path, manifest.shards[s], drawn[s] if drawn else None, unread=unread[s]) for s in shards]
        filled = 0
        for entry, checked in _check_all(tasks, pool):
            problems += checked.problems
            keys.update(checked.keys)
            seconds += checked.seconds
            foreign += [entry.name] if checked.foreign else []
            filled += checked.filled
            bar.advance(entry.clips, note=f"{len(problems)} problems" if problems else "")
        if filled:
            told.append(publish_shards(path, manifest, Path(work), filled))
    problems += [Problem("", key, f"{count} clips have this key") for key, count in keys.items() if count > 1]
    if keys.total() == manifest.clips and abs(seconds - manifest.seconds) > 1e-3 + 1e-6 * seconds:
        sums = f"dataset.json says {manifest.seconds} seconds, the clips add up to {seconds:.6f}"
        problems.append(Problem("", "", sums))
    if drawn is None:
        problems += [Problem("", "", what) for what in check_tables(path, manifest)]
    if foreign:
        these = f"neither idx nor parquet of {named(foreign)} are those in dataset.json"
        problems.append(Problem("", "", f"{these}: it is older or newer than the shards"))
    return VerifyReport(
        path=path,
        manifest=manifest,
        checked=manifest.clips if drawn is None else sum(map(len, drawn)),
        decoded=decode,
        problems=tuple(problems),
        notes=(*told, *notes(path, read_manifest(path, revision=revision))),
        elapsed=time.monotonic() - started,
    )


def _check_all(tasks: Sequence[ShardTask], workers: Workers) -> Iterator[tuple[ShardEntry, CheckedShard]]:
    """The shards' entries and results, in order. A shard whose check ends its process has that as its only problem."""
    futures = [workers.submit(check_shard, task) for task in tasks]
    for task, future in zip(tasks, futures, strict=True):
        try:
            checked = future.result()
        except WorkerCrashError as crash:
            how = "the process that checks it was killed" if crash.from_outside else "checking it crashes FFmpeg"
            checked = CheckedShard([Problem(task.entry.name, "", f"{how} ({crash})")], [], 0.0)
        yield task.entry, checked
