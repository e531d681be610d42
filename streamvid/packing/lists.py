"""Lists: CSV, JSONL and Parquet files of videos, labels, metadata or cuts, read by pyarrow."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from streamvid.arrays import Int64
from streamvid.dataset.string_column import StringColumn
from streamvid.errors import InputError, StreamvidError
from streamvid.packing.typed_columns import dump_json, is_text, json_values, to_type, usable_type
from streamvid.storage import filesystem
from streamvid.storage.parquet import read_parquet
from streamvid.storage.table_bounds import check_csv, check_json_lines, read_csv, read_json_lines
from streamvid.storage.url import has_extension, redact
from streamvid.text import first_line
from streamvid.video.containers import other_content

LIST_EXTENSIONS: Final = (".csv", ".jsonl", ".parquet")
TEXT_COLUMNS: Final = ("path", "video", "key")
"""Columns that name videos: read as text, also if all values look like numbers or dates."""
_LABEL_TYPES: Final = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_null)
_LISTS: Final = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
RESERVED_COLUMNS: Final = ("key", "source")
"""Fields that packing itself writes to the JSON of a clip."""
_QUOTED: Final = re.compile(rb'"(?:(?<=[,\r\n]")|(?<=\A")|(?<=\A\xef\xbb\xbf"))[^"]*+(?:""[^"]*+)*+("?)([^,\r\n]?)')
"""A quoted cell of a CSV file: its opening and closing quotation marks, and the next byte if it does not end the cell.
Before the first cell there may be a byte order mark."""
_REMEDIES: Final = {
    " columns, got ": "; give each row as many cells as the first line has, and write cells with commas in quotes",
    " changed from ": "; write all its values alike, as numbers or all as text",
    "Empty CSV": "; its first line names the columns, one of them path",
}
"""What to do, by a part of pyarrow's message."""
_ROWS_AT_ONCE: Final = 4096
"""Rows that are converted to Python objects at a time, which bounds the memory for lists of millions."""


@dataclass(frozen=True)
class ParsedList:
    """Rows of a list.

    Attributes:
        table: the columns. Columns that name videos are text, and so are dates and times of a CSV or JSONL file, which
            JSON keeps as written. Other types are inferred.
        typed: the columns for Parquet, in which dates and times have their own types.
    """

    table: pa.Table
    typed: pa.Table

    def take(self, rows: Int64) -> ParsedList:
        """Some of the rows."""
        return ParsedList(self.table.take(rows), self.typed.take(rows))

    def column_as(self, name: str, kind: pa.DataType) -> list[pa.Array]:
        """A column in chunks, in its type for all shards of the pack; nulls if the list has no such column."""
        if self.table.schema.get_field_index(name) < 0:
            return [pa.nulls(self.table.num_rows, kind)]
        column = (self.table if is_text(kind) else self.typed)[name]
        return [to_type(chunk, kind) for chunk in column.chunks]


def is_list(path: str) -> bool:
    """Whether a path or URL names a list file, by its extension."""
    return has_extension(path, LIST_EXTENSIONS)


def read_list(path: str) -> ParsedList:
    """Read a list, local or remote.

    Raises:
        InputError: the file cannot be read in the format of its extension, or has two columns of one name.
    """
    shown = redact(path)
    if not is_list(path):
        raise InputError(f"{shown} is not a list: use a file that ends in {', '.join(LIST_EXTENSIONS)}")
    kind = next(extension for extension in LIST_EXTENSIONS if has_extension(path, (extension,)))
    try:
        data = filesystem.read_bytes(path)
    except StreamvidError as error:
        raise InputError(str(error)) from error
    if other := other_content(data[:4096]):
        raise InputError(f"cannot read the list {shown}: {other}")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"cannot read the list {shown}: it is UTF-16: save it as UTF-8")
    try:
        if kind == ".csv":
            check_csv(data)
            _check_quotes(data, shown)
        elif kind == ".jsonl":
            check_json_lines(data)
        table = _parse(kind, data, [])
        table.validate(full=True)  # raises ArrowInvalid for text that is not UTF-8
        if kind == ".csv":
            _check_texts(table, shown)
            # Without columns that have no name: the index of pandas' to_csv, and empty ones of spreadsheets.
            table = table.select([number for number, name in enumerate(table.schema.names) if name])
        _check_names(table.schema.names, kind, shown)
        return _with_types(table, kind, data)
    except InputError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        row = re.sub(r"(?<=in row )\d+$", lambda number: str(int(number[0]) + 1), first_line(error))
        remedy = next((told for sign, told in _REMEDIES.items() if sign in row), "")
        raise InputError(f"cannot read the list {shown}: {row}{remedy}") from error


def _check_names(names: Sequence[str], kind: str, shown: str) -> None:
    """Raise InputError if the names of columns are not separate, or not different."""
    if len(names) == 1 and kind == ".csv" and (mark := re.search("[;\t|]", names[0])):
        raise InputError(f"{shown} has {mark[0]!r} between its columns: write commas there")
    padded = next((name for name in names if kind == ".csv" and name != name.strip()), None)
    if padded is not None:
        raise InputError(f"{shown} has a column {padded!r}, with spaces around its name: remove them")
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise InputError(f"{shown} has the column {twice[0]!r} more than once: rename one")


