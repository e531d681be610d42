"""Files read by their own tables give the same clips as through FFmpeg, and are left as they were."""

from __future__ import annotations

import hashlib
import struct
from contextlib import closing
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pytest

from streamvid.decode.cpu import decode_with_pyav
from streamvid.errors import VideoError
from streamvid.mp4.sample_entry import codec_configuration, coded_size, sample_description
from streamvid.mp4.top_level import NeedsDemuxerError
from streamvid.packing.options import Cut, FixedLength, PackOptions, PreparedClip
from streamvid.packing.process_source import process_source
from streamvid.packing.shard_writer import ShardWriter
from streamvid.packing.source_video import SourceVideo
from streamvid.sampling.base import ClipTimes, select
from streamvid.sampling.windows import Window
from streamvid.storage.retry import Retry
from streamvid.video.ingest import ingest_by_tables
from streamvid.video.packet_times import PacketTimes, last_frame_duration
from streamvid.video.remux import remux_with_ffmpeg, store_clip
from streamvid.video.stored_clip import StoredClip
from streamvid.video.transcode import TranscodeOptions, transcode
from streamvid.video.trim import trim_clip
from tests.mp4.test_reader import made
from tests.support.clips import hard_clips, write
from tests.support.reference import packets_of, sequential, slice_of
from tests.support.remux import remuxing
from tests.support.tables import metadata_of
from tools.clips import Recipe

HARD = {name: recipe for name, recipe in hard_clips().items() if recipe.container in ("mp4", "mov")}
ODD = {name for name, recipe in HARD.items() if recipe.trim or recipe.trim_end or recipe.codec in ("mpeg4", "mjpeg")}
ODD |= {"h264_avc3", "h264_fragmented", "vp9_mp4"}


@pytest.mark.parametrize("name", HARD)
def test_both_ways_give_the_same(name: str, tmp_path: Path) -> None:
    source = write(HARD[name], tmp_path / f"a.{HARD[name].container}")
    if name in ODD:
        with pytest.raises(NeedsDemuxerError):
            ingest_by_tables(source)
        return
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    ours, other = store_clip(source, tmp_path / "1"), remux_with_ffmpeg(source, tmp_path / "2")
    for column in ("pts", "size", "flags"):
        np.testing.assert_array_equal(getattr(ours.index, column), getattr(other.index, column))
    # The sample description may be written in other words; its codec's configuration is the same.
    for field in fields(StoredClip):
        if field.name not in ("mp4", "index", "stsd", "sha256", "unwritten"):
            assert getattr(ours, field.name) == getattr(other, field.name), field.name
    box = {"h264": b"avcC", "hevc": b"hvcC", "av1": b"av1C"}[ours.codec]
    assert codec_configuration(ours.stsd, box) == codec_configuration(other.stsd, box)
    assert coded_size(ours.stsd) == coded_size(other.stsd)
    assert ours.stsd[20:24] == other.stsd[20:24]
    assert packets_of(ours) == packets_of(other)
    assert ours.stsd == sample_description(ours.mp4.read_bytes())
    assert ours.sha256 == hashlib.sha256(ours.mp4.read_bytes()).hexdigest()
    # In its own place, the same again; and a clip cut from there is the one cut from an MP4 of its own.
    whole = ingest_by_tables(source, cut_only=True)
    assert whole.mp4 == source
    assert packets_of(whole) == packets_of(other)
    count = len(whole.index.visible)
    first, end = count // 3, count - count // 4
    here = trim_clip(whole, first, end, tmp_path / "here.mp4")
    there = trim_clip(other, first, end, tmp_path / "there.mp4")
    assert packets_of(here) == packets_of(there)
    np.testing.assert_array_equal(here.index.flags, there.index.flags)
    np.testing.assert_array_equal(here.index.pts, there.index.pts)


def shard_of(clip: StoredClip, folder: Path) -> bytes:
    folder.mkdir()
    with closing(ShardWriter(0, folder, metadata=metadata_of(pa.table({})))) as writer:
        writer.add("key", "source", PreparedClip(clip, "", (), {}))
    return (folder / "00000000.tar").read_bytes()


