"""The metadata of a pack: the rows of its lists, which stay in Arrow from the list to the shard.

`MetadataLists` collects the lists as they are read. `Metadata` holds their rows as one table, a column per name, beside
the JSON of each row. Sources and cuts refer to rows by number. A group's task carries the rows of its own videos, and
the shard's columns are taken from them. docs/format.md specifies the types.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamvid.arrays import Int64
from streamvid.dataset.schema import FIELD_PREFIX, SCHEMA
from streamvid.errors import InputError
from streamvid.packing.lists import ParsedList, json_rows
from streamvid.packing.typed_columns import column_type, dump_json, large_type, to_type, unify_schemas
from streamvid.storage.table_bounds import MAX_COLUMNS


@dataclass(frozen=True)
class Metadata:
    """Some or all rows of a pack's lists.

    Attributes:
        number: int64 [rows], ascending: the rows' numbers, counted over all lists of the pack.
        texts: large_string [rows], each row's columns as a JSON object.
        table: the rows' columns, null if a row's list has no such column.
        own: columns that packing adds itself: the position of a clip in its video.
        starts: int64 [lists], the number of each list's first row.
        has: bool [lists, columns], whether a list has a column.
    """

    number: Int64
    texts: pa.Array
    table: pa.Table
    own: pa.Schema
    starts: Int64
    has: npt.NDArray[np.bool_]

    @property
    def schema(self) -> pa.Schema:
        """Names and Parquet types of all columns, the same for every shard of a pack."""
        return pa.schema([*self.own, *((field.name, column_type(field.type)) for field in self.table.schema)])

    def part(self, rows: Iterable[int]) -> Metadata:
        """Some of the rows, with the same numbers."""
        number = np.unique(np.fromiter(rows, dtype=np.int64))
        taken = pa.array(np.searchsorted(self.number, number))
        return replace(self, number=number, texts=self.texts.take(taken), table=self.table.take(taken))

    def json(self, rows: Sequence[int], own: Mapping[str, float | int] | None = None) -> str:
        """The columns of one clip as a JSON object: those of its rows, of which later ones take precedence, and its
        `own`."""
        texts: list[str] = [self.texts[int(at)].as_py() for at in np.searchsorted(self.number, rows)]
        if len(texts) == 1 and not own:
            return texts[0]
        merged: dict[str, Any] = {}
        for text in texts:
            merged |= json.loads(text)
        return dump_json(merged | dict(own or {}))

    def columns(self, clips: Sequence[tuple[Sequence[int], Mapping[str, float | int]]]) -> pa.Table:
        """The columns of clips for Parquet, named with `FIELD_PREFIX`; null where a clip has no value.

        Args:
            clips: the rows and own columns of each clip, as in `json`.
        """
        columns = [pa.array([own.get(field.name) for _, own in clips], type=field.type) for field in self.own]
        padded = np.full((len(clips), max((len(rows) for rows, _ in clips), default=0) + 1), -1, dtype=np.int64)
        for line, (rows, _) in zip(padded, clips, strict=True):
            line[1 : 1 + len(rows)] = rows
        lists = np.searchsorted(self.starts, padded, side="right") - 1
        at = np.searchsorted(self.number, padded)
        for column, has in zip(self.table.columns, self.has.T, strict=True):
            given = has[lists] & (padded >= 0)
            last = given.shape[1] - 1 - np.argmax(given[:, ::-1], axis=1)
            picked = at[np.arange(len(clips)), last]
            values = column.take(pa.array(picked, mask=~given.any(axis=1))).combine_chunks()
            fixed = pa.types.is_fixed_size_list(values.type)  # of a dataset: lists of files become plain ones
            columns.append(values if fixed else to_type(values, column_type(values.type)))
        return pa.table(columns, names=[FIELD_PREFIX + name for name in self.schema.names])


class MetadataLists:
    """Collects the metadata columns of lists in the order in which these are read.

    Attributes:
        own: names of columns that packing adds for cuts, which no list may have.
    """

    def __init__(self, own: Sequence[str] = ()) -> None:
        self.own = own
        self._starts = [0]
        self._texts: list[pa.Array] = []
        self._lists: list[ParsedList] = []

    def add(self, rows: ParsedList, consumed: tuple[str, ...], shown: str) -> int:
        """Add the rows of a list, without the columns `consumed`. Returns the number of the first row; those of the
        others follow.

        Raises:
            InputError: as in `streamvid.packing.lists.json_rows`.
        """
        there = list({*consumed} & {*rows.table.schema.names})
        rows = ParsedList(rows.table.drop_columns(there), rows.typed.drop_columns(there))
        self._texts.append(json_rows(rows.table, shown))
        self._lists.append(rows)
        self._starts.append(self._starts[-1] + rows.table.num_rows)
        return self._starts[-2]

    def json(self, row: int) -> str:
        """A row's columns as a JSON object."""
        number = bisect.bisect_right(self._starts, row) - 1
        return str(self._texts[number][row - self._starts[number]].as_py())

    def finish(self, own: pa.Schema) -> Metadata:
        """The metadata of all rows.

        Raises:
            InputError: a list has a column of the same name as one of `own`, or there are too many for a file.
        """
        schema = unify_schemas([rows.typed.schema for rows in self._lists])
        if (total := len(schema) + len(own) + len(SCHEMA)) > MAX_COLUMNS:
            raise InputError(
                f"the lists' columns and those of packing are {total:,}, where {MAX_COLUMNS:,} are the most: leave "
                "some out, as those without values"
            )
        for taken in schema.names:
            if taken in own.names:
                raise InputError(f"a list has a column {taken!r}, which packing adds for cuts: rename it")
        columns = []
        for field in schema:
            kind = large_type(field.type)
            parts = [pa.array([], type=kind)]
            for rows in self._lists:
                parts += rows.column_as(field.name, kind)
            columns.append(pa.concat_arrays(parts))
        texts = pa.concat_arrays([pa.array([], pa.large_string()), *self._texts])
        has = [[name in names for name in schema.names] for names in (set(r.typed.schema.names) for r in self._lists)]
        return Metadata(
            np.arange(self._starts[-1]),
            texts,
            pa.table(columns, names=schema.names),
            own,
            np.array(self._starts[:-1], dtype=np.int64),
            np.array(has, dtype=bool).reshape(len(self._lists), len(schema)),
        )
