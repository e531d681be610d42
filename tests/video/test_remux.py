"""Every hard clip, stored and indexed: the right frames, at the right times, found by the index alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from streamvid.bitstream.nal import split_packet
from streamvid.bitstream.packet_info import classifier
from streamvid.bitstream.sei import SEI
from streamvid.checksum import crc32c
from streamvid.decode.cpu import CpuDecoder, InThreadDecoder, decode_with_pyav
from streamvid.errors import VideoError
from streamvid.mp4.boxes import be32, box, iter_boxes
from streamvid.mp4.top_level import NeedsDemuxerError
from streamvid.packing.options import PackOptions
from streamvid.packing.prepare import remux_or_build
from streamvid.storage.retry import Retry
from streamvid.video import picture_damage
from streamvid.video.clip_index import BROKEN
from streamvid.video.frame_index import HIDDEN, RANDOM_ACCESS
from streamvid.video.index_file import encode_index
from streamvid.video.ingest import index_by_tables
from streamvid.video.probe import CannotCopyError
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import OVERLAPS, StoredClip
from streamvid.video.transcode import TranscodeOptions, transcode
from streamvid.video.trim import cut_clip
from tests.support.bits import to_bits
from tests.support.clips import frames_of, hard_clips, one_after_the_other, without_packets, write
from tests.support.in_band import mux_packets, sets_and_packets
from tests.support.ogm import write_ogm
from tests.support.reference import seconds, sequential, slice_of, whole
from tests.support.remux import remuxing
from tools.clips import Recipe, lie_about_duration, lie_about_size, paint, read_frame_number, truncate
from tools.damage import lie_about_order
from tools.recipes import Codec, Container

HARD = hard_clips()


@pytest.mark.parametrize("name", HARD)
def test_hard_clip(name: str, tmp_path: Path) -> None:
    recipe = HARD[name]
    source = write(recipe, tmp_path / f"{name}.{recipe.container}")
    clip = store_clip(source, tmp_path)
    full_range = clip.color_range == "pc"
    frames = sequential(source, full_range=full_range)

    # The index knows the frames that a player shows, and when.
    assert len(clip.index.visible) == len(frames)
    assert clip.index.frame_pts[0] == 0
    tick = clip.time_base[0] / clip.time_base[1]
    tolerance = 0.0011 if recipe.container in ("mkv", "webm") or recipe.variable else 2 * tick
    if recipe.container != "avi":
        np.testing.assert_allclose(clip.index.frame_pts * tick, seconds(source), atol=tolerance)
    if not (recipe.container == "avi" and recipe.audio):  # FFmpeg's AVI muxer shows the first frame twice there
        shown_at = [float(t) for t in recipe.shown_at()]
        np.testing.assert_allclose(clip.index.frame_pts * tick, shown_at, atol=max(tolerance, 0.001))
    assert (clip.height, clip.width, 3) == frames[0].shape
    assert clip.rotation == recipe.rotation

    # The mp4 itself plays the same frames, in any reader.
    stored = sequential(clip.mp4, full_range=full_range)
    assert len(stored) == len(frames)
    assert all(np.array_equal(a, b) for a, b in zip(stored, frames, strict=True))

    # Any frames, out of a minimal slice, are bit for bit those of the sequential decode, and the ones that they
    # should be.
    rng = np.random.default_rng(len(name))
    numbers = recipe.shown()
    for _ in range(6):
        count = int(rng.integers(1, min(6, len(frames)) + 1))
        wanted = np.sort(rng.choice(len(frames), count, replace=False))
        part = slice_of(clip, wanted)
        for got, n in zip(decode_with_pyav(part), wanted, strict=True):
            np.testing.assert_array_equal(got, frames[n])
            if recipe.number:
                assert read_frame_number(got) == numbers[n]


@pytest.mark.parametrize("name", [n for n, r in HARD.items() if r.codec in ("vp8", "vp9", "mjpeg")])
def test_dali_decodes_on_the_cpu_as_pyav_does(name: str, tmp_path: Path) -> None:
    recipe = HARD[name]
    clip = store_clip(write(recipe, tmp_path / f"{name}.{recipe.container}"), tmp_path)
    frames = sequential(clip.mp4, full_range=clip.color_range == "pc")
    wanted = [0, len(frames) // 2, len(frames) - 1]
    decoder = CpuDecoder(threads=2)
    try:
        for got in decoder.submit([slice_of(clip, wanted), whole(clip)]).result()[0:1]:
            for frame, n in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(frame, frames[n])
    finally:
        decoder.close()


def test_packets_lie_where_the_index_says(tmp_path: Path) -> None:
    clip = store_clip(write(HARD["h264_audio"], tmp_path / "a.mp4"), tmp_path)
    data = clip.mp4.read_bytes()
    with av.open(str(clip.mp4)) as container:
        assert len(container.streams) == 1
        for n, packet in enumerate(p for p in container.demux(video=0) if p.size):
            assert data[clip.index.offset[n] : clip.index.offset[n] + clip.index.size[n]] == bytes(packet)
            assert clip.index.crc32c[n] == crc32c(bytes(packet))
    assert data.index(b"moov") < data.index(b"mdat")


def test_same_file_same_bytes(tmp_path: Path) -> None:
    source = write(HARD["h264_trimmed"], tmp_path / "a.mp4")
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    one, two = store_clip(source, tmp_path / "1"), store_clip(source, tmp_path / "2")
    assert one.mp4.read_bytes() == two.mp4.read_bytes()
    assert encode_index(one.index) == encode_index(two.index)


def test_lead_in_of_a_trimmed_clip_is_hidden(tmp_path: Path) -> None:
    clip = store_clip(write(HARD["h264_trimmed"], tmp_path / "a.mp4"), tmp_path)
    hidden = clip.index.flags & HIDDEN != 0
    assert hidden.any()
    assert (clip.index.pts[hidden] < 0).all()
    assert clip.index.flags[0] & RANDOM_ACCESS


def test_headers_that_lie_are_not_believed(tmp_path: Path) -> None:
    recipe = Recipe(frames=20)
    source = write(recipe, tmp_path / "a.mp4")
    true = store_clip(source, tmp_path)
    width, height, frames = true.width, true.height, len(true.index.visible)
    lie_about_size(source, 64, 48)
    lie_about_duration(source, 100.0)
    lied = store_clip(source, tmp_path)
    assert (lied.width, lied.height, len(lied.index.visible)) == (width, height, frames)
    got = decode_with_pyav(slice_of(lied, [3, 9]))
    assert [read_frame_number(f) for f in got] == [3, 9]


@pytest.mark.parametrize(
    ("container", "fraction"),
    [*((container, part) for container in ("mp4", "mov") for part in (0, 0.001, 0.3, 0.9)), ("avi", 0), ("avi", 0.001)],
)
def test_truncated_files_are_refused(container: str, fraction: float, tmp_path: Path) -> None:
    muxer = (("movflags", "faststart"),) if container != "avi" else ()
    source = write(Recipe(container=container, frames=40, b_frames=0, muxer=muxer), tmp_path / f"a.{container}")  # type: ignore[arg-type]
    truncate(source, fraction)
    with pytest.raises(VideoError) as error:
        store_clip(source, tmp_path)
    assert "\n" not in str(error.value)


def test_no_video_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.mp4"
    text.write_text("not a video")
    with pytest.raises(VideoError):
        store_clip(text, tmp_path)


def test_playlists_are_not_followed(tmp_path: Path) -> None:
    """A file that names others must not make FFmpeg open them."""
    write(Recipe(container="ts", frames=10), tmp_path / "secret.ts")
    for name, text in {
        "list.mp4": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.ts\n#EXT-X-ENDLIST\n",
        "concat.mp4": "ffconcat version 1.0\nfile secret.ts\n",
    }.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(VideoError):
            store_clip(tmp_path / name, tmp_path)


def test_names_that_look_like_urls(tmp_path: Path) -> None:
    folder = tmp_path / "http:"
    folder.mkdir()
    source = write(replace(Recipe(), frames=10), folder / "concat:a|b.mp4")
    assert len(store_clip(source, tmp_path).index.visible) == 10


@pytest.mark.parametrize("fragmented", [False, True])
@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_encrypted_videos_are_refused(codec: Codec, fragmented: bool, tmp_path: Path) -> None:
    """ISO/IEC 23001-7: FFmpeg demuxes them without a key, and they decode to garbage."""
    protection = {"encryption_scheme": "cenc-aes-ctr", "encryption_key": "0" * 31 + "1", "encryption_kid": "2" * 32}
    if fragmented:
        protection["movflags"] = "frag_keyframe+empty_moov"
    recipe = Recipe(codec=codec, frames=10, gop=5, muxer=tuple(protection.items()))
    with pytest.raises(VideoError, match="it is encrypted"):
        store_clip(write(recipe, tmp_path / "a.mp4"), tmp_path)


def test_a_sample_entry_of_an_encrypted_video_is_enough(tmp_path: Path) -> None:
    source = write(Recipe(frames=4), tmp_path / "a.mp4")
    data = bytearray(source.read_bytes())
    at = data.index(b"avc1", data.index(b"stsd"))
    data[at : at + 4] = b"encv"
    at = data.index(b"btrt", at)
    data[at : at + 16] = b"sinf" + struct.pack(">I", 12) + b"frmaavc1"
    source.write_bytes(data)
    with pytest.raises(VideoError, match="it is encrypted"):
        store_clip(source, tmp_path)


@pytest.mark.parametrize("other", [b"hvc1", b"mp4v", b"avc3"])
def test_a_track_of_several_codecs_is_refused(other: bytes, tmp_path: Path) -> None:
    """FFmpeg reads the frames of the first one, as if there were no others."""
    source = write(Recipe(frames=24, gop=12, b_frames=0), tmp_path / "a.mp4")
    with av.open(str(source)) as container:
        sizes = [packet.size for packet in container.demux(video=0)][:12]

    def changed(boxes: bytes, *, used: bool) -> bytes:
        parts = iter_boxes(boxes, 0, len(boxes))
        return b"".join(box(kind, change(kind, boxes[at:end], used=used)) for kind, at, end in parts)

    def change(kind: bytes, payload: bytes, *, used: bool) -> bytes:
        if kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
            return changed(payload, used=used)
        if kind == b"stsd":
            return payload[:4] + be32([2]) + payload[8:] + payload[8:].replace(b"avc1", other)
        first = int.from_bytes(payload[8:12], "big")
        second_half = {
            b"stsc": bytes(4) + be32([2, 1, 12, 1, 2, 12, 2]),
            b"stco": bytes(4) + be32([2, first, first + sum(sizes)]),
        }
        return second_half.get(kind, payload) if used else payload

    data = source.read_bytes()
    source.write_bytes(changed(data, used=True))  # `moov` comes last: packets stay where they are
    assert len(sequential(source)) == 12
    with pytest.raises(
        VideoError, match=f"frames of avc1 and {other.decode()}, of which FFmpeg reads those of one alone"
    ):
        store_clip(source, tmp_path)
    source.write_bytes(changed(data, used=False))
    assert len(store_clip(source, tmp_path).index) == 24


def test_hevc_that_lost_parameter_sets_when_files_were_joined(tmp_path: Path) -> None:
    """Decoders make garbage of the second file, without an error."""
    first, second = (
        write(Recipe(codec="hevc", width=256, height=160, frames=12, gop=4, b_frames=0, params=params), tmp_path / name)
        for name, params in (("a.mp4", (("ctu", "64"), ("wpp", "1"))), ("b.mp4", (("ctu", "16"), ("wpp", "1"))))
    )
    packets = [packet for path in (first, second) for packet in sets_and_packets(path)[1]]
    joined = mux_packets(first, packets, 4, tmp_path / "joined.mp4")
    assert len(sequential(joined)) == 24
    for path in (joined, mux_packets(first, packets, 4, tmp_path / "joined.mkv")):
        with pytest.raises(VideoError, match="slices of its packet 12 do not fit its parameter sets"):
            store_clip(path, tmp_path)
    whole = store_clip(joined, tmp_path, cut_only=True)
    assert not cut_clip(whole, 0, 8).has_trait(BROKEN)
    assert cut_clip(whole, 10, 16).has_trait(BROKEN)


@pytest.mark.parametrize("how", ["sets before the key frame", "other layer", "zeros at the end", "long header"])
def test_hevc_whose_slices_fit(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (
        write(Recipe(codec="hevc", width=256, height=160, frames=8, gop=4, b_frames=0, params=params), tmp_path / name)
        for name, params in (("a.mp4", (("ctu", "64"), ("wpp", "1"))), ("b.mp4", (("ctu", "16"), ("wpp", "1"))))
    )
    packets, wanted = sets_and_packets(first)[1], sequential(first)
    if how == "sets before the key frame":
        sets, others = sets_and_packets(second)
        packets, wanted = [*packets[:-1], packets[-1] + sets, *others], [*wanted, *sequential(second)]
    elif how == "other layer":  # nuh_layer_id 1, as of depth or alpha
        packets = [packet + be32([6]) + b"\x26\x09none" for packet in packets]
    elif how == "zeros at the end":  # of the last NAL unit
        ends = [split_packet(memoryview(packet), 4)[-1] for packet in packets]
        packets = [
            packet[: -len(end) - 4] + be32([len(end) + 2]) + bytes(end) + bytes(2)
            for packet, end in zip(packets, ends, strict=True)
        ]
    else:
        monkeypatch.setattr(picture_damage, "_HEAD_BYTES", 4)
    clip = store_clip(mux_packets(first, packets, 4, tmp_path / "joined.mkv"), tmp_path)
    assert not clip.has_trait(BROKEN)
    assert len(clip.index) == len(wanted)
    assert all(map(np.array_equal, sequential(clip.mp4), wanted))


@pytest.mark.parametrize(("entry", "said"), [(b"dav1", "'dav1' .AV1 for Dolby Vision"), (b"zzz\xff", "'zzz.xff'")])
def test_codecs_that_ffmpeg_does_not_know(entry: bytes, said: str, tmp_path: Path) -> None:
    source = write(Recipe(codec="av1", frames=4), tmp_path / "a.mp4")
    data = bytearray(source.read_bytes())
    at = data.index(b"av01", data.index(b"stsd"))
    data[at : at + 4] = entry
    source.write_bytes(data)
    with pytest.raises(VideoError, match=f"FFmpeg does not know the codec of its video track, {said}"):
        store_clip(source, tmp_path)


@pytest.mark.parametrize("codec", ["h264", "hevc"])
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_a_broken_nal_unit_rejects_the_video(codec: Codec, container: Container, tmp_path: Path) -> None:
    """FFmpeg and NVDEC refuse a packet with an empty unit behind its picture, or one that does not fit."""
    source = write(Recipe(codec=codec, frames=10, gop=10, container=container), tmp_path / f"a.{container}")
    with av.open(str(source)) as file:
        packets = [bytes(packet) for packet in file.demux(video=0) if packet.size]
    packet = packets[6]
    for broken in (
        struct.pack(">I", len(packet) - 8) + packet[4:-4] + bytes(4),
        struct.pack(">I", len(packet)) + packet[4:],
    ):
        data = source.read_bytes()
        assert data.count(packet) == 1
        (tmp_path / f"b.{container}").write_bytes(data.replace(packet, broken))
        with pytest.raises(VideoError, match="NAL unit lengths of its packet 6 do not add up"):
            store_clip(tmp_path / f"b.{container}", tmp_path)


def test_start_codes_in_an_mp4(tmp_path: Path) -> None:
    """As some recorders write them, in place of lengths: FFmpeg's decoder takes both, so that it is transcoded."""
    source = write(Recipe(frames=20, gop=10), tmp_path / "a.mp4")
    data = bytearray(source.read_bytes())
    with av.open(str(source)) as file:
        places = [(packet.pos, packet.size) for packet in file.demux(video=0) if packet.size]
    for at, size in places:
        end = at + size
        while at < end:
            length = int.from_bytes(data[at : at + 4], "big")
            data[at : at + 4] = b"\0\0\0\1"
            at += 4 + length
    source.write_bytes(data)
    clip, transcoded = remux_or_build(str(source), source, tmp_path / "clip", PackOptions(), Retry(), cut_only=False)
    assert transcoded
    frames = decode_with_pyav(slice_of(clip, range(20)))
    assert [read_frame_number(frame) for frame in frames] == [*range(20)]


