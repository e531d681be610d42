"""Consolidated tables: a remote dataset opens with them as with its shards' own tables, which are authoritative."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamvid.dataset import dataset as dataset_module
from streamvid.dataset import shard_files, table_cache
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.manifest import Manifest, ShardEntry
from streamvid.dataset.schema import CATEGORIES, FIELD_PREFIX
from streamvid.dataset.tables import TableEntry, digest, usable
from streamvid.errors import DatasetError
from streamvid.packing.options import PackOptions
from streamvid.storage import table_bounds
from streamvid.storage.shard_cache import ShardCache
from tests.support.faulty_s3 import FaultyS3, faulty_s3
from tests.support.packed import SMALL, edit_json, pack_recipes
from tools.clips import Recipe
from tools.damage import flip_bytes

CLIPS = {
    **{f"h264-{n}": replace(SMALL, frames=6) for n in range(4)},
    "vp9": Recipe(codec="vp9", container="mkv", width=128, height=128, frames=8, gop=8, b_frames=0),
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five clips in as many shards."""
    numbers = range(len(CLIPS))
    columns = {
        "label": [n % 3 for n in numbers],
        "score": ["NaN" if n == 1 else n / 4 for n in numbers],
        "place": [f"town {n}" for n in numbers],
    }
    folder = tmp_path_factory.mktemp("tables")
    return pack_recipes(CLIPS, folder, columns, shard_size=1, options=PackOptions("any"))


@pytest.fixture
def site() -> Iterator[FaultyS3]:
    with faulty_s3() as found:
        yield found


def manifest_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "dataset.json").read_text())
    return found


def asked(site: FaultyS3) -> set[str]:
    return {key.rpartition("/")[2] for method, key, _ in site.requests if method == "GET"}


def same(one: Dataset, other: Dataset) -> None:
    assert one.to_arrow().equals(other.to_arrow())
    for name in ("shard", "frames", "packets", "mp4_offset", "mp4_size", "index_offset", "index_crc32c", "label"):
        np.testing.assert_array_equal(getattr(one.clips, name), getattr(other.clips, name))
    for row in range(len(one)):
        assert one.clips.stsds[one.clips.stsd_id[row]] == other.clips.stsds[other.clips.stsd_id[row]]
        assert one.sha256(row) == other.sha256(row)


def test_a_bucket_is_opened_without_its_shards(packed: Path, site: FaultyS3, tmp_path: Path) -> None:
    (table,) = manifest_of(packed)["tables"]
    assert (table["first"], table["shards"]) == ("00000000", len(CLIPS))
    url = site.add_folder(packed, "bucket/set")
    files = {"dataset.json", f"{table['sha256']}.parquet", f"{table['texts']}.parquet"}
    dataset = Dataset.open(url)
    assert asked(site) == files
    assert not any("list-type" in key for _, key, _ in site.requests)
    # A request that is slow on a busy machine is asked again: each of the three once, and one of them twice at most.
    assert {method for method, key, _ in site.requests if key.endswith(".parquet")} == {"GET"}
    assert sum(method == "GET" for method, _, _ in site.requests) <= 4
    same(dataset, Dataset.open(packed))
    site.requests.clear()
    with ShardCache(tmp_path / "cache", limit_bytes=1 << 30) as cache:
        Dataset.open(url, cache=cache)
        Dataset.open(url, cache=cache)
    assert asked(site) == files


def _lose(folder: Path) -> None:
    shutil.rmtree(folder / "tables")


def _file(folder: Path, which: str = "sha256") -> Path:
    """The file of the table with numbers, or with texts."""
    return Path(folder / "tables" / f"{manifest_of(folder)['tables'][0][which]}.parquet")


def _damage(folder: Path, which: str = "sha256") -> None:
    flip_bytes(_file(folder, which), 0.5)


