"""Sample tables of files with any damage: what is not read by `read_track` goes through FFmpeg."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamvid.errors import VideoError
from streamvid.mp4.boxes import ROTATIONS, iter_boxes
from streamvid.mp4.reader import read_track
from streamvid.mp4.top_level import NeedsDemuxerError
from streamvid.video.ingest import ingest_by_tables
from streamvid.video.remux import remux_with_ffmpeg, store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.clips import write
from tools.clips import Recipe


@cache
def made(*flags: str) -> tuple[bytes, TemporaryDirectory[str]]:
    """A file that is read by its tables, with sound, many chunks, and B-frames; `flags` of FFmpeg's muxer."""
    folder = TemporaryDirectory()
    muxer = (("movflags", "+".join(flags)),) if flags else ()
    recipe = Recipe(width=96, height=64, frames=60, gop=20, audio=True, b_frames=2, muxer=muxer)
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
    "a picture that leans": put(">i", 44, 5000, b"moov", b"trak", b"tkhd"),
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


@pytest.mark.parametrize("flags", [(), ("frag_keyframe", "default_base_moof")], ids=["tables", "fragments"])
@settings(suppress_health_check=list(HealthCheck))
@given(st.data())
def test_headers_with_any_damage(flags: tuple[str, ...], data: st.DataObject) -> None:
    """Nothing but NeedsDemuxerError is raised; packets of files that are read nevertheless lie within the file."""
    original, folder = made(*flags)
    changed = bytearray(original)
    boxes = [(start, end) for kind, start, end in iter_boxes(changed, 0, len(changed)) if kind in (b"moov", b"moof")]
    start, end = data.draw(st.sampled_from(boxes))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(start - 8, end - 4))
        value = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0xFF, 0x80]) | st.integers(0, 255))
        width = data.draw(st.sampled_from([1, 4]))
        changed[at : at + width] = bytes([value]) * width
    path = Path(folder.name) / "damaged.mp4"
    path.write_bytes(changed)
    with path.open("rb", buffering=0) as file:
        try:
            track = read_track(file, more=data.draw(st.booleans()) or bool(flags))
        except NeedsDemuxerError:
            return
    assert len(track.pts) == len(track.offset) == len(track.size) == len(track.sync) == len(track.hidden)
    assert (track.offset >= 8).all()
    assert (track.offset + track.size <= len(changed)).all()
    assert track.sync[0]
    assert track.rotation in ROTATIONS
