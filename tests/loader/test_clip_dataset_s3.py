"""Random access to a bucket of a real S3 server, in workers of any kind, also after the parent has used the bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, default_collate

import streamvid as sv
from streamvid.packing.pack import pack
from streamvid.storage import retry
from tests.support.batches import assert_same
from tests.support.faulty_s3 import faulty_s3
from tests.support.packed import pack_recipes
from tools.clips import Recipe

OPTIONS: dict[str, Any] = {"sampling": sv.Uniform(3, pick="random"), "transform": sv.Transform(resize=48, crop=40)}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory, s3_bucket: str) -> tuple[str, str]:
    """The same dataset on disk and in a bucket, in several shards."""
    folder = tmp_path_factory.mktemp("s3")
    recipes = {f"{n:02}": Recipe(frames=40, gop=10, seed=n, width=160, height=96) for n in range(8)}
    local, remote = pack_recipes(recipes, folder, shard_size=60_000), f"s3://{s3_bucket}/datasets/mine"
    pack([folder / "videos"], remote, shard_size=60_000, progress=False)
    return str(local), remote


def test_a_bucket_gives_the_same_samples_as_a_disk(datasets: tuple[str, str]) -> None:
    local, remote = (sv.ClipDataset(where, **OPTIONS) for where in datasets)
    assert len(local) == len(remote) == 8
    for item in (0, 7, "03", sv.At("05", seconds=[1.0, 0.2]), sv.At(2, frames=[39, 0])):
        assert_same(remote[item], local[item])


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_read_from_a_bucket(datasets: tuple[str, str], start: str, workers: int) -> None:
    local, remote = (sv.ClipDataset(where, **OPTIONS) for where in datasets)
    remote[0]  # the parent's connections and event loop are there when the workers start
    expected = [default_collate([local[i] for i in range(first, first + 4)]) for first in (0, 4)]
    for got, wanted in zip(
        DataLoader(remote, batch_size=4, num_workers=workers, multiprocessing_context=start), expected, strict=True
    ):
        assert_same(got, wanted)
    assert_same(remote[1], local[1])  # and still serve the parent
    with sv.GpuDataLoader(
        remote, batch_size=4, num_workers=workers, multiprocessing_context=start, device="cpu"
    ) as proxy:
        for got, wanted in zip(proxy, expected, strict=True):
            assert_same(got, wanted)


def test_a_shard_that_is_gone_is_named(
    datasets: tuple[str, str], s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    monkeypatch.setattr(retry, "REFUSED_SECONDS", 0.5)
    local, _ = datasets
    remote = f"s3://{s3_bucket}/datasets/gone"
    files, root = fsspec.url_to_fs(remote)
    files.put(local, root, recursive=True)
    ds = sv.ClipDataset(remote, **OPTIONS)
    files.rm(f"{root}/shards/00000001.tar")
    gone = ds.dataset.rows(1).start
    with pytest.raises(sv.DatasetError, match=r"shard 00000001 of the dataset s3:.*gone cannot be read"):
        ds[gone]
    ds[0]


def test_few_frames_of_a_long_video_are_few_bytes(tmp_path: Path) -> None:
    """16 frames all over it: a request per group of pictures at most, and 1.4 times the bytes needed at most."""
    pack_recipes({"long": Recipe(frames=1500, gop=25, seed=3, width=160, height=96)}, tmp_path)
    frames = list(range(10, 1500, 93))[:16]
    with faulty_s3() as site:
        ds = sv.ClipDataset(site.add_folder(tmp_path / "set", "bucket/set"))
        needed = ds.encoded(sv.At("long", frames=frames)).sizes.sum()
        site.requests.clear()
        got = ds.get("long", frames=frames)
    # Each once: a request that takes long on a busy machine is made again.
    ranges = {wanted.removeprefix("bytes=") for _, key, wanted in site.requests if key.endswith(".tar")}
    asked = [wanted.split("-") for wanted in ranges]
    read = sum(int(last) - int(first) + 1 for first, last in asked)
    assert len(asked) <= 16
    assert needed <= read <= 1.4 * needed
    assert_same(got, sv.ClipDataset(tmp_path / "set").get("long", frames=frames))
