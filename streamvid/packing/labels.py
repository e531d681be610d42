"""Labels and metadata: joins the rows of lists with the sources, and converts text labels to class numbers."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.checks import did_you_mean
from streamvid.errors import InputError
from streamvid.packing.lists import ParsedList, is_list, raw_labels, read_list, video_column
from streamvid.packing.metadata import MetadataLists
from streamvid.packing.source_video import SourceVideo
from streamvid.storage.url import is_local, local_path, redact

FOLDERS: Final = "folders"
"""In place of a list of labels: `streamvid.packing.inputs.find_sources` labels videos by their folders."""
_EXAMPLES: Final = 3
"""Missing videos, and rows without a video, that a message names; the others are counted."""
_SPELLINGS: Final[Mapping[str, Callable[[SourceVideo], str]]] = {
    "name": lambda source: source.name,
    "path": lambda source: _normal(source.path),
    "stem": lambda source: posixpath.splitext(source.name)[0],
    "key": lambda source: source.key,
    "basename": lambda source: posixpath.basename(source.name),
    "basename stem": lambda source: posixpath.splitext(posixpath.basename(source.name))[0],
}
"""The ways in which a list may name a video, the most exact first."""


def class_names(labels: Collection[int | str | None]) -> tuple[str, ...] | None:
    """The names of the classes in alphabetical order: label *i* means ``names[i]``. None if labels are class numbers.

    Args:
        labels: all labels of a pack, including None.

    Raises:
        InputError: some labels are numbers and others text.
    """
    names = {label for label in labels if isinstance(label, str)}
    if names and any(isinstance(label, int) for label in labels):
        raise InputError("some labels are numbers and others text: use one or the other")
    return tuple(sorted(names)) or None


@dataclass(frozen=True)
class Join:
    """How the rows of a list matched the videos.

    Attributes:
        path: path of the list, without credentials.
        rows: number of rows.
        joined: number of videos with a row.
        missing: number of videos without a row; `missing_names` are the first of them.
        surplus: number of rows that match no video; `surplus_names` are the first of them, as in the list.
    """

    path: str
    rows: int
    joined: int
    missing: int
    missing_names: tuple[str, ...]
    surplus: int
    surplus_names: tuple[str, ...]

    def sentences(self) -> list[str]:
        """Warnings: one if videos have no row, one if rows match no video."""
        warnings = []
        if self.missing:
            total = self.missing + self.joined
            warnings.append(
                f"{self.missing:,} of {total:,} videos have no row in {self.path}{_examples(self.missing_names)}"
            )
        if self.surplus:
            warnings.append(
                f"{self.surplus:,} of {self.rows:,} rows of {self.path} name no video{_examples(self.surplus_names)}"
            )
        return warnings


def attach_labels(sources: Sequence[SourceVideo], path: str, lists: MetadataLists) -> tuple[list[SourceVideo], Join]:
    """Add the labels and other columns of a list to the sources.

    A row that matches no video is an error, because the clip for which the label was meant would silently get none.

    Args:
        path: a .csv, .jsonl or .parquet with a column `path` (or `video`: a path below the input folder, the path that
            was given, also relative to the list's folder, a file name or a key, with or without extension) or `key`,
            and a column `label` (integers or text).

    Returns:
        The sources, in the same order, and how the rows matched them.

    Raises:
        InputError: the list cannot be read, lacks these columns or labels, or a row matches no video or several, or
            two rows match the same.
    """
    shown = redact(path)
    if not is_list(path) and (meant := did_you_mean(path, (FOLDERS,))):
        raise InputError(f"labels are a list or {FOLDERS!r}; they are {shown!r}; {meant}")
    rows = read_list(path)
    names = rows.table.schema.names
    if "label" not in names:
        raise InputError(
            f"{shown} has no column 'label' but {', '.join(names) or 'none'}: name one so, or give the "
            "list as --metadata"
        )
    labels = raw_labels(rows.table, shown)
    if all(label is None for label in labels):
        raise InputError(f"{shown} gives no label: fill in its column 'label', or leave out the list")
    joined, join = _join(sources, rows, path, lists, labels=labels)
    if join.surplus:
        others = f" and {join.surplus - 1} more" if join.surplus > 1 else ""
        raise InputError(
            f"{shown} labels {join.surplus_names[0]!r}{others}, not among the {len(sources)} videos: "
            "correct the paths or drop the rows"
        )
    return joined, join


def attach_metadata(sources: Sequence[SourceVideo], path: str, lists: MetadataLists) -> tuple[list[SourceVideo], Join]:
    """Add the columns of a list to the sources.

    Rows that match no video are counted, because such lists often describe more videos than are packed. A list without
    any matching row is an error.

    Args:
        path: as in `attach_labels`, but without a column `label`.

    Returns:
        The sources, in the same order, and how the rows matched them.

    Raises:
        InputError: the list cannot be read, has no column that names videos, or has a column `label`; a row matches
            several videos, two rows match the same, or no row matches any.
    """
    shown = redact(path)
    rows = read_list(path)
    if "label" in rows.table.schema.names:
        raise InputError(f"{shown} has a column 'label': give the list as --labels, or name the column otherwise")
    joined, join = _join(sources, rows, path, lists)
    if not join.joined:
        raise InputError(
            f"none of the {join.rows} rows of {shown} names one of the {len(sources)} videos"
            f"{_examples(join.surplus_names)}: correct the paths"
        )
    return joined, join


def _join(
    sources: Sequence[SourceVideo],
    rows: ParsedList,
    path: str,
    lists: MetadataLists,
    *,
    labels: Sequence[int | str | None] | None = None,
) -> tuple[list[SourceVideo], Join]:
    """The sources with the numbers of their rows, and with the rows' `labels` if given; and how the rows matched."""
    shown = redact(path)
    column, cells = video_column(rows.table, ("path", "video", "key"), shown)
    joined = list(sources)
    missing = {source.name: None for source in sources}  # a dict keeps their order
    matches = match_videos(sources, column, cells, path)
    matched = np.flatnonzero(matches >= 0)
    first = lists.add(rows.take(matched), (column, "label", "key"), shown)
    for number, row in enumerate(matched.tolist(), first):
        i = int(matches[row])
        source = sources[i]
        if source.name not in missing:
            raise InputError(f"{shown} names {source.name!r} more than once: keep one row")
        del missing[source.name]
        label = source.label if labels is None else labels[row]
        joined[i] = replace(source, label=label, rows=(*source.rows, number))
    surplus = np.flatnonzero(matches < 0).tolist()
    join = Join(
        path=shown,
        rows=len(cells),
        joined=len(sources) - len(missing),
        missing=len(missing),
        missing_names=tuple(missing)[:_EXAMPLES],
        surplus=len(surplus),
        surplus_names=tuple(cells[row] for row in surplus[:_EXAMPLES]),
    )
    return joined, join


def _normal(path: str) -> str:
    """A URL, or the absolute path of a local file, without `..`."""
    return posixpath.normpath(local_path(path)) if is_local(path) else path


def _examples(names: Sequence[str]) -> str:
    return f", such as {', '.join(repr(name[:100]) for name in names)}" if names else ""


def match_videos(sources: Sequence[SourceVideo], column: str, cells: Sequence[str], path: str) -> Int64:
    """For each row of a list, the index of the source that it means, or -1.

    Args:
        column: the list's column that names videos: "key", or a column of paths.

    Raises:
        InputError: a cell matches several videos.
    """
    shown = redact(path)
    find = _Finder(sources, posixpath.dirname(path))
    matched = np.full(len(cells), -1)
    for row, cell in enumerate(cells):
        found = find.called("key", cell) if column == "key" else find.by_path(cell)
        if len(found) > 1:
            names = " and ".join(sources[i].name for i in found[:2])
            raise InputError(f"{cell[:200]!r} in {shown} may be {names}: write the path below the packed folder")
        if found:
            matched[row] = found[0]
    return matched


class _Finder:
    """Looks sources up by key or path. Lookup tables are built on first use, as most lists name all videos in the same
    way."""

    def __init__(self, sources: Sequence[SourceVideo], folder: str) -> None:
        self._sources = sources
        self._folder = folder
        self._tables: dict[str, dict[str, int | list[int]]] = {}

    def by_path(self, path: str) -> list[int]:
        """The sources that a path means, by the most exact interpretation that any of them matches."""
        # A relative path may be relative to the packed folder, to the working directory, or to the list's folder.
        absolute = [_normal(p) for p in (path, posixpath.join(self._folder, path))]
        for spelling in _SPELLINGS:
            for written in (path, posixpath.normpath(path), *absolute):
                if found := self.called(spelling, written):
                    return found
        return []

    def called(self, spelling: str, wanted: str) -> list[int]:
        """The sources for which one of `_SPELLINGS` gives this text."""
        table = self._tables.get(spelling)
        if table is None:
            table = self._tables[spelling] = {}
            for i, name in enumerate(map(_SPELLINGS[spelling], self._sources)):
                known = table.setdefault(name, i)
                # Nearly all names are unique, and a list for each would take most of the memory.
                if isinstance(known, list):
                    known.append(i)
                elif known != i:
                    table[name] = [known, i]
        found = table.get(wanted, [])
        return found if isinstance(found, list) else [found]
