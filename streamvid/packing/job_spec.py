"""What is to be packed: videos in order, with keys, labels, columns and groups, and the fingerprint of it all."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from streamvid.packing.append import Base, all_classes, new_sources
from streamvid.packing.cut_list import attach_cuts, check_cutting, cut_columns
from streamvid.packing.destination import base_name
from streamvid.packing.fingerprints import Fingerprint, fingerprints_of
from streamvid.packing.images import check_rate
from streamvid.packing.inputs import SourceVideo, find_sources
from streamvid.packing.job import Job, Place, Work, fingerprint, versions
from streamvid.packing.labels import Join, attach_labels, attach_metadata, classes_of
from streamvid.packing.lists import is_list, meta_columns
from streamvid.packing.options import Cut, PackOptions
from streamvid.packing.partition import Group, partition
from streamvid.packing.scenes import scene_versions
from streamvid.storage import filesystem

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobSpec:
    """A pack before it begins.

    Attributes:
        job: what holds for all groups.
        sources: in order, labels as class numbers.
        stamps: of the sources.
        groups: of them.
        name, classes: for dataset.json.
        base: the dataset that is appended to.
        skipped: sources that it has already.
        unlabelled: sources without a label, if any has one.
        options: for the report.
        joins: how the rows of each list beside the videos met them.
    """

    job: Job
    sources: list[SourceVideo]
    stamps: list[Fingerprint]
    groups: list[Group]
    name: str
    classes: tuple[str, ...] | None
    base: Base | None
    skipped: int
    unlabelled: int
    options: dict[str, object]
    joins: tuple[Join, ...]

    def work(self, group: Group, place: Place) -> Work:
        """A group from a place on."""
        part = slice(place.source, group.stop)
        return Work(group, place, tuple(self.sources[part]), tuple(stamp.size for stamp in self.stamps[part]))


def plan_job(
    inputs: list[str],
    destination: str,
    *,
    labels: str | None,
    metadata: list[str],
    cuts: str | None,
    shard_size: int,
    name: str | None,
    treatment: PackOptions,
    base: Base | None,
) -> JobSpec:
    """Find the videos, and settle everything that decides what becomes of them.

    Args:
        base: the dataset that is appended to.
        inputs, destination, labels, metadata, cuts, shard_size, name, treatment: as of `streamvid.packing.pack.pack`.

    Raises:
        InputError: an input or list cannot be used.
    """
    check_cutting(treatment, listed=cuts is not None)
    sources = find_sources(inputs)
    check_rate((source.path for source in sources), treatment.fps)
    found = len(sources)
    joins: list[Join] = []
    if labels is not None:
        sources, join = attach_labels(sources, labels)
        joins.append(join)
    for path in metadata:
        sources, join = attach_metadata(sources, path)
        joins.append(join)
    for join in joins:
        for sentence in join.sentences():
            log.warning("%s", sentence)
    if cuts is not None:
        sources, uncut = attach_cuts(sources, cuts)
        if uncut:
            log.warning("%d of %d videos have no cuts in %s: they are left out", uncut, found, filesystem.redact(cuts))
        found -= uncut
    if base is not None:
        sources = new_sources(sources, base)
    unlabelled = sum(source.label is None and not _all_cuts_labelled(source) for source in sources)
    of_cuts = {(source.name, cut.label): source for source in sources for cut in source.cuts or ()}
    classes = classes_of([*sources, *(replace(source, label=label) for (_, label), source in of_cuts.items())]).names
    if base is not None:
        classes = all_classes(classes, base, unlabelled < len(sources))
    sources = _numbered(sources, classes)
    lists = [path for path in (*inputs, *([] if labels is None else [labels]), *metadata) if is_list(path)]
    cutting = cuts is not None or treatment.cutting is not None
    columns = cut_columns(lists, cuts) if cutting else meta_columns(lists)
    stamps = fingerprints_of([source.path for source in sources])
    groups = partition([stamp.size for stamp in stamps], shard_size, first=0 if base is None else base.next_number)
    if name is None:
        name = base_name(destination) if base is None else base.manifest.name
    options: dict[str, object] = {"name": name, "shard_size": shard_size, "treatment": treatment}
    used = versions()
    deciding = {**options, "columns": columns, "classes": classes, "scenes": scene_versions(treatment)}
    job = Job(
        fingerprint(sources, stamps, options=deciding, versions=used, base="" if base is None else base.sha256),
        shard_size,
        treatment,
        columns,
        used,
    )
    partly = unlabelled if 0 < unlabelled < len(sources) else 0
    return JobSpec(
        job, sources, stamps, groups, name, classes, base, found - len(sources), partly, options, tuple(joins)
    )


def _numbered(sources: list[SourceVideo], classes: tuple[str, ...] | None) -> list[SourceVideo]:
    """The sources with class numbers for labels."""
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
