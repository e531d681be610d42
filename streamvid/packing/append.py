"""Appending to a dataset: the videos, keys, classes and shard names that it already has."""

from __future__ import annotations

import bisect
import hashlib
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

from streamvid.dataset.dataset import Dataset
from streamvid.dataset.forgotten import forgotten_rows, purged_name, read_table
from streamvid.dataset.manifest import FILE_NAME, Manifest
from streamvid.dataset.revisions import next_number
from streamvid.dataset.roots import resolve_roots
from streamvid.errors import InputError
from streamvid.packing.destination import read_rejected
from streamvid.packing.journal import Rejected
from streamvid.packing.keys import clip_key, longer_keys
from streamvid.packing.source_video import SourceVideo
from streamvid.storage import filesystem
from streamvid.storage.byte_range import FileVersion
from streamvid.storage.retry import COMMAND_SECONDS, Retry
from streamvid.storage.url import is_local, join, local_path, real_path, redact
from streamvid.text import format_count

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VideoInPlace:
    """A video in place of a dataset: its file, where in it the video begins, the file's version when it was indexed,
    and the video's clips that are not forgotten, as shard and row."""

    path: str
    offset: int
    version: FileVersion
    clips: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class BaseDataset:
    """A dataset to which videos are appended.

    Attributes:
        manifest: its dataset.json.
        sha256: SHA-256 of dataset.json.
        sources: the names of all its videos, without those of which an update has forgotten an old version and rejected
            the new one.
        keys: the keys of all clips, case-folded and sorted.
        labelled: whether any clip has a label.
        rejected: the rows of rejected.parquet.
        in_place: its videos in place, by name, without those whose clips are all forgotten.
        roots: the real paths, or URLs, of its roots.
        next_number: the lowest shard number that no revision of the dataset has used.
        forgotten: the table of forgotten clips, see `streamvid.dataset.forgotten`.
    """

    manifest: Manifest
    sha256: str
    sources: frozenset[str]
    keys: tuple[str, ...]
    labelled: bool
    rejected: tuple[Rejected, ...]
    in_place: Mapping[str, VideoInPlace]
    roots: frozenset[str]
    next_number: int
    forgotten: pa.Table


def read_base(destination: str, roots: Sequence[str] = ()) -> BaseDataset:
    """Open the dataset at a destination to append to it; `roots` as in `Dataset.open`.

    Raises:
        InputError: there is no dataset.
        DatasetError: the dataset is damaged.
    """
    path = join(destination, FILE_NAME)
    if not filesystem.exists(path):
        raise InputError(f"there is no dataset at {redact(destination)} to add to: leave out --append or --update")
    data = filesystem.read_bytes(path)
    dataset = Dataset.open(destination, roots=roots)
    manifest = Manifest.from_json(data, path=redact(path))
    if manifest != dataset.manifest:
        raise InputError(f"the dataset at {redact(destination)} changed while it was being read: run this again")
    forgotten = read_table(destination, manifest, Retry.of(COMMAND_SECONDS))
    rejected = tuple(read_rejected(destination))
    return BaseDataset(
        manifest,
        hashlib.sha256(data).hexdigest(),
        _sources(dataset, forgotten, rejected),
        tuple(sorted(key.casefold() for key in dataset.clips.key)),
        bool((dataset.clips.label >= 0).any()),
        rejected,
        _in_place(dataset),
        frozenset(map(real_path, resolve_roots(destination, manifest.roots, roots))),
        next_number(destination, manifest),
        forgotten,
    )


def _sources(dataset: Dataset, forgotten: pa.Table, rejected: Sequence[Rejected]) -> frozenset[str]:
    """`BaseDataset.sources`. Clips that a user has forgotten have a time in the table, those of old versions none."""
    old = set(forgotten_rows(forgotten.filter(pc.is_null(forgotten["forgotten"])), dataset.manifest).tolist())
    others = {source for row, source in enumerate(dataset.clips.source) if row not in old}
    again = {name for video in rejected for name in (video.source, purged_name(video.source))}
    return frozenset(dataset.clips.source) - (again - others)


def _in_place(dataset: Dataset) -> dict[str, VideoInPlace]:
    """`BaseDataset.in_place`."""
    found: dict[str, VideoInPlace] = {}
    forgotten = set(dataset.forgotten.tolist())
    for row, source in enumerate(dataset.clips.source if dataset.clips.files is not None else ()):
        version = dataset.version(row)
        if version is not None and row not in forgotten:
            clips = found[source].clips if source in found else ()
            at = dataset.location(row), int(dataset.clips.mp4_offset[row])
            found[source] = VideoInPlace(*at, version, (*clips, dataset.place_in_shard(row)))
    return found


