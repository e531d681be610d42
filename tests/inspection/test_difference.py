"""Differences between two datasets."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.dataset.dataset import Dataset
from streamvid.inspection import difference
from streamvid.inspection.difference import Difference, diff
from tests.support.packed import edit_parquet, replace_packets, reseal, without


def test_the_same_videos_packed_and_in_place(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difference, "_AT_ONCE", 2)
    assert diff(places / "packed", places / "packed") == Difference((), (), (), 7, ())
    found = diff(places / "packed", places / "indexed")
    assert not found
    assert (found.same, found.unknown) == (7, ())
    assert diff(places / "fast", places / "fast").unknown == ()
    assert diff(places / "indexed", places / "fast").unknown == ()  # the same files
    unknown = diff(places / "fast", places / "packed").unknown
    assert "a_one" in {key[:5] for key in unknown}
    assert "top" not in unknown


def test_what_is_added_removed_and_changed(places: Path, tmp_path: Path) -> None:
    shutil.copytree(places / "packed", tmp_path / "set")
    old, new = Dataset.open(places / "packed"), Dataset.open(tmp_path / "set")
    for row, values in {1: {"label": 2}, 2: {"meta_score": None}, 4: {"meta_caption": "other"}}.items():
        s = int(new.clips.shard[row])
        edit_parquet(Path(new.shard_path(s, "parquet")), row - new.rows(s).start, **values)
    reseal(tmp_path / "set")
    key = [old.key(row) for row in range(7)]
    found = diff(without(old, 0), without(Dataset.open(tmp_path / "set"), 5))
    assert (found.added, found.removed, found.same) == ((key[0],), (key[5],), 2)
    assert found.changed == ((key[1], ("class",)), (key[2], ("score",)), (key[4], ("caption",)))
    assert bool(found)


def test_changed_bytes_of_a_clip_are_a_difference(places: Path, tmp_path: Path) -> None:
    """A packet of a clip changed, with all checksums that it has."""
    shutil.copytree(places / "packed", tmp_path / "set")
    row = Dataset.open(tmp_path / "set").row("top")
    replace_packets(tmp_path / "set", row, bytes)
    for other in ("packed", "indexed"):
        dataset = Dataset.open(tmp_path / "set")
        s = int(dataset.clips.shard[row])
        if other == "packed":
            edit_parquet(Path(dataset.shard_path(s, "parquet")), row - dataset.rows(s).start, sha256="0" * 64)
            reseal(tmp_path / "set")
        found = diff(tmp_path / "set", places / other)
        assert found.changed == (("top", ("video",)),)
        assert found.unknown == ()


values = st.one_of(st.none(), st.floats(width=32), st.just(float("nan")))
columns = st.sampled_from([values, st.one_of(st.none(), st.lists(values, max_size=2)), st.one_of(st.none(), st.text())])


@given(columns.flatmap(lambda one: st.lists(st.tuples(one, one), min_size=1, max_size=8)))
def test_columns_are_compared_as_python_compares_their_values(pairs: list[tuple[Any, Any]]) -> None:
    """Against Python's comparison of one value after the other."""
    kind = pa.array([value for pair in pairs for value in pair]).type
    a, b = (pa.array([pair[n] for pair in pairs], kind) for n in (0, 1))
    wanted = [repr(x) != repr(y) and x != y for x, y in zip(a.to_pylist(), b.to_pylist(), strict=True)]
    assert np.array_equal(difference._differ(a, b), wanted)


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (pa.array([2**60 + 1, 2**60, 5]), pa.array([2.0**60, 2.0**60, 5.0]), [True, False, False]),
        (pa.array(np.array([1.0, np.nan], np.float16)), pa.array(np.array([1.5, np.nan], np.float16)), [True, False]),
        (
            pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4, dtype=np.float16)), 2),
            pa.FixedSizeListArray.from_arrays(pa.array(np.array([0, 1, 2, 4])), 2),
            [False, True],
        ),
        (pa.array([True, None]), pa.array([1, None]), [True, False]),
    ],
)
def test_numbers_are_compared_in_all_their_types(one: pa.Array, other: pa.Array, wanted: list[bool]) -> None:
    """Vectors may be of float16, and a column of integers may have become one of floats, as where one is missing."""
    assert difference._differ(one, other).tolist() == wanted
