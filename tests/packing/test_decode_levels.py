"""What packing accepts is loaded: `PackOptions(decode=…)` says of which frames that holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from streamvid.cli.main import main
from streamvid.dataset.dataset import Dataset
from streamvid.decode.damage import find_damage
from streamvid.errors import InputError
from streamvid.loader.clip_dataset import ClipDataset
from streamvid.packing.options import DecodeLevel, FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.report import PackReport
from streamvid.sampling.spread import All
from streamvid.video.remux import store_clip
from streamvid.video.transcode import TranscodeOptions
from tests.support.clips import one_after_the_other, write
from tools.clips import Recipe
from tools.damaged_sources import make_damaged, try_level
from tools.recipes import Codec, Container

LONG = Recipe(width=96, height=64, frames=240, gop=30, b_frames=0, style="texture")
SURVEYED = tuple(
    replace(LONG, frames=140, gop=gop, codec=codec, container=container)  # type: ignore[arg-type]
    for codec, container, gop in (("h264", "mp4", 20), ("h264", "ts", 70), ("vp9", "webm", 20), ("hevc", "mkv", 20))
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "sources"
    make_damaged(folder, 8, SURVEYED)
    return folder


@pytest.mark.parametrize("level", ["none", "first", "all"])
def test_what_is_accepted_loads_and_verify_finds_what_does_not(
    level: DecodeLevel, sources: Path, tmp_path: Path
) -> None:
    found = try_level(sources, tmp_path / "ds", level)
    assert found.accepted
    assert found.verified == found.whole
    assert found.centre <= found.whole
    if level == "none":
        assert found.centre
    if level == "first":
        assert not found.centre
    if level == "all":
        assert not found.whole


def damaged(path: Path, *frames: int, recipe: Recipe = LONG) -> Path:
    """A video with noise in the packets of some frames, such that FFmpeg notices."""
    write(recipe, path)
    folder = path.parent.parent / "stored"
    folder.mkdir(exist_ok=True)
    clip = store_clip(path, folder)
    stored, data = clip.mp4.read_bytes(), path.read_bytes()
    for frame in frames:
        at, size = (int(column[clip.index.visible[frame]]) for column in (clip.index.offset, clip.index.size))
        assert data.count(stored[at : at + size]) == 1
        for seed in range(20):
            noisy = stored[at : at + 16] + np.random.default_rng(seed).bytes(size - 16)
            clip.mp4.write_bytes(stored[:at] + noisy + stored[at + size :])
            if find_damage(clip.index, np.array([frame]), clip.slice):
                break
        data = data.replace(stored[at : at + size], noisy)
    path.write_bytes(data)
    return path


def packed(folder: Path, level: DecodeLevel, **options: object) -> PackReport:
    return pack([folder / "in"], folder / "ds", options=PackOptions(decode=level, **options), progress=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("level", "frame", "rejected", "container"),
    [
        ("none", 120, False, "mkv"), ("first", 120, True, "mp4"), ("first", 40, True, "mkv"),
        ("first", 160, False, "mp4"), ("first", 200, False, "mkv"), ("all", 200, True, "mp4"),
        ("first", 70, True, "mp4"),
    ],
)  # fmt: skip
def test_a_level_says_which_frames_must_decode(
    level: DecodeLevel, frame: int, rejected: bool, container: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    recipe = replace(LONG, container=container)  # type: ignore[arg-type]
    write(recipe, tmp_path / "in" / f"whole.{container}")
    damaged(tmp_path / "in" / f"torn.{container}", frame, recipe=recipe)
    report = packed(tmp_path, level)
    assert Dataset.open(tmp_path / "ds").clips.key[:] == (["whole"] if rejected else ["torn", "whole"])
    # A GOP of 30: what comes before the damaged frame decodes, and the next GOP.
    last = {40: 59, 70: 89, 120: 149, 200: 209}.get(frame, 0)
    for one in report.rejected:
        assert one.source == f"torn.{container}"
        assert f"of its 240 frames do not decode, {frame} to {last}: " in one.reason


def test_of_a_video_that_is_cut_the_damaged_clips_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    damaged(tmp_path / "in" / "a.mp4", 70)
    report = packed(tmp_path, "first", cutting=FixedLength(60, unit="frames"))
    dataset = Dataset.open(tmp_path / "ds")
    assert dataset.clips.key[:] == ["a_000000", "a_000002", "a_000003"]
    (rejected,) = report.rejected
    assert rejected.reason.startswith("the clip of the frames 60 to 119 is damaged: 20 of its 60 frames do not decode")
    every = ClipDataset(dataset)
    assert [len(every.get(key, frames=range(60))["video"]) for key in dataset.clips.key[:]] == [60, 60, 60]
    with pytest.raises(InputError, match=r"frames 0 to 79 .* and so with the 2 others"):
        pack(
            [damaged(tmp_path / "in" / "b.mp4", 10, 90, 170)],
            tmp_path / "none",
            options=PackOptions(cutting=FixedLength(80, unit="frames")),
            progress=False,
        )


def test_of_a_video_that_is_cut_and_transcoded_the_damaged_clips_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    damaged(tmp_path / "in" / "a.mp4", 70)
    cutting = FixedLength(60, unit="frames")
    report = packed(tmp_path, "first", cutting=cutting, transcode=TranscodeOptions())
    assert Dataset.open(tmp_path / "ds").clips.key[:] == ["a_000000", "a_000002", "a_000003"]
    (rejected,) = report.rejected
    assert rejected.reason == "the clip of the frames 60 to 119 cannot be made: frame 10 of it is damaged or missing"


@pytest.mark.parametrize(("codec", "container"), [("h264", "mkv"), ("hevc", "mov")])
def test_zeros_in_a_video_that_is_cut(codec: Codec, container: Container, tmp_path: Path) -> None:
    """As a disk leaves them of a sector that it cannot read. Decoders refuse the whole packet, and that clip has it,
    far from its start and its middle."""
    recipe = replace(LONG, codec=codec, container=container, frames=420, gop=30)
    whole = write(recipe, tmp_path / f"whole.{container}")
    with av.open(str(whole)) as file:
        packet = [bytes(packet) for packet in file.demux(video=0) if packet.size][210 + 80]
    (tmp_path / "in").mkdir()
    data = whole.read_bytes()
    assert data.count(packet) == 1
    (tmp_path / "in" / f"a.{container}").write_bytes(data.replace(packet, bytes(len(packet))))
    report = packed(tmp_path, "none", cutting=FixedLength(210, unit="frames"))
    (rejected,) = report.rejected
    assert rejected.reason.startswith("the clip of the frames 210 to 419 is damaged: ")
    dataset = Dataset.open(tmp_path / "ds")
    assert dataset.clips.key[:] == ["a_000000"]
    frames = ClipDataset(dataset, sampling=All())[0]["video"].numpy()
    with pytest.raises(InputError, match=r"Invalid data found .*; NAL unit lengths of its packet 290 do not add up"):
        pack([tmp_path / "in"], tmp_path / "none", progress=False)
    (tmp_path / "whole").mkdir()
    pack([whole], tmp_path / "whole" / "ds", progress=False)
    sound = ClipDataset(tmp_path / "whole" / "ds", sampling=All())[0]["video"].numpy()
    assert np.array_equal(frames, sound[:210])


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@pytest.mark.parametrize("lost", ["a piece", "the beginning of a packet", "packets"])
def test_a_transport_stream_of_which_pieces_are_missing_is_cut(codec: Codec, lost: str, tmp_path: Path) -> None:
    """As where a radio link or a network loses packets. FFmpeg shows frames without a word that refer to the lost
    ones, at least of HEVC."""
    recipe = replace(LONG, codec=codec, container="ts", frames=150, gop=15, b_frames=3, width=160, height=144)
    whole = write(recipe, tmp_path / "whole.ts")
    data = whole.read_bytes()
    pieces = [data[at : at + 188] for at in range(0, len(data), 188)]
    video = [n for n, piece in enumerate(pieces) if int.from_bytes(piece[1:3], "big") & 0x1FFF == 0x100]
    starts = [n for n in video if pieces[n][1] & 0x40]
    gone = {
        "a piece": [video[video.index(starts[70]) + 1]],
        "the beginning of a packet": [starts[70]],
        "packets": range(starts[68], starts[71]),
    }[lost]
    check_cut(whole, b"".join(piece for n, piece in enumerate(pieces) if n not in gone), tmp_path)


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@pytest.mark.parametrize("lost", [16, 3000])
def test_matroska_with_a_gap_is_cut(codec: Codec, lost: int, tmp_path: Path) -> None:
    """Where a sector of a disk was lost: zeros from the header of a block on. FFmpeg goes on with the next cluster."""
    muxer = (("cluster_time_limit", "300"),)
    recipe = replace(LONG, codec=codec, container="mkv", muxer=muxer, frames=150, gop=15, width=160, height=144)
    whole = write(recipe, tmp_path / "whole.mkv")
    data = whole.read_bytes()
    with av.open(str(whole)) as container:
        at = [packet.pos for packet in container.demux(video=0) if packet.size][70]
    assert at is not None
    check_cut(whole, data[:at] + bytes(lost) + data[at + lost :], tmp_path)


def check_cut(whole: Path, damaged: bytes, folder: Path) -> None:
    """A damaged video of five seconds is rejected; if it is cut, the clips at the damage are, and others are sound."""
    (folder / "in").mkdir()
    (folder / "in" / f"a{whole.suffix}").write_bytes(damaged)
    report = packed(folder, "none", cutting=FixedLength(1))
    rejected = [one.reason for one in report.rejected]
    assert 1 <= len(rejected) <= 2
    assert all("is damaged" in reason for reason in rejected)
    dataset = Dataset.open(folder / "ds")
    assert len(dataset) == 5 - len(rejected)
    (folder / "whole").mkdir()
    pack([whole], folder / "whole" / "ds", progress=False)
    sound = ClipDataset(folder / "whole" / "ds", sampling=All())[0]["video"].numpy()
    for key, sample in zip(dataset.clips.key[:], ClipDataset(dataset, sampling=All()), strict=True):
        first = 30 * int(key.removeprefix("a_"))
        assert np.array_equal(sample["video"].numpy(), sound[first : first + 30])
    with pytest.raises(InputError, match=r"a packet in it is damaged .* or cut it \(--clip\)"):
        pack([folder / "in"], folder / "none", progress=False)


def test_the_option_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    write(LONG, tmp_path / "in" / "a.mp4")
    damaged(tmp_path / "in" / "b.mp4", 200)
    assert main(["pack", str(tmp_path / "in"), str(tmp_path / "ds"), "--decode", "all"]) == 0
    assert "10 of its 240 frames do not decode, 200 to 209" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(InputError, match="none, first, all"):
        PackOptions(decode="some")  # type: ignore[arg-type]


def test_a_slice_of_a_clip_that_is_not_written_is_that_of_its_file(tmp_path: Path) -> None:
    from streamvid.video.ingest import ingest_by_tables

    clip = ingest_by_tables(write(replace(LONG, audio=True), tmp_path / "a.mp4"))
    assert clip.unwritten is not None
    written = clip.as_file(tmp_path / "b.mp4")
    for frames in ([0], [239], [3, 70, 71, 150], range(240)):
        got, expected = (one.slice(np.array(frames)) for one in (clip, written))
        assert bytes(got.data) == bytes(expected.data)


def test_transcoding_gives_one_size_to_what_changes_its_own(tmp_path: Path) -> None:
    recipe = Recipe(width=96, height=64, frames=4, gop=4, b_frames=0, container="ts", number=False)
    parts = [write(one, tmp_path / f"{n}.ts") for n, one in enumerate((recipe, replace(recipe, width=128)))]
    video = one_after_the_other(parts, tmp_path / "a.ts")
    with pytest.raises(InputError, match=r"the size of its pictures changes in packet 4.*--codec"):
        pack([video], tmp_path / "copied", options=PackOptions("any"), progress=False)
    for name, options in (("gpu", PackOptions()), ("all", PackOptions(transcode=TranscodeOptions()))):
        pack([video], tmp_path / name, options=options, progress=False)
        assert ClipDataset(tmp_path / name, sampling=All())[0]["video"].shape == (8, 64, 96, 3)
