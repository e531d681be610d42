"""Columns by key: added, replaced, and read into batches; an invalid table leaves the dataset unchanged."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import streamvid as sv
from streamvid.cli.main import main
from streamvid.dataset import table_cache
from streamvid.dataset.revisions import read_manifest
from streamvid.errors import DatasetError, InputError
from streamvid.packing.pack import pack
from streamvid.storage import filesystem, table_bounds
from streamvid.storage.shard_cache import ShardCache
from tests.packing.test_resume import die_before_change
from tests.revising.conftest import CLIPS
from tests.support.packed import SMALL, digests, pack_recipes, upload
from tests.support.tables import needs_fixed_lists
from tests.support.web import website

KEYS = [f"clip{n}" for n in range(CLIPS)]


def table(keys: list[str] | None = None, **columns: Any) -> pa.Table:
    return pa.table({"key": pa.array(KEYS if keys is None else keys), **columns})


def column(folder: Path | str, name: str, **options: Any) -> list[Any]:
    return list(sv.Dataset.open(folder, **options).columns.get(name).to_pylist())


def tars(folder: Path) -> dict[str, str]:
    return {name: sum_ for name, sum_ in digests(folder).items() if name.startswith("shards/")}


def test_columns_are_added_and_replaced_by_key(folder: Path) -> None:
    shards = tars(folder)
    order = [4, 0, 2, 5, 1, 3]
    report = sv.annotate(folder, table([KEYS[n] for n in order], mood=[f"mood {n}" for n in order]))
    assert (report.revision, report.clips, report.added, report.replaced) == (1, CLIPS, ("mood",), ())
    assert column(folder, "mood") == [f"mood {n}" for n in range(CLIPS)]
    # Some of them, and a column of the shards: all others keep their values. A null takes one away.
    report = sv.annotate(folder, table(["clip3", "clip1"], mood=["new", None], score=[9.5, None], more=[1, 2]))
    assert (report.clips, report.added, report.replaced) == (2, ("more",), ("mood", "score"))
    assert column(folder, "mood") == ["mood 0", None, "mood 2", "new", "mood 4", "mood 5"]
    assert column(folder, "score") == [0.0, None, 0.5, 9.5, 1.0, 1.25]
    assert column(folder, "more") == [None, 2, None, 1, None, None]
    assert column(folder, "mood", revision=1) == [f"mood {n}" for n in range(CLIPS)]
    with pytest.raises(InputError, match="no column 'mood'"):
        column(folder, "mood", revision=0)
    assert tars(folder) == shards
    (overlay,) = read_manifest(str(folder)).overlays
    assert [name for name, _ in overlay.columns] == ["mood", "score", "more"]
    assert sv.verify(folder, progress=False).ok


def test_columns_that_compress_to_very_little_can_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_bounds, "BASE_BYTES", 100_000)
    vectors, words = [[0.0] * 10_000] * CLIPS, ["c" * 300_000 + str(n) for n in range(CLIPS)]
    sv.annotate(folder, table(vector=pa.array(vectors, pa.list_(pa.float32())), words=words))
    assert column(folder, "vector") == vectors
    sv.forget(folder, [KEYS[1]], purge=True)
    assert column(folder, "words") == [None if n == 1 else word for n, word in enumerate(words)]


@pytest.mark.parametrize(
    ("values", "there"),
    [
        (pa.array([1, 2, 3, 4, 5, None], pa.int8()), [1, 2, 3, 4, 5, None]),
        (pa.array([0.5] * 6, pa.float32()), [0.5] * 6),
        (pa.array([True, None] * 3), [True, None] * 3),
        (pa.array([["a", "b"], [], None] * 2), [["a", "b"], [], None] * 2),
        (pa.array([{"a": 1}] * 6), ['{"a":1}'] * 6),
        (pa.array(["a", "b"] * 3).dictionary_encode(), ["a", "b"] * 3),
        (pa.array([1704153600] * 6).cast(pa.timestamp("s")), ["2024-01-02 00:00:00.000"] * 6),
        (pa.nulls(6), [None] * 6),
        pytest.param(
            pa.array([[1, 2], None, [3, 4]] * 2, pa.list_(pa.int16(), 2)),
            [[1, 2], None, [3, 4]] * 2,
            marks=needs_fixed_lists,
        ),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_types(folder: Path, tmp_path: Path, values: pa.Array, there: list[Any]) -> None:
    pq.write_table(table(it=values), tmp_path / "table.parquet")
    sv.annotate(folder, tmp_path / "table.parquet")
    assert column(folder, "it") == there
    sv.annotate(folder, table(["clip0"], it=values.slice(0, 1)))  # the type is what it was
    assert column(folder, "it") == there


def test_csv_and_jsonl(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("key,place\nclip0,here\nclip5,there\n")
    (tmp_path / "two.jsonl").write_text(json.dumps({"key": "clip1", "tags": ["a", "b"]}) + "\n")
    assert main(["annotate", str(folder), str(tmp_path / "one.csv")]) == 0
    assert main(["annotate", str(folder), str(tmp_path / "two.jsonl")]) == 0
    assert column(folder, "place") == ["here", None, None, None, None, "there"]
    assert column(folder, "tags")[1] == ["a", "b"]
    assert len(read_manifest(str(folder)).overlays) == 2


@needs_fixed_lists
def test_lists_of_fixed_size_come_as_tensors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_cache, "MIN_CLIPS", 1)
    vectors = np.arange(CLIPS * 4, dtype=np.float32).reshape(CLIPS, 4)
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 4)
    some = pa.array([[1, 2, 3], None] * 3, pa.list_(pa.int32(), 3))
    half = pa.array([[0.5], None] * 3, pa.list_(pa.float16(), 1))
    sv.annotate(folder, table(embedding=embedding, some=some, half=half, said=["words"] * CLIPS))
    names = ["embedding", "some", "half", "said"]
    options: dict[str, Any] = {"sampling": sv.Window(2), "columns": names}
    for batch in sv.StreamLoader(folder, batch_size=3, device="cpu", **options):
        rows = batch["clip"].numpy()
        assert batch["embedding"].dtype == torch.float32
        assert np.array_equal(batch["embedding"].numpy(), vectors[rows])
        assert batch["some"].dtype == torch.float64
        wanted = [[1, 2, 3] if row % 2 == 0 else [np.nan] * 3 for row in rows]
        assert np.array_equal(batch["some"].numpy(), wanted, equal_nan=True)
        assert batch["half"].dtype == torch.float16
        assert batch["said"] == ["words"] * 3
    sample = sv.ClipDataset(folder, **options)[2]
    assert torch.equal(sample["embedding"], torch.from_numpy(vectors[2]))
    mix = sv.StreamLoader(sv.Mix([(folder, 1), (folder, 1)]), batch_size=3, device="cpu", **options)
    for batch in mix:
        assert np.array_equal(batch["embedding"].numpy(), vectors[batch["clip"].numpy() % CLIPS])


@needs_fixed_lists
def test_lists_of_fixed_size_that_pyarrow_cannot_read_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyArrow before 26 writes them where rows have none, and then the dataset could not be opened."""
    whole = pa.array([[1.0, 2.0]] * CLIPS, pa.list_(pa.float32(), 2))
    with monkeypatch.context() as patch:
        patch.setattr(pa, "__version__", "25.0.1")
        with pytest.raises(InputError, match=r"PyArrow 25.0.1 cannot read .* as in the column 'some': .*pyarrow>=26"):
            sv.annotate(folder, table(["clip0"], some=whole.slice(0, 1)))
        assert "some" not in sv.Dataset.open(folder).columns.names
        sv.annotate(folder, table(all=whole))
    sv.annotate(folder, table(["clip0"], some=whole.slice(0, 1)))

    def read(*_: object, **__: object) -> pa.Table:
        raise pa.ArrowInvalid("Expected all lists to be of size=2 but index 1 had size=0")

    monkeypatch.setattr(pq.ParquetFile, "read", read)
    with pytest.raises(sv.StreamvidError, match=r"cannot read lists of fixed size.*pip install 'pyarrow>=26'"):
        sv.Dataset.open(folder).columns.get("some")


