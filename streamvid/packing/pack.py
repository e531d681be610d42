"""Packs videos into a dataset: worker processes copy them into MP4s, the parent writes shards in order."""

from __future__ import annotations

import io
import itertools
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from streamvid.errors import InputError, VideoError
from streamvid.packing.destination import REJECTED_FILE, base_name, check_destination, finish, working
from streamvid.packing.labels import attach_labels, classes_of
from streamvid.packing.progress import Progress
from streamvid.packing.shards import Described, ShardWriter
from streamvid.packing.sources import Source, find_sources
from streamvid.packing.storing import store_source
from streamvid.packing.treatment import Piece, Treatment
from streamvid.packing.workers import WorkerCrashError, Workers
from streamvid.store import storage
from streamvid.store.manifest import Manifest, ShardEntry
from streamvid.video.stored import StoredClip

log = logging.getLogger(__name__)

SHARD_SIZE: Final = 256 << 20
"""Bytes of tar after which a new shard is begun, unless asked otherwise."""
_AHEAD: Final = 2
"""Videos in work or waiting to be written, per worker: bounds the space that temporary files take."""


@dataclass(frozen=True)
class Rejected:
    """A video that was left out, and why."""

    source: str
    reason: str


@dataclass(frozen=True)
class PackReport:
    """What `pack` did.

    Attributes:
        destination: where the dataset is.
        manifest: what was written to dataset.json.
        rejected: the videos left out, in the order of the sources.
        unlabelled: clips without a label, if any had one; else 0.
        elapsed: seconds it took.
    """

    destination: str
    manifest: Manifest
    rejected: tuple[Rejected, ...]
    unlabelled: int
    elapsed: float


def pack(
    inputs: Sequence[str | os.PathLike[str]],
    destination: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    shard_size: int = SHARD_SIZE,
    name: str | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    treatment: Treatment = Treatment(),  # noqa: B008 - a frozen value
    progress: bool = True,
) -> PackReport:
    """Pack videos into a new dataset. The same inputs and options give the same bytes, however many workers.

    Args:
        inputs: files, folders, globs and lists, see `streamvid.packing.sources.find_sources`.
        destination: a folder or an object-store prefix.
        labels: a list of labels, see `streamvid.packing.labels.attach_labels`.
        shard_size: bytes of tar that a shard does not pass, unless a single clip is larger.
        name: the dataset's name; the destination's last component by default.
        workers: processes that read videos; one per core by default.
        overwrite: replace the dataset at the destination, if there is one.
        treatment: what is done to every video.
        progress: show a bar on a terminal.

    Raises:
        InputError: an input, label or option cannot be used, all videos were rejected, or the destination holds a
            dataset already. Then there is no dataset.json, or, if nothing was written yet, the old one.
    """
    started = time.monotonic()
    destination = os.fspath(destination)
    if not destination:
        raise InputError("no destination: name a folder or an object-store prefix")
    if shard_size < 1:
        raise InputError(f"a shard size of {shard_size} bytes is not positive: the default is {SHARD_SIZE}")
    if workers is not None and workers < 1:
        raise InputError(f"{workers} workers cannot pack anything: give 1 or more, or leave it out")
    check_destination(destination, overwrite)
    sources = find_sources([os.fspath(given) for given in inputs])
    if labels is not None:
        sources = attach_labels(sources, os.fspath(labels))
    classes = classes_of(sources)
    unlabelled = sum(source.label is None for source in sources)
    if unlabelled in (0, len(sources)):
        unlabelled = 0
    else:
        log.warning("%d of %d videos have no label", unlabelled, len(sources))

    count = min(workers or len(os.sched_getaffinity(0)), len(sources))
    rejected: list[Rejected] = []
    shards = _Shards(destination, shard_size)
    with working(destination, overwrite) as folder, Progress("packing", len(sources), enabled=progress) as bar:
        with shards.into(folder), closing(_stored(sources, treatment, count, folder)) as results:
            for source, result in results:
                if isinstance(result, str):
                    log.info("rejected %s: %s", source.name, result)
                    rejected.append(Rejected(source.name, result))
                else:
                    label = classes.number(source.label)
                    for piece in result:
                        described = Described(source.key + piece.suffix, source.name, label, piece.meta)
                        shards.add(piece.clip, described)
                bar.advance(note=f"{shards.bytes / 1e6:.0f} MB" + (f", {len(rejected)} rejected" if rejected else ""))
        if rejected:
            storage.write_bytes(storage.join(destination, REJECTED_FILE), _rejected_parquet(rejected))
        if not shards.entries:
            raise InputError(
                f"none of the {len(sources)} videos can be packed; {rejected[0].source}: {rejected[0].reason}"
            )
        manifest = Manifest(
            name=name if name is not None else base_name(destination),
            seconds=round(shards.seconds, 6),
            classes=classes.names,
            shards=tuple(shards.entries),
        )
        finish(destination, manifest)
    return PackReport(destination, manifest, tuple(rejected), unlabelled, time.monotonic() - started)


class _Shards:
    """Clips in, shards of a given size out."""

    def __init__(self, destination: str, shard_size: int) -> None:
        self._destination = destination
        self._shard_size = shard_size
        self._folder = Path()
        self._writer: ShardWriter | None = None
        self.entries: list[ShardEntry] = []
        self.seconds = 0.0
        self.bytes = 0

    @contextmanager
    def into(self, folder: Path) -> Iterator[None]:
        """Write by way of `folder`. The last shard is finished at the end, or none if anything went wrong."""
        self._folder = folder
        try:
            yield
            self._commit()
        finally:
            if self._writer is not None:
                self._writer.close()

    def add(self, clip: StoredClip, described: Described) -> None:
        if self._writer is not None and self._writer.size_with(clip, described) > self._shard_size:
            self._commit()
        if self._writer is None:
            self._writer = ShardWriter(len(self.entries), self._folder)
        self._writer.add(clip, described)
        self.seconds += clip.duration * clip.time_base[0] / clip.time_base[1]
        self.bytes += clip.mp4.stat().st_size

    def _commit(self) -> None:
        if self._writer is not None:
            self.entries.append(self._writer.commit(self._destination))
            self._writer = None


def _stored(
    sources: Sequence[Source], treatment: Treatment, count: int, folder: Path
) -> Generator[tuple[Source, list[Piece] | str], None, None]:
    """Each source with its clips, or why there are none. A clip's file is gone when the next is asked for."""
    todo = iter(enumerate(sources))
    with Workers(count) as workers:

        def submit(most: int) -> Iterator[tuple[Source, Path, Future[list[Piece]]]]:
            for number, source in itertools.islice(todo, most):
                place = folder / f"clip-{number}"
                yield source, place, workers.submit(store_source, source, place, treatment)

        pending = deque(submit(_AHEAD * count))
        while pending:
            source, place, future = pending.popleft()
            result: list[Piece] | str
            try:
                result = future.result()
            except VideoError as error:
                result = str(error)
            except WorkerCrashError as crash:
                result = f"reading it crashes FFmpeg ({crash})"
            yield source, result
            shutil.rmtree(place, ignore_errors=True)
            pending.extend(submit(1))


def _rejected_parquet(rejected: Sequence[Rejected]) -> bytes:
    table = pa.table({"source": [r.source for r in rejected], "reason": [r.reason for r in rejected]})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
