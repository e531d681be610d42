"""Everything that is settled before a video is read: groups, shard names, fingerprints, keys."""

from __future__ import annotations

import itertools
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.dataset.dataset import Dataset
from streamvid.dataset.manifest import ShardEntry
from streamvid.errors import InputError
from streamvid.packing.fingerprints import (
    MISSING,
    SourceFingerprint,
    differing_parts,
    job_fingerprint,
    source_fingerprints,
    to_json,
    versions,
)
from streamvid.packing.inputs import SourceVideo
from streamvid.packing.job_spec import plan_job
from streamvid.packing.journal import Record, finished_records
from streamvid.packing.keys import KEY_MAX, clip_key
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.partition import PARTS, Group, partition
from streamvid.progress import PackProgress
from streamvid.storage import filesystem
from tools.clips import Recipe, write

# Groups


@given(
    st.lists(st.integers(0, 50_000_000), min_size=1, max_size=60),
    st.integers(1, 10_000_000),
    st.integers(0, 10_000),
)
def test_groups_are_in_order_not_too_large_and_have_names(sizes: list[int], shard_size: int, first: int) -> None:
    groups = partition(sizes, shard_size, first=first)
    assert [n for group in groups for n in range(group.start, group.stop)] == list(range(len(sizes)))
    free = first
    for group in groups:
        counted = [size or 1 << 20 for size in sizes[group.start : group.stop]]
        assert len(counted) == 1 or sum(counted) <= 4 * shard_size
        assert group.first >= free
        assert group.first % PARTS == 0
        free = group.first + group.names
        # A shard of the usual size for every fifth of one, or of a MiB where shards are smaller.
        assert group.names >= PARTS
        assert group.names * max(shard_size, 1 << 20) >= 5 * sum(counted)
    for one, other in itertools.pairwise(groups):
        # No two neighbours would do as one.
        assert sum(size or 1 << 20 for size in sizes[one.start : other.start + 1]) > 4 * shard_size


def test_a_group_does_not_depend_on_what_comes_after() -> None:
    sizes = [5, 9, 20, 3, 3, 3, 40, 1]
    assert partition(sizes, 5)[:2] == partition([*sizes, 7, 8], 5)[:2]


def test_shard_names_that_run_out() -> None:
    with pytest.raises(InputError, match="larger shard size"):
        partition([1 << 50] * 3, 1 << 20)
    assert partition([1 << 50] * 3, 4 << 30)[-1].first < 10**8


def test_the_last_shard_takes_what_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Recipe(width=64, height=64, frames=20, gop=1, b_frames=0), tmp_path / "a.mp4")
    write(Recipe(width=64, height=64, frames=2, gop=1, b_frames=0), tmp_path / "b.mp4")
    monkeypatch.setattr("streamvid.packing.partition.PARTS", 4)
    options = PackOptions(cutting=FixedLength(1, "frames"))
    report = pack([tmp_path / "a.mp4", tmp_path / "b.mp4"], tmp_path / "ds", shard_size=1, options=options)
    assert [(entry.name, entry.clips) for entry in report.manifest.shards] == [
        ("00000000", 1), ("00000001", 1), ("00000002", 1), ("00000003", 17), ("00000004", 1), ("00000005", 1),
    ]  # fmt: skip
    assert len(Dataset.open(tmp_path / "ds")) == 22


# Records


def record(number: int, following: tuple[int, int] | None) -> Record:
    return Record(number, ShardEntry(f"{number:08d}", 1, 1, 1, "", "", ""), 1.0, (), following)


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


# Fingerprints

SOURCE = SourceVideo("/in/a.mp4", "a.mp4", "a", 1, '{"x":1}')
STAMP = SourceFingerprint(5, "t")


def print_of(source: SourceVideo = SOURCE, stamp: SourceFingerprint = STAMP, base: str = "", **settings: object) -> str:
    return job_fingerprint([source], [stamp], settings={"a": 1, **settings}, versions={"av": "1"}, base=base)


def test_a_fingerprint_tells_what_differs() -> None:
    assert print_of() == print_of(replace(SOURCE, path="/elsewhere/a.mp4"))
    for changed in (
        print_of(replace(SOURCE, key="b")),
        print_of(replace(SOURCE, label=2)),
        print_of(replace(SOURCE, meta="{}")),
        print_of(stamp=SourceFingerprint(6, "t")),
        print_of(stamp=SourceFingerprint(5, "u")),
    ):
        assert differing_parts(print_of(), changed) == "videos"
    assert differing_parts(print_of(), print_of(options=PackOptions())) == "options"
    one, other = (print_of(options=PackOptions(cutting=FixedLength(n))) for n in (1, 2))
    assert differing_parts(one, other) == "options"
    assert "dataset" in differing_parts(print_of(), print_of(base="x"))
    assert differing_parts(print_of(), "") == "inputs or options"
    assert job_fingerprint([SOURCE], [MISSING], settings={}, versions=versions(), base="").count("-") == 3


