"""Limits the memory of untrusted tables, and checks CSV and JSON lines before Arrow reads them."""

from __future__ import annotations

import csv
import io
import re
import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from streamvid.storage.arrow_buffers import arrow_reader

BASE_BYTES: Final = 64 << 20
ROW_BYTES: Final = 4 << 10
RATIO: Final = 32
MAX_COLUMNS: Final = 20_000
_JOINT_BYTES: Final = 512 << 20
_JOINT_ROW_BYTES: Final = 64 << 10
_LEAST_ROW: Final = 8
"""Bytes of a file that a row is expected to take at least: fewer rows than its number says count for the limit then."""
_MAX_DEPTH: Final = 64
_HEADER_BYTES: Final = 4 << 20
_BLOCK: Final = 1 << 16
_MAX_ROW: Final = 16 << 20
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_BOM: Final = b"\xef\xbb\xbf"
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


class TooLargeError(ValueError):
    """A table would take more memory than its file size permits. The message names the part."""


class JointLimit:
    """Limits the memory of all tables of a dataset together, so that many small files cannot expand to what a single
    one may not: to `_JOINT_BYTES` plus, for each row and byte, much more than real datasets take. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken, self._limit = 0, _JOINT_BYTES

    def __reduce__(self) -> tuple[object, ...]:
        return JointLimit, ()  # a pickled copy counts from zero

    def take(self, table: pa.Table, size: int) -> None:
        """Count a table that was read from a file of `size` bytes. Raises TooLargeError, without counting it, if the
        limit is exceeded."""
        with self._lock:
            taken = self._taken + table.nbytes
            limit = self._limit + _JOINT_ROW_BYTES * min(table.num_rows, size // _LEAST_ROW) + RATIO * size
            if taken > limit:
                raise TooLargeError(
                    f"it and the files before it would take {taken >> 20} MiB of memory, where {limit >> 20} MiB are "
                    "the most for their numbers of rows and bytes"
                )
            self._taken, self._limit = taken, limit


def memory_limit(rows: int, size: int) -> int:
    """Most bytes of memory that the columns of a file may take, from its number of rows and its size."""
    return BASE_BYTES + ROW_BYTES * max(0, min(rows, size // _LEAST_ROW)) + RATIO * size


def check_csv(data: bytes) -> None:
    """Refuse a CSV file with very many columns, since Arrow takes 12 KiB for each.

    Raises:
        ValueError: the file has more than `MAX_COLUMNS` columns, or its first line cannot be parsed.
    """
    if data.count(b",") < MAX_COLUMNS:
        return
    try:
        columns = len(next(csv.reader(io.StringIO(data[:_HEADER_BYTES].decode("utf-8", "replace"))), []))
    except csv.Error as error:
        raise ValueError(f"its first line is none of columns ({error})") from error
    if columns > MAX_COLUMNS:
        raise TooLargeError(f"it has {columns} columns, where {MAX_COLUMNS} are the most")


def read_csv(data: bytes, convert: pyarrow.csv.ConvertOptions) -> pa.Table:
    """The rows of a CSV for which `check_csv` holds. Cells may have line ends.

    Raises:
        ValueError: it is none, or a row has more than `_MAX_ROW` bytes.
    """
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    read = pyarrow.csv.ReadOptions(block_size=_MAX_ROW)
    try:
        return pyarrow.csv.read_csv(arrow_reader(data), read, parse, convert)
    except pa.ArrowInvalid as error:
        if "straddling" in str(error):
            raise TooLargeError(f"a row of it has more than {_MAX_ROW >> 20} MiB") from error
        raise


def read_json_lines(data: bytes, text: Sequence[str]) -> pa.Table:
    """The columns of JSON lines for which `check_json_lines` holds; if `text` is given, only these columns, as text.
    Raises pyarrow's errors."""
    return pyarrow.json.read_json(
        arrow_reader(data),
        read_options=pyarrow.json.ReadOptions(block_size=max(1 << 20, min(len(data), 1 << 30))),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(dict.fromkeys(text, pa.string())) if text else None,
            unexpected_field_behavior="ignore" if text else "infer",
        ),
    )


def check_json_lines(data: bytes) -> None:
    """Refuse JSON lines on which Arrow's reader crashes: a first line that is no object, and deep nesting; and rows
    with different keys, each of which would become a column of all rows.

    Raises:
        ValueError: the first line is no object, values are nested more than `_MAX_DEPTH` deep, or there are too many
            columns for the rows.
    """
    if not data[:_BLOCK].removeprefix(_BOM).lstrip()[:1] == b"{":
        raise ValueError("its first line is no JSON object")
    if _depth(data) > _MAX_DEPTH and _depth(_STRING.sub(b"", data)) > _MAX_DEPTH:
        raise TooLargeError(f"its values are nested more than {_MAX_DEPTH} deep")
    most_rows = data.count(b"{") + data.count(b"null")
    if 8 * data.count(b":") * most_rows <= BASE_BYTES:
        return
    columns: set[str] = set()
    rows, at = 0, len(_BOM) if data.startswith(_BOM) else 0
    while at < len(data):
        end = data.rfind(b"\n", at, at + _BLOCK) + 1 or data.find(b"\n", at) + 1 or len(data)
        if block := data[at:end].strip():
            options = pyarrow.json.ReadOptions(block_size=max(_BLOCK, len(block) + 1), use_threads=False)
            found = pyarrow.json.read_json(arrow_reader(b"{}\n" + block), read_options=options)
            rows += found.num_rows
            columns.update(leaf for field in found.schema for leaf in _leaves(field.name, field.type))
            if len(columns) > MAX_COLUMNS or 8 * len(columns) * rows > memory_limit(rows, len(data)):
                raise TooLargeError(f"its first {rows:,} rows have {len(columns):,} columns; give all the same keys")
        at = end


def _depth(data: bytes) -> int:
    brackets = np.frombuffer(data.translate(None, _NOT_BRACKETS), dtype=np.uint8)
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(opening, 1, -1)).max(initial=0))


def _leaves(name: str, kind: pa.DataType) -> list[str]:
    """The names of the flat columns that a JSON value becomes."""
    if pa.types.is_struct(kind):
        return [leaf for field in kind for leaf in _leaves(f"{name}\0{field.name}", field.type)] or [name]
    return _leaves(name, kind.value_type) if pa.types.is_list(kind) else [name]