@pytest.mark.parametrize("trim", [0, 4, 13])
@pytest.mark.parametrize("codec", ["h264", "hevc", "vp9", "av1"])
def test_key_frames_that_the_container_does_not_mark(codec: Codec, trim: int, tmp_path: Path) -> None:
    """Some muxers mark no key frame before the start of an edit: the bitstream says where decoding can start."""
    recipe = Recipe(codec=codec, frames=30, gop=10, trim=trim)
    source = write(recipe, tmp_path / "a.mp4")
    wanted = sequential(source, full_range=False)
    data = bytearray(source.read_bytes())
    at = data.index(b"stss") - 4
    size, _, flags, count, *numbers = struct.unpack_from(">I4sII3I", data, at)
    assert (size, count, numbers) == (28, 3, [1, 11, 21])
    struct.pack_into(">I4sIIII4s", data, at, 20, b"stss", flags, 1, 21, 8, b"free")
    source.write_bytes(data)
    clip = store_clip(source, tmp_path)
    assert len(clip.index.visible) == 30 - trim
    np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, np.arange(30 - trim))), wanted)
    shown_at = np.array(recipe.shown_at(), dtype=float)
    np.testing.assert_allclose(clip.index.frame_pts * clip.time_base[0] / clip.time_base[1], shown_at, atol=0.001)


