"""Compares two datasets clip by clip."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Bool, Int64
from streamvid.checks import suggest_keywords
from streamvid.dataset.columns import is_number
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.selection import delivered
from streamvid.inspection.duplicates import description

VIDEO: Final = "video"
"""Stands for a clip's bytes among the names of columns."""
_AT_ONCE: Final = 1024


@dataclass(frozen=True)
class Difference:
    """The differences between two datasets.

    Attributes:
        added: keys that only the second has, in its order.
        removed: keys that only the first has, in its order.
        changed: keys that both have, in the order of the first, each with the columns that differ; `VIDEO` for its
            bytes.
        same: number of clips that are equal in both.
        unknown: keys of clips whose videos have no checksums of the same kind to compare. If nothing else differs, they
            count as equal.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[tuple[str, tuple[str, ...]], ...]
    same: int
    unknown: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether there is any difference."""
        return bool(self.added or self.removed or self.changed)


@suggest_keywords
def diff(first: Dataset | str | os.PathLike[str], second: Dataset | str | os.PathLike[str]) -> Difference:
    """Compare two datasets, or two revisions of one, by their keys.

    Videos are compared by SHA-256, and, if that is unknown or different, by times, sizes and CRC-32C of their packets,
    regardless of the container. No video is read. Forgotten clips count as missing.

    Raises:
        DatasetError: a dataset or its storage cannot be read.
    """
    one, two = (data if isinstance(data, Dataset) else Dataset.open(data) for data in (first, second))
    rows = [delivered(one), delivered(two)]
    keys = [data.columns.get("key").take(pa.array(own)) for data, own in zip((one, two), rows, strict=True)]
    at = pc.index_in(keys[0], value_set=keys[1])
    both = np.asarray(pc.is_valid(at))
    added = keys[1].filter(pc.invert(pc.is_in(keys[1], value_set=keys[0]))).to_pylist()
    removed = keys[0].filter(pa.array(~both)).to_pylist()
    pairs = (rows[0][both], rows[1][at.filter(pa.array(both)).to_numpy()])
    other, unknown = _videos(one, two, pairs)
    differing = {VIDEO: other} | {name: differs for name, differs in _columns(one, two, pairs) if differs.any()}
    table = np.stack(list(differing.values()))
    names = list(differing)
    changed = np.flatnonzero(table.any(axis=0))
    shared = keys[0].filter(pa.array(both))
    return Difference(
        tuple(added),
        tuple(removed),
        tuple(
            (key, tuple(names[n] for n in np.flatnonzero(table[:, at])))
            for key, at in zip(shared.take(pa.array(changed)).to_pylist(), changed.tolist(), strict=True)
        ),
        len(shared) - len(changed),
        tuple(shared.filter(pa.array(unknown)).to_pylist()),
    )


def _columns(one: Dataset, two: Dataset, pairs: tuple[Int64, Int64]) -> Iterator[tuple[str, Bool]]:
    """Each column except the key, with the common clips in which it differs."""
    classes = one.classes is not None or two.classes is not None
    left_out = {"key", *(("label",) if classes else ())}
    for name in dict.fromkeys((*one.columns.names, *two.columns.names)):
        if name not in left_out:
            yield name, _differ(*(_values(data, name, rows) for data, rows in zip((one, two), pairs, strict=True)))


def _values(data: Dataset, name: str, rows: Int64) -> pa.Array:
    if name == "class" and data.classes is None:  # the other dataset has class names, and this one numbers
        name = "label"
    return data.columns.get(name).take(pa.array(rows)) if name in data.columns.names else pa.nulls(len(rows))


def _differ(a: pa.Array, b: pa.Array) -> Bool:
    """bool [values]: where two columns differ. Two missing values are equal, and so are two NaNs."""
    missing = [np.asarray(pc.is_null(column)) for column in (a, b)]
    differs: Bool = missing[0] != missing[1]
    there = ~missing[0] & ~missing[1]
    if not there.any():
        return differs
    a, b = (column.filter(pa.array(there)) for column in (a, b))
    lists = [isinstance(column, pa.ListArray | pa.FixedSizeListArray) for column in (a, b)]
    if all(lists):
        differs[there] = _lists_differ(a, b)
    elif is_number(a) and is_number(b):  # not by Arrow, which compares no float16, nor integers that no float is
        one, other = (column.to_numpy(zero_copy_only=False) for column in (a, b))
        if a.type != b.type:  # as Python's numbers, which are compared exactly
            one, other = one.astype(object), other.astype(object)
        differs[there] = (one != other) & ((one == one) | (other == other))
    else:
        differs[there] = True if a.type != b.type else np.asarray(pc.not_equal(a, b))
    return differs


