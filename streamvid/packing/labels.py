"""Labels from a list beside the videos, and the numbers that classes get."""

from __future__ import annotations

import bisect
import json
import posixpath
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamvid.errors import InputError
from streamvid.packing.sources import Source
from streamvid.packing.tables import dump_json, other_columns, raw_labels, read_table, video_column
from streamvid.store import storage
from streamvid.store.paths import local_path


@dataclass(frozen=True)
class Classes:
    """What labels were given as: numbers (`names` is None) or text, then class *i* is called `names[i]`."""

    names: tuple[str, ...] | None

    def number(self, label: int | str | None) -> int | None:
        """The class number of a label that `classes_of` has seen."""
        if isinstance(label, str):
            return bisect.bisect_left(self.names or (), label)
        return label


def classes_of(sources: Sequence[Source]) -> Classes:
    """The classes that the sources' labels make up; names in order of the alphabet.

    Raises:
        InputError: some labels are numbers and others text.
    """
    labels = {source.label for source in sources if source.label is not None}
    names = sorted(label for label in labels if isinstance(label, str))
    if names and len(names) < len(labels):
        raise InputError("some labels are numbers and others text: use one or the other")
    return Classes(tuple(names) if names else None)


def attach_labels(sources: Sequence[Source], path: str) -> list[Source]:
    """Give the sources the labels, and other columns, of a list.

    Args:
        sources: what is packed.
        path: a .csv, .jsonl or .parquet with a column `path` (or `video`: a path below the folder that was given, the
            path that was given, also relative to the list's folder, a file name or a key, with or without extension)
            or `key`, and a column `label` (integers, or text).

    Raises:
        InputError: the list cannot be read, has no such columns, names a video that is not there or more than one,
            or labels one twice.
    """
    shown = storage.redact(path)
    table = read_table(path)
    if "label" not in table.schema.names:
        raise InputError(f"{shown} has no column 'label' but {', '.join(table.schema.names) or 'none'}: name one so")
    column, cells = video_column(table, ("path", "video", "key"), shown)
    labels = raw_labels(table, shown)
    extra = other_columns(table, tuple({column, "label", "key"}), shown)
    find = _Finder(sources, posixpath.dirname(path))
    chosen: dict[int, int] = {}
    missing: list[str] = []
    for row, cell in enumerate(cells):
        matches = find.by_key(cell) if column == "key" else find.by_path(cell)
        if not matches:
            missing.append(cell)
            continue
        if len(matches) > 1:
            names = " and ".join(sources[i].name for i in matches[:2])
            raise InputError(f"{cell!r} in {shown} may be {names}: write the path below the packed folder")
        if matches[0] in chosen:
            raise InputError(f"{shown} labels {sources[matches[0]].name!r} more than once: keep one row")
        chosen[matches[0]] = row
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(
            f"{shown} labels {missing[0]!r}{others}, not among the {len(sources)} videos: "
            "correct the paths or drop the rows"
        )
    return [
        replace(source, label=labels[chosen[i]], meta=_merged(source.meta, extra[chosen[i]])) if i in chosen else source
        for i, source in enumerate(sources)
    ]


def _merged(first: str, second: str) -> str:
    if first == "{}":
        return second
    return dump_json(json.loads(first) | json.loads(second))


class _Finder:
    """Looks videos up by what a person may call them."""

    def __init__(self, sources: Sequence[Source], folder: str) -> None:
        self._folder = folder
        self._tables: list[dict[str, list[int]]] = []
        self._keys: dict[str, list[int]] = {source.key: [i] for i, source in enumerate(sources)}
        for name in (_name, _path, _stem, _base, _base_stem):
            table: dict[str, list[int]] = defaultdict(list)
            for i, source in enumerate(sources):
                table[name(source)].append(i)
            self._tables.append(dict(table))
        self._tables.insert(3, self._keys)

    def by_key(self, key: str) -> list[int]:
        return self._keys.get(key, [])

    def by_path(self, path: str) -> list[int]:
        """Positions of the sources so called, by the most exact meaning that any has."""
        # A relative path may count from the packed folder, from where we are, or from where the list is.
        meanings = [path, posixpath.normpath(path), *(_whole(p) for p in (path, posixpath.join(self._folder, path)))]
        for table in self._tables:
            for written in meanings:
                if written in table:
                    return table[written]
        return []


def _whole(path: str) -> str:
    return local_path(path) if storage.is_local(path) else path


def _path(source: Source) -> str:
    return source.path


def _name(source: Source) -> str:
    return source.name


def _stem(source: Source) -> str:
    return posixpath.splitext(source.name)[0]


def _base(source: Source) -> str:
    return posixpath.basename(source.name)


def _base_stem(source: Source) -> str:
    return posixpath.splitext(posixpath.basename(source.name))[0]