def test_what_is_hidden_where_times_contradict_the_order(tmp_path: Path) -> None:
    """The pictures of the packets that an edit list hides, as in players, though others would be the first by their
    order. FFmpeg's decoders keep them back: then pictures could not be matched with packets."""
    good = write(Recipe(frames=24, gop=12, b_frames=3), tmp_path / "good.mp4")
    lying = lie_about_order(good, tmp_path / "lying.mp4")
    data = bytearray(lying.read_bytes())
    at = data.index(b"elst")
    _, count, _, begin, _ = struct.unpack_from(">IIIii", data, at + 4)
    assert count == 1
    struct.pack_into(">i", data, at + 16, begin + 2 * 512)
    lying.write_bytes(data)
    clip = store_clip(lying, tmp_path)
    assert clip.traits == ""
    shown = [read_frame_number(frame) for frame in decode_with_pyav(whole(clip))]
    assert shown == [read_frame_number(frame) for frame in sequential(lying)]
    assert len(shown) == 24 - 2
    assert shown != list(range(2, 24))
    np.testing.assert_array_equal(clip.index.frame_pts, np.arange(22) * 512)


def write_parts(recipe: Recipe, parts: Sequence[tuple[int, int]], path: Path, ticks: int = 512) -> Path:
    """A video of 25 frames a second, of which an edit list shows two parts, each from one frame to another and 3 ms
    less: packets that FFmpeg demuxes twice then have different times."""
    muxer = (("video_track_timescale", f"{25 * ticks}"),)
    data = bytearray(write(replace(recipe, fps=Fraction(25), delay=Fraction(1), muxer=muxer), path).read_bytes())
    at = data.index(b"elst") + 8
    assert data[at : at + 4] == (2).to_bytes(4, "big")  # an empty edit, and one of the whole
    (begin,) = struct.unpack_from(">i", data, at + 4 + 12 + 4)
    for row, (first, end) in enumerate(parts):
        struct.pack_into(">Iihh", data, at + 4 + 12 * row, 40 * (end - first) - 3, begin + ticks * first, 1, 0)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("codec", "ticks"), [("h264", 512), ("h264", 1), ("mpeg4", 512)])
@pytest.mark.parametrize("parts", [((0, 4), (16, 21)), ((0, 10), (10, 24)), ((0, 10), (5, 15))])
def test_an_edit_list_of_several_parts(
    codec: Codec, ticks: int, parts: tuple[tuple[int, int], ...], tmp_path: Path
) -> None:
    """FFmpeg demuxes a part from the key frame before it on, hidden up to it, at times of the part before."""
    path = write_parts(Recipe(codec=codec, frames=24, gop=8, b_frames=2), parts, tmp_path / "a.mp4", ticks)
    clip, wanted = store_clip(path, tmp_path), sequential(path)
    assert len(wanted) > 8
    np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, np.arange(len(wanted)))), wanted)
    for n in (3, len(wanted) - 2):
        np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, [n])), wanted[n : n + 1])
    tick = clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(clip.index.frame_pts * tick, np.sort(seconds(path)) - min(seconds(path)), atol=0.001)


def test_parts_of_hevc_of_which_a_decoder_drops_frames_are_refused(tmp_path: Path) -> None:
    """Those that wait to be shown, at a key frame that FFmpeg demuxes again for the second part."""
    recipe = Recipe(codec="hevc", frames=24, gop=8, b_frames=3, open_gop=True)
    path = write_parts(recipe, ((0, 10), (10, 24)), tmp_path / "a.mp4")
    assert len(sequential(path)) < 24
    with pytest.raises(CannotCopyError, match="does not give all frames"):
        store_clip(path, tmp_path)


