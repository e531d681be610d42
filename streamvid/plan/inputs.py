"""The inputs of a loader: a dataset, a subset of one, or a mixture of several."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from streamvid.arrays import Int64, unique_rows
from streamvid.checks import listed, suggesting
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.concat import ConcatDataset
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.revisions import dataset_path
from streamvid.dataset.selection import Weights, repeats, select_rows
from streamvid.errors import InputError
from streamvid.plan.mixture import whole_weights
from streamvid.plan.permutation import Pool
from streamvid.plan.sample_id import MAX_SAMPLES, expand, rows_of
from streamvid.sampling.base import FrameSampler

_BLOCK: Final = 1 << 20
"""Clips whose samples are counted at a time, to limit memory."""
_MOST: Final = (1 << 31) - 1
DatasetLike = Dataset | str | os.PathLike[str]
"""An open dataset, its folder, or its URL such as s3://bucket/name."""


@suggesting
@dataclass(frozen=True)
class Subset:
    """Some clips of a dataset. docs/selecting.md has examples.

    Attributes:
        dataset: an open dataset, a folder or a URL.
        where: a condition on columns, as text such as ``"seconds >= 2 and label in (0, 3)"`` or a pyarrow expression.
        keys: the keys of the only clips that take part: a list, or a file.
        weights: how often clips come in an epoch: by label or class, "balanced", a column's name, or an array [clips].
        exclude: keys of clips that are not delivered, given like `keys`. Unlike `where` and `keys`, it may change when
            a run resumes: other clips stand in for them, as for bad clips, and the order of all others is kept.
    """

    dataset: DatasetLike
    where: str | pc.Expression | None = None
    keys: Sequence[str] | str | os.PathLike[str] | None = None
    weights: Weights | None = None
    exclude: Sequence[str] | str | os.PathLike[str] | None = None


@suggesting
@dataclass(frozen=True)
class Mix:
    """Several datasets at once, by weight: each has its exact share of every 4096 samples, in random order.

    After its last clip a dataset begins its next pass. `batch["epoch"]` is a sample's pass, and `batch["dataset"]` the
    index of its dataset in `parts`.

    Attributes:
        parts: (dataset, weight) pairs; weights are shares of the samples, and need not add up to 1.

    Raises:
        InputError: `parts` is no list of pairs, or a weight is not positive.
    """

    parts: Sequence[tuple[Subset | DatasetLike, float]]

    def __post_init__(self) -> None:
        given = self.parts.items() if isinstance(self.parts, Mapping) else self.parts
        # YAML and JSON have lists for pairs.
        several = listed(given, "Mix", "(dataset, weight)")
        parts = tuple(tuple(part) if isinstance(part, list) else part for part in several)
        if not parts or any(not isinstance(part, tuple) or len(part) != 2 for part in parts):
            raise InputError("Mix must be a list of (dataset, weight), at least one")
        whole_weights([weight for _, weight in parts])
        object.__setattr__(self, "parts", parts)


@dataclass(frozen=True)
class Source:
    """The opened datasets of a loader.

    Attributes:
        dataset: one dataset, or several concatenated.
        subsets: the selection of each part.
        first: int64 [parts], the first row of each part.
        weights: the parts' shares, as whole numbers.
    """

    dataset: Dataset | ConcatDataset
    subsets: tuple[Subset, ...]
    first: Int64
    weights: tuple[int, ...]

    @property
    def datasets(self) -> tuple[Dataset, ...]:
        """The parts."""
        return (self.dataset,) if isinstance(self.dataset, Dataset) else self.dataset.datasets

    def checksums(self) -> list[str]:
        """SHA-256 of every shard, in order."""
        return [entry.identity for entry in self.dataset.shards]

    def part_of(self, rows: Int64) -> Int64:
        """int64 [rows]: which part each row belongs to."""
        return np.searchsorted(self.first, rows, side="right") - 1


def open_source(data: Subset | Mix | DatasetLike, open_dataset: Callable[[str], Dataset]) -> Source:
    """Open the datasets of a loader's argument.

    Args:
        data: one dataset, a subset of one, or a mixture.
        open_dataset: opens a folder or URL.

    Raises:
        DatasetError, InputError: a dataset is missing or damaged, or they cannot be concatenated.
    """
    parts = data.parts if isinstance(data, Mix) else ((data, 1),)
    subsets = tuple(part if isinstance(part, Subset) else Subset(part) for part, _ in parts)
    given = (subset.dataset for subset in subsets)
    datasets = [data if isinstance(data, Dataset) else open_dataset(dataset_path(data)) for data in given]
    first = np.cumsum([0, *(len(dataset) for dataset in datasets[:-1])]).astype(np.int64)
    dataset = datasets[0] if len(datasets) == 1 else ConcatDataset(datasets)
    return Source(dataset, subsets, first, whole_weights([weight for _, weight in parts]))