def changed_sources(sources: Sequence[SourceVideo], base: BaseDataset) -> dict[str, tuple[tuple[str, int], ...]]:
    """The sources whose file has changed since the dataset indexed it, or was moved, with the dataset's clips of each,
    as shard and row.

    Raises:
        InputError: a source has the name of a video in the dataset, and is another file, below a new root; or is the
            file of one, and has another name.
    """
    changed, elsewhere = {}, []
    folders = cache(os.path.realpath)
    names = {(_place(stored.path, folders), stored.offset): name for name, stored in base.in_place.items()}
    for source in sources:
        if source.problem:
            continue
        stored, place = base.in_place.get(source.name), _place(source.path, folders)
        if stored is None:
            name = names.get((place, source.part[0] if source.part else 0))
            # What begins there in another version of a tar may be another video.
            if name and (not source.part or _is_version(source, base.in_place[name].version)):
                raise InputError(
                    f"{redact(source.path)}: the dataset has this file as {name}, by the path below another folder, "
                    f"and not as {source.name}: give the same folders as before, or those of new files alone; or index "
                    "all anew (--overwrite)"
                )
        elif _is_version(source, stored.version):
            if place != _place(stored.path, folders) and _is_gone(stored.path):
                changed[source.name] = stored.clips  # it was moved
        elif place == _place(stored.path, folders):
            changed[source.name] = stored.clips
        elif real_path(source.root) in base.roots:
            elsewhere.append(f"{source.name} ({redact(stored.path)})")
        else:
            raise InputError(
                f"{source.name}: the dataset has a video of this name, {redact(stored.path)}, of another size or time "
                f"than {redact(source.path)}: index the new ones into a dataset of their own, and join both (streamvid "
                "merge --prefix); or, if the videos have moved, index all anew (--overwrite)"
            )
    if elsewhere:
        log.warning(
            "%s of another size or time, which the dataset has elsewhere by that name, as from a repair: left out; the "
            "first is %s",
            format_count(len(elsewhere), "video"), elsewhere[0],
        )  # fmt: skip
    return changed


def _is_version(source: SourceVideo, version: FileVersion) -> bool:
    return (source.file_bytes or source.size, source.mark) == (version.size, version.mark)


def _is_gone(path: str) -> bool:
    return is_local(path) and not os.path.exists(local_path(path))


def _place(path: str, folders: Callable[[str], str]) -> str:
    """A path without links to folders, which `folders` resolves; a URL as it is."""
    if not is_local(path):
        return path
    folder, name = os.path.split(local_path(path))
    return os.path.join(folders(folder), name)


def new_sources(sources: Sequence[SourceVideo], base: BaseDataset, changed: Collection[str] = ()) -> list[SourceVideo]:
    """The sources that are new to the dataset, by name, or have changed, with unused keys; without purged videos.

    A source gets a longer key, with digits of its name's SHA-256, if its usual key is used, or is a prefix of used
    keys, since the keys of clips cut from it begin with it.

    Raises:
        InputError: all keys that a source may have are used.
    """
    known = base.sources
    new = [
        source for source in sources if source.name in changed or not {source.name, purged_name(source.name)} & known
    ]
    taken: set[str] = {source.key.casefold() for source in new}
    found = []
    for source in new:
        key = source.key
        if _is_taken(key, base):
            others = [*longer_keys(source.name), *longer_keys(f"{source.key}/{source.mark}")]
            longer = (other for other in others if other.casefold() not in taken)
            key = next((other for other in longer if not _is_taken(other, base)), "")
            if not key:
                raise InputError(f"no key is free for {source.name}: rename it")
            taken.add(key.casefold())
        found.append(source if key == source.key else replace(source, key=key))
    return found


def _is_taken(key: str, base: BaseDataset) -> bool:
    folded = key.casefold()
    cut = clip_key(key, "_000000").removesuffix("000000")  # a long key is shortened in the keys of its clips
    for prefix in (folded, f"{folded}-", cut.casefold()):
        i = bisect.bisect_left(base.keys, prefix)
        found = base.keys[i] if i < len(base.keys) else ""
        if found == folded or (prefix != folded and found.startswith(prefix)):
            return True
    return False


def extend_classes(new: tuple[str, ...] | None, base: BaseDataset, *, labelled: bool) -> tuple[str, ...] | None:
    """The dataset's class names with the new ones appended, so that existing class numbers keep their meaning.

    Args:
        new: class names of the new videos; None if their labels are numbers, or they have no labels.
        labelled: whether any of the new videos has a label.

    Raises:
        InputError: labels are text on one side and numbers on the other.
    """
    old = base.manifest.classes
    if not labelled:
        return old
    if base.labelled and (old is None) != (new is None):
        kinds = ("text", "numbers") if old is not None else ("numbers", "text")
        raise InputError(f"the dataset's labels are {kinds[0]} and the new ones {kinds[1]}: use {kinds[0]}")
    if new is None:
        return old
    known = set(old or ())
    return (*(old or ()), *(name for name in new if name not in known))
