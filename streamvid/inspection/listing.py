"""The clips of a dataset as rows of a table, some thousand at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from streamvid.checks import integer, listed, suggest_keywords
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.selection import delivered
from streamvid.errors import InputError

SIZE: Final = "mp4_size"
"""A column that conditions and batches do not have: bytes of the clip's MP4; of one in place, of the file or member of
a tar that it lies in."""
_ROWS: Final = 8192


@suggest_keywords
def list_clips(
    dataset: Dataset | str | os.PathLike[str],
    *,
    where: str | pc.Expression | None = None,
    keys: Sequence[str] | str | os.PathLike[str] | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
) -> Iterator[pa.Table]:
    """The clips of a dataset in the order of its rows, without forgotten ones, as tables of some thousand rows.

    Args:
        dataset: a path or URL, or a dataset.
        where, keys: which clips, as in `streamvid.Subset`; default: all.
        columns: names of columns (docs/selecting.md), or `SIZE`; default: key, size, length, frames, rate, resolution,
            codec, and class or label if any clip has one.
        limit: most clips in the result.

    Raises:
        InputError: there is no such column or key, or a condition is invalid.
        DatasetError: the dataset cannot be opened.
    """
    if limit is not None:
        integer(limit, "limit", most=None)
    opened = dataset if isinstance(dataset, ClipSource) else Dataset.open(dataset)
    rows = delivered(opened, where=where, keys=keys)[:limit]
    if isinstance(columns, str):
        raise InputError(f"columns must be a list of column names, it is {columns!r}: write [{columns!r}]")
    names = listed(_usual(opened) if columns is None else columns, "columns", "column names")
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"columns must be a list of column names, one of them is {name!r}")
    found = {name: pa.array(opened.clips.mp4_size) if name == SIZE else opened.columns.get(name) for name in names}
    return (
        pa.table({name: column.take(pa.array(rows[first : first + _ROWS])) for name, column in found.items()})
        for first in range(0, len(rows), _ROWS)
    )


def _usual(dataset: ClipSource) -> Iterator[str]:
    yield from ("key", SIZE, "seconds", "frames", "fps", "width", "height", "codec")
    if (dataset.clips.label >= 0).any():
        yield "label" if dataset.classes is None else "class"
