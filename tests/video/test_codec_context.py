"""A frame does not depend on what a codec context was told or has decoded before: alone, in windows, or all at once."""

from __future__ import annotations

import ctypes
import hashlib
import io
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import pytest
from PIL import Image

from streamvid.bitstream.annexb import parameter_sets
from streamvid.bitstream.packets import START_CODE
from streamvid.color.picture import picture_of
from streamvid.dataset.dataset import Dataset
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.slice_frames import decode_frames, decode_pictures
from streamvid.errors import VideoError
from streamvid.fetch.encoded_batch import row_color
from streamvid.loader.clip_dataset import ClipDataset
from streamvid.packing.index import index
from streamvid.packing.options import FixedLength, PackOptions
from streamvid.packing.pack import pack
from streamvid.sampling.spread import All
from streamvid.video import codec_context
from streamvid.video.codec_context import ReusableCodecContext, open_context, reorder_depth
from streamvid.video.frame_index import RANDOM_ACCESS
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.probe import CannotCopyError
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from streamvid.video.transcode import TranscodeOptions, transcode
from streamvid.video.trim import trim_clip
from tests.support.bits import to_bits, to_bytes
from tests.support.clips import write
from tests.support.in_band import mux_packets, sets_and_packets
from tests.support.reference import sequential, slice_of, to_rgb, whole
from tests.support.remux import remuxing
from tests.support.sps import Rewrite, rewrite, with_level, with_reorder, without_vui
from tools.clips import Recipe

SMALL = Recipe(width=96, height=64, frames=40, gop=16, b_frames=3)


def check_every_frame(clip: StoredClip) -> None:
    """Alone, in windows and at random: bit for bit what a sequential decode by FFmpeg's demuxer and decoder gives."""
    expected = sequential(clip.mp4, full_range=clip.color_range == "pc", edits=False)
    count = len(clip.index.visible)
    assert len(expected) == count
    rng = np.random.default_rng(0)
    wanted = [[n] for n in range(count)]
    wanted += [list(range(first, min(count, first + 7))) for first in range(0, count, 5)]
    wanted += [np.sort(rng.choice(count, int(rng.integers(1, count)), replace=False)).tolist() for _ in range(5)]
    wanted.append(list(range(count)))
    for numbers in wanted:
        got = decode_with_pyav(slice_of(clip, numbers))
        for number, frame in zip(numbers, got, strict=True):
            np.testing.assert_array_equal(frame, expected[number])


@pytest.mark.parametrize(
    ("change", "recipe", "container"),
    [
        (without_vui, SMALL, "mp4"),
        (without_vui, replace(SMALL, b_frames=7, gop=40), "mkv"),
        # Most scenes have no B-frames: the decoder learns late of those in one.
        (without_vui, replace(SMALL, gop=250, scene=11, params=(("b-adapt", "2"),)), "mp4"),
        (without_vui, replace(SMALL, params=(("tff", "1"),)), "mkv"),
        (with_reorder(0), SMALL, "mp4"),
        (with_reorder(1), replace(SMALL, b_frames=7, gop=40), "mkv"),
        # Level 1 holds one picture of this size.
        (with_level(10), replace(SMALL, width=352, height=288, b_frames=7, gop=40), "mp4"),
    ],
)
def test_h264_that_does_not_say_how_far_it_reorders(
    change: Rewrite, recipe: Recipe, container: str, tmp_path: Path
) -> None:
    source = rewrite(write(recipe, tmp_path / "a.mp4"), tmp_path / f"b.{container}", change)
    clip = store_clip(source, tmp_path)
    assert reorder_depth(np.argsort(np.argsort(clip.index.pts))) >= 1
    check_every_frame(clip)