def _lists_differ(a: pa.Array, b: pa.Array) -> Bool:
    sizes = [np.asarray(pc.list_value_length(column)) for column in (a, b)]
    differs: Bool = sizes[0] != sizes[1]
    alike = pa.array(~differs & (sizes[0] > 0))
    counts = sizes[0][np.asarray(alike)]
    if len(counts):
        inner = _differ(*(pc.list_flatten(column.filter(alike)) for column in (a, b)))
        differs[np.asarray(alike)] = np.add.reduceat(inner.astype(np.int64), np.cumsum(counts) - counts) > 0
    return differs


def _videos(one: Dataset, two: Dataset, pairs: tuple[Int64, Int64]) -> tuple[Bool, Bool]:
    """bool [pairs] each: which common clips have different videos, and for which that is unknown."""
    differs, unknown = np.zeros((2, len(pairs[0])), dtype=bool)
    shards = [data.clips.shard[rows] for data, rows in zip((one, two), pairs, strict=True)]
    numbers = {tuple(entry.checksums.items()): number for number, entry in enumerate(two.shards)}
    twin = np.array([numbers.get(tuple(entry.checksums.items()), -1) for entry in one.shards], dtype=np.int64)
    starts = [np.array([data.rows(s).start for s in range(len(data.shards))], dtype=np.int64) for data in (one, two)]
    inside = [rows - first[shard] for rows, first, shard in zip(pairs, starts, shards, strict=True)]
    open_ = np.flatnonzero((twin[shards[0]] != shards[1]) | (inside[0] != inside[1]))
    sums = [data.checksums(rows[open_]) for data, rows in zip((one, two), pairs, strict=True)]
    known = np.array([bool(a and b) for a, b in zip(*sums, strict=True)], dtype=bool)
    equal = known & np.array([a == b for a, b in zip(*sums, strict=True)], dtype=bool)
    # Different bytes may be the same packets in another container.
    others, differ = open_[~equal], known[~equal]
    for first in range(0, len(others), _AT_ONCE):
        some = others[first : first + _AT_ONCE]
        verdicts = _by_packets(one, two, pairs[0][some], pairs[1][some])
        told = differ[first : first + _AT_ONCE].tolist()
        differs[some] = [
            verdict is False or (verdict is None and was) for verdict, was in zip(verdicts, told, strict=True)
        ]
        unknown[some] = [verdict is None and not was for verdict, was in zip(verdicts, told, strict=True)]
    return differs, unknown


def _by_packets(one: Dataset, two: Dataset, first: Int64, second: Int64) -> list[bool | None]:
    """Whether clips have the same video, by their frame indexes; None if these have no checksums."""
    verdicts: list[bool | None] = []
    indexes = [data.indexes(rows.tolist()) for data, rows in ((one, first), (two, second))]
    for a, b, p, q in zip(first.tolist(), second.tolist(), *indexes, strict=True):
        ticks = [(data.clips.time_base_num[row], data.clips.time_base_den[row]) for data, row in ((one, a), (two, b))]
        times = p.pts * ticks[0][0] * ticks[1][1], q.pts * ticks[1][0] * ticks[0][1]
        stsds = [description(data, row) for data, row in ((one, a), (two, b))]
        if not (np.array_equal(p.size, q.size) and np.array_equal(*times) and stsds[0] == stsds[1]):
            verdicts.append(False)
            continue
        checked = (p.crc32c >= 0) & (q.crc32c >= 0)
        if (p.crc32c[checked] != q.crc32c[checked]).any():
            verdicts.append(False)
        else:
            same_file = (one.location(a), one.version(a)) == (two.location(b), two.version(b)) != ("", None)
            verdicts.append(True if checked.all() or (same_file and np.array_equal(p.offset, q.offset)) else None)
    return verdicts
