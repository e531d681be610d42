"""The track of a file that is packed, and the notices about the others."""

from __future__ import annotations

import logging
import pickle
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import streamvid as sv
from streamvid.errors import InputError, VideoError
from streamvid.mp4.boxes import iter_boxes
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.report import PackReport
from streamvid.video.encoders import Target
from streamvid.video.probe import CannotCopyError, VideoFile
from streamvid.video.remux import remux_with_ffmpeg, store_clip
from streamvid.video.stored_clip import AUDIO, CUT_OFF, JOINED, OTHER_TRACKS
from streamvid.video.tracks import video_stream
from streamvid.video.transcode import TranscodeOptions, transcode
from tests.support.clips import without_packets, write
from tests.support.remux import remuxing
from tools.clips import Recipe
from tools.recipes import Codec

SMALL, LARGE = (96, 64), (160, 96)


def write_tracks(path: Path, *sizes: tuple[int, int], default: int | None = None, codec: str = "libx264") -> Path:
    """Several video tracks of 6 frames, the number of each in its brightness."""
    with av.open(str(path), "w") as output:
        streams: list[Any] = []
        for number, (width, height) in enumerate(sizes):
            stream: Any = output.add_stream(codec, rate=25)
            stream.width, stream.height, stream.pix_fmt = width, height, "rgb24" if codec == "apng" else "yuv420p"
            if number == default:
                stream.disposition = av.stream.Disposition.default
            streams.append(stream)
        for tick in range(6):
            for number, stream in enumerate(streams):
                picture = np.full((stream.height, stream.width, 3), 60 + 60 * number, dtype=np.uint8)
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=stream.pix_fmt)
                frame.pts, frame.time_base = tick, Fraction(1, 25)
                output.mux(stream.encode(frame))
        for stream in streams:
            output.mux(stream.encode(None))
    return path


def enable_all(path: Path) -> Path:
    """Set the flag "enabled" of all tracks (`tkhd`, ISO/IEC 14496-12, 8.3.2): FFmpeg's default."""
    data = bytearray(path.read_bytes())
    for kind, start, end in iter_boxes(data, 0, len(data)):
        if kind == b"moov":
            for inner, at, stop in iter_boxes(data, start, end):
                if inner == b"trak":
                    ((_, header, _),) = [box for box in iter_boxes(data, at, stop) if box[0] == b"tkhd"]
                    data[header + 3] |= 1
    path.write_bytes(data)
    return path


def size(path: Path, folder: Path, track: int | None = None) -> tuple[int, int]:
    folder.mkdir(exist_ok=True)
    clip = remux_with_ffmpeg(VideoFile(path, track), folder)
    return clip.width, clip.height


@pytest.mark.parametrize("order", [(SMALL, LARGE), (LARGE, SMALL), (SMALL, LARGE, SMALL)])
@pytest.mark.parametrize("container", ["mp4", "mkv", "ts"])
def test_the_largest_track_is_packed(order: tuple[tuple[int, int], ...], container: str, tmp_path: Path) -> None:
    """As the ffmpeg command chooses (fftools, `map_auto_video`), which prefers what is marked as default."""
    path = write_tracks(tmp_path / f"a.{container}", *order)
    if container == "mp4":
        # FFmpeg's muxer enables the first track alone.
        assert size(path, tmp_path / "x") == order[0]
        enable_all(path)
    assert size(path, tmp_path / "x") == LARGE
    for track, one in enumerate(order):
        assert size(path, tmp_path / "x", track) == one
    with pytest.raises(VideoError, match=f"it has {len(order)} video tracks, counted from 0; there is no track 7"):
        size(path, tmp_path / "x", 7)


def test_the_track_that_is_marked_as_default(tmp_path: Path) -> None:
    assert size(write_tracks(tmp_path / "a.mkv", LARGE, SMALL, default=1), tmp_path / "x") == SMALL


def test_a_cover_is_no_track(tmp_path: Path) -> None:
    path = write(Recipe(frames=6, cover=True, container="mp4"), tmp_path / "a.mp4")
    with VideoFile(path).open() as (container, stream):
        assert len(container.streams.video) == 2
        assert stream == video_stream(container, 0)
        with pytest.raises(ValueError, match="it has 1 video track,"):
            video_stream(container, 1)
    assert store_clip(path, tmp_path).source_remarks == ()


