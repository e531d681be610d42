"""From a bucket, all the way: packed there, streamed from there, through a cache that holds less than the dataset."""

from __future__ import annotations

import json
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import streamvid as sv
from streamvid.errors import DatasetError
from streamvid.packing.pack import pack
from streamvid.storage.byte_range import ByteRange
from tests.support.packed import pack_recipes
from tools.clips import Recipe


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory, s3_bucket: str) -> tuple[str, str]:
    """The same dataset on disk and in a bucket, in several shards."""
    folder = tmp_path_factory.mktemp("s3")
    recipes = {f"{n:02}": Recipe(frames=30, seed=n, width=160, height=96) for n in range(12)}
    local, remote = pack_recipes(recipes, folder, shard_size=60_000), f"s3://{s3_bucket}/datasets/mine"
    pack([folder / "videos"], remote, shard_size=60_000, progress=False)
    return str(local), remote


def batches(dataset: str | sv.Mix, **options: object) -> list[dict[str, object]]:
    with sv.StreamLoader(
        dataset,
        batch_size=3,
        sampling=sv.Window(4, stride=2),
        seed=1,
        device="cpu",
        **options,  # type: ignore[arg-type]
    ) as loader:
        return [batch for _ in range(2) for batch in loader]


@pytest.mark.parametrize("fetch", ["ranges", "shards"])
def test_a_bucket_gives_the_same_batches_as_a_disk(datasets: tuple[str, str], tmp_path: Path, fetch: str) -> None:
    local, remote = datasets
    expected = batches(local)
    shards = sv.Dataset.open(local).shards
    assert len(shards) >= 4
    limit = 2 * max(entry.bytes for entry in shards)
    got = batches(remote, cache_dir=tmp_path / "cache", cache_bytes=limit, fetch=fetch)
    assert len(got) == len(expected) == 8
    for a, b in zip(got, expected, strict=True):
        assert a["key"] == b["key"]
        assert torch.equal(a["video"], b["video"])  # type: ignore[arg-type]
    kept = [path.stat() for path in (tmp_path / "cache").iterdir() if path.is_file()]
    assert 0 < sum(min(stat.st_size, stat.st_blocks * 512) for stat in kept) <= limit