@pytest.mark.parametrize("way", ["flag", "end"])
def test_hevc_of_which_a_decoder_drops_frames_at_key_frames_is_refused(way: str, tmp_path: Path) -> None:
    """Those that wait to be shown: where no_output_of_prior_pics_flag is set, and at a CRA picture behind the end of a
    sequence."""
    recipe = Recipe(codec="hevc", frames=24, gop=8, b_frames=3, open_gop=way == "end")
    good, path = write(recipe, tmp_path / "good.mp4"), tmp_path / "a.mp4"
    with remuxing(good, path) as copy:
        for packet, following in zip(copy.packets, [*copy.packets[1:], None], strict=True):
            data, at = bytearray(bytes(packet)), 0
            while at < len(data):
                if way == "flag" and 16 <= data[at + 4] >> 1 <= 21:
                    data[at + 6] |= 0x40  # behind first_slice_segment_in_pic_flag
                at += 4 + int.from_bytes(data[at : at + 4], "big")
            if way == "end" and following is not None and following.is_keyframe:
                data += bytes([0, 0, 0, 2, 36 << 1, 1])
            copy.mux(packet, bytes(data))
    assert len(sequential(path)) < 24
    with pytest.raises(CannotCopyError, match="loses frames"):
        store_clip(path, tmp_path)
    if way == "flag":
        with path.open("rb", buffering=0) as file, pytest.raises(NeedsDemuxerError, match="decoder drops"):
            index_by_tables(path, file, lambda spans: [path.read_bytes()[begin:end] for begin, end in spans])


@pytest.mark.parametrize(("b_frames", "in_band", "drops"), [(3, False, True), (3, True, True), (0, False, False)])
def test_only_hevc_that_says_so_reorders_nothing(b_frames: int, in_band: bool, drops: bool, tmp_path: Path) -> None:
    """Where parameter sets are in band alone, pictures may wait to be shown when a decoder drops those that do."""
    clip = store_clip(write(Recipe(codec="hevc", frames=12, gop=6, b_frames=b_frames), tmp_path / "a.mp4"), tmp_path)
    stsd = bytearray(clip.stsd)
    if in_band:
        stsd[stsd.index(b"hvcC") + 4 + 22] = 0  # numOfArrays
    classify = classifier("hevc", bytes(stsd))
    kinds = []
    with closing(av.open(str(tmp_path / "a.mp4"))) as container:
        for packet in container.demux(video=0):
            data, at = bytearray(bytes(packet)), 0
            while at < len(data):
                if 16 <= data[at + 4] >> 1 <= 21:
                    data[at + 6] |= 0x40  # no_output_of_prior_pics_flag
                at += 4 + int.from_bytes(data[at : at + 4], "big")
            if data:
                kinds.append(classify(memoryview(data)))
    assert [n for n, kind in enumerate(kinds) if kind.drops_prior] == ([6] if drops else [])


@pytest.mark.parametrize("container", ["webm", "mp4"])
def test_vp9_whose_hidden_pictures_are_packets(container: str, tmp_path: Path) -> None:
    """Of their own, at the time of the next: as encoders give them, before a muxer makes superframes of two."""
    made = write(HARD["vp9_hidden_frames"], tmp_path / "made.webm")
    source = tmp_path / f"a.{container}"
    with remuxing(made, source, options={"fflags": "-autobsf"}) as copy:
        split = av.BitStreamFilterContext("vp9_superframe_split", copy.stream)
        parts = [part for packet in [*copy.packets, None] for part in split.filter(packet)]
        # frame_marker, profile, show_existing_frame, frame_type and show_frame lead to this bit (VP9, 6.2).
        hidden = [not bytes(part)[0] & 0b1010 for part in parts]
        times = np.cumsum(~np.array(hidden)) - ~np.array(hidden)
        for part, time, is_hidden in zip(parts, times.tolist(), hidden, strict=True):
            # FFmpeg's MP4 muxer wants rising times.
            part.pts = part.dts = 40 * time - (is_hidden and container == "mp4")
            part.time_base = Fraction(1, 1000)
            copy.mux(part)
    clip = store_clip(source, tmp_path)
    assert len(clip.index) == len(clip.index.visible) == 96 < len(parts)
    assert clip.traits == "superframes"
    frames = sequential(source, full_range=False)
    np.testing.assert_array_equal(decode_with_pyav(whole(clip)), frames)
    np.testing.assert_allclose(clip.index.frame_pts * clip.time_base[0] / clip.time_base[1], seconds(source), atol=1e-4)
    np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, [50, 90])), [frames[50], frames[90]])


@pytest.mark.parametrize("container", ["mkv", "mp4"])
def test_av1_whose_hidden_pictures_are_packets(container: str, tmp_path: Path) -> None:
    """Of their own, in Matroska at the time of the next; the format's binding has one packet of both."""
    recipe = Recipe(codec="av1", container="mkv", width=160, height=128, frames=48, gop=24, b_frames=3)
    made, source = write(recipe, tmp_path / "made.mkv"), tmp_path / f"a.{container}"
    with remuxing(made, source) as copy:
        split = av.BitStreamFilterContext("av1_frame_split", copy.stream)
        parts = [part for packet in [*copy.packets, None] for part in split.filter(packet)]
        classify, shown, before = classifier("av1", bytes(8)), 0, 0
        hidden = [classify(memoryview(bytes(part))).hidden for part in parts]
        for part, is_hidden in zip(parts, hidden, strict=True):
            before = before + 1 if is_hidden else 0
            part.pts = part.dts = (
                40 * shown - 30 * (container == "mp4" and is_hidden) + (before if container == "mp4" else 0)
            )
            shown += not is_hidden
            part.time_base = Fraction(1, 1000)
            copy.mux(part)
    frames = sequential(source, full_range=False)
    assert np.array_equal(frames, sequential(made, full_range=False))
    clip = store_clip(source, tmp_path)
    assert len(clip.index.visible) == 48 < len(clip.index) == len(parts)
    assert (clip.codec, clip.traits) == ("av1", "non-displayed")
    np.testing.assert_array_equal(decode_with_pyav(whole(clip)), frames)
    np.testing.assert_allclose(clip.index.frame_pts * clip.time_base[0] / clip.time_base[1], seconds(source), atol=1e-4)
    for wanted in (*([n] for n in range(48)), [5, 17, 40], [23, 24]):
        np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, np.array(wanted))), [frames[n] for n in wanted])


@pytest.mark.parametrize("codec", ["vp9", "av1"])
def test_packets_of_several_pictures_are_not_copied(codec: Codec, tmp_path: Path) -> None:
    """One picture of each would be lost, and the other shown in its place."""
    source = write(Recipe(codec=codec, container="mkv", width=64, height=64, frames=8, gop=8), tmp_path / "a.mkv")
    joined = tmp_path / "joined.mkv"
    with remuxing(source, joined) as copy:
        *rest, before, last = [(bytes(one), one.pts) for one in copy.packets]
        both = [before[0], last[0]]
        # A superframe (annex B of VP9): a marker, which says two sizes of four bytes, around these.
        sizes = b"".join(len(one).to_bytes(4, "little") for one in both)
        marker = b"\xd9" if codec == "vp9" else b""
        for data, pts in [*rest, (b"".join(both) + (marker + sizes + marker) * bool(marker), before[1])]:
            packet = av.Packet(data)
            packet.pts = packet.dts = pts
            packet.time_base = copy.stream.time_base
            copy.mux(packet)
    assert len(sequential(joined)) == 8, "FFmpeg shows both"
    with pytest.raises(VideoError, match="its packet 6 holds several pictures") as caught:
        store_clip(joined, tmp_path)
    assert isinstance(caught.value, CannotCopyError) == (codec == "av1")
    assert ("VP9 with spatial layers" in str(caught.value)) == (codec == "vp9")


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp8", "vp9", "av1", "mpeg4", "mjpeg"])
def test_a_size_that_changes_midway(codec: Codec, tmp_path: Path) -> None:
    """As browsers record a window that is resized, and cameras a mode that changes. Its later frames would be errors
    when they are read."""
    container: Container = "mkv" if codec in ("vp8", "vp9", "av1", "mjpeg") else "ts"  # with headers in band
    recipe = Recipe(codec=codec, container=container, frames=8, gop=4, b_frames=0, width=128, height=96)
    parts = [recipe, replace(recipe, width=192, height=128)]
    files = [write(part, tmp_path / f"{number}.mkv") for number, part in enumerate(parts)]
    joined = one_after_the_other(files, tmp_path / "joined.mkv")
    with pytest.raises(CannotCopyError, match="the size of its pictures changes in packet 8"):
        store_clip(joined, tmp_path)
    (tmp_path / "clip").mkdir()
    clip, _ = remux_or_build(str(joined), joined, tmp_path / "clip", PackOptions(), Retry(), cut_only=False)
    frames = decode_with_pyav(slice_of(clip, range(16)))
    assert {frame.shape for frame in frames} == {(96, 128, 3)}
    assert [read_frame_number(frame) for frame in frames[:8]] == [*range(8)]


