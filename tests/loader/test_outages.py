"""Runs from a bucket that is away for a while, or fails half of all requests: they wait, and give the same batches."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import streamvid as sv
from streamvid.dataset import members
from streamvid.packing.options import PackOptions
from streamvid.storage import range_reader
from tests.support.batches import assert_same
from tests.support.clock import Clock, soon
from tests.support.faulty_s3 import FaultyS3
from tests.support.foreign import write_tar
from tests.support.packed import SMALL, make_videos, pack_recipes
from tests.support.storages import free_port
from tests.support.web import website
from tools.clips import Recipe

FAULTS = ("500", "503", "empty 503", "429", "reset", "cut", "short", "timeout")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of one clip each."""
    recipe = Recipe(codec="vp9", container="webm", width=64, height=64, frames=12)
    recipes = {f"{n:02}.webm": replace(recipe, seed=n) for n in range(4)}
    return pack_recipes(recipes, tmp_path_factory.mktemp("outages"), shard_size=1000, options=PackOptions("any"))


def batches(path: str | Path, **options: Any) -> list[dict[str, Any]]:
    with sv.StreamLoader(path, batch_size=1, sampling=sv.Window(2), device="cpu", num_threads=1, **options) as loader:
        return list(loader)


def test_an_outage_with_a_warm_cache_is_waited_out_and_nothing_cached_is_asked_for(
    s3: FaultyS3, packed: Path, tmp_path: Path
) -> None:
    expected = batches("s3://bucket/set", cache_dir=tmp_path)
    s3.requests.clear()
    s3.fault = lambda method, key, before: "503" if before < 8 else None
    assert_same(batches("s3://bucket/set", cache_dir=tmp_path, retry_for=Clock().retry()), expected)
    assert {key for _, key, _ in s3.requests} == {"bucket/set/dataset.json"}


def test_half_of_all_requests_fail_at_the_opening_and_later(s3: FaultyS3, packed: Path, tmp_path: Path) -> None:
    dice = random.Random(1)
    s3.fault = lambda *_: dice.choice(FAULTS) if dice.random() < 0.5 else None
    assert_same(batches("s3://bucket/set", cache_dir=tmp_path, retry_for=Clock().retry()), batches(packed))
    clips = sv.ClipDataset("s3://bucket/set", retry_for=Clock().retry())
    local = sv.ClipDataset(packed)
    for n in range(4):
        assert torch.equal(clips.get(n, frames=[3, 9])["video"], local.get(n, frames=[3, 9])["video"])


