"""One dataset of several, several of one, other shards: the same clips, again after a kill, and never halves."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamvid as sv
from streamvid.dataset.dataset import Dataset
from streamvid.errors import ClipError, DatasetError, InputError
from streamvid.inspection.difference import diff
from streamvid.inspection.verify import verify
from streamvid.loader.clip_dataset import ClipDataset
from streamvid.packing import run_local
from streamvid.packing.index import index
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.reshape import merge, reshard, split
from streamvid.packing.shard_writer import ShardWriter
from streamvid.sampling.spread import All
from streamvid.storage.folder_lock import lock_folder
from streamvid.workers import WorkerCrashError
from tests.support.clips import write
from tests.support.dying import die_before_change
from tests.support.foreign import CLIP, encoded, write_tar
from tests.support.packed import InlineWorkers, digests, make_videos, upload, without
from tests.support.profile import by_profile
from tests.support.tables import needs_fixed_lists
from tests.support.web import website
from tools.clips import Recipe

QUIET: dict[str, Any] = {"progress": False}


pytestmark = pytest.mark.usefixtures("user")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`one`: six videos with columns of several types; `two`: a video in clips, with other columns and classes."""
    root = tmp_path_factory.mktemp("reshape")
    make_videos(root / "in")
    names = sorted(str(path.relative_to(root / "in")) for path in (root / "in").rglob("*.*"))
    numbers = range(len(names))
    noon = datetime(2024, 1, 2, 12, 0, 0, 5, tzinfo=UTC)
    columns = {
        "path": pa.array(names),
        "label": pa.array(["dog" if n % 2 else "cat" for n in numbers]),
        "score": pa.array([None, *(n / 4 for n in numbers[1:])], pa.float32()),
        "level": pa.array(numbers, pa.uint8()),
        "day": pa.array([date(2024, 1, n + 1) for n in numbers]),
        "at": pa.array([noon] * len(names), pa.timestamp("us", "UTC")),
        "clock": pa.array([time(1, 2, 3, n) for n in numbers]),
        "tags": pa.array([[n / 3] * n for n in numbers], pa.list_(pa.float32())),
    }
    pq.write_table(pa.table(columns), root / "one.parquet")
    (root / "more").mkdir()
    write(Recipe(width=96, height=64, frames=30, gop=8, b_frames=2), root / "more/long.mp4")
    (root / "two.csv").write_text("path,label,score,note\nlong.mp4,ape,7,a note\n")
    pack(
        root / "in",
        root / "one",
        labels=root / "one.parquet",
        shard_size=16_000,
        options=PackOptions("any"),
        **QUIET,
    )
    cut = PackOptions(cutting=FixedLength(7, "frames"))
    pack(root / "more", root / "two", labels=root / "two.csv", options=cut, **QUIET)
    return root


@pytest.fixture
def indexed(made: Path, tmp_path: Path) -> Path:
    """The videos of `two` where they are."""
    shutil.copytree(made / "more", tmp_path / "more")
    index(tmp_path / "more", tmp_path / "indexed", labels=made / "two.csv", cutting=FixedLength(7, "frames"), **QUIET)
    return tmp_path / "indexed"


def frames(path: Path | str, key: str) -> Any:
    return np.asarray(ClipDataset(Dataset.open(path), sampling=All())[key]["video"])


def whole(path: Path | str) -> None:
    """The dataset is as docs/format.md has it, and every frame of it decodes."""
    report = verify(path, decode=True, progress=False)
    assert report.problems == ()


def types(path: Path) -> dict[str, str]:
    (file, *_) = (path / "shards").glob("*.parquet")
    return {field.name: str(field.type) for field in pq.read_schema(file) if field.name.startswith("meta_")}


# Shards of another size


