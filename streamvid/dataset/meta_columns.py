"""The metadata columns of a dataset: the columns of the user's lists of videos, read from the shards' Parquet files.

Parquet keeps the width of numbers (float32, uint8 …). In memory, every column has one of few types: bool, int64,
float64, large_string, null, or lists of these; numbers in lists of fixed size keep their width. Shards and concatenated
datasets may have different columns, so the columns of each are kept in a block and concatenated, with nulls for blocks
that lack a column.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from streamvid.errors import DatasetError

_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_FLOATS: Final = (pa.float16(), pa.float32())
_TIMESTAMP: Final = re.compile(r"timestamp\[(ms|us)(?:, tz=([^\]]+))?\]")
_REMEDY: Final = "pack one of them again with a list in which it is like the other's, or name it otherwise there"


@dataclass(frozen=True)
class MetaColumns:
    """Metadata columns by name.

    Attributes:
        arrays: the usable columns, with one value per clip, null if a clip has none. Of one chunk or of many.
        errors: the columns that cannot be used, and why: a type such as binary, or types that contradict each other
            between shards or datasets.
        parquet_types: the type of each column on disk, as text, such as ``float32``.
    """

    arrays: Mapping[str, pa.Array | pa.ChunkedArray] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    parquet_types: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns, unusable ones last."""
        return (*self.arrays, *(name for name in self.errors if name not in self.arrays))

    def get(self, name: str) -> pa.Array:
        """A column, in one chunk (copied if it has many). Raises KeyError if there is no such column, DatasetError if
        it cannot be used."""
        if name in self.errors:
            raise DatasetError(self.errors[name])
        array = self.arrays[name]
        return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


@dataclass(frozen=True)
class ColumnBlock:
    """The metadata columns of consecutive clips that have the same schema: some shards, or one dataset of several.

    Attributes:
        rows: number of clips.
        columns: their columns.
        name: name of the shards or the dataset, for messages.
    """

    rows: int
    columns: MetaColumns
    name: str


def from_parquet(table: pa.Table) -> MetaColumns:
    """Metadata columns from Parquet, with `streamvid.dataset.schema.FIELD_PREFIX` removed from their names, in the
    types used in memory."""
    arrays, errors = {}, {}
    for name in table.schema.names:
        column = table[name].combine_chunks()
        target = memory_type(column.type)
        if target is None:
            errors[name] = f"the column {name!r} holds {column.type}, which cannot be used here"
            continue
        try:
            arrays[name] = column.cast(target, safe=target != pa.float64())
        except pa.ArrowException as error:
            errors[name] = f"the column {name!r} holds values that cannot be used ({str(error).splitlines()[0]})"
    return MetaColumns(arrays, errors, {f.name: type_text(f.type) for f in table.schema})


def concat_columns(blocks: Sequence[ColumnBlock]) -> MetaColumns:
    """Concatenate the columns of blocks. Clips of a block that lacks a column have null in it. A column that is int64
    in some blocks and float64 in others becomes float64; any other difference of types makes it unusable."""
    if len(blocks) == 1:
        return blocks[0].columns
    arrays: dict[str, pa.ChunkedArray] = {}
    errors: dict[str, str] = {}
    types: dict[str, str] = {}
    for name in dict.fromkeys(name for block in blocks for name in block.columns.names):
        found = [block.columns.parquet_types[name] for block in blocks if name in block.columns.parquet_types]
        types[name] = " or ".join(dict.fromkeys(found))
        try:
            arrays[name] = _concat(name, blocks)
        except _TypesDifferError as error:
            errors[name] = f"{error}: {_REMEDY}"
    return MetaColumns(arrays, errors, types)


class _TypesDifferError(Exception):
    """A column's types in two blocks have no common type; the text names the blocks and the types."""