def test_only_plain_values_have_a_fingerprint() -> None:
    assert to_json({"b": (1, None), "a": {2, 1}}) == {"b": [1, None], "a": ["1", "2"]}
    assert to_json(pa.schema([("x", pa.int64())])) == [["x", "int64"]]
    with pytest.raises(TypeError, match="object has no fingerprint"):
        to_json(object())


def test_keys_of_clips_stay_short_and_apart() -> None:
    assert clip_key("a", "_000001") == "a_000001"
    keys = {clip_key(end * KEY_MAX, suffix) for end in "ab" for suffix in ("_000000", "_000001")}
    keys |= {clip_key("a" * (KEY_MAX - 1) + "c", "_000000")}
    assert len(keys) == 5
    assert {len(key) for key in keys} == {KEY_MAX}


# Stamps


def test_stamps_of_local_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    for n in range(3):
        (tmp_path / f"frames/{n}.jpg").write_bytes(b"x" * n)
    (tmp_path / "v.mp4").write_bytes(b"12345")
    paths = [str(tmp_path / name) for name in ("v.mp4", "frames", "gone.mp4")]
    file, folder, gone = source_fingerprints(paths)
    assert (file.size, folder.size, gone) == (5, 3, MISSING)
    os.utime(tmp_path / "v.mp4", ns=(1, 1))
    os.utime(tmp_path / "frames/1.jpg", ns=(1, 1))
    after = source_fingerprints(paths)
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
    found = source_fingerprints(paths)
    assert [stamp.size for stamp in found] == [*range(count), 0, 4]
    assert found[count] == MISSING
    filesystem.write_bytes(f"{folder}/in/1.mp4", b"y")
    after = source_fingerprints(paths)
    assert [i for i, (a, b) in enumerate(zip(found, after, strict=True)) if a != b] == [1]


def test_stamps_on_s3(s3_bucket: str) -> None:
    url = f"s3://{s3_bucket}/stamps"
    for n in range(3):
        filesystem.write_bytes(f"{url}/{n}.mp4", b"x" * n)
    paths = [f"{url}/{name}.mp4" for name in (0, 1, 2, "none")]
    found = source_fingerprints(paths)
    assert [stamp.size for stamp in found] == [0, 1, 2, 0]
    assert len({stamp.mark for stamp in found}) == 4
    listed = filesystem.list_details(url)
    assert [listed[f"{n}.mp4"].mark for n in range(3)] == [stamp.mark for stamp in found[:3]]
    filesystem.write_bytes(f"{url}/1.mp4", b"y")
    assert source_fingerprints(paths)[1] != found[1]


@pytest.mark.parametrize("kind", ["local", "memory", "s3"])
def test_of_several_writers_one_makes_a_file(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    bucket = request.getfixturevalue("s3_bucket") if kind == "s3" else ""
    path = {"local": f"{tmp_path}/new/x.txt", "memory": "memory://made/x.txt", "s3": f"s3://{bucket}/made/x.txt"}[kind]
    assert filesystem.create_bytes(path, b"first")
    assert not filesystem.create_bytes(path, b"second")
    assert filesystem.read_bytes(path) == b"first"
    if kind == "local":
        assert os.listdir(tmp_path / "new") == ["x.txt"]


# Memory


def test_a_video_takes_little_memory_until_it_is_packed(tmp_path: Path) -> None:
    """The parent knows all videos at once: 100,000 must not take more than 1 GiB, with all that goes with it."""
    count = 20_000
    rows = [f"folder-{n // 100}/clip-{n}.mp4,class {n % 7},caption number {n}" for n in range(count)]
    (tmp_path / "list.csv").write_text("path,label,caption\n" + "\n".join(rows) + "\n")
    tracemalloc.start()
    try:
        order = plan_job(
            [str(tmp_path / "list.csv")],
            str(tmp_path / "ds"),
            labels=None,
            metadata=[],
            cuts=None,
            shard_size=1 << 28,
            name=None,
            options=PackOptions(),
            base=None,
        )
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(order.sources) == count
    assert kept < 2_000 * count
    assert peak < 6_000 * count


# What is told meanwhile


def test_progress_counts_and_tells_the_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamvid.progress.LOG_S", 0.0)
    with caplog.at_level("INFO", "streamvid"), PackProgress(10, 1000, enabled=True) as progress:
        progress.resume(4, 400, 8, 4_000_000, 1)
        progress.advance(1, 100, 2, 2_000_000, 1)
    assert "5/10 videos · 10 clips · 6 MB" in caplog.text
    assert "2 rejected" in caplog.text