def test_labels(folder: Path, packed: Path) -> None:
    assert read_manifest(str(folder)).classes is None
    sv.annotate(folder, table(["clip0", "clip1"], label=[7, None]))
    dataset = sv.Dataset.open(folder)
    assert dataset.clips.label.tolist() == [7, -1, 0, 1, 0, 1]
    with pytest.raises(InputError, match="labels are numbers, and those of the table are text"):
        sv.annotate(folder, table(["clip0"], label=["dog"]))
    with pytest.raises(InputError, match="count classes from 0"):
        sv.annotate(folder, table(["clip0"], label=[-1]))


def test_class_names(packed: Path, tmp_path: Path) -> None:
    lines = "".join(f"clip{n}.mp4,{'cat' if n % 2 else 'dog'}\n" for n in range(CLIPS))
    (tmp_path / "labels.csv").write_text("path,label\n" + lines)
    pack([packed.parent / "videos"], tmp_path / "ds", labels=tmp_path / "labels.csv", progress=False)
    sv.annotate(tmp_path / "ds", table(["clip0", "clip1", "clip2"], label=["ant", "dog", ""]))
    dataset = sv.Dataset.open(tmp_path / "ds")
    assert dataset.classes == ("cat", "dog", "ant")
    assert dataset.columns.get("class").to_pylist() == ["ant", "dog", None, "cat", "dog", "cat"]
    with pytest.raises(InputError, match="labels are text, and those of the table are numbers"):
        sv.annotate(tmp_path / "ds", table(["clip0"], label=[1]))


