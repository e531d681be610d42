"""Bytes that Arrow reads in threads of its own must be its own: else a process may abort when it ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.dataset.selection import select_rows
from streamvid.packing.destination import read_rejected
from streamvid.packing.journal import Rejected
from streamvid.packing.lists import read_list
from streamvid.packing.pack import pack
from streamvid.storage.arrow_buffers import arrow_reader
from tests.support.clips import write
from tools.clips import Recipe


def test_arrow_holds_no_reference_to_python_bytes() -> None:
    data = bytes(range(256)) * 100
    before = sys.getrefcount(data)
    reader = arrow_reader(data)
    buffer = reader.read_buffer()
    assert buffer.to_pybytes() == data
    assert sys.getrefcount(data) == before
    kept = pa.BufferReader(data)
    assert sys.getrefcount(data) > before, "this test could not tell"
    del kept


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Arrow's readers with threads are given."""
    found: list[Any] = []

    def noting(read: Callable[..., pa.Table]) -> Callable[..., pa.Table]:
        def read_and_note(source: Any, *args: Any, **options: Any) -> pa.Table:
            found.append(source)
            return read(source, *args, **options)

        return read_and_note

    for module, name in ((pq, "ParquetFile"), (pyarrow.csv, "read_csv"), (pyarrow.json, "read_json")):
        monkeypatch.setattr(module, name, noting(getattr(module, name)))
    return found


def test_all_readers_of_memory_use_arrow_buffers(tmp_path: Path, given: list[Any]) -> None:
    table = pa.table({"path": ["a.mp4"], "key": ["a"]})
    pq.write_table(table, tmp_path / "list.parquet")
    (tmp_path / "list.csv").write_text("path,key\na.mp4,a\n")
    (tmp_path / "list.jsonl").write_text('{"path": "a.mp4", "key": "a"}\n')
    for kind in ("csv", "jsonl", "parquet"):
        assert read_list(str(tmp_path / f"list.{kind}")).table["path"].to_pylist() == ["a.mp4"]
    write(Recipe(width=64, height=64, frames=2, gop=2, b_frames=0), tmp_path / "a.mp4")
    dataset = tmp_path / "ds"
    pack([tmp_path / "a.mp4"], dataset)
    pq.write_table(pa.table({"source": ["b.mp4"], "reason": ["no video"]}), dataset / "rejected.parquet")
    assert read_rejected(str(dataset)) == [Rejected("b.mp4", "no video")]
    for kind in ("csv", "parquet"):
        assert select_rows(Dataset.open(dataset), keys=tmp_path / f"list.{kind}").tolist() == [0]
    given = [source for source in given if not isinstance(source, str)]  # the dataset's own file
    assert len(given) >= 5
    assert {type(source) for source in given} == {pa.BufferReader}
