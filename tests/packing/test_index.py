"""Datasets of videos that stay where they are: the frames of packed ones, and what becomes of files that change."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.errors import ClipError, DatasetError, InputError
from streamvid.fetch.encoded_batch import row_color
from streamvid.inspection.verify import verify
from streamvid.loader.clip_dataset import ClipDataset
from streamvid.loader.stream_loader import StreamLoader
from streamvid.packing.index import index
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.source_video import SourceVideo
from streamvid.plan.inputs import Mix
from streamvid.revising.forget import forget
from streamvid.sampling.spread import All
from streamvid.sampling.windows import Window
from streamvid.transform.spec import Transform
from tests.support.clips import write
from tests.support.clock import soon
from tests.support.foreign import CAMERA, CLIP, encoded, write_lerobot, write_tar
from tests.support.in_band import OTHER_SETS, join_recordings
from tests.support.packed import digests, make_videos, upload
from tests.support.reference import sequential
from tools.clips import Recipe

pytestmark = pytest.mark.usefixtures("user")


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    (tmp_path / "videos").mkdir()
    return make_videos(tmp_path / "videos")


def frames(path: Path, **options: Any) -> dict[str, np.ndarray[Any, Any]]:
    """All frames of all clips."""
    clips = ClipDataset(Dataset.open(path, **options), sampling=All())
    return {key: clips[key]["video"].numpy() for key in clips.dataset.clips.key}


def same(ours: dict[str, np.ndarray[Any, Any]], packed: dict[str, np.ndarray[Any, Any]]) -> bool:
    return ours.keys() == packed.keys() and all(np.array_equal(ours[key], packed[key]) for key in packed)


def test_frames_and_rows_are_those_of_packed_videos(tmp_path: Path, videos: Path) -> None:
    report = index(videos, tmp_path / "indexed", progress=False)
    pack(videos, tmp_path / "packed", options=PackOptions("any"), progress=False)
    assert not report.rejected
    assert same(frames(tmp_path / "indexed"), frames(tmp_path / "packed"))
    ours, packed = (Dataset.open(tmp_path / name).to_arrow() for name in ("indexed", "packed"))
    assert ours.equals(packed)
    assert {path.suffix for path in (tmp_path / "indexed").rglob("*") if path.is_file()} == {
        ".json", ".packets", ".parquet",
    }  # fmt: skip


def test_links_that_lead_nowhere_are_told_as_packing_tells_them(tmp_path: Path, videos: Path) -> None:
    (videos / "link.mp4").symlink_to("nowhere.mp4")
    (videos / "circle.mp4").symlink_to("circle.mp4")
    report = index(videos, tmp_path / "ds")
    assert {one.source: one.reason for one in report.rejected} == {
        "link.mp4": "it cannot be opened: No such file or directory; it is a link to 'nowhere.mp4'",
        "circle.mp4": "it cannot be opened: Too many levels of symbolic links; it is a link to 'circle.mp4'",
    }


def test_an_error_suspects_the_source(tmp_path: Path, videos: Path) -> None:
    index([videos], tmp_path / "in")
    source = Dataset.open(tmp_path / "in")
    error = source.clip_error(0, "it is torn")
    assert (error.suspect, error.path) == ("source", source.location(0))


def test_loaders_and_mixtures(tmp_path: Path, videos: Path) -> None:
    index(videos, tmp_path / "indexed", progress=False)
    pack(videos, tmp_path / "packed", options=PackOptions("any"), progress=False)
    options: dict[str, Any] = {
        "sampling": Window(4),
        "transform": Transform(resize=(32, 32)),
        "batch_size": 2,
        "seed": 3,
    }
    for one in (str(tmp_path / "indexed"), Mix([(str(tmp_path / "indexed"), 1), (str(tmp_path / "packed"), 1)])):
        with StreamLoader(one, **options) as loader:
            batches = [(batch["key"], batch["video"]) for batch in loader]
            assert sum(len(keys) for keys, _ in batches) >= 6
    with (
        StreamLoader(str(tmp_path / "indexed"), **options) as a,
        StreamLoader(str(tmp_path / "packed"), **options) as b,
    ):
        for ours, packed in zip(a, b, strict=True):
            assert ours["key"] == packed["key"]
            assert np.array_equal(ours["video"], packed["video"])


def test_a_state_resumes(tmp_path: Path, videos: Path) -> None:
    index(videos, tmp_path / "indexed", progress=False)
    options: dict[str, Any] = {"sampling": Window(2), "transform": Transform(resize=(32, 32)), "batch_size": 2}
    with StreamLoader(str(tmp_path / "indexed"), **options) as loader:
        wanted = [batch["key"] for batch in loader]
    with StreamLoader(str(tmp_path / "indexed"), **options) as loader:
        for _ in loader:
            state = loader.state_dict()
            break
    with StreamLoader(str(tmp_path / "indexed"), **options) as loader:
        loader.load_state_dict(state)
        assert [batch["key"] for batch in loader] == wanted[1:]


def test_tars_of_others(tmp_path: Path) -> None:
    clips = [encoded(replace(CLIP, frames=count), tmp_path) for count in (5, 6)]
    members = [
        (f"{n}.{ext}", data) for n, clip in enumerate(clips) for ext, data in (("mp4", clip), ("txt", b"text %d" % n))
    ]
    write_tar(tmp_path / "tars" / "a.tar", members)
    index(tmp_path / "tars", tmp_path / "indexed", progress=False)
    for number, clip in enumerate(clips):
        (tmp_path / f"{number}.mp4").write_bytes(clip)
    pack([tmp_path / "0.mp4", tmp_path / "1.mp4"], tmp_path / "packed", options=PackOptions("any"), progress=False)
    assert same(frames(tmp_path / "indexed"), frames(tmp_path / "packed"))
    assert Dataset.open(tmp_path / "indexed").to_arrow()["txt"].to_pylist() == ["text 0", "text 1"]


def test_a_json_in_a_tar_may_have_fields_named_like_the_columns_of_cuts(tmp_path: Path) -> None:
    member = ("0.json", b'{"start": 1.5, "end": "x", "start_frame": 7, "other": 2}')
    write_tar(tmp_path / "a.tar", [("0.mp4", encoded(replace(CLIP, frames=6), tmp_path)), member])
    pack(tmp_path / "a.tar", tmp_path / "whole", progress=False)
    table = Dataset.open(tmp_path / "whole").to_arrow()
    assert (table["start"].to_pylist(), table["end"].to_pylist()) == ([1.5], ["x"])
    pack(tmp_path / "a.tar", tmp_path / "cut", options=PackOptions(cutting=FixedLength(4, "frames")), progress=False)
    table = Dataset.open(tmp_path / "cut").to_arrow()
    assert table["start_frame"].to_pylist() == [0, 4]
    assert table["json_start_frame"].to_pylist() == [7, 7]
    assert table["json_end"].to_pylist() == ["x", "x"]
    assert table["other"].to_pylist() == [2, 2]


def test_episodes_of_a_robot(tmp_path: Path) -> None:
    place = write_lerobot(tmp_path / "robot", [5, 4, 3])
    index(place, tmp_path / "indexed", camera=CAMERA, progress=False)
    whole = frames_of_files(tmp_path, place)
    ours = frames(tmp_path / "indexed")
    assert [len(one) for one in ours.values()] == [5, 4, 3]
    assert np.array_equal(np.concatenate(list(ours.values())), whole)
    table = Dataset.open(tmp_path / "indexed").to_arrow()
    assert table["task"].to_pylist() == ["task 0", "task 1", "task 0"]
    assert table["episode"].to_pylist() == [0, 1, 2]
    assert set(table["camera"].to_pylist()) == {CAMERA}


def frames_of_files(tmp_path: Path, place: Path) -> np.ndarray[Any, Any]:
    """The frames of a place's video files one after another, as packing has them."""
    pack(place / "videos", tmp_path / "whole", options=PackOptions("any"), progress=False)
    return np.concatenate(list(frames(tmp_path / "whole").values()))


