"""Ranges of remote files on a local disk: the right bytes, each fetched once, whatever other processes do meanwhile."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.storage import range_cache, range_reader
from streamvid.storage.byte_range import ByteRange
from streamvid.storage.range_cache import Extents, FileIdentity, RangeCache, give_up_latest
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.shard_cache import ShardCache
from tests.support.mounted import with_locks_of_nfs

DATA = np.random.default_rng(0).bytes(150_001)
URL = "memory://kept/file.tar"
FILE = FileIdentity(hashlib.sha256(DATA).hexdigest(), len(DATA))


@pytest.fixture(autouse=True)
def long_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not fetched as a whole."""
    monkeypatch.setattr(range_cache, "REQUEST_BYTES", len(DATA) - 1)


class Reader:
    """Reads the file through a cache; `asked` counts the bytes that were fetched."""

    def __init__(self, folder: Path, limit: int = 1 << 30) -> None:
        fsspec.filesystem("memory").pipe_file("/kept/file.tar", DATA)
        self.shards = ShardCache(folder, limit_bytes=limit)
        self.cache = RangeCache(self.shards, {URL: FILE})
        self.reader = RangeReader(cache=self.cache)
        self.asked = 0
        read = self.reader.remote.read

        def counted(ranges: Any, **options: Any) -> Any:
            self.asked += sum(end - start for _, start, end in ranges)
            return read(ranges, **options)

        self.reader.remote.read = counted  # type: ignore[method-assign]

    def read(self, *spans: tuple[int, int]) -> None:
        blocks = self.reader.read([ByteRange(URL, start, end) for start, end in spans])
        for (start, end), block in zip(spans, blocks, strict=True):
            assert block.tobytes() == DATA[start:end], (start, end)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path / "cache")
    with made.shards:
        yield made


def kept(folder: Path) -> Path:
    (path,) = folder.rglob("*.ranges")
    return path


def test_a_range_is_fetched_once_with_the_rest_of_its_blocks(reader: Reader, tmp_path: Path) -> None:
    reader.read((10_000, 20_000), (0, 0), (149_000, 150_001))
    assert 11_001 <= reader.asked <= 11_001 + 4 * 4096
    before = reader.asked
    for span in ((10_000, 20_000), (12_000, 12_001), (8192, 20_480), (150_000, 150_001)):
        reader.read(span)
    assert reader.asked == before
    other = Reader(tmp_path / "cache")  # another process would be the same
    other.read((10_000, 20_000))
    assert other.asked == 0
    assert kept(tmp_path).stat().st_blocks * 512 < len(DATA) / 2


def test_neighbours_come_with_those_that_are_asked_for(reader: Reader) -> None:
    """Where that costs less than another request: what lies between is there afterwards."""
    spans = [(0, 100), (60_000, 60_100), (120_000, 120_100)]
    reader.reader.read([ByteRange(URL, start, end) for start, end in spans], neighbours=True)
    assert reader.asked == 122_880  # one range of whole blocks
    reader.read((30_000, 31_000), (90_000, 91_000))
    assert reader.asked == 122_880


@given(st.lists(st.lists(st.tuples(st.integers(0, 150_000), st.integers(0, 20_000)), min_size=1, max_size=5)))
def test_any_ranges_in_any_order(tmp_path_factory: pytest.TempPathFactory, wanted: list[list[tuple[int, int]]]) -> None:
    reader = Reader(tmp_path_factory.mktemp("any"))
    with reader.shards:
        for spans in wanted:
            reader.read(*((start, min(start + size, len(DATA))) for start, size in spans))


def test_many_readers_at_once(tmp_path: Path) -> None:
    readers = [Reader(tmp_path, 200_000) for _ in range(4)]

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(40):
            start = int(rng.integers(0, 140_000))
            readers[number % 4].read((start, start + int(rng.integers(1, 10_000))))
            if rng.random() < 0.1:
                readers[number % 4].shards.distrust(FILE.sha256, FILE.size)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def neighbours(reader: Reader, *spans: tuple[int, int]) -> None:
    blocks = reader.reader.read([ByteRange(URL, start, end) for start, end in spans], neighbours=True)
    assert [block.tobytes() for block in blocks] == [DATA[start:end] for start, end in spans]


def test_of_a_short_file_all_comes_with_the_first_neighbours(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frame indexes of a small shard: one request, and the next chunk of clips makes none."""
    monkeypatch.setattr(range_cache, "REQUEST_BYTES", len(DATA))
    neighbours(reader, (60_000, 60_100), (150_000, 150_001))
    assert reader.asked == len(DATA)
    neighbours(reader, (0, 100), (99_000, 120_000))
    assert reader.asked == len(DATA)


def test_what_others_fetch_meanwhile_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frame indexes of the same file that readers of several threads and ranks want at the same time."""
    monkeypatch.setattr(range_reader, "_PATIENCE", 20.0)
    readers = [Reader(tmp_path) for _ in range(4)]
    for one in readers:
        read = one.reader.remote.read

        def slow(*args: Any, read: Any = read, **options: Any) -> Any:
            time.sleep(0.02)
            return read(*args, **options)

        one.reader.remote.read = slow  # type: ignore[method-assign]
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda n: neighbours(readers[n % 4], (n * 9000, n * 9000 + 100), (n * 9000 + 60_000, 140_000)), range(8)
            )
        )
    assert sum(one.asked for one in readers) == 143_360  # whole blocks