def test_reshard_keeps_every_byte(made: Path, tmp_path: Path) -> None:
    old = Dataset.open(made / "one")
    report = reshard(made / "one", tmp_path / "new", shard_size=1 << 20, **QUIET)
    whole(tmp_path / "new")
    new = Dataset.open(tmp_path / "new")
    assert (report.clips, len(new.shards), len(old.shards) > 2) == (6, 1, True)
    assert new.manifest.name == "one"
    assert new.to_arrow().equals(old.to_arrow())
    assert types(tmp_path / "new") == types(made / "one")
    assert types(made / "one") == {
        "meta_score": "float", "meta_level": "uint8", "meta_day": "date32[day]", "meta_at": "timestamp[us, tz=UTC]",
        "meta_clock": "time64[us]", "meta_tags": "list<element: float>",
    }  # fmt: skip
    assert [new.sha256(row) for row in range(6)] == [old.sha256(row) for row in range(6)]
    assert not diff(old, new)
    before = digests(tmp_path / "new")
    assert reshard(made / "one", tmp_path / "new", shard_size=1 << 20, **QUIET).was_there
    reshard(tmp_path / "new", tmp_path / "back", shard_size=16_000, workers=1, **QUIET)
    ours, theirs = (sorted((path / "shards").glob("*.tar")) for path in (made / "one", tmp_path / "back"))
    assert b"".join(path.read_bytes() for path in ours) == b"".join(path.read_bytes() for path in theirs)
    assert digests(tmp_path / "new") == before


def test_reshard_shuffles(made: Path, tmp_path: Path) -> None:
    orders = []
    for name, options in {"a": {"seed": 1}, "b": {"seed": 1, "shard_size": 9000}, "c": {"seed": 2}}.items():
        reshard(made / "one", tmp_path / name, shuffle=True, **options, **QUIET)
        whole(tmp_path / name)
        dataset = Dataset.open(tmp_path / name)
        assert not diff(made / "one", dataset)
        orders.append(list(dataset.clips.key))
    assert orders[0] == orders[1] != orders[2]
    assert np.array_equal(frames(tmp_path / "b", "slow"), frames(made / "one", "slow"))


def test_reshard_packs_what_is_in_place(made: Path, indexed: Path, tmp_path: Path) -> None:
    """Cuts of a long video: the same clips as if it had been packed so."""
    reshard(indexed, tmp_path / "packed", **QUIET)
    whole(tmp_path / "packed")
    assert not diff(made / "two", tmp_path / "packed")
    shutil.rmtree(tmp_path / "more")
    assert Dataset.open(tmp_path / "packed").manifest.roots == ()
    for key in Dataset.open(made / "two").clips.key:
        assert np.array_equal(frames(tmp_path / "packed", key), frames(made / "two", key))


def test_what_was_indexed_by_tables_gets_checksums(made: Path, tmp_path: Path) -> None:
    index(made / "in", tmp_path / "fast", fast=True, **QUIET)
    assert min(int(Dataset.open(tmp_path / "fast").index(row).crc32c.min()) for row in range(6)) < 0
    reshard(tmp_path / "fast", tmp_path / "packed", **QUIET)
    whole(tmp_path / "packed")
    found = diff(made / "one", tmp_path / "packed")
    assert not any("video" in names for _, names in found.changed)
    assert found.unknown == ()


def test_a_damaged_clip_ends_it(made: Path, tmp_path: Path) -> None:
    """A clip is not left out silently; nothing is published, and another run goes on once it is mended."""
    shutil.copytree(made / "one", tmp_path / "old")
    dataset = Dataset.open(tmp_path / "old")
    path = Path(dataset.location(3))
    sound = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(int(dataset.clips.mp4_offset[3] + dataset.clips.mp4_size[3]) - 3)
        file.write(b"!")
    with pytest.raises(ClipError, match=f"clip '{dataset.key(3)}'.*SHA-256"):
        reshard(dataset, tmp_path / "new", **QUIET)
    with pytest.raises(DatasetError, match="has not finished"):
        Dataset.open(tmp_path / "new")
    path.write_bytes(sound)
    assert reshard(dataset, tmp_path / "new", **QUIET).clips == 6


def test_a_part_whose_videos_are_gone_is_told_with_the_clip(made: Path, tmp_path: Path) -> None:
    """The error was the system's alone: a path, and that there is no such file."""
    shutil.copytree(made / "one", tmp_path / "one")
    split(tmp_path / "one", tmp_path / "parts", shares={"a": 0.5}, **QUIET)
    (tmp_path / "one").rename(tmp_path / "moved")
    with pytest.raises(DatasetError, match=r"^clip '.*' \(shard .*\): its file is gone \(.*/one/shards/.*tar\)"):
        reshard(tmp_path / "parts" / "a", tmp_path / "new", **QUIET)


