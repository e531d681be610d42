"""Several datasets read as one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Int64
from streamvid.dataset.clip_table import Categories, ClipTable, Int32, ShardIndex
from streamvid.dataset.columns import Columns, check_labels
from streamvid.dataset.dataset import Dataset, IndexCache, Parquet
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.meta_fields import Fields, Stretch
from streamvid.dataset.meta_fields import joined as joined_fields
from streamvid.dataset.string_column import StringColumn
from streamvid.errors import DatasetError, InputError
from streamvid.storage import filesystem
from streamvid.video.frame_index import FrameIndex

if TYPE_CHECKING:
    from streamvid.storage.shard_cache import ShardCache

_CHANGED: Final = ("shard", "label", "stsd_id")
"""Arrays that a clip has other values of in the joined dataset."""
_REMEDY: Final = "pack one of them again with a list in which it is like the other's, or name it otherwise there"


@dataclass(frozen=True)
class Part:
    """One dataset among those joined.

    Attributes:
        name: what it is called here.
        path: folder or URL.
        first: the row of its first clip.
        rows: how many clips it has.
        first_shard: the number of its first shard.
        shards: what its dataset.json says about each.
    """

    name: str
    path: str
    first: int
    rows: int
    first_shard: int
    shards: tuple[ShardEntry, ...]


class ConcatDataset:
    """Several datasets as one, the clips of the first part first. A `ClipSource`; may be pickled.

    *Classes.* If the parts have class names, the joined dataset has all of them in the order of the alphabet, and
    labels become their numbers there: a number means one thing. If they have numbers, those stay as they are. Parts
    without labels go with both.

    *Keys.* A key that two parts have becomes ``<part's name>/<key>`` in both; `/` is in no key as packed, so keys
    stay unique. Others stay as they are.

    *Columns.* One more than a dataset has: `dataset`, the part's name.

    Memory is shared with `datasets` where the rows are the same, so keep those rather than the ones joined.

    Args:
        datasets: the parts, in order; a mapping also names them. Otherwise their names are those in dataset.json, and
            ``-2``, ``-3`` … is added to one that came before.

    Attributes:
        parts: which rows and shards are whose.
        datasets: each part by itself, with its own keys, labels and row numbers.
        clips: all clips' rows. `shard`, `label`, `key`, and the codes of categories are those of the joined dataset.
        columns: the clips' columns by name.

    Raises:
        InputError: there are no parts, one is not a `Dataset`, or some have class names and others numbers.
        DatasetError: a part has a label that is no class of it.
    """

    def __init__(self, datasets: Sequence[Dataset] | Mapping[str, Dataset]) -> None:
        named = _named(datasets)
        classes, labels = _joined_labels(named)
        tables = [dataset.clips for dataset in named.values()]
        parts, first, first_shard = [], 0, 0
        for name, dataset in named.items():
            shards = tuple(dataset.shards)
            parts.append(Part(name, dataset.path, first, len(dataset), first_shard, shards))
            first += len(dataset)
            first_shard += len(shards)
        clips = _concatenated(tables, parts, labels)
        self.parts = tuple(parts)
        self.datasets = tuple(
            _sharing(dataset, clips, part) for dataset, part in zip(named.values(), parts, strict=True)
        )
        self.clips = clips
        self._classes = classes
        self._first: Int64 = np.array([part.first for part in parts], dtype=np.int64)
        self._shards = tuple(shard for part in parts for shard in part.shards)
        self._paths = [part.path for part in parts for _ in part.shards]
        caches = [dataset.cache for dataset in self.datasets]
        self._indexes = IndexCache(
            [Parquet(part.path, s, cache) for part, cache in zip(parts, caches, strict=True) for s in part.shards],
            clips,
        )
        whose = np.repeat(np.arange(len(parts), dtype=np.int32), [part.rows for part in parts])
        names = tuple(part.name for part in parts)
        typed = any(dataset.typed is not None for dataset in self.datasets)
        self.columns = Columns(
            clips,
            classes,
            {"dataset": Categories(whose, names)},
            fields=self._fields if typed else None,
        )

    @classmethod
    def open(
        cls,
        paths: Sequence[str | os.PathLike[str]] | Mapping[str, str | os.PathLike[str]],
        *,
        cache: ShardCache | None = None,
    ) -> ConcatDataset:
        """Open datasets and join them.

        Args:
            paths: folders or URLs; a mapping also names them.
            cache: see `Dataset.open`.

        Raises:
            InputError, DatasetError: as from `Dataset.open`, and from joining.
        """
        if isinstance(paths, Mapping):
            return cls({name: Dataset.open(path, cache=cache) for name, path in paths.items()})
        if isinstance(paths, str | os.PathLike):
            raise InputError(f"paths must be a list of paths, it is {paths!r}: use Dataset.open for one dataset")
        return cls([Dataset.open(path, cache=cache) for path in paths])

    def __len__(self) -> int:
        """How many clips there are."""
        return len(self.clips)

    @property
    def path(self) -> str:
        """The parts' paths, for messages."""
        return " + ".join(part.path for part in self.parts)

    @property
    def is_local(self) -> bool:
        """Whether every shard is a local file."""
        return all(filesystem.is_local(part.path) for part in self.parts)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the class numbers, if the labels were given as text."""
        return self._classes

    @property
    def shards(self) -> Sequence[ShardEntry]:
        """All parts' shards, in the order of the parts. Names of shards may come more than once."""
        return self._shards

    def part_of(self, rows: npt.ArrayLike) -> Int32:
        """Whose clips these are: int [n] row numbers → int32 [n], positions in `parts`."""
        return (np.searchsorted(self._first, np.asarray(rows, dtype=np.int64), side="right") - 1).astype(np.int32)

    def key(self, i: int) -> str:
        """The key of clip *i*, with the part's name before it if another part has the same key."""
        return self.clips.key[i]

    def shard(self, s: int) -> ShardEntry:
        """What its dataset.json says about shard *s*."""
        return self._shards[s]

    def shard_path(self, s: int, extension: str = "tar") -> str:
        """Where shard *s* lies: a local path or a URL."""
        return filesystem.join(self._paths[s], self._shards[s].file(extension))

    def rows(self, s: int) -> slice:
        """The rows of shard *s*, in the order of its tar."""
        return self._indexes.rows(s)

    def index(self, i: int) -> FrameIndex:
        """The frame index of clip *i*; errors as from `Dataset.index`, with the part's name."""
        if not 0 <= i < len(self):
            raise IndexError(f"clip {i} of {len(self)}")
        s = int(self.clips.shard[i])
        return self.shard_index(s).clip(i - self.rows(s).start)

    def shard_index(self, s: int) -> ShardIndex:
        """The frame indexes of all clips of shard *s*; errors as from `index`."""
        try:
            return self._indexes.shard(s)
        except DatasetError as error:
            part = self.parts[int(self.part_of(self.rows(s).start))]
            raise DatasetError(f"dataset {part.name!r}: {error}") from error

    def _fields(self) -> Fields:
        """The metadata of all parts, where one has them typed."""
        parts = zip(self.parts, self.datasets, strict=True)
        stretches = [Stretch(part.rows, dataset.columns.fields(), f"dataset {part.name!r}") for part, dataset in parts]
        return joined_fields(stretches, _REMEDY)

    def __getstate__(self) -> dict[str, Dataset]:
        return {part.name: dataset for part, dataset in zip(self.parts, self.datasets, strict=True)}

    def __setstate__(self, state: dict[str, Dataset]) -> None:
        self.__init__(state)  # type: ignore[misc]


