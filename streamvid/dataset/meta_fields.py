"""The columns that came with the clips, out of the parquets' typed columns. Shards may have different ones.

What comes out is the same as out of the JSON (`streamvid.dataset.meta_json`): bool, int64, float64, large_string, or
lists of these, so that nobody downstream needs to know how many bits a list of somebody's had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamvid.errors import DatasetError


@dataclass(frozen=True)
class Fields:
    """Columns of metadata by name.

    Attributes:
        arrays: those that can be used, each with one value per clip, null where there is none.
        wrong: those that cannot, and why: shards or datasets disagree about their type.
        types: how the parquets hold each, as text, such as ``float32``.
    """

    arrays: Mapping[str, pa.Array]
    wrong: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, those that cannot be used too."""
        return (*self.arrays, *(name for name in self.wrong if name not in self.arrays))

    def get(self, name: str) -> pa.Array:
        """A column. Raises KeyError if there is none of that name, DatasetError if it cannot be used."""
        if name in self.wrong:
            raise DatasetError(self.wrong[name])
        return self.arrays[name]


@dataclass(frozen=True)
class Stretch:
    """Clips one after another that have the same columns: a shard's, or a joined dataset's.

    Attributes:
        rows: how many.
        fields: their columns.
        name: of the shard or dataset, for messages.
    """

    rows: int
    fields: Fields
    name: str


def of_table(table: pa.Table) -> Fields:
    """A shard's columns as they are used.

    Args:
        table: the columns, without their prefix.
    """
    arrays, wrong = {}, {}
    for name in table.schema.names:
        column = table[name].combine_chunks()
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks else pa.array([], type=column.type)
        kind = _usable(column.type)
        if kind is None:
            wrong[name] = f"the column {name!r} holds {column.type}, which cannot be used here"
            continue
        try:
            arrays[name] = _as(column, kind)
        except pa.ArrowException as error:
            wrong[name] = f"the column {name!r} holds values that cannot be used ({str(error).splitlines()[0]})"
    return Fields(arrays, wrong, {f.name: _type_text(f.type) for f in table.schema})


def joined(stretches: Sequence[Stretch], remedy: str) -> Fields:
    """The columns of several stretches of clips, one after another. A clip without a column has null there; whole
    numbers beside others become float64; other differences make the column one that cannot be used.

    Args:
        stretches: in order.
        remedy: what to do about a column that cannot be used.
    """
    if len(stretches) == 1:
        return stretches[0].fields
    names = list(dict.fromkeys(name for stretch in stretches for name in stretch.fields.names))
    arrays: dict[str, pa.Array] = {}
    wrong: dict[str, str] = {}
    types: dict[str, str] = {}
    for name in names:
        found = [stretch.fields.types[name] for stretch in stretches if name in stretch.fields.types]
        types[name] = " or ".join(dict.fromkeys(found))
        try:
            arrays[name] = _column(name, stretches)
        except _DisagreeError as error:
            wrong[name] = f"{error}: {remedy}"
    return Fields(arrays, wrong, types)


class _DisagreeError(Exception):
    """The text says who does, about what."""


def _column(name: str, stretches: Sequence[Stretch]) -> pa.Array:
    kind, first = pa.null(), ""
    for stretch in stretches:
        if name in stretch.fields.wrong:
            raise _DisagreeError(f"{stretch.name}: {stretch.fields.wrong[name]}")
        own = stretch.fields.arrays.get(name)
        if own is None or pa.types.is_null(own.type):
            continue
        common = _common(kind, own.type)
        if common is None:
            raise _DisagreeError(
                f"the column {name!r} holds {_said(kind)} in {first} and {_said(own.type)} in {stretch.name}"
            )
        kind, first = common, first or stretch.name
    parts = [stretch.fields.arrays.get(name) for stretch in stretches]
    filled = [
        pa.nulls(stretch.rows, kind) if part is None else part.cast(kind, safe=False)
        for stretch, part in zip(stretches, parts, strict=True)
    ]
    return pa.concat_arrays(filled)


def _common(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    if one == two or pa.types.is_null(two):
        return one
    if pa.types.is_null(one):
        return two
    if {one, two} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(two):
        inner = _common(one.value_type, two.value_type)
        return None if inner is None else pa.list_(inner)
    return None


def _said(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"lists of {_said(kind.value_type)}"
    words = {pa.bool_(): "truth values", pa.int64(): "whole numbers", pa.float64(): "numbers"}
    return words.get(kind, "text")


def _type_text(kind: pa.DataType) -> str:
    """The type's name, without what a writer calls the elements of lists."""
    return f"list<{_type_text(kind.value_type)}>" if pa.types.is_list(kind) else str(kind)


def _usable(kind: pa.DataType) -> pa.DataType | None:
    """What a column of that type is used as."""
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return kind
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_dictionary(kind):
        return _usable(kind.value_type)
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_date, pa.types.is_time, pa.types.is_timestamp)
    if any(is_kind(kind) for is_kind in text):
        return pa.large_string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = _usable(kind.value_type)
        return None if inner is None else pa.list_(inner)
    return None


def _as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if kind == pa.int64() and column.type == pa.uint64():
        most: Any = pc.max(column).as_py()
        kind = pa.float64() if most is not None and most >= 1 << 63 else kind
    result = column.cast(kind, safe=kind != pa.float64())
    if kind == pa.float64():
        # As where the metadata are JSON, which has neither infinity nor NaN.
        result = pc.if_else(pc.is_finite(result), result, pa.scalar(None, kind))
    return result
