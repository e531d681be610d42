"""Parquet files that are written can be read, whatever their columns compress to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamvid.errors import InputError
from streamvid.storage import table_bounds
from streamvid.storage.parquet import read_parquet
from streamvid.storage.parquet_writer import write_parquet


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_bounds, "BASE_BYTES", 100_000)


def zeros(rows: int = 100) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * 1000, np.float32)), 1000)


@pytest.mark.parametrize(
    ("columns", "compressed"),
    [
        ({"x": list(range(1000))}, True),
        ({"x": zeros()}, False),
        ({"x": ["c" * 1_000_000, "c" * 1_000_000]}, False),
        ({"x": ["a" * 10_000 + str(n % 3) for n in range(50)], "y": [0.0] * 50}, False),
    ],
)
def test_it_can_be_read(tmp_path: Path, columns: dict[str, Any], compressed: bool) -> None:
    table = pa.table(columns)
    write_parquet(table, tmp_path / "t.parquet", group_rows=table.num_rows)
    assert read_parquet(os.fspath(tmp_path / "t.parquet")) == table
    chunk = pq.read_metadata(tmp_path / "t.parquet").row_group(0).column(0)
    assert (chunk.compression == "ZSTD") == compressed


def test_columns_that_are_read_one_by_one(tmp_path: Path) -> None:
    table = pa.table({name: zeros(3) for name in map(str, range(100))})
    for by_column in (True, False):
        write_parquet(table, tmp_path / "t.parquet", group_rows=3, by_column=by_column)
        chunk = pq.read_metadata(tmp_path / "t.parquet").row_group(0).column(0)
        assert (chunk.compression == "ZSTD") == by_column


def test_very_many_columns_without_values(tmp_path: Path) -> None:
    table = pa.table({name: pa.nulls(50_000, pa.int64()) for name in map(str, range(1000))})
    with pytest.raises(InputError, match=r"of 50,000 clips could not be read again: .* stand for .*leave out columns"):
        write_parquet(table, tmp_path / "t.parquet", group_rows=50_000)
