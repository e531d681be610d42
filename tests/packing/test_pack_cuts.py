"""Packing with cuts, from videos to batches: the options of the command, the dataset, what a loader gives."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

from streamvid.cli.main import main
from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.inspection.verify import verify
from streamvid.loader.stream_loader import StreamLoader
from streamvid.packing.frame_spans import scene_starts
from streamvid.packing.options import FixedLength, PackOptions, Scenes
from streamvid.packing.pack import pack
from streamvid.sampling.windows import Window
from streamvid.transform.spec import Transform
from streamvid.video.frame_index import HIDDEN
from streamvid.video.remux import store_clip
from tests.support.clips import write
from tests.support.packed import digests, make_videos, pack_recipes
from tests.support.reference import sequential
from tools.clips import Recipe, read_frame_number
from tools.recipes import Codec, Container

RECIPES = {
    "one.mp4": Recipe(width=128, height=64, frames=75, gop=30, b_frames=3, fps=Fraction(25)),
    "sub/two.webm": Recipe(codec="vp9", container="webm", width=128, height=64, frames=50, gop=50, jitter=7),
    "three.mp4": Recipe(codec="hevc", width=128, height=64, frames=60, gop=20, b_frames=3, open_gop=True),
}
CUTS = """video,start,end,label,note
one,1,2,jump,a
one,0.52,0.56,run,one frame
sub/two.webm,0.4,0.9,run,b
two,0.9,1.3,jump,c
three.mp4,0.6,99,run,open
three.mp4,50,60,run,behind
"""


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cut") / "videos"
    make_videos(folder, RECIPES)
    (folder.parent / "cuts.csv").write_text(CUTS)
    return folder


def rows(dataset: Path) -> list[dict[str, Any]]:
    """The Parquet's rows of all shards, and the times and flags of their packets."""
    tables = [pq.read_table(path) for path in sorted((dataset / "shards").glob("*.parquet"))]
    found = [row for table in tables for row in table.to_pylist()]
    opened = Dataset.open(dataset)
    indexes = opened.indexes(range(len(opened)))
    return [
        row | {"pts": index.pts.tolist(), "flags": index.flags.tolist()}
        for row, index in zip(found, indexes, strict=True)
    ]


def frames_of(videos: Path, row: dict[str, Any]) -> list[npt.NDArray[np.uint8]]:
    frames = sequential(videos / row["source"], full_range=False)
    return frames[row["meta_start_frame"] : row["meta_end_frame"]]


def load(dataset: Path, sampling: Any) -> dict[str, dict[str, Any]]:
    """Each clip as a loader gives it, by key."""
    raw = Transform(layout="THWC", dtype="uint8", color="bt601")
    batches = StreamLoader(dataset, batch_size=1, sampling=sampling, transform=raw, device="cpu", num_threads=2)
    keys = Dataset.open(dataset).clips.key
    return {keys[int(batch["clip"][0])]: batch for batch in batches}


def test_listed_cuts_from_the_command_to_batches(videos: Path, tmp_path: Path, capsys: Any) -> None:
    cuts = str(videos.parent / "cuts.csv")
    assert main(["pack", str(videos), str(tmp_path / "ds"), "--cuts", cuts, "--for", "any", "--workers", "2"]) == 0
    assert "begins after the last frame" in capsys.readouterr().out
    rejected = pq.read_table(tmp_path / "ds/rejected.parquet").to_pylist()
    assert [one["source"] for one in rejected] == ["three.mp4"]
    assert verify(tmp_path / "ds", decode=True).problems == ()

    found = rows(tmp_path / "ds")
    assert [(r["key"].rsplit("_", 1)[1], r["source"], r["meta_note"]) for r in found] == [
        ("000000", "one.mp4", "one frame"),
        ("000001", "one.mp4", "a"),
        ("000000", "sub/two.webm", "b"),
        ("000001", "sub/two.webm", "c"),
        ("000000", "three.mp4", "open"),
    ]
    by_note = {row["meta_note"]: row for row in found}
    assert {note: row["label"] for note, row in by_note.items()} == {"one frame": 1, "a": 0, "b": 1, "c": 0, "open": 1}
    assert (by_note["one frame"]["meta_start_frame"], by_note["one frame"]["frames"]) == (13, 1)
    assert (by_note["a"]["meta_start"], by_note["a"]["meta_end"]) == (1.0, 2.0)
    assert by_note["b"]["meta_end_frame"] == by_note["c"]["meta_start_frame"]
    assert by_note["open"]["meta_end_frame"] == 60

    loaded = load(tmp_path / "ds", Window(5))
    assert loaded.keys() == {row["key"] for row in found}
    for row in found:
        wanted = frames_of(videos, row)
        shown = loaded[row["key"]]["video"][0].numpy()
        numbers = [read_frame_number(frame) for frame in shown]
        assert numbers[0] >= row["meta_start_frame"]
        for frame, number in zip(shown, numbers, strict=True):
            np.testing.assert_array_equal(frame, wanted[number - row["meta_start_frame"]])