INTERLACED = replace(SMALL, codec="mpeg4", options=(("flags", "+ildct+ilme"), ("b_strategy", "0")))
SLOWER = tuple(20 * n if n < 16 else 20 * (2 * n - 16) for n in range(40))
"""The times of frames whose distance doubles at a key frame, in ms."""
THIRDS = tuple(1000 * n // 30 for n in range(60) if n % 3 != 1)
"""The times of two frames of three, in ms."""


def test_interlaced_mpeg4_takes_the_distance_of_fields_from_the_first_b_frame(tmp_path: Path) -> None:
    check_every_frame(store_clip(write(INTERLACED, tmp_path / "a.mp4"), tmp_path))


@pytest.mark.parametrize("container", ["mp4", "mkv"])
@pytest.mark.parametrize("b_frames", [1, 2])
def test_interlaced_mpeg4_at_uneven_distances_is_decoded_from_its_start(
    b_frames: int, container: Literal["mp4", "mkv"], tmp_path: Path
) -> None:
    recipe = replace(INTERLACED, b_frames=b_frames, container=container, ticks=SLOWER)
    source = write(recipe, tmp_path / f"a.{container}")
    clip = store_clip(source, tmp_path)
    check_every_frame(clip)
    assert np.flatnonzero(clip.index.flags & RANDOM_ACCESS).tolist() == [0]
    options = PackOptions(compatible_with="any", cutting=FixedLength(7, "frames"))
    pack(source, tmp_path / "cut", options=options, progress=False)
    index(source, tmp_path / "fast", fast=True, progress=False)
    expected = sequential(source, color=row_color(Dataset.open(tmp_path / "cut").clips, 0), edits=False)
    for name in ("cut", "fast"):
        got = [np.asarray(one["video"]) for one in ClipDataset(tmp_path / name, sampling=All())]
        np.testing.assert_array_equal(np.concatenate(got), expected)
    fast = ClipDataset(tmp_path / "fast")
    alone = [np.asarray(fast.get(0, frames=[number])["video"]) for number in range(len(expected))]
    np.testing.assert_array_equal(np.concatenate(alone), expected)


@pytest.mark.parametrize("b_frames", [1, 2])
def test_b_frames_of_interlaced_mpeg4_that_ffmpeg_passes_over_are_no_frames(b_frames: int, tmp_path: Path) -> None:
    """Of frames that come 67 and 33 ms after another, it finds some at no field between those that they refer to."""
    clip = store_clip(write(replace(INTERLACED, b_frames=b_frames, ticks=THIRDS), tmp_path / "a.mp4"), tmp_path)
    assert len(clip.index.visible) < 40 == len(clip.index.pts)
    check_every_frame(clip)


@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_mpeg4_that_is_interlaced_from_the_middle_on(container: str, tmp_path: Path) -> None:
    """As where recordings were joined: from there on, packets of B-frames are needed by others."""
    plain = write(replace(SMALL, codec="mpeg4"), tmp_path / "plain.mp4")
    source = tmp_path / f"a.{container}"
    with remuxing(plain, source) as copy, av.open(str(write(INTERLACED, tmp_path / "laced.mp4"))) as laced:
        for packet in copy.packets:
            copy.mux(packet)
        stream = laced.streams.video[0]
        headers, last = bytes(stream.codec_context.extradata or b""), copy.packets[-1]
        for number, packet in enumerate(one for one in laced.demux(stream) if one.size):
            behind = av.Packet((headers if packet.is_keyframe else b"") + bytes(packet))
            behind.pts, behind.dts = packet.pts + 41 * last.duration, last.dts + (number + 1) * last.duration
            behind.time_base, behind.is_keyframe = last.time_base, packet.is_keyframe
            copy.mux(behind)
    clip = store_clip(source, tmp_path)
    assert len(clip.index.visible) == len(sequential(source)) == 80
    check_every_frame(clip)


@pytest.mark.parametrize("kinds", [(0,), (1,), (0, 1, 2)], ids=["keys", "p-frames", "all"])
def test_interlaced_mpeg4_whose_headers_come_again_counts_anew(kinds: tuple[int, ...], tmp_path: Path) -> None:
    source = write(replace(INTERLACED, b_frames=2, ticks=THIRDS), tmp_path / "a.mp4")
    with remuxing(source, tmp_path / "b.mkv") as copy:
        for packet in copy.packets:
            data = bytes(packet)
            coding_type = data[data.index(b"\0\0\1\xb6") + 4] >> 6
            copy.mux(packet, (copy.stream.codec_context.extradata if coding_type in kinds else b"") + data)
    clip = store_clip(tmp_path / "b.mkv", tmp_path)
    assert len(clip.index.visible) == len(sequential(tmp_path / "b.mkv"))
    check_every_frame(clip)


@pytest.mark.parametrize(
    ("recipe", "which", "lost"),
    [(INTERLACED, 2, 10), (INTERLACED, 6, 1), (replace(SMALL, codec="mpeg4"), 2, 1)],
    ids=["interlaced-first", "interlaced", "progressive"],
)
def test_a_b_frame_of_mpeg4_at_the_time_of_its_reference_is_no_frame(
    recipe: Recipe, which: int, lost: int, tmp_path: Path
) -> None:
    """If it is the first of an interlaced stream, FFmpeg counts in the distance of the second, twice as far, and passes
    over others, too."""
    source = write(replace(recipe, ticks=tuple(range(0, 1600, 40))), tmp_path / "a.mp4")
    reference = ""
    with remuxing(source, tmp_path / "b.mkv") as copy:
        for number, packet in enumerate(copy.packets):
            bits = to_bits(bytes(packet))
            # Behind vop_start_code, vop_coding_type, modulo_time_base (0: in the same second) and marker_bit.
            start = bits.index(to_bits(b"\0\0\1\xb6")) + 32 + 4
            end = start + 10  # vop_time_increment, of milliseconds
            if number == which:
                assert bits[start - 4 : start] == "1001"  # a B-VOP
                copy.mux(packet, to_bytes(bits[:start] + reference + bits[end:]))
            else:
                copy.mux(packet)
            reference = bits[start:end]
    clip = store_clip(tmp_path / "b.mkv", tmp_path)
    assert len(clip.index.visible) == len(clip.index.pts) - lost == len(sequential(tmp_path / "b.mkv"))
    assert (len(clip.index.starts) == 1) == (recipe == INTERLACED)
    check_every_frame(clip)


@pytest.mark.parametrize("recipe", [replace(SMALL, codec="mpeg4"), replace(SMALL, codec="hevc", open_gop=True)])
def test_other_streams_with_b_frames(recipe: Recipe, tmp_path: Path) -> None:
    check_every_frame(store_clip(write(recipe, tmp_path / "a.mp4"), tmp_path))


def fields_as_jpeg(path: Path, frames: int) -> Path:
    """Interlaced Motion JPEG: two pictures of half the height in each packet."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuvj420p"
        rng = np.random.default_rng(3)
        for n in range(frames):
            data = b""
            for _ in range(2):
                field = io.BytesIO()
                pixels = np.kron(rng.integers(0, 255, (4, 6, 3), dtype=np.uint8), np.ones((8, 16, 1), dtype=np.uint8))
                Image.fromarray(pixels).save(field, "jpeg")
                data += field.getvalue()
            packet = av.Packet(data)
            packet.pts = packet.dts = n
            packet.time_base, packet.stream = Fraction(1, 25), stream
            output.mux(packet)
    return path


@pytest.mark.parametrize("container", ["mov", "mkv"])
def test_interlaced_motion_jpeg_has_the_height_that_its_container_says(container: str, tmp_path: Path) -> None:
    clip = store_clip(fields_as_jpeg(tmp_path / f"a.{container}", 5), tmp_path)
    assert clip.height == 64
    check_every_frame(clip)


@pytest.mark.parametrize("container", ["avi", "asf", "nut"])
def test_fields_that_are_in_order_by_a_codec_tag_are_transcoded(container: str, tmp_path: Path) -> None:
    """FFmpeg takes the second field for the upper one where the tag is MJPG; no MP4 says so."""
    (tmp_path / "in").mkdir()
    source = fields_as_jpeg(tmp_path / "in" / f"a.{container}", 5)
    with pytest.raises(CannotCopyError, match=r"the upper one: transcode it, with --codec or --for gpu$"):
        store_clip(source, tmp_path)
    pack([source], tmp_path / "ds", progress=False)
    got = ClipDataset(tmp_path / "ds").get("a", frames=range(5))["video"].numpy()
    expected = np.stack(sequential(source, full_range=True))
    right, swapped = (np.abs(one.astype(int) - got).mean() for one in (expected, expected[:, [*range(1, 64), 62]]))
    assert right < 8 < swapped


def test_old_x264_coded_444_in_its_own_way(tmp_path: Path) -> None:
    """Its version is in the first packet: what is decoded from elsewhere does not know of it."""
    path = write(replace(SMALL, pix_fmt="yuv444p"), tmp_path / "a.mp4")
    (tmp_path / "new").mkdir()
    new = store_clip(path, tmp_path / "new")
    data = path.read_bytes()
    assert data.count(b"x264 - core 1") == 1
    path.write_bytes(re.sub(rb"x264 - core \d{3}", b"x264 - core 150", data))
    clip, context = store_clip(path, tmp_path), ReusableCodecContext()
    assert (len(clip.index.starts), len(new.index.starts)) == (1, 3)
    # Decoders then read otherwise what this x264 wrote rightly, so frames are damaged, and the same ones every time.
    for kept in (context, context, ReusableCodecContext()):
        for numbers in ([20], [0], list(range(17, 30))):
            with pytest.raises(VideoError, match="is damaged"):
                dict(decode_frames(slice_of(clip, numbers), context=kept))
            assert len(dict(decode_frames(slice_of(new, numbers), context=kept))) == len(numbers)


def test_early_x264_predicted_directly_in_its_own_way(tmp_path: Path) -> None:
    """The same in any profile, and for direct prediction. The next clip does not get its version."""
    params = (("b-pyramid", "normal"), ("direct", "spatial"), ("b-adapt", "0"), ("ref", "3"))
    recipe = Recipe(width=192, height=160, frames=48, gop=12, b_frames=3, params=params)
    path, clips = write(recipe, tmp_path / "a.mp4"), {}
    for name in ("x264", "y264"):
        (tmp_path / name).mkdir()
        changed = tmp_path / name / "b.mp4"
        changed.write_bytes(re.sub(rb"x264 - core \d{3}", name.encode() + b" - core 033", path.read_bytes()))
        clips[name] = store_clip(changed, tmp_path / name)

    def frames(name: str, numbers: list[int], context: ReusableCodecContext) -> list[bytes]:
        found = decode_frames(slice_of(clips[name], numbers), context=context)
        return [bytes(frame.planes[0]) for _, frame in sorted((row, frame) for row, frame in found)]

    every = {name: frames(name, [*range(48)], ReusableCodecContext()) for name in clips}
    apart = [n for n in range(48) if every["x264"][n] != every["y264"][n]]
    assert max(apart) > 12
    context = ReusableCodecContext()
    for name in ("x264", "y264", "x264"):
        for number in apart:
            assert frames(name, [number], context) == [every[name][number]]
            assert frames(name, [number], ReusableCodecContext()) == [every[name][number]]


@pytest.mark.parametrize("native", [False, True])
def test_a_lossless_stream_is_decoded_as_alone_behind_one_of_an_old_x264(native: bool, tmp_path: Path) -> None:
    """Lossless 4:2:0 is of the profile of 4:4:4."""
    path = write(Recipe(width=96, height=64, frames=4, b_frames=0, crf=0, style="texture"), tmp_path / "a.mp4")
    clips = []
    for name, by in (("new", rb"y264 - core 150"), ("old", rb"x264 - core 150")):
        (tmp_path / name).mkdir()
        changed = tmp_path / name / "b.mp4"
        changed.write_bytes(re.sub(rb"x264 - core \d{3}", by, path.read_bytes()))
        clips.append(whole(store_clip(changed, tmp_path / name)))
    new, old = clips

    def sums(context: ReusableCodecContext, clip: EncodedSlice) -> list[int]:
        frames = ((row, picture_of(frame)) for row, frame in decode_frames(clip, context=context))
        if native:
            frames = decode_pictures(clip, None, context=context, taken=ctypes.c_int64())
        return [int(picture.planes[0].sum()) for _, picture in frames]

    context, alone = ReusableCodecContext(), sums(ReusableCodecContext(), new)
    assert sums(context, old) != alone
    assert sums(context, new) == alone


def test_damage_in_a_frame_shown_later_is_noticed(tmp_path: Path) -> None:
    """A B-frame comes out of the decoder before the damaged frame that it is predicted from."""
    recipe = Recipe(frames=24, gop=24, b_frames=1, width=416, height=240, style="texture")
    clip = store_clip(write(recipe, tmp_path / "a.mp4"), tmp_path)
    order = np.argsort(np.argsort(clip.index.pts))
    later = next(n for n in range(4, 24) if order[n] > order[n + 1])
    part = slice_of(clip, [int(order[later + 1])])
    assert part.display_order[-2] > part.display_order[-1]
    data = part.data.copy()
    middle = int(part.sizes[:-2].sum()) + int(part.sizes[-2]) // 2
    data[middle : middle + 40] = np.random.default_rng(2).integers(0, 256, 40)
    with pytest.raises(VideoError, match="is damaged"):
        dict(decode_frames(replace(part, data=data)))


def test_a_context_is_kept_for_streams_that_reorder_no_further(tmp_path: Path) -> None:
    source = rewrite(write(SMALL, tmp_path / "a.mp4"), tmp_path / "b.mp4", without_vui)
    clip, context = store_clip(source, tmp_path), ReusableCodecContext()
    for numbers in ([0], [1], [0], [1, 2, 3]):
        assert len(dict(decode_frames(slice_of(clip, numbers), context=context))) == len(numbers)


def test_a_context_is_kept_for_clips_of_other_bit_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg writes a file's bit rate into its sample description: clips of one encoder differ by that alone."""
    opened: list[bytes] = []

    def counted(stsd: bytes, reorder: int, *, strict: bool = False) -> av.VideoCodecContext:
        opened.append(stsd)
        return open_context(stsd, reorder, strict=strict)

    monkeypatch.setattr(codec_context, "open_context", counted)
    context, stsds = ReusableCodecContext(), set[bytes]()
    for seed in range(3):
        path = write(replace(SMALL, seed=seed), tmp_path / f"{seed}.mp4")
        with av.open(str(path)) as container:
            expected = [frame.to_ndarray() for frame in container.decode(video=0)]
        whole = slice_of(store_clip(path, tmp_path), range(len(expected)))
        stsds.add(whole.stsd)
        decoded = {row: frame.to_ndarray() for row, frame in decode_frames(whole, context=context)}
        np.testing.assert_array_equal([decoded[row] for row in range(len(expected))], expected)
    assert len(stsds) == 3
    assert len(opened) == 1


def test_a_cut_that_depends_on_a_damaged_frame_is_not_encoded(tmp_path: Path) -> None:
    recipe = Recipe(frames=24, gop=24, b_frames=0, width=416, height=240, style="texture")
    clip = store_clip(write(recipe, tmp_path / "a.mp4"), tmp_path)
    data = bytearray(clip.mp4.read_bytes())
    middle = int(clip.index.offset[3]) + int(clip.index.size[3]) // 2
    data[middle : middle + 40] = np.random.default_rng(2).bytes(40)
    (tmp_path / "damaged.mp4").write_bytes(data)
    cut = trim_clip(store_clip(tmp_path / "damaged.mp4", tmp_path), 10, 20, tmp_path / "cut.mp4")
    with pytest.raises(VideoError, match="is damaged"):
        dict(decode_frames(slice_of(cut, [0])))
    with pytest.raises(VideoError, match="is damaged or missing"):
        transcode(cut, tmp_path / "encoded.mp4", TranscodeOptions())


def test_a_damaged_key_frame_of_vp8_shows_nothing_of_what_was_decoded_before(tmp_path: Path) -> None:
    """FFmpeg fills it with what it has; in every window, and behind every other clip, it must be the same."""
    recipe = Recipe(codec="vp8", container="webm", width=96, height=64, gop=6, frames=12)
    clip = store_clip(write(recipe, tmp_path / "a.webm"), tmp_path)
    good = slice_of(clip, list(range(12)))
    data = good.data.copy()
    data[1] ^= 1 << 5  # of the size of its first partition
    damaged, context = replace(good, data=data), ReusableCodecContext()
    alone = _digests(damaged, ReusableCodecContext())
    assert len(alone) == 12
    _digests(good, context)
    assert _digests(damaged, context) == alone


def _digests(encoded: EncodedSlice, context: ReusableCodecContext) -> list[str]:
    return [
        hashlib.sha256(frame.to_ndarray().tobytes()).hexdigest() for _, frame in decode_frames(encoded, context=context)
    ]


@pytest.mark.parametrize(
    ("codec", "change", "behind"),
    [
        ("h264", {"params": (("chroma-qp-offset", "6"),)}, False),
        ("h264", {"params": (("chroma-qp-offset", "6"),)}, True),
        ("hevc", {"params": (("cbqpoffs", "6"), ("crqpoffs", "-6"))}, False),
        ("hevc", {"params": (("cbqpoffs", "6"), ("crqpoffs", "-6"))}, True),
        ("mpeg4", {"options": (("mpeg_quant", "1"),)}, False),
    ],
)
def test_sets_in_band_that_key_frames_do_not_repeat(codec: Any, change: Any, behind: bool, tmp_path: Path) -> None:
    """Two recordings as one track: the second's parameter sets come once, with its first key frame, or twice, each time
    behind a packet's slices, as writers do that begin a packet at each slice."""
    recipe = Recipe(codec=codec, width=96, height=64, frames=8, gop=4, b_frames=0)
    first, second = (
        write(one, tmp_path / f"{n}.mp4") for n, one in enumerate([recipe, replace(recipe, seed=1, **change)])
    )
    (_, packets), (sets, others) = sets_and_packets(first), sets_and_packets(second)
    packets += others
    if behind:
        packets[7:9] = [packets[7] + sets, packets[8] + sets]
    else:
        packets[8] = sets + packets[8]
    joined = mux_packets(first, packets, 4, tmp_path / "joined.mkv")
    clip = store_clip(joined, tmp_path)
    assert clip.index.starts.tolist() == [0, 4] + [8] * (not behind)
    check_every_frame(clip)
    # Nor does a decoder that is kept take them to the next clip of the same sample description.
    context = ReusableCodecContext()
    pictures = [
        hashlib.md5(picture.planes[1].tobytes()).digest()
        for frames in ([0], [15], [0])
        for _, picture in decode_pictures(slice_of(clip, frames), None, context=context, taken=ctypes.c_int64())
    ]
    assert pictures[0] == pictures[2] != pictures[1]


@pytest.mark.parametrize(("from_key", "with_leading"), [(0, True), (1, True), (0, False)])
def test_sets_in_band_with_a_leading_or_trailing_picture(from_key: int, with_leading: bool, tmp_path: Path) -> None:
    """A RASL picture may be left out, but not its packet, as the picture parameter set there is for trailing ones. With
    a trailing picture, it makes a CRA picture behind it no start, whose RASL pictures are then like any other."""
    recipe = Recipe(codec="hevc", width=96, height=64, frames=36, gop=12, b_frames=3, open_gop=True)
    changed = replace(recipe, params=(("cbqpoffs", "6"), ("crqpoffs", "-6")))
    (tmp_path / "changed").mkdir()
    clip = store_clip(write(changed, tmp_path / "changed.mp4"), tmp_path / "changed")
    units = parameter_sets("hevc", clip.stsd).annex_b.split(START_CODE)[1:]
    picture_set = next(unit for unit in units if unit[0] >> 1 == 34)
    path, sets, leading = tmp_path / "a.mkv", len(picture_set).to_bytes(4, "big") + picture_set, 0
    with remuxing(write(recipe, tmp_path / "plain.mp4"), path) as copy:
        starts = [n for n, packet in enumerate(copy.packets) if packet.is_keyframe]
        for n, packet in enumerate(copy.packets[starts[from_key] :]):
            data = bytes(packet)
            is_leading = data[4] >> 1 & 63 in (8, 9)
            leading += is_leading
            tells = is_leading and leading == 1 if with_leading else n == 2
            copy.mux(packet, sets * tells + data)
    assert leading > 2
    clip = store_clip(path, tmp_path)
    assert clip.index.starts.tolist() == [0]
    check_every_frame(clip)
    expected, alone = sequential(path), ReusableCodecContext()
    assert len(expected) == len(clip.index.visible)
    for number in range(len(expected)):
        [(_, frame)] = decode_frames(slice_of(clip, [number]), context=alone)
        np.testing.assert_array_equal(to_rgb(frame, full_range=False), expected[number])


def test_what_is_shown_before_a_recovery_point_counts(tmp_path: Path) -> None:
    """A recording that begins within a wave of intra refresh: pictures behind the recovery point still show of it."""
    recipe = Recipe(width=96, height=64, frames=40, gop=8, b_frames=0, container="mkv", from_key=1, drop=3)
    recipe = replace(recipe, params=(("intra-refresh", "1"),))
    clip = store_clip(write(recipe, tmp_path / "a.mkv"), tmp_path)
    expected = sequential(tmp_path / "a.mkv")
    np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, range(len(expected)))), expected)


