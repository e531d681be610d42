"""The table of a preview: all columns of as many clips as fit into a page."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.columns import is_number
from streamvid.dataset.dataset import Dataset
from streamvid.errors import StreamvidError
from streamvid.inspection.listing import SIZE
from streamvid.text import displayable

_FEW: Final = 30
"""Values at most of which a filter offers a choice."""
_SHORT_CHOICE: Final = 24
"""Characters of values of which a filter offers a choice even if most clips have their own."""
_EXACT: Final = 1 << 53
"""From here on JavaScript's numbers are not exact."""
_ITEMS: Final = 16
"""Elements of a list that are shown."""
_FIRST: Final = ("key", "class", "label", "seconds", "upright_width", "upright_height", "fps", "frames", "codec")
GOP: Final = "packets per random access"
"""A column that a preview has beside the dataset's, as it has `SIZE`."""


@dataclass(frozen=True)
class Column:
    """A column of the page.

    Attributes:
        name: its name, displayable.
        kind: "number"; "choice", for columns of few distinct values; or "text".
        values: one for each clip, None for no value: numbers, with infinities as text; for a "choice" indices into
            `names`; or text.
        names: the distinct values of a "choice".
    """

    name: str
    kind: Literal["number", "choice", "text"]
    values: list[Any]
    names: tuple[str, ...] = ()

    def text(self, place: int) -> str:
        """A value as text; "" for none."""
        value: float | str | None = self.values[place]
        if value is None:
            return ""
        if self.kind == "choice":
            return self.names[int(value)]
        return f"{value:.6g}" if isinstance(value, float) else str(value)


def column_names(dataset: ClipSource) -> list[str]:
    """All columns of a dataset: the most interesting, then the user's own, then the others."""
    names, built_in = dataset.columns.names, dataset.columns.built_in
    first = [name for name in _FIRST if name in names]
    own = [name for name in names if name not in built_in]
    rest = [name for name in built_in if name not in first]
    return [*first, GOP, SIZE, *own, *rest]


def read_column(dataset: ClipSource, name: str) -> pa.Array:
    """A column of `column_names`, one value per clip. Raises StreamvidError if its types contradict each other."""
    clips = dataset.clips
    if name == GOP:
        return pa.array(clips.packets / np.maximum(clips.random_access, 1))
    if name == SIZE:
        return pa.array(clips.mp4_size)
    return dataset.columns.get(name)


def page_column(name: str, array: pa.Array, most: int) -> Column:
    """A column for a page.

    Args:
        array: the values for the clips of the page.
    """
    kind = array.type
    shown = displayable(name, most)
    if is_number(array):
        values = [_number(value) for value in array.to_pylist()]
        exact = all(not isinstance(value, int) or abs(value) <= _EXACT for value in values)
        return Column(shown, "number", values) if exact else Column(shown, "text", [_text(v, most) for v in values])
    if pa.types.is_boolean(kind):
        return Column(shown, "choice", [None if v is None else int(v) for v in array.to_pylist()], ("False", "True"))
    if pa.types.is_fixed_size_list(kind):
        array = array.cast(pa.list_(kind.value_type))
    if pa.types.is_list(array.type):
        cut = pc.list_slice(array, 0, _ITEMS).to_pylist()
        lengths = pc.list_value_length(array).to_pylist()
        texts = [_list_text(value, length, most) for value, length in zip(cut, lengths, strict=True)]
        return Column(shown, "text", texts)
    if pa.types.is_large_string(kind):
        array = pc.utf8_slice_codeunits(array, 0, most + 2)
    texts = [_text(value, most) for value in array.to_pylist()]
    names = sorted({text for text in texts if text is not None})
    few = len(names) <= _FEW and (2 * len(names) <= len(texts) or max(map(len, names), default=0) <= _SHORT_CHOICE)
    if few and name not in ("key", "source"):
        numbers = {text: number for number, text in enumerate(names)}
        return Column(shown, "choice", [None if text is None else numbers[text] for text in texts], tuple(names))
    return Column(shown, "text", texts)


def _number(value: float | None) -> float | str | None:
    """A number for JSON: None for NaN, and text for infinities."""
    if value is None or math.isnan(value):
        return None
    return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")


def _text(value: Any, most: int) -> str | None:
    return None if value is None else displayable(str(value), most)


def _list_text(value: list[Any] | None, length: int | None, most: int) -> str | None:
    if value is None or length is None:
        return None
    text = json.dumps(value, ensure_ascii=False, default=str)
    if length > len(value):
        text = f"{text[:most]} … ({length:,})"
    return displayable(text, most + _SHORT_CHOICE)


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
        rows: int64 [clips], ascending.
        columns: the columns, one value per clip each.
        own: for each column, whether it is a metadata column of the user.
        notes: remarks about omissions.
    """

    rows: Int64
    columns: list[Column]
    own: list[bool]
    notes: list[str]

    def to_json(self, strips: Sequence[int]) -> str:
        """The JSON for the page's script: the columns, and for each strip the index of its clip in them."""
        columns = [vars(column) for column in self.columns]
        value = {"columns": columns, "cards": np.searchsorted(self.rows, strips).tolist()}
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    def beside(self, strips: Sequence[int]) -> Iterator[tuple[Fields, Fields]]:
        """For each strip, the values that are shown beside it, and those that are shown on demand."""
        most = max(_OPEN, _FIELDS // max(1, len(strips)))
        for place in np.searchsorted(self.rows, strips).tolist():
            fields = [(column.name, column.text(place)) for column in self.columns]
            own = [field for field, mine in zip(fields, self.own, strict=True) if mine and field[1]][:_OPEN]
            yield tuple(own), tuple(field for field in fields if field[1])[:most]


def make_table(dataset: Dataset, rows: Int64, strips: Sequence[int], random: np.random.Generator) -> Table:
    """The table of a dataset.

    Args:
        rows: int64 [selected], the selected rows.
        strips: rows of the clips with strips, which the table includes.
        random: draws the other rows if there is no room for all.
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
    """The rows of strips, and random others up to `count`."""
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
