"""Replacing bad clips by sound ones: they keep their rows, and all others are unchanged."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import streamvid as sv
from streamvid.cli.main import main
from streamvid.dataset.manifest import SHARD_EXTENSIONS
from streamvid.dataset.revisions import read_manifest
from streamvid.errors import DatasetError, InputError
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.revise import RewrittenShards
from streamvid.storage import filesystem
from tests.packing.test_resume import die_before_change
from tests.revising.conftest import CLIPS
from tests.support.clips import write
from tests.support.faulty_s3 import faulty_s3
from tests.support.images import taken
from tests.support.packed import digests, upload
from tests.support.profile import by_profile
from tools.recipes import Recipe

BAD = ("clip1", "clip4")


@pytest.fixture
def videos(packed: Path) -> Path:
    return packed.parent / "videos"


def spoil(folder: Path, keys: tuple[str, ...] = BAD) -> None:
    """Damage the last packet of clips."""
    dataset = sv.Dataset.open(folder)
    for key in keys:
        row = dataset.row(key)
        with open(dataset.location(row), "r+b") as file:
            file.seek(int(dataset.clips.mp4_offset[row]) + int(dataset.clips.mp4_size[row]) - 20)
            file.write(bytes(20))


def run(folder: Path | str, quarantine: Path, **options: Any) -> sv.StreamLoader:
    options = {"batch_size": 2, "sampling": sv.All(), "device": "cpu", "quarantine": quarantine, **options}
    return sv.StreamLoader(folder, **options)


def found_bad(folder: Path | str, quarantine: Path, **options: Any) -> set[str]:
    loader = run(folder, quarantine, **options)
    list(loader)
    return {bad.key for bad in loader.stats().bad}


def test_bad_clips_are_sound_again(folder: Path, videos: Path, packed: Path, tmp_path: Path) -> None:
    quarantine = tmp_path / "quarantine"
    sound = [batch["video"] for batch in run(packed, tmp_path / "none", shuffle=False)]
    spoil(folder)
    assert found_bad(folder, quarantine) == set(BAD)
    first = run(folder, quarantine)
    batches = iter(first)
    next(batches)
    state = first.state_dict()
    before = sv.Dataset.open(folder)
    report = sv.repair(folder, videos, quarantine=quarantine, progress=False)
    assert (report.revision, set(report.repaired), report.missing, report.bad) == (1, set(BAD), (), {})
    assert report.shards == 2
    after = sv.Dataset.open(folder)
    assert after.clips.key[:] == before.clips.key[:]
    assert after.to_arrow().equals(before.to_arrow())
    assert after.manifest.seconds == before.manifest.seconds
    assert sv.verify(folder, decode=True, progress=False).problems == ()
    # The quarantine of before knows nothing of the new shards.
    assert found_bad(folder, quarantine) == set()
    again = [batch["video"] for batch in run(folder, quarantine, shuffle=False)]
    assert all((a == b).all() for a, b in zip(sound, again, strict=True))
    assert {key for batch in run(folder, quarantine) for key in batch["key"]} == set(after.clips.key)
    resumed = run(folder, quarantine)
    resumed.load_state_dict(state)
    assert len(list(resumed)) == len(resumed) - 1
    again_report = sv.repair(folder, videos, quarantine=quarantine, progress=False)  # as if the first had been killed
    assert (again_report.revision, again_report.repaired, again_report.shards) == (1, (), 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="names no clip of this dataset"):
        sv.repair(folder, videos, quarantine=tmp_path / "empty", progress=False)
    assert found_bad(folder, tmp_path / "other", revision=0) == set(BAD)


def test_another_video_of_the_same_name_is_told(
    folder: Path, videos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It took the place of the bad clip, with that one's label, without a word."""
    spoil(folder)
    assert found_bad(folder, tmp_path / "quarantine") == set(BAD)
    shutil.copytree(videos, tmp_path / "others")
    other = tmp_path / "others" / str(sv.Dataset.open(folder).clips.source[1])
    other.unlink()
    write(Recipe(width=64, height=64, frames=6, gop=3, b_frames=0, seed=77), other)
    caplog.clear()
    assert sv.repair(folder, tmp_path / "others", quarantine=tmp_path / "quarantine", progress=False).repaired
    (said,) = caplog.messages
    assert said.startswith("1 repaired clip, such as 'clip1', of which no packet is as before: see that the videos are")
    assert sv.Dataset.open(folder, revision=0).clips.frames.tolist() == sv.Dataset.open(folder).clips.frames.tolist()


