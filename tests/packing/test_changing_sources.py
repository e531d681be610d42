"""Files that change, grow or vanish while they are packed or indexed, as in a folder into which others download."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamvid.errors import DatasetError
from streamvid.inspection.verify import verify
from streamvid.packing import prepare, process_source
from streamvid.packing.index import index
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.reshape import reshard
from streamvid.storage import upload
from streamvid.video import read_buffer, stored_clip
from streamvid.video.transcode import TranscodeOptions
from tests.packing.test_images import write_jpegs
from tests.support.faulty_s3 import faulty_s3
from tests.support.packed import digests, make_videos
from tools.clips import Recipe

CLIP = Recipe(width=160, height=96, frames=24, gop=6, b_frames=2)


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    return make_videos(tmp_path / "videos", {f"{n}.mp4": Recipe(**{**vars(CLIP), "seed": n}) for n in range(4)})


@pytest.fixture(params=["disk", "s3"])
def destination(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "disk":
        yield str(tmp_path / "ds")
        return
    monkeypatch.setattr(upload, "PART_BYTES", 3000)  # less than a clip
    with faulty_s3():
        yield "s3://bucket/set"


def overwrite(path: Path) -> None:
    """Other bytes of the same size, in the file itself."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(2000))


@pytest.mark.parametrize("at", ["0", "3", "all"])
def test_a_file_that_changes_while_its_bytes_are_copied(
    at: str, videos: Path, destination: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clip had bytes that its index did not fit; noticed, it ended a pack that could not be resumed."""
    before = {path: path.read_bytes() for path in videos.iterdir()}
    monkeypatch.setattr(read_buffer, "BLOCK_BYTES", 2048)

    def read(file: Any, *places: Any) -> Any:
        for number, block in enumerate(read_buffer.read_blocks(file, *places)):
            yield block
            if number == 1 and Path(file.name).stem in (at, *"0123" * (at == "all")):
                overwrite(Path(file.name))

    monkeypatch.setattr(stored_clip, "read_blocks", read)
    if at == "all":
        with pytest.raises(Exception, match=r"of 4 videos none can be packed; 0\.mp4: it was changed or removed"):
            pack(videos, destination)
        monkeypatch.undo()
        return
    report = pack(videos, destination)
    ((name, reason),) = ((one.source, one.reason) for one in report.rejected)
    assert (name, reason) == (f"{at}.mp4", stored_clip.CHANGED)
    assert report.clips == 3
    assert verify(destination, workers=1, decode=True).problems == ()
    monkeypatch.setattr(stored_clip, "read_blocks", read_buffer.read_blocks)
    (videos / f"{at}.mp4").write_bytes(before[videos / f"{at}.mp4"])
    assert pack(videos, destination, append=True).clips == 1
    assert verify(destination, workers=1, decode=True).problems == ()


def test_the_other_clips_have_the_bytes_that_they_have_without_it(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(file: Any, *places: Any) -> Any:
        yield from read_buffer.read_blocks(file, *places)
        if file.name.endswith("/2.mp4"):
            os.utime(file.name)

    with monkeypatch.context() as patch:
        patch.setattr(stored_clip, "read_blocks", read)
        pack(videos, tmp_path / "with", name="same")
    (videos / "2.mp4").unlink()
    pack(videos, tmp_path / "without", name="same")
    with_it, without = digests(tmp_path / "with"), digests(tmp_path / "without")
    assert {name: value for name, value in with_it.items() if "shards/" in name} == {
        name: value for name, value in without.items() if "shards/" in name
    }


def test_a_dataset_whose_shard_changes_while_it_is_copied(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No clip may be missing from it."""
    pack(videos, tmp_path / "ds")

    def read(file: Any, *places: Any) -> Any:
        yield from read_buffer.read_blocks(file, *places)
        os.utime(file.name)

    monkeypatch.setattr(stored_clip, "read_blocks", read)
    with pytest.raises(DatasetError, match="changed or removed while it was"):
        reshard(tmp_path / "ds", tmp_path / "again", shard_size=20_000)


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(100))


@pytest.mark.parametrize(
    "options", [PackOptions(), PackOptions(cutting=FixedLength(6, "frames")), PackOptions(transcode=TranscodeOptions())]
)
@pytest.mark.parametrize("change", [_grow, overwrite, os.utime, Path.unlink])
def test_a_file_that_changes_while_it_is_read(
    change: Callable[[Path], None], options: PackOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FFmpeg read some of it before and some after: what was packed was neither."""
    folder = tmp_path / "videos"
    make_videos(folder, {"a.mp4": CLIP, "b.mkv": Recipe(**{**vars(CLIP), "container": "mkv"}), "c.mp4": CLIP})
    write_jpegs(folder / "walk", ["1.jpg", "2.jpg", "3.jpg"])
    store = prepare.remux_or_build

    def remux(path: str, *arguments: Any, **named: Any) -> Any:
        made = store(path, *arguments, **named)
        if not path.endswith("c.mp4"):
            change(Path(path, "2.jpg") if path.endswith("/") else Path(path))
        return made

    monkeypatch.setattr(process_source, "remux_or_build", remux)
    report = pack(folder, tmp_path / "ds", options=PackOptions(**{**vars(options), "fps": 24}))
    assert {one.source: one.reason for one in report.rejected} == dict.fromkeys(
        ("a.mp4", "b.mkv", "walk"), stored_clip.CHANGED
    )
    assert report.clips == (4 if options.cutting else 1)


def test_of_a_file_that_changed_the_error_of_its_bytes_is_not_told(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download that is half done has no moov box."""
    half = videos / "1.mp4"
    half.write_bytes(half.read_bytes()[:-400])
    process = process_source._clips_of

    def late(source: Any, *arguments: Any) -> Any:
        if source.name == "1.mp4":
            _grow(half)
        return process(source, *arguments)

    monkeypatch.setattr(process_source, "_clips_of", late)
    (rejected,) = pack(videos, tmp_path / "ds").rejected
    assert (rejected.source, rejected.reason) == ("1.mp4", stored_clip.CHANGED)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("change", [_grow, overwrite, os.utime, Path.unlink])
def test_a_file_that_changes_or_vanishes_once_it_was_indexed(
    change: Callable[[Path], None], fast: bool, videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that vanished then ended the whole command."""
    look = process_source._clips_in_place

    def clips(source: Any, *arguments: Any, **named: Any) -> Any:
        made = look(source, *arguments, **named)
        if source.name == "2.mp4":
            change(Path(source.path))
        return made

    monkeypatch.setattr(process_source, "_clips_in_place", clips)
    report = index(videos, tmp_path / "ds", fast=fast)
    assert [(one.source, one.reason) for one in report.rejected] == [("2.mp4", stored_clip.CHANGED)]
    assert report.clips == 3
