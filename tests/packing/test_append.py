"""Adding to a dataset: what was there stays as it was, for readers too."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import streamvid as sv
from streamvid.cli.main import main
from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.inspection.verify import verify
from streamvid.packing.append import new_sources, read_base
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.reshape import merge
from streamvid.packing.source_video import SourceVideo
from streamvid.video.encoders import ENCODERS
from streamvid.video.transcode import TranscodeOptions
from tests.packing.test_resume import die_before_change
from tests.support.packed import digests, make_videos
from tests.support.profile import by_profile
from tools.clips import Recipe

SHARD = 21_000


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipes = {f"{n}": Recipe(width=96, height=64, frames=12, gop=6, b_frames=2, seed=n) for n in range(9)}
    return make_videos(tmp_path_factory.mktemp("videos"), recipes)


def some(videos: Path, folder: Path, *names: str) -> Path:
    """A folder with some of the videos."""
    folder.mkdir(exist_ok=True)
    for name in names:
        os.link(videos / name, folder / name)
    return folder


def test_new_videos_come_behind_the_old(videos: Path, tmp_path: Path) -> None:
    source, destination = some(videos, tmp_path / "in", "3.mp4", "4.mp4", "5.mp4"), tmp_path / "ds"
    (source / "bad.mp4").write_bytes(b"no video")
    pack([source], destination, shard_size=SHARD)
    before = digests(destination)
    some(videos, source, "0.mp4", "1.mp4", "8.mp4")
    (source / "worse.mp4").write_bytes(b"no video either")
    report = pack([source], destination, shard_size=SHARD, append=True)
    assert (report.clips, report.skipped, report.manifest.revision) == (3, ("3.mp4", "4.mp4", "5.mp4"), 1)
    assert {one.source for one in report.rejected} == {"bad.mp4", "worse.mp4"}
    after = digests(destination)
    assert {name: after[name] for name in before if name.startswith("shards/")}.items() <= before.items()
    dataset = Dataset.open(destination)
    assert dataset.clips.source == ["3.mp4", "4.mp4", "5.mp4", "0.mp4", "1.mp4", "8.mp4"]
    assert [int(entry.name) // 100 for entry in dataset.shards] == sorted(
        int(entry.name) // 100 for entry in dataset.shards
    )
    assert dataset.manifest.seconds == pytest.approx(6 * 12 / 30, abs=0.01)
    assert verify(destination, decode=True).ok
    # Once more, and there is nothing to do.
    again = pack([some(videos, tmp_path / "in2", "3.mp4", "0.mp4")], destination, append=True)
    assert again.was_there
    assert again.skipped == ("0.mp4", "3.mp4")
    assert digests(destination) == after


def test_options_that_the_last_pack_had_otherwise_are_named(
    videos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole videos among clips of half a second, because --clip was left out the second time, came without a word."""
    options = PackOptions(cutting=FixedLength(6, "frames"))
    pack([some(videos, tmp_path / "in", "3.mp4")], tmp_path / "ds", options=options)
    given: dict[str, Any] = {"options": replace(options, fps=30), "shard_size": SHARD, "append": True}
    pack([some(videos, tmp_path / "in", "4.mp4")], tmp_path / "ds", **given)  # the rate is that of images, of none here
    assert caplog.messages == []
    pack([some(videos, tmp_path / "in", "5.mp4")], tmp_path / "ds", options=PackOptions(track=0), append=True)
    assert caplog.messages == [
        f"{tmp_path}/ds was packed with another cutting and track, by its pack-report.json: give the same if all clips "
        "are to be alike"
    ]
    caplog.clear()
    pack([tmp_path / "in"], tmp_path / "ds", options=options, append=True)  # there is nothing to add
    merge([tmp_path / "ds"], tmp_path / "merged", progress=False)  # its report has no options of clips
    pack([some(videos, tmp_path / "new", "6.mp4")], tmp_path / "merged", options=options, append=True)
    pack([tmp_path / "in"], tmp_path / "ds", options=PackOptions(), overwrite=True)
    assert caplog.messages == []


