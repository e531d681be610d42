"""Packs videos into a dataset: finds them, shares them out in groups, has them packed, and finishes the dataset.

Killed anywhere, the same call goes on where it was: see `streamvid.packing.journal`.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from streamvid.dataset.manifest import FILE_NAME, Manifest
from streamvid.errors import InputError
from streamvid.packing.append import Base, read_base
from streamvid.packing.destination import TAKEN, claim, finish, give_up, locked, survey, sweep, tidy, working
from streamvid.packing.inputs import SourceVideo
from streamvid.packing.job import Place, Work
from streamvid.packing.job_spec import JobSpec, plan_job
from streamvid.packing.journal import FinishedElsewhereError, Journal, Record, Rejected, chain, claimed
from streamvid.packing.options import PackOptions
from streamvid.packing.partition import Group
from streamvid.packing.report import PackReport, read_rejected, rejected_parquet, report_document
from streamvid.packing.run_local import pack_groups
from streamvid.packing.run_ray import pack_groups_on_ray
from streamvid.progress import PackProgress
from streamvid.storage import filesystem

log = logging.getLogger(__name__)

SHARD_SIZE: Final = 256 << 20
"""Bytes of tar after which a new shard is begun, unless asked otherwise."""

Engine = Literal["local", "ray"]
ENGINES: Final[tuple[Engine, ...]] = ("local", "ray")


def pack(
    inputs: Sequence[str | os.PathLike[str]],
    destination: str | os.PathLike[str],
    *,
    labels: str | os.PathLike[str] | None = None,
    metadata: Sequence[str | os.PathLike[str]] = (),
    cuts: str | os.PathLike[str] | None = None,
    shard_size: int = SHARD_SIZE,
    name: str | None = None,
    workers: int | None = None,
    engine: Engine = "local",
    address: str | None = None,
    overwrite: bool = False,
    append: bool = False,
    treatment: PackOptions = PackOptions(),  # noqa: B008 - a frozen value
    progress: bool = True,
) -> PackReport:
    """Pack videos into a dataset. The same inputs and options give the same bytes, however and wherever it is run.

    A call that was killed goes on where it was when it is made again.

    Args:
        inputs: files, folders, globs and lists, see `streamvid.packing.inputs.find_sources`.
        destination: a folder or an object-store prefix.
        labels: a list of labels, see `streamvid.packing.labels.attach_labels`.
        metadata: lists of further columns, see `streamvid.packing.labels.attach_metadata`.
        cuts: a list of clips to cut out of the videos, see `streamvid.packing.cut_list.attach_cuts`.
        shard_size: bytes of tar that a shard does not pass, unless a single clip is larger.
        name: the dataset's name; the destination's last component by default.
        workers: processes that read videos; one per core by default. For the local engine.
        engine: "local": processes of this machine; "ray": tasks on a Ray cluster.
        address: of the Ray cluster; by default that of RAY_ADDRESS, or one that runs on this machine.
        overwrite: replace what is at the destination: a dataset, or what another pack left that did not finish.
        append: add the videos that it does not have yet to the dataset at the destination.
        treatment: what is done to every video.
        progress: show a bar on a terminal.

    Raises:
        InputError: an input, label or option cannot be used, all videos were rejected, or the destination holds
            another dataset, or is used by another pack. A dataset that was there and was to be replaced is gone once
            writing has begun.
    """
    started = time.monotonic()
    destination = os.fspath(destination)
    _check_options(destination, shard_size, workers, engine, address, overwrite, append)
    standing = survey(destination)
    if standing.manifest is not None and standing.report is None and not (overwrite or append or standing.claimed):
        raise InputError(TAKEN.format(filesystem.redact(destination)))
    order = plan_job(
        [os.fspath(given) for given in inputs],
        destination,
        labels=None if labels is None else os.fspath(labels),
        metadata=[os.fspath(path) for path in metadata],
        cuts=None if cuts is None else os.fspath(cuts),
        shard_size=shard_size,
        name=name,
        treatment=treatment,
        base=read_base(destination) if append else None,
    )
    if not order.sources:
        return _nothing_new(destination, order, started)
    with locked(destination):
        standing = survey(destination)
        mine = order.job.fingerprint
        if standing.made_by == mine and (not overwrite or standing.claimed == mine):
            tidy(destination, mine)
            return _was_there(destination, order, started)
        base = None if order.base is None else order.base.sha256
        try:
            resumed = claim(destination, mine, overwrite=overwrite, base=base)
            sweep(destination)
            records = _run(order, destination, resumed, workers, engine, address, progress)
            sweep(destination)
            return _finish(order, destination, records, started)
        except FinishedElsewhereError:
            if claimed(destination) is None:
                tidy(destination, mine)  # of what we noted after the other had cleared up
            return _was_there(destination, order, started)


@dataclass(frozen=True)
class _Done:
    """The records of all shards by number, and how many clips of them an earlier run had left."""

    records: dict[int, Record]
    resumed: int


def _run(
    order: JobSpec,
    destination: str,
    resumed: bool,
    workers: int | None,
    engine: Engine,
    address: str | None,
    progress: bool,
) -> _Done:
    """Have all groups packed that are not."""
    if order.unlabelled:
        log.warning("%d of %d videos have no label", order.unlabelled, len(order.sources))
    left = Journal(destination, order.job.fingerprint).read() if resumed else {}
    records: dict[int, Record] = {}
    places: list[tuple[Group, Place]] = []
    sizes = [stamp.size for stamp in order.stamps]
    with PackProgress(len(order.sources), sum(sizes), enabled=progress) as bar:
        for group in order.groups:
            found, place = chain(group, left)
            records.update((record.number, record) for record in found)
            if place is not None:
                places.append((group, place))
            stop = group.stop if place is None else place.source
            bar.already(stop - group.start, sum(sizes[group.start : stop]), *_totals(found))
        before = sum(record.entry.clips for record in records.values() if record.entry)

        def works() -> Iterator[Work]:
            for group, place in places:
                yield order.work(group, place)

        if not places:
            pass
        elif engine == "ray":
            on_ray = pack_groups_on_ray(order.job, works(), destination, address=address, advance=bar.advance)
            records.update((record.number, record) for record in on_ray)
        else:
            count = min(workers or len(os.sched_getaffinity(0)), len(order.sources))
            with working(destination) as folder:
                here = pack_groups(order.job, works(), destination, folder, workers=count, advance=bar.advance)
                records.update((record.number, record) for record in here)
    return _Done(records, before)


def _totals(records: Sequence[Record]) -> tuple[int, int, int]:
    """Clips, bytes and rejected videos."""
    entries = [record.entry for record in records if record.entry is not None]
    return (
        sum(entry.clips for entry in entries),
        sum(entry.bytes for entry in entries),
        sum(len(record.rejected) for record in records),
    )


def _finish(order: JobSpec, destination: str, done: _Done, started: float) -> PackReport:
    """Make a dataset of the shards."""
    records = [done.records[number] for number in sorted(done.records)]
    added = tuple(record.entry for record in records if record.entry is not None)
    rejected = tuple(one for record in records for one in record.rejected)
    base = order.base
    all_rejected = _all_rejected(base, order.sources, rejected)
    if not added:
        give_up(destination, order.job.fingerprint, rejected_parquet(all_rejected))
        if base is None:
            raise InputError(
                f"none of the {len(order.sources)} videos can be packed; {rejected[0].source}: {rejected[0].reason}"
            )
        return _report(order, destination, base.manifest, rejected, started)
    seconds = round(math.fsum(record.seconds for record in records), 6)
    manifest = Manifest(
        name=order.name,
        seconds=seconds if base is None else round(base.manifest.seconds + seconds, 6),
        classes=order.classes,
        shards=added if base is None else (*base.manifest.shards, *added),
        revision=0 if base is None else base.manifest.revision + 1,
    )
    document = report_document(
        added,
        rejected,
        videos=len(order.sources),
        skipped=order.skipped,
        unlabelled=order.unlabelled,
        seconds=seconds,
        revision=manifest.revision,
        options=order.options,
        versions=order.job.versions,
        joins=order.joins,
    )
    finish(
        destination,
        order.job.fingerprint,
        manifest,
        rejected=rejected_parquet(all_rejected),
        report=document,
    )
    clips, size, _ = _totals(records)
    report = _report(order, destination, manifest, rejected, started)
    return replace(report, clips=clips, bytes=size, resumed=done.resumed)


def _all_rejected(base: Base | None, sources: Sequence[SourceVideo], rejected: Sequence[Rejected]) -> list[Rejected]:
    """What rejected.parquet says: of a dataset that is added to also what it said of other videos."""
    if base is None:
        return list(rejected)
    tried = {source.name for source in sources}
    return [*(one for one in base.rejected if one.source not in tried), *rejected]


def _report(
    order: JobSpec, destination: str, manifest: Manifest, rejected: tuple[Rejected, ...], started: float
) -> PackReport:
    return PackReport(
        destination,
        manifest,
        rejected,
        order.unlabelled,
        time.monotonic() - started,
        videos=len(order.sources),
        skipped=order.skipped,
        joins=order.joins,
    )


def _was_there(destination: str, order: JobSpec, started: float) -> PackReport:
    path = filesystem.join(destination, FILE_NAME)
    manifest = Manifest.from_json(filesystem.read_bytes(path), path=filesystem.redact(path))
    report = _report(order, destination, manifest, tuple(read_rejected(destination)), started)
    return replace(report, was_there=True)


def _nothing_new(destination: str, order: JobSpec, started: float) -> PackReport:
    """All videos are in the dataset that they were to be added to."""
    assert order.base is not None
    standing = survey(destination)
    if standing.claimed is not None and standing.claimed == standing.made_by:
        tidy(destination, standing.claimed)  # the pack that added them was killed while it cleared up
    return replace(_report(order, destination, order.base.manifest, (), started), was_there=True)


def _check_options(
    destination: str,
    shard_size: int,
    workers: int | None,
    engine: str,
    address: str | None,
    overwrite: bool,
    append: bool,
) -> None:
    if not destination:
        raise InputError("no destination: name a folder or an object-store prefix")
    if shard_size < 1:
        raise InputError(f"a shard size of {shard_size} bytes is not positive: the default is {SHARD_SIZE}")
    if workers is not None and workers < 1:
        raise InputError(f"{workers} workers cannot pack anything: give 1 or more, or leave it out")
    if engine not in ENGINES:
        raise InputError(f"there is no engine {engine!r}: use {' or '.join(map(repr, ENGINES))}")
    if address is not None and engine != "ray":
        raise InputError("an address is that of a Ray cluster: give it with engine 'ray' (--engine ray)")
    if workers is not None and engine == "ray":
        raise InputError("on Ray the cluster decides how many videos are packed at once: leave out the workers")
    if overwrite and append:
        raise InputError("a dataset is either overwritten or added to: leave out --overwrite or --append")
