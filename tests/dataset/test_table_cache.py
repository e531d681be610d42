"""The rows of large datasets, kept: found again, never out of date, never wrong, never too many."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from streamvid.dataset import index_cache, table_cache
from streamvid.dataset.clip_table import Categories, ClipTable
from streamvid.dataset.consolidated import cache_key
from streamvid.dataset.dataset import Dataset
from streamvid.errors import DatasetError
from streamvid.packing.pack import pack
from tests.support.packed import NATURAL_ORDER, edit_parquet, make_videos

pytestmark = pytest.mark.usefixtures("inline_workers")

NAME = "0" * 64


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table_cache")
    make_videos(root / "in")
    rows = "".join(f"{name},{name[0]},{i / 2},text {i}\n" for i, name in enumerate(NATURAL_ORDER[:4]))
    (root / "list.csv").write_text("path,label,score,text\n" + rows)
    pack([root / "in"], root / "ds", labels=root / "list.csv", shard_size=40_000, progress=False)
    return root / "ds"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache's folder. All datasets are large enough for it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(table_cache, "MIN_CLIPS", 1)
    return tmp_path / "cache/streamvid"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards whose rows were read, in order."""
    found: list[str] = []
    read = index_cache.read_scalars

    def counting(source: Any, entry: Any) -> Any:
        found.append(entry.name)
        return read(source, entry)

    monkeypatch.setattr(index_cache, "read_scalars", counting)
    return found


def same(one: Dataset, two: Dataset) -> None:
    for field in fields(ClipTable):
        a, b = getattr(one.clips, field.name), getattr(two.clips, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            assert np.array_equal(a, b)
        elif isinstance(a, Categories):
            assert list(a) == list(b)
            assert a.codes.dtype == b.codes.dtype
        else:
            assert a == b
    assert one.to_arrow().equals(two.to_arrow())
    assert one.meta.parquet_types == two.meta.parquet_types


def test_the_second_time_no_parquet_is_read(packed: Path, folder: Path, reads: list[str]) -> None:
    first = Dataset.open(packed)
    count = len(first.shards)
    assert len(reads) == count > 1
    again = Dataset.open(packed)
    assert len(reads) == count
    same(first, again)
    for row in range(len(first)):
        assert np.array_equal(first.index(row).offset, again.index(row).offset)
    assert len(list(folder.iterdir())) == 1


def test_small_datasets_are_not_kept(packed: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_cache, "MIN_CLIPS", 7)
    Dataset.open(packed)
    assert not folder.exists()


def test_a_dataset_that_changes_is_read_again(packed: Path, tmp_path: Path, reads: list[str]) -> None:
    copy = Path(shutil.copytree(packed, tmp_path / "ds"))
    first = Dataset.open(copy)
    parquet = next((copy / "shards").glob("*.parquet"))
    edit_parquet(parquet, 0, source="elsewhere")
    assert Dataset.open(copy).clips.source[0] == "elsewhere"
    path = copy / "dataset.json"
    path.write_text(path.read_text().replace('"name": "ds"', '"name": "other"'))
    before = len(reads)
    assert Dataset.open(copy).manifest.name != first.manifest.name
    assert len(reads) == before + len(first.shards)
    edit_parquet(parquet, 0, width=0)
    with pytest.raises(DatasetError, match="pixels wide"):
        Dataset.open(copy)
    with pytest.raises(DatasetError, match="pixels wide"):
        Dataset.open(copy)


def test_names_follow_all_that_rows_depend_on() -> None:
    names = {cache_key(b"a", [(1, 2)]), cache_key(b"b", [(1, 2)]), cache_key(b"a", [(1, 3)]), cache_key(b"a", [(2, 2)])}
    assert len(names) == 4
    assert cache_key(b"a", [(1, 2)]) in names


@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "no arrow", "a folder"])
def test_a_damaged_file_is_read_past_and_replaced(packed: Path, folder: Path, reads: list[str], damage: str) -> None:
    first = Dataset.open(packed)
    (path,) = folder.iterdir()
    data = path.read_bytes()
    if damage == "flipped":
        path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
    elif damage == "short":
        path.write_bytes(data[:-100])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "no arrow":
        import hashlib

        path.write_bytes(b"x" * 1000 + hashlib.sha256(b"x" * 1000).digest())
    else:
        path.unlink()
        path.mkdir()
    same(first, Dataset.open(packed))
    assert len(reads) == 2 * len(first.shards)
    if damage != "a folder":
        same(first, Dataset.open(packed))
        assert len(reads) == 2 * len(first.shards)


