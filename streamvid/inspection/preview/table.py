"""The table of a preview: all columns of as many clips as a page has room for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from streamvid.arrays import Int64
from streamvid.dataset.dataset import Dataset
from streamvid.errors import StreamvidError
from streamvid.inspection.preview.columns import Column, column_names, page_column, read_column
from streamvid.text import displayable

TABLE_BYTES: Final = 16 << 20
"""Bytes of the table at most."""
_ROWS: Final = 10_000
"""Its clips at most; those with strips are among them."""
_COLUMNS: Final = 2000
_CELLS: Final = 1_000_000
_LONG, _TEXT, _SHORT = 2000, 300, 30
"""Characters of a cell; where there is no room for so many; and where there is none for clips either."""
_FIELDS: Final = 20_000
"""Values that stand beside all strips together."""
_OPEN: Final = 6
"""The user's columns that stand openly beside a strip."""

Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """The columns of some clips.

    Attributes:
        rows: int64 [clips], rising.
        columns: of these clips.
        own: how many of the columns are the user's, for each.
        notes: what is missing.
    """

    rows: Int64
    columns: list[Column]
    own: list[bool]
    notes: list[str]

    def to_json(self, strips: Sequence[int]) -> str:
        """What the page's script reads: the columns, and for each strip the place of its clip in them."""
        columns = [vars(column) for column in self.columns]
        value = {"columns": columns, "cards": np.searchsorted(self.rows, strips).tolist()}
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    def beside(self, strips: Sequence[int]) -> Iterator[tuple[Fields, Fields]]:
        """For each strip the values that stand beside it openly, and those that are shown on demand."""
        most = max(_OPEN, _FIELDS // max(1, len(strips)))
        for place in np.searchsorted(self.rows, strips).tolist():
            fields = [(column.name, column.text(place)) for column in self.columns]
            own = [field for field, mine in zip(fields, self.own, strict=True) if mine and field[1]][:_OPEN]
            yield tuple(own), tuple(field for field in fields if field[1])[:most]


def make_table(dataset: Dataset, rows: Int64, strips: Sequence[int], random: np.random.Generator) -> Table:
    """The table of a dataset.

    Args:
        rows: int64, those that are selected.
        strips: rows of the clips with strips, which are in the table.
        random: draws the others where there is no room for all.
    """
    names, most = column_names(dataset)[:_COLUMNS], _LONG
    kept = _drawn(rows, strips, min(_ROWS, _CELLS // len(names)), random)
    while True:
        table = _read(dataset, names, kept, most)
        size = len(table.to_json(strips).encode("utf-8", errors="replace"))
        if size <= TABLE_BYTES:
            break
        if most == _LONG:
            most = _TEXT
        elif len(kept) > max(1, len(strips)):
            kept = _drawn(kept, strips, min(len(kept) - 1, int(0.9 * len(kept) * TABLE_BYTES / size)), random)
        elif most == _TEXT:
            most = _SHORT
        elif len(names) > 1:
            names = names[: len(names) // 2]
        else:
            break
    left_out = len(column_names(dataset)) - len(names)
    notes = [f"{len(kept):,} of {len(rows):,} clips, drawn at random."] if len(kept) < len(rows) else []
    notes += [f"{left_out:,} columns are left out."] if left_out else []
    notes += [f"Longer texts are cut after {most} characters, for filters, too."] if most < _LONG else []
    return Table(kept, table.columns, table.own, [*notes, *table.notes])


def _drawn(rows: Int64, strips: Sequence[int], count: int, random: np.random.Generator) -> Int64:
    """The rows of strips, and others up to that count."""
    if len(rows) <= count:
        return rows
    with_strips = np.unique(np.array(strips, dtype=np.int64))
    others = random.choice(rows, max(0, count - len(with_strips)), replace=False)
    return np.union1d(with_strips, others)


def _read(dataset: Dataset, names: Sequence[str], rows: Int64, most: int) -> Table:
    taken, built_in = pa.array(rows), dataset.columns.built_in
    table = Table(rows, [], [], [])
    for name in names:
        try:
            table.columns.append(page_column(name, read_column(dataset, name).take(taken), most))
            table.own.append(name in dataset.columns.names and name not in built_in)
        except StreamvidError as error:
            table.notes.append(f"The column {displayable(name, most)} cannot be shown: {error}")
    return table
