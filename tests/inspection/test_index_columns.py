"""Frame indexes in the Parquet files' columns: the same as in the tars, and refused where they are damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.errors import DatasetError
from streamvid.inspection.index_columns import read_index
from streamvid.packing.pack import pack
from tests.support.packed import edit_parquet, make_videos

pytestmark = pytest.mark.usefixtures("inline_workers")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Six clips in one shard."""
    root = tmp_path_factory.mktemp("index_columns")
    make_videos(root / "in")
    pack([root / "in"], root / "ds", progress=False)
    return Dataset.open(root / "ds")


def test_the_columns_have_the_indexes_of_the_tar(dataset: Dataset) -> None:
    columns = read_index(dataset.shard_path(0, "parquet"), dataset.shards[0], dataset.clips, 0)
    for row in range(len(dataset)):
        for name in ("pts", "offset", "size", "flags"):
            assert np.array_equal(getattr(columns.clip(row), name), getattr(dataset.index(row), name))


INDEX_DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "offset": (lambda row: {"offset": [*row["offset"][:-1], row["mp4_size"]]}, "within the mp4"),
    "negative": (lambda row: {"offset": [-1, *row["offset"][1:]]}, "within the mp4"),
    "overflow": (lambda row: {"offset": [2**63 - 1, *row["offset"][1:]]}, "within the mp4"),
    "size": (lambda row: {"size": [0, *row["size"][1:]]}, "within the mp4"),
    "flags": (lambda row: {"flags": [16, *row["flags"][1:]]}, "unknown flag"),
    "pts": (lambda row: {"pts": [2**60, *row["pts"][1:]]}, "time is out of range"),
    "before 0": (lambda row: {"pts": [-5, *row["pts"][1:]]}, "before time 0"),
    "hidden": (lambda row: {"flags": [8 | row["flags"][0], *row["flags"][1:]]}, "not as many visible packets"),
    "short": (lambda row: {"size": row["size"][1:]}, "'size' has not one value per packet"),
    "long": (lambda row: {"pts": [*row["pts"], 99]}, "'pts' has not one value per packet"),
}


@pytest.mark.parametrize("kind", INDEX_DAMAGE)
def test_a_damaged_index_is_refused(dataset: Dataset, tmp_path: Path, kind: str) -> None:
    change, said = INDEX_DAMAGE[kind]
    path = Path(shutil.copy(dataset.shard_path(0, "parquet"), tmp_path))
    row = pq.read_table(path).to_pylist()[1]
    edit_parquet(path, 1, **change(row))
    with pytest.raises(DatasetError, match=rf"shard 00000000\.parquet.*{said}"):
        read_index(os.fspath(path), dataset.shards[0], dataset.clips, 0)