def test_options_that_are_the_same_are_not_named_as_others(
    videos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A default that is written out; and what an index may not do in any case."""
    given: dict[str, Any] = {"options": PackOptions(transcode=TranscodeOptions("h264"))}
    pack([some(videos, tmp_path / "in", "3.mp4")], tmp_path / "ds", **given)
    given = {"options": PackOptions(transcode=TranscodeOptions("h264", crf=ENCODERS["h264"].crf)), "append": True}
    pack([some(videos, tmp_path / "in", "4.mp4")], tmp_path / "ds", **given)
    sv.index([some(videos, tmp_path / "there", "3.mp4")], tmp_path / "indexed")
    pack([some(videos, tmp_path / "in", "5.mp4")], tmp_path / "indexed", append=True)
    assert caplog.messages == []
    pack([some(videos, tmp_path / "new", "6.mp4")], tmp_path / "indexed", **given)
    assert "was packed with another transcode, by its" in caplog.text


def test_videos_rejected_before_are_tried_again_and_stay_listed(videos: Path, tmp_path: Path) -> None:
    source, destination = some(videos, tmp_path / "in", "3.mp4"), tmp_path / "ds"
    (source / "bad.mp4").write_bytes(b"no video")
    (source / "late.mp4").write_bytes(b"not yet")
    pack([source], destination)
    manifest = (destination / "dataset.json").read_bytes()
    report = pack([source], destination, append=True)
    assert (report.clips, len(report.rejected)) == (0, 2)
    assert (destination / "dataset.json").read_bytes() == manifest
    shutil.copy(videos / "1.mp4", source / "late.mp4")
    report = pack([source / "late.mp4"], destination, append=True)
    assert report.clips == 1
    from streamvid.packing.destination import read_rejected

    assert [one.source for one in read_rejected(str(destination))] == ["bad.mp4"]


def test_classes_keep_their_numbers(videos: Path, tmp_path: Path) -> None:
    def labels(**of: str) -> Path:
        path = tmp_path / "labels.csv"
        path.write_text("path,label\n" + "".join(f"{name[1:]}.mp4,{label}\n" for name, label in of.items()))
        return path

    destination = tmp_path / "ds"
    pack([some(videos, tmp_path / "a", "0.mp4", "1.mp4")], destination, labels=labels(_0="dog", _1="cat"))
    more = some(videos, tmp_path / "b", "2.mp4", "3.mp4", "4.mp4")
    pack([more], destination, labels=labels(_2="bird", _3="dog", _4="ant"), append=True)
    dataset = Dataset.open(destination)
    assert dataset.classes == ("cat", "dog", "ant", "bird")
    assert dataset.clips.label.tolist() == [1, 0, 3, 1, 2]
    with pytest.raises(InputError, match="labels are text and the new ones numbers"):
        pack([some(videos, tmp_path / "c", "5.mp4")], destination, labels=labels(_5="7"), append=True)
    pack([tmp_path / "c"], destination, append=True)
    assert Dataset.open(destination).clips.label.tolist() == [1, 0, 3, 1, 2, -1]
    assert Dataset.open(destination).classes == ("cat", "dog", "ant", "bird")


def test_keys_stay_unique(videos: Path, tmp_path: Path) -> None:
    destination = tmp_path / "ds"
    shutil.copytree(videos, tmp_path / "in")
    pack([tmp_path / "in/1.mp4"], destination, options=PackOptions(cutting=FixedLength(4, "frames")))
    (tmp_path / "in/1.mp4").rename(tmp_path / "in/1.MOV")
    (tmp_path / "in/2.mp4").rename(tmp_path / "in/1_000000.mp4")
    pack([tmp_path / "in/1.MOV", tmp_path / "in/1_000000.mp4", tmp_path / "in/3.mp4"], destination, append=True)
    keys = Dataset.open(destination).clips.key
    assert list(keys[:3]) == ["1_000000", "1_000001", "1_000002"]
    assert len({key.casefold() for key in keys}) == len(keys) == 6
    assert keys[5] == "3"
    assert keys[3].startswith("1-")
    assert verify(destination).ok
    base = read_base(str(destination))
    found = new_sources([SourceVideo("/x/3.avi", "3.avi", "3"), SourceVideo("/x/3.mp4", "3.mp4", "3")], base)
    assert [source.name for source in found] == ["3.avi"]
    assert found[0].key != "3"


def test_appending_killed_anywhere(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old dataset is there all the time, until the new one is; and the second run ends as the only one."""
    old, destination = tmp_path / "old", tmp_path / "ds"
    pack([some(videos, tmp_path / "in", "0.mp4")], old, name="ds")
    some(videos, tmp_path / "in", "5.mp4", "6.mp4")

    def again() -> None:
        pack([tmp_path / "in"], destination, append=True, shard_size=1, workers=1)

    shutil.copytree(old, destination)
    again()
    expected = digests(destination)
    lengths = []
    for at in range(1, 60, by_profile(ci=3, nightly=1)):
        shutil.rmtree(destination)
        shutil.copytree(old, destination)
        code = die_before_change(at, destination, again)
        lengths.append(len(Dataset.open(destination)))
        assert verify(destination).ok
        if code == 0:
            break
        assert code == 9
        again()
        assert digests(destination) == expected, at
    else:
        pytest.fail("it never finished")
    assert lengths == sorted(lengths)
    assert set(lengths) == {1, 3}
    assert lengths.count(1) > by_profile(ci=3, nightly=10)


def test_options_and_places_that_cannot_be(videos: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no dataset at .* to add to"):
        pack([videos], tmp_path / "ds", append=True)
    assert not (tmp_path / "ds").exists()
    with pytest.raises(InputError, match="either overwritten or added to"):
        pack([videos], tmp_path / "ds", append=True, overwrite=True)
    pack([videos / "0.mp4"], tmp_path / "ds")
    die_before_change(30, tmp_path / "ds", lambda: pack([videos], tmp_path / "ds", append=True, shard_size=1))
    assert len(list((tmp_path / "ds/shards").glob("*.parquet"))) > 4
    with pytest.raises(InputError, match=r"with other videos and options is running.*remove unfinished\.txt"):
        pack([videos / "0.mp4", videos / "1.mp4"], tmp_path / "ds", append=True)
    (tmp_path / "ds/unfinished.txt").unlink()
    assert pack([videos / "0.mp4", videos / "1.mp4"], tmp_path / "ds", append=True).clips == 1
    assert verify(tmp_path / "ds").ok
    names = {name.partition(".")[0] for name in digests(tmp_path / "ds/shards")}
    assert names == {entry.name for entry in Dataset.open(tmp_path / "ds").shards}


def test_loaders_go_on_and_new_ones_see_the_new(videos: Path, tmp_path: Path) -> None:
    source, destination = some(videos, tmp_path / "in", "0.mp4", "1.mp4", "2.mp4", "3.mp4"), tmp_path / "ds"
    pack([source], destination, shard_size=SHARD)
    options = {"batch_size": 2, "sampling": sv.Window(2), "device": "cpu", "seed": 1}
    with sv.StreamLoader(destination, **options) as undisturbed:
        expected = [batch["key"] for _ in range(2) for batch in undisturbed]
    with sv.StreamLoader(destination, **options) as loader:
        seen = []
        for epoch in range(2):
            for batch in loader:
                seen.append(batch["key"])
                if len(seen) == 1:
                    some(videos, source, "6.mp4", "7.mp4")
                    pack([source], destination, shard_size=SHARD, append=True)
            assert loader.epoch == epoch + 1
    assert seen == expected
    with sv.StreamLoader(destination, **options) as after:
        assert {key for batch in after for key in batch["key"]} == {"0", "1", "2", "3", "6", "7"}


def test_a_name_of_several_inputs_is_not_packed_twice(videos: Path, tmp_path: Path) -> None:
    """The names of both get the input in front, so that the one that the dataset has looked like a new video."""
    train, val = some(videos, tmp_path / "train", "0.mp4", "1.mp4"), tmp_path / "val"
    pack([train], tmp_path / "ds")
    val.mkdir()
    os.link(videos / "2.mp4", val / "0.mp4")
    before = digests(tmp_path / "ds")
    with pytest.raises(InputError, match=r"0\.mp4: .* more than one input has one, as .*/train/0\.mp4,"):
        pack([train, val], tmp_path / "ds", append=True)
    assert digests(tmp_path / "ds") == before
    pack([train, val], tmp_path / "both")
    assert pack([train, val], tmp_path / "both", append=True).skipped == ("1.mp4", "train/0.mp4", "val/0.mp4")


def test_the_command_says_what_it_did(videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, destination = some(videos, tmp_path / "in", "0.mp4"), str(tmp_path / "ds")

    def said(*options: str) -> str:
        assert main(["pack", str(source), destination, *options]) == 0
        return capsys.readouterr().out

    assert "packed 1 clip " in said()
    assert "nothing to do: " in said()
    some(videos, source, "1.mp4", "2.mp4")
    added = said("--append")
    assert "added 2 clips" in added
    assert "which now has 3 clips" in added
    assert "forgotten" not in added
    assert "skipped 1 video that the dataset had already, going by the path below the input: 0.mp4\n" in added
    assert main(["pack", str(source), destination]) == 2
    assert "--append" in capsys.readouterr().err
    document = json.loads((tmp_path / "ds/pack-report.json").read_text())
    assert {name: document[name] for name in ("revision", "videos", "skipped", "clips", "shards", "rejected")} == {
        "revision": 1,
        "videos": 2,
        "skipped": 1,
        "clips": 2,
        "shards": 1,
        "rejected": 0,
    }
    sv.forget(destination, ["0"])
    some(videos, source, "3.mp4")
    assert "which now has 4 clips" in (added := said("--append"))
    assert "; 1 of them forgotten" in added


def test_the_revision_is_written_once_there_is_one(videos: Path, tmp_path: Path) -> None:
    pack([videos / "0.mp4"], tmp_path / "ds")
    assert "revision" not in json.loads((tmp_path / "ds/dataset.json").read_text())
    for n in (1, 2):
        pack([videos / f"{n}.mp4"], tmp_path / "ds", append=True)
        assert json.loads((tmp_path / "ds/dataset.json").read_text())["revision"] == n
        assert Dataset.open(tmp_path / "ds").manifest.revision == n
    sv.forget(tmp_path / "ds", ["0"])
    assert Dataset.open(tmp_path / "ds").manifest.change is not None
    pack([videos / "3.mp4"], tmp_path / "ds", append=True)
    assert Dataset.open(tmp_path / "ds").manifest.change is None  # that was of the revision before
