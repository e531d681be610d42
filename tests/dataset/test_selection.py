"""Selecting by expressions and keys, and weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from streamvid.dataset.concat import ConcatDataset
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.selection import MAX_WEIGHT, repeats, select_rows
from streamvid.errors import InputError
from streamvid.packing.pack import pack
from streamvid.plan.sample_id import MAX_REPEATS
from tests.support.packed import make_videos
from tests.support.tables import dataset_of

# Expressions


def test_expressions(small: Dataset) -> None:
    for where, rows in (
        (pc.field("label") == 1, [0, 2]),
        (~(pc.field("label") == 1), [1]),
        (pc.field("seconds").isin([1.0, 4.0]), [0, 3]),
        ((pc.field("codec") == "x") & (pc.field("class") == "cat"), [1]),
        (pc.field("codec").isin(["x", "y"]), [0, 1, 2, 3]),
        (pc.match_substring(pc.field("caption"), "dog"), [0]),
        (pc.field("meta.width") == "wide", [1]),
        (pc.field("score").is_null(), [1]),
        (pc.field("good"), [0]),
        (pc.scalar(True), [0, 1, 2, 3]),
    ):
        assert select_rows(small, where=where).tolist() == rows, where


def test_expressions_refused(small: Dataset) -> None:
    with pytest.raises(InputError, match=r"no column 'lable' for .*did you mean 'label'"):
        select_rows(small, where=pc.field("lable") == 1)
    for where in (pc.field("label") == "x", pc.field("label"), pc.field("label") + 1):
        with pytest.raises(InputError, match="cannot be evaluated"):
            select_rows(small, where=where)
    for wrong in (1, True, ["label == 1"], b"label", len):
        with pytest.raises(InputError, match="where must be text or"):
            select_rows(small, where=wrong)


# Keys


def test_keys(small: Dataset, tmp_path: Path) -> None:
    assert select_rows(small, keys=["clip2", "clip0", "clip2"]).tolist() == [0, 2]
    assert select_rows(small, keys=[]).tolist() == []
    column: Any = small.to_arrow(["key"])["key"]
    assert select_rows(small, keys=column[1:]).tolist() == [1, 2, 3]
    assert select_rows(small).tolist() == [0, 1, 2, 3]
    assert select_rows(small, keys=("clip2", "clip1"), where="label == 0").tolist() == [1]
    files = {
        "keys.txt": "\ufeffclip2\n\n  clip0 \r\nclip2\n",
        "keys": "clip2\nclip0",
        "keys.csv": "split,key\ntrain,clip2\nval,clip0\n",
        "keys.jsonl": '{"key": "clip2", "frames": 3}\n{"frames": 4, "key": "clip0"}\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        assert select_rows(small, keys=tmp_path / name).tolist() == [0, 2]
        assert select_rows(small, keys=str(tmp_path / name)).tolist() == [0, 2]
        (tmp_path / name).write_text("\n")
        assert name == "keys.csv" or select_rows(small, keys=tmp_path / name).tolist() == []  # ls --json, of no clips
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        pq.write_table(pa.table({"key": pa.array(["clip2", None, "clip0"], type=kind)}), tmp_path / "keys.parquet")
        assert select_rows(small, keys=tmp_path / "keys.parquet").tolist() == [0, 2]


def test_keys_of_digits_stay_text(tmp_path: Path) -> None:
    dataset = dataset_of([{}, {}], keys=["007", "7"])
    (tmp_path / "keys.csv").write_text("key\n007\n")
    assert select_rows(dataset, keys=tmp_path / "keys.csv").tolist() == [0]


def test_keys_refused(small: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"4 of the 5 keys are not in the dataset: 'a', 'b', 'c', …; correct them"):
        select_rows(small, keys=["a", "b", "clip1", "c", "d"])
    with pytest.raises(InputError, match=r"cannot read the keys.*a list in Python"):
        select_rows(small, keys="clip1")
    with pytest.raises(InputError, match="one of them is 3"):
        select_rows(small, keys=["clip1", 3])  # type: ignore[list-item]
    for name, data, said in (
        ("x.csv", b"name\nclip1\n", "no single column 'key' but name: name the column of keys so"),
        ("y.csv", b"key,key\nclip1,clip1\n", "no single column 'key'"),
        ("z.csv", b"", "cannot read the keys in"),
        ("v.jsonl", b'{"name": "clip1"}\n', "no single column 'key'"),
        ("u.jsonl", b'{"key": 1}\n', "changed from string to number"),
        ("x.parquet", b"junk", "cannot read the keys in"),
        ("x.txt", b"\xff\xfe\x00", "cannot read the keys in"),
        ("w.txt", b"clip1\nnone\n", r"1 of the 2 keys of .*w\.txt are not in the dataset: 'none'"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=said):
            select_rows(small, keys=tmp_path / name)
    pq.write_table(pa.table({"key": [1]}), tmp_path / "n.parquet")
    with pytest.raises(InputError, match="holds int64, not text"):
        select_rows(small, keys=tmp_path / "n.parquet")


def test_keys_of_joined_datasets() -> None:
    joined = ConcatDataset({"a": dataset_of([{}, {}]), "b": dataset_of([{}], keys=["clip1"])})
    assert select_rows(joined, keys=["b/clip1", "clip0"]).tolist() == [0, 2]
    assert select_rows(joined, where='dataset == "b"').tolist() == [2]
    with pytest.raises(InputError, match="'clip1'; write 'a/clip1' or 'b/clip1'"):
        select_rows(joined, keys=["clip1"])


# Weights

ALL = np.arange(4)


def test_weights_by_label(small: Dataset) -> None:
    cases: list[tuple[dict[Any, Any], list[float]]] = [
        ({"dog": 2.5}, [2.5, 1, 2.5, 1]),
        ({1: 2.5, 0: 0}, [2.5, 0, 2.5, 1]),
        ({np.int64(1): np.float32(2.5), "cat": 3}, [2.5, 3, 2.5, 1]),
        ({None: 0}, [1, 1, 1, 0]),
        ({}, [1, 1, 1, 1]),
        ({"dog": MAX_WEIGHT}, [MAX_WEIGHT, 1, MAX_WEIGHT, 1]),
    ]
    for weights, expected in cases:
        found = repeats(small, ALL, weights)
        assert found.dtype == np.float64
        assert found.tolist() == expected
    assert repeats(small, np.array([3, 1]), {"cat": 4}).tolist() == [1, 4]
    assert repeats(small, np.array([], dtype=np.int64), {"cat": 4}).tolist() == []
    assert repeats(dataset_of([{}, {}], labels=[7, 2**31 - 1]), np.arange(2), {7: 3}).tolist() == [3, 1]


def test_balanced_weights(small: Dataset) -> None:
    assert repeats(small, np.array([0, 1, 2]), "balanced").tolist() == [0.75, 1.5, 0.75]
    dataset = dataset_of([{}] * 100, labels=[0] * 90 + [5] * 10)
    found = repeats(dataset, np.arange(100), "balanced")
    assert found.mean() == pytest.approx(1)
    assert found[:90].sum() == pytest.approx(found[90:].sum())
    with pytest.raises(InputError, match=r"1 of 4 clips, such as 'clip3', have no label to balance by"):
        repeats(small, ALL, "balanced")


def test_weights_by_column_array_and_function(small: Dataset) -> None:
    rows = np.array([2, 0])
    assert repeats(small, rows, "score").tolist() == [2.5, 0.5]
    assert repeats(small, rows, "seconds").tolist() == [3, 1]
    assert repeats(small, rows, [1, 2, 3, 4]).tolist() == [3, 1]
    assert repeats(small, rows, np.array([1, 2, 3, -4])).tolist() == [3, 1], "clips that do not take part are not asked"
    assert repeats(small, rows, lambda dataset, rows: dataset.clips.seconds[rows] / 2).tolist() == [1.5, 0.5]


REFUSED_WEIGHTS: list[tuple[Any, str]] = [
    ({"dgo": 1}, "class 'dgo', which is not in the dataset: did you mean 'dog'"),
    ({"zebra": 1}, "there are cat, dog"),
    ({2: 1}, "label 2, which no clip"),
    ({-1: 1}, "label -1, which no clip"),
    ({True: 1}, "label True"),
    ({1.5: 1}, "one of them is by 1.5"),
    ({"dog": 1, 1: 1}, "label 1 twice"),
    ({"dog": -1}, "weight of 'dog' must be a number from 0 to 2000, it is -1"),
    ({"dog": math.nan}, "weight of 'dog'"),
    ({"dog": math.inf}, "weight of 'dog'"),
    ({"dog": MAX_WEIGHT + 1}, "weight of 'dog'"),
    ({"dog": "2"}, "weight of 'dog'"),
    ({"dog": None}, "weight of 'dog'"),
    ({"dog": 10**400}, "weight of 'dog'"),
    ({"dog": 0, "cat": 0, None: 0}, "weights of all 4 clips are 0"),
    ("sore", r"weights: there is no column 'sore': did you mean 'score'.*or 'balanced'"),
    ("caption", "column 'caption' holds large_string, not numbers"),
    ("score", "clip 'clip1' has no weight"),
    ("take", "clip 'clip3' has weight -4"),
    ([1, 2, 3], r"shape \[3\], but there are 4 clips of the dataset"),
    ([[1, 2, 3, 4]], r"shape \[1, 4\]"),
    ([1, 2, [3], 4], "weights have no numbers"),
    (["a"] * 4, "weights have no numbers"),
    ([1, 2, math.nan, 4], "clip 'clip2' has no weight"),
    ([1, 2, math.inf, 4], "clip 'clip2' has weight inf"),
    (3, r"shape \[\]"),
    (None, "weights have no numbers"),
    (lambda dataset, rows: [1], r"function of weights gave shape \[1\], but there are 4 rows"),
]


@pytest.mark.parametrize(
    ("weights", "said"), REFUSED_WEIGHTS, ids=lambda value: "function" if callable(value) else str(value)[:30]
)
def test_weights_refused(small: Dataset, weights: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        repeats(small, ALL, weights)


def test_class_names_for_numbers() -> None:
    with pytest.raises(InputError, match="labels of this dataset are numbers"):
        repeats(dataset_of([{}], labels=[0]), np.arange(1), {"dog": 2})


def test_items_can_count_that_many() -> None:
    # One more for the fraction, and one for scaling to a whole sum.
    assert MAX_WEIGHT + 2 <= MAX_REPEATS


# Many clips, and real ones


def test_a_hundred_thousand_clips() -> None:
    count = 100_000
    metas = [f'{{"caption": "clip {n} of a dog", "score": {n / 7}}}' for n in range(count)]
    dataset = dataset_of(metas, labels=[n % 10 for n in range(count)])
    where = 'label in (0, 3) and seconds >= 0.5 and not (codec == "vp9") and caption is not None and "7" in caption'
    expected = [n for n in range(count) if n % 10 in (0, 3) and "7" in str(n)]
    assert select_rows(dataset, where=where).tolist() == expected
    assert select_rows(dataset, keys=dataset.clips.key[::2]).tolist() == list(range(0, count, 2))
    assert repeats(dataset, np.arange(count), "balanced").tolist() == [1.0] * count


def test_packed(tmp_path: Path) -> None:
    make_videos(tmp_path / "in")
    (tmp_path / "labels.csv").write_text(
        "path,label,caption,score\na/one.mp4,dog,a dog runs,0.5\na/two.mkv,cat,a cat,1.5\nb/clip2.mov,dog,a hot dog,2\n"
    )
    pack([tmp_path / "in"], tmp_path / "ds", labels=tmp_path / "labels.csv", shard_size=1, progress=False)
    dataset = Dataset.open(tmp_path / "ds")
    rows = select_rows(dataset, where='class == "dog" and "dog" in caption and seconds > 0.1 and codec != "vp9"')
    assert [dataset.clips.source[row] for row in rows] == ["a/one.mp4", "b/clip2.mov"]
    assert repeats(dataset, rows, "score").tolist() == [0.5, 2]
    rows = select_rows(dataset, where="label is not None")
    assert repeats(dataset, rows, "balanced").tolist() == [0.75, 1.5, 0.75]
    assert [dataset.clips.source[r] for r in select_rows(dataset, where="upright_width < 65 and rotation == 90")] == [
        "b/clip10.mp4"
    ]