@pytest.mark.parametrize(
    ("codec", "pix_fmt"), [("h264", "yuv422p"), ("hevc", "yuv420p10le"), ("vp9", "yuv422p"), ("av1", "yuv420p10le")]
)
def test_a_pixel_format_that_changes_midway(codec: Codec, pix_fmt: str, tmp_path: Path) -> None:
    """A row has one, by which a loader chooses a decoder."""
    container: Container = "mkv" if codec in ("vp9", "av1") else "ts"  # with headers in band
    recipe = Recipe(codec=codec, container=container, frames=4, gop=4, b_frames=0, width=128, height=96)
    parts = [recipe, replace(recipe, pix_fmt=pix_fmt)]
    files = [write(part, tmp_path / f"{number}.mkv") for number, part in enumerate(parts)]
    joined = one_after_the_other(files, tmp_path / "joined.mkv")
    with pytest.raises(CannotCopyError, match="the pixel format of its pictures changes in packet 4"):
        store_clip(joined, tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"width": 192}, "the size of its pictures"), ({"colour": "bt601"}, "its colours"), ({}, "")],
)
def test_parameter_sets_among_which_pictures_choose(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    """All in the sample description, as MP4Box -cat makes it of files with sets of different numbers."""
    recipe = Recipe(frames=8, gop=4, b_frames=0, width=128, height=96)
    parts = [recipe, replace(recipe, params=(("sps-id", "1"),), **changes)]
    files = [write(part, tmp_path / f"{number}.mp4") for number, part in enumerate(parts)]
    path, made = one_after_the_other(files, tmp_path / "joined.mp4"), tmp_path / "a.mp4"
    head, sequences, pictures = zip(*map(_avcc, files), strict=True)
    with remuxing(path, made) as copy:
        copy.track.codec_context.extradata = head[0] + b"".join([b"\xe2", *sequences, b"\2", *pictures])
        for packet in copy.packets:
            copy.mux(packet)
    with pytest.raises(CannotCopyError, match=f"{says} change.* in packet 8") if says else nullcontext():
        assert len(store_clip(made, tmp_path).index) == 16
    with pytest.raises((CannotCopyError, NeedsDemuxerError)) if says else nullcontext():
        assert len(_by_tables(made).index) == 16


def _by_tables(path: Path) -> StoredClip:
    data = path.read_bytes()
    with path.open("rb", buffering=0) as file:
        return index_by_tables(path, file, lambda spans: [data[start:end] for start, end in spans])


def _avcc(path: Path) -> tuple[bytes, bytes, bytes]:
    """Of an MP4's `avcC` box, the bytes before the sets, and one set of each type, with its length before it."""
    with av.open(str(path)) as container:
        box = container.streams.video[0].codec_context.extradata or b""
    at = 8 + int.from_bytes(box[6:8], "big")
    return box[:5], box[6:at], box[at + 1 : at + 3 + int.from_bytes(box[at + 1 : at + 3], "big")]


@pytest.mark.parametrize("container", ["mkv", "mp4"])
def test_hevc_whose_parameter_sets_are_in_band_alone(container: str, tmp_path: Path) -> None:
    """As in fragments of hev1. FFmpeg's muxer would write an hvcC box without a payload, which cannot be opened."""
    recipe = Recipe(codec="hevc", tag="hev1", frames=8, gop=4, width=128, height=96, params=(("repeat-headers", "1"),))
    source, bare = write(recipe, tmp_path / "a.mp4"), tmp_path / f"bare.{container}"
    options = {"movflags": "frag_keyframe+empty_moov"} if container == "mp4" else {}
    with remuxing(source, bare, options=options) as copy:
        extradata = copy.stream.codec_context.extradata or b""
        copy.track.codec_context.extradata = extradata[:22] + b"\0"  # numOfArrays
        for packet in copy.packets:
            copy.mux(packet)
    clip = store_clip(bare, tmp_path)
    np.testing.assert_array_equal(decode_with_pyav(whole(clip)), sequential(source))
    np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, np.array([6]))), sequential(source)[6:7])


@pytest.mark.parametrize("container", ["mkv", "mp4"])
@pytest.mark.parametrize("sets", [(0,), (1,), (0, 1)])
def test_h264_whose_stated_parameter_sets_are_lost(sets: tuple[int, ...], container: Container, tmp_path: Path) -> None:
    """Zeros in the header, as where a block of a disk was lost. Players take the sets that the packets repeat."""
    recipe = Recipe(container=container, frames=8, gop=4, width=128, height=96, params=(("repeat-headers", "1"),))
    source = write(recipe, tmp_path / f"a.{container}")
    data, (head, *stated) = bytearray(source.read_bytes()), _avcc(source)
    for number in sets:
        at = data.index(stated[number], data.index(head)) + 2
        data[at : at + len(stated[number]) - 2] = bytes(len(stated[number]) - 2)
    lost = tmp_path / f"lost.{container}"
    lost.write_bytes(data)
    clip = store_clip(lost, tmp_path)
    np.testing.assert_array_equal(decode_with_pyav(whole(clip)), sequential(source))
    np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, np.array([6]))), sequential(source)[6:7])


def test_motion_jpeg_of_which_a_picture_has_no_scan_is_refused(tmp_path: Path) -> None:
    """A bit of the marker before the scan has flipped. FFmpeg shows what lies in memory, without an error."""
    made = write(Recipe(codec="mjpeg", container="mkv", frames=6, width=64, height=64), tmp_path / "a.mkv")
    data = bytearray(made.read_bytes())
    at = data.index(b"\xff\xda", data.index(b"\xff\xda") + 2) + 1  # of the second frame
    data[at] ^= 8
    made.write_bytes(data)
    with pytest.raises(VideoError, match="its packet 1 cannot be decoded: it has no scan"):
        store_clip(made, tmp_path)