def test_episodes_are_not_cut_by_a_rule(tmp_path: Path) -> None:
    """Clips went from episode to episode, without their tasks."""
    place = write_lerobot(tmp_path / "robot", [5, 4])
    with pytest.raises(InputError, match="are its episodes: index it by itself, without --clip"):
        index(place, tmp_path / "ds", cutting=FixedLength(3, "frames"))


def test_episodes_by_tables(tmp_path: Path) -> None:
    place = write_lerobot(
        tmp_path / "robot", [5, 4, 3], recipe=Recipe(codec="av1", width=128, height=96, gop=5, b_frames=0)
    )
    for name, fast in (("fast", True), ("full", False)):
        index(place, tmp_path / name, fast=fast, progress=False)
    assert same(frames(tmp_path / "fast"), frames(tmp_path / "full"))


def test_a_span_that_is_not_as_long_as_it_says_is_listed(tmp_path: Path) -> None:
    place = write_lerobot(tmp_path / "robot", [5, 4, 3], lengths={1: 6})
    report = index(place, tmp_path / "indexed", progress=False)
    assert [one.reason.partition(" holds ")[2] for one in report.rejected] == ["4 frames, and should hold 6"]
    assert Dataset.open(tmp_path / "indexed").to_arrow()["episode"].to_pylist() == [0, 2]


def test_cuts_where_they_lie(tmp_path: Path) -> None:
    write(replace(CLIP, frames=20, gop=8), tmp_path / "long.mp4")
    cutting = FixedLength(6, "frames")
    index(tmp_path / "long.mp4", tmp_path / "indexed", cutting=cutting, progress=False)
    pack(tmp_path / "long.mp4", tmp_path / "packed", options=PackOptions("any", cutting=cutting), progress=False)
    assert same(frames(tmp_path / "indexed"), frames(tmp_path / "packed"))


def test_a_state_and_a_quarantine_are_of_one_dataset(tmp_path: Path, videos: Path) -> None:
    """Shards without tars are known by their rows."""
    options: dict[str, Any] = {"sampling": Window(2), "transform": Transform(resize=(32, 32)), "batch_size": 1}
    for name in ("a", "b"):
        index(videos / name, tmp_path / f"of-{name}", progress=False)
    broken = videos / "a/one.mp4"
    broken.write_bytes(broken.read_bytes() + b"!")
    with StreamLoader(str(tmp_path / "of-a"), **options) as loader:
        for batch in loader:
            state = loader.state_dict()
            assert not batch["key"][0].startswith("a_one")
    with StreamLoader(str(tmp_path / "of-b"), **options) as loader:
        assert all(bool(batch["valid"].all()) for batch in loader)
        with pytest.raises(InputError):
            loader.load_state_dict(state)


