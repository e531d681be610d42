"""Videos indexed in place, by packets and by tables: the index equals that of packing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamvid.errors import VideoError
from streamvid.mp4.top_level import NeedsDemuxerError
from streamvid.video.frame_index import DISPOSABLE, RANDOM_ACCESS
from streamvid.video.in_place import index_where_it_lies
from streamvid.video.ingest import index_by_tables
from streamvid.video.probe import VideoFile
from streamvid.video.read_buffer import read_range
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.clips import without_packets, write
from tests.support.reference import packets_of
from tests.support.remux import remuxing
from tools.clips import Recipe
from tools.damage import lie_about_order
from tools.recipes import Codec

SMALL = Recipe(width=128, height=96, frames=18, gop=6)
LYING = {
    "b_frames.mp4": SMALL,
    "audio.mov": replace(SMALL, container="mov", audio=True),
    "fragmented.mp4": replace(SMALL, muxer=(("movflags", "frag_keyframe+empty_moov"),)),
    "avc3.mp4": replace(SMALL, tag="avc3"),
    "hev1.mp4": replace(SMALL, codec="hevc", tag="hev1"),
    "open.mp4": replace(SMALL, codec="hevc", open_gop=True),
    "trimmed.mp4": replace(SMALL, trim=2),
    "mid_gop.mkv": replace(SMALL, container="mkv", from_key=1, drop=2),
    "vp9.webm": replace(SMALL, codec="vp9", container="webm"),
    "vp8.webm": replace(SMALL, codec="vp8", container="webm", hidden=5),
    "av1.mp4": replace(SMALL, codec="av1"),
    "mpeg4.mp4": replace(SMALL, codec="mpeg4"),
    "mjpeg.avi": replace(SMALL, codec="mjpeg", container="avi"),
}
COLUMNS = (
    "codec", "profile", "pix_fmt", "color_space", "color_range", "traits", "width", "height", "rotation", "time_base",
    "duration", "stsd", "source_remarks",
)  # fmt: skip


def packed(path: Path, folder: Path) -> StoredClip:
    folder.mkdir()
    return store_clip(path, folder)


@pytest.mark.parametrize("name", LYING)
def test_the_index_is_that_of_packing(tmp_path: Path, name: str) -> None:
    path = write(LYING[name], tmp_path / name)
    there, ours = packed(path, tmp_path / "packed"), index_where_it_lies(VideoFile(path), tmp_path / "copy")
    assert ours.mp4 == path
    assert [getattr(ours, column) for column in COLUMNS] == [getattr(there, column) for column in COLUMNS]
    assert np.array_equal(ours.index.pts, there.index.pts)
    assert np.array_equal(ours.index.flags, there.index.flags)
    assert packets_of(ours) == packets_of(there)


def test_av1_with_temporal_delimiters(tmp_path: Path) -> None:
    """As browsers record it, and as IVF has it; a clip's packets are without."""
    copied = write(replace(SMALL, codec="av1"), tmp_path / "a.mp4")
    source = without_packets(copied, tmp_path / "a.ivf")
    assert packets_of(index_where_it_lies(VideoFile(source), tmp_path / "copy")) == packets_of(
        packed(copied, tmp_path / "packed")
    )


@pytest.mark.parametrize("name", ["b_frames.mp4", "audio.mov", "hev1.mp4", "open.mp4", "av1.mp4"])
def test_tables_give_the_same_but_for_what_only_packets_tell(tmp_path: Path, name: str) -> None:
    path = write(LYING[name], tmp_path / name)
    full = index_where_it_lies(VideoFile(path), tmp_path / "copy")
    with path.open("rb", buffering=0) as file:
        fast = index_by_tables(path, file, lambda spans: [bytes(read_range(file, *span)) for span in spans])
    assert [getattr(fast, column) for column in COLUMNS] == [getattr(full, column) for column in COLUMNS]
    assert np.array_equal(fast.index.offset, full.index.offset)
    assert np.array_equal(fast.index.pts, full.index.pts)
    assert np.array_equal(fast.index.flags, full.index.flags & ~np.int64(DISPOSABLE))


def test_recovery_points_are_no_random_access_by_tables(tmp_path: Path) -> None:
    """x264 marks them as sync samples, and only the first packet is an IDR."""
    path = write(replace(SMALL, open_gop=True), tmp_path / "open.mp4")
    full = index_where_it_lies(VideoFile(path), tmp_path / "copy")
    assert np.count_nonzero(full.index.flags & RANDOM_ACCESS) == 1
    with path.open("rb", buffering=0) as file, pytest.raises(NeedsDemuxerError, match="none by the bitstream"):
        index_by_tables(path, file, lambda spans: [bytes(read_range(file, *span)) for span in spans])


@pytest.mark.parametrize("codec", ["hevc", "vp9", "av1", "mpeg4"])
def test_without_a_table_of_key_frames_each_packet_counts_as_one(tmp_path: Path, codec: Codec) -> None:
    path = write(replace(SMALL, codec=codec), tmp_path / "one.mp4")
    path.write_bytes(path.read_bytes().replace(b"stss", b"free"))
    with path.open("rb", buffering=0) as file, pytest.raises(NeedsDemuxerError, match="none by the bitstream"):
        index_by_tables(path, file, lambda spans: [bytes(read_range(file, *span)) for span in spans])


