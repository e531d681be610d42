"""ShardCache: with real processes on one folder, and a server that counts, fails and stalls on demand."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import multiprocessing
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from streamvid.errors import DatasetError, InputError
from streamvid.storage import filesystem
from streamvid.storage import shard_cache as cache_module
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.retry import Retry
from streamvid.storage.shard_cache import CacheUnusable, Lease, ShardCache
from tests.support import serving
from tests.support.clock import Clock

STALLED_AFTER = 1.0
FORKED = multiprocessing.get_context("forkserver")


@dataclass
class Site:
    """What the test server serves and how it misbehaves. `gets` counts the downloads begun, by name."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    gets: dict[str, int] = field(default_factory=dict)
    refuse: dict[str, int] = field(default_factory=dict)  # so many GETs are answered with 503
    cut: dict[str, int] = field(default_factory=dict)  # so many GETs break off halfway
    damage: dict[str, int] = field(default_factory=dict)  # so many GETs send other bytes
    stall: set[str] = field(default_factory=set)  # GETs stop halfway until `go`
    stalled: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, data: bytes) -> dict[str, Any]:
        """Serve `data`; returns the arguments of ShardCache's calls for it."""
        self.files[name] = data
        return {"url": f"{self.address}/{name}", "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def take(self, table: dict[str, int], name: str) -> bool:
        with self.mutex:
            left = table.get(name, 0)
            table[name] = left - 1
            return left > 0


class Handler(serving.Handler):
    protocol_version = "HTTP/1.0"
    site: Site

    def answer(self) -> None:
        site, name, body = self.site, self.path.lstrip("/").partition("?")[0], self.command == "GET"
        if name not in site.files:
            self.send_error(404)
            return
        if body:
            with site.mutex:
                site.gets[name] = site.gets.get(name, 0) + 1
            if site.take(site.refuse, name):
                self.send_error(503)
                return
        data = site.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if not body:
            return
        half = len(data) // 2
        if site.take(site.cut, name):
            self.wfile.write(data[:half])
        elif site.take(site.damage, name):
            self.wfile.write(bytes(len(data)))
        elif name in site.stall:
            self.wfile.write(data[:half])
            self.wfile.flush()
            site.stalled.set()
            site.go.wait(60)
            self.wfile.write(data[half:])
        else:
            self.wfile.write(data)


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    with serving.serving(Handler, site=site) as port:
        site.address = f"http://127.0.0.1:{port}"
        try:
            yield site
        finally:
            site.go.set()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[ShardCache]:
    """A cache of 100 bytes."""
    with ShardCache(tmp_path / "cache", limit_bytes=100, retry=Clock().retry()) as cache:
        yield cache


def published(root: Path) -> list[str]:
    """Every file that the cache keeps but its locks."""
    return sorted(path.name for path in root.iterdir() if path.name != "locks")


def data(letter: str, size: int = 40) -> bytes:
    return letter.encode() * size


def read(cache: ShardCache, **file: Any) -> bytes:
    """A file's content through the cache."""
    with cache.lease(**file) as lease:
        return Path(lease.opened).read_bytes()


def read_small(cache: ShardCache, *, url: str, size: int, sha256: str) -> bytes:
    """The same if its size is not known. Reads it from its storage if the cache cannot be used."""
    return cache.read_through(url, sha256=sha256, stop=threading.Event())


# --- other processes


class WatchedCache(ShardCache):
    """Sends "missed" whenever a file is looked for and is not there."""

    pipe: Connection

    def _take_or_fetch(self, *args: Any) -> Lease:
        self.pipe.send("missed")
        return super()._take_or_fetch(*args)


def hold(
    root: Path, limit: int, file: dict[str, Any], pipe: Connection, stalled_after: float, environment: dict[str, str]
) -> None:
    """Lease a file, send its bytes, and hold it until told to go on. The fork server has an earlier environment."""
    os.environ.update(environment)
    with WatchedCache(root, limit_bytes=limit, stalled_after=stalled_after) as cache:
        cache.pipe = pipe
        with cache.lease(**file) as lease:
            pipe.send(lease.path.read_bytes())
            pipe.recv()


@dataclass
class Holder:
    """Another process that leases one file, until told to go on or killed."""

    process: BaseProcess
    pipe: Connection

    def miss(self) -> None:
        """Wait until it has found that the file is not there yet, and so is about to fetch it or wait for it."""
        assert self.pipe.poll(120)
        assert self.pipe.recv() == "missed"

    def read(self) -> bytes:
        """Wait until it has the lease; the file's bytes."""
        while True:
            assert self.pipe.poll(120)
            if (message := self.pipe.recv()) != "missed":
                return bytes(message)

    def finish(self) -> None:
        self.pipe.send("go on")
        self.process.join(60)
        assert self.process.exitcode == 0

    def kill(self) -> None:
        """SIGKILL: nothing of it can clean up."""
        self.process.kill()
        self.process.join()


class Holders:
    def __init__(self) -> None:
        self.started: list[Holder] = []

    def start(self, root: Path, limit: int, file: dict[str, Any], stalled_after: float = STALLED_AFTER) -> Holder:
        here, there = FORKED.Pipe()
        process = FORKED.Process(
            target=hold, args=(root, limit, file, there, stalled_after, dict(os.environ)), daemon=True
        )
        process.start()
        there.close()
        self.started.append(Holder(process, here))
        return self.started[-1]


@pytest.fixture
def holders() -> Iterator[Holders]:
    holders = Holders()
    yield holders
    for holder in holders.started:
        holder.kill()
        holder.pipe.close()


# --- one process


def test_fetched_once_and_kept(cache: ShardCache, site: Site, tmp_path: Path) -> None:
    file = site.add("a", data("a"))
    for _ in range(3):
        with cache.lease(**file) as lease:
            assert lease.path.read_bytes() == data("a")
            assert lease.path == tmp_path / "cache" / file["sha256"]
    assert read(cache, **file) == data("a")
    assert site.gets == {"a": 1}
    with ShardCache(tmp_path / "cache", limit_bytes=100) as later:
        assert read(later, **file) == data("a")
    assert site.gets == {"a": 1}
    assert published(tmp_path / "cache") == [file["sha256"]]


def test_empty_file(cache: ShardCache, site: Site) -> None:
    assert read(cache, **site.add("a", b"")) == b""


def test_same_content_under_another_url_is_the_same_file(cache: ShardCache, site: Site) -> None:
    read(cache, **site.add("a", data("a")))
    assert read(cache, **site.add("b", data("a"))) == data("a")
    assert site.gets == {"a": 1}


def test_least_recently_used_goes_first_and_the_limit_holds(cache: ShardCache, site: Site, tmp_path: Path) -> None:
    a, b, c = (site.add(name, data(name)) for name in "abc")
    for file in (a, b, a, c):  # 40 bytes each of 100: c needs room, and b was used longest ago
        read(cache, **file)
        assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("*") if path.is_file()) <= 100
    assert published(tmp_path / "cache") == sorted([a["sha256"], c["sha256"]])
    read(cache, **b)
    assert published(tmp_path / "cache") == sorted([b["sha256"], c["sha256"]])
    assert site.gets == {"a": 1, "b": 2, "c": 1}