@pytest.mark.parametrize(("name", "rate"), [("a.mkv", 30), ("a.mp4", 30), ("a.ts", 24), ("a.flv", 60), ("a.mov", 24)])
def test_at_its_own_rate_each_frame_of_a_video_is_shown_once(name: str, rate: int, tmp_path: Path) -> None:
    """Their times are rounded to milliseconds, also in the finer ticks of an MP4 and a transport stream, into which
    FFmpeg copies a Matroska file. With windows by those ticks frames were shown twice, and others not at all."""
    fps = Fraction(rate * 1000, 1001) if rate == 24 else Fraction(rate)
    source = write(Recipe(frames=60, fps=fps, b_frames=0, container="mkv"), tmp_path / "first.mkv")
    path = source if name == "a.mkv" else tmp_path / name
    if path != source:
        with remuxing(source, path) as copy:
            for packet in copy.packets:
                copy.mux(packet)
    clips = [remux_with_ffmpeg(path, tmp_path), *([ingest_by_tables(path)] if name in ("a.mp4", "a.mov") else [])]
    for clip in clips:
        times = ClipTimes(clip.index.frame_pts, clip.duration, Fraction(*clip.time_base))
        assert times.tick >= Fraction(1, 1000)
        for every in (1, 2, 5):
            window = Window(8, fps=fps / every)
            for start in np.arange(0, 1, 0.05):
                assert set(np.diff(select(window, times, np.array([start])).frames)) == {every}


def test_times_of_a_gif_count_in_hundredths(tmp_path: Path) -> None:
    """It is transcoded. At 30 frames a second its times are 0, 3, 7, 10 …"""
    with av.open(str(tmp_path / "a.gif"), "w") as output:
        stream = output.add_stream("gif", rate=30)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "rgb8"
        for level in range(0, 200, 10):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), level, dtype=np.uint8))
            output.mux(stream.encode(frame.reformat(format="rgb8")))
        output.mux(stream.encode())
    transcode(tmp_path / "a.gif", tmp_path / "b.mp4", TranscodeOptions())
    clip = ingest_by_tables(tmp_path / "b.mp4")
    assert clip.time_base == (1, 100)
    times = ClipTimes(clip.index.frame_pts, clip.duration, Fraction(*clip.time_base))
    assert select(Window(20, fps=30, start="first"), times, np.zeros(1)).frames.tolist() == [*range(20)]


def test_a_window_at_the_clips_own_rate_does_not_show_the_last_frame_twice() -> None:
    """Frames are 41 or 42 ms apart. The last is said to last 42, and the end lay behind the time of a next frame."""
    rate = Fraction(24000, 1001)
    pts = np.array([int(n * 1000 / rate + Fraction(1, 2)) for n in range(61)])
    shown = np.zeros(len(pts), dtype=np.bool_)
    end = int(pts[-1]) + PacketTimes(pts, pts, shown, shown, 42, (1, 1000)).last_frame_ticks()
    for start in np.arange(0.8, 1, 0.01):
        found = select(Window(5, fps=rate), ClipTimes(pts, end, Fraction(1, 1000)), np.array([start]))
        assert set(np.diff(found.frames)) == {1}


@pytest.mark.parametrize(
    ("times", "stated", "wanted"),
    [
        ([0, 42, 83, 125], 42, 41),
        ([0, 40, 80, 120], 43, 43),
        ([0, 20, 40, 60], 1, 20),  # as FFmpeg's muxer states it
        ([0, 20, 40, 60], 2, 2),
        ([0, 2, 4, 6], 1, 1),
        ([0, 20, 40, 60], 200, 200),
        ([0, 20, 40, 60], 201, 20),
        ([0], 8, 8),
        ([0], 0, 40),
    ],
)
def test_the_duration_of_the_last_frame(times: list[int], stated: int, wanted: int) -> None:
    assert last_frame_duration(np.array(times), stated, Fraction(1, 1000)) == wanted


def test_the_duration_of_the_last_frame_in_finer_ticks() -> None:
    """A short clip of QuickTime's 600ths at 29.97 a second, whose frames all are 20 apart, but for the last."""
    none = np.zeros(3, dtype=np.bool_)
    pts = np.array([0, 20, 40])
    found = PacketTimes(pts, pts, none, none, 21, (1, 600)).in_coarsest_ticks()
    assert (found.pts.tolist(), found.last_frame_ticks(), found.time_base) == ([0, 640, 1280], 640, (1, 19200))


