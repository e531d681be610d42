"""Fingerprints of sources and of whole packs."""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pytest

from streamvid.packing.fingerprints import (
    differing_parts,
    fingerprint,
    source_details,
    sources_digest,
    to_json,
    versions,
)
from streamvid.packing.options import Cut, FixedLength, PackOptions
from streamvid.packing.source_file import MISSING
from streamvid.packing.source_video import SourceVideo
from streamvid.storage import filesystem
from tests.support.faulty_s3 import faulty_s3
from tests.support.tables import metadata_of

SOURCE = SourceVideo("/in/a.mp4", "a.mp4", "a", 1, (0,), size=5, mark="t")
METADATA = metadata_of(pa.table({"x": [1, 2]}))


def print_of(source: SourceVideo = SOURCE, base: str = "", **settings: object) -> str:
    return fingerprint(
        sources_digest([source], METADATA), settings={"a": 1, **settings}, versions={"av": "1"}, base=base
    )


def test_a_fingerprint_tells_what_differs() -> None:
    assert print_of() == print_of(replace(SOURCE, path="/elsewhere/a.mp4"))
    for changed in (
        print_of(replace(SOURCE, key="b")),
        print_of(replace(SOURCE, label=2)),
        print_of(replace(SOURCE, rows=())),
        print_of(replace(SOURCE, size=6)),
        print_of(replace(SOURCE, mark="u")),
    ):
        assert differing_parts(print_of(), changed) == "videos"
    cut = replace(SOURCE, cuts=(Cut(0, 1, rows=(0,)),))
    assert differing_parts(print_of(cut), print_of(replace(cut, cuts=(Cut(0, 1, rows=(1,)),)))) == "videos"
    assert differing_parts(print_of(), print_of(options=PackOptions())) == "options"
    one, other = (print_of(options=PackOptions(cutting=FixedLength(n))) for n in (1, 2))
    assert differing_parts(one, other) == "options"
    assert "dataset" in differing_parts(print_of(), print_of(base="x"))
    assert differing_parts(print_of(), "") == "inputs or options"
    assert fingerprint(sources_digest([SOURCE], METADATA), settings={}, versions=versions(), base="").count("-") == 3


def test_only_plain_values_have_a_fingerprint() -> None:
    assert to_json({"b": (1, None), "a": Fraction(1, 2)}) == {"b": [1, None], "a": "1/2"}
    assert to_json(FixedLength(2)) == {"length": 2, "unit": "seconds", "tail": "keep"}
    assert to_json(pa.schema([("x", pa.int64())])) == [["x", "int64"]]
    for other in (object(), {1, 2}):
        with pytest.raises(TypeError, match=" has no fingerprint"):
            to_json(other)


def test_stamps_of_local_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    for n in range(3):
        (tmp_path / f"frames/{n}.jpg").write_bytes(b"x" * n)
    (tmp_path / "v.mp4").write_bytes(b"12345")
    paths = [str(tmp_path / name) for name in ("v.mp4", "frames", "gone.mp4")]
    file, folder, gone = source_details(paths)
    assert (file.size, folder.size, gone) == (5, 3, MISSING)
    os.utime(tmp_path / "v.mp4", ns=(1, 1))
    os.utime(tmp_path / "frames/1.jpg", ns=(1, 1))
    after = source_details(paths)
    assert after[0].mark != file.mark
    assert after[1].mark != folder.mark
    assert after[1].size == 3


@pytest.mark.parametrize("count", [3, 150])
def test_stamps_of_remote_files(count: int) -> None:
    """A few are asked for one by one, many in a folder are listed: with the same answers."""
    folder = f"memory://stamps-{count}"
    for n in range(count):
        filesystem.write_bytes(f"{folder}/in/{n}.mp4", b"x" * n)
    filesystem.write_bytes(f"{folder}/in/deep/1.jpg", b"1234")
    paths = [f"{folder}/in/{n}.mp4" for n in range(count)] + [f"{folder}/in/none.mp4", f"{folder}/in/deep"]
    found = source_details(paths)
    assert [stamp.size for stamp in found] == [*range(count), 0, 4]
    assert found[count] == MISSING
    filesystem.write_bytes(f"{folder}/in/1.mp4", b"y")
    after = source_details(paths)
    assert [i for i, (a, b) in enumerate(zip(found, after, strict=True)) if a != b] == [1]


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_stamps_of_files_whose_folder_may_not_be_listed(scheme: str) -> None:
    """As on most web servers, and in buckets of which a policy allows to read objects alone."""
    pytest.importorskip("s3fs", reason="no s3fs to test with: pip install s3fs")
    with faulty_s3() as site:
        site.objects = {f"bucket/in/{n}.mp4": b"x" * n for n in range(150)}
        site.fault = lambda method, key, before: None if key.endswith(".mp4") else "403"
        folder = "s3://bucket/in" if scheme == "s3" else f"{site.endpoint}/bucket/in"
        found = source_details([f"{folder}/{n}.mp4" for n in range(150)])
    assert [stamp.size for stamp in found] == list(range(150))
    assert len({stamp.mark for stamp in found}) == 150


def test_stamps_on_s3(s3_bucket: str) -> None:
    url = f"s3://{s3_bucket}/stamps"
    for n in range(3):
        filesystem.write_bytes(f"{url}/{n}.mp4", b"x" * n)
    paths = [f"{url}/{name}.mp4" for name in (0, 1, 2, "none")]
    found = source_details(paths)
    assert [stamp.size for stamp in found] == [0, 1, 2, 0]
    assert len({stamp.mark for stamp in found}) == 4
    listed = filesystem.list_details(url)
    assert [listed[f"{n}.mp4"].mark for n in range(3)] == [stamp.mark for stamp in found[:3]]
    filesystem.write_bytes(f"{url}/1.mp4", b"y")
    assert source_details(paths)[1] != found[1]