def _with_types(inferred: pa.Table, kind: str, data: bytes) -> ParsedList:
    """A list whose columns have the types of `ParsedList`, from those that pyarrow inferred."""
    table = typed = whole_as_text(_usable(_exact(inferred, kind, data)))
    names = inferred.schema.names
    # "2024-01-01" is inferred as a date, for which JSON has no type, so such columns are read again as text.
    text = [field.name for field in inferred.schema if pa.types.is_temporal(field.type)]
    if text and kind != ".parquet":
        written = _parse(kind, data, text)
        for name in text:
            table = table.set_column(names.index(name), name, written[name])
            if pa.types.is_timestamp(typed[name].type):  # nanoseconds are cut off as in the text, also before 1970
                floored = pc.floor_temporal(inferred[name], unit="microsecond").cast(typed[name].type)
                typed = typed.set_column(names.index(name), name, floored)
    if kind == ".jsonl":  # names and dates come first in the JSON of a clip
        table = table.select(sorted(names, key=lambda name: name not in (*TEXT_COLUMNS, *text)))
    return ParsedList(table, typed)


def video_column(table: pa.Table, choices: tuple[str, ...], shown: str) -> tuple[str, StringColumn]:
    """The column that names videos, the first of `choices` that the table has: its name, and its cells, none of them
    empty.

    Raises:
        InputError: there is no such column, it is not text, or one of its cells is empty.
    """
    name = next((name for name in choices if name in table.schema.names), None)
    if name is None:
        wanted, names = " or ".join(map(repr, choices)), ", ".join(table.schema.names) or "none"
        first = " in its first line" if has_extension(shown, (".csv",)) else ""
        raise InputError(f"{shown} has no column {wanted} but {names}: name one so{first}")
    column = table[name]
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (is_text(kind) or pa.types.is_null(kind)):
        raise InputError(f"the column {name!r} of {shown} holds {kind}, not text: name videos by their paths")
    cells = column.cast(pa.large_string()).combine_chunks()
    empty = pc.index(pc.equal(pc.utf8_trim_whitespace(pc.fill_null(cells, "")), ""), True).as_py()
    if empty >= 0:
        raise InputError(f"row {empty + 1} of {shown} has nothing in the column {name!r}: fill it in or drop the row")
    return name, StringColumn(cells)


def json_rows(table: pa.Table, shown: str) -> pa.Array:
    """Each row as a JSON object, large_string [rows], keys in column order; values as in `json_value`.

    Raises:
        InputError: a column has a name of `RESERVED_COLUMNS`, or values for which JSON has no form, such as binary.
    """
    for name in RESERVED_COLUMNS:
        if name in table.schema.names:
            raise InputError(f"{shown} has a column {name!r}, a name that packing itself uses: rename it")
    if not table.num_columns:
        return pa.array(["{}"] * table.num_rows, type=pa.large_string())
    texts = [pa.array([], type=pa.large_string())]
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        columns = []
        for name, column in zip(table.column_names, batch.columns, strict=True):
            try:
                columns.append(json_values(column))
            except InputError as error:
                raise InputError(f"the column {name!r} of {shown} holds {error}") from None
        rows = [dump_json(dict(zip(table.column_names, row, strict=True))) for row in zip(*columns, strict=True)]
        texts.append(pa.array(rows, type=pa.large_string()))
    return pa.concat_arrays(texts)


def label_column(table: pa.Table, shown: str) -> pa.Array:
    """The column `label`: int64 or large_string, null for empty cells.

    Raises:
        InputError: the column has another type, a number out of range, or text with spaces around it.
    """
    column = table["label"].combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.large_string())
    elif pa.types.is_floating(kind):
        # pandas writes integers with empty cells as floats with NaN.
        column = column.cast(pa.float64())
        column = pc.if_else(pc.is_nan(column), None, column)
        if pc.any(pc.not_equal(pc.floor(column), column)).as_py():
            raise InputError(f"the column 'label' of {shown} holds fractions: use integers or text")
    elif not any(is_kind(kind) for is_kind in _LABEL_TYPES):
        raise InputError(f"the column 'label' of {shown} holds {kind}: use integers or text")
    if is_text(column.type):
        column = column.cast(pa.large_string())
        padded = pc.index(pc.not_equal(column, pc.utf8_trim_whitespace(column)), True).as_py()
        if padded >= 0:
            raise InputError(f"{shown} has the label {column[padded].as_py()!r}, with spaces around it: remove them")
        return pc.if_else(pc.equal(column, ""), None, column)
    bounds: Any = pc.min_max(column)
    if not 0 <= (bounds["min"].as_py() or 0) <= (bounds["max"].as_py() or 0) < 1 << 31:
        raise InputError(f"the column 'label' of {shown} holds numbers below 0 or above 2^31: count classes from 0")
    return column.cast(pa.int64())


