"""Packs groups on this machine: worker processes make clips of videos, ahead of the one that writes them into shards.

The Ray engine runs the same, a group at a time, on many machines.
"""

from __future__ import annotations

import itertools
import logging
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from streamvid.errors import VideoError
from streamvid.packing.inputs import SourceVideo
from streamvid.packing.job import Job, Work, clip_key
from streamvid.packing.journal import Journal, Record, Rejected
from streamvid.packing.options import Piece, Refused
from streamvid.packing.process_source import process_source
from streamvid.packing.shard_writer import Described, ShardWriter
from streamvid.workers import WorkerCrashError, Workers, WorkerStuckError

log = logging.getLogger(__name__)

_AHEAD: Final = 2
"""Videos in work or waiting to be written, per worker: bounds the space that temporary files take."""
_LEAST_LIMIT_S: Final = 6 * 3600.0
_BYTES_PER_S: Final = 10_000
"""A video may take six hours and a second for every 10 kB: slower than any encoder, but not for ever."""


Advance = Callable[[int, int, int, int, int], None]
"""Told of videos that are done with: how many, the bytes of their files, the clips made of them and their bytes, and
how many of the videos were rejected."""


def pack_groups(
    job: Job,
    works: Iterable[Work],
    destination: str,
    folder: Path,
    *,
    workers: int,
    advance: Advance,
) -> Iterator[Record]:
    """Pack groups, one after the other, and give the record of every shard once it is there.

    Args:
        job: what to make.
        works: the groups, or what is left of them. Taken from when needed.
        destination: where shards and records go.
        folder: a local one for temporary files.
        workers: processes that read videos.
        advance: called after each video.

    Raises:
        OSError, StreamvidError: the machine or the storage is at fault.
        FinishedElsewhereError: another process has finished this pack.
    """
    commits = Journal(destination, job.fingerprint)
    with closing(_made(job, works, workers, folder)) as results:
        for work, group_results in itertools.groupby(results, lambda result: result.work):
            with _GroupWriter(job, work, commits, destination, folder) as writer:
                for result in group_results:
                    yield from writer.add(result.number, result.source, result.outcome)
                    advance(1, result.size, *_counts(result.outcome))
                yield writer.finish()


class _GroupWriter:
    """The clips of a group in, shards out. A context manager: leaving it closes what is open, finished or not."""

    def __init__(self, job: Job, work: Work, commits: Journal, destination: str, folder: Path) -> None:
        self._job, self._work, self._commits = job, work, commits
        self._destination, self._folder = destination, folder
        self._part = work.place.part
        self._writer: ShardWriter | None = None
        self._seconds = 0.0
        self._rejected: list[Rejected] = []

    def add(self, number: int, source: SourceVideo, outcome: Sequence[Piece | Refused] | str) -> Iterator[Record]:
        """The clips of source `number`, or why there are none. Gives the records of shards that became full."""
        if isinstance(outcome, str):
            log.info("rejected %s: %s", source.name, outcome)
            self._rejected.append(Rejected(source.name, outcome))
            return
        begin = self._work.place
        for clip, piece in enumerate(outcome):
            if number == begin.source and clip < begin.clip:
                continue  # is in a shard already
            if isinstance(piece, Refused):
                log.info("rejected a clip of %s: %s", source.name, piece.reason)
                self._rejected.append(Rejected(source.name, piece.reason))
                continue
            key = clip_key(source.key, piece.suffix)
            described = Described(key, source.name, _class_number(piece.label), piece.meta)
            if self._is_full(piece, described):
                yield self._commit((number, clip))
            if self._writer is None:
                self._writer = ShardWriter(self._work.group.first + self._part, self._folder, columns=self._job.columns)
            self._writer.add(piece.clip, described)
            self._seconds += piece.clip.duration * piece.clip.time_base[0] / piece.clip.time_base[1]

    def finish(self) -> Record:
        """The record of the group's last shard; of none, if there was no clip."""
        return self._commit(None)

    def _is_full(self, piece: Piece, described: Described) -> bool:
        if self._writer is None or self._part + 1 == self._work.group.names:
            return False
        return self._writer.size_with(piece.clip, described) > self._job.shard_size

    def _commit(self, following: tuple[int, int] | None) -> Record:
        self._commits.check()
        entry = None if self._writer is None else self._writer.commit(self._destination)
        number = self._work.group.first + self._part
        record = Record(number, entry, self._seconds, tuple(self._rejected), following)
        self._commits.write(record)
        self._writer, self._seconds, self._rejected = None, 0.0, []
        self._part += 1
        return record

    def __enter__(self) -> _GroupWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()


def _counts(outcome: Sequence[Piece | Refused] | str) -> tuple[int, int, int]:
    """Clips, their bytes, and what was rejected."""
    if isinstance(outcome, str):
        return 0, 0, 1
    made = [piece for piece in outcome if isinstance(piece, Piece)]
    return len(made), sum(piece.clip.mp4_bytes for piece in made), len(outcome) - len(made)


def _class_number(label: int | str | None) -> int | None:
    if isinstance(label, str):
        raise AssertionError("labels are class numbers by now")
    return label


@dataclass(frozen=True)
class _Result:
    """A source, and its clips or why there are none. The clips' files are gone when the next result is asked for."""

    work: Work
    number: int
    source: SourceVideo
    size: int
    outcome: list[Piece | Refused] | str


def _made(job: Job, works: Iterable[Work], count: int, folder: Path) -> Generator[_Result, None, None]:
    todo = (
        (work, work.place.source + i, source, size)
        for work in works
        for i, (source, size) in enumerate(zip(work.sources, work.sizes, strict=True))
    )
    with Workers(count) as workers:

        def submit(most: int) -> Iterator[tuple[Work, int, SourceVideo, int, Path, Future[list[Piece | Refused]]]]:
            for work, number, source, size in itertools.islice(todo, most):
                place = folder / f"clip-{number}"
                limit_s = _LEAST_LIMIT_S + size / _BYTES_PER_S
                future = workers.submit(process_source, source, place, job.treatment, limit_s=limit_s)
                yield work, number, source, size, place, future

        pending = deque(submit(_AHEAD * count))
        while pending:
            work, number, source, size, place, future = pending.popleft()
            outcome: list[Piece | Refused] | str
            try:
                outcome = future.result()
            except VideoError as error:
                outcome = str(error)
            except WorkerStuckError as stuck:
                outcome = f"reading it gets FFmpeg stuck ({stuck})"
            except WorkerCrashError as crash:
                outcome = f"reading it crashes FFmpeg ({crash})"
            yield _Result(work, number, source, size, outcome)
            shutil.rmtree(place, ignore_errors=True)
            pending.extend(submit(1))