def _edit(**fields: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        found = manifest_of(folder)
        found["tables"][0].update(fields)
        (folder / "dataset.json").write_text(json.dumps(found))

    return edit


def _other_rows(folder: Path) -> None:
    """A table with the checksum that dataset.json names, and a row less."""
    _rewrite(folder, lambda table: table.slice(1))


def _no_codec(folder: Path) -> None:
    _rewrite(folder, lambda table: table.drop_columns(["codec"]))


def _other_type(folder: Path) -> None:
    _rewrite(folder, lambda table: table.set_column(1, "codec", pa.array(range(len(table)))))


def _damage_texts(folder: Path) -> None:
    _damage(folder, "texts")


def _lose_texts(folder: Path) -> None:
    _file(folder, "texts").unlink()


def _no_key(folder: Path) -> None:
    _rewrite(folder, lambda table: table.drop_columns(["key"]), "texts")


def _other_keys(folder: Path) -> None:
    keys = pa.array([f"../{n}" for n in range(len(CLIPS))])
    _rewrite(folder, lambda table: table.set_column(0, table.schema.field("key"), keys), "texts")


def _other_texts(folder: Path) -> None:
    _rewrite(folder, lambda table: table.slice(1), "texts")


def _rewrite(folder: Path, change: Callable[[pa.Table], pa.Table], which: str = "sha256", **options: Any) -> None:
    path = _file(folder, which)
    options = options or {"compression": "zstd", "use_dictionary": False}
    pq.write_table(change(pq.read_table(path)), path, **options)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    path.rename(path.with_name(f"{sha256}.parquet"))
    _edit(**{which: sha256})(folder)


@pytest.mark.parametrize(
    ("spoil", "cached"),
    [
        (_lose, False),
        (_lose, True),
        (_damage, False),
        (_damage, True),
        (_other_rows, False),
        (_no_codec, True),
        (_other_type, False),
        (_damage_texts, False),
        (_damage_texts, True),
        (_lose_texts, True),
        (_no_key, False),
        (_other_keys, True),
        (_other_texts, False),
        (_edit(of="0" * 64), True),
        (_edit(shards=4), False),
        (_edit(first="00000007"), True),
        (_edit(shards=10**12), False),
    ],
)
def test_a_table_that_does_not_fit_is_not_used(
    packed: Path,
    site: FaultyS3,
    tmp_path: Path,
    spoil: Callable[[Path], None],
    cached: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    copy = Path(shutil.copytree(packed, tmp_path / "set"))
    spoil(copy)
    url = site.add_folder(copy, "bucket/set")
    with ShardCache(tmp_path / "cache", limit_bytes=1 << 30) as cache, caplog.at_level(logging.WARNING):
        dataset = Dataset.open(url, cache=cache if cached else None, retry_for=0)
        same(dataset, Dataset.open(packed))
    said = [record.getMessage() for record in caplog.records if record.name == "streamvid.dataset.dataset"]
    assert len(said) == 1, said
    assert "read instead" in said[0] or "not of the shards" in said[0]


def test_a_table_that_stands_for_too_much_with_others_is_not_used(
    packed: Path, site: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does it count then: its shards' own files are sound."""
    monkeypatch.setattr(table_bounds, "_JOINT_BYTES", 16 << 20)  # of 512 MiB
    copy = Path(shutil.copytree(packed, tmp_path / "set"))

    def inflate(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(FIELD_PREFIX + "place")
        return table.set_column(at, table.schema.field(at), pa.array(["x" * 8_000_000] * len(table)))

    _rewrite(copy, inflate, "texts")
    with caplog.at_level(logging.WARNING):
        same(Dataset.open(site.add_folder(copy, "bucket/set"), retry_for=0), Dataset.open(packed))
    assert "would take 3" in caplog.text
    assert "read instead" in caplog.text


def test_a_local_dataset_of_many_shards_is_opened_by_its_tables(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = Dataset.open(packed)
    monkeypatch.setattr(dataset_module, "_MANY_SHARDS", 5)
    read: list[str] = []
    read_scalars = shard_files.read_scalars
    monkeypatch.setattr(
        shard_files, "read_scalars", lambda source, entry: read.append(entry.name) or read_scalars(source, entry)
    )
    for least in (100, 1):
        monkeypatch.setattr(table_cache, "MIN_CLIPS", least)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        same(Dataset.open(packed), own)
        assert read == []
    copy = Path(shutil.copytree(packed, tmp_path / "set"))
    _damage(copy)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    monkeypatch.setattr(dataset_module, "_TOO_MANY_SHARDS", 5)
    with caplog.at_level(logging.WARNING):
        same(Dataset.open(copy), own)
    assert len(read) == 5
    assert "read instead" in caplog.text
    assert "streamvid reshard" not in caplog.text
    # Without tables, it is said what so many files of their own cost, before they are read.
    edit_json(copy, tables=[])
    monkeypatch.setattr(table_cache, "MIN_CLIPS", 100)
    with caplog.at_level(logging.WARNING):
        same(Dataset.open(copy), own)
    assert f"to open {copy} takes about 0 s until its rows are in the cache, as 5 of its shards are in" in caplog.text
    # A shard's file that is gone is told, although no row is read of it.
    name = Manifest.from_json((copy / "dataset.json").read_bytes(), path="").shards[3].name
    (copy / f"shards/{name}.parquet").unlink()
    with pytest.raises(DatasetError, match=rf"{name}\.parquet is missing"):
        Dataset.open(copy)


@pytest.mark.parametrize("many", [False, True])
def test_rows_are_the_same_whatever_their_encoding(packed: Path, site: FaultyS3, tmp_path: Path, many: bool) -> None:
    """Codes and descriptions: with dictionaries in another order, of values that no row has, in several row groups,
    and with none at all."""
    want = Dataset.open(packed)
    metadata = pq.ParquetFile(_file(packed, "texts")).metadata
    assert all("PLAIN" in metadata.row_group(0).column(n).encodings for n in range(4))
    for number, options in enumerate([{"use_dictionary": True}, {"use_dictionary": False}]):
        copy = Path(shutil.copytree(packed, tmp_path / f"set{number}"))
        for which in ("sha256", "texts"):
            _rewrite(copy, lambda table: table, which, row_group_size=2 if many else 100, **options)
        found = Dataset.open(site.add_folder(copy, f"bucket/set{number}"), retry_for=0)
        same(found, want)
        for name in CATEGORIES:
            one, other = getattr(found.clips, name), getattr(want.clips, name)
            assert one.names == other.names
            np.testing.assert_array_equal(one.codes, other.codes)
        np.testing.assert_array_equal(found.clips.stsd_id, want.clips.stsd_id)


@pytest.mark.parametrize(
    "tables",
    [{}, [1], [{"texts": "0" * 64}],
     [{"first": "00000000", "shards": 1, "sha256": "../" * 20, "texts": "0" * 64, "of": "0" * 64}],
     [{"first": "00000000", "shards": 1, "texts": "../" * 20, "sha256": "0" * 64, "of": "0" * 64}],
     [{"first": "00000000", "shards": True, "sha256": "0" * 64, "texts": "0" * 64, "of": "0" * 64}],
     [{"first": "00000000", "shards": 0, "sha256": "0" * 64, "texts": "0" * 64, "of": "0" * 64}],
     [{"first": 0, "shards": 1, "sha256": "0" * 63, "texts": "0" * 64, "of": "0" * 65}]],
)  # fmt: skip
def test_invalid_entries_of_tables_are_refused(packed: Path, tables: object, tmp_path: Path) -> None:
    found = manifest_of(packed) | {"tables": tables}
    with pytest.raises(DatasetError, match="damaged"):
        Manifest.from_json(json.dumps(found).encode(), path="dataset.json")


def test_tables_are_usable_if_they_match_their_shards() -> None:
    zeros = "0" * 64
    entries = [
        ShardEntry(f"{n:08d}", 1, 1, 1, zeros, zeros, 1, zeros, f"{n:064x}") if n != 4
        else ShardEntry(f"{n:08d}", 1, 1, 0, "", "", 1, zeros, f"{n:064x}")
        for n in range(6)
    ]  # fmt: skip

    def of(first: int, shards: int) -> TableEntry:
        return TableEntry(f"{first:08d}", shards, zeros, zeros, digest(entries[first : first + shards]))

    good = [of(0, 2), of(2, 2)]
    twice, mixed, behind = of(1, 2), of(3, 2), of(5, 2)
    found = list(usable([good[1], twice, mixed, behind, good[0]], entries))
    assert found == [(good[0], slice(0, 2)), (good[1], slice(2, 4))]
    longer = of(0, 4)  # of the same first shard: the one that is listed first is used
    assert [one for one, _ in usable([longer, *good], entries)] == [longer]
    # Written anew without tables of shards that were replaced.
    manifest = Manifest("x", 0.0, None, tuple(entries[:4]), tables=(*good,))
    assert len(json.loads(manifest.to_json())["tables"]) == 2
    other = replace(entries[3], parquet_sha256="f" * 64)
    assert len(json.loads(replace(manifest, shards=(*entries[:3], other)).to_json())["tables"]) == 1
