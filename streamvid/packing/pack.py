"""Packs videos into a dataset: finds the sources, packs them in groups, and writes dataset.json.

A killed pack resumes when the same call is made again: see `streamvid.packing.journal`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal, Protocol

import pyarrow as pa

from streamvid.checks import MAX_WORKERS, check, integer, one_of, suggest_keywords
from streamvid.dataset.forgotten import write_forgotten
from streamvid.dataset.manifest import Manifest
from streamvid.dataset.revisions import read_manifest
from streamvid.errors import InputError
from streamvid.host import usable_cores
from streamvid.packing.append import read_base
from streamvid.packing.destination import (
    DATASET_EXISTS,
    REJECTED_FILE,
    DestinationState,
    abandon,
    claim,
    publish,
    read_rejected,
    read_state,
    remove_progress,
    remove_temporaries,
    work_folder,
)
from streamvid.packing.job_spec import GroupTask, JobSpec, plan_job
from streamvid.packing.journal import (
    FinishedElsewhereError,
    Journal,
    Record,
    Rejected,
    finished_records,
    merged,
    read_claim,
    totals,
)
from streamvid.packing.kept_sources import check_packed, inputs_digest, keep_sources, read_kept_sources
from streamvid.packing.options import PackOptions
from streamvid.packing.partition import Group, GroupCursor
from streamvid.packing.patience import broken, unavailable
from streamvid.packing.report import PackReport, other_options, report_document
from streamvid.packing.run_local import pack_groups
from streamvid.packing.run_ray import pack_groups_on_ray
from streamvid.packing.source_video import SourceVideo
from streamvid.packing.tables import write_tables
from streamvid.progress import PackProgress
from streamvid.storage.client import asked
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.folder_lock import lock_folder
from streamvid.storage.local_writes import disk_errors_named
from streamvid.storage.retry import Retry
from streamvid.storage.url import AnyPath, given_path, given_paths, is_local, is_within, join, redact
from streamvid.text import format_count, is_utf8

log = logging.getLogger(__name__)

SHARD_SIZE: Final = 256 << 20
"""Default size of a shard, in bytes of tar."""
MAX_SHARD_SIZE: Final = 1 << 50

Engine = Literal["local", "ray"]
ENGINES: Final[tuple[Engine, ...]] = ("local", "ray")


class Planner(Protocol):
    """Plans a job, as `streamvid.packing.job_spec.plan_job` with all arguments but one."""

    def __call__(self, *, kept: Sequence[SourceVideo] | None) -> JobSpec: ...


@dataclass(frozen=True)
class JobRun:
    """The destination of a job, and how it runs.

    Attributes:
        destination, overwrite, append, workers, engine, address, retry_for, progress: as in `pack`.
        started: time of the call, in seconds of the monotonic clock.

    Raises:
        InputError: options are invalid, or contradict each other.
    """

    destination: str
    overwrite: bool = False
    append: bool = False
    workers: int | None = None
    engine: Engine = "local"
    address: str | None = None
    retry_for: float = 600.0
    progress: bool = True
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if not is_utf8(self.destination):
            raise InputError(f"destination {self.destination[:200]!r} is not UTF-8: name another")
        if self.workers is not None:
            integer(self.workers, "workers", most=MAX_WORKERS)
        Retry.of(self.retry_for)
        one_of(self.engine, ENGINES, "engine")
        if self.address is not None and self.engine != "ray":
            raise InputError("an address is that of a Ray cluster: give it with engine 'ray' (--engine ray)")
        if self.workers is not None and self.engine == "ray":
            raise InputError("on Ray the cluster decides how many videos are packed at once: leave out the workers")
        if self.overwrite and self.append:
            raise InputError(
                "a dataset is either overwritten or added to: leave out --overwrite, or --append or --update"
            )

    def state(self) -> DestinationState:
        """The state of the destination. Raises InputError if the job would destroy a dataset."""
        state = read_state(self.destination)
        if (
            state.manifest is not None
            and state.report is None
            and not (self.overwrite or self.append or state.claimed_by)
        ):
            raise InputError(DATASET_EXISTS.format(redact(self.destination)))
        return state

    def plan(self, inputs: Sequence[str], state: DestinationState, plan: Planner) -> JobSpec:
        """The job as it is planned now, or the unfinished one at the destination if it is the same but for videos that
        came, changed or went since it began."""
        holder = None if self.overwrite or state.claimed_by == state.packed_by else state.claimed_by
        kept = None if holder is None else read_kept_sources(self.destination, inputs_digest(inputs))
        if kept is not None and (spec := plan(kept=kept)).job.fingerprint == holder:
            return spec
        return plan(kept=None)


@suggest_keywords
def pack(
    inputs: AnyPath | Sequence[AnyPath],
    destination: AnyPath,
    *,
    labels: AnyPath | None = None,
    metadata: AnyPath | Sequence[AnyPath] = (),
    cuts: AnyPath | None = None,
    shard_size: int = SHARD_SIZE,
    name: str | None = None,
    workers: int | None = None,
    engine: Engine = "local",
    address: str | None = None,
    overwrite: bool = False,
    append: bool = False,
    images: bool = False,
    options: PackOptions = PackOptions(),  # noqa: B008 - a frozen value
    retry_for: float = 600.0,
    progress: bool = True,
) -> PackReport:
    """Pack videos into a dataset. The same inputs and options give the same bytes with any workers, engine or machine.

    If a killed call is repeated, it resumes.

    Args:
        inputs: files, folders, globs and lists, or one of these; see `streamvid.packing.inputs.find_sources`.
        destination: a folder or an object-store prefix.
        labels: a list of labels, see `streamvid.packing.labels.attach_labels`; or "folders": the class of a video is
            the folder directly below the input that contains it.
        metadata: lists of further columns, or one of these; see `streamvid.packing.labels.attach_metadata`.
        cuts: a list of clips to cut out of the videos, see `streamvid.packing.cut_list.attach_cuts`.
        shard_size: most bytes of a shard's tar, unless a single clip is larger.
        name: the dataset's name; by default the last component of the destination.
        workers: number of processes that read videos, by default one per core. For the local engine.
        engine: "local": processes on this machine; "ray": tasks on a Ray cluster.
        address: address of the Ray cluster; by default that in RAY_ADDRESS, or a cluster on this machine.
        overwrite: replace a dataset at the destination, or the unfinished one of another pack.
        append: add the videos that the dataset at the destination does not have.
        images: make every image a clip, also beside videos and in folders of numbered images. Images that are named, or
            lie in inputs without videos, become clips in any case.
        options: how videos are cut and transcoded.
        retry_for: seconds for which a remote or mounted destination, or the storage of a video, is tried again while it
            does not answer, once packing has begun.
        progress: show a progress bar if stderr is a terminal.

    Raises:
        InputError: an input, list or option cannot be used, all videos were rejected, or the destination holds
            another dataset or belongs to another pack. A dataset that is overwritten is removed before the first
            shard is written.
    """
    paths, to = given_paths(inputs, "inputs"), given_path(destination, "destination")
    check(isinstance(options, PackOptions), options, "options", "PackOptions(…), such as PackOptions(fps=24)")
    integer(shard_size, "shard_size", most=MAX_SHARD_SIZE)
    run = JobRun(to, overwrite, append, workers, engine, address, retry_for, progress)
    state = run.state()
    plan = partial(
        plan_job,
        paths,
        to,
        labels=labels,
        metadata=metadata,
        cuts=cuts,
        shard_size=shard_size,
        name=name,
        options=options,
        base=read_base(to) if append else None,
        images=images,
    )
    spec = run.plan(paths, state, plan)
    if append and spec.sources and (others := other_options(spec, state.report)):
        log.warning(
            "%s was packed with another %s, by its pack-report.json: give the same if all clips are to be alike",
            redact(to), " and ".join(others),
        )  # fmt: skip
    return run_job(spec, run)


def run_job(spec: JobSpec, run: JobRun) -> PackReport:
    """Run a job, or the rest of it.

    Raises:
        InputError: as in `pack`.
        OSError: the machine or the storage fails.
    """
    if not spec.sources:
        return _nothing_to_append(spec, run)
    destination = run.destination
    fingerprint = spec.job.fingerprint
    spec = replace(spec, job=replace(spec.job, retry=Retry.of(run.retry_for)))
    with lock_folder(destination, make=True), disk_errors_named(destination, then="it goes on"):
        base = None if spec.base is None else spec.base.sha256
        try:
            resumed = claim(destination, fingerprint, overwrite=run.overwrite, base=base)
            if spec.inputs and not resumed:
                write = partial(keep_sources, destination, spec.inputs, spec.sources, spec.classes)
                asked(destination, write, spec.job.retry)
            records, resumed_clips = _pack_patiently(spec, run, resumed)
            remove_temporaries(destination)
            return _finish(spec, run, records, resumed_clips)
        except FinishedElsewhereError:
            if read_claim(destination) in (None, fingerprint):
                remove_progress(destination, fingerprint)  # left by a killed run, or written after publishing
            return was_there(spec, run)


def _pack_patiently(spec: JobSpec, run: JobRun, resumed: bool) -> tuple[list[Record], int]:
    """`_pack_groups`, and again from the last finished shard on if a mounted destination did not answer. What was
    written of the shard may be lost then, even where writing it again succeeds (fsync(2))."""
    destination = run.destination

    def attempt() -> tuple[list[Record], int] | StorageUnavailable:
        nonlocal resumed
        again, resumed = resumed, True
        try:
            remove_temporaries(destination)
            return _pack_groups(spec, run, again)
        except OSError as error:
            if not is_local(destination) or not (what := broken(error)):
                raise
            raise unavailable(redact(destination), what) from error
        except StorageUnavailable as error:
            if is_local(destination) and error.path is not None and is_within(error.path, destination):
                raise
            return error  # of a source or a bucket, which was waited for

    made = spec.job.retry(attempt)
    if isinstance(made, StorageUnavailable):
        raise made
    return made


def _pack_groups(spec: JobSpec, run: JobRun, resumed: bool) -> tuple[list[Record], int]:
    """Pack all unfinished groups.

    Returns:
        The records of all shards in order, and how many of their clips an earlier run had written.
    """
    if spec.unlabelled:
        log.warning("%d of %d videos have no label", spec.unlabelled, len(spec.sources))
    destination, retry = run.destination, None if is_local(run.destination) else spec.job.retry
    journal = asked(destination, Journal(destination, spec.job.fingerprint).read, retry) if resumed else {}
    records: dict[int, Record] = {}
    unfinished: list[tuple[Group, GroupCursor]] = []
    sizes = [source.size for source in spec.sources]
    with PackProgress(spec.videos, sum(sizes), enabled=run.progress) as bar:
        for group in spec.groups:
            finished, cursor = finished_records(group, journal)
            if spec.stale:
                check_packed(group, finished, cursor, spec.sources, spec.stale)
            records.update((record.number, record) for record in finished)
            if cursor is not None:
                unfinished.append((group, cursor))
            stop = group.stop if cursor is None else cursor.source
            videos = sum(source.videos for source in spec.sources[group.start : stop])
            bar.advance(videos, sum(sizes[group.start : stop]), *totals(finished), resumed=True)
        resumed_clips, _, _ = totals(records.values())
        tasks = (spec.task(group, cursor) for group, cursor in unfinished)
        if unfinished:
            records.update((record.number, record) for record in _packed(spec, run, tasks, bar))
    return [records[number] for number in sorted(records)], resumed_clips


def _packed(spec: JobSpec, run: JobRun, tasks: Iterable[GroupTask], bar: PackProgress) -> Iterator[Record]:
    """Pack groups on this machine or on the Ray cluster; the records of their shards."""
    if run.engine == "ray":
        yield from pack_groups_on_ray(spec.job, tasks, run.destination, address=run.address, advance=bar.advance)
        return
    count = min(run.workers or usable_cores(), len(spec.sources))
    with work_folder(run.destination) as folder:
        yield from pack_groups(spec.job, tasks, run.destination, folder, workers=count, advance=bar.advance)


def _finish(spec: JobSpec, run: JobRun, records: Sequence[Record], resumed_clips: int) -> PackReport:
    """Publish the dataset of these shards. Without any clip, raise InputError, or keep the dataset that was to be
    appended to."""
    added = tuple(record.entry for record in records if record.entry is not None)
    rejected = tuple(video for record in records for video in record.rejected)
    notices = merged(notice for record in records for notice in record.notices)
    for notice in notices:
        log.warning("%s: %s, the first of them %s", notice.text, format_count(notice.videos, "video"), notice.first)
    base, destination = spec.base, run.destination
    listed: Sequence[Rejected] = rejected
    if base is not None:  # its rejected.parquet keeps rejected videos that were not tried again
        tried = {source.name for source in spec.sources}
        listed = [*(video for video in base.rejected if video.source not in tried), *rejected]
    fingerprint = spec.job.fingerprint
    if not added:
        asked(destination, partial(abandon, destination, fingerprint, listed), spec.job.retry)
        if base is None:
            why = rejected[0].reason.rstrip(".")
            raise InputError(
                f"of {format_count(len(spec.sources), 'video')} none can be packed; {rejected[0].source}: {why}; "
                f"all are listed in {redact(join(destination, REJECTED_FILE))}"
            )
        return _report(spec, run, base.manifest, rejected)
    seconds = round(math.fsum(record.seconds for record in records), 6)
    before = Manifest(spec.name, 0.0, spec.classes, ()) if base is None else base.manifest
    manifest = replace(
        before,
        seconds=round(before.seconds + seconds, 6),
        classes=spec.classes,
        shards=(*before.shards, *added),
        revision=before.revision + (base is not None),
        roots=spec.job.roots,
        change=None,
    )
    tables = {}
    if base is not None and spec.forget:
        shards, rows = zip(*sorted(spec.forget), strict=True)
        forgotten = pa.concat_tables(
            [base.forgotten, pa.table({"shard": shards, "row": pa.array(rows, pa.int32())})], promote_options="default"
        )
        named, data = write_forgotten(forgotten, manifest.revision)
        manifest, tables = replace(manifest, forgotten=named), {named.file: data}
    write = partial(write_tables, destination, manifest)
    manifest = replace(manifest, tables=asked(destination, write, spec.job.retry, action="write"))
    document = report_document(spec, added, rejected, notices, seconds=seconds, revision=manifest.revision)
    sha256 = None if base is None else base.sha256
    finish = partial(
        publish, destination, fingerprint, manifest, rejected=listed, report=document, tables=tables, base=sha256
    )
    asked(destination, finish, spec.job.retry)
    clips, size, _ = totals(records)
    report = _report(spec, run, manifest, rejected)
    return replace(report, clips=clips, bytes=size, resumed=resumed_clips, notices=notices)


def _report(spec: JobSpec, run: JobRun, manifest: Manifest, rejected: tuple[Rejected, ...]) -> PackReport:
    """The report of a pack before the clips, bytes and notices that it wrote are counted."""
    return PackReport(
        run.destination,
        manifest,
        rejected,
        spec.unlabelled,
        time.monotonic() - run.started,
        videos=spec.videos,
        skipped=spec.skipped,
        joins=spec.joins,
    )


def was_there(spec: JobSpec, run: JobRun) -> PackReport:
    """The report of a pack that had been finished before."""
    manifest, rejected = read_manifest(run.destination), tuple(read_rejected(run.destination))
    return replace(_report(spec, run, manifest, rejected), was_there=True)


def _nothing_to_append(spec: JobSpec, run: JobRun) -> PackReport:
    """The report of a pack whose dataset already has all videos that were to be appended."""
    assert spec.base is not None
    state = read_state(run.destination)
    if state.claimed_by is not None and state.claimed_by == state.packed_by:
        remove_progress(run.destination, state.claimed_by)  # that pack was killed after it had published
    return replace(_report(spec, run, spec.base.manifest, ()), was_there=True)