@dataclass(frozen=True)
class Pools:
    """The samples of every part.

    Attributes:
        pools: one per part.
        short: number of clips left out because they are too short, with padding off.
        excluded: int64 [rows], clips that keep their places but are not delivered.
    """

    pools: tuple[Pool, ...]
    short: int
    excluded: Int64

    def rows(self) -> Int64:
        """int64: the rows of all selected clips, ascending and unique."""
        found = [_distinct(pool.sample_ids) for pool in self.pools]
        return found[0] if len(found) == 1 else np.concatenate(found)


def _distinct(sample_ids: Int64) -> Int64:
    """int64 [clips]: the distinct rows of a pool's samples, which are in ascending order. Not copied if each clip has
    one sample."""
    if len(sample_ids) and sample_ids.max() == rows_of(sample_ids[-1:])[0] and (np.diff(sample_ids) > 0).all():
        return sample_ids
    rows = rows_of(sample_ids)
    return rows[np.flatnonzero(np.diff(rows, prepend=-1))]


def make_pools(source: Source, sampling: FrameSampler) -> Pools:
    """The samples of the clips that each part's subset selects, without clips that are too short if padding is off.

    Raises:
        InputError: no clip of a part is selected, or its condition, keys or weights do not fit its columns.
    """
    pools, short = [], 0
    excluded = [source.dataset.forgotten]
    for part, subset in enumerate(source.subsets):
        rows = _selected(source, part)
        if subset.exclude is not None:
            try:
                left_out = select_rows(source.datasets[part], keys=subset.exclude)
            except InputError as error:
                raise InputError(f"exclude: {error}") from error
            excluded.append(source.first[part] + left_out)
            if np.isin(rows, excluded[-1]).all():
                raise InputError("exclude names all clips that are selected: leave some")
        kept = rows
        if sampling.pad == "none":
            kept = rows[~_per_tick(source.dataset, rows, sampling.is_too_short, dtype=bool)]
            short += len(rows) - len(kept)
        if len(kept) == 0:
            raise InputError(_nothing(subset, rows, sampling))
        pools.append(_pool(source, part, rows, kept, sampling, whole=sampling.pad == "none"))
    return Pools(tuple(pools), short, np.concatenate(excluded))


def _selected(source: Source, part: int) -> Int64:
    """int64: the rows, of all parts together, that one part's subset selects."""
    subset = source.subsets[part]
    ends = [*source.first[1:].tolist(), len(source.dataset)]
    rows = source.dataset.clips.row[source.first[part] : ends[part]]
    if subset.where is None and subset.keys is None:
        return rows
    return rows[select_rows(source.datasets[part], where=subset.where, keys=subset.keys)]


def _pool(source: Source, part: int, rows: Int64, kept: Int64, sampling: FrameSampler, *, whole: bool) -> Pool:
    dataset, subset = source.dataset, source.subsets[part]
    samples = _per_tick(dataset, kept, partial(sampling.num_samples, whole=whole), dtype=np.int32)
    most = int(samples.max())
    if most > MAX_SAMPLES:
        raise InputError(
            f"clip {dataset.key(int(kept[samples.argmax()]))} gives {most} samples; the limit is {MAX_SAMPLES}"
        )
    weights = None
    if subset.weights is not None:
        own = repeats(source.datasets[part], rows - source.first[part], subset.weights)
        weights = np.repeat(own[np.searchsorted(rows, kept)], samples)
    # For a whole dataset, return the column itself, which all processes of a node share.
    shards = dataset.clips.shard if len(kept) == len(dataset) else dataset.clips.shard[kept]
    pool = Pool(expand(kept, samples), shards if most == 1 == samples.min() else np.repeat(shards, samples), weights)
    if not len(pool):
        raise InputError("the weights leave no clip in an epoch: raise them")
    return pool


def _per_tick(dataset: ClipSource, rows: Int64, function: Callable[..., Any], *, dtype: Any) -> npt.NDArray[Any]:
    """Apply a function of (frames, durations, tick) to rows, which may have different ticks."""
    clips = dataset.clips
    result = np.zeros(len(rows), dtype=dtype)
    for start in range(0, len(rows), _BLOCK):
        some, values = rows[start : start + _BLOCK], result[start : start + _BLOCK]
        first, which = unique_rows(clips.time_base_num[some], clips.time_base_den[some])
        for number, row in enumerate(some[first].tolist()):
            here = np.flatnonzero(which == number)
            chosen = some[here]
            tick = Fraction(int(clips.time_base_num[row]), int(clips.time_base_den[row]))
            found = function(clips.frames[chosen].astype(np.int64), clips.duration[chosen], tick)
            values[here] = np.minimum(found, _MOST)
    return result


def _nothing(subset: Subset, rows: Int64, sampling: FrameSampler) -> str:
    if len(rows):
        return f"all {len(rows)} clips are too short for {sampling}: pad them, or sample fewer frames"
    given = [f"where={subset.where!r}"] * (subset.where is not None) + ["the keys given"] * (subset.keys is not None)
    return f"no clip fits {' and '.join(given)}: widen the selection"
