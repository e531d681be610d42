"""The shards that are open or prefetched together, and their locations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import fsspec
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.errors import DatasetError
from streamvid.fetch.shard_access import ShardAccess
from streamvid.storage.shard_cache import ShardCache
from tests.support.tables import dataset_of


def dataset_at(path: str, sizes: list[int]) -> Dataset:
    """A dataset of shards of those sizes in bytes, one clip each."""
    made = dataset_of([{}] * len(sizes), shards=len(sizes))
    shards = tuple(
        replace(entry, bytes=size, sha256=f"{n:064x}")
        for n, (entry, size) in enumerate(zip(made.shards, sizes, strict=True))
    )
    return Dataset(path, replace(made.manifest, shards=shards), made.clips)


def test_local_shards_are_one_group_where_they_lie() -> None:
    dataset = dataset_at("/made", [10**12] * 3)
    access = ShardAccess(dataset, cache=None, limit_bytes=16)
    assert access.groups([0, 1, 2]) == [[0, 1, 2]]
    with access.open([2, 0]) as path_of:
        assert path_of(2) == "/made/shards/00000002.tar"
        assert path_of(0, "packets") == "/made/shards/00000000.packets"
    access.prefetch([0, 1])


def test_remote_shards_are_grouped_by_this_ranks_share_of_the_cache(tmp_path: Path) -> None:
    with ShardCache(tmp_path / "cache", limit_bytes=1600) as cache:
        access = ShardAccess(dataset_at("memory://made", [40, 40, 40, 200, 1]), cache=cache, limit_bytes=1600)
        assert access.groups(range(5)) == [[0, 1], [2], [3], [4]], "with a byte of indexes each"
        assert access.groups([]) == []


def test_prefetching_stops_at_the_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(ShardCache, "prefetch", lambda _, url, **rest: asked.append(url))
    with ShardCache(tmp_path / "cache", limit_bytes=1600) as cache:
        access = ShardAccess(dataset_at("memory://made", [40] * 5), cache=cache, limit_bytes=1600)
        access.prefetch([3, 3, 1, 0, 2])
    assert asked == [f"memory://made/shards/0000000{n}.{kind}" for n in (3, 1) for kind in ("tar", "packets")]


def test_a_remote_shard_that_is_another_is_refused(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/changed/shards/00000000.tar", bytes(40))
    with ShardCache(tmp_path / "cache", limit_bytes=1600) as cache:
        access = ShardAccess(dataset_at("memory://changed", [40]), cache=cache, limit_bytes=1600)
        with pytest.raises(DatasetError, match=r"changed/shards/00000000\.tar is damaged"), access.open([0]):
            pass
