"""Labels and metadata from lists beside the videos, and the numbers that classes get."""

from __future__ import annotations

import bisect
import json
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from streamvid.errors import InputError
from streamvid.packing.inputs import SourceVideo
from streamvid.packing.lists import dump_json, other_columns, raw_labels, read_table, video_column
from streamvid.storage import filesystem
from streamvid.storage.url import local_path

_NAMED: Final = 3
"""Missing videos and surplus rows that are named; the others are counted."""


@dataclass(frozen=True)
class Classes:
    """What labels were given as: numbers (`names` is None) or text, then class *i* is called `names[i]`."""

    names: tuple[str, ...] | None

    def number(self, label: int | str | None) -> int | None:
        """The class number of a label that `classes_of` has seen."""
        if isinstance(label, str):
            return bisect.bisect_left(self.names or (), label)
        return label


def classes_of(sources: Sequence[SourceVideo]) -> Classes:
    """The classes that the sources' labels make up; names in order of the alphabet.

    Raises:
        InputError: some labels are numbers and others text.
    """
    labels = {source.label for source in sources if source.label is not None}
    names = sorted(label for label in labels if isinstance(label, str))
    if names and len(names) < len(labels):
        raise InputError("some labels are numbers and others text: use one or the other")
    return Classes(tuple(names) if names else None)


@dataclass(frozen=True)
class Join:
    """How the rows of a list met the videos.

    Attributes:
        path: of the list, without secrets.
        rows: rows of the list.
        joined: videos that have a row.
        missing: videos that have none; `missing_names` are the first of them.
        surplus: rows whose video is not there; `surplus_names` are the first of them, as the list has them.
    """

    path: str
    rows: int
    joined: int
    missing: int
    missing_names: tuple[str, ...]
    surplus: int
    surplus_names: tuple[str, ...]

    def sentences(self) -> list[str]:
        """What a person should know of it; nothing if every row met a video and every video a row."""
        said = []
        if self.missing:
            total = self.missing + self.joined
            said.append(f"{self.missing:,} of {total:,} videos have no row in {self.path}{_such(self.missing_names)}")
        if self.surplus:
            said.append(
                f"{self.surplus:,} of {self.rows:,} rows of {self.path} name no video{_such(self.surplus_names)}"
            )
        return said


def attach_labels(sources: Sequence[SourceVideo], path: str) -> tuple[list[SourceVideo], Join]:
    """Give the sources the labels, and other columns, of a list.

    A row that names no video is an error here: a label that goes astray leaves a clip without one, and the training
    would not tell.

    Args:
        sources: what is packed.
        path: a .csv, .jsonl or .parquet with a column `path` (or `video`: a path below the folder that was given, the
            path that was given, also relative to the list's folder, a file name or a key, with or without extension)
            or `key`, and a column `label` (integers, or text).

    Raises:
        InputError: the list cannot be read, has no such columns, names a video that is not there or more than one,
            or one twice.
    """
    shown = filesystem.redact(path)
    table = read_table(path)
    if "label" not in table.schema.names:
        raise InputError(
            f"{shown} has no column 'label' but {', '.join(table.schema.names) or 'none'}: name one so, or give the "
            "list as --metadata"
        )
    labels = raw_labels(table, shown)
    extra, chosen, join = _join(sources, table, path)
    if join.surplus:
        others = f" and {join.surplus - 1} more" if join.surplus > 1 else ""
        raise InputError(
            f"{shown} labels {join.surplus_names[0]!r}{others}, not among the {len(sources)} videos: "
            "correct the paths or drop the rows"
        )
    return [
        replace(source, label=labels[row], meta=_merged(source.meta, extra[row])) if row >= 0 else source
        for source, row in zip(sources, chosen, strict=True)
    ], join


