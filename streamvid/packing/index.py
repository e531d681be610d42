"""Indexes videos in place: makes a dataset of rows and frame indexes, whose rows name the video files.

It is a pack that writes no videos, with the same sources, lists, groups, journal and reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from streamvid.checks import listed, suggest_keywords
from streamvid.dataset.roots import given_roots, grant
from streamvid.errors import InputError
from streamvid.packing.append import read_base
from streamvid.packing.destination import read_rejected
from streamvid.packing.job_spec import JobSpec, plan_job
from streamvid.packing.journal import read_claim
from streamvid.packing.options import DecodeLevel, FixedLength, PackOptions, Scenes
from streamvid.packing.pack import SHARD_SIZE, Engine, JobRun, run_job, was_there
from streamvid.packing.places import Places
from streamvid.packing.report import PackReport
from streamvid.packing.source_video import SourceVideo
from streamvid.storage.url import AnyPath, given_path, given_paths


@suggest_keywords
def index(
    places: AnyPath | Sequence[AnyPath],
    destination: AnyPath,
    *,
    fast: bool = False,
    camera: str | Sequence[str] = (),
    roots: AnyPath | Sequence[AnyPath] = (),
    update: bool = False,
    copy_others: bool = False,
    images: bool = False,
    labels: AnyPath | None = None,
    metadata: AnyPath | Sequence[AnyPath] = (),
    cuts: AnyPath | None = None,
    cutting: FixedLength | Scenes | None = None,
    decode: DecodeLevel = "first",
    name: str | None = None,
    workers: int | None = None,
    engine: Engine = "local",
    address: str | None = None,
    overwrite: bool = False,
    retry_for: float = 600.0,
    progress: bool = True,
) -> PackReport:
    """Make a dataset of videos in place, without copying them. docs/in_place.md says which videos can be indexed.

    If a killed call is repeated, it resumes.

    Args:
        places: folders, files, globs and lists of videos, or of tars that contain videos; LeRobot datasets; or one of
            these.
        destination: a folder or an object-store prefix for the dataset.
        fast: index MP4 and MOV by their tables, with a few reads each. All other files, and files whose tables are not
            sufficient, are read in full.
        camera: one or several cameras of LeRobot datasets; default: all.
        roots: folders and URLs, besides the places, to which links and lists may lead.
        update: add videos that are new or have changed since the dataset at the destination was made.
        copy_others: pack videos that cannot be read in place.
        images, labels, metadata, cuts, name, workers, engine, address, overwrite, retry_for, progress: as in
            `streamvid.pack`.
        cutting, decode: as in `streamvid.PackOptions`.

    Raises:
        InputError: as in `streamvid.pack`.
    """
    to = given_path(destination, "destination")
    if isinstance(cutting, Scenes):
        raise InputError("scenes are found when videos are packed: cut by a length or a list (--clip, --cuts), or pack")
    run = JobRun(to, overwrite, update, workers, engine, address, retry_for, progress)
    state = run.state()
    options = PackOptions(
        compatible_with="any", cutting=cutting, decode=decode, in_place="tables" if fast else "packets"
    )
    paths, told = given_paths(places, "places"), given_roots(roots)
    cameras = [camera] if isinstance(camera, str) else listed(camera, "camera", "names of cameras")

    def plan(
        options: PackOptions, *, append: bool, after: str = "", kept: Sequence[SourceVideo] | None = None
    ) -> JobSpec:
        return plan_job(
            paths,
            to,
            labels=labels,
            metadata=metadata,
            cuts=cuts,
            shard_size=SHARD_SIZE,
            name=name,
            options=options,
            base=read_base(to, told) if append else None,
            places=Places(tuple(paths), tuple(told), tuple(cameras), to),
            after=after,
            images=images,
            kept=kept,
        )

    spec = run.plan(paths, state, partial(plan, options, append=update))
    fingerprint = spec.job.fingerprint
    if not copy_others:
        report = run_job(spec, run)
        grant(to, [*spec.job.roots, *told])
        return report
    if not overwrite and state.report is not None and _after(state.report) == fingerprint:
        return was_there(spec, run)  # and the videos that it could not index were packed
    plain, added = PackOptions(cutting=cutting, decode=decode), replace(run, overwrite=False)
    try:
        report = run_job(spec, run)
    except InputError:
        if update or read_claim(to) is not None or not read_rejected(to):
            raise
        return run_job(plan(plain, append=False), added)
    grant(to, [*spec.job.roots, *told])
    if not report.rejected:
        return report
    packed = run_job(plan(plain, append=True, after=fingerprint), added)
    return replace(
        packed,
        clips=packed.clips + report.clips,
        bytes=packed.bytes + report.bytes,
        videos=report.videos,
        resumed=packed.resumed + report.resumed,
        notices=report.notices + packed.notices,
        joins=report.joins,
        was_there=report.was_there and packed.was_there,
    )


def _after(report: Mapping[str, object]) -> object:
    """The fingerprint of the job that a dataset's last job continued."""
    options = report.get("options")
    return options.get("after") if isinstance(options, dict) else None