MISTAKES: dict[str, tuple[Any, str]] = {
    "unknown key": (
        table(["clip0", "clip9.mp4", "clip77"], a=[1, 2, 3]),
        r"2 of the 3 keys of .* 'clip9.mp4', 'clip77'",
    ),
    "meant another": (table(["clip3.mp4"], a=[1]), "write 'clip3'"),
    "another type": (table(["clip0"], score=["high"]), "'score' holds numbers in the dataset and text in"),
    "wider": (table(["clip0"], count=[1.5]), "'count' holds whole numbers in the dataset and numbers in"),
    "other size": (table(["clip0"], vector=pa.array([[1.0]], pa.list_(pa.float32(), 1))), "lists of 2 times float"),
    "duplicates": (table(["clip0", "clip1", "clip0"], a=[1, 2, 3]), "has the key 'clip0' 2 times"),
    "no key": (pa.table({"name": ["clip0"]}), "has no column 'key' but name"),
    "key of numbers": (pa.table({"key": [1], "a": [1]}), "holds int64, not text"),
    "empty key": (table(["clip0", None], a=[1, 2]), "holds empty cells"),
    "nothing": (table(), "no column besides 'key'"),
    "no row": (pa.table({"key": pa.array([], pa.string()), "a": pa.array([], pa.int64())}), "the table has no row"),
    "built-in": (table(["clip0"], width=[1]), "has a column 'width'"),
    "source": (table(["clip0"], source=["x"]), "has a column 'source'"),
    "binary": (table(["clip0"], a=[b"x"]), "the column 'a' of the table holds binary, which JSON has no form for"),
    "duration": (table(["clip0"], a=pa.array([1], pa.duration("ns"))), "holds duration.ns., which JSON has no"),
    "no file": ("none.parquet", "cannot read the table none.parquet"),
    "no list": ("none.txt", "is not a list"),
    "none": (7, "table must be a path"),
    "a dict": ({"key": ["clip0"], "a": [1]}, r"a pyarrow.Table, as pyarrow.table\(…\) makes of a dict"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(folder: Path, name: str) -> None:
    sv.annotate(folder, table(count=list(range(6)), vector=pa.array([[1.0, 2.0]] * 6, pa.list_(pa.float32(), 2))))
    before = digests(folder)
    given, said = MISTAKES[name]
    with pytest.raises(InputError, match=said) as found:
        sv.annotate(folder, given)
    assert "\n" not in str(found.value)
    assert digests(folder) == before


def test_keys_repeated_across_shards(folder: Path) -> None:
    for shard in (2, 3):
        path = Path(sv.Dataset.open(folder).shard_path(shard, "parquet"))
        rows = pq.read_table(path)
        pq.write_table(rows.set_column(0, rows.schema.field(0), pa.array(["same", f"clip{shard}x"])), path)
    with pytest.raises(DatasetError, match="holds the clip 'same' more than once"):
        sv.annotate(folder, table(["same"], a=[1]))


def test_an_overlay_that_is_missing(folder: Path) -> None:
    sv.annotate(folder, table(a=list(range(6))))
    (overlay,) = folder.glob("columns-*.parquet")
    overlay.unlink()
    for call in (lambda: sv.annotate(folder, table(b=list(range(6)))), lambda: sv.forget(folder, ["clip0"])):
        with pytest.raises(DatasetError, match=r"columns-1-.*with the columns a, is missing"):
            call()
    assert sv.Dataset.open(folder, revision=0)
    (problem,) = sv.verify(folder, progress=False).problems
    assert "is missing" in problem.what


def test_thirty_revisions_read_like_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(30):
        sv.annotate(folder, table([f"clip{n % CLIPS}"], note=[n]))
    reads: list[str] = []
    real = filesystem.read_bytes
    monkeypatch.setattr(
        filesystem, "read_bytes", lambda path, **options: reads.append(str(path)) or real(path, **options)
    )
    dataset = sv.Dataset.open(folder)
    assert dataset.columns.get("note").to_pylist() == [24, 25, 26, 27, 28, 29]
    assert len(dataset.manifest.overlays) == 1
    files = [dataset.shard_path(s, "parquet") for s in range(len(dataset.shards))]
    assert sorted(reads) == sorted([str(folder / "dataset.json"), *files])
    assert sv.Dataset.open(folder, revision=20).columns.get("note").to_pylist() == [18, 19, 14, 15, 16, 17]


@pytest.mark.parametrize("purged", [False, True])
def test_forgotten_clips(folder: Path, purged: bool) -> None:
    """Of purged ones nothing comes back, also where a table still has them."""
    sv.forget(folder, ["clip2"], purge=purged)
    report = sv.annotate(folder, table(a=[f"words of {n}" for n in range(6)]))
    assert (report.clips, report.purged) == ((5, 1) if purged else (6, 0))
    assert column(folder, "a") == [None if purged and n == 2 else f"words of {n}" for n in range(6)]


def test_killed_anywhere(folder: Path, tmp_path: Path) -> None:
    """It is the dataset of before, or the new one; and the same call ends it."""
    destination = tmp_path / "killed" / "ds"
    for at in range(1, 100):
        shutil.rmtree(destination.parent, ignore_errors=True)
        shutil.copytree(folder, destination)
        code = die_before_change(at, destination, lambda: sv.annotate(destination, table(a=[1] * 6)))
        done = read_manifest(str(destination)).revision == 1
        assert ("a" in sv.Dataset.open(destination).columns.names) == done
        assert "a" not in sv.Dataset.open(destination, revision=0).columns.names
        assert code in (0, 9)
        sv.annotate(destination, table(a=[2] * 6))
        assert column(destination, "a") == [2] * 6
        assert len(list(destination.glob("columns-*"))) == 1 + done
        assert not list(destination.rglob(".*"))
        if code == 0:
            return
    pytest.fail("it never finished")


def test_a_full_disk_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")

    before = digests(folder)
    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OSError, match=r"No space left on device; free some.*the dataset is as it was") as error:
        sv.annotate(folder, table(a=[1] * 6))
    assert error.value.filename == str(folder)
    assert digests(folder) == before


def test_a_file_system_that_is_read_only_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the temporary file that could not be written there."""

    def mkdir(path: str, *_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with pytest.raises(OSError, match="Read-only file system; mount it for writing") as error:
        sv.annotate(folder, table(a=[1] * 6))
    assert error.value.filename == str(folder)


def test_columns_are_read_without_a_cache_that_cannot_be_used(folder: Path, tmp_path: Path) -> None:
    sv.annotate(folder, table(label=list(range(CLIPS)), a=[f"a {n}" for n in range(CLIPS)]))
    with website() as site:
        for file in folder.rglob("*"):
            if file.is_file():
                site.files[f"/set/{file.relative_to(folder)}"] = file.read_bytes()
        with ShardCache(tmp_path / "cache", limit_bytes=1 << 30) as cache:
            shutil.rmtree(tmp_path / "cache")
            (tmp_path / "cache").write_text("a file, where a folder was")
            dataset = sv.Dataset.open(f"{site.url}/set", cache=cache)
            assert dataset.clips.label.tolist() == list(range(CLIPS))
            assert dataset.columns.get("a").to_pylist() == [f"a {n}" for n in range(CLIPS)]


def test_on_s3(folder: Path, tmp_path: Path, s3_bucket: str) -> None:
    path = upload(folder, f"s3://{s3_bucket}/annotate")
    sv.annotate(path, table(a=list(range(6))))
    sv.annotate(path, table(["clip0"], a=[9]))
    assert column(path, "a") == [9, 1, 2, 3, 4, 5]
    assert column(path, "a", revision=1) == [0, 1, 2, 3, 4, 5]
    loader = sv.StreamLoader(
        path, batch_size=6, sampling=sv.Window(2), device="cpu", columns=["a"], cache_dir=tmp_path / "cache"
    )
    (batch,) = loader
    assert sorted(batch["a"].tolist()) == [1, 2, 3, 4, 5, 9]


def test_a_column_of_the_user_that_is_named_as_one_of_packing(tmp_path: Path) -> None:
    """A list that was packed may have one; new values of it were refused, as no column could have that name."""
    folder = pack_recipes({"a": SMALL, "b": SMALL}, tmp_path, {"label": [0, 1], "width": [1, 2]})
    report = sv.annotate(folder, pa.table({"key": ["b"], "width": [5]}))
    assert (report.added, report.replaced) == ((), ("width",))
    dataset = sv.Dataset.open(folder)
    assert dataset.to_arrow(["meta.width", "width"]).to_pydict() == {"meta.width": [1, 5], "width": [96, 96]}
    with pytest.raises(InputError, match="a column 'frames', a name that no new column can have: rename it"):
        sv.annotate(folder, pa.table({"key": ["b"], "frames": [5]}))