def test_by_tables(tmp_path: Path, videos: Path) -> None:
    index(videos, tmp_path / "fast", fast=True, progress=False)
    pack(videos, tmp_path / "packed", options=PackOptions("any"), progress=False)
    assert same(frames(tmp_path / "fast"), frames(tmp_path / "packed"))
    data = Dataset.open(tmp_path / "fast")
    assert (data.index(0).crc32c == -1).all()


def test_tables_that_lie_are_found_out_when_they_are_used(tmp_path: Path) -> None:
    """Of 40 key frames by the container one is none, and not one of those that are looked at."""
    path = write(replace(CLIP, frames=40, gop=1, b_frames=0), tmp_path / "clip.mp4")
    index(path, tmp_path / "fast", fast=True, progress=False)
    own = Dataset.open(tmp_path / "fast").index(0)
    deny_key_frame(path, int(own.offset[13]), int(own.size[13]))
    clips = ClipDataset(str(tmp_path / "fast"))
    clips.get("clip", frames=[12])
    with pytest.raises(ClipError, match=r"its container calls it a key frame.*without --fast"):
        clips.get("clip", frames=[13])


def deny_key_frame(path: Path, at: int, size: int) -> None:
    """Make the slice of an IDR picture one of another, in a file that looks as it did before: type 5 becomes 1."""
    whole, status = path.read_bytes(), path.stat()
    start = whole.index(b"\x65", at, at + size)
    path.write_bytes(whole[:start] + b"\x61" + whole[start + 1 :])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_file_that_changes_is_a_bad_clip(tmp_path: Path, videos: Path) -> None:
    index(videos, tmp_path / "indexed", progress=False)
    clips = ClipDataset(str(tmp_path / "indexed"))
    (key,) = [key for key in clips.dataset.clips.key if key.startswith("a_one")]
    wanted = clips.get(key, frames=[3])["video"]
    path = videos / "a/one.mp4"
    status, data = path.stat(), path.read_bytes()
    # Another file of that name: whoever has the old one open still reads that.
    os.replace(shutil.copy(videos / "slow.mp4", tmp_path / "other.mp4"), path)
    assert np.array_equal(clips.get(key, frames=[3])["video"], wanted)
    with pytest.raises(ClipError, match=f"clip '{key}'.*changed since it was indexed.*bytes"):
        ClipDataset(str(tmp_path / "indexed")).get(key, frames=[3])
    path.write_bytes(data)
    with pytest.raises(ClipError, match="written at another time"):
        ClipDataset(str(tmp_path / "indexed")).get(key, frames=[3])
    # The same size and time, and other bytes: the checksums of its packets tell.
    at = int(clips.dataset.index(clips.dataset.row(key)).offset[0])
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(ClipError, match="CRC-32C"):
        ClipDataset(str(tmp_path / "indexed")).get(key, frames=[0])
    path.unlink()
    with pytest.raises(ClipError, match="cannot be opened"):
        ClipDataset(str(tmp_path / "indexed")).get(key, frames=[3])


def test_a_file_that_changes_while_it_is_open_is_noticed(tmp_path: Path) -> None:
    path = write(CLIP, tmp_path / "clip.mp4")
    index(path, tmp_path / "indexed", progress=False)
    clips = ClipDataset(str(tmp_path / "indexed"))
    clips.get("clip", frames=[0])
    with path.open("r+b") as file:
        file.write(b"\x00")
    with pytest.raises(ClipError, match="changed since it was indexed"):
        clips.get("clip", frames=[0])


def test_what_cannot_be_read_where_it_lies_is_listed_or_packed(tmp_path: Path, videos: Path) -> None:
    write(replace(CLIP, container="ts"), videos / "stream.ts")
    report = index(videos, tmp_path / "indexed", progress=False)
    assert [one.source for one in report.rejected] == ["stream.ts"]
    assert pq.read_table(tmp_path / "indexed" / "rejected.parquet")["source"].to_pylist() == ["stream.ts"]
    report = index(videos, tmp_path / "both", copy_others=True, progress=False)
    assert report.clips == 7
    assert not report.rejected
    pack(videos, tmp_path / "packed", options=PackOptions("any"), progress=False)
    assert same(frames(tmp_path / "both"), frames(tmp_path / "packed"))
    assert index(videos, tmp_path / "both", copy_others=True, progress=False).was_there


def test_what_has_no_tables_or_no_order_is_listed_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    good = write(CLIP, tmp_path / "v" / "good.mp4").read_bytes()
    (tmp_path / "v" / "broken_off.mp4").write_bytes(good[: good.index(b"moov") - 4])
    pieces = replace(CLIP, muxer=(("movflags", "dash+frag_keyframe"),))
    data = write(pieces, tmp_path / "pieces.mp4").read_bytes()
    (tmp_path / "v" / "segment.mp4").write_bytes(data[data.index(b"moof") - 4 :])
    at = good.index(b"stts") + 16  # all frames at the same time
    (tmp_path / "v" / "times.mp4").write_bytes(good[:at] + bytes(4) + good[at + 4 :])
    for fast in (False, True):
        report = index(tmp_path / "v", tmp_path / f"indexed-{fast}", fast=fast, progress=False)
        reasons = {one.source: one.reason for one in report.rejected}
        assert reasons.keys() == {"broken_off.mp4", "segment.mp4", "times.mp4"}
        for name in ("broken_off.mp4", "segment.mp4"):
            assert "without its moov box" in reasons[name]
        assert "its clock falls back" in reasons["times.mp4"]  # from the key frame to the B-frames that come next


