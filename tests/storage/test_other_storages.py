"""Datasets on Azure, Google's storage and Hugging Face's hub, and at addresses with a query, each on a server of its
own: packed there where that can be written to, listed, and read by range and by shards, as on a local disk."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

import streamvid as sv
from streamvid.errors import DatasetError
from streamvid.storage import filesystem, link, part
from streamvid.storage.explain import MissingFile, StorageUnavailable
from streamvid.storage.ranges import RemoteRanges
from tests.support import storages
from tests.support.batches import assert_same
from tests.support.clock import Clock
from tests.support.packed import make_videos
from tests.support.web import website
from tools.clips import Recipe

CLIPS = 6


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {f"{n}": Recipe(frames=60, gop=10, seed=n, width=96, height=64) for n in range(CLIPS)}
    return make_videos(tmp_path_factory.mktemp("videos"), recipes)


@pytest.fixture(scope="module")
def packed(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("packed") / "set"
    sv.pack(videos, target, shard_size=20_000, progress=False)
    assert len(sv.Dataset.open(target).shards) > 1
    return target


@pytest.fixture(params=["azure", "google"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket."""
    with getattr(storages, request.param)(tmp_path, monkeypatch) as url:
        yield url
    fsspec.get_filesystem_class(url.partition(":")[0]).clear_instance_cache()


def batches(path: str | Path, **options: Any) -> list[dict[str, Any]]:
    with sv.StreamLoader(
        path, sampling=sv.Window(2), batch_size=2, device="cpu", num_threads=1, seed=5, **options
    ) as loader:
        return [dict(batch) for batch in loader]


def check_reading(url: str, packed: Path, cache: Path) -> None:
    expected = batches(packed)
    for fetch in ("ranges", "shards"):
        got = batches(url, fetch=fetch, cache_dir=cache / fetch)
        assert_same(got, expected)
    clips = sv.ClipDataset(url, sampling=sv.Window(2))
    assert torch.equal(clips[3]["video"], sv.ClipDataset(packed, sampling=sv.Window(2))[3]["video"])


def test_packed_listed_and_read_as_on_a_disk(bucket: str, videos: Path, packed: Path, tmp_path: Path) -> None:
    url = f"{bucket}/some/set"
    report = sv.pack(videos, url, shard_size=20_000, progress=False)
    assert report.clips == CLIPS
    listed = {name.removeprefix(f"{url}/") for name in filesystem.list_files(url, recursive=True)}
    there = {str(path.relative_to(packed)) for path in packed.rglob("*") if path.is_file()}
    assert {name for name in there if name.startswith("shards/")} <= listed
    assert sv.verify(url).problems == ()
    check_reading(url, packed, tmp_path)
    with pytest.raises(sv.StreamvidError):  # it is a dataset already
        sv.pack(packed, url, progress=False)


def test_videos_come_from_there_as_well(bucket: str, videos: Path, packed: Path, tmp_path: Path) -> None:
    for path in videos.iterdir():
        filesystem.put_file(path, f"{bucket}/videos/{path.name}")
    sv.pack(f"{bucket}/videos/*.mp4", tmp_path / "set", shard_size=20_000, progress=False)
    assert list(sv.Dataset.open(tmp_path / "set").clips.key) == list(sv.Dataset.open(packed).clips.key)


def check_that_a_change_is_found(bucket: str, write: Callable[[bytes], object]) -> None:
    reader, clock = RemoteRanges(), Clock()
    wanted = [(f"{bucket}/file", start, start + 10) for start in (10, 500)]
    write(bytes(1000))
    for _ in range(2):
        assert reader.read(wanted, retry=clock.retry()) == [bytes(10)] * 2
    write(bytes([1]) * 1000)
    with pytest.raises(DatasetError, match="/file has changed while it was being read") as error:
        reader.read(wanted, retry=clock.retry())
    assert not isinstance(error.value, StorageUnavailable)
    with pytest.raises(MissingFile):
        reader.read([(f"{bucket}/none", 10, 20)], retry=clock.retry())
    assert not clock.waits


