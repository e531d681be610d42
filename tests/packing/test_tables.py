"""Writing consolidated tables: of how many shards each is, what appending makes of them, and what verify says."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamvid as sv
from streamvid.dataset.manifest import Manifest
from streamvid.packing import tables
from streamvid.packing.tables import write_tables
from tests.support.clips import write
from tests.support.packed import SMALL


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("videos")
    return [write(replace(SMALL, frames=3 + n % 2), folder / f"{n}.mp4") for n in range(9)]


def packed(videos: list[Path], to: Path, **options: Any) -> Manifest:
    return sv.pack(videos, to, shard_size=1, progress=False, **options).manifest


def sizes(manifest: Manifest) -> list[int]:
    return [table.shards for table in manifest.tables]


def test_a_table_has_the_rows_of_its_shards(videos: list[Path], tmp_path: Path) -> None:
    manifest = packed(videos[:4], tmp_path / "set")
    (table,) = manifest.tables
    assert sizes(manifest) == [4]
    numbers, texts = (pq.read_table(tmp_path / "set" / file) for file in table.files)
    own = [pq.read_table(tmp_path / "set" / shard.file("parquet")) for shard in manifest.shards]
    rows = pa.concat_tables(own)
    assert numbers.equals(rows.select(numbers.column_names))
    assert texts.equals(rows.select(texts.column_names))
    assert {"key", "source", "meta", "stsd"} <= {*texts.column_names}
    assert {*numbers.column_names, *texts.column_names, "sha256"} == {*rows.column_names}
    assert manifest == Manifest.from_json((tmp_path / "set/dataset.json").read_bytes(), path="")
    assert packed(videos[:1], tmp_path / "one").tables == ()
    assert not (tmp_path / "one/tables").exists()
    # Another dataset in the same place leaves none of them.
    again = packed(videos[4:6], tmp_path / "set", overwrite=True)
    assert {f"tables/{path.name}" for path in (tmp_path / "set/tables").iterdir()} == {*again.tables[0].files}


def test_appending_again_and_again_leaves_few(videos: list[Path], tmp_path: Path) -> None:
    for count in range(1, len(videos) + 1):
        manifest = packed(videos[:count], tmp_path / "set", append=count > 1)
        covered = sum(sizes(manifest))
        assert count - covered <= 1
        assert len(manifest.tables) <= 1 + math.log2(count)
    assert sv.verify(tmp_path / "set", progress=False).ok


def test_tables_are_limited_in_clips_and_bytes(
    videos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = packed(videos, tmp_path / "set")
    monkeypatch.setattr(tables, "_CLIPS", 4)
    monkeypatch.setattr(tables, "_AT_ONCE", 2)
    bare = replace(manifest, tables=())
    assert [one.shards for one in write_tables(str(tmp_path / "set"), bare)] == [4, 4]
    monkeypatch.setattr(tables, "_BYTES", 1)
    assert write_tables(str(tmp_path / "set"), bare) == ()


def test_shards_of_other_columns_are_apart(videos: list[Path], tmp_path: Path) -> None:
    packed(videos[:3], tmp_path / "set")
    listed = tmp_path / "list.csv"
    listed.write_text("path,score\n" + "".join(f"{video},{n}.5\n" for n, video in enumerate(videos)))
    manifest = packed(videos[:6], tmp_path / "set", append=True, metadata=[listed])
    assert sizes(manifest) == [3, 3]
    assert sv.verify(tmp_path / "set", progress=False).ok


def test_verify_compares_tables_with_shards(videos: list[Path], tmp_path: Path) -> None:
    manifest = packed(videos[:3], tmp_path / "set")
    (table,) = manifest.tables

    def said(folder: Path) -> str:
        return " ".join(problem.what for problem in sv.verify(folder, progress=False).problems)

    assert said(tmp_path / "set") == ""
    for name in ("lost", "other", "stale"):
        shutil.copytree(tmp_path / "set", tmp_path / name)
    (tmp_path / "lost" / table.files[1]).unlink()
    assert f"{table.texts}.parquet" in said(tmp_path / "lost")
    document = json.loads((tmp_path / "stale/dataset.json").read_text())
    document["tables"][0]["of"] = "0" * 64
    (tmp_path / "stale/dataset.json").write_text(json.dumps(document))
    assert "is not of the shards" in said(tmp_path / "stale")
    rows = pq.read_table(tmp_path / "other" / table.files[1])
    swapped = rows.take([1, 0, 2])
    import hashlib

    sink = pa.BufferOutputStream()
    pq.write_table(swapped, sink)
    data = sink.getvalue().to_pybytes()
    sha256 = hashlib.sha256(data).hexdigest()
    (tmp_path / f"other/tables/{sha256}.parquet").write_bytes(data)
    document = json.loads((tmp_path / "other/dataset.json").read_text())
    document["tables"][0]["texts"] = sha256
    (tmp_path / "other/dataset.json").write_text(json.dumps(document))
    assert "has other rows than shard" in said(tmp_path / "other")
