"""Records of finished shards, and where packing resumes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from streamvid.dataset.manifest import ShardEntry
from streamvid.packing.journal import Record, finished_records
from streamvid.packing.partition import Group
from streamvid.storage import filesystem
from tests.support.mounted import without_hard_links


def record(number: int, following: tuple[int, int] | None) -> Record:
    return Record(number, ShardEntry(f"{number:08d}", 1, 1, 1, "", "", 1, "", ""), 1.0, (), following)


def test_a_chain_ends_where_a_record_is_missing_or_leads_astray() -> None:
    group = Group(10, 20, 300, 100)
    whole = {300: record(300, (11, 0)), 301: record(301, (11, 4)), 302: record(302, None)}
    found, place = finished_records(group, whole)
    assert [one.number for one in found] == [300, 301, 302]
    assert place is None
    for broken, count, where in [
        ({302: None}, 2, (11, 4, 2)),
        ({301: None}, 1, (11, 0, 1)),
        ({300: None}, 0, (10, 0, 0)),
        ({301: record(301, (11, 0))}, 1, (11, 0, 1)),  # does not get on
        ({301: record(301, (20, 0))}, 1, (11, 0, 1)),  # leaves the group
        ({300: record(300, (9, 0))}, 0, (10, 0, 0)),
    ]:
        records = {number: one for number, one in {**whole, **broken}.items() if one is not None}
        found, place = finished_records(group, records)
        assert len(found) == count
        assert place is not None
        assert (place.source, place.clip, place.part) == where


@pytest.mark.parametrize("kind", ["local", "memory", "s3"])
def test_of_several_writers_one_makes_a_file(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    bucket = request.getfixturevalue("s3_bucket") if kind == "s3" else ""
    path = {"local": f"{tmp_path}/new/x.txt", "memory": "memory://made/x.txt", "s3": f"s3://{bucket}/made/x.txt"}[kind]
    assert filesystem.create_bytes(path, b"first")
    assert not filesystem.create_bytes(path, b"second")
    assert filesystem.read_bytes(path) == b"first"
    if kind == "local":
        assert os.listdir(tmp_path / "new") == ["x.txt"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EIO])
def test_a_file_is_made_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    without_hard_links(monkeypatch, number)
    assert filesystem.create_bytes(tmp_path / "x.txt", b"first")
    assert not filesystem.create_bytes(tmp_path / "x.txt", b"second")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("x.txt", b"first")]
