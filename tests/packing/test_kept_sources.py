"""Videos that come, change or go between a killed pack and the next run of its command."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.inspection.verify import verify
from streamvid.packing.index import index
from streamvid.packing.journal import Journal, Record
from streamvid.packing.kept_sources import keep_sources, read_kept_sources
from streamvid.packing.pack import pack
from streamvid.packing.source_video import SourceVideo
from streamvid.video.stored_clip import CHANGED
from tests.support.clips import write
from tests.support.dying import die_before_change
from tests.support.packed import digests
from tests.support.profile import by_profile
from tools.clips import Recipe

SHARD = 10_000


def video(path: Path, seed: int) -> None:
    path.parent.mkdir(exist_ok=True)
    write(Recipe(width=64, height=64, frames=4, gop=4, b_frames=0, seed=seed), path)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for n in range(8):
        video(folder / "ab"[n % 2] / f"{n}.mp4", n)
    return folder


@pytest.fixture
def source(videos: Path, tmp_path: Path) -> Path:
    """A copy of the videos with their times."""
    shutil.copytree(videos, tmp_path / "in")
    return tmp_path / "in"


def killed(again: Callable[[], object], destination: Path, shards: int) -> list[str]:
    """Have a pack killed when it has finished some shards. Returns the videos that these have clips of."""
    shutil.rmtree(destination, ignore_errors=True)
    write_record = Journal.write

    def dies(journal: Journal, record: Record) -> None:
        write_record(journal, record)
        if len(list(destination.glob("progress/*.json"))) == shards:
            os._exit(9)

    def run() -> None:
        Journal.write = dies  # type: ignore[method-assign] - in a child of its own
        again()

    assert die_before_change(0, destination, run) == 9
    tables = [pq.read_table(destination / f"shards/{n.stem}.parquet") for n in destination.glob("progress/*.json")]
    return sorted(name for table in tables for name in table["source"].to_pylist())


def sources(destination: Path | str) -> list[str]:
    assert verify(destination).ok
    return sorted(Dataset.open(destination).clips.source)


@pytest.mark.parametrize("labels", [None, "folders"])
def test_what_came_is_left_out_until_it_is_added(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, labels: str | None
) -> None:
    """Between the others, in a class of its own, and of a name that makes the key of another one longer."""

    def again(**options: bool) -> None:
        pack([source], tmp_path / "ds", shard_size=SHARD, workers=1, labels=labels, **options)

    again()
    expected, before = digests(tmp_path / "ds"), sources(tmp_path / "ds")
    assert len(list((tmp_path / "ds").glob("shards/*.tar"))) >= 4
    assert killed(again, tmp_path / "ds", 2)
    for n, name in enumerate(("a/1.mp4", "aa/0.mp4", "a/0.mov")):
        video(source / name, 20 + n)
    caplog.set_level(logging.WARNING)
    again()
    assert digests(tmp_path / "ds") == expected
    assert "goes on with the 8 videos with which it began: 3 that came since are left out" in caplog.text
    assert not (tmp_path / "ds/progress").exists()
    again(append=True)
    assert sources(tmp_path / "ds") == sorted([*before, "a/0.mov", "a/1.mp4", "aa/0.mp4"])


def test_what_changed_or_went_before_it_was_packed_is_rejected_and_can_be_added(source: Path, tmp_path: Path) -> None:
    def again(**options: bool) -> None:
        pack([source], tmp_path / "ds", shard_size=SHARD, workers=1, **options)

    (source / "a/00.mp4").write_bytes(b"no video")
    done = killed(again, tmp_path / "ds", 2)
    video(source / "a/00.mp4", 31)  # was rejected, and so is no clip of the shards
    left = [
        str(path.relative_to(source))
        for path in sorted(source.rglob("*.mp4"))
        if path.relative_to(source).as_posix() not in [*done, "a/00.mp4"]
    ]
    assert len(left) >= 3
    video(source / left[0], 30)
    os.remove(source / left[1])
    again()
    assert sources(tmp_path / "ds") == sorted({*done, *left[2:]})
    rejected = {row["source"]: row["reason"] for row in pq.read_table(tmp_path / "ds/rejected.parquet").to_pylist()}
    assert rejected.keys() == {"a/00.mp4", *left[:2]}
    assert [rejected[name] for name in left[:2]] == [CHANGED, CHANGED]
    again(append=True)
    assert sources(tmp_path / "ds") == sorted({*done, "a/00.mp4", left[0], *left[2:]})


def test_what_changed_or_went_after_it_was_packed_is_told(source: Path, tmp_path: Path) -> None:
    def again() -> None:
        pack([source], tmp_path / "ds", shard_size=SHARD, workers=1)

    again()
    expected = digests(tmp_path / "ds")
    done = killed(again, tmp_path / "ds", 2)
    kept = digests(tmp_path / "ds")
    os.rename(source / done[0], tmp_path / "away.mp4")
    with pytest.raises(InputError, match=f"{done[0]} has changed, or is gone, since .*--overwrite"):
        again()
    assert digests(tmp_path / "ds") == kept
    os.rename(tmp_path / "away.mp4", source / done[0])
    again()
    assert digests(tmp_path / "ds") == expected


def test_at_random(source: Path, tmp_path: Path) -> None:
    def again() -> None:
        pack([source], tmp_path / "ds", shard_size=SHARD, workers=1)

    again()
    before, chance = sources(tmp_path / "ds"), random.Random(5)
    shutil.copytree(source, tmp_path / "kept")
    for n in range(by_profile(ci=6, nightly=60)):
        shutil.rmtree(source)
        shutil.copytree(tmp_path / "kept", source)
        done = killed(again, tmp_path / "ds", chance.randrange(1, 4))
        changed = set(chance.sample(before, chance.randrange(3)))
        gone = set(chance.sample(before, chance.randrange(3)))
        for name in changed:
            video(source / name, 40 + n)
        for name in gone:
            os.remove(source / name)
        for name in chance.sample(["a/00.mp4", "c/1.mp4", "b/1.mkv", "z.mp4"], chance.randrange(4)):
            video(source / name, 50 + n)
        if (changed | gone) & set(done):
            with pytest.raises(InputError, match="has changed, or is gone"):
                again()
            continue
        again()
        assert sources(tmp_path / "ds") == sorted({*before} - changed - gone)


def test_a_list_that_grew(source: Path, tmp_path: Path) -> None:
    rows = [{"path": str(path), "text": f"it is {path.stem}"} for path in sorted(source.rglob("*.mp4"))]
    new = {"path": str(source / "aa.mp4"), "text": "new"}
    video(source / "aa.mp4", 60)

    def again(rows: list[dict[str, str]]) -> None:
        (tmp_path / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        pack([tmp_path / "list.jsonl"], tmp_path / "ds", shard_size=SHARD, workers=1)

    again(rows)
    expected = digests(tmp_path / "ds")
    killed(lambda: again(rows), tmp_path / "ds", 2)
    with pytest.raises(InputError, match="other videos"):
        again([new, *rows[:-1], {**rows[-1], "text": "another"}])
    again([new, *rows])
    assert digests(tmp_path / "ds") == expected


def test_a_bucket_that_grew(videos: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    store, root = s3fs.S3FileSystem(), f"{s3_bucket}/kept"
    for path in videos.rglob("*.mp4"):
        store.put(str(path), f"{root}/in/{path.name}")

    def again(**options: bool) -> None:
        pack([f"s3://{root}/in"], f"s3://{root}/ds", shard_size=SHARD, workers=1, **options)

    write_record = Journal.write

    def fails(journal: Journal, record: Record) -> None:
        write_record(journal, record)
        if record.number % 100 == 1:
            raise OSError(5, "gone")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "write", fails)
        with pytest.raises(OSError, match="gone"):
            again()
    store.put(str(videos / "a/0.mp4"), f"{root}/in/00.mp4")
    store.put(str(videos / "a/2.mp4"), f"{root}/in/7.mp4")  # another version
    again()
    assert sources(f"s3://{root}/ds") == [f"{n}.mp4" for n in range(7)]
    assert not store.exists(f"{root}/ds/progress")
    again(append=True)
    assert sources(f"s3://{root}/ds") == sorted(["00.mp4", *(f"{n}.mp4" for n in range(8))])


@pytest.mark.parametrize("command", ["append", "index", "update"])
def test_datasets_that_are_added_to_or_in_place(source: Path, tmp_path: Path, command: str) -> None:
    os.rename(source / "a", tmp_path / "later")

    def again() -> None:
        if command == "append":
            pack([source], tmp_path / "ds", shard_size=SHARD, workers=1, append=True)
        else:
            index([source], tmp_path / "ds", workers=1, update=command == "update")

    def first() -> None:
        if command == "append":
            pack([source], tmp_path / "ds", shard_size=SHARD, workers=1)
        elif command == "update":
            index([source], tmp_path / "ds", workers=1)

    first()
    os.rename(tmp_path / "later", source / "a")
    if (tmp_path / "ds").exists():
        shutil.copytree(tmp_path / "ds", tmp_path / "base")
    again()
    expected, before = digests(tmp_path / "ds"), sources(tmp_path / "ds")
    for at in range(1, 100, by_profile(ci=5, nightly=1)):
        shutil.rmtree(tmp_path / "ds")
        if (tmp_path / "base").exists():
            shutil.copytree(tmp_path / "base", tmp_path / "ds")
        die_before_change(at, tmp_path / "ds", again)
        if digests(tmp_path / "ds").get("dataset.json") == expected["dataset.json"]:
            break  # published: what comes now is for the next run
        if not list(tmp_path.glob("ds/progress/sources-*.parquet")):
            continue
        video(source / "a/new.mp4", 70)
        os.rename(source / "b/1.mp4", tmp_path / "1.mp4")
        shutil.copy(source / ("b/3.mp4" if command == "update" else "../1.mp4"), source / "b/1.mp4")  # is no news
        if command == "index":
            shutil.move(tmp_path / "1.mp4", source / "b/1.mp4")
        again()
        assert digests(tmp_path / "ds") == expected, at
        os.remove(source / "a/new.mp4")
        if command != "index":
            shutil.move(tmp_path / "1.mp4", source / "b/1.mp4")
    assert at > 5
    assert len(before) == 8


def test_a_pack_that_overwrites_and_is_killed_does_not_take_the_sources_of_the_one_before(
    source: Path, tmp_path: Path
) -> None:
    def again(**options: bool) -> None:
        pack([source], tmp_path / "ds", shard_size=SHARD, workers=1, **options)

    killed(again, tmp_path / "ds", 2)
    shutil.copytree(tmp_path / "ds", tmp_path / "before")
    video(source / "new.mp4", 90)
    for at in (1, 2, 3, 6):
        shutil.rmtree(tmp_path / "ds")
        shutil.copytree(tmp_path / "before", tmp_path / "ds")
        assert die_before_change(at, tmp_path / "ds", lambda: again(overwrite=True)) == 9
        again()
        assert len(sources(tmp_path / "ds")) == 8 + ((tmp_path / "ds/shards").exists() and at > 1), at


def test_other_inputs_are_another_pack(
    source: Path, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its videos would count as gone, and these as come."""
    killed(lambda: pack([source], tmp_path / "ds", shard_size=SHARD, workers=1), tmp_path / "ds", 1)
    with pytest.raises(InputError, match="with other videos is running or was broken off"):
        pack([videos / "a"], tmp_path / "ds", shard_size=SHARD)
    with pytest.raises(InputError, match="with other options is running or was broken off"):
        pack([source], tmp_path / "ds", shard_size=SHARD + 1)
    monkeypatch.chdir(source)
    video(source / "new.mp4", 75)
    pack(["."], tmp_path / "ds", shard_size=SHARD)
    assert len(sources(tmp_path / "ds")) == 8