def test_of_neighbours_that_are_there_in_part_the_rest_is_fetched(reader: Reader) -> None:
    reader.read((20_000, 30_000), (60_000, 61_000))
    before = reader.asked
    neighbours(reader, (10, 20), (25_000, 26_000), (149_990, 150_001))
    assert reader.asked == len(DATA)
    assert before == (32_768 - 16_384) + 4096


def test_a_claim_of_a_process_that_stands_still_holds_nobody_up(reader: Reader) -> None:
    with reader.cache.claimed([ByteRange(URL, 0, 8192)], 0.0):
        neighbours(reader, (10, 20), (5000, 6000))
    assert reader.asked == 8192


def test_files_of_several_urls_may_be_the_same(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of copies of a video have frame indexes of the same bytes: who claims both does not wait for himself."""
    monkeypatch.setattr(range_cache.time, "sleep", lambda _: pytest.fail("it waits"))
    again = URL + ".copy"
    cache = RangeCache(reader.shards, {URL: FILE, again: FILE})
    wanted = [ByteRange(URL, 0, 8192), ByteRange(again, 4096, 12_288), ByteRange(URL, 40_960, 45_056)]
    with cache.claimed(wanted, math.inf) as own, cache.claimed([ByteRange(again, 12_288, 40_960)], math.inf) as rest:
        assert (own, rest) == ([0, 1, 2], [0])


def test_what_nobody_claims_is_fetched_before_what_others_fetch_is_waited_for(reader: Reader) -> None:
    first, second = ByteRange(URL, 0, 8192), ByteRange(URL, 40_960, 45_056)
    with reader.cache.claimed([first], math.inf):
        with reader.cache.claimed([first, second], math.inf) as own:
            assert own == [1]
        with reader.cache.claimed([first], 0.0) as own:
            assert own == [0]  # all, when the time is over
    with reader.cache.claimed([first, second], math.inf) as own:
        assert own == [0, 1]


def test_on_nfs_locks_of_ranges_are_in_nobodys_way(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a lock of a file is one of all its ranges, so that a process would wait for its own claims for ever."""
    with_locks_of_nfs(monkeypatch)
    neighbours(reader, (10, 20), (5000, 6000))
    neighbours(reader, (10, 20), (5000, 6000))
    reader.read((10, 6000))
    assert reader.asked == 2 * 8192  # once more, as it was claimed when it was to be kept


def test_what_a_storage_could_not_write_costs_the_cache_and_no_range(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """NFS and FUSE say so when the file is closed."""

    @contextlib.contextmanager
    def opened(*values: Any) -> Iterator[Any]:
        with open_file(*values) as file:
            yield file
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    open_file = range_cache._opened
    monkeypatch.setattr(range_cache, "_opened", opened)
    neighbours(reader, (10, 20), (5000, 6000))
    assert "Disk quota exceeded" in caplog.text


def test_nobody_waits_for_what_a_full_cache_does_not_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "_PATIENCE", math.inf)
    monkeypatch.setattr(range_cache.time, "sleep", lambda _: pytest.fail("it waits"))
    reader = Reader(tmp_path, 20_000)
    reader.read((0, 40_000))
    reader.read((100_000, 140_000))
    with reader.cache.claimed([ByteRange(URL, 40_960, 45_056)], 0.0):
        neighbours(reader, (41_000, 42_000))


def test_a_whole_file_in_the_cache_is_read(reader: Reader) -> None:
    reader.shards.lease(URL, size=len(DATA), sha256=FILE.sha256).release()
    reader.read((5, 100_000))
    assert reader.asked == 0


def test_the_limit_holds(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 100_000)
    with reader.shards:
        for start in range(0, 150_000, 10_000):
            reader.read((start, start + 10_000))
            used = sum(path.stat().st_blocks * 512 for path in tmp_path.iterdir())
            assert used <= 100_000 + 3 * 4096
    assert reader.asked >= 150_000


def test_blocks_whose_writing_was_cut_off_are_not_there(reader: Reader, tmp_path: Path) -> None:
    """Killed behind the block and before its byte."""
    reader.read((0, 40_960))
    path = kept(tmp_path)
    with path.open("r+b") as file:
        file.seek(-(-len(DATA) // 4096) * 4096 + 3)
        file.write(b"\0")
        file.seek(3 * 4096)
        file.write(b"x" * 4096)
    before = reader.asked
    reader.read((0, 40_960))
    assert reader.asked > before
    path.write_bytes(path.read_bytes()[:50_000])  # cut off, with all of its map
    reader.read((0, 40_960))


KILLED = """
import sys
from pathlib import Path
from tests.storage.test_range_cache import FILE, Reader
reader = Reader(Path(sys.argv[1]))
print("begun", flush=True)
while True:
    for start in range(0, 150_000, 5000):
        reader.read((start, start + 5000))
    reader.shards.distrust(FILE.sha256, FILE.size)
"""


def beside_killed(script: str, folder: Path) -> Reader:
    """A reader that has read all beside processes that were killed, and behind them."""
    for _ in range(3):
        command = [sys.executable, "-c", script, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            other.stdout.readline()
            reader = Reader(folder)
            for start in range(0, 140_000, 3000):
                reader.read((start, start + 9000))
            other.send_signal(signal.SIGKILL)
        for start in range(0, 140_000, 3000):
            reader.read((start, start + 9000))
    return reader


def test_a_killed_process_leaves_nothing_wrong(tmp_path: Path) -> None:
    beside_killed(KILLED, tmp_path)


def test_what_is_distrusted_is_fetched_again(reader: Reader) -> None:
    reader.read((0, 4096))
    assert reader.shards.distrust(FILE.sha256, FILE.size)
    assert not reader.shards.distrust(FILE.sha256, FILE.size)
    reader.read((0, 4096))
    assert reader.asked == 2 * 4096


def test_a_full_disk_costs_the_cache_and_no_range(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        for _ in range(3):
            reader.read((0, 10_000))
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1
    assert "No space left on device; free some space there" in said[0]
    assert said[0].endswith("Until then ranges are fetched again.")
    reader.read((0, 10_000))


def test_a_folder_that_is_removed_is_made_again(reader: Reader, tmp_path: Path) -> None:
    reader.read((0, 4096))
    kept(tmp_path).unlink()
    (tmp_path / "cache").rmdir()
    reader.read((0, 4096))
    assert reader.asked == 2 * 4096
    reader.read((0, 4096))
    assert reader.asked == 2 * 4096


def test_no_link_is_followed(reader: Reader, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    reader.shards.folder.ranges(FILE.sha256, FILE.size).symlink_to(victim)
    reader.read((0, 4096))
    assert victim.read_bytes() == b"precious"


def used(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*.ranges"))


def extents(starts: list[int], when: list[float]) -> Extents:
    return Extents(FILE, np.array(starts), np.array(when, dtype=np.float64))


def test_what_is_needed_latest_is_given_up_first(reader: Reader, tmp_path: Path) -> None:
    reader.read((0, 150_001))
    # Parts of 12 blocks, of which the neighbours share one.
    some = extents([0, 50_000, 100_000], [5.0, np.inf, 7.0])
    folder, before = reader.shards.folder, used(tmp_path)
    freed = give_up_latest(folder, [some], 4096)
    assert freed == before - used(tmp_path) >= 4096
    asked = reader.asked
    reader.read((0, 50_000), (100_000, 150_001))
    assert reader.asked == asked  # also their blocks at the edges
    reader.read((60_000, 70_000))
    assert reader.asked > asked
    give_up_latest(folder, [some], 1 << 20)
    assert used(tmp_path) <= 4096  # the map
    assert give_up_latest(folder, [some], 1 << 20) == 0
    reader.read((0, 150_001))
    assert give_up_latest(folder, [extents([0], [np.inf])], 1) > 0


def test_no_reader_sees_a_hole(tmp_path: Path) -> None:
    """Parts are given up while others read and write them: every byte that comes is the file's, at its first read."""
    readers = [Reader(tmp_path) for _ in range(4)]
    some = extents(list(range(0, 150_000, 5000)), [float(n * 7 % 30) for n in range(30)])
    end = threading.Event()
    freed = []

    def give_up() -> None:
        while not end.is_set():
            freed.append(give_up_latest(readers[0].shards.folder, [some], 30_000))

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        for _ in range(60):
            start = int(rng.integers(0, 140_000))
            readers[number % 4].read((start, start + int(rng.integers(1, 10_000))))

    thread = threading.Thread(target=give_up)
    thread.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    end.set()
    thread.join()
    assert sum(freed) > 0


GIVES_UP = """
import sys
from pathlib import Path
from tests.storage.test_range_cache import Reader, extents, give_up_latest
reader = Reader(Path(sys.argv[1]))
print("begun", flush=True)
while True:
    reader.read((0, 150_001))
    give_up_latest(reader.shards.folder, [extents([0, 75_000], [1.0, 2.0])], 70_000)
"""


def test_killed_while_it_gives_up(tmp_path: Path) -> None:
    """And what it has left is given up with the next."""
    reader = beside_killed(GIVES_UP, tmp_path)
    with kept(tmp_path).open("r+b") as file:  # killed between the bytes and the holes
        file.seek(-(-len(DATA) // 4096) * 4096)
        file.write(bytes(20))
    give_up_latest(reader.shards.folder, [extents([0], [1.0])], 4096)
    assert used(tmp_path) <= len(DATA) - 20 * 4096


def test_where_no_holes_can_be_punched_files_go(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(range_cache, "_punch_hole", refuse)
    small = Reader(tmp_path, 100_000)
    small.shards.give_up = lambda wanted: give_up_latest(small.shards.folder, [extents([0], [1.0])], wanted)
    with small.shards:
        for start in range(0, 150_000, 10_000):
            small.read((start, start + 10_000))
            assert used(tmp_path) <= 100_000 + 3 * 4096