def test_a_public_bucket_needs_no_credentials(
    datasets: tuple[str, str], s3_bucket: str, tmp_path: Path, forked_python: Path
) -> None:
    local, remote = datasets
    s3fs = pytest.importorskip("s3fs")
    names = [f"arn:aws:s3:::{s3_bucket}{rest}" for rest in ("", "/*")]
    rule = {"Effect": "Allow", "Principal": "*", "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": names}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [rule]})
    s3fs.S3FileSystem().call_s3("put_bucket_policy", Bucket=s3_bucket, Policy=policy)
    environment = {key: value for key, value in os.environ.items() if key not in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE")}
    # In another process: fsspec reads the environment as it is imported. It prints the keys of both ways of fetching.
    program = (
        "import sys, streamvid as sv\n"
        "for fetch in ('ranges', 'shards'):\n"
        "    with sv.StreamLoader(sys.argv[1], batch_size=3, sampling=sv.Window(4), device='cpu', num_threads=1,\n"
        "            shuffle=False, cache_dir=sys.argv[2] + fetch, fetch=fetch, retry_for=0) as loader:\n"
        "        print(*(key for batch in loader for key in batch['key']))\n"
    )

    def streamed(python: Path | str, **more: str) -> subprocess.CompletedProcess[str]:
        arguments = [python, "-c", program, remote, str(tmp_path)]
        return subprocess.run(arguments, env=environment | more, capture_output=True, text=True, check=False)

    anonymous = streamed(sys.executable, FSSPEC_S3_ANON="true")
    assert anonymous.stdout.splitlines() == [" ".join(sv.Dataset.open(local).clips.key)] * 2
    assert "to read a public bucket without any, FSSPEC_S3_ANON=true" in streamed(forked_python).stderr


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Of all ranged GETs of shards: the file, and its If-Match."""
    from aiohttp import ClientSession

    found: list[tuple[str, str | None]] = []
    request = ClientSession._request

    async def noting(self: ClientSession, method: str, url: Any, **options: Any) -> Any:
        headers = options.get("headers") or {}
        if method == "GET" and "Range" in headers and "/shards/" in str(url):
            found.append((str(url).partition("?")[0], headers.get("If-Match")))
        return await request(self, method, url, **options)

    monkeypatch.setattr(ClientSession, "_request", noting)
    return found


def stored_anew(url: str) -> None:
    """Store an object once more, in a part, so that it has another ETag."""
    import s3fs

    fs = s3fs.S3FileSystem()
    data, target = fs.cat_file(url), dict(zip(("Bucket", "Key"), url.removeprefix("s3://").split("/", 1), strict=True))
    begun = fs.call_s3("create_multipart_upload", **target)["UploadId"]
    part = fs.call_s3("upload_part", **target, UploadId=begun, PartNumber=1, Body=data)["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    fs.call_s3("complete_multipart_upload", **target, UploadId=begun, MultipartUpload=parts)


def test_every_ranged_get_of_a_packed_dataset_demands_its_etag(
    datasets: tuple[str, str], tmp_path: Path, sent: list[tuple[str, str | None]]
) -> None:
    """The first of each object, too."""
    both = sv.Mix([(datasets[1], 1), (datasets[1], 1)])
    clips = sv.ClipDataset(datasets[1], sampling=sv.Window(4))
    sent.clear()  # Parquet files are read whole when a dataset is opened, and held to their SHA-256
    assert batches(datasets[1], cache_dir=tmp_path / "cache", fetch="ranges")
    assert batches(both, cache_dir=tmp_path / "both", fetch="ranges")
    copied = pickle.loads(pickle.dumps(clips))  # as PyTorch's workers get it
    assert [len(copied[n]) for n in range(12)]
    assert {name.rpartition(".")[2] for name, _ in sent} >= {"tar", "packets"}
    assert [name for name, etag in sent if not etag and not name.endswith(".parquet")] == []


def test_a_copy_with_other_etags_gives_the_same_batches(
    datasets: tuple[str, str],
    tmp_path: Path,
    sent: list[tuple[str, str | None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    import s3fs

    fs, copy = s3fs.S3FileSystem(), datasets[1].replace("/mine", "/copied")
    fs.copy(datasets[1], copy, recursive=True)
    for tar in fs.glob(f"{copy}/shards/*.tar"):
        stored_anew(f"s3://{tar}")
    expected = batches(datasets[0])
    sent.clear()
    with caplog.at_level(logging.INFO, "streamvid"):
        got = batches(copy, cache_dir=tmp_path / "cache", fetch="ranges")
    assert all(torch.equal(a["video"], b["video"]) for a, b in zip(got, expected, strict=True))  # type: ignore[arg-type]
    assert sum("does not have the ETag in its dataset.json" in one.getMessage() for one in caplog.records) == 1
    assert "where its dataset says" not in caplog.text
    assert any(not etag for name, etag in sent if name.endswith(".tar"))


def test_a_shard_that_is_replaced_in_the_run_is_an_error(datasets: tuple[str, str]) -> None:
    import s3fs

    fs, copy = s3fs.S3FileSystem(), datasets[1].replace("/mine", "/replaced")
    fs.copy(datasets[1], copy, recursive=True)
    dataset = sv.Dataset.open(copy)
    tar = dataset.shard_files[0].path("tar")
    dataset.reader.read([ByteRange(tar, 0, 100)])
    stored_anew(tar)
    with pytest.raises(DatasetError, match="has changed while it was being read: its ETag was"):
        dataset.reader.read([ByteRange(tar, 200, 300)])


RANK = """
import os, sys
import streamvid as sv
loader = sv.StreamLoader(sys.argv[1], batch_size=2, sampling=sv.Frames([0]), cache_dir=sys.argv[2], device="cpu")
for epoch in range(2):
    for batch in loader:
        # In one piece: both ranks write into the same pipe.
        os.write(1, " ".join(map(str, [epoch, *batch["clip"][batch["valid"]].tolist(), os.linesep])).encode())
"""


def test_ranks_of_a_node_share_the_cache(datasets: tuple[str, str], tmp_path: Path, forked_python: Path) -> None:
    _, remote = datasets
    python = str(forked_python)
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    command += [python, "-c", RANK, remote, str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [[int(word) for word in line.split()] for line in done.stdout.splitlines() if line.strip()]
    for epoch in range(2):
        assert sorted(clip for first, *clips in rows if first == epoch for clip in clips) == list(range(12))


def test_a_damaged_shard_in_the_bucket_is_named(datasets: tuple[str, str], s3_bucket: str, tmp_path: Path) -> None:
    import fsspec

    local, _ = datasets
    remote = f"s3://{s3_bucket}/datasets/damaged"
    files, root = fsspec.url_to_fs(remote)
    files.put(local, root, recursive=True)
    with files.open(f"{root}/shards/00000001.tar", "rb") as stream:
        data = bytearray(stream.read())
    for at in range(0, len(data), 97):
        data[at] ^= 255
    files.pipe_file(f"{root}/shards/00000001.tar", bytes(data))
    with pytest.raises(sv.DatasetError, match=r"shard 00000001.*damaged"):
        batches(remote, cache_dir=tmp_path / "cache", on_error="raise")