def _named(datasets: Sequence[Dataset] | Mapping[str, Dataset]) -> dict[str, Dataset]:
    items: list[tuple[str, Dataset]] = (
        list(datasets.items()) if isinstance(datasets, Mapping) else [("", dataset) for dataset in datasets]
    )
    if not items:
        raise InputError("there are no datasets to join: give at least one")
    named: dict[str, Dataset] = {}
    for name, dataset in items:
        if not isinstance(dataset, Dataset):
            raise InputError(f"only datasets can be joined, not {dataset!r}: open them with Dataset.open first")
        if not isinstance(datasets, Mapping):
            plain = name = dataset.manifest.name
            number = 2
            while name in named:
                name, number = f"{plain}-{number}", number + 1
        named[name] = dataset
    return named


def _joined_labels(named: Mapping[str, Dataset]) -> tuple[tuple[str, ...] | None, list[Int64]]:
    """The classes of all parts together, and each part's labels by these."""
    texts = [name for name, dataset in named.items() if dataset.classes is not None]
    numbers = [name for name, dataset in named.items() if dataset.classes is None and (dataset.clips.label >= 0).any()]
    if texts and numbers:
        raise InputError(
            f"dataset {texts[0]!r} has class names and {numbers[0]!r} has class numbers, which cannot be joined: "
            "pack one of them again with labels like the other's"
        )
    if not texts:
        return None, [dataset.clips.label for dataset in named.values()]
    classes = tuple(sorted({name for dataset in named.values() for name in dataset.classes or ()}))
    number_of = {name: number for number, name in enumerate(classes)}
    labels = []
    for dataset in named.values():
        own = dataset.classes or ()
        # One more at the end: no label, -1, stays none.
        numbers_here = np.array([*(number_of[name] for name in own), -1], dtype=np.int64)
        labels.append(numbers_here[check_labels(dataset.clips, own)])
    return classes, labels