@pytest.mark.parametrize("right", [0, 8])
def test_an_order_that_tables_get_wrong_is_found_out(right: int, tmp_path: Path) -> None:
    """B-frames, and times in decode order from a packet on: packing follows the bitstream. Tables cannot, but tell
    where they have no other times at all."""
    data = bytearray(write(replace(CLIP, frames=24, gop=8), tmp_path / "clip.mp4").read_bytes())
    at = data.index(b"ctts") + 8
    (runs,) = struct.unpack_from(">I", data, at)
    entries = [list(struct.unpack_from(">II", data, at + 4 + 8 * run)) for run in range(runs)]
    before = 0
    for run, (count, _) in enumerate(entries):
        if before >= right:
            struct.pack_into(">I", data, at + 8 + 8 * run, entries[0][1])
        before += count
    (tmp_path / "clip.mp4").write_bytes(data)
    index(tmp_path / "clip.mp4", tmp_path / "full", progress=False)
    pack(tmp_path / "clip.mp4", tmp_path / "packed", options=PackOptions("any"), progress=False)
    assert same(frames(tmp_path / "full"), frames(tmp_path / "packed"))
    index(tmp_path / "clip.mp4", tmp_path / "fast", fast=True, progress=False)
    if not right:
        assert same(frames(tmp_path / "fast"), frames(tmp_path / "packed"))
        return
    with pytest.raises(ClipError, match="in another order than that of their times"):
        ClipDataset(str(tmp_path / "fast")).get("clip", frames=range(right + 10))


@pytest.mark.parametrize("in_band", [False, True])
@pytest.mark.parametrize("codec", OTHER_SETS)
def test_joined_recordings_whose_later_key_frames_lack_their_sets(codec: Any, in_band: bool, tmp_path: Path) -> None:
    """What began at these was decoded by the sets of the first, to wrong pixels."""
    path = join_recordings(codec, tmp_path / "joined.mp4", in_band=in_band)
    index(path, tmp_path / "fast", fast=True, progress=False)
    clips = ClipDataset(str(tmp_path / "fast"))
    for number, expected in enumerate(sequential(path, color=row_color(clips.dataset.clips, 0))):
        assert np.array_equal(clips.get("joined", frames=[number])["video"][0], expected)


