"""Rows of clips in place: the locations that their Parquet file may have."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from streamvid.dataset.concat import ConcatDataset
from streamvid.dataset.dataset import Dataset
from streamvid.errors import DatasetError
from streamvid.packing.index import index
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from tests.support.clips import write
from tests.support.packed import SMALL, edit_parquet


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in the folder of its videos, so that its root may be relative."""
    root = tmp_path_factory.mktemp("places")
    for name in ("a", "b/c"):
        (root / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        write(SMALL, root / "set" / f"{name}.mp4")
    index(root / "set", root / "set", progress=False)
    pack([root / "set/a.mp4"], root / "packed", options=PackOptions("any"), progress=False)
    return root / "set"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "above": ({"file": "../a.mp4"}, "relative path"),
    "above, inside": ({"file": "b/../../a.mp4"}, "relative path"),
    "above, as web servers read it": ({"file": "b/%2E./%2e%2e/a.mp4"}, "relative path"),
    "above, by escaped slashes": ({"file": "b%2f..%2F..%2fa.mp4"}, "relative path"),
    "absolute": ({"file": "/etc/passwd"}, "relative path"),
    "here": ({"file": "./a.mp4"}, "relative path"),
    "two slashes": ({"file": "b//c.mp4"}, "relative path"),
    "a URL": ({"file": "http://x/y"}, "relative path"),
    "a newline": ({"file": "a\n.mp4"}, "relative path"),
    "empty": ({"file": ""}, "relative path"),
    "long": ({"file": "x" * 5000}, "relative path"),
    "another root": ({"root": 1}, "does not name"),
    "a negative root": ({"root": -1}, "root is negative"),
    "beyond the file": ({"mp4_size": 1 << 40}, "within its file"),
    "before the file": ({"mp4_offset": -1}, "within its file"),
    "a time before all": ({"file_mtime_ns": -1}, "modification time is negative"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_places_that_cannot_be_are_refused(indexed: Path, tmp_path: Path, kind: str) -> None:
    copy = Path(shutil.copytree(indexed, tmp_path / "set", copy_function=shutil.copy2))
    values, said = WRONG[kind]
    (parquet,) = (copy / "shards").glob("*.parquet")
    edit_parquet(parquet, 0, **values)
    with pytest.raises(DatasetError, match=said):
        Dataset.open(copy)


def test_locations_of_packed_and_indexed_clips_together(indexed: Path) -> None:
    inside, packed = Dataset.open(indexed), Dataset.open(indexed.parent / "packed")
    both = ConcatDataset([packed, inside])
    assert [both.location(row) for row in range(3)] == [packed.shard_path(0), *(inside.location(n) for n in range(2))]
    assert sorted(Path(inside.location(row)).relative_to(indexed) for row in range(2)) == [
        Path("a.mp4"),
        Path("b/c.mp4"),
    ]
    assert both.location(0, lambda s, extension="tar", /: f"copy.{extension}") == "copy.tar"
    assert packed.clips.files is None
