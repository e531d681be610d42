"""A pack that is killed, and run again: it goes on where it was, and ends with the bytes of one that never was."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.errors import DatasetError, InputError
from streamvid.inspection.verify import verify
from streamvid.packing import journal, run_local
from streamvid.packing.journal import Journal, Record
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.shard_writer import HashingFile
from streamvid.progress import PackProgress
from streamvid.revising.annotate import annotate
from streamvid.revising.forget import forget
from streamvid.storage import filesystem
from streamvid.video.encoders import Target
from streamvid.video.transcode import TranscodeOptions
from tests.support.clips import write
from tests.support.dying import die_before_change
from tests.support.launcher import Launcher
from tests.support.packed import digests
from tests.support.profile import by_profile
from tools.clips import Recipe

SHARD = 21_000
REMOTE_SHARD = 80_000
CUT = PackOptions(cutting=FixedLength(3, "frames"))


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough for several groups, a video of several shards when cut, and one that cannot be packed."""
    folder = tmp_path_factory.mktemp("videos")
    for n in range(11):
        write(Recipe(width=96, height=64, frames=12, gop=6, b_frames=2, seed=n), folder / f"{n}.mp4")
    write(Recipe(width=320, height=192, frames=36, gop=6, b_frames=2, seed=99), folder / "7-long.mp4")
    (folder / "3-broken.mp4").write_bytes(b"no video" * 1000)
    return folder