def test_an_empty_place(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    write_tar(tmp_path / "tars" / "none.tar", [])
    write_lerobot(tmp_path / "robot", [])
    for place, said in (("none", "no videos in"), ("tars", "it holds no videos"), ("robot", "no episodes with videos")):
        with pytest.raises(InputError, match=said):
            index(tmp_path / place, tmp_path / "indexed", progress=False)
        assert not (tmp_path / "indexed" / "dataset.json").exists()


def test_only_what_must_be_copied(tmp_path: Path) -> None:
    write(replace(CLIP, container="ts"), tmp_path / "stream.ts")
    with pytest.raises(InputError, match="pieces of 184 bytes"):
        index(tmp_path / "stream.ts", tmp_path / "indexed", progress=False)
    assert index(tmp_path / "stream.ts", tmp_path / "indexed", copy_others=True, progress=False).clips == 1
    assert len(frames(tmp_path / "indexed")["stream"]) == 12


def test_a_killed_index_goes_on(tmp_path: Path) -> None:
    """Killed with SIGKILL between two shards, and run again by the command: the same bytes as of one run."""
    videos = tmp_path / "many"
    videos.mkdir()
    for number in range(520):  # three groups
        write(replace(CLIP, frames=1 + number % 2), videos / f"{number:03d}.mp4")
    index(videos, tmp_path / "once", name="ds", progress=False)
    command = [
        sys.executable,
        "-m",
        "streamvid",
        "index",
        str(videos),
        str(tmp_path / "killed"),
        "--name",
        "ds",
    ]
    run = subprocess.Popen([*command, "--workers", "2"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    progress = tmp_path / "killed" / "progress"
    assert soon(lambda: any(progress.glob("*.json")) or run.poll() is not None)
    assert run.poll() is None
    run.kill()
    run.wait()
    assert not (tmp_path / "killed" / "dataset.json").exists()
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed" / "shards").glob("*.parquet")}
    report = index(videos, tmp_path / "killed", name="ds", progress=False)
    assert report.resumed >= 256
    assert all(path.stat().st_mtime_ns == written for path, written in done.items())
    assert digests(tmp_path / "killed") == digests(tmp_path / "once")


def test_the_same_again_does_nothing(tmp_path: Path, videos: Path) -> None:
    index(videos, tmp_path / "indexed", progress=False)
    before = (tmp_path / "indexed" / "dataset.json").read_bytes()
    assert index(videos, tmp_path / "indexed", progress=False).was_there
    assert (tmp_path / "indexed" / "dataset.json").read_bytes() == before
    with pytest.raises(InputError, match="--update"):
        index(videos / "a", tmp_path / "indexed", progress=False)


def test_update_looks_at_what_is_new_or_changed(tmp_path: Path, videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamvid.packing import process_source

    looked: list[str] = []
    index_source = process_source.index_source

    def look(source: SourceVideo, *rest: Any) -> Any:
        looked.append(source.name)
        return index_source(source, *rest)

    monkeypatch.setattr(process_source, "index_source", look)
    index(videos, tmp_path / "indexed", progress=False)
    assert len(looked) == 6
    assert index(videos, tmp_path / "indexed", update=True, progress=False).was_there
    write(replace(CLIP, frames=7), videos / "new.mp4")
    write(replace(CLIP, frames=8), videos / "slow.mp4")
    report = index(videos, tmp_path / "indexed", update=True, progress=False)
    assert looked[6:] == ["new.mp4", "slow.mp4"]
    assert report.clips == 2
    data = Dataset.open(tmp_path / "indexed")
    (old,) = data.forgotten.tolist()
    assert data.clips.source[old] == "slow.mp4"
    clips = ClipDataset(data, sampling=All())
    assert len({clips[number]["key"] for number in range(len(clips))}) == 7
    with pytest.raises(KeyError, match="forgotten"):
        clips.get(old, frames=[0])
    every: dict[str, Any] = {"sampling": All(), "transform": Transform(resize=(32, 32)), "on_error": "raise"}
    with StreamLoader(data, batch_size=1, **every) as loader:
        shown = {data.clips.source[int(batch["clip"][0])]: batch["mask"].sum() for batch in loader}
    assert (len(shown), shown["slow.mp4"], shown["new.mp4"]) == (7, 8, 7)
    # Nobody reads the file of before; it is no problem that it is gone.
    assert verify(tmp_path / "indexed", decode=True, progress=False).problems == ()
    # Again and again: each version has a key of its own.
    for frames_now in (4, 5, 6, 7):
        write(replace(CLIP, frames=frames_now), videos / "slow.mp4")
        assert index(videos, tmp_path / "indexed", update=True, progress=False).clips == 1
    assert len(Dataset.open(tmp_path / "indexed").forgotten) == 5


def test_an_update_of_a_folder_that_was_moved_finds_its_videos_again(tmp_path: Path, videos: Path) -> None:
    """There was nothing to do, and every clip stayed a bad one."""
    made, moved, link = tmp_path / "indexed", tmp_path / "moved", tmp_path / "link"
    index(videos, made, progress=False)
    link.symlink_to(videos)
    assert index(link, made, update=True, progress=False).was_there
    videos.rename(moved)
    assert index(moved, made, update=True, progress=False).clips == 6
    assert verify(made, progress=False).problems == ()
    assert len(Dataset.open(made).forgotten) == 6
    link.unlink()
    link.symlink_to(moved)
    os.utime(moved / "slow.mp4")
    assert index(link, made, update=True, progress=False).clips == 1


def test_an_update_from_another_folder_forgets_no_clip_of_a_video_of_the_same_name(
    tmp_path: Path, videos: Path
) -> None:
    """It took the other folder's video for a new version, and forgot the clips of the one that was there."""
    made, others = tmp_path / "indexed", tmp_path / "others"
    index(videos, made, progress=False)
    shutil.copytree(videos, others, copy_function=shutil.copy2)
    assert index(others, made, update=True, progress=False).was_there  # copies, of the same size and time
    write(replace(CLIP, frames=8), others / "slow.mp4")
    with pytest.raises(InputError, match=r"slow\.mp4: the dataset has a video of this name, .*of another size or time"):
        index(others, made, update=True, progress=False)
    assert not len(Dataset.open(made).forgotten)


def test_an_update_from_a_folder_above_indexes_no_file_twice(tmp_path: Path, videos: Path) -> None:
    """Files that the dataset had by their paths below another folder were added again: each came twice in an epoch."""
    index(videos / "a", tmp_path / "indexed", progress=False)
    with pytest.raises(InputError, match=r"a/one\.mp4: the dataset has this file as one\.mp4, .*not as a/one\.mp4"):
        index(videos, tmp_path / "indexed", update=True, progress=False)
    assert index(videos / "b", tmp_path / "indexed", update=True, progress=False).clips == 2
    (tmp_path / "link").symlink_to(videos)
    with pytest.raises(InputError, match=r"link/a/one\.mp4: the dataset has this file as one\.mp4"):
        index(tmp_path / "link", tmp_path / "indexed", update=True, progress=False)


def test_an_update_of_tars_that_cannot_be_read_to_their_end(tmp_path: Path) -> None:
    """It was an error: the line that says what is wrong with a tar counted as its file by another name."""
    one, two = (encoded(replace(CLIP, seed=seed), tmp_path) for seed in range(2))
    tar, made = tmp_path / "in" / "some" / "a.tar", tmp_path / "ds"
    write_tar(tar, [("1.mp4", two), ("0.mp4", one), ("0.mp4", one), ("2.mp4", b"no video")])
    assert index(tar.parent, made, progress=False).clips == 2
    report = index(tar.parent, made, update=True, progress=False)
    assert (report.clips, [video.source for video in report.rejected]) == (0, ["a.tar", "a.tar/2.mp4"])
    with pytest.raises(
        InputError, match=r"a\.tar: the dataset has this file as a\.tar/0\.mp4, .*not as some/a\.tar/0\.mp4"
    ):
        index(tar.parents[1], made, update=True, progress=False)
    write_tar(tar, [("3.mp4", one), ("0.mp4", one)])  # where another one began
    assert index(tar.parent, made, update=True, progress=False).clips == 2
    os.truncate(tar, 600)
    assert len(index(tar.parent, made, update=True, progress=False).rejected) == 1


def test_clips_of_a_changed_video_with_a_long_name_get_new_keys(tmp_path: Path) -> None:
    """The keys of its clips are shortened: the dataset had two of each, and could not be opened any more."""
    place, made, halves = tmp_path / "in", tmp_path / "ds", FixedLength(6, "frames")
    video = place / f"{'a' * 78}.mp4"
    place.mkdir()
    for seed in range(3):
        video.unlink(missing_ok=True)
        write(replace(CLIP, frames=12, seed=seed), video)
        index(place, made, cutting=halves, update=seed > 0)
    dataset = Dataset.open(made)
    assert (len(set(dataset.clips.key[:])), len(dataset.forgotten)) == (6, 4)


def test_a_changed_video_that_is_rejected_is_tried_again(tmp_path: Path, videos: Path) -> None:
    """As one that is still being copied: no later update took it, as the dataset had its name."""
    made, video = tmp_path / "ds", videos / "slow.mp4"
    index(videos, made)
    sound = video.read_bytes()
    video.write_bytes(sound[:-200])
    write(CLIP, videos / "new.mp4")
    report = index(videos, made, update=True)
    assert (report.clips, [one.source for one in report.rejected]) == (1, ["slow.mp4"])
    report = index(videos, made, update=True)
    assert (report.clips, [one.source for one in report.rejected]) == (0, ["slow.mp4"])
    video.write_bytes(sound)
    report = index(videos, made, update=True)
    assert (report.clips, report.rejected) == (1, ())
    assert index(videos, made, update=True).was_there
    forget(made, keys=[key for key in Dataset.open(made).clips.key if key.startswith("slow-")], purge=True)
    assert index(videos, made, update=True).was_there


def test_images_need_no_rate_where_they_are_not_packed(tmp_path: Path, videos: Path) -> None:
    """The index ended with the advice to give --fps, which it does not have."""
    from tests.packing.test_images import write_jpegs

    write_jpegs(videos / "walk", ["1.jpg", "2.jpg", "3.jpg"])
    (rejected,) = index(videos, tmp_path / "ds").rejected
    assert (rejected.source, "--copy-others" in rejected.reason) == ("walk", True)
    with pytest.raises(InputError, match="give --fps to streamvid pack, or put a timestamps"):
        index(videos, tmp_path / "ds", copy_others=True)


def test_a_place_that_changes_while_it_is_indexed(
    tmp_path: Path, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamvid.packing import process_source

    look = process_source.index_where_it_lies

    def change_first(video: Any, folder: Path) -> Any:
        if video.path.name == "slow.mp4":
            video.path.write_bytes(video.path.read_bytes())
        if video.path.name == "one.mp4":
            video.path.unlink()
        return look(video, folder)

    monkeypatch.setattr(process_source, "index_where_it_lies", change_first)
    report = index(videos, tmp_path / "indexed", progress=False)
    assert sorted(one.source for one in report.rejected) == ["a/one.mp4", "slow.mp4"]
    assert report.clips == 4


def test_other_processes_and_roots(tmp_path: Path, videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    index(videos, tmp_path / "indexed", progress=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another user"))
    clips = ClipDataset(str(tmp_path / "indexed"), roots=[videos])
    again = pickle.loads(pickle.dumps(clips))
    assert np.array_equal(again.get("slow", frames=[1])["video"], clips.get("slow", frames=[1])["video"])
    options: dict[str, Any] = {"sampling": Window(2), "transform": Transform(resize=(32, 32)), "batch_size": 2}
    with StreamLoader(str(tmp_path / "indexed"), roots=videos, **options) as loader:
        assert next(iter(loader))["video"].shape[0] == 2
    assert verify(tmp_path / "indexed", roots=[videos], progress=False).ok


def test_verify(tmp_path: Path, videos: Path) -> None:
    index(videos, tmp_path / "indexed", progress=False)
    assert verify(tmp_path / "indexed", decode=True, progress=False).problems == ()
    path = videos / "slow.mp4"
    path.write_bytes(path.read_bytes())
    (problem,) = verify(tmp_path / "indexed", progress=False).problems
    assert problem.clip == "slow"
    assert "changed" in problem.what


def test_verify_adds_the_checksums_that_tables_lack(tmp_path: Path, videos: Path) -> None:
    index(videos, tmp_path / "fast", fast=True, progress=False)
    index(videos, tmp_path / "full", progress=False)
    write(replace(CLIP, frames=7), videos / "slow.mp4")
    index(videos, tmp_path / "fast", fast=True, update=True, progress=False)  # one is forgotten
    options: dict[str, Any] = {"sampling": Window(2), "transform": Transform(resize=(32, 32)), "batch_size": 1}
    old = Dataset.open(tmp_path / "fast")
    with StreamLoader(str(tmp_path / "fast"), **options) as loader:
        next(iter(loader))
        state = loader.state_dict()
    report = verify(tmp_path / "fast", progress=False)
    assert not [one for one in report.problems if one.clip != "slow"]
    assert report.notes[0] == "checksums of 4 clips are stored from now on"
    new, full = Dataset.open(tmp_path / "fast"), Dataset.open(tmp_path / "full")
    assert new.manifest.revision == old.manifest.revision + 1
    assert new.forgotten.tolist() == old.forgotten.tolist()
    assert new.to_arrow().equals(old.to_arrow())
    for row, key in enumerate(new.clips.key):
        if row not in new.forgotten:
            assert (new.index(row).crc32c >= 0).all()
        if key in full.clips.key and key != "slow":
            assert np.array_equal(new.index(row).crc32c, full.index(full.row(key)).crc32c)
    # Whoever has read the old files goes on, and so do the states of runs.
    assert (old.index(0).crc32c == -1).all()
    with StreamLoader(str(tmp_path / "fast"), **options) as loader:
        loader.load_state_dict(state)
        next(iter(loader))
    # Once.
    report = verify(tmp_path / "fast", progress=False)
    assert report.manifest.revision == new.manifest.revision
    assert not any("stored" in one or "not named" in one for one in report.notes)


def test_verify_adds_no_checksums_of_what_contradicts_its_tables(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    for name in ("good", "bad"):
        write(replace(CLIP, frames=40, gop=1, b_frames=0), tmp_path / "v" / f"{name}.mp4")
    index(tmp_path / "v", tmp_path / "fast", fast=True, progress=False)
    own = Dataset.open(tmp_path / "fast").index(0)
    deny_key_frame(tmp_path / "v" / "bad.mp4", int(own.offset[13]), int(own.size[13]))
    report = verify(tmp_path / "fast", progress=False)
    assert [(one.clip, "key frame" in one.what) for one in report.problems] == [("bad", True)]
    data = Dataset.open(tmp_path / "fast")
    assert [bool((data.index(row).crc32c >= 0).all()) for row in (0, 1)] == [False, True]


def test_a_place_that_cannot_be_written_to_is_verified_all_the_same(
    tmp_path: Path, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamvid.inspection import stored_checksums
    from streamvid.packing import revise

    def refuse(*_: object) -> bool:
        raise DatasetError("Cannot write")

    index(videos, tmp_path / "fast", fast=True, progress=False)
    before = digests(tmp_path / "fast")
    monkeypatch.setattr(stored_checksums.filesystem, "create_bytes", refuse)
    report = verify(tmp_path / "fast", progress=False)
    assert report.ok
    assert "could not be added to the dataset: Cannot write" in report.notes[0]
    monkeypatch.undo()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user"))

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(revise, "publish_revision", die)
    with pytest.raises(KeyboardInterrupt):
        verify(tmp_path / "fast", progress=False)
    assert digests(tmp_path / "fast") == before


# What a dataset may read


def test_other_roots_must_be_named_by_the_user(tmp_path: Path, videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(videos, tmp_path / "indexed", progress=False)
    Dataset.open(tmp_path / "indexed")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another user"))
    with pytest.raises(InputError, match="roots="):
        Dataset.open(tmp_path / "indexed")
    assert frames(tmp_path / "indexed", roots=[str(videos)])


def test_roots_that_cannot_be_noted_are_told(
    tmp_path: Path, videos: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the dataset, which was made without a word, is refused when it is opened."""
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/none")
    index(videos, tmp_path / "indexed", progress=False)
    assert "name them with --roots" in caplog.text
    caplog.clear()
    index(shutil.copytree(videos, tmp_path / "own"), tmp_path / "own", progress=False)
    assert frames(tmp_path / "own")
    assert not caplog.records


def test_a_root_that_is_not_there_is_told(tmp_path: Path, videos: Path, caplog: pytest.LogCaptureFixture) -> None:
    index(videos, tmp_path / "indexed", roots=tmp_path / "no", progress=False)
    assert Dataset.open(tmp_path / "indexed", roots=[tmp_path / "nor", videos, "memory://no"])
    assert [one.getMessage() for one in caplog.records] == [
        f"roots: '{tmp_path}/{name}' is no folder on this machine: mount it, or name another" for name in ("no", "nor")
    ]


def test_a_grant_is_of_a_dataset_and_its_roots(tmp_path: Path, videos: Path) -> None:
    index(videos, tmp_path / "indexed", progress=False)
    shutil.copytree(tmp_path / "indexed", tmp_path / "copied")
    with pytest.raises(InputError, match="roots="):
        Dataset.open(tmp_path / "copied")
    document = json.loads((tmp_path / "indexed" / "dataset.json").read_text())
    (tmp_path / "indexed" / "dataset.json").write_text(json.dumps(document | {"roots": ["/etc"]}))
    with pytest.raises(InputError, match="/etc"):
        Dataset.open(tmp_path / "indexed")


def test_a_grant_holds_no_secrets(tmp_path: Path, videos: Path) -> None:
    roots = [tmp_path, "https://me:geheim@127.0.0.1/a", "https://127.0.0.2/b?token=geheim"]
    index(videos, tmp_path / "indexed", roots=roots, progress=False)
    grants = "".join(file.read_text() for file in (tmp_path / "user").rglob("*.json"))
    assert "geheim" not in grants
    assert "https://127.0.0.1/a" in grants  # redirects to that host may be followed


def test_a_grant_that_cannot_be_stored_is_left_out(tmp_path: Path, videos: Path) -> None:
    """As where the disk of the user's home folder is full: the dataset is there all the same."""
    index(videos, tmp_path / "indexed", progress=False)
    (note,) = (tmp_path / "user").rglob("*.json")
    note.unlink()
    note.mkdir()
    report = index(videos, tmp_path / "indexed", overwrite=True, progress=False)
    assert report.clips == len(frames(tmp_path / "indexed", roots=[str(videos)]))
    with pytest.raises(InputError, match="roots="):
        Dataset.open(tmp_path / "indexed")


def test_what_is_not_indexed_is_not_granted(tmp_path: Path, videos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's dataset stays without access to what the user fails to index over it."""
    index(videos, tmp_path / "indexed", progress=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "another user"))
    with pytest.raises(InputError, match="holds a dataset already"):
        index(videos / "a", tmp_path / "indexed", progress=False)
    with pytest.raises(InputError, match="roots="):
        Dataset.open(tmp_path / "indexed")
    with pytest.raises(InputError, match="roots="):
        index(videos, tmp_path / "indexed", update=True, progress=False)
    assert index(videos, tmp_path / "indexed", update=True, roots=videos, progress=False).was_there


def test_a_dataset_in_the_folder_that_it_indexes_can_be_moved(tmp_path: Path, videos: Path) -> None:
    index(videos, videos, progress=False)
    assert Dataset.open(videos).manifest.roots == ("",)
    wanted = frames(videos)
    videos.rename(tmp_path / "moved")
    assert same(frames(tmp_path / "moved"), wanted)


def test_a_dataset_in_its_own_place_does_not_index_itself(tmp_path: Path, videos: Path) -> None:
    write(replace(CLIP, container="ts"), videos / "stream.ts")
    index(videos, videos, copy_others=True, progress=False)
    assert [*videos.glob("shards/*.tar")]
    assert index(videos, videos, update=True, progress=False).was_there
    write(CLIP, videos / "new.mp4")
    assert index(videos, videos, update=True, progress=False).clips == 1


def test_links_out_of_a_root_are_not_followed_unless_told(tmp_path: Path, videos: Path) -> None:
    outside = write(CLIP, tmp_path / "outside.mp4")
    (videos / "link.mp4").symlink_to(outside)
    report = index(videos, tmp_path / "indexed", progress=False)
    assert [(one.source, "--roots" in one.reason) for one in report.rejected] == [("link.mp4", True)]
    index(videos, tmp_path / "told", roots=tmp_path, progress=False)
    assert len(frames(tmp_path / "told")["link"]) == 12
    # A file that becomes a link after it was indexed.
    (videos / "slow.mp4").rename(tmp_path / "slow.mp4")
    (videos / "slow.mp4").symlink_to(tmp_path / "slow.mp4")
    with pytest.raises(ClipError, match="link to"):
        ClipDataset(str(tmp_path / "indexed")).get("slow", frames=[0])


def test_a_link_that_is_allowed_later_is_no_bad_clip_any_more(tmp_path: Path, videos: Path) -> None:
    index(videos, tmp_path / "indexed", progress=False)
    (videos / "slow.mp4").rename(tmp_path / "slow.mp4")
    (videos / "slow.mp4").symlink_to(tmp_path / "slow.mp4")
    options: dict[str, Any] = {"sampling": Window(2), "transform": Transform(resize=(32, 32)), "batch_size": 1}

    def keys(**roots: Any) -> set[str]:
        with StreamLoader(str(tmp_path / "indexed"), **options, **roots) as loader:
            return {key for batch in loader for key, valid in zip(batch["key"], batch["valid"], strict=True) if valid}

    assert "slow" not in keys()
    assert "slow" not in keys()
    assert "slow" in keys(roots=tmp_path)


def test_a_remote_dataset_never_names_local_files(tmp_path: Path, videos: Path) -> None:
    with pytest.raises(InputError, match="cannot name local files"):
        index(videos, "memory://indexed", progress=False)
    index(videos, tmp_path / "indexed", progress=False)
    with pytest.raises(DatasetError, match="only a local one may"):
        Dataset.open(upload(tmp_path / "indexed", "memory://stolen"), roots=[str(videos)])


def test_secrets_in_urls_are_not_stored(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/a.mp4", write(CLIP, tmp_path / "a.mp4").read_bytes())
    rows = [
        "url",
        "memory://bucket/a.mp4",
        "https://u:pw@example.org/a.mp4",
        "https://example.org/b.mp4?X-Amz-Signature=q",
    ]
    (tmp_path / "list.csv").write_text("\n".join(rows) + "\n")
    report = index(tmp_path / "list.csv", tmp_path / "indexed", progress=False)
    assert report.clips == 1
    assert all("password or a signature" in one.reason for one in report.rejected)
    everything = b"".join(path.read_bytes() for path in (tmp_path / "indexed").rglob("*") if path.is_file())
    assert b"pw@" not in everything
    assert b"Signature=q" not in everything


def test_private_addresses_in_lists_are_refused_unless_told(tmp_path: Path) -> None:
    write(CLIP, tmp_path / "a.mp4")
    (tmp_path / "list.csv").write_text("url\na.mp4\nhttp://169.254.169.254/latest/a.mp4\nhttp://127.0.0.1:9/a.mp4\n")
    report = index(tmp_path / "list.csv", tmp_path / "indexed", progress=False)
    assert report.clips == 1
    assert all("private address" in one.reason for one in report.rejected)
