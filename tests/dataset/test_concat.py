"""Several datasets read as one."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.clip_table import Categories, ClipTable
from streamvid.dataset.concat import ConcatDataset
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.selection import select_rows
from streamvid.errors import DatasetError, InputError
from streamvid.fetch.shard_access import ShardAccess
from streamvid.packing.pack import pack
from streamvid.storage.shard_cache import ShardCache
from tests.support.packed import make_videos, upload
from tests.support.tables import dataset_of

LABELS = {
    "first": "path,label,caption\na/one.mp4,dog,runs\na/two.mkv,cat,sleeps\n",
    "second": "path,label,score\nb/clip2.mov,dog,0.5\nb/clip10.mp4,ant,1.5\na/one.mp4,dog,2.5\n",
}
INPUTS = {"first": ["a"], "second": ["b", "a/one.mp4"], "third": ["top.avi", "slow.mp4"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three datasets: two with classes of their own, that both have a clip `one`, and one without labels."""
    root = tmp_path_factory.mktemp("joined")
    make_videos(root / "in")
    for name, inputs in INPUTS.items():
        # The lists' folder is the one packed, so that paths mean the same in each.
        labels = root / "in" / f"{name}.csv"
        if name in LABELS:
            labels.write_text(LABELS[name])
        pack(
            [root / "in" / given for given in inputs],
            root / name,
            labels=labels if name in LABELS else None,
            shard_size=1 if name == "first" else 1 << 30,
            progress=False,
        )
    return root


def opened(folder: Path) -> list[Dataset]:
    return [Dataset.open(folder / name) for name in INPUTS]


def test_everything_is_as_in_the_parts(folder: Path) -> None:
    parts = opened(folder)
    joined = ConcatDataset(parts)
    source: ClipSource = joined
    assert len(source) == sum(len(part) for part in parts) == 7
    assert [part.name for part in joined.parts] == list(INPUTS)
    assert [(part.first, part.rows, part.first_shard) for part in joined.parts] == [(0, 2, 0), (2, 3, 2), (5, 2, 3)]
    assert joined.part_of(np.arange(7)).tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert joined.part_of([6, 0]).dtype == np.int32
    assert joined.is_local
    assert joined.path == " + ".join(str(folder / name) for name in INPUTS)
    for part, dataset in zip(joined.parts, parts, strict=True):
        assert part.path == dataset.path
        for row in range(len(dataset)):
            i = part.first + row
            for field in fields(ClipTable):
                if field.name not in ("row", "shard", "label", "key", "stsd_id", "stsds", "files"):
                    assert getattr(joined.clips, field.name)[i] == getattr(dataset.clips, field.name)[row], field.name
            assert joined.key(i).endswith(dataset.key(row))
            assert joined.clips.stsds[joined.clips.stsd_id[i]] == dataset.clips.stsds[dataset.clips.stsd_id[row]]
            s, own = int(joined.clips.shard[i]), int(dataset.clips.shard[row])
            assert s == part.first_shard + own
            assert joined.shards[s] == dataset.shards[own]
            for extension in ("tar", "parquet"):
                assert joined.shard_path(s, extension) == dataset.shard_path(own, extension)
            assert joined.rows(s).start - part.first == dataset.rows(own).start
            assert joined.rows(s).stop - part.first == dataset.rows(own).stop
            for name in ("pts", "offset", "size", "flags", "crc32c"):
                assert np.array_equal(getattr(joined.index(i), name), getattr(dataset.index(row), name))
    assert joined.clips.files is None
    for name, column in vars(joined.clips).items():
        if name == "files":
            continue
        assert len(column) in (7, len(joined.clips.stsds))
        if isinstance(column, np.ndarray):
            assert column.dtype in (np.int32, np.int64, np.uint32)
    for beyond in (-1, 7):
        with pytest.raises(InputError, match="from 0 to 6"):
            joined.index(beyond)


def test_types_of_arrays_stay(folder: Path) -> None:
    parts = opened(folder)
    joined = ConcatDataset(parts)
    for field in fields(ClipTable):
        a, b = getattr(joined.clips, field.name), getattr(parts[0].clips, field.name)
        assert type(a) is type(b)
        if isinstance(b, np.ndarray):
            assert a.dtype == b.dtype
        if isinstance(b, Categories):
            assert a.codes.dtype == b.codes.dtype
            assert len(set(a.names)) == len(a.names)


def test_classes_are_united(folder: Path) -> None:
    joined = ConcatDataset(opened(folder))
    assert joined.classes == ("ant", "cat", "dog")
    classes = [joined.classes[n] if n >= 0 else None for n in joined.clips.label.tolist()]
    assert dict(zip(joined.clips.key, classes, strict=True)) == {
        "first/one": "dog", "two": "cat", "clip2": "dog", "clip10": "ant", "second/one": "dog",
        "top": None, "slow": None,
    }  # fmt: skip
    assert joined.to_arrow(["class"])["class"].to_pylist() == classes


def test_columns_of_all_parts(folder: Path) -> None:
    joined = ConcatDataset(opened(folder))
    assert set(joined.columns.names) > {"dataset", "caption", "score"}
    assert joined.columns.batch("dataset", [0, 2, 6]) == ["first", "second", "third"]
    assert joined.columns.batch("caption", [0, 2, 6]) == ["runs", "", ""]
    assert np.isnan(joined.columns.batch("score", [0])).all()
    rows = select_rows(joined, where='class == "dog" and (dataset == "first" or score > 1)')
    assert [joined.key(row) for row in rows] == ["first/one", "second/one"]