def raw_labels(table: pa.Table, shown: str) -> list[int | str | None]:
    """The column `label`: all integers or all text, None for empty cells; errors as in `label_column`."""
    return list(label_column(table, shown).to_pylist())


def whole_as_text(table: pa.Table) -> pa.Table:
    """A table in which columns with whole numbers of 2^63 or more, such as hashes, or with lists of them, are text: no
    other type of a dataset's columns holds them and negative ones exactly."""
    least = pa.scalar(1 << 63, pa.uint64())
    for number, field in enumerate(table.schema):
        leaf = table[number]
        while any(is_kind(leaf.type) for is_kind in _LISTS):
            leaf = pc.list_flatten(leaf)
        if leaf.type == pa.uint64() and pc.any(pc.greater_equal(leaf, least)).as_py():
            texts = pa.chunked_array([to_type(chunk, pa.string()) for chunk in table[number].chunks])
            table = table.set_column(number, field.name, texts)
    return table


def _exact(table: pa.Table, kind: str, data: bytes) -> pa.Table:
    """A list in which columns of whole numbers too large for int64, also within JSON, which pyarrow reads as float64,
    are text, as they were written."""
    for number, field in enumerate(table.schema if kind != ".parquet" else ()):
        name = field.name
        if name == "label" or not _has_large(table[number]):
            continue
        if kind == ".csv":
            texts = _parse(kind, data, [name])[name]
            whole = pc.all(pc.match_substring_regex(texts, r"^([+-]?[0-9]+)?$")).as_py()
        else:
            values = [json.loads(line).get(name) for line in data.splitlines() if line.strip()]
            if whole := all(map(_is_whole, values)):
                texts = pa.chunked_array([pa.array([None if v is None else dump_json(v) for v in values], pa.string())])
        if whole:
            table = table.set_column(number, name, texts)
    return table


def _is_whole(value: Any) -> bool:
    """Whether all numbers within a value of JSON are whole."""
    if isinstance(value, list | dict):
        return all(map(_is_whole, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float)


def _has_large(column: pa.ChunkedArray | pa.Array) -> bool:
    """Whether a column has numbers of 2^63 or more, or of less than -2^63, in float64."""
    kind = column.type
    if pa.types.is_list(kind):
        return _has_large(pc.list_flatten(column))
    if pa.types.is_struct(kind):
        return any(_has_large(pc.struct_field(column, [number])) for number in range(kind.num_fields))
    return kind == pa.float64() and bool(pc.any(pc.greater_equal(pc.abs(column), 2.0**63)).as_py())


def _usable(table: pa.Table) -> pa.Table:
    for number, field in enumerate(table.schema):
        kind = usable_type(field.type)
        if kind != field.type:
            table = table.set_column(number, field.name, table[number].cast(kind, safe=False))
    return table


def _check_quotes(data: bytes, shown: str) -> None:
    """Raise InputError for a CSV file with a quoted cell that is not closed, or closed before its end, as by the
    quotation mark that opens a later cell: pyarrow reads the rows in between as text of the cell (RFC 4180, section 2).
    """
    for cell in _QUOTED.finditer(data):
        if not cell[1] or cell[2]:
            opened, closed = (len(data[:at].splitlines()) for at in (cell.start() + 1, cell.end(1)))
            closes = f"the one that closes it, in line {closed}, has text behind it" if cell[1] else "none closes it"
            raise InputError(
                f"a quotation mark in line {opened} of {shown} opens a cell, and {closes}: close each cell at its end, "
                "and write a quotation mark in a quoted cell twice"
            )


def _check_texts(table: pa.Table, shown: str) -> None:
    """Raise InputError for a CSV file with bytes that are no UTF-8, or with line breaks where none is meant: one
    quotation mark too many has made several rows one."""
    for field, column in zip(table.schema, table.columns, strict=True):  # not by name: there may be two of one
        if pa.types.is_binary(field.type):
            raise InputError(f"the column {field.name!r} of {shown} is not UTF-8: save the list as UTF-8")
        if field.name in (*TEXT_COLUMNS, "label") and is_text(field.type):
            row = pc.index(pc.match_substring_regex(column, "[\r\n]"), True).as_py()
            if row >= 0:
                raise InputError(
                    f"row {row + 1} of {shown} has a line break in the column {field.name!r}: remove it, or the "
                    "quotation mark that opens the cell"
                )


def _parse(kind: str, data: bytes, text: list[str]) -> pa.Table:
    """The columns of a list of this extension; if `text` is given, only these columns, as text."""
    if kind == ".csv":
        return read_csv(
            data,
            pa.csv.ConvertOptions(
                column_types=dict.fromkeys((*TEXT_COLUMNS, *text), pa.string()),
                include_columns=text,
                strings_can_be_null=False,
            ),
        )
    if kind == ".jsonl":
        return read_json_lines(data, text)
    return read_parquet(data)