def test_av1_that_is_coded_at_another_size_between_key_frames(tmp_path: Path) -> None:
    """As encoders do for slow links. Only the headers of frames say so, not the sequence header."""
    resized = (("resize-mode", 1), ("resize-denom", 12))
    recipe = Recipe(codec="av1", container="mkv", frames=16, gop=8, b_frames=0, width=192, height=128, number=False)
    source = write(replace(recipe, params=tuple((name, str(n)) for name, n in resized)), tmp_path / "a.mkv")
    with av.open(str(source)) as container:
        assert [frame.width for frame in container.decode(video=0)] == [192, *[128] * 7] * 2
    with pytest.raises(CannotCopyError, match="the size of its pictures changes in packet 1"):
        store_clip(source, tmp_path)


@pytest.mark.parametrize(("codec", "container"), [("vp8", "webm"), ("vp9", "webm"), ("vp9", "mp4")])
def test_vpx_that_begins_in_the_middle_of_a_gop(codec: Codec, container: Container, tmp_path: Path) -> None:
    """Its first packets are errors for FFmpeg's decoders."""
    recipe = Recipe(codec=codec, container=container, frames=36, gop=12, drop=5, width=96, height=64)
    clip = store_clip(write(recipe, tmp_path / f"a.{container}"), tmp_path)
    frames = decode_with_pyav(slice_of(clip, range(len(clip.index.visible))))
    assert [read_frame_number(frame) for frame in frames] == recipe.shown()


@pytest.mark.parametrize(("b_frames", "begin"), [(0, 17), (2, 16), (2, 21)])
def test_mpeg4_whose_pictures_are_all_key_frames_by_the_container(b_frames: int, begin: int, tmp_path: Path) -> None:
    """FFmpeg then begins at the first picture that an edit list shows, and decodes that by a gray one."""
    recipe = Recipe(codec="mpeg4", width=96, height=64, frames=40, gop=12, b_frames=b_frames)
    source = write(replace(recipe, delay=Fraction(-begin, 25)), tmp_path / "a.mp4")
    expected = sequential(source)
    source.write_bytes(source.read_bytes().replace(b"stss", b"free"))
    assert not all(map(np.array_equal, sequential(source), expected))
    clip = store_clip(source, tmp_path)
    assert len(clip.index.visible) == len(expected)
    for number, frame in enumerate(expected):
        assert np.array_equal(decode_with_pyav(slice_of(clip, [number]))[0], frame)


@pytest.mark.parametrize("b_frames", [2, 3])
def test_h264_that_begins_with_an_i_picture_and_has_recovery_points_later(b_frames: int, tmp_path: Path) -> None:
    """FFmpeg shows it from there on, but drops some of the next frames."""
    recipe = Recipe(width=96, height=64, frames=70, gop=25, b_frames=b_frames, open_gop=True)
    with remuxing(write(recipe, tmp_path / "whole.mp4"), tmp_path / "a.mkv") as copy:
        begin = [n for n, packet in enumerate(copy.packets) if packet.is_keyframe][1]
        for number, packet in enumerate(copy.packets[begin:]):
            units = split_packet(memoryview(bytes(packet)), 4)
            kept = [bytes(unit) for unit in units if number or unit[0] & 31 != SEI]
            copy.mux(packet, b"".join(len(unit).to_bytes(4, "big") + unit for unit in kept))
    expected = sequential(tmp_path / "a.mkv")
    assert 30 < len(expected) < 70 - 25
    clip = store_clip(tmp_path / "a.mkv", tmp_path)
    frames = decode_with_pyav(slice_of(clip, range(len(clip.index.visible))))
    assert len(frames) == len(expected)
    assert all(map(np.array_equal, frames, expected))
    for number in (0, 2, 10, 30):
        assert np.array_equal(decode_with_pyav(slice_of(clip, [number]))[0], expected[number])


def test_h264_without_idr_pictures_and_recovery_points_is_transcoded(tmp_path: Path) -> None:
    """FFmpeg shows it from an I picture on."""
    recipe = Recipe(width=96, height=64, frames=60, gop=12, b_frames=2, open_gop=True)
    with remuxing(write(recipe, tmp_path / "whole.mp4"), tmp_path / "a.mkv") as copy:
        units = [split_packet(memoryview(bytes(packet)), 4) for packet in copy.packets]
        begin = next(n for n, own in enumerate(units) if n and any(unit[0] & 31 == SEI for unit in own))
        for packet, own in zip(copy.packets[begin:], units[begin:], strict=True):
            kept = [bytes(unit) for unit in own if unit[0] & 31 != SEI]
            packet.is_keyframe = False
            copy.mux(packet, b"".join(len(unit).to_bytes(4, "big") + unit for unit in kept))
    expected = sequential(tmp_path / "a.mkv")
    assert len(expected) > 40
    with pytest.raises(CannotCopyError, match="no IDR picture and no recovery point: transcode it"):
        store_clip(tmp_path / "a.mkv", tmp_path)
    transcode(tmp_path / "a.mkv", tmp_path / "b.mp4", TranscodeOptions())
    got = sequential(tmp_path / "b.mp4")
    assert len(got) == len(expected)
    assert all(np.abs(one.astype(int) - other).mean() < 4 for one, other in zip(got, expected, strict=True))


def test_an_edit_list_that_hides_all_is_named(tmp_path: Path) -> None:
    source = write(Recipe(frames=3, b_frames=0, delay=Fraction(-1)), tmp_path / "a.mp4")
    with pytest.raises(VideoError, match="all its frames are hidden by an edit list"):
        store_clip(source, tmp_path)


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_reordered_frames_at_the_same_time_are_a_tick_apart(codec: Codec, tmp_path: Path) -> None:
    """As where FFmpeg's HLS muxer ends fragments of HEVC."""
    recipe = Recipe(codec=codec, frames=24, gop=12, b_frames=2, width=160, height=144)
    source, tied = write(recipe, tmp_path / "a.mp4"), tmp_path / "tied.mkv"
    shown = [40 * (number - (number in (3, 15))) for number in range(24)]  # P-frames, and the B-frames before them
    with remuxing(source, tied) as copy:
        ranks = np.argsort(np.argsort([packet.pts for packet in copy.packets]))
        for number, packet in enumerate(copy.packets):
            packet.time_base = Fraction(1, 1000)
            packet.pts, packet.dts = shown[ranks[number]], 40 * number - 120
            copy.mux(packet)
    assert [read_frame_number(frame) for frame in sequential(tied)] == [*range(24)]
    clip = store_clip(tied, tmp_path)
    assert clip.source_remarks == ()
    frames = decode_with_pyav(slice_of(clip, range(24)))
    assert [read_frame_number(frame) for frame in frames] == [*range(24)]
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    assert (np.diff(seconds) > 0).all()
    np.testing.assert_allclose(seconds, np.array(shown) / 1000, atol=0.00101)


@pytest.mark.parametrize("codec", ["h264", "ffv1"])
def test_frames_at_the_same_time_where_no_tick_is_free(codec: str, tmp_path: Path) -> None:
    """Matroska counts milliseconds, and frames may come faster: the decoder's order says which comes first."""
    source = write(Recipe(fps=Fraction(1500), frames=24, gop=12, b_frames=2, container="mkv"), tmp_path / "a.mkv")
    if codec == "ffv1":  # it is transcoded
        with av.open(str(source)) as container, av.open(str(tmp_path / "b.mkv"), "w") as output:
            track = output.add_stream("ffv1", rate=1500)
            track.width, track.height, track.pix_fmt = 320, 180, "yuv420p"
            for frame in container.decode(video=0):
                output.mux(track.encode(frame))
            output.mux(track.encode(None))
        source = tmp_path / "b.mkv"
    clip, transcoded = remux_or_build(str(source), source, tmp_path / "clip", PackOptions(), Retry(), cut_only=False)
    assert transcoded == (codec == "ffv1")
    frames = decode_with_pyav(slice_of(clip, range(24)))
    assert [read_frame_number(frame) for frame in frames] == [*range(24)]
    shown = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(shown, np.arange(24) / 1500, atol=0.0011)