def test_leased_files_stay_and_the_limit_is_passed_with_one_warning(
    cache: ShardCache, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [site.add(name, data(name)) for name in "abcd"]
    leases: list[Lease] = []
    with caplog.at_level(logging.WARNING, logger="streamvid"):
        leases.extend(cache.lease(**file) for file in files)
    assert [lease.path.read_bytes() for lease in leases] == [data(name) for name in "abcd"]
    assert [record.message for record in caplog.records if "limit" in record.message] == [
        f"The cache in {tmp_path}/cache grows to 120 bytes, over its limit of 100, as all files in it are in use; "
        "raise the limit to the shards that all processes of this node read at once."
    ]
    for lease in leases:
        lease.release()
        lease.release()
    read(cache, **site.add("e", data("e")))
    assert len(published(tmp_path / "cache")) == 2  # back under the limit


def test_file_leased_twice_stays_until_both_are_released(cache: ShardCache, site: Site) -> None:
    a = site.add("a", data("a", 90))
    first, second = cache.lease(**a), cache.lease(**a)
    first.release()
    read(cache, **site.add("b", data("b")))
    assert second.path.read_bytes() == data("a", 90)
    second.release()
    read(cache, **site.add("c", data("c")))
    assert not second.path.exists()


def test_shard_larger_than_the_limit(cache: ShardCache, site: Site) -> None:
    with pytest.raises(InputError, match=r"101 bytes, more than the whole cache of 100; raise .*cache_bytes"):
        cache.lease(**site.add("a", data("a", 101)))
    assert site.gets == {}


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_must_be_positive(tmp_path: Path, limit: int) -> None:
    with pytest.raises(InputError, match="positive"):
        ShardCache(tmp_path, limit_bytes=limit)


def test_root_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"The cache folder .* cannot be used: Not a directory; "):
        ShardCache(tmp_path / "file", limit_bytes=1)