@pytest.mark.parametrize("frames", [1, 6])
def test_a_picture_of_avif_is_no_track(frames: int, tmp_path: Path) -> None:
    """Large ones are tiles, each of which FFmpeg shows as a track; a sequence has a picture beside its track."""
    source = write(Recipe(codec="av1", container="mkv", frames=6, gop=6, b_frames=0), tmp_path / "a.mkv")
    path = tmp_path / "a.avif"
    with av.open(str(source)) as whole, av.open(str(path), "w", format="avif") as output:
        stream = output.add_stream_from_template(whole.streams.video[0], opaque=True)
        for packet in [packet for packet in whole.demux(video=0) if packet.size][:frames]:
            packet.stream = stream
            output.mux(packet)
    if frames == 1:
        with pytest.raises(VideoError, match="it is a picture, HEIF or AVIF, which is not read: convert it to JPEG"):
            store_clip(path, tmp_path)
    else:
        clip = store_clip(path, tmp_path)
        assert (len(clip.index.visible), clip.source_remarks) == (frames, ())


def test_a_video_of_one_frame_that_lasts_a_second_is_a_track(tmp_path: Path) -> None:
    """FFmpeg tells of it what it tells of a picture of AVIF, but for its duration."""
    path = write(
        Recipe(codec="mpeg4", container="avi", frames=1, gop=1, b_frames=0, fps=Fraction(1)), tmp_path / "a.avi"
    )
    assert len(store_clip(path, tmp_path).index.visible) == 1


@pytest.mark.parametrize("codec", ["h264", "mjpeg"])
def test_another_track_is_transcoded(codec: Target, tmp_path: Path) -> None:
    path = write_tracks(tmp_path / "a.mkv", LARGE, SMALL, codec="mpeg2video")
    transcode(VideoFile(path, 1), tmp_path / "out.mp4", TranscodeOptions(codec))
    clip = store_clip(tmp_path / "out.mp4", tmp_path)
    assert (clip.width, clip.height) == SMALL


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    write(Recipe(frames=6, audio=True), folder / "a.mp4")
    write(Recipe(frames=6, audio=True, container="mkv"), folder / "b.mkv")
    write(Recipe(frames=6), folder / "c.mp4")
    write_tracks(folder / "d.mkv", SMALL, LARGE)
    return folder


def packed(sources: Path, target: Path, **options: Any) -> PackReport:
    return pack([sources], target, name="x", options=PackOptions("any", **options), workers=2, progress=False)


def test_of_files_that_were_joined_byte_by_byte_pack_says_that_the_first_is_packed(tmp_path: Path) -> None:
    """The others were lost without a word. Fragments behind another moov are packed."""
    (tmp_path / "v").mkdir()
    plain = write(Recipe(frames=6, b_frames=0), tmp_path / "plain.mp4")
    files = [plain, write(Recipe(frames=6, muxer=(("movflags", "frag_keyframe+empty_moov"),)), tmp_path / "pieces.mp4")]
    files.append(tmp_path / "plain.flv")
    with remuxing(plain, files[-1]) as copy:
        for packet in copy.packets:
            copy.mux(packet)
    others = {".asf": "mpeg4", ".ivf": "libvpx-vp9", ".apng": "apng"}
    files += [write_tracks(tmp_path / f"one{suffix}", LARGE, codec=codec) for suffix, codec in others.items()]
    for file in files:
        (tmp_path / "v" / file.name).write_bytes(2 * file.read_bytes())
    report = pack([tmp_path / "v"], tmp_path / "set", workers=2, progress=False)
    assert (report.videos, report.rejected) == (6, ())
    assert [(one.videos, one.first) for one in report.notices if one.text == JOINED] == [(5, "one.apng")]
    assert not [one for one in report.notices if one.text == CUT_OFF]


