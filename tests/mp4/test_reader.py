"""Files read by their own tables give the same clips as through FFmpeg, and all other files go through FFmpeg."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamvid.decode.cpu import decode_with_pyav
from streamvid.errors import InputError, VideoError
from streamvid.mp4.boxes import iter_boxes
from streamvid.mp4.reader import NeedsDemuxerError, read_track
from streamvid.mp4.sample_entry import codec_configuration, coded_size, sample_description
from streamvid.packing.inputs import SourceVideo
from streamvid.packing.options import Cut, FixedLength, PackOptions, PreparedClip
from streamvid.packing.process_source import process_source
from streamvid.packing.shard_writer import ClipMetadata, ShardWriter
from streamvid.packing.typed_columns import NO_COLUMNS
from streamvid.video.ingest import ingest_by_tables
from streamvid.video.remux import remux_with_ffmpeg, store_clip
from streamvid.video.stored_clip import StoredClip
from streamvid.video.transcode import TranscodeOptions
from streamvid.video.trim import trim_clip
from tests.support.reference import sequential, slice_of
from tools.clips import Recipe, hard_recipes, write

HARD = {name: recipe for name, recipe in hard_recipes().items() if recipe.container in ("mp4", "mov")}
ODD = {name for name, recipe in HARD.items() if recipe.trim or recipe.trim_end or recipe.codec in ("mpeg4", "mjpeg")}
ODD |= {"h264_avc3", "h264_fragmented", "vp9_mp4"}


def packets(clip: StoredClip) -> list[bytes]:
    data = clip.mp4.read_bytes()
    return [data[o : o + s] for o, s in zip(clip.index.offset.tolist(), clip.index.size.tolist(), strict=True)]


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
    assert packets(ours) == packets(other)
    assert ours.stsd == sample_description(ours.mp4.read_bytes())
    assert ours.sha256 == hashlib.sha256(ours.mp4.read_bytes()).hexdigest()
    # In its own place, the same again; and a clip cut from there is the one cut from an MP4 of its own.
    whole = ingest_by_tables(source, cut_only=True)
    assert whole.mp4 == source
    assert packets(whole) == packets(other)
    count = len(whole.index.visible)
    first, end = count // 3, count - count // 4
    here = trim_clip(whole, first, end, tmp_path / "here.mp4")
    there = trim_clip(other, first, end, tmp_path / "there.mp4")
    assert packets(here) == packets(there)
    np.testing.assert_array_equal(here.index.flags, there.index.flags)
    np.testing.assert_array_equal(here.index.pts, there.index.pts)


@cache
def made() -> tuple[bytes, TemporaryDirectory[str]]:
    """A file that is read by its tables, with sound, many chunks, and B-frames."""
    folder = TemporaryDirectory()
    recipe = Recipe(width=96, height=64, frames=60, gop=20, audio=True, b_frames=2)
    return write(recipe, Path(folder.name) / "a.mp4").read_bytes(), folder


def find(data: bytes | bytearray, *path: bytes) -> tuple[int, int]:
    """Payload and end of a box by the names on the way; of the first `trak`, which is the video's."""
    start, end = 0, len(data)
    for name in path:
        start, end = next((a, b) for kind, a, b in iter_boxes(data, start, end) if kind == name)
    return start, end


STBL = (b"moov", b"trak", b"mdia", b"minf", b"stbl")


def put(layout: str, at: int, value: int | bytes, *path: bytes) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        struct.pack_into(layout, data, find(data, *path)[0] + at, value)

    return change


def rename(new: bytes, *path: bytes) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        start, _ = find(data, *path)
        data[start - 4 : start] = new

    return change


def swap(old: bytes, new: bytes) -> Callable[[bytearray], None]:
    """Where it stands first in `moov`, which is in the video's track but for `soun`."""

    def change(data: bytearray) -> None:
        start, end = find(data, b"moov")
        assert data.find(old, start, end) > 0
        at = data.index(old, start)
        data[at : at + len(old)] = new

    return change


def append(box: bytes) -> Callable[[bytearray], None]:
    return lambda data: data.extend(struct.pack(">I4s", 8, box))


