"""Packs groups on this machine: worker processes make clips, and this process writes them to shards in order.

Ray tasks run the same function for one group each.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from streamvid.errors import DatasetError, VideoError
from streamvid.packing.clip_rows import place_columns
from streamvid.packing.job_spec import GroupTask, PackJob
from streamvid.packing.journal import Journal, Notice, Record, Rejected, merged
from streamvid.packing.keys import clip_key
from streamvid.packing.options import PreparedClip, RejectedCut
from streamvid.packing.process_source import Outcome, process_source, process_sources
from streamvid.packing.shard_writer import ShardWriter
from streamvid.packing.source_video import SourceVideo
from streamvid.storage.client import in_s3
from streamvid.storage.url import is_local
from streamvid.video.stored_clip import CHANGED
from streamvid.workers import WorkerCrashError, Workers, WorkerStuckError

log = logging.getLogger(__name__)

_AHEAD: Final = 2
"""Videos per worker that are in progress or wait to be written; bounds the space of temporary files."""
_SIDE_BY_SIDE: Final = 16
"""Videos that a worker takes at once, where it does little but wait for a storage."""
_LEAST_LIMIT_S: Final = 6 * 3600.0
_BYTES_PER_S: Final = 10_000
"""Time limit of a video: six hours and a second for every 10 kB, longer than any encoder takes."""

Advance = Callable[[int, int, int, int, int], None]
"""Called after finished videos: their number and file bytes, the number and bytes of their clips, and how many videos
were rejected."""


def pack_groups(
    job: PackJob, tasks: Iterable[GroupTask], destination: str, folder: Path, *, workers: int, advance: Advance
) -> Iterator[Record]:
    """Pack groups, one after the other, and yield the record of every finished shard.

    Args:
        tasks: the groups, or the rests of them; iterated lazily.
        destination: folder or object-store prefix for shards and records.
        folder: a local one for temporary files.
        workers: number of processes that read videos.

    Raises:
        OSError, StreamvidError: the machine or the storage fails.
        FinishedElsewhereError: another process has finished this pack.
    """
    journal = Journal(destination, job.fingerprint, retry=None if is_local(destination) else job.retry)
    with closing(_process(job, tasks, workers, folder)) as results:
        for task, group in itertools.groupby(results, lambda result: result[0].task):
            with closing(_GroupWriter(job, task, journal, destination, folder)) as writer:
                for source, outcome in group:
                    yield from writer.add(source.number, source.video, outcome)
                    resumed = task.cursor.clip if source.number == task.cursor.source else 0
                    advance(source.video.videos, source.video.size, *_counts(outcome, resumed))
                yield writer.commit(None)


class _GroupWriter:
    """Writes the clips of a group to shards."""

    def __init__(self, job: PackJob, task: GroupTask, journal: Journal, destination: str, folder: Path) -> None:
        self._job, self._task, self._journal = job, task, journal
        self._destination, self._folder = destination, folder
        self._part = task.cursor.part
        self._roots = {root: number for number, root in enumerate(job.roots)}
        self._writer: ShardWriter | None = None
        self._seconds = 0.0
        self._rejected: list[Rejected] = []
        self._notices: list[Notice] = []

    def add(self, number: int, source: SourceVideo, outcome: Outcome) -> Iterator[Record]:
        """Add the clips of source `number`, or the reason of its rejection. Yields the records of full shards."""
        if isinstance(outcome, str):
            self._reject(source, outcome)
            return
        start = self._task.cursor
        first = next((clip for clip, prepared in enumerate(outcome) if isinstance(prepared, PreparedClip)), None)
        for clip, prepared in enumerate(outcome):
            if number == start.source and clip < start.clip:
                continue  # the clip is in a finished shard
            if isinstance(prepared, RejectedCut):
                self._reject(source, prepared.reason)
                continue
            key, name = prepared.key or clip_key(source.key, prepared.suffix), prepared.source or source.name
            assert not isinstance(prepared.label, str), "labels are class numbers by now"
            if self._job.options.in_place and prepared.place is None:
                prepared = replace(prepared, place=place_columns(source, self._roots[source.root]))
            last = self._part + 1 == self._task.group.names
            if self._writer and not last and self._writer.is_full(key, name, prepared, self._job.shard_size):
                yield self.commit((number, clip))
            self._writer = self._writer or self._open_writer()
            try:
                self._writer.add(key, name, prepared)
            except VideoError as error:
                if source.needed:
                    raise _lost(source, str(error)) from error
                self._reject(source, str(error))
                if not self._writer.clips:
                    self.close()
                    self._writer = None
                continue
            if clip == first:
                self._notices.extend(Notice(text, 1, source.name) for text in prepared.clip.remarks)
            self._seconds += prepared.clip.duration * prepared.clip.time_base[0] / prepared.clip.time_base[1]

    def _reject(self, source: SourceVideo, reason: str) -> None:
        """Note why a source, or a clip of it, is left out."""
        log.info("rejected %s: %s", source.name, reason)
        self._rejected.append(Rejected(source.name, reason))

    @property
    def _number(self) -> int:
        """Of the shard that is written."""
        return self._task.group.first + self._part

    def _open_writer(self) -> ShardWriter:
        return ShardWriter(
            self._number,
            self._folder,
            metadata=self._task.metadata,
            retry=self._job.retry,
            upload=partial(self._journal.upload, self._number) if in_s3(self._destination) else None,
            in_place=bool(self._job.options.in_place),
        )

    def commit(self, next_start: tuple[int, int] | None) -> Record:
        """Finish the shard, if it has a clip; returns its record.

        Args:
            next_start: (source, clip) with which the next shard begins; None after the group's last.
        """
        self._journal.check()
        entry = None if self._writer is None else self._writer.commit(self._destination)
        record = Record(self._number, entry, self._seconds, tuple(self._rejected), next_start, merged(self._notices))
        self._journal.write(record)
        self._writer, self._seconds, self._rejected, self._notices = None, 0.0, [], []
        self._part += 1
        return record

    def close(self) -> None:
        """Close an unfinished shard."""
        if self._writer is not None:
            self._writer.close()


def _counts(outcome: Outcome, resumed: int) -> tuple[int, int, int]:
    """Number of clips, their bytes, and number of rejected cuts or videos, without those of finished shards."""
    if isinstance(outcome, str):
        return 0, 0, 1
    outcome = outcome[resumed:]
    made = [prepared for prepared in outcome if isinstance(prepared, PreparedClip)]
    return len(made), sum(int(prepared.clip.index.size.sum()) for prepared in made), len(outcome) - len(made)


def _if_unchanged(outcome: Outcome) -> Outcome:
    """The clips of a source, or a rejection if its file, which is copied now, was changed after it was read: that is no
    reason to end the pack, which could not be resumed, as its videos would be others."""
    clips = [] if isinstance(outcome, str) else [made.clip for made in outcome if isinstance(made, PreparedClip)]
    return CHANGED if any(clip.is_changed() for clip in clips) else outcome


def _of_crash(crash: WorkerCrashError) -> str:
    """Why a source is rejected whose process ended."""
    if isinstance(crash, WorkerStuckError):
        return f"reading it gets FFmpeg stuck ({crash})"
    if crash.from_outside:
        return f"its process was killed ({crash}), also while it ran alone, as where memory runs out"
    return f"reading it crashes FFmpeg ({crash})"


def _lost(source: SourceVideo, reason: str) -> DatasetError:
    """The error of a source without which there is no dataset."""
    return DatasetError(f"{source.name}: {reason}; run the command again")


@dataclass(frozen=True)
class _Source:
    """A source of a task, its number, and a folder for its temporary files."""

    task: GroupTask
    number: int
    video: SourceVideo
    folder: Path


def _process(
    job: PackJob, tasks: Iterable[GroupTask], workers: int, folder: Path
) -> Generator[tuple[_Source, Outcome], None, None]:
    """Run `process_source` on all sources in worker processes, in order.

    The files of a source's clips are removed when the next result is asked for.
    """
    todo = (
        _Source(task, number, video, folder / f"clip-{number}")
        for task in tasks
        for number, video in enumerate(task.sources, task.cursor.source)
    )
    with Workers(workers, work=os.fspath(folder)) as pool:

        def submit(sources: Sequence[_Source]) -> Future[Sequence[Outcome]]:
            limit_s = _LEAST_LIMIT_S + sum(source.video.size for source in sources) / _BYTES_PER_S
            work = [(source.video, source.folder) for source in sources]
            return pool.submit(process_sources, process_source, work, job.options, job.retry, limit_s=limit_s)

        def next_ones() -> Iterator[tuple[list[_Source], Future[Sequence[Outcome]]]]:
            some = list(itertools.islice(todo, 1))
            if some and job.options.in_place == "tables" and not is_local(some[0].video.path):
                some += itertools.islice(todo, _SIDE_BY_SIDE - 1)
            if some:
                yield some, submit(some)

        alone: set[Path] = set()  # folders of sources whose process was killed: tried again with no other beside it
        pending = deque(some for _ in range(_AHEAD * workers) for some in next_ones())
        while pending:
            sources, future = pending.popleft()
            try:
                outcomes = future.result()
            except WorkerCrashError as crash:
                if len(sources) > 1:  # one of them is to blame
                    pending.extendleft(reversed([([source], submit([source])) for source in sources]))
                    continue
                if crash.from_outside and sources[0].folder not in alone:
                    alone.add(sources[0].folder)
                    wait([other for _, other in pending])
                    shutil.rmtree(sources[0].folder, ignore_errors=True)
                    pending.appendleft((sources, submit(sources)))
                    continue
                outcomes = [_of_crash(crash)]
            for source, outcome in zip(sources, map(_if_unchanged, outcomes), strict=True):
                if source.video.needed and isinstance(outcome, str):
                    raise _lost(source.video, outcome)
                yield source, outcome
                shutil.rmtree(source.folder, ignore_errors=True)
            pending.extend(next_ones())