def test_a_blob_that_is_replaced_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with storages.azure(tmp_path, monkeypatch) as url:
        check_that_a_change_is_found(url, lambda data: filesystem.write_bytes(f"{url}/file", data))
    fsspec.get_filesystem_class("az").clear_instance_cache()


def test_a_file_of_google_has_a_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in: the emulator says nothing of them."""
    pytest.importorskip("gcsfs", reason="no gcsfs to test with: pip install gcsfs")
    with website() as site:
        site.marks = "X-Goog-Generation"
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", site.url)
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
        path = "/download/storage/v1/b/box/o/file?alt=media"
        check_that_a_change_is_found("gs://box", lambda data: site.files.update({path: data}))
        assert any("ifGenerationMatch" in asked for _, asked, _ in site.requests)
    fsspec.get_filesystem_class("gs").clear_instance_cache()


def test_a_request_that_stalls_is_made_again(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem.write_bytes(f"{bucket}/file", bytes(range(200)))
    monkeypatch.setattr(link, "_UNKNOWN_LATE", 0.05)
    read, asked = part._read, list[int]()

    async def first_one_stalls(*args: Any) -> part.Part:
        asked.append(1)
        if len(asked) == 1:
            await asyncio.sleep(60)
        return await read(*args)

    monkeypatch.setattr(part, "_read", first_one_stalls)
    reader = RemoteRanges()
    assert reader.read([(f"{bucket}/file", 10, 20)], retry=Clock().retry()) == [bytes(range(10, 20))]
    assert reader.link.hedged >= 1


def test_the_hub_is_read_by_range(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with storages.hugging_face(packed, monkeypatch) as (url, seen):
        assert len(filesystem.list_files(f"{url}/shards")) == len(list((packed / "shards").iterdir()))
        check_reading(url, packed, tmp_path)
    assert any(path.endswith(".tar") and wanted for _, path, wanted in seen)


@pytest.mark.parametrize(
    "query", ["?token=q7/q7", "?sv=2024-11-04&sr=c&sp=rl&sig=q7%2Bq7%3D", "?hdnts=exp=9~acl=/*~hmac=q7q7"]
)
def test_the_query_of_an_address_goes_with_every_file(
    query: str, packed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A token, as of a CDN, or Azure's signature of a folder. It is not told."""
    caplog.set_level(logging.DEBUG)
    with website() as site:
        site.files = {
            f"/set/{path.relative_to(packed)}{query}": path.read_bytes() for path in packed.rglob("*") if path.is_file()
        }
        check_reading(f"{site.url}/set{query}", packed, tmp_path)
        data = sv.Dataset.open(f"{site.url}/set/{query}")
        with pytest.raises(sv.StreamvidError) as error:
            sv.Dataset.open(f"{site.url}/none{query}")
        with sv.StreamLoader(data, sampling=sv.Window(2), batch_size=2, device="cpu", num_threads=1) as loader:
            next(iter(loader))
            told = f"{loader!r} {loader.state_dict()} {error.value} {caplog.text}"
    assert "***" in told
    assert "q7" not in told


def test_wrong_credentials_are_refused_in_one_sentence_without_them(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "hf_wrongwrongwrongwrongwrong"
    caplog.set_level(logging.DEBUG)
    with storages.hugging_face(packed, monkeypatch) as (url, _):
        fsspec.config.conf["hf"]["token"] = secret
        with pytest.raises(sv.StreamvidError) as error:
            sv.Dataset.open(url)
    assert secret not in str(error.value) + caplog.text


def test_a_wrong_key_of_azure_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with storages.azure(tmp_path, monkeypatch) as url:
        wrong = "QUJD" + storages.AZURE_KEY[4:]
        account = os.environ["AZURE_STORAGE_CONNECTION_STRING"].replace(storages.AZURE_KEY, wrong)
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", account)
        fsspec.get_filesystem_class("az").clear_instance_cache()
        with pytest.raises(sv.StreamvidError) as error:
            sv.Dataset.open(f"{url}/set", retry_for=0)
        fsspec.get_filesystem_class("az").clear_instance_cache()
    assert wrong not in str(error.value) + caplog.text