def test_frames_most_of_which_have_the_time_of_another_are_refused(tmp_path: Path) -> None:
    source = write(Recipe(fps=Fraction(4000), frames=12, container="mkv"), tmp_path / "a.mkv")
    with pytest.raises(VideoError, match="shown at the same time"):
        store_clip(source, tmp_path)


def test_an_mp4_without_times_is_refused_with_a_way_on(tmp_path: Path) -> None:
    source, way = write(Recipe(frames=24, b_frames=2), tmp_path / "a.mp4"), tmp_path / "a.h264"
    data = bytearray(source.read_bytes().replace(b"edts", b"free"))
    for name in (b"stts", b"ctts"):  # durations and offsets are 0
        at = data.index(name) + 8
        for entry in range(int.from_bytes(data[at : at + 4], "big")):
            data[at + 8 + 8 * entry : at + 12 + 8 * entry] = bytes(4)
    source.write_bytes(data)
    with pytest.raises(VideoError, match=r"at the same time: copy it to a raw stream .*--fps"):
        remux_or_build(str(source), source, tmp_path / "clip", PackOptions(), Retry(), cut_only=False)
    without_packets(source, way)
    options = PackOptions(fps=Fraction(30))
    clip, _ = remux_or_build(str(way), way, tmp_path / "clip", options, Retry(), cut_only=False)
    assert [read_frame_number(frame) for frame in decode_with_pyav(slice_of(clip, range(24)))] == [*range(24)]


@pytest.mark.parametrize("per_page", [1, 4])
def test_decode_times_of_pages(per_page: int, tmp_path: Path) -> None:
    """OGM has decode times, as AVI, and one alone for all packets of a page."""
    encoder: Any = av.CodecContext.create("mpeg4", "w")
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = 160, 96, "yuv420p", Fraction(1, 25)
    encoder.max_b_frames = 2
    recipe = Recipe(width=160, height=96, frames=40, fps=Fraction(25))
    packets = [bytes(packet) for picture in (*frames_of(paint(recipe)), None) for packet in encoder.encode(picture)]
    source = write_ogm(tmp_path / "a.ogm", packets, fourcc=b"XVID", size=(160, 96), per_page=per_page)
    clip = store_clip(source, tmp_path)
    frames = decode_with_pyav(slice_of(clip, range(len(clip.index.visible))))
    assert [read_frame_number(frame) for frame in frames] == [*range(40)]
    assert [time * Fraction(*clip.time_base) for time in clip.index.frame_pts.tolist()] == recipe.shown_at()


def test_times_of_vp8_in_ticks_of_several_parts_of_a_second(tmp_path: Path) -> None:
    """An AVI counts frames, here of 1001/30000 s."""
    recipe = Recipe(codec="vp8", fps=Fraction(30000, 1001), frames=40, gop=20, width=96, height=64, container="avi")
    clip = store_clip(write(recipe, tmp_path / "a.avi"), tmp_path)
    assert [time * Fraction(*clip.time_base) for time in clip.index.frame_pts.tolist()] == recipe.shown_at()


@pytest.mark.parametrize(("codec", "b_frames"), [("vp8", 0), ("vp9", 0), ("av1", 0), ("h264", 2), ("hevc", 3)])
def test_of_recordings_that_were_joined_one_follows_the_other(codec: Codec, b_frames: int, tmp_path: Path) -> None:
    """FFmpeg reads no more than two of Matroska."""
    recipe = Recipe(codec=codec, b_frames=b_frames, container="mkv", frames=30, gop=15, width=160, height=144)
    source = write(recipe, tmp_path / "a.mkv")
    shorter = write(replace(recipe, frames=15), tmp_path / "b.mkv")
    source.write_bytes(source.read_bytes() + shorter.read_bytes())
    clip = store_clip(source, tmp_path)
    frames = decode_with_pyav(slice_of(clip, range(len(clip.index.visible))))
    assert [read_frame_number(frame) for frame in frames] == [*range(30), *range(15)]
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(seconds, np.arange(45) / float(recipe.fps), atol=0.0021)


@pytest.mark.parametrize("codec", ["vp9", "av1"])
def test_fragments_that_begin_before_the_last_one_ends_are_refused(codec: Codec, tmp_path: Path) -> None:
    """By a frame or two: no recording begins there. Also where the tables of an MP4 say so, which are read without
    FFmpeg."""
    recipe = Recipe(codec=codec, frames=90, gop=30, width=64, height=64)
    source = write(replace(recipe, muxer=(("movflags", "frag_keyframe+delay_moov"),)), tmp_path / "a.mp4")
    data = bytearray(source.read_bytes())
    at = data.rindex(b"tfdt") + 8  # of the third fragment: baseMediaDecodeTime (ISO/IEC 14496-12, 8.8.12)
    second = int.from_bytes(data[data.rindex(b"tfdt", 0, at - 8) + 8 :][:8])
    third = int.from_bytes(data[at : at + 8])
    data[at : at + 8] = (third - (third - second) // 20).to_bytes(8)
    source.write_bytes(data)
    with pytest.raises(VideoError, match="its clock falls back"):
        store_clip(source, tmp_path)
    with source.open("rb", buffering=0) as file, pytest.raises(NeedsDemuxerError, match="another order"):
        index_by_tables(source, file, lambda spans: [source.read_bytes()[begin:end] for begin, end in spans])


def test_fragments_of_other_parameter_sets_are_refused(tmp_path: Path) -> None:
    """FFmpeg reads them by the first `moov`, in whose colours, at best, they came out."""
    recipe = Recipe(frames=12, width=64, height=64, muxer=(("movflags", "frag_keyframe+delay_moov"),))
    source = write(recipe, tmp_path / "a.mp4")
    source.write_bytes(source.read_bytes() + write(replace(recipe, full_range=True), tmp_path / "b.mp4").read_bytes())
    with pytest.raises(VideoError, match="recordings of other parameter sets were joined"):
        store_clip(source, tmp_path)


@pytest.mark.parametrize(("begins_with", "shown"), [("the third", 36), ("the frame before", 47)])
def test_fragments_in_another_order(begins_with: str, shown: int, tmp_path: Path) -> None:
    """FFmpeg hides their frames up to the end of the fragments before. So a clip has the other frames, pack says so,
    and the tables alone, which do not say so, are not enough."""
    muxer = (("movflags", "frag_keyframe+empty_moov"),)
    b_frames = 0 if begins_with == "the third" else 2
    source = write(Recipe(frames=48, gop=12, b_frames=b_frames, width=64, height=64, muxer=muxer), tmp_path / "a.mp4")
    data = bytearray(source.read_bytes())
    third = data.rindex(b"tfdt", 0, data.rindex(b"tfdt")) + 8
    second = data.rindex(b"tfdt", 0, third - 8) + 8
    if begins_with == "the third":
        data[second : second + 8], data[third : third + 8] = data[third : third + 8], data[second : second + 8]
    else:  # at the decode time of the frame before it
        at, trun = int.from_bytes(data[third : third + 8]), data.index(b"trun", third) + 4
        step = (at - int.from_bytes(data[second : second + 8])) // 12
        data[third : third + 8] = (at - step).to_bytes(8)
        # Behind flags, count, data_offset and first_sample_flags: size and composition time offset of each sample.
        assert int.from_bytes(data[trun + 1 : trun + 4]) == 0xA05
        for at in range(trun + 20, trun + 16 + 12 * 8, 8):
            data[at : at + 4] = (int.from_bytes(data[at : at + 4]) + step // 2).to_bytes(4)
    source.write_bytes(data)
    frames = sequential(source)
    clip = store_clip(source, tmp_path)
    np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, range(shown))), frames)
    assert len(frames) == len(clip.index.visible) == shown
    assert clip.source_remarks == (OVERLAPS,)
    with source.open("rb", buffering=0) as file, pytest.raises(NeedsDemuxerError, match="another order"):
        index_by_tables(source, file, lambda spans: [bytes(data[begin:end]) for begin, end in spans])


