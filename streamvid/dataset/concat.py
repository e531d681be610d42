"""Several datasets concatenated into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.clip_table import Categories, ClipTable, FileColumns, Int32
from streamvid.dataset.columns import Columns, check_labels
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.meta_columns import ColumnBlock, MetaColumns, concat_columns
from streamvid.dataset.string_column import StringColumn, repeated
from streamvid.errors import InputError

_RENUMBERED: Final = ("row", "shard", "label", "stsd_id")
"""Columns whose numbers change when datasets are concatenated."""


@dataclass(frozen=True)
class Part:
    """One of the concatenated datasets.

    Attributes:
        name: the part's name.
        path: folder or URL.
        first: the row of its first clip.
        rows: number of clips.
        first_shard: the number of its first shard.
    """

    name: str
    path: str
    first: int
    rows: int
    first_shard: int


class ConcatDataset(ClipSource):
    """Several datasets as one, the clips of the first part first. Picklable and thread-safe.

    *Classes.* If the parts have class names, the concatenated dataset has all of them in alphabetical order, and labels
    are renumbered accordingly. Class numbers without names are unchanged. Parts without labels combine with both.

    *Keys.* A key that two parts have becomes ``<part's name>/<key>`` in both; no packed key has a `/`, so keys stay
    unique. All others are unchanged.

    *Columns.* There is one more column than in a single dataset: `dataset`, the part's name.

    Args:
        datasets: the parts, in order; a mapping also names them. Otherwise their names are those in dataset.json, with
            ``-2``, ``-3`` … added to a repeated name.

    Attributes:
        parts: where each part begins.
        datasets: the parts as datasets, with their own keys, labels and row numbers. To save memory, keep these instead
            of the given datasets: their arrays are views of the concatenated ones if the values are equal.
        clips: all clips' rows. `shard`, `label`, `key` and codes of categories are those of the concatenated dataset.

    Raises:
        InputError: there are no parts, a part is no `Dataset`, or some have class names and others class numbers.
        DatasetError: a part has a label beyond its classes.
    """

    def __init__(self, datasets: Sequence[Dataset] | Mapping[str, Dataset]) -> None:
        named = _named(datasets)
        classes, labels = _concat_labels(named)
        parts, first, first_shard = [], 0, 0
        for name, dataset in named.items():
            parts.append(Part(name, dataset.path, first, len(dataset), first_shard))
            first += len(dataset)
            first_shard += len(dataset.shards)
        clips = _concat_clips([dataset.clips for dataset in named.values()], parts, labels)
        self.parts = tuple(parts)
        self.datasets = tuple(
            _sharing_memory(dataset, clips, part) for dataset, part in zip(named.values(), parts, strict=True)
        )
        self._first: Int64 = np.array([part.first for part in parts], dtype=np.int64)
        part_of = np.repeat(np.arange(len(parts), dtype=np.int32), [part.rows for part in parts])
        names = tuple(part.name for part in parts)
        columns = Columns(clips, classes, meta=self._meta_columns, extra={"dataset": Categories(part_of, names)})
        shards = [shard for dataset in self.datasets for shard in dataset.shard_files]
        forgotten = np.concatenate(
            [data.forgotten + part.first for part, data in zip(parts, self.datasets, strict=True)]
        )
        retry = max((dataset.reader.retry for dataset in self.datasets), key=lambda retry: retry.seconds)
        super().__init__(" + ".join(part.path for part in parts), clips, columns, classes, shards, retry, forgotten)

    def part_of(self, rows: npt.ArrayLike) -> Int32:
        """The part of each clip: int [n] row numbers → int32 [n], positions in `parts`."""
        return (np.searchsorted(self._first, np.asarray(rows, dtype=np.int64), side="right") - 1).astype(np.int32)

    def _meta_columns(self) -> MetaColumns:
        """The metadata columns of all parts."""
        parts = zip(self.parts, self.datasets, strict=True)
        return concat_columns([ColumnBlock(part.rows, data.meta, f"dataset {part.name!r}") for part, data in parts])

    def __getstate__(self) -> dict[str, Dataset]:
        return {part.name: dataset for part, dataset in zip(self.parts, self.datasets, strict=True)}

    def __setstate__(self, state: dict[str, Dataset]) -> None:
        self.__init__(state)  # type: ignore[misc]


def _named(datasets: Sequence[Dataset] | Mapping[str, Dataset]) -> dict[str, Dataset]:
    items: list[tuple[str, Dataset]] = (
        list(datasets.items()) if isinstance(datasets, Mapping) else [("", dataset) for dataset in datasets]
    )
    if not items:
        raise InputError("there are no datasets to concatenate: give at least one")
    named: dict[str, Dataset] = {}
    for name, dataset in items:
        if not isinstance(dataset, Dataset):
            raise InputError(f"only a Dataset can be concatenated, not {dataset!r}: open each with Dataset.open first")
        if not isinstance(datasets, Mapping):
            plain = name = dataset.manifest.name
            number = 2
            while name in named:
                name, number = f"{plain}-{number}", number + 1
        named[name] = dataset
    return named


def _concat_labels(named: Mapping[str, Dataset]) -> tuple[tuple[str, ...] | None, list[Int64]]:
    """The classes of all parts, and each part's labels as numbers of these classes, int64 [clips]."""
    texts = [name for name, dataset in named.items() if dataset.classes is not None]
    numbers = [name for name, dataset in named.items() if dataset.classes is None and (dataset.clips.label >= 0).any()]
    if texts and numbers:
        raise InputError(
            f"dataset {texts[0]!r} has class names and {numbers[0]!r} has class numbers, which cannot be mixed: "
            "pack one of them again with labels like the other's"
        )
    if not texts:
        return None, [dataset.clips.label for dataset in named.values()]
    classes = tuple(sorted({name for dataset in named.values() for name in dataset.classes or ()}))
    number_of = {name: number for number, name in enumerate(classes)}
    labels = []
    for dataset in named.values():
        own = dataset.classes or ()
        # The last element is for label -1, no label.
        numbers_here = np.array([*(number_of[name] for name in own), -1], dtype=np.int64)
        labels.append(numbers_here[check_labels(dataset.clips, own)])
    return classes, labels


