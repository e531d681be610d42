"""The specification of a pack, complete before any video is read: sources with keys, labels and columns, the groups
that they are packed in, and the fingerprint of it all."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from streamvid.packing.append import BaseDataset, extend_classes, new_sources
from streamvid.packing.cut_list import COLUMNS, attach_cuts, check_cutting
from streamvid.packing.destination import base_name
from streamvid.packing.fingerprints import job_fingerprint, source_details, versions
from streamvid.packing.images import check_rate
from streamvid.packing.inputs import SourceVideo, find_sources
from streamvid.packing.labels import Join, attach_labels, attach_metadata, class_names
from streamvid.packing.metadata import Metadata, MetadataLists
from streamvid.packing.options import Cut, PackOptions
from streamvid.packing.partition import Group, GroupCursor, partition
from streamvid.packing.scenes import scene_versions
from streamvid.storage.url import redact

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PackJob:
    """What all groups of a pack have in common. Ray sends it to other machines.

    Attributes:
        fingerprint: of everything that the dataset's bytes depend on.
        shard_size: the most bytes of a tar, unless a single clip is larger.
        options: how every video is cut and transcoded.
        versions: of the libraries; a machine with others must not take part.
    """

    fingerprint: str
    shard_size: int
    options: PackOptions
    versions: Mapping[str, str]


@dataclass(frozen=True)
class GroupTask:
    """A group that is not packed yet, or the rest of one.

    Attributes:
        group: the group.
        cursor: where packing it begins or resumes.
        sources: from `cursor.source` on; labels are class numbers.
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
        job: what all groups have in common.
        sources: in order, with class numbers as labels.
        metadata: the rows of all sources and cuts.
        groups: the partition of the sources.
        name, classes: for dataset.json.
        base: the dataset that is appended to.
        skipped: how many sources the base has already.
        unlabelled: how many sources have no label; 0 if none has one.
        settings: options for pack-report.json.
        joins: how the rows of each label or metadata list matched the sources.
    """

    job: PackJob
    sources: list[SourceVideo]
    metadata: Metadata
    groups: list[Group]
    name: str
    classes: tuple[str, ...] | None
    base: BaseDataset | None
    skipped: int
    unlabelled: int
    settings: dict[str, object]
    joins: tuple[Join, ...]

    def task(self, group: Group, cursor: GroupCursor) -> GroupTask:
        """A group from a cursor on."""
        sources = tuple(self.sources[cursor.source : group.stop])
        rows = (row for s in sources for numbers in (s.rows, *(cut.rows for cut in s.cuts or ())) for row in numbers)
        return GroupTask(group, cursor, sources, self.metadata.part(rows))


def plan_job(
    inputs: list[str],
    destination: str,
    *,
    labels: str | None,
    metadata: list[str],
    cuts: str | None,
    shard_size: int,
    name: str | None,
    options: PackOptions,
    base: BaseDataset | None,
) -> JobSpec:
    """Find the sources and determine everything that the dataset's bytes depend on. Reads lists, but no video.

    Args:
        base: the dataset that is appended to.
        inputs, destination, labels, metadata, cuts, shard_size, name, options: as of `streamvid.packing.pack.pack`.

    Raises:
        InputError: an input or list cannot be used.
    """
    check_cutting(options, listed=cuts is not None)
    lists = MetadataLists()
    sources = find_sources(inputs, lists)
    check_rate((source.path for source in sources), options.fps)
    found = len(sources)
    joins: list[Join] = []
    if labels is not None:
        sources, join = attach_labels(sources, labels, lists)
        joins.append(join)
    for path in metadata:
        sources, join = attach_metadata(sources, path, lists)
        joins.append(join)
    for join in joins:
        for sentence in join.sentences():
            log.warning("%s", sentence)
    if cuts is not None:
        sources, uncut = attach_cuts(sources, cuts, lists)
        if uncut:
            log.warning("%d of %d videos have no cuts in %s: they are left out", uncut, found, redact(cuts))
        found -= uncut
    if base is not None:
        sources = new_sources(sources, base)
    unlabelled = sum(source.label is None and not _all_cuts_labelled(source) for source in sources)
    classes = class_names({source.label for source in sources} | {c.label for s in sources for c in s.cuts or ()})
    if base is not None:
        classes = extend_classes(classes, base, labelled=unlabelled < len(sources))
    sources = _numbered(sources, classes)
    cutting = cuts is not None or options.cutting is not None
    columns = lists.finish(COLUMNS if cutting else pa.schema([]))
    found_details = source_details([source.path for source in sources])
    sources = [replace(s, size=one.size, mark=one.mark) for s, one in zip(sources, found_details, strict=True)]
    groups = partition([source.size for source in sources], shard_size, first=0 if base is None else base.next_number)
    if name is None:
        name = base_name(destination) if base is None else base.manifest.name
    settings: dict[str, object] = {"name": name, "shard_size": shard_size, **vars(options)}
    fingerprint = job_fingerprint(
        sources,
        columns,
        settings={**settings, "columns": columns.schema, "classes": classes, "scenes": scene_versions(options)},
        versions=versions(),
        base="" if base is None else base.sha256,
    )
    return JobSpec(
        PackJob(fingerprint, shard_size, options, versions()),
        sources,
        columns,
        groups,
        name,
        classes,
        base,
        skipped=found - len(sources),
        unlabelled=unlabelled if unlabelled < len(sources) else 0,
        settings=settings,
        joins=tuple(joins),
    )


def _numbered(sources: list[SourceVideo], classes: tuple[str, ...] | None) -> list[SourceVideo]:
    """The sources with class numbers in place of labels, their cuts included."""
    if classes is None:
        return sources
    numbers = {label: number for number, label in enumerate(classes)}

    def number(label: int | str | None) -> int | None:
        return numbers[label] if isinstance(label, str) else label

    def cut_numbers(cuts: tuple[Cut, ...] | None) -> tuple[Cut, ...] | None:
        return None if cuts is None else tuple(replace(cut, label=number(cut.label)) for cut in cuts)

    return [replace(source, label=number(source.label), cuts=cut_numbers(source.cuts)) for source in sources]


def _all_cuts_labelled(source: SourceVideo) -> bool:
    return source.cuts is not None and all(cut.label is not None for cut in source.cuts)
