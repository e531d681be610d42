"""Columns by name: built-in ones, and the user's metadata."""

from __future__ import annotations

import importlib.util
import json
import pickle
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.dataset import concat
from streamvid.dataset.concat import ConcatDataset
from streamvid.dataset.dataset import Dataset
from streamvid.errors import DatasetError, InputError
from tests.support.packed import NATURAL_ORDER, VIDEOS, pack_recipes
from tests.support.tables import dataset_of

LABELS = """path,label,caption,score,take,good,width
a/one.mp4,dog,a dog runs,0.5,1,true,wide
a/two.mkv,cat,"a cat, asleep",,2,false,narrow
b/clip2.mov,dog,a hot dog,1.5,3,true,
b/clip10.mp4,,nothing,2.5,4,true,wide
top.avi,bird,"a bird, sings",3.5,,false,wide
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root = tmp_path_factory.mktemp("columns")
    (root / "list.csv").write_text(LABELS)
    return Dataset.open(pack_recipes(VIDEOS, root, labels=root / "list.csv"))


def test_packed_columns(packed: Dataset) -> None:
    found = packed.to_arrow()
    assert found.num_rows == len(packed)
    rows = {row["source"]: row for row in found.to_pylist()}
    assert list(rows) == NATURAL_ORDER
    one, turned, bare = rows["a/one.mp4"], rows["b/clip10.mp4"], rows["slow.mp4"]
    assert (one["codec"], one["width"], one["height"], one["frames"]) == ("h264", 96, 64, 12)
    assert one["class"] == "dog"
    assert one["label"] == packed.classes.index("dog") if packed.classes else False
    assert one["seconds"] == pytest.approx(0.4)
    assert one["fps"] == pytest.approx(30)
    assert (turned["rotation"], turned["width"], turned["height"]) == (90, 96, 64)
    assert (turned["upright_width"], turned["upright_height"]) == (64, 96)
    assert turned["class"] is None
    assert turned["label"] is None
    assert rows["a/two.mkv"]["caption"] == "a cat, asleep"
    assert rows["a/two.mkv"]["score"] is None
    assert one["meta.width"] == "wide"
    for name in ("caption", "score", "take", "good", "meta.width", "class"):
        assert bare[name] is None
    types = {field.name: field.type for field in found.schema}
    assert types["take"] == pa.int64()
    assert types["score"] == pa.float64()
    assert types["good"] == pa.bool_()
    assert types["caption"] == pa.large_string()


def test_chosen_columns_in_their_order(packed: Dataset) -> None:
    assert packed.to_arrow(["caption", "key"]).schema.names == ["caption", "key"]
    assert packed.to_arrow(["meta.caption"])["meta.caption"][0].as_py() == "a dog runs"
    assert packed.to_arrow([]).num_columns == 0
    with pytest.raises(InputError, match=r"no column 'captoin': did you mean 'caption'\? the columns are key, source"):
        packed.to_arrow(["captoin"])
    with pytest.raises(InputError, match="columns must be a list of column names; it is 3"):
        packed.to_arrow(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a column is named by a text; it is 3"):
        packed.to_pandas(["key", 3])  # type: ignore[list-item]
    with pytest.raises(InputError, match=r"write \['key'\]"):
        packed.to_arrow("key")


def test_no_classes_no_class_column() -> None:
    with pytest.raises(InputError, match="no column 'class'"):
        dataset_of([{}], labels=[3]).to_arrow(["class"])


def test_metadata_are_concatenated_when_they_are_needed_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    concat_columns = concat.concat_columns

    def counting(*given: Any) -> Any:
        calls.append(1)
        return concat_columns(*given)

    monkeypatch.setattr(concat, "concat_columns", counting)
    one = dataset_of([{"a": 1}, {"a": 2}])
    dataset = ConcatDataset([one, one])
    dataset.to_arrow(["key", "seconds", "fps"])
    dataset.columns.batch("frames", [0])
    assert not calls
    for _ in range(2):
        dataset.to_arrow(["a"])
        dataset.columns.batch("a", [1])
    assert len(calls) == 1


def test_to_pandas(packed: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["key", "seconds", "caption"]
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(InputError, match="to_pandas needs the package pandas: pip install pandas"):
            packed.to_pandas(names)
    else:
        assert packed.to_pandas(names).equals(packed.to_arrow(names).to_pandas())


def test_repr(packed: Dataset) -> None:
    duration = timedelta(seconds=round(packed.manifest.seconds))
    rest = f"clips=6, shards=1, duration='{duration}')"
    assert repr(packed) == f"Dataset('{packed.path}', {rest}"
    assert (
        repr(dataset_of([{}] * 2, duration=[3600, 61]))
        == "Dataset('/made/made', clips=2, shards=1, duration='1:01:01')"
    )
    both = ConcatDataset([packed, packed])
    assert repr(both).startswith(f"ConcatDataset('{packed.path} + {packed.path}', clips=12, shards=2, duration=")


def test_pickling_leaves_columns_behind() -> None:
    dataset = dataset_of([{"a": f"text {n}"} for n in range(100)])
    small = len(pickle.dumps(dataset))
    dataset.to_arrow()
    again = pickle.dumps(dataset)
    assert len(again) == small
    assert pickle.loads(again).columns.batch("a", [99]) == ["text 99"]


TYPES: dict[str, tuple[list[Any], Any, list[Any]]] = {
    "whole numbers": ([1, None, -3], pa.int64(), [1, None, -3]),
    "whole numbers and others": ([1, 2.5], pa.float64(), [1.0, 2.5]),
    "large and a fraction": ([(1 << 53) + 1, 0.5], pa.float64(), [float(1 << 53), 0.5]),
    "beyond float": ([1, 10**400], pa.large_string(), ["1", "1" + "0" * 400]),
    "truth": ([True, None], pa.bool_(), [True, None]),
    "truth and numbers": ([True, 1], pa.large_string(), ["true", "1"]),
    "text": (["a", ""], pa.large_string(), ["a", ""]),
    "dates stay text": (["2024-01-01"], pa.large_string(), ["2024-01-01"]),
    "text and numbers": (["a", 1, None, 1.5], pa.large_string(), ["a", "1", None, "1.5"]),
    "objects": ([{"é": [1, "x"]}], pa.large_string(), ['{"é":[1,"x"]}']),
    "lists": ([[1, None], []], pa.list_(pa.int64()), [[1, None], []]),
    "lists of numbers": ([[1], [2.5], None], pa.list_(pa.float64()), [[1.0], [2.5], None]),
    "lists of lists": ([[[1], [2, 3]]], pa.list_(pa.list_(pa.int64())), [[[1], [2, 3]]]),
    "lists of texts": ([["a"], ["b", "c"]], pa.list_(pa.large_string()), [["a"], ["b", "c"]]),
    "mixed lists": ([["a", 1], ["b"]], pa.large_string(), ['["a",1]', '["b"]']),
    "lists and none": ([[1], 2], pa.large_string(), ["[1]", "2"]),
    "empty lists": ([[], []], pa.list_(pa.null()), [[], []]),
    "nothing": ([None, None], pa.null(), [None, None]),
}


@pytest.mark.parametrize("name", TYPES)
def test_types_of_fields(name: str) -> None:
    values, kind, expected = TYPES[name]
    column = dataset_of([{"x": value} for value in values] + [{}]).to_arrow(["x"])["x"]
    assert column.type == kind
    assert column.to_pylist() == [*expected, None]


def test_not_a_number_is_missing() -> None:
    column = dataset_of(['{"x": NaN}', '{"x": Infinity}', '{"x": 1e999}', '{"x": 2.0}']).to_arrow(["x"])["x"]
    assert column.to_pylist() == [None, None, None, 2.0]
    column = dataset_of(['{"x": {"y": [-1e999, 2e3, NaN]}}']).to_arrow(["x"])["x"]
    assert column.to_pylist() == ['{"y":[null,2000.0,null]}']


def test_batches_round_no_whole_number() -> None:
    dataset = dataset_of([{"whole": (1 << 53) + 1, "gaps": (1 << 53) + 1, "fits": 1 << 53}, {"whole": 1}])
    assert dataset.columns.batch("whole", [0]).tolist() == [(1 << 53) + 1]  # type: ignore[union-attr]
    assert dataset.columns.batch("fits", [0]).tolist() == [1 << 53]  # type: ignore[union-attr]
    with pytest.raises(DatasetError, match=r"'gaps' has whole numbers beyond 2\^53 and clips without one.*as text"):
        dataset.columns.batch("gaps", [0])


def test_a_label_that_is_no_class() -> None:
    with pytest.raises(DatasetError, match="clip 'clip1' has label 2, but the dataset has 2 classes"):
        dataset_of([{}, {}], labels=[0, 2], classes=["a", "b"]).to_arrow(["class"])


def test_clips_without_duration_have_no_rate() -> None:
    dataset = dataset_of([{}, {}], duration=[0, 2], frames=[1, 4])
    assert dataset.to_arrow(["fps", "seconds"]).to_pydict() == {"fps": [None, 2.0], "seconds": [0.0, 2.0]}


def test_for_batches() -> None:
    metas: list[dict[str, Any]] = [
        {"whole": 1, "gaps": 1, "part": 0.5, "flag": True, "maybe": True, "text": "a", "list": [1], "never": None},
        {"whole": 2, "part": 1.5, "flag": False, "list": None},
        {"whole": 3, "gaps": 3, "part": 2.5, "flag": True, "maybe": False, "text": "", "list": [2, 3]},
    ]
    dataset = dataset_of(metas, labels=[0, None, 1], classes=["cat", "dog"])
    rows = np.array([2, 0, 0])
    found: Any = {name: dataset.columns.batch(name, rows) for name in (*metas[0], "label", "class", "frames")}
    for name, dtype, values in (
        ("whole", np.int64, [3, 1, 1]),
        ("gaps", np.float64, [3, 1, 1]),
        ("part", np.float64, [2.5, 0.5, 0.5]),
        ("flag", np.bool_, [True, True, True]),
        ("maybe", np.float64, [0, 1, 1]),
        ("label", np.float64, [1, 0, 0]),
        ("frames", np.int64, [1, 1, 1]),
    ):
        assert found[name].dtype == dtype
        assert found[name].tolist() == values
    assert found["text"] == ["", "a", "a"]
    assert found["class"] == ["dog", "cat", "cat"]
    assert found["list"] == [[2, 3], [1], [1]]
    assert found["never"] == [None, None, None]
    assert np.isnan(dataset.columns.batch("gaps", [1])).tolist() == [True]
    assert dataset.columns.batch("text", [1]) == [""]
    assert dataset.columns.batch("list", [1]) == [None]
    assert len(dataset.columns.batch("whole", [])) == 0
    with pytest.raises(InputError, match="no column 'texts': did you mean 'text'"):
        dataset.columns.batch("texts", rows)


def test_what_comes_does_not_depend_on_the_rows() -> None:
    dataset = dataset_of([{"n": 1}, {}])
    for rows in ([0], [1], [0, 1], []):
        batch = dataset.columns.batch("n", rows)
        assert isinstance(batch, np.ndarray)
        assert batch.dtype == np.float64


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=5,
)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "meta.a", "", "é"]), JSON), min_size=1, max_size=8))
def test_any_metadata(metas: list[dict[str, Any]]) -> None:
    dataset = dataset_of(metas)
    fields = list(dict.fromkeys(name for meta in metas for name in meta))
    assert list(dataset.columns.meta.names) == fields
    for name in fields:
        column = dataset.columns.meta_column(name)
        assert len(column) == len(metas)
        for meta, value in zip(metas, column.to_pylist(), strict=True):
            given_value = meta.get(name)
            if given_value is None:
                assert value is None
            elif isinstance(value, str) and not isinstance(given_value, str):
                assert json.loads(value) == json.loads(json.dumps(given_value))
            elif isinstance(given_value, str | bool):
                assert value == given_value
        dataset.columns.batch(name, range(len(metas)))


def test_a_hundred_thousand_clips() -> None:
    metas: list[dict[str, Any] | str] = [
        json.dumps({"caption": f"clip {n} of a dog", "score": n / 7, "id": n, "tags": ["a", str(n % 5)]})
        for n in range(100_000)
    ]
    dataset = dataset_of(metas)
    found = dataset.to_arrow()
    assert found["id"].to_pylist()[::9999] == list(range(0, 100_000, 9999))
    assert dataset.columns.batch("caption", [99_999]) == ["clip 99999 of a dog"]


def test_pickled_datasets_on_disk_have_columns(packed: Dataset, tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(packed)).columns.batch("caption", [0]) == ["a dog runs"]