@pytest.mark.parametrize("known", ["three packets", "damaged index", "fast"])
def test_of_too_few_known_packets_nothing_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, known: str) -> None:
    """All of them may have been damaged."""
    folder, count = tmp_path / "ds", 3 if known == "three packets" else 6
    recipe = Recipe(width=64, height=64, frames=count, gop=3, b_frames=0)
    for number, name in enumerate(("in", "others")):
        (tmp_path / name).mkdir()
        write(replace(recipe, seed=number), tmp_path / name / "one.mp4")
    write(replace(recipe, seed=2), tmp_path / "in" / "sound.mp4")
    if known == "fast":
        sv.index([tmp_path / "in"], folder, fast=True, progress=False)
        (tmp_path / "in" / "one.mp4").write_bytes(b"")
    else:
        pack([tmp_path / "in"], folder, progress=False)
        spoil(folder, ("one",))
    assert found_bad(folder, tmp_path / "q") == {"one"}
    if known == "damaged index":
        dataset = sv.Dataset.open(folder)
        with open(dataset.shard_path(0, "packets"), "r+b") as file:
            file.seek(int(dataset.clips.index_offset[dataset.row("one")]))
            file.write(bytes(40))
    caplog.clear()
    assert sv.repair(folder, tmp_path / "others", quarantine=tmp_path / "q", progress=False).repaired == ("one",)
    assert caplog.messages == []


def test_shards_with_the_same_clips(tmp_path: Path) -> None:
    """Their indexes are equal: only the clip that the run found bad is packed again."""
    videos, folder = tmp_path / "in", tmp_path / "ds"
    videos.mkdir()
    for name in ("one", "two"):
        write(Recipe(width=64, height=64, frames=6, gop=3, b_frames=0), videos / f"{name}.mp4")
    pack([videos], folder, shard_size=1)
    assert len({shard.packets_sha256 for shard in read_manifest(str(folder)).shards}) == 1
    spoil(folder, ("two",))
    assert found_bad(folder, tmp_path / "q") == {"two"}
    assert sv.repair(folder, videos, quarantine=tmp_path / "q", progress=False).repaired == ("two",)


def test_a_shard_that_was_lost(folder: Path, videos: Path, tmp_path: Path) -> None:
    """Zeros in its place are a shard of bad clips; tar headers and JSON are made anew."""
    shard = Path(sv.Dataset.open(folder).shard_path(1))
    sound = shard.read_bytes()
    shard.write_bytes(bytes(len(sound)))
    shard.with_suffix(".idx").unlink()
    assert found_bad(folder, tmp_path / "q") == {"clip1"}
    sv.repair(folder, videos, quarantine=tmp_path / "q", progress=False)
    assert Path(sv.Dataset.open(folder).shard_path(1)).read_bytes() == sound
    assert sv.verify(folder, decode=True, progress=False).ok


