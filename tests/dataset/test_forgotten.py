"""The table of forgotten clips: read if it is the one that dataset.json names, otherwise refused."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamvid as sv
from streamvid.dataset.concat import ConcatDataset
from streamvid.errors import DatasetError
from tests.support.packed import VIDEOS, edit_json, pack_recipes

FILE = "forgotten-1.parquet"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clips in a few shards."""
    return pack_recipes(VIDEOS, tmp_path_factory.mktemp("forgotten"), shard_size=40_000)


def forget(folder: Path, rows: list[tuple[Any, Any]], *, row_type: pa.DataType | None = None, **fields: Any) -> None:
    """Write a table of these (shard, row), and name it in dataset.json."""
    table = pa.table(
        {
            "shard": pa.array([s for s, _ in rows], pa.string()),
            "row": pa.array([r for _, r in rows], row_type or pa.int32()),
        }
    )
    pq.write_table(table, folder / FILE)
    entry = {"file": FILE, "sha256": hashlib.sha256((folder / FILE).read_bytes()).hexdigest(), "clips": len(rows)}
    edit_json(folder, forgotten=entry | fields)


def test_they_keep_their_rows_and_are_never_delivered(packed: Path, copy: Path) -> None:
    assert sv.Dataset.open(packed).forgotten.tolist() == []
    names = [shard.name for shard in sv.Dataset.open(packed).shards]
    forget(copy, [(names[1], 0), (names[0], 1), (names[1], 0)])
    dataset = sv.Dataset.open(copy)
    gone = [1, dataset.rows(1).start]
    assert dataset.forgotten.tolist() == gone
    assert len(dataset) == 6
    assert pickle.loads(pickle.dumps(dataset)).forgotten.tolist() == gone
    assert ConcatDataset([sv.Dataset.open(packed), dataset]).forgotten.tolist() == [6 + row for row in gone]
    assert (
        dataset.manifest.to_json() == type(dataset.manifest).from_json(dataset.manifest.to_json(), path="x").to_json()
    )
    options: dict[str, Any] = {"sampling": sv.Frames([0]), "transform": sv.Transform(resize=(32, 32)), "batch_size": 1}
    with sv.StreamLoader(dataset, device="cpu", **options) as loader:
        seen = [int(batch["clip"]) for batch in loader if batch["valid"]]
    assert sorted(seen) == [row for row in range(6) if row not in gone]


WRONG: dict[str, tuple[Callable[[Path, str], object], str]] = {
    "another shard": (lambda d, s: forget(d, [("00009999", 0)]), "clips that do not exist"),
    "another row": (lambda d, s: forget(d, [(s, 6)]), "clips that do not exist"),
    "a negative row": (lambda d, _: forget(d, [("00000001", -1)]), "clips that do not exist"),
    "nulls": (lambda d, s: forget(d, [(None, None)]), "clips that do not exist"),
    "too many": (lambda d, s: forget(d, [(s, 0)] * 7), "7 of 6 clips"),
    "another number": (lambda d, s: forget(d, [(s, 0)], clips=2), "not have 2 rows"),
    "another type": (lambda d, s: forget(d, [(s, 0)], row_type=pa.int64()), "row .int32"),
    "another checksum": (lambda d, s: forget(d, [(s, 0)], sha256="0" * 64), "another SHA-256"),
    "no checksum": (lambda d, s: forget(d, [(s, 0)], sha256="x"), "'sha256' is not 64 hexadecimal digits"),
    "a path": (lambda d, s: forget(d, [(s, 0)], file="../forgotten.parquet"), "no Parquet file beside dataset.json"),
    "an absolute path": (lambda d, s: forget(d, [(s, 0)], file="/etc/passwd"), "no Parquet file beside"),
    "no file": (lambda d, s: (forget(d, [(s, 0)]), (d / FILE).unlink()), FILE),
    "too large": (lambda d, s: (forget(d, [(s, 0)]), (d / FILE).write_bytes(bytes(2 << 20))), "are the most"),
    "no Parquet": (
        lambda d, s: (forget(d, [(s, 0)], sha256=hashlib.sha256(b"x").hexdigest()), (d / FILE).write_bytes(b"x")),
        "cannot be read as Parquet|not the table",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_table_that_is_wrong_is_refused(copy: Path, kind: str) -> None:
    change, said = WRONG[kind]
    change(copy, sv.Dataset.open(copy).shards[0].name)
    with pytest.raises(DatasetError, match=said) as error:
        sv.Dataset.open(copy)
    assert "\n" not in str(error.value)