def _concat_clips(tables: Sequence[ClipTable], parts: Sequence[Part], labels: Sequence[Int64]) -> ClipTable:
    alike = [field.name for field in fields(ClipTable) if field.name not in (*_RENUMBERED, "files")]
    columns = {name: _joined([getattr(table, name) for table in tables]) for name in alike}
    starts = [np.int32(part.first_shard) for part in parts]
    columns["shard"] = np.concatenate([table.shard + start for table, start in zip(tables, starts, strict=True)])
    columns["label"] = np.concatenate(labels)
    columns["row"] = np.arange(len(columns["label"]))
    firsts = np.cumsum([0, *(len(table.stsds) for table in tables)]).astype(np.int32)
    columns["stsd_id"] = np.concatenate([table.stsd_id + n for table, n in zip(tables, firsts, strict=False)])
    if any(table.files is not None for table in tables):
        # Root numbers stay those of the part that has the clip's shard.
        columns["files"] = _joined([_no_files(len(table)) if table.files is None else table.files for table in tables])
    columns["key"] = _unique_keys([table.key for table in tables], [part.name for part in parts])
    return ClipTable(**columns)


def _joined(values: Sequence[Any]) -> Any:
    """A column of several tables, one after the other."""
    if isinstance(values[0], Categories):
        codes, names = _concat_codes([value.codes for value in values], [value.names for value in values])
        return Categories(codes, tuple(names))
    if isinstance(values[0], FileColumns):
        return FileColumns(*map(_joined, zip(*(vars(value).values() for value in values), strict=True)))
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    return type(values[0])(_chunks([value.array for value in values]))


def _no_files(rows: int) -> FileColumns:
    """The file columns of clips in shards."""
    unknown, none = np.full(rows, -1), StringColumn(pa.repeat(_text(""), rows))
    return FileColumns(unknown.astype(np.int32), none, unknown, unknown, none)


def _sharing_memory(dataset: Dataset, clips: ClipTable, part: Part) -> Dataset:
    """A part whose arrays are views of the concatenated ones if the values are equal."""
    rows = slice(part.first, part.first + part.rows)
    same = {
        field.name: getattr(clips, field.name)[rows]
        for field in fields(ClipTable)
        if field.name not in _RENUMBERED and isinstance(getattr(clips, field.name), np.ndarray)
    }
    rows_of_part = replace(dataset.clips, **same)
    return Dataset(
        dataset.path,
        dataset.manifest,
        rows_of_part,
        meta=dataset._own_meta,
        cache=dataset.cache,
        retry=dataset.reader.retry,
        roots=dataset.roots,
        forgotten=dataset.forgotten,
    )


def _concat_codes(codes: Sequence[Int32], values: Sequence[Sequence[Any]]) -> tuple[Int32, dict[Any, int]]:
    """Concatenate dictionary-encoded columns: codes int32 [rows], and the distinct values with their codes."""
    code_of: dict[Any, int] = {}
    parts = []
    for own_codes, own_values in zip(codes, values, strict=True):
        mapped = np.array([code_of.setdefault(value, len(code_of)) for value in own_values], dtype=np.int32)
        parts.append(mapped[own_codes] if len(own_codes) else own_codes)
    return np.concatenate(parts).astype(np.int32), code_of


def _unique_keys(keys: Sequence[StringColumn], names: Sequence[str]) -> StringColumn:
    """The keys of all parts; a key that two parts have gets the part's name in front. No part has a key twice."""
    columns = [part.array for part in keys]
    whole = StringColumn(_chunks(columns))
    several = repeated(whole)
    if not several:
        return whole
    texts = pa.array(several, type=pa.large_string())
    named = [
        pc.if_else(pc.is_in(text, value_set=texts), pc.binary_join_element_wise(_text(name), text, _text("/")), text)
        for name, text in zip(names, columns, strict=True)
    ]
    return StringColumn(_chunks(named))


def _chunks(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], type=columns[0].type)


def _text(text: str) -> pa.Scalar[Any]:
    return pa.scalar(text, type=pa.large_string())