def _concat(name: str, blocks: Sequence[ColumnBlock]) -> pa.ChunkedArray:
    kind, first = pa.null(), ""
    for block in blocks:
        if name in block.columns.errors:
            raise _TypesDifferError(f"{block.name}: {block.columns.errors[name]}")
        own = block.columns.arrays.get(name)
        if own is None or pa.types.is_null(own.type):
            continue
        common = common_type(kind, own.type)
        if common is None:
            raise _TypesDifferError(
                f"the column {name!r} holds {in_words(kind)} in {first} and {in_words(own.type)} in {block.name}"
            )
        kind, first = common, first or block.name
    chunks: list[pa.Array] = []
    for block in blocks:
        part = block.columns.arrays.get(name)
        cast = pa.nulls(block.rows, kind) if part is None else part.cast(kind, safe=False)
        chunks += cast.chunks if isinstance(cast, pa.ChunkedArray) else [cast]
    return pa.chunked_array(chunks, type=kind)


def common_type(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """The type that two types of a column have in common; None if they have none."""
    if one == two or pa.types.is_null(two):
        return one
    if pa.types.is_null(one):
        return two
    if {one, two} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(two):
        inner = common_type(one.value_type, two.value_type)
        return None if inner is None else pa.list_(inner)
    return None


def as_stored(column: pa.Array, text: str) -> pa.Array:
    """Convert a column to its type on disk, which `MetaColumns.parquet_types` names; unchanged if shards have it in
    several types, or for lists of dates and times."""
    kind = _stored_type(text, column.type)
    if pa.types.is_time(kind):  # Arrow cannot parse times without a date
        column = pc.binary_join_element_wise("1970-01-01", column.cast(pa.string()), " ").cast(pa.timestamp("us"))
    return column if kind == column.type else column.cast(kind, safe=False)


def _stored_type(text: str, kind: pa.DataType) -> pa.DataType:
    if text.startswith("list<") and pa.types.is_list(kind):
        inner = _stored_type(text[5:-1], kind.value_type)
        return kind if pa.types.is_temporal(inner) else pa.list_(inner)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        known = {str(dtype): dtype for dtype in (*_INTEGERS, *_FLOATS)}.get(text, kind)
        return kind if pa.types.is_floating(kind) and pa.types.is_integer(known) else known
    times = {str(dtype): dtype for dtype in (pa.date32(), pa.time64("us"))}
    found = _TIMESTAMP.fullmatch(text)
    return times.get(text, kind) if found is None else pa.timestamp(found[1], found[2])


def in_words(kind: pa.DataType) -> str:
    """A word for the values of a type, for messages."""
    if pa.types.is_fixed_size_list(kind):
        return f"lists of {kind.list_size} times {kind.value_type}"
    if pa.types.is_list(kind):
        return f"lists of {in_words(kind.value_type)}"
    words = {pa.bool_(): "truth values", pa.int64(): "whole numbers", pa.float64(): "numbers"}
    return words.get(kind, "text")


def type_text(kind: pa.DataType) -> str:
    """The type's name; for lists without the name of the elements, which depends on the writer."""
    if pa.types.is_fixed_size_list(kind):
        return f"list<{type_text(kind.value_type)}>[{kind.list_size}]"
    return f"list<{type_text(kind.value_type)}>" if pa.types.is_list(kind) else str(kind)


def memory_type(kind: pa.DataType) -> pa.DataType | None:
    """The type in memory for a type on disk; None if it is not supported."""
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return kind
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_dictionary(kind):
        return memory_type(kind.value_type)
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_date, pa.types.is_time, pa.types.is_timestamp)
    if any(is_kind(kind) for is_kind in text):
        return pa.large_string()
    if pa.types.is_fixed_size_list(kind):
        values = kind.value_type
        numbers = pa.types.is_integer(values) or pa.types.is_floating(values) or pa.types.is_boolean(values)
        return pa.list_(values, kind.list_size) if numbers else memory_type(pa.list_(values))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = memory_type(kind.value_type)
        return None if inner is None else pa.list_(inner)
    return None
