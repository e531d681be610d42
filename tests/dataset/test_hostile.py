"""Hostile datasets: opening them takes little memory and time, and raises an error of one sentence."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.dataset.manifest import MAX_BYTES, Manifest
from streamvid.errors import DatasetError
from streamvid.packing.options import PackOptions
from streamvid.storage import table_bounds
from tests.support.bounded import outcomes
from tests.support.packed import SMALL, pack_recipes

SHARD = "shards/00000000"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of three clips in one shard."""
    return pack_recipes(dict.fromkeys("abc", SMALL), tmp_path_factory.mktemp("hostile"), options=PackOptions("any"))


def read_all(path: str) -> None:
    """Open a dataset and read all its frame indexes."""
    dataset = Dataset.open(path)
    for row in range(len(dataset)):
        dataset.index(row)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            one.bind(path.name)
        finally:
            os.chdir(here)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(100 << 30)


KINDS: dict[str, Callable[[Path], None]] = {
    "fifo": _fifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "socket": _socket,
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path.name),
    "sparse": _sparse,
    "empty": lambda path: path.touch(),
}


def test_what_is_no_file_does_not_hold_up_a_dataset(packed: Path, tmp_path: Path, forked_python: Path) -> None:
    places = []
    files = ["dataset.json", *(str(path.relative_to(packed)) for path in sorted((packed / "shards").iterdir()))]
    read = [name for name in files if not name.endswith(".idx")]  # nothing but DALI and verify reads it
    for name in read:
        for kind, make in KINDS.items():
            folder = Path(shutil.copytree(packed, tmp_path / f"{kind} for {Path(name).name}"))
            (folder / name).unlink()
            make(folder / name)
            places.append(str(folder))
    for place, text in zip(places, outcomes(forked_python, read_all, places), strict=True):
        name = place.rpartition(" ")[2]
        assert text != "accepted", place
        assert name in text or f"shard {name.partition('.')[0]}" in text, (place, text)
        assert "\n" not in text


def test_an_index_that_becomes_a_pipe_after_the_opening(copy: Path) -> None:
    dataset = Dataset.open(copy)
    (copy / f"{SHARD}.packets").unlink()
    os.mkfifo(copy / f"{SHARD}.packets")
    with pytest.raises(DatasetError, match="named pipe"):
        dataset.index(0)


def bombs(table: pa.Table, folder: Path) -> dict[str, tuple[bytes, int]]:
    """Parquet files of few bytes that stand for much, each with its number of rows, by name."""
    made: dict[str, tuple[bytes, int]] = {}

    def add(name: str, columns: pa.Table, **options: Any) -> None:
        options = {"compression": "zstd", "dictionary_pagesize_limit": 1 << 30, "data_page_size": 1 << 30} | options
        pq.write_table(columns, folder / "bomb", store_schema=False, **options)
        made[name] = ((folder / "bomb").read_bytes(), len(columns))

    def with_column(rows: pa.Table, name: str, values: Any) -> pa.Table:
        at = rows.schema.get_field_index(name)
        return rows.append_column(name, values) if at < 0 else rows.set_column(at, name, values)

    def repeated(text: str, count: int) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([text]))

    many = pa.concat_tables([table] * 100)
    for name in ("key", "source", "meta", "codec", "meta_caption"):
        add(f"one string of 10 MB for all rows of {name}", with_column(many, name, repeated("x" * 10**7, len(many))))
    cell = pa.array(["x" * 100_000_000, "", ""])
    add("a cell of 100 MB", with_column(table, "meta", cell), use_dictionary=False)
    add("a dictionary of 100 MB", with_column(table, "meta", cell))
    ends = pa.array([0, *[2 * 10**7] * 3], pa.int32())
    lists = pa.ListArray.from_arrays(ends, pa.nulls(2 * 10**7, pa.int8()))
    add("a list of 20 million nulls", with_column(table, "meta_list", lists))
    prefixes = with_column(many, "meta", pa.array(["x" * 300_000] * len(many)))
    plain = {"use_dictionary": False, "column_encoding": {"meta": "DELTA_BYTE_ARRAY"}}
    add("strings that repeat the one before", prefixes, **plain)
    wide = table.slice(0, 1)
    add("30,000 columns", pa.Table.from_arrays(wide.columns + [pa.nulls(1)] * 30_000,
        names=[*wide.schema.names, *(f"meta_{n}" for n in range(30_000))]), write_statistics=False)  # fmt: skip
    add("300 row groups", many, row_group_size=1)
    deep: pa.DataType = pa.int8()
    for _ in range(90):
        deep = pa.list_(deep)
    add("90 lists in each other", with_column(table, "meta_deep", pa.nulls(len(table), deep)))
    return made