@pytest.fixture(scope="module")
def whole(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a pack that was never killed."""
    destination = tmp_path_factory.mktemp("whole") / "ds"
    report = pack([videos], destination, shard_size=SHARD, options=CUT, workers=1)
    numbers = [int(entry.name) for entry in report.manifest.shards]
    assert len({number // 100 for number in numbers}) >= 2, "several groups"
    assert any(number % 100 for number in numbers), "several shards in a group"
    assert verify(destination).ok
    return digests(destination)


@pytest.fixture(scope="module")
def whole_remote(videos: Path, tmp_path_factory: pytest.TempPathFactory, s3_bucket: str) -> dict[str, str]:
    """The same in fewer shards, as a request takes longer than a write to disk; in a bucket, with its ETags."""
    import s3fs

    report = pack([videos], f"s3://{s3_bucket}/whole/ds", shard_size=REMOTE_SHARD, options=CUT)
    assert len(report.manifest.shards) >= 3
    copy = tmp_path_factory.mktemp("remote") / "ds"
    s3fs.S3FileSystem().get(f"{s3_bucket}/whole/ds", str(copy), recursive=True)
    return digests(copy)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    with Launcher(tmp_path_factory.mktemp("launcher") / "log") as launcher:
        yield launcher


# Killed before every single change


def test_killed_before_any_of_its_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replacing a dataset: whenever it dies there is none, or a whole one; and the second run ends as the only one,
    without files of the old one, such as its earlier revisions."""
    source = tmp_path / "in"
    source.mkdir()
    for n in range(3):
        write(Recipe(width=64, height=64, frames=2, gop=2, b_frames=0, seed=n), source / f"{n}.mp4")
    (source / "broken.mp4").write_bytes(b"no video")
    old, destination = tmp_path / "old", tmp_path / "ds"
    pack([source / "0.mp4", source / "1.mp4"], old, shard_size=1)
    annotate(old, pa.table({"key": ["0"], "x": [1]}))
    forget(old, ["1"])

    def again() -> None:
        pack([source], destination, shard_size=18_000, overwrite=True, workers=1)

    shutil.copytree(old, destination)
    again()
    expected = digests(destination)
    assert len([name for name in expected if name.endswith(".tar")]) >= 2
    for at in range(1, 100, by_profile(ci=3, nightly=1)):
        shutil.rmtree(destination)
        shutil.copytree(old, destination)
        code = die_before_change(at, destination, again)
        if (destination / "dataset.json").exists():
            assert verify(destination).ok
        else:
            with pytest.raises(DatasetError, match="has not finished"):
                Dataset.open(destination)
        if code == 0:
            break
        assert code == 9
        again()
        assert digests(destination) == expected, at
        assert sorted(path.name for path in destination.iterdir() if path.name.startswith((".", "un", "pro"))) == []
    else:
        pytest.fail("it never finished")
    assert at > 20


def test_killed_twice_while_it_replaces_a_dataset(videos: Path, tmp_path: Path) -> None:
    """The old dataset.json is gone before the first new shard is there, even if the first run did not come to it."""
    destination = tmp_path / "ds"
    pack([videos / "1.mp4"], destination)

    def again() -> None:
        pack([videos], destination, shard_size=SHARD, overwrite=True, workers=1)

    assert die_before_change(2, destination, again) == 9
    assert (destination / "unfinished.txt").exists()
    assert (destination / "dataset.json").exists()
    assert die_before_change(8, destination, again) == 9
    assert list((destination / "progress").iterdir())
    with pytest.raises(DatasetError, match="has not finished"):
        Dataset.open(destination)


# Killed at random moments


def cut_pack(videos: Path | str, destination: Path | str, shard_size: int = SHARD) -> dict[str, Any]:
    """The arguments of a pack that is the same as `whole`, but for the shards' size."""
    return {
        "inputs": [str(videos)],
        "destination": str(destination),
        "shard_size": shard_size,
        "workers": 2,
        "options": CUT,
    }


def runs_through(launcher: Launcher, pack: dict[str, Any], kill_after_s: float) -> bool:
    """Run a pack, and kill it after a while. Returns whether it had ended by then."""
    launcher.start(**pack)
    if launcher.has_ended(within_s=kill_after_s):
        return True
    launcher.kill()
    return False


def finish(launcher: Launcher, pack: dict[str, Any]) -> None:
    launcher.start(**pack)
    assert launcher.has_ended(within_s=120)


def duration_of(launcher: Launcher, pack: dict[str, Any], is_begun: Callable[[], bool]) -> tuple[float, float]:
    """Seconds until the first change and until the end of an undisturbed run."""
    launcher.start(**pack)
    began = time.monotonic()
    first = 0.0
    while not launcher.has_ended(within_s=0.002):
        if not first and is_begun():
            first = time.monotonic() - began
    return first, time.monotonic() - began


def test_killed_at_random_moments(launcher: Launcher, videos: Path, whole: dict[str, str], tmp_path: Path) -> None:
    random_moments = random.Random(3)
    destination = tmp_path / "k" / "ds"
    kills = 0
    timed = tmp_path / "t" / "ds"
    first, last = duration_of(launcher, cut_pack(videos, timed), timed.exists)
    assert digests(timed) == whole
    while kills < by_profile(ci=4, nightly=40):
        # A run of kills that get on with it, until it is done; then another.
        moment = first + (last - first) * random_moments.random() * 0.8
        if not runs_through(launcher, cut_pack(videos, destination), moment):
            kills += 1
            continue
        assert digests(destination) == whole
        shutil.rmtree(destination)
    finish(launcher, cut_pack(videos, destination))
    assert digests(destination) == whole


@pytest.mark.parametrize("codec", ["h264", "vp9"])
def test_converting_killed_and_with_more_workers(
    launcher: Launcher, videos: Path, tmp_path: Path, codec: Target
) -> None:
    (tmp_path / "in").mkdir()
    for n in range(6):
        os.link(videos / f"{n}.mp4", tmp_path / "in" / f"{n}.mp4")
    pack_one: dict[str, Any] = {
        "inputs": [str(tmp_path / "in")],
        "destination": str(tmp_path / "one" / "ds"),
        "shard_size": 1,
        "workers": 1,
        "options": PackOptions(transcode=TranscodeOptions(codec=codec, short_side=32, gop=4)),
    }
    assert len(pack(**pack_one).manifest.shards) == 6
    expected = digests(tmp_path / "one")
    destination = tmp_path / "two" / "ds"
    pack_two = {**pack_one, "destination": str(destination), "workers": 2}
    random_moments = random.Random(7)
    first, last = duration_of(launcher, pack_two, destination.exists)
    assert digests(destination.parent) == expected
    shutil.rmtree(destination)
    for _ in range(by_profile(ci=1, nightly=8)):
        if runs_through(launcher, pack_two, first + (last - first) * random_moments.random() * 0.8):
            assert digests(destination.parent) == expected
            shutil.rmtree(destination)
    finish(launcher, pack_two)
    assert digests(destination.parent) == expected


def test_killed_on_s3(
    launcher: Launcher, videos: Path, whole_remote: dict[str, str], tmp_path: Path, s3_bucket: str
) -> None:
    import s3fs

    url = f"s3://{s3_bucket}/killed/ds"
    pack = cut_pack(videos, url, REMOTE_SHARD)

    def begun() -> bool:
        return filesystem.exists(f"{url}/unfinished.txt")

    def files() -> dict[str, str]:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        s3fs.S3FileSystem().get(f"{s3_bucket}/killed/ds", str(copy), recursive=True)
        return digests(copy)

    first, last = duration_of(launcher, pack, begun)
    assert files() == whole_remote
    s3fs.S3FileSystem().rm(f"{s3_bucket}/killed", recursive=True)
    moments = random.Random(5)
    for _ in range(by_profile(ci=2, nightly=8)):
        runs_through(launcher, pack, first + (last - first) * moments.random() * 0.6)
    finish(launcher, pack)
    assert files() == whole_remote


# What going on means


def test_what_is_there_is_not_made_again(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack that fails midway leaves its shards, and the next begins in the middle of the video where it was."""
    destination = tmp_path / "ds"
    written: list[int] = []
    write_record = Journal.write

    def fail_on_fourth(self: Journal, record: Record) -> None:
        if len(written) == 4:
            raise OSError(28, "No space left on device")
        written.append(record.number)
        write_record(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "write", fail_on_fourth)
        with pytest.raises(OSError, match="No space"):
            pack([videos], destination, shard_size=SHARD, options=CUT)
    kept = digests(destination)
    records = [json.loads(path.read_text()) for path in sorted((destination / "progress").glob("*.json"))]
    assert any(record["next"] and record["next"][1] for record in records), "none ends inside a video"
    assert not (destination / "dataset.json").exists()
    asked: list[str] = []
    submit = run_local.Workers.submit

    def note(self: Any, function: Any, *args: Any, **options: Any) -> Any:
        asked.extend(video.name for video, _ in args[1])
        return submit(self, function, *args, **options)

    monkeypatch.setattr(run_local.Workers, "submit", note)
    counted: list[tuple[int, ...]] = []
    monkeypatch.setattr(PackProgress, "advance", lambda self, *counts, resumed=False: counted.append(counts))
    report = pack([videos], destination, shard_size=SHARD, options=CUT)
    assert 0 < report.resumed < report.clips
    files = list(videos.iterdir())
    source_count, source_bytes, clips, _, rejected = map(sum, zip(*counted, strict=True))
    assert (source_count, source_bytes) == (len(files), sum(file.stat().st_size for file in files))
    assert (clips, rejected) == (report.clips, len(report.rejected))
    assert 0 < len(asked) < len(list(videos.iterdir()))
    assert asked[0] != "0.mp4"
    after = digests(destination)
    assert {name: kept[name] for name in kept if name.startswith("shards/0")}.items() <= after.items()


def test_a_damaged_or_foreign_record_is_passed_over(videos: Path, whole: dict[str, str], tmp_path: Path) -> None:
    destination = tmp_path / "ds"
    die_before_change(31, destination, lambda: pack([videos], destination, shard_size=SHARD, options=CUT, workers=1))
    records = sorted((destination / "progress").glob("*.json"))
    assert len(records) >= 4
    (destination / "shards" / f"{records[3].stem}.idx").unlink()  # its shard is not whole
    records[2].write_text("[" * 100_000)
    document = json.loads(records[1].read_text())
    astray = [document["next"][0] + 1, 0]
    records[1].write_text(json.dumps({**document, "fingerprint": "f" * 64, "next": astray}))
    (destination / "progress/notes.txt").write_text("mine")
    pack([videos], destination, shard_size=SHARD, options=CUT)
    (destination / "progress/notes.txt").unlink()
    assert digests(destination) == whole


# Twice the same, and two at once


def test_the_same_again_does_nothing(videos: Path, tmp_path: Path) -> None:
    first = pack([videos / "1.mp4"], tmp_path / "ds")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "ds").rglob("*")}
    again = pack([videos / "1.mp4"], tmp_path / "ds")
    assert again.was_there
    assert not first.was_there
    assert (again.clips, again.bytes, again.resumed) == (0, 0, 0)
    assert (first.clips, first.resumed) == (1, 0)
    assert again.manifest == first.manifest
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "ds").rglob("*")} == before
    for other in ({"shard_size": 5}, {"name": "x"}, {"options": CUT}):
        with pytest.raises(InputError, match="holds a dataset already"):
            pack([videos / "1.mp4"], tmp_path / "ds", **other)  # type: ignore[arg-type]


def test_another_pack_is_told_what_is_in_its_way(videos: Path, tmp_path: Path) -> None:
    destination = tmp_path / "ds"
    shutil.copytree(videos, tmp_path / "in")
    die_before_change(12, destination, lambda: pack([tmp_path / "in"], destination, shard_size=SHARD, workers=1))
    with pytest.raises(InputError, match=r"other options is running or was broken off.*--overwrite"):
        pack([tmp_path / "in"], destination, shard_size=SHARD + 1)
    with pytest.raises(InputError, match="with other videos is running"):
        pack([videos / "1.mp4"], destination, shard_size=SHARD)
    pack([videos / "1.mp4"], destination, overwrite=True)
    assert len(Dataset.open(destination)) == 1
    assert verify(destination).ok
    assert not (destination / "progress").exists()


def test_two_of_the_same_at_once_are_safe(
    launcher: Launcher, videos: Path, whole_remote: dict[str, str], s3_bucket: str, tmp_path: Path
) -> None:
    """On an object store nothing can be locked: both write the same, and one finishes."""
    import s3fs

    url = f"s3://{s3_bucket}/twice/ds"
    with Launcher(tmp_path / "log") as other:
        for one in (launcher, other):
            one.start(**cut_pack(videos, url, REMOTE_SHARD))
        assert all(one.has_ended(within_s=120) for one in (launcher, other))
    s3fs.S3FileSystem().get(f"{s3_bucket}/twice/ds", str(tmp_path / "copy"), recursive=True)
    assert digests(tmp_path / "copy") == whole_remote


def test_of_two_others_at_once_one_is_refused(videos: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second comes when the first has looked, but not claimed the place yet."""
    url = f"s3://{s3_bucket}/others/ds"
    from streamvid.packing import destination

    create = filesystem.create_bytes

    def late(path: str, data: bytes) -> bool:
        monkeypatch.undo()
        assert create(path, journal.unfinished_text("a" * 64))
        return create(path, data)

    monkeypatch.setattr(destination.filesystem, "create_bytes", late)
    with pytest.raises(InputError, match="is running or was broken off"):
        pack([videos / "1.mp4"], url)


def test_shards_that_another_pack_removed_are_made_again(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = tmp_path / "ds"
    write_record = Journal.write

    def interfere(self: Journal, record: Record) -> None:
        write_record(self, record)
        if record.next is None:
            (destination / "shards/00000000.idx").unlink(missing_ok=True)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "write", interfere)
        with pytest.raises(InputError, match="has removed or replaced shards"):
            pack([videos], destination, shard_size=SHARD)
    assert not (destination / "dataset.json").exists()
    assert pack([videos], destination, shard_size=SHARD).resumed
    assert verify(destination).ok


@pytest.mark.parametrize("how", ["taken", "removed", "finished"])
def test_a_pack_whose_place_is_taken_stops(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    destination, other = tmp_path / "ds", tmp_path / "other" / "ds"
    done = pack([videos], other, shard_size=SHARD)
    write_record = Journal.write
    left = [3]

    def interfere(self: Journal, record: Record) -> None:
        write_record(self, record)
        left[0] -= 1
        if left[0]:
            return
        if how == "taken":
            (destination / "unfinished.txt").write_bytes(journal.unfinished_text("a" * 64))
        else:
            (destination / "unfinished.txt").unlink()
        if how == "finished":
            shutil.copytree(other, destination, dirs_exist_ok=True)

    monkeypatch.setattr(Journal, "write", interfere)
    if how == "finished":
        assert pack([videos], destination, shard_size=SHARD).manifest == done.manifest
        assert not (destination / "progress").exists(), "what it noted after the other had cleared up"
        return
    with pytest.raises(InputError, match={"taken": "has taken the place", "removed": "has been removed"}[how]):
        pack([videos], destination, shard_size=SHARD)
    assert left == [0], "it went on"


def test_a_disk_that_fills_up_is_named_and_the_same_command_goes_on(
    videos: Path, whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, real = [0], HashingFile.write

    def write_some(self: HashingFile, data: Any) -> int:
        written[0] += len(data)
        if written[0] > 60_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(HashingFile, "write", write_some)
        with pytest.raises(OSError, match=r"No space left on device; free some, there or in .*: it goes on") as error:
            pack([videos], tmp_path / "ds", shard_size=SHARD, options=CUT)
    assert error.value.filename == str(tmp_path / "ds")
    pack([videos], tmp_path / "ds", shard_size=SHARD, options=CUT)
    assert digests(tmp_path / "ds") == whole
