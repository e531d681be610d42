"""`streamvid repair`: replaces bad clips by sound ones, in rewritten shards."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from streamvid.checks import MAX_WORKERS, integer, suggest_keywords
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.revisions import Base, change, kept_manifests
from streamvid.dataset.roots import grant
from streamvid.errors import DatasetError, InputError, StreamvidError
from streamvid.host import usable_cores
from streamvid.loader.quarantine import quarantined
from streamvid.packing.clip_rows import clip_columns, place_columns
from streamvid.packing.destination import work_folder
from streamvid.packing.inputs import find_sources
from streamvid.packing.job_spec import with_details
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.options import Cut, PackOptions, PreparedClip
from streamvid.packing.places import Places, root_name
from streamvid.packing.process_source import process_source
from streamvid.packing.revise import RewrittenShards, opened_to_change
from streamvid.packing.source_video import SourceVideo
from streamvid.progress import Progress
from streamvid.revising.rewrite import Clip, rewrite_shard
from streamvid.storage.url import AnyPath, given_paths
from streamvid.text import format_count
from streamvid.video.image import EXTENSIONS as IMAGE_CODECS
from streamvid.video.index_file import encode_index
from streamvid.workers import WorkerCrashError, Workers, WorkerStuckError

log = logging.getLogger(__name__)

_FEWEST_PACKETS: Final = 4
"""A clip of fewer packets may have been damaged in all of them."""


@dataclass(frozen=True)
class RepairReport:
    """The result of `repair`.

    Attributes:
        revision: the new revision.
        repaired: keys of the repaired clips.
        missing: keys of bad clips whose videos are not among the sources.
        bad: keys of bad clips whose videos are bad, too, and the reason.
        shards: number of rewritten shards.
    """

    revision: int
    repaired: tuple[str, ...]
    missing: tuple[str, ...]
    bad: dict[str, str]
    shards: int


@suggest_keywords
def repair(
    dataset: str | os.PathLike[str],
    sources: AnyPath | Sequence[AnyPath],
    *,
    quarantine: str | os.PathLike[str],
    options: PackOptions = PackOptions(),  # noqa: B008 - a frozen value
    workers: int | None = None,
    roots: Sequence[str | os.PathLike[str]] = (),
    progress: bool = True,
) -> RepairReport:
    """Replace bad clips by sound ones, packed again from their videos. They keep their rows, keys, labels and columns,
    and so their places in the order of a run. If none of them is left, the dataset stays as it is. docs/revisions.md
    has the details.

    Args:
        dataset: a folder or URL.
        sources: files, folders, globs and lists of videos, or one of these, in which the clips' videos are found by
            name.
        quarantine: a run's quarantine folder, or a file in it, with the bad clips.
        options: the options with which the clips were packed, for transcoding. Every frame must decode.
        workers: processes that read videos; default: one per core.
        roots: as in `Dataset.open`.
        progress: show a progress bar if stderr is a terminal.

    Raises:
        InputError: none of the clips can be repaired; another process is changing the dataset, or has changed it
            meanwhile.
        DatasetError: another clip of a shard is damaged, too, or a shard cannot be written. In all these cases the
            dataset is unchanged.
    """
    paths = given_paths(sources, "sources")
    if workers is not None:
        integer(workers, "workers", most=MAX_WORKERS)
    with opened_to_change(dataset, roots) as (base, opened):
        gone = set(opened.forgotten.tolist())
        named = _named(base, quarantine)
        rows = [opened.rows(s).start + n for s, numbers in enumerate(named) for n in numbers]
        rows = [row for row in rows if row not in gone]
        if not rows:
            return RepairReport(base.manifest.revision, (), (), {}, 0)
        with RewrittenShards(base) as new, work_folder(base.path) as work:
            wanted = _sources(opened, rows, paths, base.path)
            made, bad = _made(opened, wanted, options, work, workers, progress)
            missing = tuple(opened.key(row) for row in rows if row not in wanted)
            if not made:
                why = next(iter(bad.values()), f"there is no video {opened.clips.source[rows[0]]!r}")
                raise InputError(f"none of the {len(rows)} clips can be repaired: {why}")
            _warn_of_other_videos(opened, made)
            kept = dict.fromkeys((*base.manifest.roots, *(s.root for s in wanted.values() if s.file)))
            clips: dict[int, dict[int, Clip | None]] = defaultdict(dict)
            for row, prepared in made.items():
                s = int(opened.clips.shard[row])
                clips[s][row - opened.rows(s).start] = _clip(prepared, wanted[row], list(kept))
            for s, some in clips.items():
                entry = base.manifest.shards[s]
                made_anew = rewrite_shard(base, entry, some, new.number(), work, roots=tuple(kept))
                new.put(entry.name, made_anew)
            seconds = [p.clip.duration * p.clip.time_base[0] / p.clip.time_base[1] for p in made.values()]
            before = opened.clips.seconds[list(made)].sum()
            manifest = replace(
                base.manifest,
                seconds=round(base.manifest.seconds - float(before) + sum(seconds), 6),
                roots=tuple(kept),
                change=change("repair", len(made)),
            )
            # Before the revision that reads there, which a killed call may leave.
            grant(base.path, [source.root for source in wanted.values() if source.file])
            published = new.publish(manifest)
    return RepairReport(published.revision, tuple(map(opened.key, made)), missing, bad, len(clips))


def _named(base: Base, quarantine: str | os.PathLike[str]) -> Sequence[tuple[int, ...]]:
    """The clips that a quarantine names, as `quarantined` gives them; none if all of them were repaired in an earlier
    revision, as by a call that was killed just after it had published."""
    try:
        return quarantined(base.manifest, quarantine)
    except InputError:
        for earlier in kept_manifests(base.path):
            with suppress(InputError):
                quarantined(earlier, quarantine)
                return ()
        raise


def _sources(dataset: Dataset, rows: Sequence[int], paths: list[str], path: str) -> dict[int, SourceVideo]:
    """The source of each row whose video was found, with its clip's cut."""
    in_place = {row for row in rows if not dataset.shards[int(dataset.clips.shard[row])].has_tar}
    kinds = {row: (row in in_place, dataset.clips.codec[row] in IMAGE_CODECS) for row in rows}
    found: dict[tuple[bool, bool], dict[str, SourceVideo]] = {}
    for kind in dict.fromkeys(kinds.values()):
        placed, images = kind
        places = Places(tuple(paths), destination=path) if placed else None
        videos = find_sources(paths, MetadataLists(), places=places, images=images)
        needed = {dataset.clips.source[row] for row in rows if kinds[row] == kind}
        found[kind] = {video.name: video for video in with_details([v for v in videos if v.name in needed], places)}
    wanted = {}
    spans = {
        name: dataset.columns.meta_column(name) if name in dataset.meta.names else None
        for name in ("start_frame", "end_frame")
    }
    for row in rows:
        source = found[kinds[row]].get(dataset.clips.source[row])
        if source is None:
            continue
        first, end = (None if column is None else column[row].as_py() for column in spans.values())
        if first is not None and end is not None:
            source = replace(source, cuts=(Cut(first, end, "frames", frames=end - first),))
        if row in in_place:
            source = replace(source, root=root_name(source.root, path))
        wanted[row] = source
    return wanted