def test_many_files_that_each_stand_for_little_enough(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_bounds, "_JOINT_BYTES", 32 << 20)  # of 512 MiB
    document = json.loads((packed / "dataset.json").read_text())
    path = Path(shutil.copytree(packed, tmp_path / "ds"))
    rows = pq.read_table(packed / f"{SHARD}.parquet")
    (entry,), at = document["shards"], rows.schema.get_field_index("meta")
    document["shards"] = []
    for n in range(6):
        name = f"{n:08}"
        keys = pa.array([f"{key}{n}" for key in rows["key"].to_pylist()])
        text = pa.array(["x" * 4_000_000] * len(rows))
        table = rows.set_column(rows.schema.get_field_index("key"), "key", keys).set_column(at, "meta", text)
        pq.write_table(table, path / f"shards/{name}.parquet", compression="zstd", use_dictionary=False)
        for kind in ("tar", "idx", "packets") if n else ():
            shutil.copy(path / f"{SHARD}.{kind}", path / f"shards/{name}.{kind}")
        document["shards"].append(entry | {"name": name})
        for total in ("clips", "frames", "bytes"):
            document[total] = entry[total] * (n + 1)
        (path / "dataset.json").write_text(json.dumps(document))
        if n < 2:
            assert len(Dataset.open(path)) == document["clips"]
    with pytest.raises(DatasetError, match=r"0000000\d\.parquet cannot be read: it and the files before it would take"):
        Dataset.open(path)


def test_parquet_that_stands_for_gigabytes(packed: Path, tmp_path: Path, forked_python: Path) -> None:
    table = pq.read_table(packed / f"{SHARD}.parquet")
    made = bombs(table, tmp_path)
    places = []
    for name, (content, rows) in made.items():
        folder = Path(shutil.copytree(packed, tmp_path / name))
        (folder / f"{SHARD}.parquet").write_bytes(content)
        document = json.loads((folder / "dataset.json").read_text())
        document["clips"] = document["shards"][0]["clips"] = rows
        (folder / "dataset.json").write_text(json.dumps(document))
        places.append(str(folder))
    for name, text in zip(made, outcomes(forked_python, read_all, places), strict=True):
        assert re.search("00000000[^\n]*$", text), (name, text)
        if "row groups" not in name and "lists in" not in name:
            assert "cannot be read: it" in text, (name, text)


def test_a_manifest_of_brackets(tmp_path: Path, forked_python: Path) -> None:
    size = MAX_BYTES // 5
    for text in (b"[]," * size, b"{}," * size, b"[[[" * size, b"1.5," * size):
        (tmp_path / str(len(os.listdir(tmp_path)))).mkdir()
        (tmp_path / str(len(os.listdir(tmp_path)) - 1) / "dataset.json").write_bytes(b"[" + text + b"0]")
    places = [str(path) for path in sorted(tmp_path.iterdir())]
    for text in outcomes(forked_python, read_all, places):
        assert "too many values" in text


@pytest.mark.parametrize(
    "change",
    [
        {"seconds": 10**400},
        {"seconds": 1e308},
        {"name": "\ud800"},
        {"classes": ["a", "\udfff"]},
        {"clips": 1 << 61, "shards": [{"clips": 1 << 61}]},
        {"version": "1" * 10_000},
    ],
)
def test_a_manifest_with_absurd_values(packed: Path, change: dict[str, Any]) -> None:
    document = json.loads((packed / "dataset.json").read_text())
    shards = [document["shards"][0] | one for one in change.pop("shards", [{}])]
    with pytest.raises(DatasetError, match=r"dataset\.json") as raised:
        Manifest.from_json(json.dumps(document | change | {"shards": shards}).encode(), path="dataset.json")
    assert len(str(raised.value)) < 500
