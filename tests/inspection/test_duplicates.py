"""Finding clips with the same video."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.inspection import duplicates as module
from streamvid.inspection.duplicates import Duplicates, duplicates
from tests.support.packed import edit_index, edit_parquet, reseal, without


@pytest.mark.parametrize("name", ["packed", "indexed"])
def test_clips_of_the_same_bytes_are_duplicates(places: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 1)
    dataset = Dataset.open(places / name)
    one, twin = (key for key in dataset.clips.key if key.startswith(("a_one", "b_twin")))
    assert duplicates(dataset) == Duplicates(((one, twin),), 1, int(dataset.clips.mp4_size[dataset.row(twin)]), 0)
    assert duplicates(without(dataset, dataset.row(one))).groups == ()
    assert duplicates(without(dataset, *range(len(dataset)))) == Duplicates((), 0, 0, 0)


def test_clips_without_checksums_are_counted_as_unchecked(places: Path) -> None:
    found = duplicates(places / "fast")
    assert (found.groups, found.unchecked) == ((), 2)


def test_equal_checksums_of_the_index_are_not_enough(places: Path, tmp_path: Path) -> None:
    """Rows that agree in what is looked at first, of other videos."""
    shutil.copytree(places / "packed", tmp_path / "packed")
    dataset = Dataset.open(tmp_path / "packed")
    s = dataset.row("slow")
    path = Path(dataset.shard_path(int(dataset.clips.shard[s]), "parquet"))
    twin = next(row for row, key in enumerate(dataset.clips.key) if key.startswith("b_twin"))
    edit_parquet(path, s - dataset.rows(int(dataset.clips.shard[s])).start, sha256="0" * 64)
    other = Path(dataset.shard_path(int(dataset.clips.shard[twin]), "parquet"))
    edit_parquet(other, twin - dataset.rows(int(dataset.clips.shard[twin])).start, sha256="1" * 64)
    reseal(tmp_path / "packed")
    assert duplicates(tmp_path / "packed").groups == ()
    shutil.copytree(places / "indexed", tmp_path / "indexed")
    dataset = Dataset.open(tmp_path / "indexed", roots=[places / "in"])
    twin = next(row for row, key in enumerate(dataset.clips.key) if key.startswith("b_twin"))
    found = np.array(dataset.index(twin).crc32c)
    found[-1] ^= 1
    edit = Dataset.open
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dataset, "open", lambda path: edit(path, roots=[places / "in"]))
        edit_index(tmp_path / "indexed", twin, crc32c=found)
    reseal(tmp_path / "indexed")
    assert duplicates(Dataset.open(tmp_path / "indexed", roots=[places / "in"])).groups == ()