@pytest.mark.parametrize("length", [None, 2])
def test_what_is_left_out_is_said_once(
    length: int | None, sources: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However many clips a video is cut into, and in how many shards they are."""
    cutting = None if length is None else FixedLength(length, "frames")
    with caplog.at_level(logging.WARNING):
        report = pack(
            [sources], tmp_path / "set", name="x", options=PackOptions("any", cutting), workers=2, shard_size=10_000,
            progress=False,
        )  # fmt: skip
    assert {(one.text, one.videos, one.first) for one in report.notices} == {
        (AUDIO, 2, "a.mp4"),
        (OTHER_TRACKS, 1, "d.mkv"),
    }
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert sorted(warnings) == [
        f"{AUDIO}: 2 videos, the first of them a.mp4",
        f"{OTHER_TRACKS}: 1 video, the first of them d.mkv",
    ]
    assert AUDIO in (tmp_path / "set/pack-report.json").read_text()


@pytest.mark.parametrize("kind", ["mkv", "webm", "fragmented mp4", "flv", "avi", "ts", "hevc ts", "live mkv"])
def test_a_file_that_is_cut_off_is_packed_as_far_as_it_goes(kind: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    whole, cut = (tmp_path / f"in/{name}.{kind.split()[-1]}" for name in ("whole", "cut"))
    codecs: dict[str, Codec] = {"webm": "vp9", "avi": "mpeg4", "hevc ts": "hevc"}
    recipe = Recipe(frames=60, gop=10, codec=codecs.get(kind, "h264"))
    options = {"fragmented mp4": {"movflags": "frag_keyframe+empty_moov"}, "live mkv": {"live": "1"}}.get(kind, {})
    without_packets(write(recipe, tmp_path / f"a.{recipe.container}"), whole, options=options)
    data = whole.read_bytes()
    end = len(data) * 3 // 5
    if kind.endswith("ts"):  # behind the first pieces of a key frame (payload_unit_start, random_access_indicator)
        end = 476 + max(
            n for n in range(0, end, 188) if data[n + 1] & 0x40 and data[n + 3] & 0x20 and data[n + 5] & 0x40
        )
    cut.write_bytes(data[:end])
    report = packed(tmp_path / "in", tmp_path / "set")
    clips = sv.Dataset.open(tmp_path / "set").clips
    assert sorted(clips.source) == sorted([cut.name, whole.name])
    shown = []
    with suppress(av.error.InvalidDataError), av.open(str(cut)) as container:  # a packet that is cut off
        shown.extend(frame.pts for frame in container.decode(video=0))
    frames = dict(zip(clips.source, clips.frames.tolist(), strict=True))
    assert frames[whole.name] == 60
    # FFmpeg shows what is left of a picture of MPEG-4, and of any in a transport stream.
    assert len(shown) - (kind in ("avi", "ts", "hevc ts")) <= frames[cut.name] < 60
    told = [(one.text, one.first) for one in report.notices]
    assert all(one.videos == 1 for one in report.notices)
    assert told == [(CUT_OFF, cut.name)]  # of a live recording, because it ends within a block


@pytest.mark.parametrize("codec", ["h264", "hevc", "mpeg4"])
def test_a_transport_stream_that_ends_with_a_whole_piece_within_a_frame(codec: Codec, tmp_path: Path) -> None:
    """As a recorder that was killed leaves it: it writes whole pieces of 188 bytes."""
    recipe = Recipe(codec=codec, container="ts", frames=13, gop=6, b_frames=0, number=False, style="texture", crf=20)
    data = write(recipe, tmp_path / "a.ts").read_bytes()
    last = max(n for n in range(0, len(data), 188) if data[n + 1] == 0x41)  # payload_unit_start of the video
    ends = [n for n in range(last, len(data) + 188, 188) if n in (last, len(data)) or data[n + 1 : n + 3] == b"\x01\0"]
    (tmp_path / "in").mkdir()
    for number, end in enumerate(ends):
        (tmp_path / f"in/{number}.ts").write_bytes(data[:end])
    report = packed(tmp_path / "in", tmp_path / "set", decode="all")
    assert len(ends) > 4
    assert not report.rejected
    assert sv.Dataset.open(tmp_path / "set").clips.frames.tolist() == [12] * (len(ends) - 1) + [13]
    assert [(one.text, one.videos) for one in report.notices] == [(CUT_OFF, len(ends) - 2)]


def test_a_track_that_some_files_lack(sources: Path, tmp_path: Path) -> None:
    report = packed(sources, tmp_path / "set", track=1)
    dataset = sv.Dataset.open(tmp_path / "set")
    assert list(dataset.clips.source) == ["d.mkv"]
    assert (int(dataset.clips.width[0]), int(dataset.clips.height[0])) == LARGE
    assert {one.source: one.reason for one in report.rejected} == dict.fromkeys(
        ["a.mp4", "b.mkv", "c.mp4"], "it has 1 video track, counted from 0; there is no track 1"
    )


@pytest.mark.parametrize("track", [-1, 1.5, True])
def test_numbers_that_are_none_of_a_track(track: Any, sources: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="0 for the first"):
        packed(sources, tmp_path / "set", track=track)


def test_an_error_from_a_worker_says_its_advice_once() -> None:
    error = CannotCopyError("its codec is gif")
    assert str(error) == "its codec is gif: transcode it, with --codec or --for gpu"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