def test_hidden_packets_say_nothing_about_the_duration_of_the_last_frame() -> None:
    """Those between the parts of an edit list are a tick apart: the last frame lasted a few if no duration was stated,
    and 17 ms if that was stated, where the shortest distance of frames is 16."""
    hidden = np.array([0, 0, 0, 1, 1, 1, 0], dtype=np.bool_)
    pts = np.array([0, 10, 20, 21, 22, 23, 30])
    assert PacketTimes(pts, pts, hidden, hidden, 0, (1, 600)).last_frame_ticks() == 10
    pts = np.array([0, 17, 33, 34, 35, 36, 50])
    assert PacketTimes(pts, pts, hidden, hidden, 17, (1, 1000)).last_frame_ticks() == 16


@pytest.mark.parametrize(
    ("pts", "base", "wanted", "ticks"),
    [
        ([0, 528, 1072, 1600], (1, 16000), [0, 33, 67, 100], 1000),
        ([90, 4595, 9095], (1, 90000), [0, 901, 1801], 18000),
        ([90, 3093, 6096], (1, 90000), [0, 1001, 2002], 30000),
        ([0, 20, 41], (1, 600), [0, 20, 41], 600),
        ([0, 3, 7, 10], (1, 100), [0, 3, 7, 10], 100),
        ([0, 33, 34, 67, 100], (1, 1000), [0, 33, 34, 67, 100], 1000),
    ],
)
def test_the_coarsest_ticks(pts: list[int], base: tuple[int, int], wanted: list[int], ticks: int) -> None:
    none = np.zeros(len(pts), dtype=np.bool_)
    for last in (0, 1, 6):  # ticks of the last frame: 0 if they are not stated
        found = PacketTimes(np.array(pts), np.array(pts), none, none, last, base).in_coarsest_ticks()
        assert (found.pts.tolist(), found.time_base) == (wanted, (1, ticks))
        assert found.last_duration == max(round(last * Fraction(*base) * ticks), min(last, 1))


@pytest.mark.parametrize(
    ("pts", "base", "wanted", "ticks"),
    [
        ([7, 9, 11], (1, 25), [0, 1024, 2048], 12800),
        ([0, 40, 120], (1, 1000), [0, 512, 1536], 12800),
        ([0, 5, 9], (1, 120), [0, 640, 1152], 15360),
        ([0, 40, 90], (1, 1000), [0, 512, 1152], 12800),
        ([0, 1, 2], (1, 1200), [0, 16, 32], 19200),
        ([5, 6, 7], (1001, 30000), [0, 1001, 2002], 30000),
        ([0, 0, 1, 1, 2, 2], (1, 1000), [0, 0, 16, 16, 32, 32], 16000),
        ([3], (1, 90000), [0], 16384),
    ],
)
def test_the_ticks_of_times_that_are_not_rounded(
    pts: list[int], base: tuple[int, int], wanted: list[int], ticks: int
) -> None:
    """As FFmpeg's muxer has them, at least 10,000; finer where the last frame ends between two of them."""
    none = np.zeros(len(pts), dtype=np.bool_)
    found = PacketTimes(np.array(pts), np.array(pts), none, none, 0, base).in_coarsest_ticks()
    assert (found.pts.tolist(), found.time_base, found.last_duration) == (wanted, (1, ticks), 0)
    for last in (1, 6):
        ended = PacketTimes(np.array(pts), np.array(pts), none, none, last, base).in_coarsest_ticks()
        assert [t * Fraction(*ended.time_base) for t in ended.pts.tolist()] == [Fraction(t, ticks) for t in wanted]
        assert ended.last_duration * Fraction(*ended.time_base) == last * Fraction(*base)
        assert ended.time_base[1] >= 10_000


def test_a_shard_is_the_same_from_an_unwritten_mp4_and_from_a_file(tmp_path: Path) -> None:
    source = tmp_path / "a.mp4"
    source.write_bytes(made()[0])
    unwritten = ingest_by_tables(source)
    assert unwritten.unwritten is not None
    written = replace(store_clip(source, tmp_path), sha256="")
    assert shard_of(unwritten, tmp_path / "1") == shard_of(written, tmp_path / "2")
    assert unwritten.mp4_bytes == written.mp4_bytes


