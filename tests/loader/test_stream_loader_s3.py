"""From a bucket, all the way: packed there, streamed from there, through a cache that holds less than the dataset."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import streamvid as sv
from streamvid.packing.pack import pack
from tests.support.clips import write
from tools.clips import Recipe

pytestmark = pytest.mark.usefixtures("inline_workers")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory, s3_bucket: str) -> tuple[str, str]:
    """The same dataset on disk and in a bucket, in several shards."""
    folder = tmp_path_factory.mktemp("s3")
    (folder / "videos").mkdir()
    for n in range(12):
        write(Recipe(frames=30, seed=n, width=160, height=96), folder / "videos" / f"{n:02}.mp4")
    local, remote = str(folder / "dataset"), f"s3://{s3_bucket}/datasets/mine"
    for destination in (local, remote):
        pack([str(folder / "videos")], destination, shard_size=60_000, progress=False)
    return local, remote


def batches(dataset: str, **options: object) -> list[dict[str, object]]:
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


RANK = """
import os, sys
import streamvid as sv
loader = sv.StreamLoader(sys.argv[1], batch_size=2, sampling=sv.Frames([0]), cache_dir=sys.argv[2], device="cpu")
for epoch in range(2):
    for batch in loader:
        # In one piece: both ranks write into the same pipe.
        os.write(1, " ".join(map(str, [epoch, *batch["clip"][batch["valid"]].tolist(), os.linesep])).encode())
"""


def test_ranks_of_a_node_share_the_cache(datasets: tuple[str, str], tmp_path: Path) -> None:
    _, remote = datasets
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    command += [sys.executable, "-c", RANK, remote, str(tmp_path / "cache")]
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
