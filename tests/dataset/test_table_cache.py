"""The cache of rows of large datasets: entries are found again, never stale or wrong, and within the size limit."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamvid.dataset import consolidated, dataset, shard_files, table_cache
from streamvid.dataset.clip_table import Categories, ClipTable
from streamvid.dataset.consolidated import cache_key
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.manifest import ShardEntry
from streamvid.dataset.table_cache import open_or_build
from streamvid.errors import DatasetError
from streamvid.storage.cache_folder import claim
from streamvid.storage.shard_cache import ShardCache
from tests.support.clock import soon
from tests.support.packed import NATURAL_ORDER, VIDEOS, edit_parquet, pack_recipes

NAME = "0" * 64


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("table_cache")
    rows = "".join(f"{name},{name[0]},{i / 2},text {i}\n" for i, name in enumerate(NATURAL_ORDER[:4]))
    (root / "list.csv").write_text("path,label,score,text\n" + rows)
    return pack_recipes(VIDEOS, root, labels=root / "list.csv", shard_size=40_000)


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
    read = shard_files.read_scalars

    def counting(source: Any, entry: Any) -> Any:
        found.append(entry.name)
        return read(source, entry)

    monkeypatch.setattr(shard_files, "read_scalars", counting)
    return found


def same(one: Dataset, two: Dataset) -> None:
    for clips in (one.clips, two.clips):
        boxes = [clips.stsds[number] for number in clips.stsd_id.tolist()]
        assert boxes == [one.clips.stsds[number] for number in one.clips.stsd_id.tolist()]
    for field in fields(ClipTable):
        if field.name in ("stsd_id", "stsds"):
            continue
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
    assert len(list(folder.glob("*.*"))) == 1


@pytest.mark.parametrize("known", [0, 1, 100])
def test_rows_do_not_depend_on_how_they_were_read(packed: Path, monkeypatch: pytest.MonkeyPatch, known: int) -> None:
    at_once = Dataset.open(packed)
    table_cache._entry(next(iter(table_cache.user_cache_dir().glob("*.rows"))).stem).unlink()
    monkeypatch.setattr(dataset, "_BLOCK_CLIPS", 1)
    monkeypatch.setattr(consolidated, "_KNOWN", known)
    one_by_one = Dataset.open(packed)
    assert one_by_one.clips.key.array.num_chunks == len(at_once.shards)
    same(at_once, one_by_one)
    assert not one_by_one.clips.width.flags.writeable


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
    path.write_text(path.read_text().replace('"name": "set"', '"name": "other"'))
    before = len(reads)
    assert Dataset.open(copy).manifest.name != first.manifest.name
    assert len(reads) == before  # a revision that changes no shard
    edit_parquet(parquet, 0, width=0)
    with pytest.raises(DatasetError, match="pixels wide"):
        Dataset.open(copy)
    with pytest.raises(DatasetError, match="pixels wide"):
        Dataset.open(copy)


def test_names_follow_all_that_rows_depend_on() -> None:
    a, b = (ShardEntry("00000000", 1, 1, 1, *[digit * 64] * 2, 1, *[digit * 64] * 2) for digit in "ab")
    names = {cache_key((one,), [signature]) for one, signature in ((a, (1, 2)), (b, (1, 2)), (a, (1, 3)), (a, (2, 2)))}
    assert len(names) == 4
    assert cache_key((a,), [(1, 2)]) in names


@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "a folder"])
def test_a_damaged_file_is_read_past_and_replaced(packed: Path, folder: Path, reads: list[str], damage: str) -> None:
    first = Dataset.open(packed)
    (path,) = folder.glob("*.rows")
    data = path.read_bytes()
    path.unlink()  # the first has it mapped
    if damage == "flipped":
        path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
    elif damage == "short":
        path.write_bytes(data[:-100])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
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


def zeros(count: int, builds: list[str] | None = None) -> Callable[[str], None]:
    """Writes so many bytes."""

    def build(path: str) -> None:
        if builds is not None:
            builds.append(path)
        Path(path).write_bytes(bytes(count))

    return build


def never(path: str) -> None:
    raise AssertionError(f"{path} was there")


def test_the_ones_used_longest_ago_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 1_600_000
    names = [str(n) * 64 for n in range(4)]
    monkeypatch.setattr(table_cache, "LIMIT_BYTES", 4 * size)
    for age, name in enumerate(names[:2]):
        open_or_build(name, zeros(size))
        os.utime(folder / f"{name}.rows", (1000 + age, 1000 + age))
    assert open_or_build(names[0], never).size == size  # now the one used last
    kept = open_or_build(names[1], never)
    os.utime(folder / f"{names[1]}.rows", (1000, 1000))
    (folder / "notes.txt").write_text("not ours")
    stale, fresh = folder / f"{'a' * 64}.0.part", folder / f"{'b' * 64}.1.part"
    stale.write_bytes(b"x")
    held = claim(fresh)
    assert held is not None
    with held:
        open_or_build(names[2], zeros(size))
        open_or_build(names[3], zeros(size))
    assert table_cache.load(names[1]) is None
    assert table_cache.load(names[3]) is not None
    assert sum(path.stat().st_size for path in folder.glob("*.rows")) <= 4 * size
    assert (folder / "notes.txt").exists()
    assert (stale.exists(), fresh.exists()) == (False, True)
    assert kept.to_pybytes() == bytes(size), "whoever has it mapped keeps it"
    monkeypatch.setattr(table_cache, "LIMIT_BYTES", 1000)
    assert open_or_build("f" * 64, zeros(size)).size == size
    assert table_cache.load("f" * 64) is None
    assert table_cache.load(names[3]) is not None, "rows that are too many push nothing out"


def test_a_full_disk_costs_memory_alone(
    packed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reads: list[str]
) -> None:
    build = table_cache._build

    def full(entry: Path, part: Path, write: Callable[[str], None]) -> Any:
        def fails(path: str) -> None:
            write(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return build(entry, part, fails)

    monkeypatch.setattr(table_cache, "_build", full)
    monkeypatch.setattr(table_cache, "_LARGE", 0)
    assert len(Dataset.open(packed)) == 6
    assert "No space left on device" in caplog.text
    assert "XDG_CACHE_HOME" in caplog.text
    assert not list(table_cache.user_cache_dir().glob("*.*"))


def test_processes_at_once_read_the_rows_once(packed: Path, folder: Path) -> None:
    script = (
        "import sys, time\n"
        "from streamvid.dataset import shard_files, table_cache\n"
        "from streamvid.dataset.dataset import Dataset\n"
        "table_cache.MIN_CLIPS = 1\n"
        "read = shard_files.read_scalars\n"
        "def slow(*given):\n"
        "    print('read', flush=True); time.sleep(0.2); return read(*given)\n"
        "shard_files.read_scalars = slow\n"
        "sys.stdin.readline()\n"
        "assert len(Dataset.open(sys.argv[1])) == 6\n"
    )
    running = [start(script, str(packed)) for _ in range(4)]
    for process in running:
        say(process)
    printed = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert sorted(text.count("read") for text in printed) == [0, 0, 0, len(list((packed / "shards").glob("*.tar")))]
    assert len(list(folder.glob("*.*"))) == 1


BUILDER = (
    "import sys; from streamvid.dataset import table_cache\n"
    "def build(path):\n"
    "    with open(path, 'wb') as file:\n"
    "        file.write(bytes(8)); file.flush(); print('writing', flush=True)\n"
    "        sys.stdin.readline(); file.write(bytes(8))\n"
    "assert table_cache.open_or_build(sys.argv[1], build).size == 16\n"
)


def test_a_builder_that_is_killed_harms_nobody(folder: Path) -> None:
    builder = start(BUILDER, NAME)
    assert wait_for(builder) == "writing"
    builds: list[str] = []
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(open_or_build, NAME, zeros(24, builds))
        time.sleep(0.3)
        assert not waiting.done()
        builder.kill()
        assert waiting.result(timeout=120).size == 24
    builder.communicate()
    assert len(builds) == 1
    assert open_or_build(NAME, never).size == 24
    assert [path.name for path in folder.glob("*.*")] == [f"{NAME}.rows"]


def test_a_shard_cache_in_the_same_folder_leaves_what_is_being_built(folder: Path) -> None:
    builder = start(BUILDER, NAME)
    assert wait_for(builder) == "writing"
    with ShardCache(folder, limit_bytes=1 << 30) as cache:
        assert cache.folder.reserved() == 0
    say(builder)
    builder.communicate(timeout=120)
    assert builder.returncode == 0
    assert open_or_build(NAME, never).size == 16


def test_a_builder_that_is_stopped_holds_nobody_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(table_cache, "STALLED_SECONDS", 1.0)
    builder = start(BUILDER, NAME)
    assert wait_for(builder) == "writing"
    builder.send_signal(signal.SIGSTOP)
    builds: list[str] = []
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(open_or_build, NAME, zeros(24, builds)) for _ in range(3)]
        assert [one.result(timeout=120).size for one in waiting] == [24] * 3
    assert len(builds) == 1, "those that wait build it once, too"
    assert "has stalled" in caplog.text
    # Whoever opens it now does not wait, and the stopped one may go on.
    assert open_or_build(NAME, never).size == 24
    builder.send_signal(signal.SIGCONT)
    say(builder)
    builder.communicate(timeout=120)
    assert builder.returncode == 0
    assert open_or_build(NAME, never).size == 16
    assert [path.name for path in folder.glob("*.*")] == [f"{NAME}.rows"]


@pytest.mark.parametrize("size", [0, 80])
def test_a_builder_that_makes_progress_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Also if the file has its size from the beginning, as one of numbers has."""
    monkeypatch.setattr(table_cache, "STALLED_SECONDS", 3.0)

    def slow(path: str) -> None:
        with open(path, "wb") as file:
            file.truncate(size)
            for _ in range(10):
                file.write(bytes(8))
                file.flush()
                time.sleep(0.4)

    with ThreadPoolExecutor(1) as thread:
        building = thread.submit(open_or_build, NAME, slow)
        assert soon(lambda: list(folder.glob("*.part")))
        assert open_or_build(NAME, never).size == 80
        assert building.result().size == 80


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_for(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


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
    memory.rm("/cached/ds/tables", recursive=True)  # with it, the shard's own is not read
    memory.pipe_file(f"/cached/ds/{entry.file('parquet')}", (packed / first.shards[1].file("parquet")).read_bytes())
    with pytest.raises(DatasetError, match=rf"{entry.name}\.parquet is not the one in dataset\.json, by its SHA-256"):
        Dataset.open("memory://cached/ds")
