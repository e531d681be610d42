"""Parquet files of others, read into bounded memory.

A few bytes of Parquet can stand for gigabytes: a dictionary of one long string and a run of a billion references to it,
or a page of zeros. Its metadata may lie about all of that. So before anything is decoded, the header of every page is
looked at, which says what a decoder will allocate for it; and strings are decoded as references to the dictionary first
where their sum may be large.

The limit for all that is read of a file, in bytes of memory, is `BASE_BYTES`, and in proportion to what is in the file
`ROW_BYTES` per row and `RATIO` per byte.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamvid.storage.arrow_buffers import arrow_reader
from streamvid.storage.regular_file import regular_file

BASE_BYTES: Final = 64 << 20
ROW_BYTES: Final = 4 << 10
_LEAST_ROW: Final = 8
"""Bytes of a file that a row is expected to take at least: fewer rows than its number says count for the limit then."""
RATIO: Final = 32
MAX_FOOTER_BYTES: Final = 16 << 20
MAX_COLUMNS: Final = 20_000
_HEADER_BYTES: Final = 1 << 16
_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 8}
_LEVEL_BYTES: Final = 4
_SMALL_CHUNK: Final = 1 << 10
"""Compressed bytes that no codec makes more than `BASE_BYTES` of: Zstandard, which goes furthest, writes 128 KiB for
four bytes. Numbers in so few are decoded without a look at their pages, as the metadata bound how many there are."""
_DICTIONARY_PAGE: Final = 2
_DELTA_BYTE_ARRAY: Final = 7
"""The encoding in which each string may repeat the beginning of the one before (Parquet's format, Encodings.md)."""

Choose = Callable[[pa.Schema, int], Sequence[str]]
_ReadAt = Callable[[int, int], bytes]


class TooLargeError(ValueError):
    """The file would take more memory than one of its size may. The message says which column."""


def read_parquet(source: str | bytes | pa.Buffer, choose: Choose | None = None) -> pa.Table:
    """Columns of a Parquet file.

    Args:
        source: path of a local file, or its bytes.
        choose: the names of the columns to read, in their order, by the file's schema and number of rows; default: all.

    Raises:
        TooLargeError: see there.
        OSError: it cannot be opened, or is no regular file.
        pyarrow.ArrowException, OSError, ValueError: it is damaged.
    """
    with ExitStack() as stack:
        file: Any
        if not isinstance(source, str):
            source = arrow_reader(source).read_buffer() if isinstance(source, bytes) else source
            file, data, size = pa.BufferReader(source), memoryview(source), source.size
            read: _ReadAt = lambda at, count: bytes(data[at : at + count])  # noqa: E731
        else:
            descriptor = stack.enter_context(regular_file(source))
            file, size = f"/proc/self/fd/{descriptor}", os.fstat(descriptor).st_size
            read = lambda at, count: os.pread(descriptor, count, at)  # noqa: E731
        footer = int.from_bytes(read(size - 8, 4), "little") if size >= 12 else 0
        if footer > MAX_FOOTER_BYTES:
            raise TooLargeError(f"its footer has {footer} bytes, where {MAX_FOOTER_BYTES} are the most")
        parquet = stack.enter_context(pq.ParquetFile(file, pre_buffer=True))
        metadata, schema = parquet.metadata, parquet.schema_arrow
        if metadata.num_columns > MAX_COLUMNS:
            raise TooLargeError(f"it has {metadata.num_columns} columns, where {MAX_COLUMNS} are the most")
        names = list(schema.names if choose is None else choose(schema, metadata.num_rows))
        limit = BASE_BYTES + ROW_BYTES * min(metadata.num_rows, size // _LEAST_ROW) + RATIO * size
        wanted = set(names)
        leaves = [n for n in range(metadata.num_columns) if not wanted.isdisjoint(_prefixes(parquet.schema, n))]
        needs = {n: _need(parquet, n, read, size, limit) for n in leaves}
        total = sum(need.encoded for need in needs.values())
        if total > limit:
            raise _too_large(f"{len(needs)} columns stand", total, limit)
        if total + sum(need.strings for need in needs.values()) <= limit:
            table = parquet.read(columns=names, use_threads=False)
            return table if choose is None else table.select(names)
        references = [parquet.schema.column(n).path for n, need in needs.items() if need.strings]
        if not isinstance(file, str):
            file = pa.BufferReader(source)
        parquet = stack.enter_context(pq.ParquetFile(file, metadata=metadata, read_dictionary=references))
        found = list(schema) if choose is None else [schema.field(name) for name in names]
        target = pa.schema([field.with_type(_without_view(field.type)) for field in found])
        groups = []
        for group in range(metadata.num_row_groups):
            table = parquet.read_row_group(group, columns=names, use_threads=False)
            table = table if choose is None else table.select(names)
            for name, column in zip(names, table.columns, strict=True):
                total += sum(map(_string_bytes, column.chunks))
                if total > limit:
                    raise _too_large(f"column {name!r} stands", total, limit)
            groups.append(table.cast(target))
        return pa.concat_tables(groups)


@dataclass(frozen=True)
class _Need:
    """Bytes of memory that a column may take at most.

    Attributes:
        encoded: decoded, with its strings as references to their dictionary.
        strings: the strings to which it refers, if each reference is to a string as long as the dictionary.
    """

    encoded: int
    strings: int


def _need(parquet: pq.ParquetFile, n: int, read: _ReadAt, size: int, limit: int) -> _Need:
    column, metadata = parquet.schema.column(n), parquet.metadata
    width = _LEVEL_BYTES + max(1, _WIDTHS.get(column.physical_type) or column.length)
    encoded = strings = 0
    for group in range(metadata.num_row_groups):
        rows, chunk = metadata.row_group(group).num_rows, metadata.row_group(group).column(n)
        if not rows and not chunk.num_values:
            continue  # no page is read, and the metadata of writers name places of none
        values = longest = 0
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        end = start + chunk.total_compressed_size
        if not 0 <= start <= end <= size:
            raise ValueError(f"the column {column.path!r} does not lie within the file")
        flat = column.max_repetition_level == 0
        small = end - start <= _SMALL_CHUNK and chunk.compression != "BROTLI" and chunk.num_values == rows
        if small and flat and column.physical_type != "BYTE_ARRAY":
            encoded += width * rows
            continue
        for page in _pages(read, start, end):
            encoded += page.bytes
            if page.kind == _DICTIONARY_PAGE:
                longest += page.bytes
            else:
                values += page.values
                if page.encoding == _DELTA_BYTE_ARRAY and column.physical_type == "BYTE_ARRAY":
                    encoded += page.values * page.bytes
            if encoded > limit:
                raise _too_large(f"column {column.path!r} stands", encoded, limit)
        # Memory is reserved by what the metadata say, and filled by what the pages say.
        if chunk.num_values > values or rows > values or (flat and chunk.num_values != rows):
            raise ValueError(f"the column {column.path!r} has not as many values as its metadata say")
        encoded += width * values
        if column.physical_type == "BYTE_ARRAY":
            strings += longest * values
    return _Need(encoded, strings)


@dataclass(frozen=True)
class _Page:
    """What a page's header says: its kind, decompressed bytes, values (with nulls) and encoding."""

    kind: int
    bytes: int
    values: int
    encoding: int


def _pages(read: _ReadAt, at: int, end: int) -> Iterator[_Page]:
    """The pages of a column chunk by their headers, `PageHeader` of Parquet's parquet.thrift."""
    while at < end:
        head = read(at, min(_HEADER_BYTES, end - at))
        try:
            fields, length = _thrift_struct(head, 0)
            compressed = fields[3]
            # 5: DataPageHeader, 8: DataPageHeaderV2, in which the encoding is the fourth field.
            data = fields.get(5) or fields.get(8) or {}
            values, encoding = data.get(1, 0), data.get(4 if 8 in fields else 2, 0)
            page = _Page(fields[1], fields[2], values, encoding)
        except (IndexError, KeyError, AttributeError) as error:
            raise ValueError("a page has no header") from error
        if min(compressed, page.bytes, page.values) < 0 or length + compressed > end - at:
            raise ValueError("a page does not lie within its column")
        yield page
        at += length + compressed


def _thrift_struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """The integers, truth values and structs of a struct in Thrift's compact protocol by field number, and its end.

    Raises:
        IndexError: it is cut off.
        ValueError: it has fields that page headers do not have.
    """
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        match head & 15:
            case 1 | 2 as value:
                fields[number] = value == 1
            case 4 | 5 | 6:
                fields[number], at = _integer(data, at)
            case 8:
                length, at = _varint(data, at)
                at += length
            case 12 if depth < 4:
                fields[number], at = _thrift_struct(data, at, depth + 1)
            case kind:
                raise ValueError(f"a page's header has a field of type {kind}")
    return fields, at + 1


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at += 1
        if data[at - 1] < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a page's header has a number of more than 64 bits")


def _prefixes(schema: pq.ParquetSchema, n: int) -> Iterator[str]:
    """The names that a column may be read by: of itself and of the columns that it is nested in."""
    path = schema.column(n).path
    yield path
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


def _string_bytes(array: pa.Array) -> int:
    """Bytes of all strings that an array's dictionaries stand for."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        if not (pa.types.is_string(kind.value_type) or pa.types.is_binary(kind.value_type)):
            return 0
        lengths: Any = pc.binary_length(array.dictionary)
        return int(pc.sum(lengths.take(array.indices).cast(pa.int64())).as_py() or 0)
    if pa.types.is_struct(kind):
        return sum(map(_string_bytes, array.flatten()))
    if pa.types.is_map(kind):
        return _string_bytes(array.keys) + _string_bytes(array.items)
    return _string_bytes(array.values) if pa.types.is_nested(kind) else 0


def _without_view(kind: pa.DataType) -> pa.DataType:
    """The type that references to a dictionary are turned into: not of views, into which Arrow casts none."""
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind, kind)


def _too_large(columns: str, need: int, limit: int) -> TooLargeError:
    return TooLargeError(
        f"its {columns} for up to {need >> 20} MiB, where a file of its size may take {limit >> 20} MiB of memory"
    )