@pytest.mark.parametrize("data", [b"", b"PAR1", None])
def test_without_a_sound_list_it_is_another_pack(source: Path, tmp_path: Path, data: bytes | None) -> None:
    killed(lambda: pack([source], tmp_path / "ds", shard_size=SHARD, workers=1), tmp_path / "ds", 1)
    (listed,) = tmp_path.glob("ds/progress/sources-*.parquet")
    if data is None:
        listed.unlink()
    else:
        listed.write_bytes(data)
    video(source / "new.mp4", 80)
    with pytest.raises(InputError, match="with other videos is running or was broken off"):
        pack([source], tmp_path / "ds", shard_size=SHARD)
    os.remove(source / "new.mp4")
    pack([source], tmp_path / "ds", shard_size=SHARD)
    assert len(sources(tmp_path / "ds")) == 8


def test_secrets_and_names_that_are_not_utf8(tmp_path: Path) -> None:
    signed = SourceVideo(
        "https://host/a.mp4?X-Amz-Signature=secret", "a\udce4.mp4", "a", 1, size=7, mark="m", part=(3, 4)
    )
    (tmp_path / "progress").mkdir()
    keep_sources(str(tmp_path), "digest", [signed], ["x", "y"])
    assert "secret" not in str(pq.read_table(tmp_path / "progress/sources-digest.parquet").to_pylist())
    kept = read_kept_sources(str(tmp_path), "digest")
    assert kept == [SourceVideo("", "a\udce4.mp4", "a", "y", size=7, mark="m", part=(3, 4))]
    assert read_kept_sources(str(tmp_path), "another") is None
