"""Reads untrusted Parquet files into bounded memory.

A few bytes of Parquet can stand for gigabytes: a dictionary of one long string and a run of a billion references to it,
or a page of zeros. The file's metadata may lie about that. So before anything is decoded, the header of every page is
read, from which follows how much a decoder allocates for it; and strings whose sum may be large are first decoded as
references to the dictionary. The limit is `memory_limit`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamvid.errors import StreamvidError
from streamvid.host import limits_named
from streamvid.storage.arrow_buffers import arrow_reader
from streamvid.storage.regular_file import regular_file
from streamvid.storage.table_bounds import MAX_COLUMNS, TooLargeError, memory_limit

MAX_FOOTER_BYTES: Final = 16 << 20
_MAX_ITEMS: Final = 500_000
_MAX_DEPTH: Final = 8
MAX_LISTS: Final = 15
"""Lists in each other, at most. A list takes two groups of Parquet's schema; PyArrow reads 100 groups in each other
(before 26 it crashes on thousands), and writes 63 lists to files in the cache, of which a group may be two."""
_HEADER_BYTES: Final = 1 << 16
_WIDTHS: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 8}
_LEVEL_BYTES: Final = 4
_DICTIONARY_PAGE: Final = 2
_DELTA_BYTE_ARRAY: Final = 7
"""The encoding in which each string may repeat the beginning of the one before (Parquet's format, Encodings.md)."""

FIXED_LISTS: Final = 26
"""The first version of PyArrow that reads lists of fixed size with missing rows; earlier ones only write them."""

Choose = Callable[[pa.Schema, int], Sequence[str]]
_ReadAt = Callable[[int, int], bytes]
_Spec = Mapping[int, Any]
"""Field numbers, and of structs and lists of them the `_Spec` of these, else None."""
# Of Parquet's parquet.thrift: FileMetaData with its SchemaElements and RowGroups, of these the ColumnChunks, and the
# ColumnMetaData of those.
_FOOTER: Final[_Spec] = {2: {5: None}, 4: {1: {3: dict.fromkeys((5, 7, 9, 11))}, 3: None}}
_NOTHING: Final[_Spec] = {}
_PAGE_HEADER: Final[_Spec] = {1: None, 2: None, 3: None, 5: {1: None, 2: None}, 8: {1: None, 4: None}}


@limits_named()
def read_parquet(
    source: str | bytes | pa.Buffer, choose: Choose | None = None, *, least: int = 0, encoded: Collection[str] = ()
) -> pa.Table:
    """Read columns of a Parquet file.

    Args:
        source: path of a local file, or its bytes.
        choose: returns the names of the columns to read, in order, from the file's schema and number of rows; default:
            all.
        least: bytes of memory that the columns may take even if the file is small.
        encoded: columns of strings that stay references to a dictionary; the caller must check that these are in range.

    Raises:
        StreamvidError: a limit of this process or of PyArrow was met, for which the file is not to blame.
        TooLargeError: the columns may take more memory than the limit.
        OSError: the file cannot be opened, or is no regular file.
        pyarrow.ArrowException, OSError, ValueError: the file is damaged.
    """
    with ExitStack() as stack:
        opened, read, size = _opened(source, stack)
        groups = _row_groups(read, size)
        try:
            parquet = stack.enter_context(pq.ParquetFile(opened(), pre_buffer=True, read_dictionary=[*encoded]))
        except KeyError as error:
            raise ValueError(f"it has no column {error}") from error
        metadata, schema = parquet.metadata, parquet.schema_arrow
        if metadata.num_columns > MAX_COLUMNS:
            raise TooLargeError(f"it has {metadata.num_columns} columns, where {MAX_COLUMNS} are the most")
        if any(len(chunks) != metadata.num_columns for _, chunks in groups):
            raise ValueError("a row group lacks columns")
        if sum(rows for rows, _ in groups) != metadata.num_rows:
            raise ValueError("the rows of its row groups do not add up to its number of rows")
        names = list(schema.names if choose is None else choose(schema, metadata.num_rows))
        limit = max(least, memory_limit(metadata.num_rows, size))
        needs = [
            (column.path, _need(column, [(rows, chunks[n]) for rows, chunks in groups], read, size, limit))
            for n, column in enumerate(map(parquet.schema.column, range(metadata.num_columns)))
            if not _prefixes(column.path).isdisjoint(names)
        ]
        total = sum(need.encoded for _, need in needs)
        if total > limit:
            raise _too_large(f"{len(needs)} columns stand", total, limit)

        def in_order(table: pa.Table) -> pa.Table:
            return table if choose is None else table.select(names)

        if total + sum(need.strings for path, need in needs if path not in encoded) <= limit:
            return in_order(_read_whole(parquet, names))
        # Strings may be many times as large as the file: they are read as references first, to sum them up.
        references = [*encoded, *(path for path, need in needs if need.strings)]
        parquet = stack.enter_context(pq.ParquetFile(opened(), metadata=metadata, read_dictionary=references))
        fields = list(schema) if choose is None else [schema.field(name) for name in names]
        target = pa.schema([field.with_type(without_view(field.type)) for field in fields])
        tables = []
        for group in range(metadata.num_row_groups):
            table = in_order(parquet.read_row_group(group, columns=names, use_threads=False))
            for name, values in zip(names, table.columns, strict=True):
                total += sum(map(_string_bytes, values.chunks))
                if total > limit:
                    raise _too_large(f"column {name!r} stands", total, limit)
            tables.append(table.cast(target))
        return pa.concat_tables(tables)


def _opened(source: str | bytes | pa.Buffer, stack: ExitStack) -> tuple[Callable[[], Any], _ReadAt, int]:
    """A file for Arrow, as often as it is opened; a function that reads parts of it; and its size in bytes."""
    if isinstance(source, str):
        file = stack.enter_context(regular_file(source))
        return lambda: f"/proc/self/fd/{file}", lambda at, count: os.pread(file, count, at), os.fstat(file).st_size
    buffer = arrow_reader(source).read_buffer() if isinstance(source, bytes) else source
    data = memoryview(buffer)
    return lambda: pa.BufferReader(buffer), lambda at, count: bytes(data[at : at + count]), buffer.size


def _read_whole(parquet: pq.ParquetFile, names: list[str]) -> pa.Table:
    try:
        return parquet.read(columns=names, use_threads=False)
    except pa.ArrowInvalid as error:
        if "Expected all lists to be of size" not in str(error):
            raise
        raise StreamvidError(unreadable(of_fixed_size(parquet.schema_arrow, names))) from error


def of_fixed_size(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Those of the columns that are lists of fixed size."""
    return [name for name in names if name in schema.names and pa.types.is_fixed_size_list(schema.field(name).type)]


def unreadable(names: Sequence[str]) -> str:
    """An error in words: this version of PyArrow cannot read these columns of lists of fixed size."""
    return (
        f"PyArrow {pa.__version__} cannot read lists of fixed size with missing rows, as in the column "
        f"{' or '.join(map(repr, names))}: pip install 'pyarrow>={FIXED_LISTS}'"
    )


class _Need(NamedTuple):
    """Most bytes of memory that a column may take.

    Attributes:
        encoded: with strings as references to their dictionary.
        strings: for the strings, if each reference is to a string as long as the whole dictionary.
    """

    encoded: int
    strings: int


def _row_groups(read: _ReadAt, size: int) -> list[tuple[int, list[_Chunk]]]:
    """The number of rows of each row group, and its columns' chunks."""
    try:
        end = read(size - 8, 8) if size >= 12 else b""
        length = int.from_bytes(end[:4], "little")
        if length > size - 8 or end[4:] != b"PAR1":
            raise ValueError("it is cut off" if read(0, 4) == b"PAR1" else "it is no Parquet file")
        if length > MAX_FOOTER_BYTES:
            raise TooLargeError(f"its footer has {length} bytes, where {MAX_FOOTER_BYTES} are the most")
        found = _struct(read(size - 8 - length, length), 0, _FOOTER, [_MAX_ITEMS])[0]
        _check_depth(element.get(5, 0) for element in found[2])
        return [
            (group[3], [_Chunk(*(chunk[3].get(number, 0) for number in (5, 7, 9, 11))) for chunk in group[1]])
            for group in found[4]
        ]
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("it has no footer") from error


def _check_depth(children: Iterable[int]) -> None:
    """Raise TooLargeError if more than 2 * `MAX_LISTS` groups of a schema are in each other. It is given as the number
    of children of each of its elements, each of which stands before its own children."""
    left: list[int] = []
    for count in children:
        while left and not left[-1]:
            left.pop()
        if left:
            left[-1] -= 1
        if count > 0:
            left.append(count)
            if len(left) > 1 + 2 * MAX_LISTS:  # the root is the first
                raise TooLargeError(f"its columns are nested more than {2 * MAX_LISTS} deep")


class _Chunk(NamedTuple):
    """A column in a row group, from the footer: number of values (with nulls), size in bytes, and offset of its
    pages."""

    values: int
    bytes: int
    data_at: int
    dictionary_at: int


def _need(column: Any, chunks: Sequence[tuple[int, _Chunk]], read: _ReadAt, size: int, limit: int) -> _Need:
    width = _LEVEL_BYTES + max(1, _WIDTHS.get(column.physical_type) or column.length)
    encoded = strings = 0
    for rows, chunk in chunks:
        if not rows and not chunk.values:
            continue  # no page is read, and some writers' metadata have no offset then
        values = longest = 0
        start = chunk.dictionary_at if 0 < chunk.dictionary_at < chunk.data_at else chunk.data_at
        end = start + chunk.bytes
        if not 0 <= start <= end <= size:
            raise ValueError(f"the column {column.path!r} does not lie within the file")
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
        # Arrow reserves memory by the metadata, and fills it by the pages.
        if chunk.values > values or rows > values or (not column.max_repetition_level and chunk.values != rows):
            raise ValueError(f"the values of the column {column.path!r} are not as many as its metadata say")
        encoded += width * values
        if column.physical_type == "BYTE_ARRAY":
            strings += longest * values
    return _Need(encoded, strings)


class _Page(NamedTuple):
    """A page's header: kind, decompressed size in bytes, number of values (with nulls) and encoding."""

    kind: int
    bytes: int
    values: int
    encoding: int


def _pages(read: _ReadAt, at: int, end: int) -> Iterator[_Page]:
    """The pages of a column chunk by their headers, `PageHeader` of Parquet's parquet.thrift."""
    while at < end:
        head = read(at, min(_HEADER_BYTES, end - at))
        try:
            fields, length = _struct(head, 0, _PAGE_HEADER, [0])
            compressed = fields[3]
            # 5: DataPageHeader, 8: DataPageHeaderV2, in which the encoding is the fourth field.
            data = fields.get(5) or fields.get(8) or {}
            page = _Page(fields[1], fields[2], data.get(1, 0), data.get(4 if 8 in fields else 2, 0))
        except (IndexError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("a page has no header") from error
        if min(compressed, page.bytes, page.values) < 0 or length + compressed > end - at:
            raise ValueError("a page does not lie within its column")
        yield page
        at += length + compressed


def _struct(data: bytes, at: int, spec: _Spec, budget: list[int], depth: int = 0) -> tuple[dict[int, Any], int]:
    """Parse a struct in Thrift's compact protocol. Returns the fields of a `_Spec` by their numbers, and the offset of
    the struct's end.

    pyarrow's accessors of Parquet's metadata abort the process if a value is out of range. This is called for thousands
    of fields of every shard, so it is one loop.

    Args:
        data: the bytes.
        budget: [1], number of list items that may still come.

    Raises:
        IndexError: the data end before the struct.
        ValueError: the data are no struct, or have too many list items.
    """
    fields: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        kind = head & 15
        if head >> 4:
            number += head >> 4
        else:
            value, at = _varint(data, at)
            number = value >> 1 ^ -(value & 1)
        if number in fields:
            raise ValueError(f"the field {number} comes twice")
        if 4 <= kind <= 6 or kind == 8:
            value = data[at]
            at += 1
            if value > 127:
                value, at = _varint(data, at - 1)
            if kind == 8:
                at += value
            elif spec.get(number, 0) is None:
                fields[number] = value >> 1 ^ -(value & 1)
        elif kind == 12 and depth < _MAX_DEPTH:
            found, at = _struct(data, at, spec.get(number) or _NOTHING, budget, depth + 1)
            if spec.get(number):
                fields[number] = found
        elif kind in (9, 10):
            found_items, at = _list(data, at, spec.get(number) or _NOTHING, budget, depth + 1)
            if spec.get(number):
                fields[number] = found_items
        elif kind in (3, 7):
            at += 1 if kind == 3 else 8
        elif kind > 2:
            raise ValueError(f"a field of type {kind}")
    return fields, at + 1


def _list(data: bytes, at: int, spec: _Spec, budget: list[int], depth: int) -> tuple[list[dict[int, Any]], int]:
    """Parse a list. Returns its structs, if it has wanted ones, and the offset of its end; otherwise as `_struct`."""
    head = data[at]
    at += 1
    count, kind = head >> 4, head & 15
    if count == 15:
        count, at = _varint(data, at)
    budget[0] -= count
    if budget[0] < 0:
        raise TooLargeError(f"its footer lists more than {_MAX_ITEMS} items")
    if spec and count and kind != 12:
        raise ValueError(f"a list of type {kind} in the place of structs")
    items = []
    for _ in range(count):
        if kind == 12:
            found, at = _struct(data, at, spec, budget, depth + 1)
            if spec:
                items.append(found)
        elif kind in (1, 2, 3):
            at += 1
        elif kind in (4, 5, 6, 8):
            value, at = _varint(data, at)
            at += value if kind == 8 else 0
        else:
            raise ValueError(f"a list of type {kind}")
    return items, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) > 127:
        value |= (byte & 127) << shift
        at += 1
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
    return value | byte << shift, at + 1


def _prefixes(path: str) -> set[str]:
    """The names by which a column may be read: its own, and those of the columns that it is nested in."""
    return set(accumulate(path.split("."), "{}.{}".format))


def _string_bytes(array: pa.Array) -> int:
    """Bytes of all strings of a dictionary-encoded array."""
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


def without_view(kind: pa.DataType) -> pa.DataType:
    """The type, but large text or bytes in place of a view, to which Arrow casts little."""
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(kind, kind)


def _too_large(columns: str, need: int, limit: int) -> TooLargeError:
    return TooLargeError(
        f"its {columns} for up to {need >> 20} MiB, where a file of its size may take {limit >> 20} MiB of memory"
    )
