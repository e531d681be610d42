"""Gaps in files, behind which FFmpeg goes on without a word, and files that were joined."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from streamvid.errors import VideoError
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.prepare import remux_or_build
from streamvid.storage.retry import Retry
from streamvid.video.gaps import before_gaps, find_extent
from streamvid.video.gpu_support import Purpose
from streamvid.video.picture_damage import checking_classifier
from streamvid.video.probe import VideoFile
from streamvid.video.recordings import DAMAGED
from streamvid.video.remux import remux_with_ffmpeg
from streamvid.video.stored_clip import CUT_OFF, OTHER_TRACKS, StoredClip
from tests.support.clips import decoded_pictures, write
from tests.support.remux import remuxing
from tools.recipes import Recipe

VIDEO = Recipe(frames=48, gop=12, codec="vp8", container="webm", style="texture")
KINDS = ("webm", "mkv", "live mkv", "ogg")


def make(kind: str, folder: Path) -> Path:
    """A video of 48 frames in a container."""
    target = folder / f"a.{kind.split()[-1]}"
    recipe = VIDEO if kind in ("webm", "ogg") else Recipe(frames=48, gop=12, b_frames=0, style="texture")
    source = write(recipe, folder / f"source.{recipe.container}")
    with remuxing(source, target, options={"live": "1"} if kind == "live mkv" else {}) as copy:
        for packet in copy.packets:
            copy.mux(packet)
    return target


def prepare(source: Path, folder: Path, decoders: Purpose = "any", *, cut_only: bool = False) -> StoredClip:
    folder.mkdir()
    return remux_or_build(str(source), source, folder, PackOptions(decoders), Retry(), cut_only=cut_only)[0]


def encode(target: Path, codec: str, pix_fmt: str = "yuv420p") -> None:
    """24 frames, which a codec of FFmpeg encodes."""
    rng = np.random.default_rng(0)
    with av.open(str(target), "w") as output:
        stream: Any = output.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, pix_fmt
        for _ in range(24):
            noise = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(noise).reformat(format=pix_fmt)))
        output.mux(stream.encode(None))


def decoded(path: Path) -> list[np.ndarray[Any, Any]]:
    with av.open(str(path)) as container:
        return decoded_pictures(container.decode(video=0))


def with_zeros(data: bytes, begin: float, end: float) -> bytes:
    """Data with zeros in the midst of it or to its end, as of a download that was not finished."""
    first, behind = int(len(data) * begin), int(len(data) * end)
    return data[:first] + bytes(behind - first) + data[behind:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_video_with_a_gap_is_rejected(kind: str, tmp_path: Path) -> None:
    """Frames there were lost without a word, and those behind were decoded from other references."""
    source = make(kind, tmp_path)
    source.write_bytes(with_zeros(source.read_bytes(), 0.4, 0.5))
    with av.open(str(source)) as container:
        assert 0 < sum(packet.size > 0 for packet in container.demux(video=0)) < 48
    with pytest.raises(VideoError, match=r"^a packet in it is damaged or cut off"):
        prepare(source, tmp_path / "clip")


@pytest.mark.parametrize("kind", KINDS)
def test_a_video_that_ends_with_zeros_is_cut_off(kind: str, tmp_path: Path) -> None:
    """Its frames before that are packed, but for the last, of which a part may be zeros."""
    source = make(kind, tmp_path)
    whole = decoded(source)
    source.write_bytes(with_zeros(source.read_bytes(), 0.4, 1))
    clip = prepare(source, tmp_path / "clip")
    found = decoded(clip.as_file(tmp_path / "clip.mp4").mp4)
    assert clip.source_remarks == (CUT_OFF,)
    assert 6 < len(found) == len(clip.index.visible) < 24
    assert all(np.array_equal(one, other) for one, other in zip(found, whole, strict=False))


def test_fragments_of_an_mp4_behind_a_gap(tmp_path: Path) -> None:
    """FFmpeg takes zeros for a box that reaches to the end, and all behind them was lost without a word."""
    source = write(Recipe(frames=48, gop=12, muxer=(("movflags", "frag_keyframe+empty_moov"),)), tmp_path / "a.mp4")
    data = source.read_bytes()
    begin, behind = (found.start() - 4 for found in [*re.finditer(b"moof", data)][2:])
    tail = bytes(len(data) - begin)
    for number, hole in enumerate((bytes(behind - begin), bytes(8) + data[begin + 8 : behind], b"\xff" * 99, tail)):
        source.write_bytes(data[:begin] + hole + (b"" if hole is tail else data[behind:]))
        clip = prepare(source, tmp_path / f"clip{number}")
        assert (len(clip.index.visible), clip.source_remarks) == (24, (CUT_OFF,))
    for number, after in enumerate((b"trailing text", bytes(4))):
        source.write_bytes(data + after)
        assert not prepare(source, tmp_path / f"whole{number}").source_remarks


def test_a_gif_with_a_gap_or_without_its_end(tmp_path: Path) -> None:
    source = tmp_path / "a.gif"
    encode(source, "gif", "rgb8")
    data = source.read_bytes()
    assert find_extent(source, "gif").end <= len(data)
    begin = len(data) // 2
    source.write_bytes(data[:begin] + bytes(99) + b"?" + data[begin + 100 :])
    with pytest.raises(VideoError, match=r"^a packet in it is damaged or cut off"):
        prepare(source, tmp_path / "gap", "gpu")
    for number, end in enumerate((b"", bytes(99))):
        source.write_bytes(data[:begin] + end)
        clip = prepare(source, tmp_path / f"end{number}", "gpu")
        assert 0 < len(clip.index.visible) < 24
        assert clip.source_remarks == (CUT_OFF,)
    source.write_bytes(data[:-1] + bytes(2) + data[-1:])  # zeros between blocks are no gap
    assert not prepare(source, tmp_path / "padded", "gpu").source_remarks
    source.write_bytes(data[:-1])  # without the trailer, as some are
    assert not prepare(source, tmp_path / "whole", "gpu").source_remarks


@pytest.mark.parametrize("length", range(6, 14))
def test_the_beginning_of_a_gif(length: int, tmp_path: Path) -> None:
    """FFmpeg opens it from 9 bytes on. It was rejected for an unexpected IndexError."""
    source = tmp_path / "a.gif"
    source.write_bytes(b"GIF89a@\0@\0\xf7\0\0"[:length])
    with pytest.raises(VideoError):
        prepare(source, tmp_path / "clip", "gpu")


def test_a_file_that_ends_with_many_zeros_is_cut_off(tmp_path: Path) -> None:
    """An AVI that was not downloaded to its end is as long as its header says."""
    source = write(Recipe(codec="mjpeg", container="avi", frames=48, style="texture"), tmp_path / "a.avi")
    data = source.read_bytes()
    zeros = len(data) // 2
    assert zeros > 1 << 16
    source.write_bytes(data[:-zeros] + bytes(zeros))
    clip = prepare(source, tmp_path / "clip")
    assert 0 < len(clip.index.visible) < 30
    assert clip.source_remarks == (CUT_OFF,)


def test_a_page_of_ogg_with_another_checksum(tmp_path: Path) -> None:
    """FFmpeg passes over it without a word."""
    source = make("ogg", tmp_path)
    data = bytearray(source.read_bytes())
    data[len(data) // 2] ^= 1
    source.write_bytes(data)
    with pytest.raises(VideoError, match=r"^a packet in it is damaged or cut off"):
        prepare(source, tmp_path / "clip")


@pytest.mark.parametrize("kind", KINDS)
def test_whole_videos_have_no_gap(kind: str, tmp_path: Path) -> None:
    """Nor have those with something behind their end, and Matroska files that were joined, which FFmpeg reads."""
    source = make(kind, tmp_path)
    data, container = source.read_bytes(), "ogg" if kind == "ogg" else "matroska"
    clip = prepare(source, tmp_path / "clip")
    assert (len(clip.index.visible), clip.source_remarks) == (48, ())
    assert find_extent(source, container).end == len(data)
    if kind != "live mkv":  # which may go on anywhere
        source.write_bytes(data + b"\xff" * 100)
        assert find_extent(source, container).end <= len(data) + 100
    if container == "matroska":
        source.write_bytes(2 * data)
        assert find_extent(source, container).end == 2 * len(data)
        assert len(prepare(source, tmp_path / "twice").index.visible) == 96


def element(kind: int, payload: bytes) -> bytes:
    """An element of Matroska, with a size of eight bytes."""
    return kind.to_bytes((kind.bit_length() + 7) // 8, "big") + (len(payload) | 1 << 56).to_bytes(8, "big") + payload


def elements(data: bytes) -> list[tuple[int, bytes]]:
    """The elements in a payload: ids and payloads."""
    found, at = [], 0
    while at < len(data):
        start = at + 9 - data[at].bit_length()
        begin = start + 9 - data[start].bit_length()
        size = int.from_bytes(data[start:begin], "big") & (1 << 7 * (begin - start)) - 1
        found.append((int.from_bytes(data[at:start], "big"), data[begin : begin + size]))
        at = begin + size
    return found


def test_tracks_of_matroska_with_numbers_of_two_bytes(tmp_path: Path) -> None:
    """The blocks of track 201 counted as blocks of track 200 that FFmpeg leaves out."""

    def entry(data: bytes, number: int) -> bytes:
        renumbered = {0xD7: number.to_bytes(2, "big"), 0x73C5: number.to_bytes(2, "big")}  # and its UID
        return element(0xAE, b"".join(element(kind, renumbered.get(kind, part)) for kind, part in elements(data)))

    def block(data: bytes) -> bytes:
        return b"".join(element(0xA3, bytes((0x40, number)) + data[1:]) for number in (200, 201))

    def copy(kind: int, data: bytes) -> bytes:
        if kind == 0x1654AE6B:  # Tracks
            (track,) = (part for kind, part in elements(data) if kind == 0xAE)
            return element(kind, entry(track, 200) + entry(track, 201))
        if kind == 0x1F43B675:  # Cluster
            parts = elements(data)
            return element(kind, b"".join(block(part) if kind == 0xA3 else element(kind, part) for kind, part in parts))
        return b""

    (_, header), (segment, data) = elements(make("mkv", tmp_path).read_bytes())
    whole = b"".join(copy(*part) for part in elements(data))
    source = tmp_path / "b.mkv"
    source.write_bytes(element(0x1A45DFA3, header) + element(segment, whole))
    with av.open(str(source)) as container:
        assert len(container.streams.video) == 2
    clip = prepare(source, tmp_path / "clip")
    assert (len(clip.index.visible), clip.source_remarks) == (48, (OTHER_TRACKS,))


@pytest.mark.parametrize("kind", ["webm", "mkv", "live mkv"])
def test_a_block_with_a_size_that_reaches_behind_the_end(kind: str, tmp_path: Path) -> None:
    """It counted as a file that is cut off there, though FFmpeg reads on behind it."""
    source = make(kind, tmp_path)
    data = source.read_bytes()
    cluster = [found.start() for found in re.finditer(b"\x1f\x43\xb6\x75", data)][-2]
    hole = element(0xEC, b"")[:-8] + (1 << 56 | 1 << 30).to_bytes(8, "big")  # Void, of a GB
    source.write_bytes(data[:cluster] + hole + data[cluster + len(hole) :])
    with av.open(str(source)) as container:
        assert 0 < sum(packet.size > 0 for packet in container.demux(video=0)) < 48
    with pytest.raises(VideoError, match=r"^a packet in it is damaged or cut off"):
        prepare(source, tmp_path / "clip")


@pytest.mark.parametrize("lost", ["its last blocks", "a cluster"])
def test_a_cluster_of_another_size_than_it_says(lost: str, tmp_path: Path) -> None:
    """What follows was taken for the next element."""
    source = make("mkv", tmp_path)
    data = source.read_bytes()
    first, behind = [found.start() for found in re.finditer(b"\x1f\x43\xb6\x75", data)][-3:-1]
    with av.open(str(source)) as container:
        places = [packet.pos for packet in container.demux(video=0) if packet.size]
    begin = next(place for place in places if place is not None and place > first + 2000) - 3
    assert data[begin] == 0xA3
    if lost == "a cluster":  # an element that clusters alone have hides it
        hidden = element(0xA7, bytes(behind - first - 9))
        source.write_bytes(data[:first] + hidden + data[behind:])
    else:
        source.write_bytes(data[:begin] + data[behind:])
    with av.open(str(source)) as container:
        assert 24 < sum(packet.size > 0 for packet in container.demux(video=0)) < 48
    with pytest.raises(VideoError, match=r"^a packet in it is damaged or cut off"):
        prepare(source, tmp_path / "clip")


def test_an_ogg_file_that_is_cut_off_in_the_header_of_a_page(tmp_path: Path) -> None:
    source = make("ogg", tmp_path)
    data = source.read_bytes()
    source.write_bytes(data[: data.rindex(b"OggS") + 20])
    clip = prepare(source, tmp_path / "clip")
    assert 0 < len(clip.index.visible) < 48
    assert clip.source_remarks == (CUT_OFF,)


def test_a_black_picture_at_the_end_of_uncompressed_video(tmp_path: Path) -> None:
    """Its zeros are no missing end."""
    source = tmp_path / "a.y4m"
    pictures = (bytes([200 - 40 * number]) * (320 * 240) for number in range(6))
    header = b"YUV4MPEG2 W320 H240 F25:1 Ip A1:1 Cmono\n"
    source.write_bytes(header + b"".join(b"FRAME\n" + picture for picture in pictures))
    clip = prepare(source, tmp_path / "clip", "gpu")
    assert (len(clip.index.visible), clip.source_remarks) == (6, ())


def test_an_ogg_file_that_is_cut_off(tmp_path: Path) -> None:
    """Frames of its last page were lost without a word."""
    source = make("ogg", tmp_path)
    source.write_bytes(source.read_bytes()[: source.stat().st_size * 3 // 5])
    clip = prepare(source, tmp_path / "clip")
    assert 0 < len(clip.index.visible) < 48
    assert clip.source_remarks == (CUT_OFF,)


@pytest.mark.parametrize(("name", "codec"), [("a.ogg", "vp8"), ("a.nut", "h264"), ("a.nut", "mpeg2video")])
def test_files_that_were_joined_byte_by_byte(name: str, codec: str, tmp_path: Path) -> None:
    """A chain of VP8 was said to have a clock that falls back, NUT to be damaged."""
    source = tmp_path / name
    if codec == "mpeg2video":  # which is transcoded
        encode(source, codec)
    else:
        made = write(VIDEO if codec == "vp8" else Recipe(frames=12), tmp_path / "source")
        with remuxing(made, source) as copy:
            for packet in copy.packets:
                copy.mux(packet)
    data = source.read_bytes()
    source.write_bytes(2 * data)
    kind = "NUT" if name == "a.nut" else "Ogg"
    with pytest.raises(VideoError, match=f"^it is several {kind} files .* second begins at byte {len(data)}"):
        prepare(source, tmp_path / "clip", "gpu")


@pytest.mark.parametrize("codec", ["h264", "mpeg2video"])
def test_a_transport_stream_with_many_zeros(codec: str, tmp_path: Path) -> None:
    """FFmpeg's error means that a resource is not there for now. It was waited for ten minutes, and then the pack
    ended, as if the storage of the video did not answer."""
    source = tmp_path / "a.ts"
    if codec == "h264":
        write(Recipe(frames=24, container="ts", style="texture"), source)
    else:
        encode(source, codec)
    source.write_bytes(source.read_bytes() + bytes(1 << 20))
    report = pack([source, write(Recipe(frames=2), tmp_path / "b.mp4")], tmp_path / "set", retry_for=0, progress=False)
    assert report.clips == 1
    assert [(one.source, one.reason) for one in report.rejected] == [("a.ts", DAMAGED)]


CHAINS = {"flv": "h264", "avi": "mpeg4", "asf": "mpeg4", "mxf": "mpeg2video"}
"""Codecs, by containers of which elements follow each other."""


def make_chain(kind: str, folder: Path, *, frames: int = 48, packet_size: str = "3200") -> Path:
    """A video in one of `CHAINS`."""
    target, codec = folder / f"chain.{kind}", CHAINS[kind]
    if codec == "mpeg2video":  # which is transcoded
        encode(target, codec)
        return target
    options = {"packet_size": packet_size} if kind == "asf" else {}
    recipe = Recipe(codec="mpeg4" if codec == "mpeg4" else "h264", frames=frames, gop=12, b_frames=0, style="texture")
    with remuxing(write(recipe, folder / "source.mp4"), target, options=options) as copy:
        for packet in copy.packets:
            copy.mux(packet)
    return target


@pytest.mark.parametrize("damage", ["zeros", "other bytes", "nothing"])
@pytest.mark.parametrize("kind", CHAINS)
def test_a_gap_in_a_chain(kind: str, damage: str, tmp_path: Path) -> None:
    """Zeros, other bytes, or nothing, in the place of a tenth of a file. Of most codecs, a decoder tells only where it
    happens to decode: frames were lost, and those behind decoded from other references, or came too early (AVI)."""
    source = make_chain(kind, tmp_path)
    data = source.read_bytes()
    assert not {CUT_OFF} & {*prepare(source, tmp_path / "whole", "gpu").source_remarks}
    begin, behind = len(data) * 2 // 5 & -512 | 100, len(data) // 2 & -512 | 50  # MXF's elements may begin at blocks
    lost = behind - begin
    hole = {"zeros": bytes(lost), "other bytes": np.random.default_rng(1).bytes(lost), "nothing": b""}[damage]
    source.write_bytes(data[:begin] + hole + data[behind:])
    with pytest.raises(VideoError, match=r"^a packet in it is damaged or cut off.* \(look behind byte \d+\)"):
        prepare(source, tmp_path / "clip", "gpu")


def test_clips_of_a_video_with_a_gap(tmp_path: Path) -> None:
    """Of H.264 that is cut, only those at the gap are lost; none in an AVI, of which all frames behind come too
    early."""
    source = make_chain("flv", tmp_path, frames=120)
    source.write_bytes(with_zeros(source.read_bytes(), 0.45, 0.47))
    report = pack([source], tmp_path / "set", options=PackOptions(cutting=FixedLength(0.4)), progress=False)
    assert 6 <= report.clips < 10
    copied = tmp_path / "chain.avi"
    recipe = Recipe(frames=120, gop=12, b_frames=0, style="texture", container="ts")
    with remuxing(write(recipe, tmp_path / "source.ts"), copied) as copy:
        for packet in copy.packets:
            copy.mux(packet)
    assert len(prepare(copied, tmp_path / "cut", cut_only=True).index.visible) == 120
    copied.write_bytes(with_zeros(copied.read_bytes(), 0.45, 0.47))
    with pytest.raises(VideoError, match=r"^a packet in it is damaged or cut off"):
        prepare(copied, tmp_path / "gap", cut_only=True)


def chunk(kind: bytes, data: bytes, *, pad: bool = True) -> bytes:
    return kind + len(data).to_bytes(4, "little") + data + bytes(len(data) & pad)


@pytest.mark.parametrize(
    "way", ["not padded", "text pads", "blocks", "lists", "junk", "unknown", "empty", "no sizes", "text", "joined"]
)
def test_avi_without_a_gap(way: str, tmp_path: Path) -> None:
    """What muxers and cameras write, and players read."""
    source = make_chain("avi", tmp_path)
    data = source.read_bytes()
    begin, behind = data.index(b"movi") + 4, data.rindex(b"idx1")
    parts, at = list[bytes](), begin
    while at < behind:
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        if size:
            parts.append(data[at + 8 : at + 8 + size] + bytes(size + 1 & 1))  # of odd sizes
        at += 8 + size + (size & 1)
    assert len(parts) == 48
    chunks = [chunk(b"00dc", part, pad=way != "not padded") for part in parts]
    if way == "text pads":
        chunks = [chunk(b"00dc", part, pad=False) + b"x" for part in parts]
    elif way == "blocks":
        chunks = [chunk(b"00dc", part) + bytes(-len(part) & 255) for part in parts]
    elif way == "lists":
        chunks = [chunk(b"LIST", b"rec " + one) for one in chunks]
    elif way in ("junk", "unknown", "empty"):
        more = {"junk": (b"JUNK", bytes(301)), "unknown": (b"Xy_z", b"?" * 33), "empty": (b"00dc", b"")}[way]
        chunks = [one + chunk(*more) for one in chunks]
    head, movi = bytearray(data[:begin]), b"".join(chunks)
    sizes = (0xFFFFFFFF, 0) if way == "no sizes" else (begin + len(movi) - 8, len(movi) + 4)
    head[4:8], head[begin - 8 : begin - 4] = (size.to_bytes(4, "little") for size in sizes)
    source.write_bytes((head + movi) * (2 if way == "joined" else 1) + b"trailing text" * (way == "text"))
    clip = prepare(source, tmp_path / "clip")
    assert (len(clip.index.visible), clip.source_remarks) == (96 if way == "joined" else 48, ())


@pytest.mark.parametrize(
    ("kind", "way"), [("flv", "ids"), ("flv", "types"), ("flv", "text"), ("asf", "packets"), ("mxf", "run-in")]
)
def test_other_chains_without_a_gap(kind: str, way: str, tmp_path: Path) -> None:
    source = make_chain(kind, tmp_path, packet_size="20000" if way == "packets" else "3200")
    data = bytearray(source.read_bytes())
    at = 13 if way in ("ids", "types") else len(data)
    while at < len(data):
        data[at + 10] = way == "ids"  # StreamID
        at += 15 + int.from_bytes(data[at + 1 : at + 4], "big")
        if way == "types":
            data[at:at] = b"\x14\0\0\x05" + bytes(12) + b"\0\0\0\x10"  # a command of RTMP
            at += 20
    source.write_bytes(bytes(999 * (way == "run-in")) + data + b"trailing text" * (way == "text"))
    clip = prepare(source, tmp_path / "clip", "gpu")
    assert (len(clip.index.visible), clip.source_remarks) == (24 if kind == "mxf" else 48, ())


def test_packets_within_an_element(tmp_path: Path) -> None:
    """As of MXF of which all frames are one element."""
    source = make_chain("mxf", tmp_path)
    with av.open(str(source)) as container:
        places = np.array([packet.pos for packet in container.demux(video=0) if packet.size])
    assert not before_gaps(VideoFile(source), "mxf", places).any()
    assert not before_gaps(VideoFile(source), "mxf", places + 40).any()


def test_asf_with_something_before_its_data(tmp_path: Path) -> None:
    """Its first packet was not where it was looked for."""
    source = make_chain("asf", tmp_path)
    data = source.read_bytes()
    header = int.from_bytes(data[16:24], "little")
    padding = bytes.fromhex("74d40618dfca0945a4ba9aabcb96aae8") + (40).to_bytes(8, "little") + bytes(16)
    source.write_bytes(data[:header] + padding + data[header:])
    assert len(prepare(source, tmp_path / "clip").index.visible) == 48


@pytest.mark.parametrize("kind", ["flv", "asf", "mxf"])
def test_a_chain_that_is_cut_off(kind: str, tmp_path: Path) -> None:
    """MXF and ASF gave no warning if their last packet was whole."""
    source = make_chain(kind, tmp_path)
    data = source.read_bytes()
    assert not prepare(source, tmp_path / "whole", "gpu").source_remarks
    with av.open(str(source)) as container:
        places = [packet.pos for packet in container.demux(video=0) if packet.size]
    last = places[len(places) * 3 // 4]
    assert last is not None
    source.write_bytes(data[: last + 20])
    clip = prepare(source, tmp_path / "clip", "gpu")
    assert 0 < len(clip.index.visible) <= len(places) * 3 // 4
    assert clip.source_remarks == (CUT_OFF,)


@pytest.mark.parametrize("kind", ["webm", "mkv", "live mkv"])
def test_zeros_before_the_first_cluster(kind: str, tmp_path: Path) -> None:
    """It is at time 0, so that no frame is missing; the video was rejected. If it is missing, the next one is not."""
    source = make(kind, tmp_path)
    data = source.read_bytes()
    clusters = [found.start() for found in re.finditer(b"\x1f\x43\xb6\x75", data)]
    first, second = clusters[0], clusters[-1]
    source.write_bytes(data[:first] + bytes(5000) + data[first:])
    clip = prepare(source, tmp_path / "clip")
    assert len(clip.index.visible) == 48
    source.write_bytes(data[:first] + bytes(second - first) + data[second:])
    with pytest.raises(VideoError, match=r"^a packet in it is damaged or cut off"):
        prepare(source, tmp_path / "gap")


def test_an_ivf_file_with_a_gap(tmp_path: Path) -> None:
    """The error was that memory cannot be allocated."""
    source = tmp_path / "a.ivf"
    with remuxing(write(VIDEO, tmp_path / "source.webm"), source) as copy:
        for packet in copy.packets:
            copy.mux(packet)
    data = source.read_bytes()
    with av.open(str(source)) as container:
        place = [packet.pos for packet in container.demux(video=0) if packet.size][20]
    assert place is not None
    source.write_bytes(data[:place] + b"\0\0\0\x80" * 30 + data[place + 120 :])  # sizes
    with pytest.raises(VideoError, match=r"^a packet in it is damaged or cut off"):
        prepare(source, tmp_path / "clip")


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp8", "vp9", "mpeg4"])
def test_zeros_in_the_midst_of_a_picture(codec: Any, tmp_path: Path) -> None:
    """No container tells them, and decoders find them in H.264, HEVC and MPEG-4 alone, if they meet the picture."""
    recipe = Recipe(codec=codec, frames=48, gop=12, b_frames=0, style="texture", container="webm")
    recipe = replace(recipe, container=recipe.container if codec[:2] == "vp" else "mp4", width=640, height=360)
    source = write(recipe, tmp_path / f"a.{recipe.container}")
    with av.open(str(source)) as container:
        stored = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    whole = stored[24]
    assert len(stored) == 48
    assert len(whole) > 2000
    for name, changed in (("padded", whole[:-600] + bytes(600)), ("damaged", whole[:1000] + bytes(600) + whole[1600:])):
        with remuxing(source, tmp_path / f"{name}.{recipe.container}") as copy:
            for number, packet in enumerate(copy.packets):
                copy.mux(packet, changed if number == 24 else stored[number])
    assert len(prepare(tmp_path / f"padded.{recipe.container}", tmp_path / "padded").index.visible) == 48
    with pytest.raises(VideoError, match=r"^zeros are in the place of a part of its packet 24"):
        prepare(tmp_path / f"damaged.{recipe.container}", tmp_path / "clip")
    options = PackOptions("any", cutting=FixedLength(12, "frames"), decode="none")
    report = pack([tmp_path / f"damaged.{recipe.container}"], tmp_path / "set", options=options, progress=False)
    assert (report.clips, len(report.rejected)) == (3, 1)


@pytest.mark.parametrize("height", [360, 1080])
def test_zeros_of_a_still_picture_of_vp8(height: int) -> None:
    """Macroblocks without coefficients are zeros if they are not marked (mb_no_coeff_skip 0): 795 bytes of 1080p."""
    classify, sizes = checking_classifier("vp8", b""), [16 * height // 9, height]
    header = b"\x10\0\0\x9d\x01\x2a" + b"".join(size.to_bytes(2, "little") for size in sizes)
    for frame in (header, b"\x11\0\0"):
        assert classify(memoryview(frame + b"?" + bytes(800) + b"?")).zeroed == (height == 360)
        assert classify(memoryview(frame + b"?" + bytes(5000) + b"?")).zeroed


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_zeros_in_a_raw_stream(codec: Any, tmp_path: Path) -> None:
    """Of frames that a decoder gave, others were transcoded, or those behind came too early."""
    recipe = Recipe(codec=codec, frames=48, gop=12, container="ts", style="texture")
    source = tmp_path / f"a.{codec}"
    with remuxing(write(recipe, tmp_path / "a.ts"), source, format=codec) as copy:
        for packet in copy.packets:
            copy.mux(packet)
    for number, cut_only in enumerate((False, True)):
        folder = tmp_path / f"clip{number}"
        folder.mkdir()
        video = VideoFile(source, None, Fraction(25))
        assert len(remux_with_ffmpeg(video, folder, cut_only=cut_only).index.visible) == 48
    data = source.read_bytes()
    source.write_bytes(data.replace(b"\0\0\0\x01", bytes(700) + b"\x01"))  # padding
    assert len(remux_with_ffmpeg(video, folder).index.visible) == 48
    source.write_bytes(with_zeros(data, 0.6, 0.75))
    for cut_only in (True, False):
        with pytest.raises(VideoError, match=r"^a packet in it is damaged or cut off.* \(look behind byte \d+\)$"):
            remux_with_ffmpeg(video, folder, cut_only=cut_only)