def test_clips_that_were_cut(videos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    pack([videos], folder, options=PackOptions(cutting=FixedLength(3, "frames")), progress=False)
    sums = [sv.Dataset.open(folder).sha256(row) for row in range(2 * CLIPS)]
    spoil(folder, ("clip2_000001", "clip5_000000"))
    assert found_bad(folder, tmp_path / "q") == {"clip2_000001", "clip5_000000"}
    assert len(sv.repair(folder, videos, quarantine=tmp_path / "q", progress=False).repaired) == 2
    assert [sv.Dataset.open(folder).sha256(row) for row in range(2 * CLIPS)] == sums
    assert sv.verify(folder, decode=True, progress=False).ok


def test_videos_that_stay_where_they_are(videos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    places = Path(shutil.copytree(videos, tmp_path / "in"))
    folder = tmp_path / "ds"
    sv.index([places], folder, progress=False)
    data = bytearray((places / "clip3.mp4").read_bytes())
    data[-20:] = bytes(20)
    (places / "clip3.mp4").write_bytes(data)
    assert found_bad(folder, tmp_path / "q") == {"clip3"}
    report = sv.repair(folder, videos, quarantine=tmp_path / "q", progress=False)  # the copy elsewhere is sound
    assert report.repaired == ("clip3",)
    assert found_bad(folder, tmp_path / "q2") == set()
    assert read_manifest(str(folder)).roots != read_manifest(str(folder), revision=0).roots
    # The damaged file is another one of the same name: an update ended with an error.
    shutil.copy(videos / "clip0.mp4", places / "new.mp4")
    caplog.clear()
    assert sv.index([places], folder, update=True, progress=False).clips == 1
    assert caplog.messages == [
        "1 video of another size or time, which the dataset has elsewhere by that name, as from a repair: left out; "
        f"the first is clip3.mp4 ({videos}/clip3.mp4)"
    ]
    assert len(sv.Dataset.open(folder).forgotten) == 0
    (tmp_path / "link").symlink_to(places)
    assert sv.index([tmp_path / "link"], folder, update=True, progress=False).was_there


def test_killed_after_it_was_published(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the new revision reads in place may be read then."""
    places = Path(shutil.copytree(videos, tmp_path / "in"))
    folder, publish = tmp_path / "ds", RewrittenShards.publish

    def killed(*args: Any, **options: Any) -> None:
        publish(*args, **options)
        raise KeyboardInterrupt

    sv.index([places], folder, progress=False)
    (places / "clip3.mp4").write_bytes((places / "clip3.mp4").read_bytes()[:-20] + bytes(20))
    assert found_bad(folder, tmp_path / "q") == {"clip3"}
    monkeypatch.setattr(RewrittenShards, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        sv.repair(folder, videos, quarantine=tmp_path / "q", progress=False)
    assert read_manifest(str(folder)).revision == 1
    assert found_bad(folder, tmp_path / "q2") == set()


def test_what_cannot_be_repaired(
    folder: Path, videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(folder, ("clip0", "clip1", "clip2"))
    assert len(found_bad(folder, tmp_path / "q")) == 3
    sources = tmp_path / "in"
    sources.mkdir()
    (sources / "clip0.mp4").write_bytes(b"no video")
    before = digests(folder)
    with pytest.raises(InputError, match="none of the 3 clips can be repaired"):
        sv.repair(folder, sources, quarantine=tmp_path / "q", progress=False)
    assert digests(folder) == before
    shutil.copy(videos / "clip1.mp4", sources / "clip1.mp4")
    assert main(["repair", str(folder), str(sources), "--quarantine", str(tmp_path / "q")]) == 1
    out = capsys.readouterr().out
    assert "1 clip repaired in 1 shard; revision 1" in out
    assert "clip2: its video is not among the sources" in out
    assert "clip0: " in out
    with pytest.raises(InputError, match="name a run's quarantine"):
        sv.repair(folder, sources, quarantine=tmp_path / "nothing", progress=False)
    with pytest.raises(InputError, match="no video"):
        sv.repair(folder, tmp_path / "q", quarantine=tmp_path / "q", progress=False)


def test_another_clip_of_the_shard_is_damaged_too(folder: Path, videos: Path, tmp_path: Path) -> None:
    dataset = sv.Dataset.open(folder)
    together = [dataset.key(row) for row in range(CLIPS) if dataset.clips.shard[row] == dataset.clips.shard[CLIPS - 1]]
    spoil(folder, (together[0],))
    assert found_bad(folder, tmp_path / "q") == {together[0]}
    spoil(folder, (together[1],))
    before = digests(folder)
    with pytest.raises(DatasetError, match=f"clip '{together[1]}', which was to stay unchanged, is damaged"):
        sv.repair(folder, videos, quarantine=tmp_path / "q", progress=False)
    left = digests(folder)
    left.pop("revisions/00000000.json", None)
    assert left == before


def test_forgotten_clips_and_columns_stay(folder: Path, videos: Path, tmp_path: Path) -> None:
    import pyarrow as pa

    spoil(folder)
    assert found_bad(folder, tmp_path / "q") == set(BAD)
    sv.forget(folder, ["clip0", "clip4"], purge=False)
    sv.annotate(folder, pa.table({"key": ["clip1"], "note": ["mended"]}))
    assert sv.repair(folder, videos, quarantine=tmp_path / "q", progress=False).repaired == ("clip1",)
    dataset = sv.Dataset.open(folder)
    assert dataset.forgotten.tolist() == [0, 4]
    assert dataset.columns.get("note").to_pylist()[1] == "mended"
    assert dataset.manifest.revision == 3


def test_killed_anywhere(folder: Path, videos: Path, tmp_path: Path) -> None:
    spoil(folder, ("clip1",))
    assert found_bad(folder, tmp_path / "q") == {"clip1"}
    destination = tmp_path / "killed" / "ds"
    for at in range(1, 100, by_profile(ci=3, nightly=1)):
        shutil.rmtree(destination.parent, ignore_errors=True)
        shutil.copytree(folder, destination)

        def call() -> None:
            sv.repair(destination, videos, quarantine=tmp_path / "q", progress=False)

        code = die_before_change(at, destination, call)
        assert code in (0, 9)
        done = read_manifest(str(destination)).revision == 1
        assert found_bad(destination, tmp_path / f"q{at}") == (set() if done else {"clip1"})
        if not done:
            call()
        assert found_bad(destination, tmp_path / f"r{at}") == set()
        written = {path.name for path in destination.glob("shards/5*")}
        assert written == {f"50000000.{kind}" for kind in SHARD_EXTENSIONS}, "what it wrote before is gone"
        if code == 0:
            return
    pytest.fail("it never finished")


def test_on_s3(folder: Path, videos: Path, tmp_path: Path, s3_bucket: str) -> None:
    spoil(folder)
    path = upload(folder, f"s3://{s3_bucket}/repair")
    cache = {"cache_dir": tmp_path / "cache"}
    assert found_bad(path, tmp_path / "q", fetch="ranges", **cache) == set(BAD)
    assert set(sv.repair(path, videos, quarantine=tmp_path / "q", progress=False).repaired) == set(BAD)
    assert found_bad(path, tmp_path / "q2", fetch="ranges", **cache) == set()


def test_how_many_workers_there_may_be(tmp_path: Path) -> None:
    for workers in (0, 1025, "2"):
        with pytest.raises(sv.InputError, match="workers must be a whole number"):
            sv.repair(tmp_path, [tmp_path], quarantine=tmp_path, workers=workers)  # type: ignore[arg-type]


def test_images_and_videos_of_one_folder(tmp_path: Path) -> None:
    """As `pack --images` takes them: of the folder that it took, repair found no images."""
    videos, folder, quarantine = tmp_path / "in", tmp_path / "ds", tmp_path / "q"
    videos.mkdir()
    write(Recipe(width=64, height=64, frames=6, gop=3, b_frames=0), videos / "video.mp4")
    for name in ("one.jpg", "two.jpg"):
        (videos / name).write_bytes(taken()["jpeg_420"].data)
    pack([videos], folder, images=True)
    bad = ("one", "video")
    spoil(folder, bad)
    assert found_bad(folder, quarantine, batch_size=1, transform=sv.Transform(resize=(64, 64))) == set(bad)
    report = sv.repair(folder, videos, quarantine=quarantine, progress=False)
    assert (set(report.repaired), report.missing, report.bad) == (set(bad), (), {})
    assert sv.verify(folder, decode=True, progress=False).problems == ()


@pytest.mark.parametrize("lost", [False, True], ids=["swept by another purge", "dataset.json lost"])
def test_a_purge_in_a_bucket_meanwhile(
    lost: bool, folder: Path, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the file system of a disk has a lock. No revision names files that are not there."""
    spoil(folder)
    publish = RewrittenShards.publish

    def swept(new: RewrittenShards, *given: Any, **more: Any) -> Any:
        sv.forget(url, purge=True)  # nothing is forgotten: it removes what killed changes have left
        return publish(new, *given, **more)

    with faulty_s3() as site:
        url = site.add_folder(folder, "bucket/set")
        found_bad(url, tmp_path / "quarantine", cache_dir=tmp_path / "cache")
        if lost:
            monkeypatch.setattr(filesystem, "replace_bytes", lambda *_, **__: True)
            with pytest.raises(DatasetError, match=r"does not hold s3://bucket/set/dataset.json"):
                sv.forget(url, keys=["clip0"], purge=True)
        else:
            monkeypatch.setattr(RewrittenShards, "publish", swept)
            with pytest.raises(InputError, match=r"another process has removed s3://bucket/set/shards/5.*: run this"):
                sv.repair(url, videos, quarantine=tmp_path / "quarantine", progress=False)
        there = read_manifest(url)
        assert there.revision == 0
        named = {f"bucket/set/{entry.file(kind)}" for entry in there.shards for kind in entry.checksums}
        assert named <= {*site.objects}