def test_a_worker_that_is_killed_rejects_nothing(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(InlineWorkers):
        def submit(self, function: Any, *args: Any, limit_s: float | None = None) -> Any:
            future = super().submit(int)
            killed = WorkerCrashError("SIGKILL", from_outside=True)
            future.result = lambda: (_ for _ in ()).throw(killed)  # type: ignore[method-assign]
            return future

    monkeypatch.setattr(run_local, "Workers", Killed)
    with pytest.raises(DatasetError, match=r"SIGKILL.*run the command again"):
        reshard(made / "one", tmp_path / "new", **QUIET)


@needs_fixed_lists
def test_forgotten_clips_and_new_columns(made: Path, indexed: Path, tmp_path: Path) -> None:
    """What revisions have changed is in the new dataset as if it had been packed so."""
    shutil.copytree(made / "one", tmp_path / "old")
    keys = list(Dataset.open(made / "one").clips.key)
    columns = {
        "key": keys[:5],
        "vector": pa.array([[1.0, 2.0], [float("nan"), 0.5], None, [3, 4], [5, 6]], pa.list_(pa.float32(), 2)),
        "note": ["é\n", None, "b", "c", "d"],
        "level": pa.array([9, None, 7, 6, 5], pa.uint8()),
        "label": ["dog", "ape", "cat", "dog", "dog"],
    }
    sv.annotate(tmp_path / "old", pa.table(columns))
    sv.forget(tmp_path / "old", [keys[1]])
    sv.forget(tmp_path / "old", [keys[3]], purge=True)
    old = Dataset.open(tmp_path / "old")
    assert len(old.manifest.overlays) > 0
    reshard(old, tmp_path / "packed", **QUIET)
    merge([old], tmp_path / "seen", **QUIET)
    merge([old, indexed], tmp_path / "both", copy=True, **QUIET)
    for name in ("packed", "seen", "both"):
        whole(tmp_path / name)
        new = Dataset.open(tmp_path / name)
        assert (new.manifest.overlays, new.manifest.forgotten, new.manifest.revision) == ((), None, 0)
        assert [key for key in new.clips.key if key in keys] == [keys[n] for n in (0, 2, 4, 5)]
        assert new.columns.get("vector").type == pa.list_(pa.float32(), 2)
        assert types(tmp_path / name)["meta_level"] == "uint8"
        assert new.columns.get("level").to_pylist()[:4] == [9, 7, 5, 5]
        assert new.columns.get("class").to_pylist()[:3] == ["dog", "cat", "dog"]
        assert json.loads(new.clips.meta[0])["note"] == "é\n"
        assert "note" not in json.loads(new.clips.meta[3])
        if name != "both":
            assert not diff(old, new)
    with pytest.raises(InputError, match=f"'{keys[1]}' is forgotten"):
        split(old, tmp_path / "parts", keys={"x": keys[:2]}, **QUIET)


# One of several


def test_merge_in_place_and_copied(made: Path, indexed: Path, tmp_path: Path) -> None:
    before = digests(made)
    merge([made / "one", indexed], tmp_path / "merged", **QUIET)
    merge([made / "one", indexed], tmp_path / "copied", copy=True, name="all", **QUIET)
    assert not list((tmp_path / "merged").rglob("*.tar"))
    for name in ("merged", "copied"):
        whole(tmp_path / name)
        dataset = Dataset.open(tmp_path / name)
        assert dataset.classes == ("ape", "cat", "dog")
        assert list(dataset.clips.key) == [*Dataset.open(made / "one").clips.key, *Dataset.open(indexed).clips.key]
        rows = dataset.to_arrow(["class", "score", "note", "day"]).to_pylist()
        assert rows[1] == {"class": "dog", "score": 0.25, "note": None, "day": "2024-01-02"}
        assert rows[-1] == {"class": "ape", "score": 7.0, "note": "a note", "day": None}
        for key in ("slow", "top", "long_000002"):
            assert np.array_equal(frames(tmp_path / name, key), frames(indexed if "long" in key else made / "one", key))
    assert not diff(tmp_path / "merged", tmp_path / "copied")
    assert Dataset.open(tmp_path / "copied").manifest.name == "all"
    assert digests(made) == before
    assert merge([made / "one", indexed], tmp_path / "merged", **QUIET).was_there
    again = tmp_path / "again"
    merge([tmp_path / "merged"], again, **QUIET)  # of rows that name files already
    assert not diff(tmp_path / "merged", again)
    whole(again)


def test_merge_keys(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "one", tmp_path / "other/one")
    with pytest.raises(InputError, match=rf"{made}/one and {tmp_path}/other/one have a clip '.*' each: .*--prefix"):
        merge([made / "one", tmp_path / "other/one"], tmp_path / "new", **QUIET)
    assert not (tmp_path / "new").exists()
    merge([made / "one", tmp_path / "other/one"], tmp_path / "new", prefix=True, copy=True, **QUIET)
    whole(tmp_path / "new")
    keys = list(Dataset.open(tmp_path / "new").clips.key)
    assert keys == [f"{name}-{key}" for name in ("one", "one-2") for key in Dataset.open(made / "one").clips.key]
    shutil.copytree(made / "two", tmp_path / "other/v1.5 é")
    named = tmp_path / "other/v1.5 é/dataset.json"
    named.write_text(json.dumps(json.loads(named.read_text()) | {"name": "../v1.5 é"}))
    merge([tmp_path / "other/v1.5 é"], tmp_path / "named", prefix=True, copy=True, **QUIET)
    whole(tmp_path / "named")
    assert all(key.startswith("_v1_5_-long_00000") for key in Dataset.open(tmp_path / "named").clips.key)
    # A clip that one of the two has forgotten is in nobody's way.
    old = Dataset.open(made / "one")
    halves = without(old, 0, 1, 2), without(old, 3, 4, 5)
    merge(halves, tmp_path / "halves", copy=True, **QUIET)
    assert list(Dataset.open(tmp_path / "halves").clips.key) == [old.key(row) for row in (3, 4, 5, 0, 1, 2)]


def test_merge_refuses_what_does_not_go_together(made: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(Recipe(width=96, height=64, frames=5), tmp_path / "in/x.mp4")
    for name, header, row in (("text", "score", "good"), ("number", "label", "3")):
        (tmp_path / f"{name}.csv").write_text(f"path,label,{header}\nx.mp4,dog,{row}\n")
        if header == "label":
            (tmp_path / f"{name}.csv").write_text("path,label\nx.mp4,3\n")
        pack(tmp_path / "in", tmp_path / name, labels=tmp_path / f"{name}.csv", **QUIET)
    with pytest.raises(
        InputError, match="the column 'score' holds numbers in dataset 'one' and text in dataset 'text'"
    ):
        merge([made / "one", tmp_path / "text"], tmp_path / "new", **QUIET)
    with pytest.raises(InputError, match="class names and 'number' has class numbers"):
        merge([made / "one", tmp_path / "number"], tmp_path / "new", **QUIET)
    for given in ([], "one", made / "one"):
        with pytest.raises(InputError, match="datasets must be a list"):
            merge(given, tmp_path / "new", **QUIET)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_a_dataset_is_not_written_over_itself(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "one", tmp_path / "one")
    merge([tmp_path / "one"], tmp_path / "seen", **QUIET)
    before = digests(tmp_path / "one")
    (tmp_path / "link").symlink_to(tmp_path / "one")
    for source, to in (("one", "one"), ("one", "link"), ("seen", "one"), ("one", "")):
        with pytest.raises(InputError, match="choose another destination"):
            reshard(tmp_path / source, tmp_path / to if to else tmp_path, overwrite=True, **QUIET)
    assert digests(tmp_path / "one") == before
    with pytest.raises(InputError, match="holds a dataset already"):
        reshard(made / "one", tmp_path / "one", **QUIET)
    shutil.copytree(made / "two", tmp_path / "dog")
    with pytest.raises(InputError, match="holds a dataset already"):
        split(made / "one", tmp_path, column="class", **QUIET)
    assert not (tmp_path / "cat").exists()


def test_who_may_read_it(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user who made it; all others name where the videos are."""
    merge([made / "one"], tmp_path / "seen", **QUIET)
    assert len(frames(tmp_path / "seen", "slow"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another"))
    with pytest.raises(InputError, match="roots="):
        Dataset.open(tmp_path / "seen")
    assert len(Dataset.open(tmp_path / "seen", roots=[made / "one"])) == 6
    with pytest.raises(InputError, match="roots="):
        split(tmp_path / "seen", tmp_path / "parts", column="class", **QUIET)


# Several of one


def test_split_by_share_is_the_same_in_other_shards(made: Path, tmp_path: Path) -> None:
    merge([made / "one", made / "two"], tmp_path / "all", copy=True, **QUIET)
    reshard(tmp_path / "all", tmp_path / "mixed", shuffle=True, shard_size=9000, **QUIET)
    found = {}
    for name, copy in (("all", False), ("mixed", True)):
        reports = split(
            tmp_path / name, tmp_path / f"{name}-parts", shares={"train": 0.5, "test": 0.5}, copy=copy, **QUIET
        )
        found[name] = {part: Dataset.open(report.destination) for part, report in reports.items()}
        for dataset in found[name].values():
            whole(dataset.path)
    for part in ("train", "test"):
        assert not diff(found["all"][part], found["mixed"][part])
    keys = [list(dataset.clips.key) for dataset in found["all"].values()]
    assert sorted(itertools.chain(*keys)) == sorted(Dataset.open(tmp_path / "all").clips.key)
    assert min(sum("long" in key for key in part) for part in keys) == 0, "clips of one video are in one part"


def test_split_by_key_and_by_column(made: Path, tmp_path: Path) -> None:
    (tmp_path / "test.txt").write_text("slow\ntop\n")
    reports = split(made / "one", tmp_path / "a", keys={"test": tmp_path / "test.txt"}, **QUIET)
    assert list(Dataset.open(tmp_path / "a/test").clips.key) == ["slow", "top"]
    assert reports["test"].manifest.name == "test"
    reports = split(made / "one", tmp_path / "b", column="class", **QUIET)
    assert sorted(reports) == ["cat", "dog"]
    for part in reports:
        dataset = Dataset.open(tmp_path / "b" / part)
        assert set(dataset.columns.get("class").to_pylist()) == {part}
        assert dataset.classes == ("cat", "dog")
    with pytest.raises(InputError, match="the clip 'slow' is in the parts 'x' and 'y'"):
        split(made / "one", tmp_path / "c", keys={"x": ["slow", "top"], "y": ["slow"]}, **QUIET)
    with pytest.raises(InputError, match="not in the dataset: 'nobody'"):
        split(made / "one", tmp_path / "c", keys={"x": ["nobody"]}, **QUIET)
    with pytest.raises(InputError, match="did you mean 'class'"):
        split(made / "one", tmp_path / "c", column="clas", **QUIET)
    with pytest.raises(InputError, match="give one of the three"):
        split(made / "one", tmp_path / "c", **QUIET)
    for wrong in ({"shares": [0.9, 0.1]}, {"keys": "test.txt"}, {"column": 3}, {"shares": {"a": 1}, "group": None}):
        with pytest.raises(InputError, match="must be"):
            split(made / "one", tmp_path / "c", **(wrong | QUIET))  # type: ignore[arg-type]
    assert not (tmp_path / "c").exists()


def test_parts_that_an_earlier_split_left_are_told(
    made: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "parts" / "notes").mkdir(parents=True)
    split(made / "one", tmp_path / "parts", keys={"train": ["slow"], "val": ["top"]}, **QUIET)
    split(made / "one", tmp_path / "parts", keys={"train": ["slow"], "val": ["top"]}, **QUIET)
    assert "another split" not in caplog.text
    split(made / "one", tmp_path / "parts", keys={"train": ["slow", "top"]}, overwrite=True, **QUIET)
    assert "has parts of another split, too: val; remove them" in caplog.text


# Kills, full disks, buckets


def test_two_at_once(made: Path, tmp_path: Path) -> None:
    with lock_folder(str(tmp_path / "new"), make=True), pytest.raises(InputError, match="another process"):
        merge([made / "one"], tmp_path / "new", **QUIET)
    assert merge([made / "one"], tmp_path / "new", **QUIET).clips == 6
    (tmp_path / "other").mkdir()
    (tmp_path / "other/unfinished.txt").write_text("fingerprint: 0123456789abcdef0123-0-0-0\n")
    with pytest.raises(InputError, match="running or was broken off"):
        reshard(made / "two", tmp_path / "other", **QUIET)


def test_killed_before_any_of_its_changes(made: Path, indexed: Path, tmp_path: Path) -> None:
    """Whenever it dies there is no dataset or a whole one, and the second run ends as the only one."""

    def call(to: Path) -> None:
        merge([made / "one", indexed], to, copy=True, name="x", shard_size=30_000, workers=1, **QUIET)

    call(tmp_path / "whole")
    wanted = digests(tmp_path / "whole")
    died = 0
    for number in itertools.count(1, by_profile(ci=13, nightly=1)):
        to = tmp_path / str(number)
        code = die_before_change(number, to, lambda to=to: call(to))  # type: ignore[misc]
        assert code in (0, 9)
        died += code == 9
        if (to / "dataset.json").exists():
            whole(to)
        call(to)
        assert digests(to) == wanted
        shutil.rmtree(to)
        if code == 0:
            break
    assert died >= 2


def test_a_full_disk(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = ShardWriter.commit, []

    def commit(self: ShardWriter, destination: str) -> Any:
        calls.append(self)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), destination)
        return real(self, destination)

    monkeypatch.setattr(ShardWriter, "commit", commit)
    before = digests(made)
    with pytest.raises(OSError, match="No space"):
        reshard(made / "one", tmp_path / "new", shard_size=9000, **QUIET)
    with pytest.raises(DatasetError, match="has not finished"):
        Dataset.open(tmp_path / "new")
    assert reshard(made / "one", tmp_path / "new", shard_size=9000, **QUIET).resumed == 1
    whole(tmp_path / "new")
    assert digests(made) == before


def test_buckets(made: Path, tmp_path: Path, s3_bucket: str) -> None:
    url = f"s3://{s3_bucket}"
    reports = split(upload(made / "one", f"{url}/one"), f"{url}/parts", column="class", **QUIET)
    assert Dataset.open(reports["cat"].destination).manifest.roots == (f"{url}/one",)
    merge([f"{url}/parts/cat", f"{url}/parts/dog"], tmp_path / "local", **QUIET)
    reshard(tmp_path / "local", f"{url}/again", **QUIET)
    for path in (f"{url}/parts/cat", tmp_path / "local", f"{url}/again"):
        whole(path)
        assert (
            np.array_equal(frames(path, "slow"), frames(made / "one", "slow"))
            or "slow" not in Dataset.open(path).clips.key
        )
    assert not diff(made / "one", f"{url}/again")
    with pytest.raises(InputError, match=r"cannot name local files.*--copy"):
        merge([made / "one"], f"{url}/not", **QUIET)


def test_files_beside_clips_in_tars_of_others(tmp_path: Path) -> None:
    """They are where they are, in a dataset that reads the same tar, and not in a copy, which has none."""
    clip = encoded(CLIP, tmp_path)
    members = [("0.mp4", clip), ("0.txt", b"a text"), ("1.mp4", clip), ("1.txt", b"other"), ("2.mp4", clip)]
    write_tar(tmp_path / "tars/a.tar", members)
    index(tmp_path / "tars", tmp_path / "old", **QUIET)
    merge([tmp_path / "old"], tmp_path / "seen", **QUIET)
    assert Dataset.open(tmp_path / "seen").member("1", "txt") == b"other"
    reshard(tmp_path / "old", tmp_path / "copied", **QUIET)
    whole(tmp_path / "copied")
    merge([tmp_path / "copied"], tmp_path / "again", **QUIET)
    for name in ("copied", "again"):
        dataset = Dataset.open(tmp_path / name)
        assert not dataset.members("1")
        assert dataset.columns.get("txt").to_pylist() == ["a text", "other", None]


def test_a_password_in_a_url_is_not_stored(made: Path, tmp_path: Path) -> None:
    """As the place where videos stay."""
    with website() as site:
        site.files = {f"/{path.relative_to(made)}": path.read_bytes() for path in (made / "one").rglob("*.*")}
        url = f"{site.url}/one".replace("//", "//user:s3cr3t@", 1)
        said = r"\*\*\*@127.0.0.1:\d+/one, whose URL holds a password .* \(--copy\)"
        with pytest.raises(InputError, match=said):
            merge([url], tmp_path / "merged", **QUIET)
        with pytest.raises(InputError, match=said):
            split(url, tmp_path / "parts", shares={"a": 0.5, "b": 0.5}, **QUIET)
        merge([url], tmp_path / "copied", copy=True, **QUIET)
    assert not diff(made / "one", tmp_path / "copied")
    assert not [path for path in tmp_path.rglob("*.*") if path.is_file() and b"s3cr3t" in path.read_bytes()]