@pytest.mark.parametrize("fetch", ["shards", "ranges"])
@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_shards_that_are_missing_for_seconds(
    s3: FaultyS3, packed: Path, tmp_path: Path, scheme: str, fetch: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a proxy that restarts, a purged CDN and an eventually consistent bucket answer. A dataset must be there."""
    gone = ("tar", "packets")
    s3.fault = lambda method, key, before: "404" if key.endswith(gone) and before < 4 else None
    path = "s3://bucket/set" if scheme == "s3" else f"{s3.endpoint}/bucket/set"
    retry = Clock().retry()
    assert_same(
        batches(path, cache_dir=tmp_path, fetch=fetch, retry_for=retry, shuffle=False), batches(packed, shuffle=False)
    )
    s3.requests.clear()
    clips = sv.ClipDataset(path, retry_for=retry)
    assert torch.equal(clips.get(1, frames=[3])["video"], sv.ClipDataset(packed).get(1, frames=[3])["video"])
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said
    assert all("does not exist; check the path. It is tried for 30 s." in one for one in said), said

    s3.fault = lambda method, key, before: "404" if key.endswith(gone) else None
    with pytest.raises(sv.DatasetError, match=r"00000\d00\..* does not exist.* It was tried \d+ times"):
        batches(path, cache_dir=tmp_path / "other", fetch=fetch, retry_for=retry)
    clock = Clock()
    with pytest.raises(sv.DatasetError, match="no dataset at"):
        sv.Dataset.open(f"{path}/none", retry_for=clock.retry())
    assert not clock.waits


@pytest.mark.parametrize("fetch", ["shards", "ranges"])
def test_pages_of_a_proxy_among_the_answers(s3: FaultyS3, packed: Path, tmp_path: Path, fetch: str) -> None:
    """In a dataset that was copied there, whose ETags come with the first answers."""
    s3.fault = lambda method, key, before: "page" if method == "GET" and "/shards/" in key and not before else None
    options: dict[str, Any] = {"cache_dir": tmp_path, "fetch": fetch, "retry_for": Clock().retry(), "shuffle": False}
    assert_same(batches("s3://bucket/set", **options), batches(packed, shuffle=False))
    assert any(key.endswith(".tar") for _, key, _ in s3.requests)


def test_the_loop_can_be_left_while_the_bucket_is_away(s3: FaultyS3, tmp_path: Path) -> None:
    """The default waits for ten minutes."""
    with sv.StreamLoader(
        "s3://bucket/set", batch_size=1, sampling=sv.Window(2), device="cpu", num_threads=1, cache_dir=tmp_path,
        shuffle=False,
    ) as loader:  # fmt: skip
        s3.fault = lambda method, key, before: "503" if key.endswith("00000300.tar") else None
        for _ in loader:
            assert soon(lambda: any(key.endswith("00000300.tar") for _, key, _ in s3.requests)), "it is not waited for"
            break


def test_the_loop_can_be_left_while_a_server_of_members_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes when clips behind the first have their packets, but no other members yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user"))
    videos = make_videos(tmp_path / "videos", {f"{n}.mp4": replace(SMALL, seed=n) for n in range(4)})
    read, away = members.read_members, threading.Event()
    with website() as site:
        for n in range(4):
            tar = [(f"{n}.mp4", (videos / f"{n}.mp4").read_bytes()), (f"{n}.bin", b"more")]
            site.files[f"/{n}.tar"] = write_tar(tmp_path / "one.tar", tar).read_bytes()
        sv.index([f"{site.url}/{n}.tar" for n in range(4)], tmp_path / "set", progress=False)

        def go_away(source: Any, names: Any, rows: Any, *reader: Any) -> Any:
            if rows != [0]:
                site.redirects |= {f"/{n}.tar": f"http://127.0.0.1:{free_port()}/" for n in range(1, 4)}
                away.set()
            return read(source, names, rows, *reader)

        monkeypatch.setattr(members, "read_members", go_away)
        with sv.StreamLoader(
            tmp_path / "set", batch_size=1, sampling=sv.Window(2), columns=["bin"], device="cpu", num_threads=1,
            shuffle=False,
        ) as loader:  # fmt: skip
            for batch in loader:
                assert batch["bin"] == [b"more"]
                assert away.wait(60)
                break


def test_a_lasting_outage_names_the_file_and_the_cause(s3: FaultyS3, tmp_path: Path) -> None:
    s3.fault = lambda method, key, before: "503" if key.endswith(".tar") else None
    with pytest.raises(sv.DatasetError, match=r"s3://bucket/set/shards/00000\d00\.tar: .*503.*It was tried \d+ times"):
        batches("s3://bucket/set", cache_dir=tmp_path, retry_for=Clock().retry(30))


@pytest.mark.parametrize("value", [-1, "10 min"])
def test_the_option_is_checked(packed: Path, value: Any) -> None:
    with pytest.raises(sv.InputError, match="retry_for must be a number of seconds"):
        batches(packed, retry_for=value)
    with pytest.raises(sv.InputError, match="retry_for must be a number of seconds"):
        sv.ClipDataset(packed, retry_for=value)


def test_a_run_goes_on_without_a_cache_whose_disk_is_full(
    s3: FaultyS3, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    assert_same(batches("s3://bucket/set", cache_dir=tmp_path), batches(packed))
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1, said
    assert f"The cache folder {tmp_path} cannot be used: No space left on device; free some space there" in said[0]
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("fault", ["a full disk", "a damaged clip"])
def test_a_web_server_that_knows_no_ranges(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """Where a shard is not in the cache, what is wanted of it is cut out of all of it as it comes."""
    expected = batches(packed)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with website() as site:
        site.ranges = False
        site.files = {f"/{path.relative_to(packed)}": path.read_bytes() for path in packed.rglob("*.*")}
        options: dict[str, Any] = {"cache_dir": tmp_path / "cache", "quarantine": tmp_path / "quarantine"}
        if fault == "a full disk":
            monkeypatch.setattr(os, "pwrite", full)
            assert_same(batches(site.url, **options), expected)
        else:
            opened = sv.Dataset.open(packed)
            name = f"/{Path(opened.shard_path(2)).relative_to(packed)}"
            data = bytearray(site.files[name])
            data[int(opened.clips.mp4_offset[2] + opened.index(2).offset[0])] ^= 1
            site.files[name] = bytes(data)
            valid = [batch["valid"].tolist() for batch in batches(site.url, shuffle=False, **options)]
            assert valid == [[True], [True], [False], [True]]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("knows no ranges" in one for one in said) == 1, said


@pytest.mark.parametrize("call", ["open", "preadv"])
def test_a_read_that_does_not_return_is_told(call: str, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of NFS, mounted with its option hard, whose server is away: the kernel waits, without an error."""
    real, told = getattr(os, call), threading.Event()

    def hanging(file: Any, *given: Any, **options: Any) -> Any:
        if call == "preadv" or str(file).endswith(".packets"):
            assert told.wait(20)
        return real(file, *given, **options)

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if ".packets is being read for" in record.getMessage():
                told.set()

    monkeypatch.setattr(range_reader, "SAY_SECONDS", 0.2)
    monkeypatch.setattr(os, call, hanging)
    monkeypatch.setattr(logging.getLogger("streamvid"), "handlers", [Said()])
    assert len(batches(packed)) == 4


def test_a_cache_whose_disk_goes_away_is_done_without(
    s3: FaultyS3, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a dead FUSE or an NFS: copies that are open there can be neither read nor closed without an error."""
    cache, clock, away = tmp_path / "cache", Clock(), [False]
    preadv, pread, flock = os.preadv, os.pread, fcntl.flock

    def there(descriptor: int) -> int:
        if away[0] and os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(cache)):
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return descriptor

    monkeypatch.setattr(os, "preadv", lambda file, *given: preadv(there(file), *given))
    monkeypatch.setattr(os, "pread", lambda file, *given: pread(there(file), *given))
    monkeypatch.setattr(
        fcntl, "flock", lambda file, how: flock(there(file.fileno()) if how == fcntl.LOCK_UN else file, how)
    )
    options: dict[str, Any] = {"batch_size": 1, "sampling": sv.Window(2), "device": "cpu", "num_threads": 1}
    with sv.StreamLoader(
        "s3://bucket/set", cache_dir=cache, fetch="shards", retry_for=clock.retry(), **options
    ) as loader:
        list(loader)
        away[0] = True
        got = list(loader)
    away[0] = False
    with sv.StreamLoader(packed, **options) as loader:
        list(loader)
        assert_same(got, list(loader))
    assert not clock.waits
    assert "its disk does not answer; name a folder" in caplog.text