@pytest.mark.parametrize(("gap", "ways"), [(1 << 30, 2), (1 << 31, 1), (1 << 32, 0), (1 << 40, 0)])
def test_fragments_far_apart(gap: int, ways: int, tmp_path: Path) -> None:
    """Where an MP4 without fragments cannot have the times, tables alone do not do: a copy rounds them to 0.1 ms."""
    muxer = (("movflags", "frag_keyframe+delay_moov"),)
    source = write(Recipe(frames=36, gop=12, width=64, height=64, muxer=muxer), tmp_path / "a.mp4")
    data = bytearray(source.read_bytes())
    at = data.rindex(b"tfdt") + 8
    data[at : at + 8] = (int.from_bytes(data[at : at + 8]) + gap).to_bytes(8)
    source.write_bytes(data)
    results: list[Any] = []
    with source.open("rb", buffering=0) as file:
        for store in (
            lambda: store_clip(source, tmp_path),
            lambda: index_by_tables(source, file, lambda spans: [bytes(data[begin:end]) for begin, end in spans]),
        ):
            with suppress(VideoError, NeedsDemuxerError):
                clip = store()
                results.append(clip.index.frame_pts * clip.time_base[0] / clip.time_base[1])
    assert len(results) == ways
    for times in results:
        shown = np.arange(36) / 30 + (np.arange(36) >= 24) * gap / 15360
        np.testing.assert_allclose(times, shown, rtol=0, atol=1e-4)


def test_mpeg4_whose_container_has_decode_times_alone(tmp_path: Path) -> None:
    """Its B-frames then have later times than the frame that they come before."""
    recipe = Recipe(codec="mpeg4", frames=24, gop=12, b_frames=3)
    source = write(recipe, tmp_path / "a.mp4")
    with remuxing(source, tmp_path / "b.mp4") as copy:
        for number, packet in enumerate(copy.packets):
            packet.pts = packet.dts = number * packet.duration
            copy.mux(packet)
    clip = store_clip(tmp_path / "b.mp4", tmp_path)
    assert [read_frame_number(frame) for frame in decode_with_pyav(whole(clip))] == list(range(24))


def test_vp9_in_440_is_said_to_fit_no_mp4(tmp_path: Path) -> None:
    source = write(Recipe(codec="vp9", container="webm", pix_fmt="yuv440p", frames=3), tmp_path / "a.webm")
    with pytest.raises(CannotCopyError, match="4:4:0: transcode it, with --codec"):
        store_clip(source, tmp_path)


def test_av1_whose_sequence_header_allows_larger_pictures(tmp_path: Path) -> None:
    """As SVT-AV1 writes it with switch frames, for pictures that may become larger: 16384x8704."""
    recipe = Recipe(codec="av1", frames=5, params=(("sframe-dist", "2"), ("hierarchical-levels", "2")))
    mp4 = store_clip(write(recipe, tmp_path / "a.mp4"), tmp_path)
    (tmp_path / "webm").mkdir()
    webm = store_clip(write(replace(recipe, container="webm"), tmp_path / "a.webm"), tmp_path / "webm")
    for clip in (mp4, webm):
        assert [read_frame_number(frame) for frame in decode_with_pyav(whole(clip))] == list(range(5))
        assert len(list(InThreadDecoder().frames(whole(clip), limit_s=9))) == 5


@pytest.mark.parametrize(("width", "height"), [(2, 2), (50, 18), (130, 2), (300, 16)])
def test_small_mpeg4(width: int, height: int, tmp_path: Path) -> None:
    """FFmpeg allocates more for it than it is large."""
    recipe = Recipe(codec="mpeg4", width=width, height=height, frames=4, number=False)
    clip = store_clip(write(recipe, tmp_path / "a.mp4"), tmp_path)
    assert decode_with_pyav(whole(clip)).shape == (4, height, width, 3)


_VOL = b"\0\0\1\x20"


def _like_divx_4(data: bytes) -> bytes:
    """MPEG-4 without the name of its encoder, and its layer without object type and vol_control_parameters."""
    at = data.find(_VOL)
    if at < 0:
        return data
    end = data.find(b"\0\0\1", at + 4) % (len(data) + 1)
    bits = to_bits(data[at + 4 : end])
    assert (bits[9], bits[17:21] != "1111", bits[21], bits[25]) == ("1", True, "1", "0")  # without VBV
    changed = bits[0] + "0" * 8 + bits[9:21] + "0" + bits[26 : bits.rindex("0")]
    changed += "0".ljust(8 - len(changed) % 8, "1")
    named = data[: at + 4] + int(changed, 2).to_bytes(len(changed) // 8, "big") + data[end:]
    return named.replace(b"Lavc", b"none")


@pytest.mark.parametrize("suffix", ["avi", "nut"])
@pytest.mark.parametrize(("tag", "is_copied"), [("XVID", True), ("DIVX", True), ("FMP4", True), ("UMP4", False)])
def test_codec_tags_by_which_ffmpeg_decodes_mpeg4(tag: str, is_copied: bool, suffix: str, tmp_path: Path) -> None:
    """They stand for an encoder that no user data name."""
    recipe = Recipe(codec="mpeg4", width=190, height=158, frames=24, gop=8, b_frames=0, style="texture")
    path, frames = tmp_path / f"a.{suffix}", {}
    for name in (tag, "mp4v"):
        with remuxing(write(recipe, tmp_path / "a.mp4"), path) as made:
            made.track.codec_context.codec_tag = name
            made.track.codec_context.extradata = _like_divx_4(made.stream.codec_context.extradata)
            for packet in made.packets:
                made.mux(packet, _like_divx_4(bytes(packet)))
        frames[name] = sequential(path)
        if name == tag:
            if not is_copied:
                with pytest.raises(CannotCopyError, match="its codec tag UMP4 tells decoders"):
                    store_clip(path, tmp_path)
                return
            clip = store_clip(path, tmp_path)
    for number, frame in enumerate(frames[tag]):
        assert np.array_equal(decode_with_pyav(slice_of(clip, [number]))[0], frame)
    assert (tag == "FMP4") == all(map(np.array_equal, frames[tag], frames["mp4v"]))