@pytest.mark.parametrize("sha256", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n", "٠" * 64, None])
def test_untrusted_hashes(cache: ShardCache, site: Site, tmp_path: Path, sha256: Any) -> None:
    file = site.add("a", data("a")) | {"sha256": sha256}
    for call in (cache.lease, cache.prefetch, partial(read_small, cache)):
        with pytest.raises(DatasetError, match="64 lower-case hexadecimal digits"):
            call(**file)
    assert published(tmp_path / "cache") == []


@pytest.mark.parametrize("size", [-1, 1.5, "40", True])
def test_untrusted_sizes(cache: ShardCache, site: Site, size: Any) -> None:
    with pytest.raises(DatasetError, match="not a number of bytes"):
        cache.lease(**(site.add("a", data("a")) | {"size": size}))


# --- damage and failures


def test_wrong_contents_are_fetched_once_more_then_refused(cache: ShardCache, site: Site, tmp_path: Path) -> None:
    file = site.add("a", data("a"))
    site.files["a"] = data("b")
    with pytest.raises(DatasetError, match=f"{file['url']} is damaged: its SHA-256 is "):
        cache.lease(**file)
    assert site.gets == {"a": 2}
    assert published(tmp_path / "cache") == []


def test_damage_on_the_way_is_repaired(cache: ShardCache, site: Site) -> None:
    file = site.add("a", data("a"))
    site.damage["a"] = 1
    assert read(cache, **file) == data("a")
    assert site.gets == {"a": 2}


def test_wrong_size_is_refused_before_the_download(cache: ShardCache, site: Site) -> None:
    file = site.add("a", data("a"))
    site.files["a"] = data("a", 10_000)
    with pytest.raises(DatasetError, match="has 10000 bytes, but the dataset says 40"):
        cache.lease(**file)
    assert site.gets == {}


def test_missing_file_is_not_tried_again(cache: ShardCache, site: Site, tmp_path: Path) -> None:
    file = site.add("a", data("a"))
    del site.files["a"]
    with pytest.raises(DatasetError, match="does not exist"):
        cache.lease(**file)
    assert published(tmp_path / "cache") == []


@pytest.mark.parametrize("trouble", ["refuse", "cut"])
def test_passing_trouble_is_waited_out(cache: ShardCache, site: Site, trouble: str) -> None:
    file = site.add("a", data("a"))
    getattr(site, trouble)["a"] = 2
    assert read(cache, **file) == data("a")
    assert site.gets == {"a": 3}


@pytest.mark.parametrize("trouble", ["refuse", "cut"])
def test_lasting_trouble_is_told(cache: ShardCache, site: Site, tmp_path: Path, trouble: str) -> None:
    file = site.add("a", data("a"))
    getattr(site, trouble)["a"] = 10**6
    file["url"] += "?token=hunter2"
    with pytest.raises(StorageUnavailable, match="try again") as error:
        cache.lease(**file)
    assert "hunter2" not in str(error.value)
    assert site.gets["a"] > 10
    assert published(tmp_path / "cache") == []
    getattr(site, trouble)["a"] = 0
    assert read(cache, **file) == data("a")


@pytest.mark.parametrize("size", [0, 39, 41])
def test_published_file_of_another_size_is_fetched_again(
    cache: ShardCache, site: Site, tmp_path: Path, size: int
) -> None:
    file = site.add("a", data("a"))
    (tmp_path / "cache" / file["sha256"]).write_bytes(bytes(size))
    with cache.lease(**file) as lease:
        assert lease.path.read_bytes() == data("a")
    assert site.gets == {"a": 1}


def test_evicted_between_open_and_lock(
    cache: ShardCache, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = site.add("a", data("a"))
    read(cache, **file)
    flock = fcntl.flock
    evictions = [tmp_path / "cache" / file["sha256"]]

    def evicting(fd: Any, operation: int) -> None:
        if operation & fcntl.LOCK_SH and evictions:
            evictions.pop().unlink()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", evicting)
    with cache.lease(**file) as lease:
        assert lease.path.read_bytes() == data("a")
    assert site.gets == {"a": 2}


def test_part_of_a_dead_process_is_removed(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    with ShardCache(root, limit_bytes=100) as cache:
        file = site.add("a", data("a"))
        (root / f"{'0' * 64}.90.part").write_bytes(bytes(60))
        (root / f"{file['sha256']}.40.part").write_bytes(b"half")
        (root / "unknown.part").touch()
        read(cache, **site.add("b", data("b")))
        assert read(cache, **file) == data("a")
        assert len(published(root)) == 3  # a, b and what is not the cache's own
    (root / f"{'1' * 64}.90.part").touch()
    ShardCache(root, limit_bytes=100)
    assert len(published(root)) == 3


# --- prefetch and threads


def test_prefetched_file_is_there(cache: ShardCache, site: Site) -> None:
    file = site.add("a", data("a"))
    for _ in range(3):
        cache.prefetch(**file)
    assert read(cache, **file) == data("a")
    assert site.gets == {"a": 1}
    cache.prefetch(**file)
    cache.close()
    assert cache._prefetches == {}  # or else it could not be prefetched again after an eviction


def test_prefetch_errors_surface_at_lease_once(cache: ShardCache, site: Site) -> None:
    file = site.add("a", data("a"))
    good = site.files.pop("a")
    cache.prefetch(**file)
    assert cache._prefetches[file["sha256"]].exception(60)
    site.files["a"] = good
    with pytest.raises(DatasetError, match="does not exist"):
        cache.lease(**file)
    assert read(cache, **file) == good


@pytest.mark.parametrize("prefetched", [False, True])
def test_waiting_for_a_storage_is_given_up(site: Site, tmp_path: Path, prefetched: bool) -> None:
    file, stop = site.add("a", data("a")), threading.Event()
    site.refuse["a"] = 10**6
    with ShardCache(tmp_path, limit_bytes=100) as cache:
        if prefetched:
            cache.prefetch(**file)
        threading.Timer(0.3, stop.set).start()
        with pytest.raises(StorageUnavailable):
            cache.lease(**file, stop=stop)


def test_lease_does_not_wait_for_other_prefetches(cache: ShardCache, site: Site) -> None:
    slow = [site.add(f"slow{i}", data("s", i + 1)) for i in range(cache_module._PREFETCH_THREADS)]
    site.stall = set(site.files)
    for file in slow:
        cache.prefetch(**file)
    wanted = site.add("a", data("a"))
    cache.prefetch(**wanted)  # all threads are busy
    assert read(cache, **wanted) == data("a")
    site.go.set()


def test_close_drops_what_has_not_begun(site: Site, tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache", limit_bytes=100)
    files = [site.add(f"slow{i}", data("s", i + 1)) for i in range(cache_module._PREFETCH_THREADS + 3)]
    site.stall = set(site.files)
    for file in files:
        cache.prefetch(**file)
    site.stalled.wait(60)
    closer = threading.Thread(target=cache.close)
    closer.start()
    cache._closed.wait(60)
    site.go.set()
    closer.join()
    assert len(site.gets) <= cache_module._PREFETCH_THREADS
    assert not list((tmp_path / "cache").glob("*.part"))
    with pytest.raises(RuntimeError, match="closed"):
        cache.lease(**files[0])


def test_many_threads_on_few_bytes(cache: ShardCache, site: Site, tmp_path: Path) -> None:
    files = [site.add(name, data(name, 30)) for name in "abcdef"]

    def work(seed: int) -> bool:
        good = True
        for i in range(15):
            file = files[(i * seed) % len(files)]
            with cache.lease(**file) as lease:
                found = lease.path.read_bytes()
                good = good and hashlib.sha256(found).hexdigest() == file["sha256"] and lease.path.exists()
        return good

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, (1, 5, 7, 11)))
    # Four leases at once may pass the limit; the next download brings it back.
    read(cache, **site.add("z", data("z", 30)))
    assert len(published(tmp_path / "cache")) <= 3


def test_refused_after_fork(cache: ShardCache, site: Site) -> None:
    cache._pid += 1  # what a forked child sees
    with pytest.raises(RuntimeError, match="fork"):
        cache.lease(**site.add("a", data("a")))
    cache._pid -= 1


# --- several processes


def test_processes_share_one_download(site: Site, tmp_path: Path, holders: Holders) -> None:
    file = site.add("a", os.urandom(100_000))
    site.stall.add("a")
    # The first one stalls until the last has started, which may take longer than `STALLED_AFTER`.
    four = [holders.start(tmp_path, 10**6, file, stalled_after=60) for _ in range(4)]
    for holder in four:
        holder.miss()
    assert site.stalled.wait(60)
    site.go.set()  # one downloads; the others have missed the file and wait
    assert all(holder.read() == site.files["a"] for holder in four)
    for holder in four:
        holder.finish()
    assert site.gets == {"a": 1}
    assert published(tmp_path) == [file["sha256"]]


def test_killed_downloader_blocks_nobody(site: Site, tmp_path: Path, holders: Holders) -> None:
    file = site.add("a", os.urandom(100_000))
    site.stall.add("a")
    first = holders.start(tmp_path, 10**6, file)
    assert site.stalled.wait(60)
    assert published(tmp_path) == [f"{file['sha256']}.100000.part"]
    second = holders.start(tmp_path, 10**6, file)
    second.miss()
    assert site.gets == {"a": 1}
    site.stall.clear()
    first.kill()
    assert second.read() == site.files["a"]
    second.finish()
    assert site.gets == {"a": 2}
    assert published(tmp_path) == [file["sha256"]]


def test_what_another_process_fetches_counts(site: Site, tmp_path: Path, holders: Holders) -> None:
    with ShardCache(tmp_path, limit_bytes=100) as cache:
        read(cache, **site.add("a", data("a", 30)))
        slow = site.add("slow", data("s", 60))
        site.stall.add("slow")
        holders.start(tmp_path, 100, slow)
        assert site.stalled.wait(60)
        b = site.add("b", data("b", 30))  # 30 + 30 would fit, were it not for the 60 being fetched
        read(cache, **b)
        assert published(tmp_path) == sorted([b["sha256"], f"{slow['sha256']}.60.part"])


def test_files_leased_by_another_process_stay_until_it_dies(site: Site, tmp_path: Path, holders: Holders) -> None:
    a, b, c = (site.add(name, data(name, 60)) for name in "abc")
    other = holders.start(tmp_path, 100, a)
    assert other.read() == data("a", 60)
    with ShardCache(tmp_path, limit_bytes=100) as cache:
        read(cache, **b)
        read(cache, **c)
        assert published(tmp_path) == sorted([a["sha256"], c["sha256"]])
        other.kill()
        read(cache, **b)
        assert published(tmp_path) == [b["sha256"]]


def test_lease_that_a_forked_child_inherits_ends_with_its_release(
    site: Site, cache: ShardCache, tmp_path: Path
) -> None:
    lease = cache.lease(**site.add("a", data("a", 90)))
    ready, stop = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(stop)
        os.read(ready, 1)  # until the parent closes its end
        os._exit(0)
    os.close(ready)
    try:
        lease.release()
        b = site.add("b", data("b", 90))
        read(cache, **b)
        assert published(tmp_path / "cache") == [b["sha256"]]
    finally:
        os.close(stop)
        os.waitpid(child, 0)


def test_a_stopped_downloader_holds_nobody_up_and_harms_nothing_when_it_wakes(
    site: Site, tmp_path: Path, holders: Holders
) -> None:
    file = site.add("a", os.urandom(100_000))
    site.stall.add("a")
    first = holders.start(tmp_path, 10**6, file)
    assert site.stalled.wait(60)
    os.kill(first.process.pid or 0, signal.SIGSTOP)
    site.stall.clear()
    second = holders.start(tmp_path, 10**6, file)
    assert second.read() == site.files["a"]
    inode = (tmp_path / file["sha256"]).stat().st_ino
    site.go.set()
    os.kill(first.process.pid or 0, signal.SIGCONT)
    assert first.read() == site.files["a"]
    assert (tmp_path / file["sha256"]).stat().st_ino == inode  # that the neighbour leases
    first.finish()
    with ShardCache(tmp_path, limit_bytes=100_000) as cache:
        read(cache, **site.add("b", data("b")))
    assert (tmp_path / file["sha256"]).exists()
    second.finish()
    assert published(tmp_path) == sorted([file["sha256"], hashlib.sha256(data("b")).hexdigest()])


def test_neighbours_wait_with_a_process_whose_storage_does_not_answer(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However long: it is not taken for one that is stopped."""
    file = site.add("a", data("a"))
    site.refuse["a"] = 20
    retry = Retry(600, time.monotonic, lambda _: time.sleep(0.1))
    caches = [ShardCache(tmp_path, limit_bytes=100, retry=retry, stalled_after=0.7) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda cache: read(cache, **file), caches)) == [data("a")] * 2
    assert site.gets == {"a": 21}
    assert "fetching it here, too" not in caplog.text


def test_a_process_that_is_stopped_while_it_evicts_holds_nobody_up(site: Site, tmp_path: Path) -> None:
    file = site.add("a", data("a"))
    with ShardCache(tmp_path, limit_bytes=100, stalled_after=0.2) as cache:
        read_small(cache, **file)
        with (tmp_path / file["sha256"]).open("rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)  # by another process that does not go on
            with pytest.raises(CacheUnusable, match=f"{file['sha256']} is locked by a process that is stopped"):
                cache.lease(**file)
            assert read_small(cache, **file) == data("a")  # without the cache
        assert cache.lease(**file).path.exists()


# --- files altered on disk


def test_a_cached_file_that_is_altered_is_fetched_again(cache: ShardCache, site: Site, tmp_path: Path) -> None:
    file = site.add("a", data("a"))
    read(cache, **file)
    with (tmp_path / "cache" / file["sha256"]).open("r+b") as altered:
        altered.write(b"x")
    assert read(cache, **file) == data("a")
    assert site.gets == {"a": 2}


def test_a_file_that_was_copied_there_is_checked_and_kept(
    cache: ShardCache, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = site.add("a", data("a"))
    (tmp_path / "cache" / file["sha256"]).write_bytes(data("a"))
    assert read(cache, **file) == data("a")
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("its content was read a second time"))
    assert read(cache, **file) == data("a")
    assert site.gets == {}


# --- a full disk


@dataclass
class Disk:
    """Makes writes into a folder fail when it holds so many bytes."""

    folder: Path
    limit: int

    def pwrite(self, descriptor: int, block: Any, offset: int) -> int:
        used = sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())
        if used + len(block) > self.limit:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.lseek(descriptor, offset, os.SEEK_SET)
        return os.write(descriptor, block)


def test_on_a_full_disk_the_cache_goes_on_with_fewer_files(
    cache: ShardCache,
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(os, "pwrite", Disk(tmp_path / "cache", 60).pwrite)
    a, b = (site.add(name, data(name)) for name in "ab")
    for file in (a, b, a, b):
        with cache.lease(**file) as lease:
            assert lease.path.read_bytes() == site.files["a" if file is a else "b"]
    assert len(published(tmp_path / "cache")) == 1
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{tmp_path}/cache is full" in said
    assert "free some space, or name another folder (cache_dir)" in said


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_a_run_begins_without_a_cache_where_its_disk_is_full_or_read_only(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """As a resumed one on a node whose disk has got so; a folder that is another user's is a mistake."""

    def mkdir(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    a = site.add("a", data("a"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", mkdir)
        with ShardCache(tmp_path / "none" / "cache", limit_bytes=1000) as cache:
            with pytest.raises(CacheUnusable, match="cache cannot be used"):
                cache.lease(**a)
            assert read_small(cache, **a) == data("a")
    assert f"cache cannot be used: {os.strerror(number)}" in caplog.text
    assert "Until then shards are read where they are" in caplog.text
    (tmp_path / "other").write_text("a file")
    with pytest.raises(CacheUnusable, match="Not a directory"):
        ShardCache(tmp_path / "other", limit_bytes=1000)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_runs_go_without_a_cache_on_a_file_system_without_locks(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As Lustre without its option flock. The first leaves nothing that the second cannot begin with."""

    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    a, folder = site.add("a", data("a")), tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(fcntl, "flock", flock)
    left = folder / f"{a['sha256']}.{a['size']}.part"
    for names in ([], [left]):
        for path in names:
            path.touch()  # as a killed process left it
        with ShardCache(folder, limit_bytes=1000) as cache:
            with pytest.raises(CacheUnusable, match=f"cache cannot be used: {os.strerror(number)}"):
                cache.lease(**a)
            assert read_small(cache, **a) == data("a")
        assert [*folder.iterdir()] == names


def test_what_is_cached_is_used_on_a_disk_that_has_become_read_only(
    cache: ShardCache, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while its storage is away."""

    def utime(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    a = site.add("a", data("a"))
    cache.lease(**a).release()
    monkeypatch.setattr(os, "utime", utime)
    with cache.lease(**a) as lease:
        assert lease.path.read_bytes() == data("a")
    assert site.gets == {"a": 1}


def test_on_a_disk_full_of_files_in_use_the_error_names_the_folder_and_the_remedy(
    cache: ShardCache, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever secrets are in the URL, with which errors of storages have no cause."""
    monkeypatch.setattr(os, "pwrite", Disk(tmp_path / "cache", 60).pwrite)
    site.address = site.address.replace("//", "//user:password@")
    a, b = (site.add(name, data(name)) for name in "ab")
    with cache.lease(**a):
        with pytest.raises(CacheUnusable, match=f"{tmp_path}/cache cannot be used: No space left .*free some space"):
            cache.lease(**b)
        assert read_small(cache, **b) == data("b")  # from its storage
        assert published(tmp_path / "cache") == [a["sha256"]]


@pytest.mark.parametrize("kind", ["a dangling link", "a link", "a folder", "a pipe", "a link to a pipe", "nothing"])
def test_whatever_is_in_the_place_of_a_cached_file(cache: ShardCache, site: Site, tmp_path: Path, kind: str) -> None:
    file = site.add("a", data("a"))
    with cache.lease(**file) as lease:
        path = lease.path
        path.unlink()
        assert Path(lease.opened).read_bytes() == data("a")
    (tmp_path / "other").write_bytes(data("b"))
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a link to a pipe":
        os.mkfifo(tmp_path / "pipe")
        path.symlink_to(tmp_path / "pipe")
    elif kind != "nothing":
        path.symlink_to(tmp_path / ("other" if kind == "a link" else "none"))
    assert read_small(cache, **file) == data("a")
    assert (tmp_path / "other").read_bytes() == data("b")


@pytest.mark.parametrize("kind", ["a file", "a link", "a dangling link"])
def test_whatever_is_in_the_place_of_the_folder(
    cache: ShardCache, site: Site, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    file, root = site.add("a", data("a")), tmp_path / "cache"
    cache.lease(**file).release()
    root.rename(tmp_path / "moved")
    if kind == "a file":
        root.write_text("a file")
    else:
        root.symlink_to(tmp_path / ("moved" if kind == "a link" else "none"))
    assert read_small(cache, **file) == data("a")
    assert ("cannot be used" in caplog.text) == (kind != "a link")
    assert site.gets == {"a": 1 if kind == "a link" else 2}


def test_a_folder_that_is_removed_meanwhile_is_made_again(cache: ShardCache, site: Site, tmp_path: Path) -> None:
    a, b = (site.add(name, data(name)) for name in "ab")
    read(cache, **a)
    shutil.rmtree(tmp_path / "cache")
    assert read(cache, **b) == data("b")
    assert read(cache, **a) == data("a")


@pytest.mark.parametrize("function", ["mkdir", "listdir", "open", "unlink"])
def test_a_folder_that_is_removed_at_the_worst_moment(
    function: str, cache: ShardCache, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    """Between a look at it and its use, again and again: the cache goes on."""
    a, removals, called = site.add("a", data("a")), iter(range(3)), getattr(os, function)

    def late(path: Any, *args: Any, **options: Any) -> Any:
        if str(path).startswith(str(tmp_path / "cache")) and next(removals, None) is not None:
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
            if function == "mkdir":
                raise FileExistsError(errno.EEXIST, "it was there")
        return called(path, *args, **options)

    (tmp_path / "cache" / f"{'0' * 64}.1.part").touch()  # to be removed
    with monkeypatch.context() as patch:
        patch.setattr(os, function, late)
        assert read(cache, **a) == data("a")
    assert read(cache, **a) == data("a")
    assert next(removals, None) != 0
    assert "cannot be used" not in caplog.text


# --- a real object store


def test_s3(s3_bucket: str, tmp_path: Path, holders: Holders) -> None:
    contents = os.urandom(20 * 2**20)  # several ranges
    url = f"s3://{s3_bucket}/00000000.tar"
    filesystem.write_bytes(url, contents)
    file: dict[str, Any] = {"url": url, "size": len(contents), "sha256": hashlib.sha256(contents).hexdigest()}
    two = [holders.start(tmp_path, 10**8, file) for _ in range(2)]
    for holder in two:
        assert holder.read() == contents
        holder.finish()
    filesystem.write_bytes(url, bytes(len(contents)))
    with ShardCache(tmp_path, limit_bytes=10**8) as cache:
        assert read(cache, **file) == contents  # by its hash, still in the cache
        with pytest.raises(DatasetError, match=f"{url} is damaged"):
            cache.lease(url, size=len(contents), sha256="0" * 64)
