"""The specification of a pack, complete before any video is read: sources with keys, labels and columns, their groups,
and the fingerprint of all of that."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from streamvid.errors import InputError
from streamvid.packing.append import BaseDataset, changed_sources, extend_classes, new_sources
from streamvid.packing.cut_list import COLUMNS, attach_cuts, check_cutting
from streamvid.packing.destination import base_name, check_not_swapped, given_name
from streamvid.packing.fingerprints import NO_MARK, fingerprint, source_details, sources_digest, versions
from streamvid.packing.frame_spans import scene_versions
from streamvid.packing.images import check_rate
from streamvid.packing.inputs import find_sources
from streamvid.packing.kept_sources import inputs_digest, resume_sources
from streamvid.packing.keys import uncut_key
from streamvid.packing.labels import FOLDERS, Join, attach_labels, attach_metadata, class_names
from streamvid.packing.metadata import Metadata, MetadataLists
from streamvid.packing.options import Cut, PackOptions
from streamvid.packing.partition import Group, GroupCursor, partition
from streamvid.packing.places import Places, check_destination, root_name
from streamvid.packing.source_file import MISSING, why_missing
from streamvid.packing.source_video import SourceVideo
from streamvid.storage.filesystem import Details
from streamvid.storage.retry import Retry
from streamvid.storage.url import AnyPath, given_path, given_paths, redact
from streamvid.video.encoders import ENCODERS

log = logging.getLogger(__name__)

_INDEXED: Final = 4 << 20
"""Bytes that a video in place counts when sources are grouped by size: a group of the usual size has 256 videos."""


@dataclass(frozen=True)
class PackJob:
    """The settings that all groups of a pack share. Ray sends them to other machines.

    Attributes:
        fingerprint: fingerprint of everything that the dataset's bytes depend on.
        shard_size: most bytes of a tar, unless a single clip is larger.
        options: how every video is cut and transcoded.
        versions: versions of the libraries; a machine with others must not take part.
        roots: the dataset's roots, for videos in place.
        retry: for how long requests are repeated while the destination, or a source's storage, does not answer.
    """

    fingerprint: str
    shard_size: int
    options: PackOptions
    versions: Mapping[str, str]
    roots: tuple[str, ...] = ()
    retry: Retry = Retry()  # noqa: RUF009 - a frozen value


@dataclass(frozen=True)
class GroupTask:
    """A group that is not packed yet, or the rest of a group.

    Attributes:
        group: the group.
        cursor: the position in the group at which packing begins or resumes.
        sources: its sources from `cursor.source` on; labels are class numbers.
        metadata: the rows of these sources and their cuts.
    """

    group: Group
    cursor: GroupCursor
    sources: tuple[SourceVideo, ...]
    metadata: Metadata


@dataclass(frozen=True)
class JobSpec:
    """A pack before it begins.

    Attributes:
        job: the settings that all groups share.
        sources: the sources in order, with class numbers as labels.
        metadata: the rows of all sources and cuts.
        groups: the partition of the sources.
        name, classes: fields of dataset.json.
        base: the dataset that is appended to; None for a new one.
        skipped: names of the sources that the base has already.
        unlabelled: number of sources without a label; 0 if no source has one.
        settings: the options, for pack-report.json.
        joins: how the rows of each label or metadata list matched the sources.
        forget: clips of the base whose videos have changed, as shard and row.
        inputs: `streamvid.packing.kept_sources.inputs_digest` of the inputs; "" if they are no videos.
        stale: names of the sources that have changed, or are gone, since a pack that is resumed began.
    """

    job: PackJob
    sources: list[SourceVideo]
    metadata: Metadata
    groups: list[Group]
    name: str
    classes: tuple[str, ...] | None
    settings: dict[str, object]
    base: BaseDataset | None = None
    skipped: tuple[str, ...] = ()
    unlabelled: int = 0
    joins: tuple[Join, ...] = ()
    forget: tuple[tuple[str, int], ...] = ()
    inputs: str = ""
    stale: frozenset[str] = frozenset()

    @property
    def videos(self) -> int:
        """Number of videos."""
        return len(self.sources)

    def task(self, group: Group, cursor: GroupCursor) -> GroupTask:
        """A group from a cursor on."""
        sources = tuple(self.sources[cursor.source : group.stop])
        rows = (row for s in sources for numbers in (s.rows, *(cut.rows for cut in s.cuts or ())) for row in numbers)
        return GroupTask(group, cursor, sources, self.metadata.part(rows))


def plan_job(
    inputs: list[str],
    destination: str,
    *,
    labels: AnyPath | None,
    metadata: AnyPath | Sequence[AnyPath],
    cuts: AnyPath | None,
    shard_size: int,
    name: str | None,
    options: PackOptions,
    base: BaseDataset | None,
    places: Places | None = None,
    after: str = "",
    images: bool = False,
    kept: Sequence[SourceVideo] | None = None,
) -> JobSpec:
    """Find the sources, and determine everything that the dataset's bytes depend on. Reads lists, but no videos.

    Args:
        places: as in `streamvid.packing.inputs.find_sources`.
        after: fingerprint of the job that this one continues.
        images: as in `streamvid.packing.inputs.find_sources`.
        kept: the sources of the unfinished pack that is resumed; default: those that are found now.
        inputs, destination, labels, metadata, cuts, shard_size, name, options: as in `streamvid.packing.pack.pack`.

    Raises:
        InputError: an input or list cannot be used.
    """
    label_list = None if labels is None else given_path(labels, "labels")
    cut_list = None if cuts is None else given_path(cuts, "cuts")
    tables = given_paths(metadata, "metadata")
    check_cutting(options, listed=cuts is not None)
    lists = MetadataLists(() if options.cutting is None and cut_list is None else COLUMNS.names)
    present = () if base is None else base.sources
    sources = find_sources(inputs, lists, places=places, images=images, folders=label_list == FOLDERS, present=present)
    _check_sources(sources, destination, options)
    if options.cutting is not None:
        taken = {source.key.casefold() for source in sources}
        sources = [replace(s, key=uncut_key(s.name, s.key, taken)) if s.is_named_as_image else s for s in sources]
    found = len(sources)
    sources, joins = _joined(sources, None if label_list == FOLDERS else label_list, tables, lists)
    if cut_list is not None:
        sources, uncut = attach_cuts(sources, cut_list, lists)
        if uncut:
            log.warning("%d of %d videos have no cuts in %s: they are left out", uncut, found, redact(cut_list))
    in_place = options.in_place is not None
    sources, skipped, forget, stale = _left_to_pack(sources, base, kept, places, in_place=in_place)
    sources, classes, unlabelled = _classified(sources, base)
    cutting = options.cutting is not None or any(source.cuts is not None for source in sources)
    columns = lists.finish(COLUMNS if cutting else pa.schema([]))
    sizes = [_INDEXED if options.in_place else source.size for source in sources]
    groups = partition(sizes, shard_size, first=0 if base is None else base.next_number)
    name = given_name(name, base_name(destination) if base is None else base.manifest.name)
    settings: dict[str, object] = {"name": name, "shard_size": shard_size, **vars(options)}
    settings |= {"after": after} if after else {}
    if options.transcode is not None and options.transcode.crf is None:  # who writes the default out means the same
        settings["transcode"] = replace(options.transcode, crf=ENCODERS[options.transcode.codec].crf)
    known = () if base is None else base.manifest.roots
    if options.in_place:
        sources = [replace(source, root=root_name(source.root, destination)) for source in sources]
        known = tuple(dict.fromkeys((*known, *(source.root for source in sources if not source.problem))))
    mark = fingerprint(
        sources_digest(sources, columns),
        settings={**settings, "columns": columns.schema, "classes": classes, "scenes": scene_versions(options)},
        versions=versions(),
        base="" if base is None else base.sha256,
    )
    return JobSpec(
        PackJob(mark, shard_size, options, versions(), known),
        sources,
        columns,
        groups,
        name,
        classes,
        settings,
        base,
        skipped=skipped,
        unlabelled=unlabelled,
        joins=tuple(joins),
        forget=forget,
        inputs=inputs_digest(inputs),
        stale=stale,
    )


def _left_to_pack(
    sources: list[SourceVideo],
    base: BaseDataset | None,
    kept: Sequence[SourceVideo] | None,
    places: Places | None,
    *,
    in_place: bool,
) -> tuple[list[SourceVideo], tuple[str, ...], tuple[tuple[str, int], ...], frozenset[str]]:
    """The sources, with their sizes and versions, without those that the base has: in place, in this version; then
    `skipped`, `forget` and `stale` as in JobSpec."""
    names = [source.name for source in sources]
    if in_place:
        sources = with_details(sources, places)
    changed = {} if base is None or not in_place else changed_sources(sources, base)
    if base is not None:
        sources = new_sources(sources, base, changed)
    new = {source.name for source in sources}
    if not in_place:
        sources = with_details(sources, places)
    stale: frozenset[str] = frozenset()
    if kept is not None:
        sources, stale = resume_sources(kept, sources)
        left = {source.name for source in sources}
        new -= changed.keys() - left  # what has changed since that pack skipped it
        changed = {name: clips for name, clips in changed.items() if name in left}
    skipped = tuple(name for name in names if name not in new)
    return sources, skipped, tuple(clip for clips in changed.values() for clip in clips), stale


def _check_sources(sources: list[SourceVideo], destination: str, options: PackOptions) -> None:
    """Raise InputError if these sources cannot be packed, or indexed, to this destination with these options."""
    paths = [source.path for source in sources]
    check_not_swapped(paths, destination)
    if options.in_place:
        check_destination(paths, destination)
    else:
        check_rate(paths, options.fps)
    if options.cutting is not None and any(source.cuts is not None for source in sources):
        raise InputError("the clips of a LeRobot dataset are its episodes: index it by itself, without --clip")


def _joined(
    sources: list[SourceVideo], labels: str | None, tables: Sequence[str], lists: MetadataLists
) -> tuple[list[SourceVideo], list[Join]]:
    """The sources with the labels and columns of these lists, and how each list matched them, which is logged."""
    joins: list[Join] = []
    if labels is not None:
        sources, join = attach_labels(sources, labels, lists)
        joins.append(join)
    for path in tables:
        sources, join = attach_metadata(sources, path, lists)
        joins.append(join)
    for sentence in (sentence for join in joins for sentence in join.sentences()):
        log.warning("%s", sentence)
    return sources, joins


def with_details(sources: list[SourceVideo], places: Places | None) -> list[SourceVideo]:
    """The sources with their sizes and versions."""
    hosts = None if places is None else places.hosts
    details = iter(source_details([source.path for source in sources if not source.problem], hosts))
    return [source if source.problem else _detailed(source, next(details)) for source in sources]


def _detailed(source: SourceVideo, found: Details) -> SourceVideo:
    """The source with its size and version."""
    if found.mark.startswith(NO_MARK):
        return replace(source, problem=found.mark[len(NO_MARK) :])
    if source.file and found is MISSING:
        return replace(source, problem=why_missing(source.path))
    if source.part is None:
        return replace(source, size=found.size, mark=found.mark)
    changed = source.problem or (
        "" if source.mark == found.mark else "it was changed while it was looked at: run this again"
    )
    return replace(source, size=source.part[1], file_bytes=found.size, mark=found.mark, problem=changed)


def _classified(
    sources: list[SourceVideo], base: BaseDataset | None
) -> tuple[list[SourceVideo], tuple[str, ...] | None, int]:
    """The sources with class numbers in place of labels, their cuts included; the names of the classes, None if labels
    are no names; and the number of sources without a label, 0 if no source has one."""
    unlabelled = sum(source.label is None and not _all_cuts_labelled(source) for source in sources)
    classes = class_names({source.label for source in sources} | {c.label for s in sources for c in s.cuts or ()})
    if base is not None:
        classes = extend_classes(classes, base, labelled=unlabelled < len(sources))
    numbers = {label: number for number, label in enumerate(classes or ())}

    def number(label: int | str | None) -> int | None:
        return numbers[label] if isinstance(label, str) else label

    def cut_numbers(cuts: tuple[Cut, ...] | None) -> tuple[Cut, ...] | None:
        return None if cuts is None else tuple(replace(cut, label=number(cut.label)) for cut in cuts)

    if classes is not None:
        sources = [replace(source, label=number(source.label), cuts=cut_numbers(source.cuts)) for source in sources]
    return sources, classes, unlabelled if unlabelled < len(sources) else 0


def _all_cuts_labelled(source: SourceVideo) -> bool:
    return source.cuts is not None and all(cut.label is not None for cut in source.cuts)
