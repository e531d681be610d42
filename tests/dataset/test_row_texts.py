"""Texts of a large dataset: not read when it is opened, but later, for few rows from their shards, otherwise by
blocks."""

from __future__ import annotations

import logging
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import streamvid as sv
from streamvid.dataset import dataset as dataset_module
from streamvid.dataset import row_texts, table_cache
from streamvid.dataset.dataset import Dataset
from streamvid.errors import DatasetError
from streamvid.packing import shard_writer
from streamvid.storage import lru_cache, table_bounds
from streamvid.storage.explain import StorageUnavailable
from tests.dataset.test_tables import (
    CLIPS,
    _damage_texts,
    _lose_texts,
    _no_key,
    _other_keys,
    _other_texts,
    _rewrite,
    asked,
    manifest_of,
    packed,
    same,
    site,
)
from tests.support.faulty_s3 import FaultyS3
from tests.support.packed import edit_parquet

__all__ = ["packed", "site"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache's folder. All datasets are large, and local ones are opened by their tables."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(table_cache, "MIN_CLIPS", 1)
    monkeypatch.setattr(dataset_module, "_MANY_SHARDS", 1)
    return tmp_path / "cache/streamvid"


def small(path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """The dataset, read by its shards and as a whole."""
    with monkeypatch.context() as patch:
        patch.setattr(table_cache, "MIN_CLIPS", 1 << 30)
        patch.setattr(dataset_module, "_MANY_SHARDS", 1 << 30)
        return Dataset.open(path)


def test_they_are_read_as_far_as_they_are_wanted(
    packed: Path, site: FaultyS3, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(row_texts, "_ALONE", 2)
    want = small(packed, monkeypatch)
    (table,) = manifest_of(packed)["tables"]
    url = site.add_folder(packed, "bucket/set")
    dataset = Dataset.open(url)
    assert len(dataset) == len(dataset.clips.key) == len(CLIPS)
    assert (dataset.clips.frames == want.clips.frames).all()
    assert asked(site) == {"dataset.json", f"{table['sha256']}.parquet"}
    site.requests.clear()
    # Of the first rows, the files of their shards.
    assert dataset.key(3) == want.key(3)
    assert dataset.clips.stsds[dataset.clips.stsd_id[3]] == want.clips.stsds[want.clips.stsd_id[3]]
    assert dataset.clips.source[-2] == want.clips.source[3]
    assert dataset.clips.meta[1] == want.clips.meta[1]
    assert asked(site) == {f"{want.shards[n].name}.parquet" for n in (1, 3)}
    site.requests.clear()
    # Then all of the block, once on this machine.
    assert dataset.key(0) == want.key(0)
    assert asked(site) == {f"{table['texts']}.parquet"}
    site.requests.clear()
    same(dataset, want)
    same(Dataset.open(url), want)
    assert not any(".parquet" in name and name.startswith(table["texts"]) for name in asked(site))
    with pytest.raises(IndexError):
        dataset.clips.key[len(CLIPS)]


def test_a_whole_column_is_read_by_tables(packed: Path, site: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    want = small(packed, monkeypatch)
    (table,) = manifest_of(packed)["tables"]
    dataset = Dataset.open(site.add_folder(packed, "bucket/set"))
    site.requests.clear()
    for name in ("place", "score", "key", "source"):
        assert dataset.columns.get(name).equals(want.columns.get(name))
    assert asked(site) == {f"{table['texts']}.parquet"}
    assert dataset.row(want.key(2)) == 2
    assert dataset.meta.parquet_types == want.meta.parquet_types


@pytest.mark.parametrize("spoil", [_damage_texts, _lose_texts, _no_key, _other_keys, _other_texts])
@pytest.mark.parametrize("remote", [False, True])
def test_a_file_that_does_not_fit_is_not_used(
    packed: Path,
    site: FaultyS3,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    remote: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    want = small(packed, monkeypatch)
    copy = Path(shutil.copytree(packed, tmp_path / "set"))
    spoil(copy)
    with caplog.at_level(logging.WARNING):
        dataset = Dataset.open(site.add_folder(copy, "bucket/set") if remote else copy, retry_for=0)
        assert not caplog.records
        same(dataset, want)
    said = [record.getMessage() for record in caplog.records if record.name == "streamvid.dataset.row_texts"]
    assert len(said) == 1, said
    assert "read instead" in said[0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: edit_parquet(path, 0, key="another"),
    ],
    ids=["shorter", "another text"],
)
def test_of_a_damaged_shard_the_table_is_read(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], object]
) -> None:
    want = small(packed, monkeypatch)
    copy = Path(shutil.copytree(packed, tmp_path / "set"))
    dataset = Dataset.open(copy)
    path = copy / want.shards[2].file("parquet")
    damage(path)
    assert [dataset.key(row) for row in range(len(want))] == [want.key(row) for row in range(len(want))]
    # With both gone, it says which shard.
    _lose_texts(copy)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    with pytest.raises(DatasetError, match=rf"{want.shards[2].name}\.parquet is not the one in dataset.json"):
        Dataset.open(copy).key(2)


def test_a_storage_that_is_away_is_told_and_asked_again(
    packed: Path, site: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = small(packed, monkeypatch)
    dataset = Dataset.open(site.add_folder(packed, "bucket/set"), retry_for=0)
    site.fault = lambda method, key, count: "503"
    with pytest.raises(StorageUnavailable):
        dataset.key(1)
    with pytest.raises(StorageUnavailable):
        dataset.columns.get("place")
    site.fault = lambda method, key, count: None
    same(dataset, want)


def test_pickled_it_reads_its_own(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = small(packed, monkeypatch)
    dataset = Dataset.open(packed)
    dataset.key(1)
    data = pickle.dumps(dataset)
    assert want.clips.meta[1].encode() not in data
    same(pickle.loads(data), want)
    same(pickle.loads(pickle.dumps(pickle.loads(data))), want)


def test_many_rows_alone(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are not kept any more are read again, or with their block."""
    want = small(packed, monkeypatch)
    monkeypatch.setattr(row_texts, "_ROWS", 1)
    monkeypatch.setattr(row_texts, "_ALONE", 7)
    dataset = Dataset.open(packed)
    for _ in range(3):
        assert [dataset.key(row) for row in range(5)] == [want.key(row) for row in range(5)]
    assert lru_cache.LruCache is row_texts.LruCache


def test_a_key_twice_is_told_where_keys_are_looked_up(packed: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(packed, tmp_path / "set"))

    def twice(table: Any) -> Any:
        keys = table["key"].to_pylist()
        return table.set_column(0, table.schema.field("key"), [[keys[1], *keys[1:]]])

    _rewrite(copy, twice, "texts")
    dataset = Dataset.open(copy)
    with pytest.raises(DatasetError, match="more than once"):
        dataset.row(dataset.key(1))


def test_tables_that_stand_for_too_much_together_are_not_used(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(table_bounds, "_JOINT_BYTES", 0)
    monkeypatch.setattr(table_bounds, "_JOINT_ROW_BYTES", 1 << 10)
    monkeypatch.setattr(table_bounds, "RATIO", 0)
    want = small(packed, monkeypatch)
    copy = Path(shutil.copytree(packed, tmp_path / "set"))
    _rewrite(
        copy, lambda table: table.set_column(1, table.schema.field("source"), [["x" * 60_000] * len(table)]), "texts"
    )
    with caplog.at_level(logging.WARNING):
        same(Dataset.open(copy), want)
    assert "read instead" in caplog.text


def test_a_run_over_a_bucket_reads_no_more_than_it_needs(
    packed: Path, site: FaultyS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"sampling": sv.Window(2), "transform": sv.Transform(resize=(32, 32)), "batch_size": 2}
    options |= {"device": "cpu", "num_threads": 1, "seed": 3, "columns": []}

    def batches(path: object, **more: Any) -> list[dict[str, Any]]:
        with sv.StreamLoader(path, **options, **more) as loader:
            return list(loader)

    with monkeypatch.context() as patch:
        patch.setattr(table_cache, "MIN_CLIPS", 1 << 30)
        want = batches(packed)
    (table,) = manifest_of(packed)["tables"]
    url = site.add_folder(packed, "bucket/set")
    for number, fetch in enumerate(("ranges", "shards")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"rows{number}"))
        found = batches(url, fetch=fetch, cache_dir=tmp_path / f"shards{number}")
        for one, other in zip(want, found, strict=True):
            assert one["key"] == other["key"]
            assert (one["video"] == other["video"]).all()
    monkeypatch.setattr(row_texts, "_ALONE", len(CLIPS))
    site.requests.clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "rows"))
    assert [one["key"] for one in batches(url, cache_dir=tmp_path / "shards")] == [one["key"] for one in want]
    assert f"{table['texts']}.parquet" not in asked(site)


def test_clips_outside_of_shards(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    videos = sorted((packed.parent / "videos").glob("*.mp4"))
    monkeypatch.setattr(shard_writer, "MOST_INDEXED", 1)
    sv.index(videos, tmp_path / "set", progress=False)
    assert manifest_of(tmp_path / "set")["tables"]
    roots = [packed.parent]
    with monkeypatch.context() as patch:
        patch.setattr(table_cache, "MIN_CLIPS", 1 << 30)
        patch.setattr(dataset_module, "_MANY_SHARDS", 1 << 30)
        want = Dataset.open(tmp_path / "set", roots=roots)
    found = Dataset.open(tmp_path / "set", roots=roots)
    for row in range(len(want)):
        assert found.location(row) == want.location(row)
        assert found.version(row) == want.version(row)
    same(found, want)


def test_what_is_purged_is_in_no_block(packed: Path, tmp_path: Path, folder: Path) -> None:
    copy = Path(shutil.copytree(packed, tmp_path / "set"))
    dataset = Dataset.open(copy)
    assert dataset.columns.get("place")[1].as_py() == "town 1"
    sv.forget(copy, [dataset.key(1)], purge=True)
    held = [path for path in folder.iterdir() if path.is_file() and b"town 1" in path.read_bytes()]
    assert not held
    assert Dataset.open(copy).columns.get("place").to_pylist() == ["town 0", None, "town 2", "town 3", "town 4"]


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("alone", [0, 9])
def test_what_is_left_of_a_revision_that_a_purge_ends(
    packed: Path, site: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remote: bool, alone: int
) -> None:
    """Rows of shards that are still there have their texts, although their table is gone; others say why not."""
    monkeypatch.setattr(row_texts, "_ALONE", alone)
    want = small(packed, monkeypatch)
    copy = Path(shutil.copytree(packed, tmp_path / "set"))
    dataset = Dataset.open(site.add_folder(copy, "bucket/set") if remote else copy)
    sv.forget(copy, [want.key(1)], purge=True)
    site.objects.clear()
    site.add_folder(copy, "bucket/set")
    for _ in range(2):
        assert [dataset.key(row) for row in (0, 2, 3, 4)] == [want.key(row) for row in (0, 2, 3, 4)]
        for look in (lambda: dataset.key(1), lambda: dataset.columns.get("place")):
            with pytest.raises(DatasetError, match=rf"shard {want.shards[1].name} .* is gone: revision 1, in which"):
                look()


def test_numbers_that_contradict_name_their_row(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    want = small(packed, monkeypatch)
    copy = Path(shutil.copytree(packed, tmp_path / "set"))

    def wide(table: Any) -> Any:
        at = table.column_names.index("width")
        return table.set_column(at, table.schema.field(at), [np.array([128, 128, 0, 128, 128], np.int32)])

    _rewrite(copy, wide)
    with caplog.at_level(logging.WARNING):
        same(Dataset.open(copy), want)
    assert f"shard {want.shards[2].name}.parquet is damaged: clip 'row 2'" in caplog.text
    assert "read instead" in caplog.text


def test_all_columns_are_in_one_of_the_files(packed: Path) -> None:
    (table,) = manifest_of(packed)["tables"]
    names = [pq.read_schema(packed / f"tables/{table[which]}.parquet").names for which in ("sha256", "texts")]
    own = pq.read_schema(packed / "shards/00000000.parquet").names
    assert sorted([*names[0], *names[1], "sha256"]) == sorted(own)
    assert {field.name for field in fields(Dataset.open(packed).clips)} >= {"key", "stsds"}