def test_a_source_that_changes_while_it_is_packed(tmp_path: Path) -> None:
    source = tmp_path / "a.mp4"
    source.write_bytes(made()[0])
    clip = ingest_by_tables(source)
    source.write_bytes(made()[0][:-100])
    with pytest.raises(VideoError, match="was changed"):
        shard_of(clip, tmp_path / "1")
    source.unlink()
    with pytest.raises(VideoError, match="was changed or removed"):
        shard_of(clip, tmp_path / "2")


def test_ten_cuts_read_a_video_once(tmp_path: Path) -> None:
    """No temporary copy is made of it, and each cut takes its own packets."""
    source = write(Recipe(width=320, height=180, frames=100, gop=10, crf=5, style="texture"), tmp_path / "a.mp4")
    length = source.stat().st_size
    began = moved()
    whole = ingest_by_tables(source, cut_only=True)
    assert moved() - began < 1.2 * length
    for n in range(10):
        trim_clip(whole, 10 * n, 10 * n + 10, tmp_path / f"{n}.mp4")
    assert 2.9 * length < moved() - began < 3.5 * length  # read to know them, read and written to cut them
    assert length > 500_000


def moved() -> int:
    """Bytes that this process has read and written."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


FULL = TranscodeOptions(codec="h264", gop=6)
TREATMENTS = {
    "copied": PackOptions(),
    "converted": PackOptions(transcode=FULL),
    "cut": PackOptions(cutting=FixedLength(20, "frames")),
    "cut and encoded": PackOptions(cutting=FixedLength(13, "frames"), exact_cuts=True),
    "cut and converted": PackOptions(cutting=FixedLength(30, "frames"), transcode=FULL),
    "cut by a list": PackOptions(),
    "few key frames": PackOptions(cutting=FixedLength(1, "frames"), exact_cuts=True),
}


@pytest.mark.parametrize("name", TREATMENTS)
def test_a_source_is_left_as_it_was(name: str, tmp_path: Path) -> None:
    """Whatever is made of it: no file of the user's is taken for a temporary one."""
    source = tmp_path / "a.mp4"
    few = name == "few key frames"
    recipe = Recipe(width=96, height=64, frames=60, gop=600, b_frames=0, fps=Fraction(30), audio=True)
    source.write_bytes(write(recipe, tmp_path / "b.mp4").read_bytes() if few else made()[0])
    before = source.read_bytes()
    cuts = (Cut(3, 17, "frames"), Cut(10, 40, "frames")) if name == "cut by a list" else None
    one = SourceVideo(path=str(source), name="a.mp4", key="a", label=None, cuts=cuts)
    pieces = [
        made_
        for made_ in process_source(one, tmp_path / "place", TREATMENTS[name], Retry())
        if isinstance(made_, PreparedClip)
    ]
    assert source.read_bytes() == before
    frames = sequential(source, full_range=False)
    at = 0
    for piece in pieces:
        clip = piece.clip.as_file(tmp_path / "clip.mp4")
        with av.open(str(clip.mp4)) as container:
            assert len(container.streams) == 1
        count = len(clip.index.visible)
        if name in ("copied", "cut"):
            got = decode_with_pyav(slice_of(clip, [0, count - 1]))
            assert np.array_equal(got[0], frames[at])
            assert np.array_equal(got[1], frames[at + count - 1])
        at += count
    assert at == (44 if cuts else 60)


@pytest.mark.parametrize(("size", "is_taken"), [((192, 150), True), ((186, 154), True), ((192, 144), False)])
def test_h264_is_cropped_to_the_size_of_its_sample_entry(size: Any, is_taken: bool, tmp_path: Path) -> None:
    """As by FFmpeg, where both sizes have as many macroblocks: some encoders state 1088 lines, and their MP4 1080."""
    path = write(Recipe(width=192, height=154, frames=8, gop=4, b_frames=1), tmp_path / "a.mp4")
    data = bytearray(path.read_bytes())
    struct.pack_into(">HH", data, data.index(b"avc1", data.index(b"stsd")) + 28, *size)
    path.write_bytes(data)
    expected = sequential(path)
    clip = ingest_by_tables(path)
    assert (clip.width, clip.height) == expected[0].shape[1::-1] == (size if is_taken else (192, 154))
    for number, frame in enumerate(expected):
        np.testing.assert_array_equal(decode_with_pyav(slice_of(clip.as_file(tmp_path / "b.mp4"), [number]))[0], frame)