def _made(
    dataset: Dataset,
    wanted: dict[int, SourceVideo],
    options: PackOptions,
    work: Path,
    workers: int | None,
    progress: bool,
) -> tuple[dict[int, PreparedClip], dict[str, str]]:
    """The new clips by row, and the reasons for the others by key."""
    made, bad = {}, {}
    count = min(workers or usable_cores(), max(1, len(wanted)))
    with Workers(count, work=os.fspath(work)) as pool, Progress("repairing", len(wanted), enabled=progress) as bar:
        futures = {}
        for row, source in wanted.items():
            how = replace(options, decode="all", cutting=None, in_place="packets" if source.file else None)
            futures[row] = pool.submit(process_source, source, work / f"clip-{row}", how, dataset.reader.retry)
        for row, future in futures.items():
            try:
                outcome = future.result()
            except (StreamvidError, WorkerCrashError, WorkerStuckError) as error:
                outcome = []
                bad[dataset.key(row)] = str(error)
            for result in outcome:
                if isinstance(result, PreparedClip):
                    made[row] = result
                else:
                    bad[dataset.key(row)] = result.reason
            bar.advance(1)
    return made, bad


def _warn_of_other_videos(dataset: Dataset, made: Mapping[int, PreparedClip]) -> None:
    """Warn of new clips that have none of the old one's packets, as they have if only some of these were damaged."""
    others = []
    for row, prepared in made.items():
        with suppress(DatasetError):  # its frame index is what was damaged
            known = dataset.indexes([row])[0].crc32c
            known = known[known >= 0]
            if len(known) >= _FEWEST_PACKETS and not np.isin(known, prepared.clip.index.crc32c).any():
                others.append(dataset.key(row))
    if others:
        log.warning(
            "%s, such as %r, of which no packet is as before: see that the videos are those that were packed, and not "
            "others of the same name; the revision before has what was there",
            format_count(len(others), "repaired clip"), others[0],
        )  # fmt: skip


def _clip(prepared: PreparedClip, source: SourceVideo, roots: list[str]) -> Clip:
    """The replacement of a clip for `rewrite_shard`."""
    clip = prepared.clip
    index = encode_index(clip.index)
    columns = clip_columns(clip, index)
    if source.file:
        return {**columns, **place_columns(source, roots.index(source.root))}, lambda: iter(()), index.data
    checksum = hashlib.sha256()
    for chunk in () if clip.sha256 else clip.read_mp4():
        checksum.update(chunk)
    columns |= {"mp4_size": clip.mp4_bytes, "sha256": clip.sha256 or checksum.hexdigest()}
    return columns, lambda: map(bytes, clip.read_mp4()), index.data