def test_a_place_that_cannot_be_written_costs_nothing_but_time(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(Dataset.open(packed)) == 6
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert len(Dataset.open(packed)) == 6


def test_the_ones_used_longest_ago_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"x": pa.array(np.zeros(200_000))})
    names = [str(n) * 64 for n in range(4)]
    monkeypatch.setattr(table_cache, "LIMIT_BYTES", 6_500_000)
    for age, name in enumerate(names[:2]):
        table_cache.store(name, rows)
        os.utime(folder / f"{name}.rows", (1000 + age, 1000 + age))
    assert table_cache.load(names[0]) is not None  # now the one used last
    kept = table_cache.load(names[1])
    os.utime(folder / f"{names[1]}.rows", (1000, 1000))
    (folder / "notes.txt").write_text("not ours")
    stale, fresh = folder / f".{'a' * 16}.tmp", folder / f".{'b' * 16}.tmp"
    for left in (stale, fresh):
        left.write_bytes(b"x")
    os.utime(stale, (1000, 1000))
    table_cache.store(names[2], rows)
    table_cache.store(names[3], rows)
    assert table_cache.load(names[1]) is None
    assert table_cache.load(names[3]) is not None
    assert sum(path.stat().st_size for path in folder.glob("*.rows")) <= 6_500_000
    assert (folder / "notes.txt").exists()
    assert (stale.exists(), fresh.exists()) == (False, True)
    assert kept is not None
    assert kept.equals(rows), "whoever has it mapped keeps it"
    monkeypatch.setattr(table_cache, "LIMIT_BYTES", 1000)
    table_cache.store("f" * 64, rows)
    assert table_cache.load("f" * 64) is None
    assert table_cache.load(names[3]) is not None, "a table that is too large pushes nothing out"


def test_processes_at_once(packed: Path, folder: Path) -> None:
    script = (
        "import sys; from streamvid.dataset import table_cache; table_cache.MIN_CLIPS = 1\n"
        "from streamvid.dataset.dataset import Dataset\n"
        "from streamvid.storage.cache_dir import user_cache_dir\n"
        "for _ in range(10):\n"
        "    for file in user_cache_dir().glob('*.rows'): file.unlink(missing_ok=True)\n"
        "    assert len(Dataset.open(sys.argv[1])) == len(Dataset.open(sys.argv[1])) == 6\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", script, str(packed)]) for _ in range(3)]
    assert [process.wait(timeout=60) for process in running] == [0, 0, 0]
    assert not list(folder.glob("*.tmp"))


def test_a_remote_parquet_that_is_another_is_not_kept(packed: Path, folder: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(packed), "/cached/ds", recursive=True)
    first = Dataset.open("memory://cached/ds")
    assert len(list(folder.glob("*.rows"))) == 1
    entry = first.shards[0]
    memory.rm(f"/cached/ds/{entry.file('parquet')}")
    same(first, Dataset.open("memory://cached/ds"))
    for path in folder.glob("*.rows"):
        path.unlink()
    memory.pipe_file(f"/cached/ds/{entry.file('parquet')}", (packed / first.shards[1].file("parquet")).read_bytes())
    with pytest.raises(DatasetError, match=rf"{entry.name}\.parquet is not the one in dataset\.json, by its SHA-256"):
        Dataset.open("memory://cached/ds")