def cut_off(data: bytearray) -> None:
    """Lay `moov` before what is cut off: the tail of `mdat`."""
    start, end = find(data, b"mdat")
    moov = bytes(data[end:])
    size = (end - start) // 2
    del data[start + size :]
    struct.pack_into(">I", data, start - 8, size + 8)
    data.extend(moov)


CHANGES: dict[str, Callable[[bytearray], None]] = {
    "fragments at the top": append(b"moof"),
    "a box that nobody knows": append(b"what"),
    "a second moov": append(b"moov"),
    "cut off in the middle": cut_off,
    "cut off at the end": lambda data: data.__delitem__(slice(-9, None)),
    "no ftyp first": rename(b"free", b"ftyp"),
    "fragments announced": rename(b"mvex", b"moov", b"udta"),
    "two sample descriptions": put(">I", 4, 2, *STBL, b"stsd"),
    "another codec": put("4s", 12, b"avc3", *STBL, b"stsd"),
    "compact sizes": rename(b"stz2", *STBL, b"stsz"),
    "sizes that are too many": put(">I", 8, 1 << 31, *STBL, b"stsz"),
    "sizes that are too few": put(">I", 8, 59, *STBL, b"stsz"),
    "an empty packet": put(">I", 16, 0, *STBL, b"stsz"),
    "a huge packet": put(">I", 16, 0xFFFFFFFF, *STBL, b"stsz"),
    "packets of one size, very many": put(">I", 4, 1, *STBL, b"stsz"),
    "times of more packets": put(">I", 8, 61, *STBL, b"stts"),
    "times of a great many packets": put(">I", 8, 0xFFFFFFFF, *STBL, b"stts"),
    "many times": put(">I", 4, 0xFFFFFFFF, *STBL, b"stts"),
    "no time between packets": put(">I", 12, 0, *STBL, b"stts"),
    "a negative step": put(">I", 12, 0xFFFFFFFF, *STBL, b"stts"),
    "a negative delay": put(">i", 12, -512, *STBL, b"ctts"),
    "many delays": put(">I", 4, 0x7FFFFFFF, *STBL, b"ctts"),
    "no start": put(">I", 8, 2, *STBL, b"stss"),
    "key frames out of order": put(">I", 12, 1, *STBL, b"stss"),
    "key frames behind the end": put(">I", 16, 1000, *STBL, b"stss"),
    "key frame zero": put(">I", 8, 0, *STBL, b"stss"),
    "chunks of none": put(">I", 12, 0, *STBL, b"stsc"),
    "chunks of very many": put(">I", 12, 0xFFFFFFFF, *STBL, b"stsc"),
    "chunks of another description": put(">I", 16, 2, *STBL, b"stsc"),
    "chunks from the second on": put(">I", 8, 2, *STBL, b"stsc"),
    "a chunk behind the end": put(">I", 8, 0xFFFFFFF0, *STBL, b"stco"),
    "a chunk in the header": put(">I", 8, 8, *STBL, b"stco"),
    "chunks that overlap": put(">I", 12, 60, *STBL, b"stco"),
    "an edit that hides the start": put(">i", 12, 5000, b"moov", b"trak", b"edts", b"elst"),
    "an edit that hides the end": put(">I", 8, 500, b"moov", b"trak", b"edts", b"elst"),
    "nothing but a delay": put(">i", 12, -1, b"moov", b"trak", b"edts", b"elst"),
    "another speed": put(">h", 16, 2, b"moov", b"trak", b"edts", b"elst"),
    "many edits": put(">I", 4, 0xFFFFFFFF, b"moov", b"trak", b"edts", b"elst"),
    "a timescale of none": put(">I", 12, 0, b"moov", b"trak", b"mdia", b"mdhd"),
    "a movie's timescale of none": put(">I", 12, 0, b"moov", b"mvhd"),
    "a picture that leans": put(">i", 44, 1000, b"moov", b"trak", b"tkhd"),
    "a picture that is mirrored": put(">i", 40, -65536, b"moov", b"trak", b"tkhd"),
    "a movie that leans": put(">i", 40, 1000, b"moov", b"mvhd"),
    "a track of no known kind": put(">I", 8, 0, b"moov", b"trak", b"mdia", b"hdlr"),
    "no video": put(">I", 8, int.from_bytes(b"soun"), b"moov", b"trak", b"mdia", b"hdlr"),
    "packets by another reference": put(">H", 22, 2, *STBL, b"stsd"),
    "a sample entry with a clean aperture": swap(b"btrt", b"clap"),
    "a colour profile": swap(b"nclx", b"prof"),
    "a configuration of another version": swap(b"avcC\x01", b"avcC\x02"),
    "two videos": swap(b"soun", b"vide"),
    "a track that may be video": swap(b"soun", b"auxv"),
    "two frames at the same time": put(">I", 12, 1536, *STBL, b"ctts"),
    "packets in another file": put(">I", 16, 0, b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref"),
}  # fmt: skip


def test_the_file_that_is_changed_is_read_by_its_tables() -> None:
    data, folder = made()
    with (Path(folder.name) / "a.mp4").open("rb", buffering=0) as file:
        track = read_track(file)
    assert len(track.pts) == 60
    assert len(np.flatnonzero(track.offset[1:] != track.offset[:-1] + track.size[:-1])) > 2  # sound lies between
    assert find(data, *STBL, b"ctts")


@pytest.mark.parametrize("name", CHANGES)
def test_other_files_are_left_to_ffmpeg(name: str, tmp_path: Path) -> None:
    data = bytearray(made()[0])
    CHANGES[name](data)
    assert data != made()[0]
    source = tmp_path / "a.mp4"
    source.write_bytes(data)
    with pytest.raises(NeedsDemuxerError):
        ingest_by_tables(source)
    # What FFmpeg makes of the file is stored, and if it refuses it, that is the reason.
    (tmp_path / "1").mkdir()
    assert outcome(store_clip, source, tmp_path) == outcome(remux_with_ffmpeg, source, tmp_path / "1")


def outcome(store: Callable[[Path, Path], StoredClip], source: Path, folder: Path) -> bytes | str:
    """The MP4, or why there is none."""
    try:
        return store(source, folder).mp4.read_bytes()
    except VideoError as error:
        return str(error)


@settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_headers_with_any_damage(data: st.DataObject) -> None:
    """Nothing but NeedsDemuxerError is raised; packets of files that are read nevertheless lie within the file."""
    original, folder = made()
    changed = bytearray(original)
    start, end = find(changed, b"moov")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(start - 8, end - 4))
        value = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0xFF, 0x80]) | st.integers(0, 255))
        width = data.draw(st.sampled_from([1, 4]))
        changed[at : at + width] = bytes([value]) * width
    path = Path(folder.name) / "damaged.mp4"
    path.write_bytes(changed)
    with path.open("rb", buffering=0) as file:
        try:
            track = read_track(file)
        except NeedsDemuxerError:
            return
    assert len(track.pts) == len(track.offset) == len(track.size) == len(track.sync)
    assert (track.offset >= 8).all()
    assert (track.offset + track.size <= len(changed)).all()
    assert track.sync[0]
    assert track.rotation in (0, 90, 180, 270)


def shard_of(clip: StoredClip, folder: Path) -> bytes:
    folder.mkdir()
    with ShardWriter(0, folder, columns=NO_COLUMNS) as writer:
        writer.add(clip, ClipMetadata("key", "source", None, "{}"))
    return (folder / "00000000.tar").read_bytes()


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
    with pytest.raises(InputError, match="was changed"):
        shard_of(clip, tmp_path / "1")
    source.unlink()
    with pytest.raises(InputError, match="can no longer be read"):
        shard_of(clip, tmp_path / "2")


def test_ten_cuts_read_a_video_once(tmp_path: Path) -> None:
    """No temporary copy is made of it, and each cut takes its own packets."""
    source = write(Recipe(width=640, height=360, frames=100, gop=10, crf=5, style="texture"), tmp_path / "a.mp4")
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
    one = SourceVideo(path=str(source), name="a.mp4", key="a", meta="{}", label=None, cuts=cuts)
    pieces = [
        made_ for made_ in process_source(one, tmp_path / "place", TREATMENTS[name]) if isinstance(made_, PreparedClip)
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
