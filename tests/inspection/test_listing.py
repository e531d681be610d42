"""The clips of a dataset as tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.inspection import listing
from streamvid.inspection.listing import list_clips
from tests.support.packed import without


def test_rows_in_order_some_at_a_time(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_ROWS", 3)
    tables = list(list_clips(places / "packed"))
    assert [len(table) for table in tables] == [3, 3, 1]
    assert tables[0].column_names[-1] == "class"
    dataset = Dataset.open(places / "packed")
    assert [key for table in tables for key in table["key"].to_pylist()] == list(dataset.clips.key)
    (table,) = list_clips(dataset, where="frames > 8", columns=["source", "mp4_size"], limit=2)
    assert table["mp4_size"].to_pylist() == dataset.clips.mp4_size[[0, 2]].tolist()


def test_forgotten_clips_are_not_listed(places: Path) -> None:
    dataset = without(Dataset.open(places / "packed"), 0, 3)
    keys = [key for table in list_clips(dataset, columns=["key"]) for key in table["key"].to_pylist()]
    assert len(keys) == 5
    assert not {dataset.key(0), dataset.key(3)} & set(keys)
    with pytest.raises(InputError, match=f"{dataset.key(3)}' is forgotten"):
        list_clips(dataset, keys=[dataset.key(3)])


def test_what_cannot_be_asked_for(places: Path) -> None:
    for options, said in (
        ({"columns": ["captoin"]}, "did you mean 'caption'"),
        ({"columns": "key"}, r"write \['key'\]"),
        ({"keys": ["nobody"]}, "not in the dataset: 'nobody'"),
        ({"columns": [3]}, "one of them is 3"),
        ({"columns": 3}, "columns must be a list of column names; it is 3"),
        ({"limit": 0}, "limit must be a whole number of at least 1"),
    ):
        with pytest.raises(InputError, match=said):
            list_clips(places / "packed", **options)  # type: ignore[arg-type]
