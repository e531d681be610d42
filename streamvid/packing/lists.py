"""Lists: CSV, JSONL and Parquet files of videos, labels, metadata or cuts, read by pyarrow."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from streamvid.errors import InputError, StreamvidError
from streamvid.packing.typed_columns import unify_schemas
from streamvid.storage import filesystem
from streamvid.storage.arrow_buffers import arrow_reader
from streamvid.storage.url import redact
from streamvid.text import first_line

LIST_EXTENSIONS: Final = (".csv", ".jsonl", ".parquet")
TEXT_COLUMNS: Final = ("path", "video", "key")
"""Columns that name videos: read as text, also if all values look like numbers or dates."""
_LABEL_TYPES: Final = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
RESERVED_COLUMNS: Final = ("key", "source")
"""Fields that packing itself writes to the JSON of a clip."""
_ROWS_AT_ONCE: Final = 4096
"""Rows that are converted to Python objects at a time, which bounds the memory for lists of millions."""


@dataclass(frozen=True)
class ParsedList:
    """The content of a list.

    Attributes:
        table: its rows. Columns that name videos are text, as are dates and times of a CSV or JSONL, which JSON stores
            as they were written. Other types are inferred.
        types: its columns with their inferred types, for Parquet; dates and times included.
    """

    table: pa.Table
    types: pa.Schema


def is_list(path: str) -> bool:
    """Whether the path is that of a list file, by its extension."""
    return path.lower().endswith(LIST_EXTENSIONS)


def meta_columns(lists: Iterable[str]) -> pa.Schema:
    """Names and Parquet types of the metadata columns of lists, given by their paths.

    Raises:
        InputError: a list cannot be read.
    """
    return unify_schemas([_metadata_fields(read_list(path).types) for path in dict.fromkeys(lists)])


def _metadata_fields(types: pa.Schema) -> pa.Schema:
    """The metadata columns of a list: those that neither name videos nor label them."""
    named = next((name for name in TEXT_COLUMNS if name in types.names), "")
    return pa.schema([field for field in types if field.name not in (named, "key", "label")])


def read_list(path: str) -> ParsedList:
    """Read a list, local or remote.

    Raises:
        InputError: the file cannot be read in the format of its extension, or has two columns of one name.
    """
    shown = redact(path)
    if not is_list(path):
        raise InputError(f"{shown} is not a list: use a file that ends in {', '.join(LIST_EXTENSIONS)}")
    try:
        data = filesystem.read_bytes(path)
    except StreamvidError as error:
        raise InputError(str(error)) from error
    try:
        table = _parse(path.lower(), data, {})
        types = table.schema.remove_metadata()
        # "2024-01-01" is inferred to be a date, which JSON has no type for: such columns are read again, as text.
        text: dict[str, pa.DataType] = {
            field.name: pa.string()
            for field in table.schema
            if field.name in TEXT_COLUMNS or pa.types.is_temporal(field.type)
        }
        if text and not path.lower().endswith(".parquet"):
            table = _parse(path.lower(), data, text)
    except (pa.ArrowException, UnicodeDecodeError, ValueError) as error:
        raise InputError(f"cannot read the list {shown}: {first_line(error)}") from error
    names = table.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{shown} has the column {twice[0]!r} more than once: rename one")
    return ParsedList(table, types)


def video_column(table: pa.Table, choices: tuple[str, ...], shown: str) -> tuple[str, list[str]]:
    """The column that names videos, the first of `choices` that the table has: its name, and its cells, none empty.

    Raises:
        InputError: there is none, it is not text, or a cell of it is empty.
    """
    for name in choices:
        if name in table.schema.names:
            return name, _text_column(table[name], name, shown)
    wanted = " or ".join(repr(name) for name in choices)
    raise InputError(f"{shown} has no column {wanted} but {', '.join(table.schema.names) or 'none'}: name one so")


def other_columns(table: pa.Table, consumed: tuple[str, ...], shown: str) -> list[str]:
    """All columns except `consumed` as one JSON object per row, keys in column order; NaN becomes null.

    Raises:
        InputError: a column has a name of `RESERVED_COLUMNS`, or a type that JSON lacks, such as binary.
    """
    names = [name for name in table.schema.names if name not in consumed]
    for name in RESERVED_COLUMNS:
        if name in names:
            raise InputError(f"{shown} has a column {name!r}, a name that packing itself uses: rename it")
    if not names:
        return ["{}"] * table.num_rows
    # datetime has no nanoseconds.
    coarse = [pa.timestamp("us", f.type.tz) if pa.types.is_timestamp(f.type) else f.type for f in table.schema]
    table = table.cast(pa.schema(list(zip(table.schema.names, coarse, strict=True))), safe=False).select(names)
    try:
        return [
            dump_json({name: _json_value(value) for name, value in row.items()})
            for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE)
            for row in batch.to_pylist()
        ]
    except TypeError as error:
        raise InputError(f"{shown} holds {error}, which JSON cannot: turn them into text or leave them out") from error


def raw_labels(table: pa.Table, shown: str) -> list[int | str | None]:
    """The column `label`: all integers or all text, None for empty cells.

    Raises:
        InputError: it has another type, or a negative number.
    """
    column = table["label"]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.string())
    elif pa.types.is_floating(kind):
        # Integers with empty cells, which pandas writes as floats with NaN.
        whole = pc.if_else(pc.is_finite(column), column, None)
        try:
            column = whole.cast(pa.int64())
        except pa.ArrowInvalid:
            raise InputError(f"the column 'label' of {shown} holds fractions: use integers or text") from None
    elif not any(is_kind(kind) for is_kind in _LABEL_TYPES):
        raise InputError(f"the column 'label' of {shown} holds {kind}: use integers or text")
    labels: list[int | str | None] = [None if label == "" else label for label in column.to_pylist()]
    if any(isinstance(label, int) and not 0 <= label < 1 << 31 for label in labels):
        raise InputError(f"the column 'label' of {shown} holds numbers below 0 or above 2^31: count classes from 0")
    return labels


def dump_json(value: Mapping[str, Any]) -> str:
    """JSON as shards store it: no spaces, no escapes of non-ASCII characters, keys in the given order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _parse(path: str, data: bytes, text: dict[str, pa.DataType]) -> pa.Table:
    if path.endswith(".csv"):
        return pa.csv.read_csv(
            arrow_reader(data),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(column_types=text, strings_can_be_null=False),
        )
    if path.endswith(".jsonl"):
        schema = pa.schema(list(text.items())) if text else None
        return pa.json.read_json(
            arrow_reader(data),
            read_options=pa.json.ReadOptions(block_size=max(1 << 20, min(len(data), 1 << 30))),
            parse_options=pa.json.ParseOptions(explicit_schema=schema),
        )
    return pq.read_table(arrow_reader(data))


def _text_column(column: pa.ChunkedArray, name: str, shown: str) -> list[str]:
    values: list[str] = []
    for row, value in enumerate(column.to_pylist()):
        if value is None or (isinstance(value, str) and not value.strip()):
            raise InputError(f"row {row + 1} of {shown} has nothing in the column {name!r}: fill it in or drop the row")
        if not isinstance(value, str):
            raise InputError(
                f"the column {name!r} of {shown} holds {column.type}, not text: name videos by their paths"
            )
        values.append(value)
    return values


def _json_value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _json_value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_json_value(inner) for inner in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} values")