def attach_metadata(sources: Sequence[SourceVideo], path: str) -> tuple[list[SourceVideo], Join]:
    """Give the sources the columns of a list.

    Rows that name no video are only counted: such lists often describe more videos than are packed. A list of which
    no row names one is an error.

    Args:
        sources: what is packed.
        path: as of `attach_labels`, but without a column `label`.

    Raises:
        InputError: the list cannot be read, has no column that names videos, or a column `label`; a row may name more
            than one video, two rows name the same, or none names any.
    """
    shown = filesystem.redact(path)
    table = read_table(path)
    if "label" in table.schema.names:
        raise InputError(f"{shown} has a column 'label': give the list as --labels, or name the column otherwise")
    extra, chosen, join = _join(sources, table, path)
    if not join.joined:
        raise InputError(
            f"none of the {join.rows} rows of {shown} names one of the {len(sources)} videos{_such(join.surplus_names)}"
            ": correct the paths"
        )
    return [
        replace(source, meta=_merged(source.meta, extra[row])) if row >= 0 else source
        for source, row in zip(sources, chosen, strict=True)
    ], join


def _join(sources: Sequence[SourceVideo], table: pa.Table, path: str) -> tuple[list[str], list[int], Join]:
    """The other columns of each row as JSON; for each source its row, or -1; and how it went."""
    shown = filesystem.redact(path)
    column, cells = video_column(table, ("path", "video", "key"), shown)
    extra = other_columns(table, (column, "label", "key"), shown)
    find = Finder(sources, posixpath.dirname(path))
    chosen = [-1] * len(sources)
    surplus: list[str] = []
    for row, cell in enumerate(cells):
        matches = find.by_key(cell) if column == "key" else find.by_path(cell)
        if not matches:
            surplus.append(cell)
            continue
        if len(matches) > 1:
            names = " and ".join(sources[i].name for i in matches[:2])
            raise InputError(f"{cell!r} in {shown} may be {names}: write the path below the packed folder")
        if chosen[matches[0]] >= 0:
            raise InputError(f"{shown} names {sources[matches[0]].name!r} more than once: keep one row")
        chosen[matches[0]] = row
    missing = [source.name for source, row in zip(sources, chosen, strict=True) if row < 0]
    join = Join(
        path=shown,
        rows=len(cells),
        joined=len(sources) - len(missing),
        missing=len(missing),
        missing_names=tuple(missing[:_NAMED]),
        surplus=len(surplus),
        surplus_names=tuple(surplus[:_NAMED]),
    )
    return extra, chosen, join


def _such(names: Sequence[str]) -> str:
    return f", such as {', '.join(repr(name[:100]) for name in names)}" if names else ""


def _merged(first: str, second: str) -> str:
    if first == "{}":
        return second
    return dump_json(json.loads(first) | json.loads(second))


class Finder:
    """Looks videos up by what a person may call them, from the most exact meaning to the least. A table of names is
    made when something is first looked for in it: lists mostly name all videos in the same way."""

    def __init__(self, sources: Sequence[SourceVideo], folder: str) -> None:
        self._sources = sources
        self._folder = folder
        self._tables: dict[Callable[[SourceVideo], str], dict[str, int | list[int]]] = {}

    def by_key(self, key: str) -> list[int]:
        """The position of the source with that key."""
        return self._called(_key, key)

    def by_path(self, path: str) -> list[int]:
        """Positions of the sources so called, by the most exact meaning that any has."""
        # A relative path may count from the packed folder, from where we are, or from where the list is.
        meanings = [path, posixpath.normpath(path), *(_whole(p) for p in (path, posixpath.join(self._folder, path)))]
        for name in (_name, _path, _stem, _key, _base, _base_stem):
            for written in meanings:
                if found := self._called(name, written):
                    return found
        return []

    def _called(self, name: Callable[[SourceVideo], str], wanted: str) -> list[int]:
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = {}
            for i, source in enumerate(self._sources):
                known = table.setdefault(name(source), i)
                # Nearly all names are of one video: a list for each would take most of the memory.
                if isinstance(known, list):
                    known.append(i)
                elif known != i:
                    table[name(source)] = [known, i]
        found = table.get(wanted, [])
        return found if isinstance(found, list) else [found]


def _whole(path: str) -> str:
    return local_path(path) if filesystem.is_local(path) else path


def _key(source: SourceVideo) -> str:
    return source.key


def _path(source: SourceVideo) -> str:
    return source.path


def _name(source: SourceVideo) -> str:
    return source.name


def _stem(source: SourceVideo) -> str:
    return posixpath.splitext(source.name)[0]


def _base(source: SourceVideo) -> str:
    return posixpath.basename(source.name)


def _base_stem(source: SourceVideo) -> str:
    return posixpath.splitext(posixpath.basename(source.name))[0]