def test_fixed_lengths_give_every_frame_once(videos: Path, tmp_path: Path) -> None:
    options = PackOptions("any", cutting=FixedLength(0.7))
    pack([videos], tmp_path / "ds", options=options, workers=2, shard_size=60_000, progress=False)
    assert len(list((tmp_path / "ds/shards").glob("*.tar"))) > 2
    assert verify(tmp_path / "ds", decode=True).problems == ()
    found = rows(tmp_path / "ds")
    assert any(flags & HIDDEN for row in found for flags in row["flags"])
    for name, recipe in RECIPES.items():
        clips = [row for row in found if row["source"] == name]
        edges = [(row["meta_start_frame"], row["meta_end_frame"]) for row in clips]
        assert edges[0][0] == 0
        assert edges[-1][1] == recipe.frames
        assert [end for _, end in edges[:-1]] == [start for start, _ in edges[1:]]
        assert [row["meta_end"] for row in clips[:-1]] == [row["meta_start"] for row in clips[1:]]
        assert [row["key"][-7:] for row in clips] == [f"_{n:06d}" for n in range(len(clips))]
    # Wherever and however it is done.
    pack([videos], tmp_path / "again", options=options, workers=1, shard_size=60_000, progress=False, name="ds")
    assert digests(tmp_path / "ds/shards") == digests(tmp_path / "again/shards")


def test_exact_cuts_are_encoded_again_where_they_must_be(videos: Path, tmp_path: Path) -> None:
    one = videos / "one.mp4"
    options = PackOptions("any", cutting=FixedLength(20, "frames"), exact_cuts=True)
    pack([one], tmp_path / "ds", options=options, workers=1, progress=False)
    found = rows(tmp_path / "ds")
    assert [row["frames"] for row in found] == [20, 20, 20, 15]
    assert all(row["packets"] == row["frames"] for row in found)
    assert {row["codec"] for row in found} == {"h264"}, "they keep their codec"
    assert [row["duration"] * 25 // row["time_base_den"] for row in found] == [20, 20, 20, 15]
    assert verify(tmp_path / "ds", decode=True).problems == ()
    for row in found:
        clip = load(tmp_path / "ds", Window(5))[row["key"]]["video"][0].numpy()
        number = read_frame_number(clip[0])
        assert row["meta_start_frame"] <= number < row["meta_end_frame"]
    # Times are the video's, however odd, and the last frame's too.
    for name, exact in (("c", True), ("d", False)):
        options = PackOptions("any", cutting=FixedLength(0.5), exact_cuts=exact)
        pack([videos / "sub/two.webm"], tmp_path / name, options=options, workers=1, progress=False)
    encoded, copied = rows(tmp_path / "c"), rows(tmp_path / "d")
    assert {row["codec"] for row in encoded} == {"vp9"}
    for one_row, other in zip(encoded, copied, strict=True):
        ticks = np.array([row["time_base_num"] / row["time_base_den"] for row in (one_row, other)])
        np.testing.assert_allclose(one_row["duration"] * ticks[0], other["duration"] * ticks[1], atol=0.001)
        shown = [
            np.sort([p for p, f in zip(r["pts"], r["flags"], strict=True) if not f & HIDDEN]) for r in (one_row, other)
        ]
        np.testing.assert_allclose(shown[0] * ticks[0], shown[1] * ticks[1], atol=0.001)
    # Cuts at key frames are copies.
    for name, exact in (("a", True), ("b", False)):
        whole = PackOptions("any", cutting=FixedLength(30, "frames"), exact_cuts=exact)
        pack([one], tmp_path / name, options=whole, workers=1, progress=False, name="same")
    assert digests(tmp_path / "a/shards") == digests(tmp_path / "b/shards")


@pytest.mark.parametrize("recipe", [
    Recipe(scene=25, frames=100, gop=100, width=160, height=96, number=False, fps=Fraction(25)),
    Recipe(scene=25, frames=100, width=160, height=96, number=False, jitter=2, trim=10, style="texture"),
])  # fmt: skip
def test_scenes(recipe: Recipe, tmp_path: Path) -> None:
    source = write(recipe, tmp_path / "a.mp4")
    starts = [25 - recipe.trim, 50 - recipe.trim, 75 - recipe.trim]
    assert scene_starts(store_clip(source, tmp_path, cut_only=False), Scenes(0.3)) == starts
    pack([source], tmp_path / "ds", options=PackOptions("any", cutting=Scenes(0.3)), workers=1, progress=False)
    found = rows(tmp_path / "ds")
    assert [row["meta_start_frame"] for row in found] == [0, *starts]
    assert found[-1]["meta_end_frame"] == 100 - recipe.trim
    # Scenes shorter than wanted are no scenes.
    assert len(scene_starts(store_clip(source, tmp_path), Scenes(min_length=60))) == 0


@pytest.mark.parametrize("codec", ["h264", "mpeg4"])
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_scenes_of_a_video_with_a_damaged_packet(codec: Codec, container: Container, tmp_path: Path) -> None:
    recipe = Recipe(codec, container, scene=25, frames=100, gop=25, b_frames=0, width=160, height=96, number=False)
    source = write(recipe, tmp_path / f"a.{container}")
    with av.open(str(source)) as file:
        packet = [bytes(packet) for packet in file.demux(video=0) if packet.size][60]
    assert source.read_bytes().count(packet) == 1
    source.write_bytes(source.read_bytes().replace(packet, bytes(len(packet))))
    report = pack([source], tmp_path / "ds", options=PackOptions("any", cutting=Scenes(0.3)), workers=1, progress=False)
    assert [row["meta_start_frame"] for row in rows(tmp_path / "ds")] == [0, 25, 75]
    assert [one.reason[:43] for one in report.rejected] == ["the clip of the frames 50 to 74 is damaged:"]


def test_scenes_without_their_library(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "scenedetect", None)
    with pytest.raises(InputError, match=r"streamvid\[scenes\]"):
        pack([videos], tmp_path / "ds", options=PackOptions("any", cutting=Scenes()), progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tail", "drop"], "applies to the last clip of --clip"),
        (["--exact-cuts", "reencode"], "exact cuts without cuts"),
        (["--scenes", "--shortest-scene", "5f"], "takes seconds"),
        (["--shortest-scene", "5s"], "applies to --scenes"),
        (["--cuts", "CUTS"], "not among the 1 videos"),
    ],
)
def test_options_that_do_not_go_together(
    options: Sequence[str], message: str, videos: Path, tmp_path: Path, capsys: Any
) -> None:
    given = [str(videos.parent / "cuts.csv") if one == "CUTS" else one for one in options]
    assert main(["pack", str(videos / "one.mp4"), str(tmp_path / "ds"), *given]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "ds").exists()