def _concatenated(tables: Sequence[ClipTable], parts: Sequence[Part], labels: Sequence[Int64]) -> ClipTable:
    columns: dict[str, Any] = {}
    for field in fields(ClipTable):
        values = [getattr(table, field.name) for table in tables]
        if isinstance(values[0], Categories):
            columns[field.name] = _joined_categories(values)
        elif isinstance(values[0], np.ndarray):
            columns[field.name] = np.concatenate(values)
        elif field.name in ("key", "source", "meta", "sha256"):
            columns[field.name] = StringColumn(pa.concat_arrays([StringColumn.of(value).array for value in values]))
    starts = [np.int32(part.first_shard) for part in parts]
    columns["shard"] = np.concatenate([table.shard + start for table, start in zip(tables, starts, strict=True)])
    columns["label"] = np.concatenate(labels)
    stsds = _joined_codes([table.stsd_id for table in tables], [table.stsds for table in tables])
    columns["stsd_id"], columns["stsds"] = stsds[0], list(stsds[1])
    columns["key"] = _unique_keys([table.key for table in tables], [part.name for part in parts])
    return ClipTable(**columns)


def _sharing(dataset: Dataset, clips: ClipTable, part: Part) -> Dataset:
    """A dataset whose rows are, where they can be, views of the joined ones."""
    rows = slice(part.first, part.first + part.rows)
    same = {
        field.name: getattr(clips, field.name)[rows]
        for field in fields(ClipTable)
        if field.name not in _CHANGED and isinstance(getattr(clips, field.name), np.ndarray)
    }
    return Dataset(
        dataset.path, dataset.manifest, replace(dataset.clips, **same), typed=dataset.typed, cache=dataset.cache
    )


def _joined_categories(columns: Sequence[Categories]) -> Categories:
    codes, names = _joined_codes([column.codes for column in columns], [column.names for column in columns])
    return Categories(codes, tuple(names))


def _joined_codes(codes: Sequence[Int32], values: Sequence[Sequence[Any]]) -> tuple[Int32, dict[Any, int]]:
    """Codes into several lists of values → codes into one list, of the different values in the order they come."""
    code_of: dict[Any, int] = {}
    joined = []
    for own_codes, own_values in zip(codes, values, strict=True):
        mapped = np.array([code_of.setdefault(value, len(code_of)) for value in own_values], dtype=np.int32)
        joined.append(mapped[own_codes] if len(own_codes) else own_codes)
    return np.concatenate(joined).astype(np.int32), code_of


def _unique_keys(keys: Sequence[Sequence[str]], names: Sequence[str]) -> StringColumn:
    """The keys of all parts, those that two have with the part's name before them. No part has a key twice."""
    texts = [StringColumn.of(part).array for part in keys]
    whole = pa.concat_arrays(texts)
    if pc.count_distinct(whole).as_py() == len(whole):
        return StringColumn(whole)
    counted = pc.value_counts(whole)
    several = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
    named = [
        pc.if_else(pc.is_in(text, value_set=several), pc.binary_join_element_wise(_text(name), text, _text("/")), text)
        for name, text in zip(names, texts, strict=True)
    ]
    return StringColumn(pa.concat_arrays(named))


def _text(text: str) -> pa.Scalar[Any]:
    return pa.scalar(text, type=pa.large_string())
