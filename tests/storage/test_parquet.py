"""Parquet files: all types as pyarrow reads them, and few bytes that stand for much refused before they are decoded."""

from __future__ import annotations

import io
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamvid.storage import parquet
from streamvid.storage.parquet import read_parquet
from streamvid.storage.table_bounds import TooLargeError

ROWS = 300


def of_all_types() -> pa.Table:
    columns: dict[str, Any] = {
        "text": [f"a{n % 7}" if n % 5 else None for n in range(ROWS)],
        "list": [[f"x{n % 3}"] * (n % 4) if n % 6 else None for n in range(ROWS)],
        "lists": pa.array([[["x"] * 2, None]] * ROWS),
        "map": pa.array([[(f"k{n % 3}", n)] for n in range(ROWS)], pa.map_(pa.string(), pa.int64())),
        "struct": [{"a": "b", "c": [1.5]}] * ROWS,
        "dictionary": pa.array(["q", "r", None] * (ROWS // 3)).dictionary_encode(),
        "large": pa.array(["z"] * ROWS, pa.large_string()),
        "time": [datetime(2020, 1, 1)] * ROWS,
        "half": pa.array(np.zeros(ROWS, dtype=np.float16)),
        "fixed": pa.array([b"abcd"] * ROWS, pa.binary(4)),
        "truth": [True] * ROWS,
        "null": pa.nulls(ROWS),
        "large list": pa.array([["a"]] * ROWS, pa.large_list(pa.large_string())),
        "a.b": ["dot"] * ROWS,
        "pair": pa.array([["a", "b"]] * ROWS, pa.list_(pa.string(), 2)),
    }
    return pa.table(columns)


def written(table: pa.Table, **options: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    return stream.getvalue()


@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False},
        {"compression": "gzip", "data_page_version": "2.0"},
        {"compression": "brotli"},
        {"row_group_size": 70},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY", "time": "DELTA_BINARY_PACKED"}},
        {"store_schema": False},
    ],
    ids=str,
)
def test_all_types(options: dict[str, Any], careful: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Careful: strings first as references to their dictionaries, as where they might be too large."""
    data = written(of_all_types(), **options)
    if careful:
        need = parquet._Need
        monkeypatch.setattr(parquet, "_Need", lambda encoded, strings: need(encoded, strings and strings + (1 << 60)))
    want = pq.read_table(io.BytesIO(data))
    got = read_parquet(data)
    assert got.equals(want)
    assert got.schema.equals(want.schema)


def test_columns_that_stay_references() -> None:
    few, many = ["a", "b", "", "a"] * 50, [str(n) for n in range(200)]
    table = pa.table({"few": few, "many": many, "n": range(200)})
    for options in ({}, {"use_dictionary": False}, {"row_group_size": 60, "data_page_size": 64}):
        got = read_parquet(written(table, **options), encoded=("few", "many"))
        assert [pa.types.is_dictionary(kind) for kind in got.schema.types] == [True, True, False]
        assert got.to_pydict() == table.to_pydict()
    with pytest.raises(ValueError, match="no column"):
        read_parquet(written(table), encoded=("few", "missing"))
    # References to a long string take little; as strings, they are refused.
    long = pa.table({"x": pa.array(["x" * 100_000] * 5_000)})
    data = written(long, row_group_size=5_000)
    assert read_parquet(data, encoded=("x",))["x"].nbytes < 1 << 20
    with pytest.raises(TooLargeError):
        read_parquet(data)


def test_columns_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "some.parquet").write_bytes(written(of_all_types()))
    names = ["struct", "text", "a.b"]
    got = read_parquet(str(tmp_path / "some.parquet"), lambda schema, rows: names[: len(schema) and rows])
    assert got.equals(of_all_types().select(names))


def test_an_empty_table() -> None:
    empty = of_all_types().slice(0, 0)
    assert read_parquet(written(empty)).num_rows == 0


@pytest.mark.parametrize("compression", ["zstd", "snappy", "brotli", "none"])
def test_small_files_of_huge_tables_are_refused(compression: str) -> None:
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * 1_000_000]))
    large = {"compression": compression, "store_schema": False}
    zeros = pa.table({"n": np.zeros(10**7, dtype=np.int64)})
    for table, options in ((pa.table({"n": text}), large), (zeros, large)):
        with pytest.raises(TooLargeError, match=r"its (column 'n' stands|1 columns stand) for up to"):
            read_parquet(written(table, **options))


def test_large_text_that_is_in_the_file() -> None:
    random = np.random.default_rng(0)
    text = [random.bytes(500_000).hex() for _ in range(100)]
    assert read_parquet(written(pa.table({"n": text})))["n"].to_pylist() == text


@pytest.mark.parametrize("claimed", [16, (1 << 31) - 1])
def test_a_page_with_a_wrong_decompressed_size_is_refused(claimed: int) -> None:
    """About its decompressed size, in its header alone."""
    size = 140_000_000
    data = written(pa.table({"n": ["x" * size, "y"]}), use_dictionary=False, compression="zstd", write_statistics=False)
    # The first page's header follows the magic number: its type, a data page, and its size, in zigzag.
    assert data[4:7] == b"\x15\x00\x15"
    assert data[11] < 128 <= data[10]
    with pytest.raises((TooLargeError, OSError)):
        read_parquet(data[:7] + varint(2 * claimed) + data[12:])


def varint(value: int) -> bytes:
    """In five bytes, so that it fits where another one was."""
    return bytes([value >> shift & 127 | 128 for shift in (0, 7, 14, 21)]) + bytes([value >> 28])


def test_a_footer_of_garbage(tmp_path: Path) -> None:
    data = written(of_all_types())
    for broken in (b"", b"PAR1", data[:-4], data[:-8] + b"\xff\xff\xff\x7fPAR1", data[:100] + data[-100:]):
        with pytest.raises((OSError, ValueError)):
            read_parquet(broken)
    with pytest.raises(ValueError, match="it is no Parquet file"):
        read_parquet(b"path,label\na.mp4,cat\n")
    short = tmp_path / "short.parquet"
    short.write_bytes(b"PAR1")
    for cut in (data[:-4], str(short)):
        with pytest.raises(ValueError, match="it is cut off"):
            read_parquet(cut)


def footer(children: list[int | None], schema: int = 12, more: bytes = b"") -> bytes:
    """A file without rows, of a footer in Thrift's compact protocol: of each element of the schema, the number of its
    children, or None for a number. The elements say to be of type `schema`; each ends with `more`."""
    number, group = b"\x15\x02\x25\x04\x18\x01a", b"\x35\x04\x18\x01a\x15"  # both repeated, and named a
    elements = [(number if count is None else group + varint(2 * count)) + more + b"\0" for count in children]
    data = b"".join([b"\x15\x02\x19", bytes([0xF0 | schema]), varint(len(children)), *elements, b"\x16\0\x19\x0c\0"])
    return b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1"


def test_columns_that_are_nested_as_deep_as_can_be(tmp_path: Path) -> None:
    """A group that is repeated is a list of structs: two types of Arrow for one of the schema."""
    groups = 2 * parquet.MAX_LISTS
    table = read_parquet(footer([1] * (groups + 1) + [None]))
    with pa.OSFile(str(tmp_path / "copy"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    assert pa.ipc.open_stream(str(tmp_path / "copy")).read_all().equals(table)
    lists: Any = 1
    for _ in range(parquet.MAX_LISTS):
        lists = [lists]
    side = pa.table({"a": [lists], "b": [{"c": {"d": 1}}]})
    assert read_parquet(written(side)).equals(side)


@pytest.mark.parametrize("more", [1, 10, 300, 400_000])
def test_columns_that_are_nested_too_deep(more: int) -> None:
    """PyArrow before 26 crashes on thousands of groups, and later ones cannot write dozens to the cache."""
    with pytest.raises(TooLargeError, match="nested more than 30 deep"):
        read_parquet(footer([2, None] + [1] * (2 * parquet.MAX_LISTS + more) + [None]))


def test_a_schema_that_looks_flat() -> None:
    """To a parser that takes the second of two numbers of children, or a list at its word that it is of numbers."""
    deep: list[int | None] = [*[1] * 40, None]
    for data in (footer(deep, more=b"\x08\x0a\x00"), footer(deep, more=b"\x06\x0a\x00"), footer(deep, schema=5)):
        with pytest.raises(ValueError, match=r"comes twice|in the place of structs"):
            read_parquet(data)


def test_a_number_of_rows_that_lies() -> None:
    """In the footer, where the row groups say otherwise; found by fuzzing."""
    data = written(pa.table({"n": pa.array([], pa.int64())}))
    rows = b"\x16\x00\x19"  # no rows, in zigzag, and the list of row groups
    assert data.count(rows) == 1
    with pytest.raises(ValueError, match="do not add up"):
        read_parquet(data.replace(rows, b"\x16\x04\x19"))