def test_long_names_leave_room_for_numbers(tmp_path: Path) -> None:
    recipes = {f"{'x' * 79}{letter}": Recipe(width=64, height=64, frames=4) for letter in "ab"}
    path = pack_recipes(recipes, tmp_path, options=PackOptions("any", cutting=FixedLength(2, "frames")))
    keys = [row["key"] for row in rows(path)]
    assert len(set(keys)) == 4
    assert all(len(key) <= 80 and key[-7:] in ("_000000", "_000001") for key in keys)


def test_a_video_without_a_cut_that_can_be_made(videos: Path, tmp_path: Path) -> None:
    (tmp_path / "cuts.csv").write_text("video,start,end\none,50,60\none,70,80\ntwo,0,1\n")
    report = pack([videos], tmp_path / "ds", cuts=tmp_path / "cuts.csv", workers=1, progress=False)
    assert report.manifest.clips == 1
    (rejected,) = report.rejected
    assert rejected.source == "one.mp4"
    assert "and so with the 1 others" in rejected.reason


def test_a_video_almost_without_key_frames(tmp_path: Path) -> None:
    """Each clip would store all that came before it."""
    recipe = Recipe(width=128, height=64, frames=80, gop=600, b_frames=0)
    source = write(recipe, tmp_path / "a.mp4")
    cutting = FixedLength(1, "frames")
    with pytest.raises(InputError, match=r"so few key frames .* --exact-cuts reencode"):
        pack([source], tmp_path / "ds", options=PackOptions("any", cutting=cutting), workers=1, progress=False)
    options = PackOptions("any", cutting=cutting, exact_cuts=True)
    pack([source], tmp_path / "ds", options=options, workers=1, progress=False)
    found = rows(tmp_path / "ds")
    assert [row["meta_start_frame"] for row in found] == list(range(80))
    assert all(row["packets"] == 1 for row in found)
    shown = [batch["video"][0][0].numpy() for batch in load(tmp_path / "ds", Window(1)).values()]
    assert sorted(read_frame_number(frame) for frame in shown) == list(range(80))
    assert verify(tmp_path / "ds", decode=True).problems == ()