def test_pictures_without_quantization_tables_get_those_before_them(tmp_path: Path) -> None:
    recipe = Recipe(codec="mjpeg", container="mkv", width=64, height=64, frames=6, gop=1, options=(("threads", "1"),))
    path = tmp_path / "a.mkv"
    with remuxing(write(recipe, tmp_path / "whole.mkv"), path) as copy:
        for n, packet in enumerate(copy.packets):
            data = bytes(packet)
            at = data.find(b"\xff\xdb")
            if n % 3 and at > 0:
                data = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]
            copy.mux(packet, data)
    clip, expected = store_clip(path, tmp_path), sequential(path)
    assert (clip.index.flags & RANDOM_ACCESS > 0).tolist() == [True, False, False] * 2
    for wanted in ([1], [2, 5], [3, 4], range(6)):
        np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, wanted)), [expected[n] for n in wanted])


def test_pictures_without_huffman_tables_get_the_standards(tmp_path: Path) -> None:
    """As of webcams, behind a video of the same sample description with tables of its own."""
    slices, expected = [], []
    for name, huffman in (("own", "optimal"), ("standard", "default")):
        options = (("huffman", huffman), ("threads", "1"))
        recipe = Recipe(codec="mjpeg", container="avi", width=64, height=64, frames=2, gop=1, options=options)
        clip = store_clip(write(recipe, tmp_path / f"{name}.avi"), tmp_path)
        one = slice_of(clip, [0])
        expected += [frame.to_ndarray() for _, frame in decode_frames(one)]
        data = one.data.tobytes()
        if name == "standard":
            at = data.index(b"\xff\xc4")
            data = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]
        slices.append(replace(one, data=np.frombuffer(data, np.uint8), sizes=np.array([len(data)])))
    context = ReusableCodecContext()
    for one, right in zip(slices, expected, strict=True):
        ((_, frame),) = decode_frames(replace(one, stsd=slices[0].stsd), context=context)
        np.testing.assert_array_equal(frame.to_ndarray(), right)