def test_parts_by_themselves(folder: Path) -> None:
    parts = opened(folder)
    joined = ConcatDataset(parts)
    for ours, given in zip(joined.datasets, parts, strict=True):
        assert ours.clips.key == given.clips.key
        assert ours.classes == given.classes
        assert ours.clips.label.tolist() == given.clips.label.tolist()
        assert ours.clips.shard.tolist() == given.clips.shard.tolist()
        assert np.shares_memory(ours.clips.mp4_offset, joined.clips.mp4_offset)
        for i in range(len(given)):
            assert np.array_equal(ours.index(i).pts, given.index(i).pts)
    assert select_rows(joined.datasets[1], keys=["one"]).tolist() == [
        row for row, key in enumerate(parts[1].clips.key) if key == "one"
    ]


def test_pickling(folder: Path) -> None:
    joined = ConcatDataset({"x": Dataset.open(folder / "first"), "y": Dataset.open(folder / "second")})
    small = pickle.dumps(joined)
    for i in range(5):
        joined.index(i)
    joined.to_arrow()
    again = pickle.loads(pickle.dumps(joined))
    assert pickle.dumps(joined) == small
    assert len(small) < 1.1 * sum(len(pickle.dumps(Dataset.open(folder / name))) for name in ("first", "second"))
    assert again.parts == joined.parts
    assert again.classes == joined.classes
    assert again.clips.key == joined.clips.key
    assert again.clips.label.tolist() == joined.clips.label.tolist()
    assert np.array_equal(again.index(3).offset, joined.index(3).offset)


def test_names_of_parts_are_made_unique() -> None:
    one, two = dataset_of([{}], name="a"), dataset_of([{}], name="b")
    assert [part.name for part in ConcatDataset([one, two, one, one]).parts] == ["a", "b", "a-2", "a-3"]
    assert ConcatDataset([one, one]).clips.key == ["a/clip0", "a-2/clip0"]
    assert [part.name for part in ConcatDataset({"x": one, "y": one}).parts] == ["x", "y"]
    assert [part.name for part in ConcatDataset([dataset_of([{}], name="a-2"), one, one]).parts] == ["a-2", "a", "a-3"]
    clashing = ConcatDataset([dataset_of([{}] * 2, keys=["p", "q"], name="a"), dataset_of([{}], keys=["q"], name="b")])
    assert clashing.clips.key == ["p", "a/q", "b/q"]
    assert ConcatDataset([one]).clips.key == ["clip0"]


def test_labels_that_do_and_do_not_go_together() -> None:
    text = dataset_of([{}, {}], labels=[0, None], classes=["b"], name="text")
    more = dataset_of([{}, {}], labels=[1, 0], classes=["c", "a"], name="more")
    numbers = dataset_of([{}], labels=[5], name="numbers")
    bare = dataset_of([{}], name="bare")
    joined = ConcatDataset([bare, text, more])
    assert joined.classes == ("a", "b", "c")
    assert joined.clips.label.tolist() == [-1, 1, -1, 0, 2]
    joined = ConcatDataset([numbers, bare, numbers])
    assert joined.classes is None
    assert joined.clips.label.tolist() == [5, -1, 5]
    with pytest.raises(InputError, match="'text' has class names and 'numbers' has class numbers"):
        ConcatDataset([numbers, bare, text])
    with pytest.raises(DatasetError, match="has label 3, but the dataset has 1 classes"):
        ConcatDataset([text, dataset_of([{}], labels=[3], classes=["b"])])


def test_other_values_are_not_concatenated(folder: Path) -> None:
    for wrong, said in (
        ([], "no datasets to concatenate"),
        ({}, "no datasets to concatenate"),
        ([str(folder / "first")], "only a Dataset can be concatenated"),
        ([ConcatDataset(opened(folder))], "only a Dataset can be concatenated"),
    ):
        given: Any = wrong
        with pytest.raises(InputError, match=said):
            ConcatDataset(given)


def test_damage_names_the_part(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "second", tmp_path / "second")
    joined = ConcatDataset([Dataset.open(folder / "first"), Dataset.open(tmp_path / "second")])
    (tmp_path / "second/shards/00000000.packets").unlink()
    assert len(joined.index(0)) > 0
    with pytest.raises(DatasetError, match=rf"shard 00000000 of the dataset {tmp_path}/second cannot be read"):
        joined.index(3)


def test_local_and_remote_shards(folder: Path, tmp_path: Path) -> None:
    paths = (folder / "first", upload(folder / "second", "memory://joined/second"))
    with ShardCache(tmp_path / "cache", limit_bytes=1 << 30) as cache:
        joined = ConcatDataset([Dataset.open(path, cache=cache) for path in paths])
        assert not joined.is_local
        assert len(joined.index(4)) == len(Dataset.open(folder / "second").index(2))
        access = ShardAccess(joined, cache=cache, limit_bytes=1 << 30)
        access.prefetch(range(3))
        with access.open([0, 2]) as path_of:
            assert path_of(0) == joined.shard_path(0)
            assert Path(path_of(2)).read_bytes() == (folder / "second/shards/00000000.tar").read_bytes()
