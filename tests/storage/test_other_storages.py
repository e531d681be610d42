"""Datasets on Azure, Google's storage and Hugging Face's hub, each on a server of its own: packed there where that can
be written to, listed, and read by range and by shards, as on a local disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

import streamvid as sv
from streamvid.storage import filesystem
from tests.support import storages
from tests.support.clips import write
from tools.clips import Recipe

pytestmark = pytest.mark.usefixtures("inline_workers")

CLIPS = 6


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for n in range(CLIPS):
        write(Recipe(frames=60, gop=10, seed=n, width=96, height=64), folder / f"{n}.mp4")
    return folder


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
        assert [batch["key"] for batch in got] == [batch["key"] for batch in expected]
        assert all(torch.equal(a["video"], b["video"]) for a, b in zip(got, expected, strict=True))
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


def test_the_hub_is_read_by_range(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with storages.hugging_face(packed, monkeypatch) as (url, seen):
        assert len(filesystem.list_files(f"{url}/shards")) == len(list((packed / "shards").iterdir()))
        check_reading(url, packed, tmp_path)
    assert any(path.endswith(".tar") and wanted for _, path, wanted in seen)


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
            sv.Dataset.open(f"{url}/set")
        fsspec.get_filesystem_class("az").clear_instance_cache()
    assert wrong not in str(error.value) + caplog.text