@pytest.mark.parametrize("codec", ["h264", "hevc", "mpeg4"])
def test_decode_times_are_no_times_by_tables(tmp_path: Path, codec: Codec) -> None:
    """A key frame by itself contradicts nothing, and would be shown as another frame."""
    good = write(replace(SMALL, codec=codec, b_frames=2), tmp_path / "good.mp4")
    path = lie_about_order(good, tmp_path / "lying.mp4")
    with path.open("rb", buffering=0) as file, pytest.raises(NeedsDemuxerError, match="another order"):
        index_by_tables(path, file, lambda spans: [bytes(read_range(file, *span)) for span in spans])
    without = write(replace(SMALL, codec=codec, b_frames=0), tmp_path / "without.mp4")
    with without.open("rb", buffering=0) as file:
        index_by_tables(without, file, lambda spans: [bytes(read_range(file, *span)) for span in spans])


def test_decode_times_where_b_frames_come_late(tmp_path: Path) -> None:
    """None is among the first packets, which are looked at, but the parameter sets say that there may be some."""
    types = tmp_path / "types"
    types.write_text("".join(f"{n} {'I' if n == 0 else 'B' if n > 12 and n % 3 else 'P'} -1\n" for n in range(24)))
    recipe = replace(SMALL, frames=24, gop=100, params=(("qpfile", str(types)), ("b-pyramid", "none")))
    path = lie_about_order(write(recipe, tmp_path / "good.mp4"), tmp_path / "lying.mp4")
    with path.open("rb", buffering=0) as file, pytest.raises(NeedsDemuxerError, match="may be in another order"):
        index_by_tables(path, file, lambda spans: [bytes(read_range(file, *span)) for span in spans])


@pytest.mark.parametrize("codec", ["av1", "mpeg4"])
def test_packets_of_several_pictures_by_tables(tmp_path: Path, codec: Codec) -> None:
    """Their first picture would be shown for the others, too."""
    path = tmp_path / "several.mp4"
    with remuxing(write(replace(SMALL, codec=codec, gop=1, b_frames=0), tmp_path / "plain.mp4"), path) as copy:
        for packet in copy.packets:
            copy.mux(packet, bytes(packet) + bytes(packet))
    with path.open("rb", buffering=0) as file, pytest.raises(NeedsDemuxerError, match="several pictures"):
        index_by_tables(path, file, lambda spans: [bytes(read_range(file, *span)) for span in spans])


@pytest.mark.parametrize("codec", ["hevc", "mpeg4"])
def test_leading_pictures_that_tables_show_behind_the_first(tmp_path: Path, codec: Codec) -> None:
    """A copy from a key frame on begins with B-frames that refer to what it does not have. Decoders drop them, and some
    muxers give them times behind the first, as if they were shown."""
    good = write(replace(SMALL, codec=codec, frames=24, open_gop=True), tmp_path / "good.mp4")
    path = tmp_path / "copy.mp4"
    with remuxing(good, path) as copy:
        packets = copy.packets
        key = next(number for number, packet in enumerate(packets) if number and packet.is_keyframe)
        assert packets[key].pts > packets[key + 1].pts
        for number, packet in enumerate(packets[key:]):
            packet.dts = packet.dts - packets[key].pts + 1000
            packet.pts = max(packet.pts, packets[key].pts + number)
            packet.pts = packet.pts - packets[key].pts + 1000
            copy.mux(packet)
    with path.open("rb", buffering=0) as file, pytest.raises(NeedsDemuxerError, match="another order"):
        index_by_tables(path, file, lambda spans: [bytes(read_range(file, *span)) for span in spans])


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (replace(SMALL, container="ts"), "pieces of 184 bytes"),
        (replace(SMALL, codec="h264", container="avi", b_frames=0), "as a clip stores them"),
    ],
)
def test_packets_that_do_not_lie_in_one_piece(tmp_path: Path, recipe: Recipe, said: str) -> None:
    path = write(recipe, tmp_path / "clip")
    with pytest.raises(VideoError, match=said):
        index_where_it_lies(VideoFile(path), tmp_path / "copy")


def test_matroska_with_lacing_is_refused(tmp_path: Path) -> None:
    path = write(replace(SMALL, codec="mjpeg", container="mkv", frames=4), tmp_path / "clip.mkv")
    laced = _lace_first_two(path.read_bytes())
    path.write_bytes(laced)
    with pytest.raises(VideoError, match="lacing"):
        index_where_it_lies(VideoFile(path), tmp_path / "copy")


def _lace_first_two(data: bytes) -> bytes:
    """The Matroska file with its first two SimpleBlocks as one with EBML lacing (RFC 9559, 10.3.3), and Void behind."""
    cluster = data.index(b"\x1f\x43\xb6\x75")
    first = data.index(b"\xa3", data.index(b"\xe7", cluster))
    size, head = _size(data, first + 1)
    second = first + 1 + head + size
    assert data[second] == 0xA3
    size2, head2 = _size(data, second + 1)
    one = data[first + 1 + head : second]
    two = data[second + 1 + head2 : second + 1 + head2 + size2]
    frames = one[4:], two[4:]
    body = one[:3] + bytes([one[3] | 0x06]) + b"\x01" + _number(len(frames[0])) + frames[0] + frames[1]
    end = second + 1 + head2 + size2
    block = b"\xa3" + _number(len(body)) + body
    void = end - first - len(block)
    assert void >= 2
    return data[:first] + block + b"\xec" + _number(void - 2) + bytes(void - 2) + data[end:]


def _size(data: bytes, at: int) -> tuple[int, int]:
    """An EBML variable-size integer, and its bytes."""
    length = 9 - data[at].bit_length()
    return int.from_bytes(data[at : at + length], "big") & ((1 << 7 * length) - 1), length


def _number(value: int) -> bytes:
    length = value.bit_length() // 7 + 1
    return (value | 1 << 7 * length).to_bytes(length, "big")
