"""Converting: the same frames at the same times, in the right colours, decodable from every key frame, always the same
bytes."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.decode.cpu import decode_with_pyav
from streamvid.errors import InputError, VideoError
from streamvid.mp4.sample_entry import codec_configuration
from streamvid.packing.options import PackOptions
from streamvid.packing.prepare import remux_or_build
from streamvid.storage.retry import Retry
from streamvid.video.encoders import ENCODERS, TARGETS, Target
from streamvid.video.frame_index import HIDDEN, LEADING
from streamvid.video.pixel_format import EncoderFormat, encoded_size
from streamvid.video.probe import CannotCopyError
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import CUT_OFF, StoredClip
from streamvid.video.timed_frames import TimedFrame, TimedFrames
from streamvid.video.transcode import TranscodeOptions, encode, transcode
from tests.support.clips import frames_of, hard_clips, without_packets, write
from tests.support.field_pictures import Picture, write_fields
from tests.support.ogm import write_ogm
from tests.support.reference import slice_of, to_rgb, whole
from tests.support.remux import remuxing
from tools.clips import Recipe, flip_bytes, paint, read_frame_number

HARD = hard_clips()
WIDE = Recipe(width=160, height=96, frames=40, gop=20)


def stored(recipe: Recipe, folder: Path) -> StoredClip:
    folder.mkdir()
    return store_clip(write(recipe, folder / f"source.{recipe.container}"), folder)


def converted(
    clip: StoredClip | Path, folder: Path, conversion: TranscodeOptions, keyframes: Sequence[Fraction | float] = ()
) -> StoredClip:
    folder.mkdir()
    transcode(clip, folder / "converted.mp4", conversion, keyframes=keyframes)
    return store_clip(folder / "converted.mp4", folder)


def times(clip: StoredClip) -> list[Fraction]:
    return [Fraction(int(pts)) * Fraction(*clip.time_base) for pts in clip.index.frame_pts]


def numbers(clip: StoredClip, recipe: Recipe) -> list[int]:
    return [read_frame_number(frame, (recipe.width, recipe.height)) for frame in decode_with_pyav(whole(clip))]


def psnr(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    return float(10 * np.log10(255**2 / np.mean((a.astype(np.float32) - b) ** 2)))


def tags(clip: StoredClip) -> tuple[int, int, int, int]:
    with av.open(str(clip.mp4)) as container:
        frame = next(container.decode(video=0))
        return int(frame.colorspace), int(frame.color_primaries), int(frame.color_trc), int(frame.color_range)


@pytest.mark.parametrize("codec", TARGETS)
def test_frames_times_and_colours_are_kept(codec: Target, tmp_path: Path) -> None:
    source = stored(WIDE, tmp_path / "source")
    clip = converted(source, tmp_path / "out", TranscodeOptions(codec, gop=8), keyframes=[Fraction(3, 30), 0.5])
    assert clip.codec == codec
    assert times(clip) == times(source)
    assert numbers(clip, WIDE) == list(range(40))
    assert (clip.width, clip.height) == (160, 96)
    assert clip.duration * Fraction(*clip.time_base) == source.duration * Fraction(*source.time_base)
    if codec == "mjpeg":
        assert clip.index.keyframes.tolist() == list(range(40))
    else:
        # Frames 3 and 15 were asked for; a GOP's count starts anew at each key frame.
        assert clip.index.keyframes.tolist() == [0, 3, 11, 15, 23, 31, 39]
        assert tags(clip) == tags(source) == (1, 1, 1, 1)
    before, after = decode_with_pyav(whole(source)), decode_with_pyav(whole(clip))
    if codec == "mjpeg":
        # Motion JPEG has no tags, so its pixels were turned into BT.601: they are other ones for a reader that takes
        # BT.601 for everything, as ours does. See the test of BT.601 footage.
        return
    # Neighbouring frames are 25 dB apart, swapped colour planes less.
    assert min(psnr(a, b) for a, b in zip(before, after, strict=True)) > 36
    assert psnr(before[0], before[1]) < 30


@pytest.mark.parametrize("codec", TARGETS)
def test_groups_are_closed_and_no_packet_is_hidden(codec: Target, tmp_path: Path) -> None:
    source = stored(WIDE, tmp_path / "source")
    clip = converted(source, tmp_path / "out", TranscodeOptions(codec, gop=8))
    assert not (clip.index.flags & (HIDDEN | LEADING)).any()
    assert clip.traits == ""
    reference = decode_with_pyav(whole(clip))
    for key in clip.index.keyframes.tolist():
        # From the key frame alone, up to the next one, every frame is that of the sequential decode.
        group = np.arange(key, min(key + 8, 40))
        np.testing.assert_array_equal(decode_with_pyav(slice_of(clip, group)), reference[group])


@pytest.mark.parametrize("codec", TARGETS)
def test_the_same_bytes_every_time(codec: Target, tmp_path: Path) -> None:
    """96 pixels: of that width, x264's macroblock trees gave other bytes in seven of eight runs."""
    source = stored(Recipe(width=96, height=64, frames=48), tmp_path / "source")
    files = []
    for run in range(6):
        rubbish = _stirred_memory(run)
        transcode(source, tmp_path / f"{run}.mp4", TranscodeOptions(codec, gop=24))
        files.append((tmp_path / f"{run}.mp4").read_bytes())
        del rubbish
    assert len(set(files)) == 1


def _stirred_memory(run: int) -> list[bytes]:
    """Blocks of other sizes in each run: what an encoder allocates, and does not clear, then holds something else."""
    return [os.urandom(1 << (10 + run)) for _ in range(50)]


@pytest.mark.parametrize("codec", TARGETS)
@pytest.mark.parametrize(("width", "height"), [(320, 180), (36, 22), (131, 97)])
def test_the_size_is_kept(codec: Target, width: int, height: int, tmp_path: Path) -> None:
    """But for odd sides: 4:2:0 has a sample of colour for every two pixels."""
    recipe = Recipe(width=width, height=height, frames=4, gop=4, pix_fmt="yuv444p", number=False)
    clip = converted(stored(recipe, tmp_path / "source"), tmp_path / "out", TranscodeOptions(codec))
    assert (clip.width, clip.height) == (width - width % 2, height - height % 2)
    assert [frame.shape[:2] for frame in decode_with_pyav(whole(clip))] == 4 * [(clip.height, clip.width)]
    assert clip.pix_fmt in ("yuv420p", "yuvj420p")


@pytest.mark.parametrize("codec", TARGETS)
def test_the_smallest_pictures(codec: Target, tmp_path: Path) -> None:
    side = ENCODERS[codec].min_side
    frame = av.VideoFrame(1, 3, "yuv444p")
    encode(
        TimedFrames([TimedFrame(frame, 0, 1)], Fraction(1, 25), Fraction(25)),
        tmp_path / "a.mp4",
        TranscodeOptions(codec),
    )
    clip = store_clip(tmp_path / "a.mp4", tmp_path)
    assert (clip.width, clip.height) == (max(2, side), max(2, side))


@pytest.mark.parametrize("codec", TARGETS)
@pytest.mark.parametrize("fps", [1, 240, 480, 1000])
def test_any_rate(codec: Target, fps: int, tmp_path: Path) -> None:
    """SVT-AV1 opens for 240 frames a second at most."""
    source = stored(replace(WIDE, fps=Fraction(fps), frames=8), tmp_path / "source")
    assert times(converted(source, tmp_path / "to", TranscodeOptions(codec))) == times(source)


@pytest.mark.parametrize("codec", TARGETS)
def test_no_thread_becomes_a_real_time_one(codec: Target, tmp_path: Path) -> None:
    """In a container, users are root, and all other processes wait for a real-time one."""
    seen = set()

    def frames() -> Iterator[TimedFrame]:
        for tick in range(4):
            black = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
            yield TimedFrame(black, tick, tick + 1)
            if tick:
                for thread in os.listdir("/proc/self/task"):
                    with suppress(ProcessLookupError):  # it has ended meanwhile
                        seen.add(os.sched_getscheduler(int(thread)))

    encode(TimedFrames(frames(), Fraction(1, 25), Fraction(25)), tmp_path / "a.mp4", TranscodeOptions(codec=codec))
    assert os.SCHED_FIFO not in seen | {os.sched_getscheduler(0)}


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp9", "av1"])
def test_saturated_noise_in_444(codec: Target, tmp_path: Path) -> None:
    """No sample wraps around at the ends of the range. Both sides go through 4:2:0 before they become RGB: noise in
    4:4:4 has colours that 4:2:0 cannot hold."""
    rng = np.random.default_rng(0)
    frames = []
    for _ in range(3):
        noise = av.VideoFrame(64, 48, "yuv444p")
        for plane in noise.planes:
            blocks = 255 * rng.integers(0, 2, (plane.height // 8, plane.line_size // 8), dtype=np.uint8)
            plane.update(blocks.repeat(8, axis=0).repeat(8, axis=1).tobytes())
        frames.append(noise)
    timed = TimedFrames([TimedFrame(f, n, n + 1) for n, f in enumerate(frames)], Fraction(1, 25), Fraction(25))
    encode(timed, tmp_path / "a.mp4", TranscodeOptions(codec, crf=1))
    got = decode_with_pyav(whole(store_clip(tmp_path / "a.mp4", tmp_path)))
    to_420 = EncoderFormat(frames[0], codec, None)
    for frame, shown in zip(frames, got, strict=True):
        assert np.abs(to_rgb(to_420(frame), full_range=False).astype(int) - shown).max() < 64


@given(
    st.integers(1, 4000), st.integers(1, 4000), st.sampled_from(TARGETS), st.none() | st.integers(16, 2160)
)  # fmt: skip
def test_sizes_keep_the_shape_and_are_even(width: int, height: int, codec: Target, short: int | None) -> None:
    encoder = ENCODERS[codec]
    got = encoded_size(width, height, codec, short)
    factor = min(1.0, short / min(width, height)) if short is not None else 1.0
    for side, before in zip(got, (width, height), strict=True):
        assert side % 2 == 0
        assert side >= encoder.min_side
        if before * factor >= encoder.min_side:
            # One pixel, and what floating point makes of it.
            assert abs(side - before * factor) <= 1 + 1e-9


def test_sizes_that_people_ask_for() -> None:
    assert encoded_size(1920, 1080, "h264", 720) == (1280, 720)
    assert encoded_size(1080, 1920, "h264", 720) == (720, 1280)
    assert encoded_size(854, 480, "hevc", 240) == (426, 240)
    for codec in TARGETS:
        assert encoded_size(1920, 1080, codec, None) == (1920, 1080)
        assert encoded_size(320, 180, codec, None) == (320, 180)
    assert encoded_size(1280, 720, "hevc", 1080) == (1280, 720), "nothing is made larger"


@pytest.mark.parametrize(
    "name",
    ["h264_vfr", "h264_vfr_list", "h264_vfr_mkv", "h264_2997", "h264_ts_clock_wraps", "h264_delayed", "vp9_vfr",
     "h264_avi_b_frames", "mpeg4_avi_b_frames", "vp8_hidden_frames", "vp9_hidden_frames", "h264_one_frame",
     "h264_trimmed_both", "h264_trimmed_past_key", "h264_open_gop_from_recovery", "hevc_open_gop_from_cra"],
)  # fmt: skip
def test_every_visible_frame_at_its_own_time(name: str, tmp_path: Path) -> None:
    """Variable rates, edit lists, non-displayed packets, odd clocks: what the copy shows is what is encoded."""
    recipe = HARD[name]
    source = stored(recipe, tmp_path / "source")
    clip = converted(source, tmp_path / "out", TranscodeOptions("h264"))
    assert times(clip) == times(source)
    assert numbers(clip, recipe) == recipe.shown()
    assert clip.duration * Fraction(*clip.time_base) == source.duration * Fraction(*source.time_base)


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_hevc_of_few_frames(frames: int, tmp_path: Path) -> None:
    """x265 gives random decode times to videos that end before its first B-frames do."""
    source = stored(Recipe(frames=frames), tmp_path / "source")
    for run in range(8):
        rubbish = _stirred_memory(run)
        clip = converted(source, tmp_path / str(run), TranscodeOptions("hevc"))
        assert times(clip) == times(source)
        del rubbish


@pytest.mark.parametrize("codec", ["h264", "mjpeg"])
@pytest.mark.parametrize("full_range", [False, True])
def test_levels_stay_what_they_mean(codec: Target, full_range: bool, tmp_path: Path) -> None:
    """BT.601, in which everything can be said: black and white stay black and white in either range."""
    recipe = Recipe(width=320, height=176, frames=3, colour="bt601", full_range=full_range, crf=4)
    source = stored(recipe, tmp_path / "source")
    clip = converted(source, tmp_path / "out", TranscodeOptions(codec, crf=2))
    assert clip.color_range == ("pc" if codec == "mjpeg" or full_range else "tv")
    assert psnr(decode_with_pyav(whole(source))[1], decode_with_pyav(whole(clip))[1]) > 38


@pytest.mark.parametrize("full_range", [False, True])
@pytest.mark.parametrize("codec", ["h264", "hevc", "mjpeg"])
@pytest.mark.parametrize("pix_fmt", ["gray", "gray10le", "gray16le", "ya8"])
def test_levels_of_gray_stay_what_they_mean(codec: Target, pix_fmt: str, full_range: bool, tmp_path: Path) -> None:
    """Black, two greys and white, as of a thermal camera: swscale takes gray for full range always."""
    frame = av.VideoFrame(64, 64, pix_fmt)
    bits, low, high = frame.format.components[0].bits, *((0, 255) if full_range else (16, 235))
    levels = np.repeat([low, 90, 160, high], 16)
    stored = levels * ((1 << bits) - 1) // 255 if full_range else levels << (bits - 8)
    lines = np.frombuffer(frame.planes[0], dtype=np.uint8 if bits == 8 else np.uint16)  # type: ignore[call-overload]
    lines = lines.reshape(64, -1)[:, : 64 * len(frame.format.components)]
    lines[:] = np.repeat(stored, len(frame.format.components))
    frame.color_range = 2 if full_range else 1
    encode(
        TimedFrames([TimedFrame(frame, 0, 1)], Fraction(1, 25), Fraction(25)),
        tmp_path / "a.mp4",
        TranscodeOptions(codec, crf=1),
    )
    clip = store_clip(tmp_path / "a.mp4", tmp_path)
    assert clip.color_range == ("pc" if codec == "mjpeg" or full_range else "tv")
    shown = decode_with_pyav(whole(clip))[0, 32, 8::16].astype(int)
    assert np.abs(shown - np.round((levels[8::16, None] - low) / (high - low) * 255)).max() <= 3


def test_ycgco_is_kept_or_refused(tmp_path: Path) -> None:
    """swscale does not know it, and would take it for BT.601 where Motion JPEG needs that."""
    frame = av.VideoFrame(64, 64, "yuv444p")
    for plane, level in zip(frame.planes, (120, 100, 170), strict=True):
        plane.update(bytes([level]) * plane.buffer_size)
    frame.colorspace = 8
    timed = TimedFrames([TimedFrame(frame, 0, 1)], Fraction(1, 25), Fraction(25))
    encode(timed, tmp_path / "a.mp4", TranscodeOptions("h264", crf=1))
    assert store_clip(tmp_path / "a.mp4", tmp_path).color_space == "ycgco"
    with pytest.raises(VideoError, match="YCgCo"):
        encode(timed, tmp_path / "b.mp4", TranscodeOptions("mjpeg"))


def test_ten_bits_are_kept_where_the_codec_can(tmp_path: Path) -> None:
    source = stored(HARD["hevc_10bit"], tmp_path / "source")
    hevc = converted(source, tmp_path / "hevc", TranscodeOptions("hevc"))
    h264 = converted(source, tmp_path / "h264", TranscodeOptions("h264"))
    assert (hevc.pix_fmt, h264.pix_fmt) == ("yuv420p10le", "yuv420p")
    assert tags(hevc) == tags(h264) == tags(source) == (9, 9, 14, 1)
    pictures = [decode_with_pyav(slice_of(clip, [5]))[0] for clip in (hevc, h264)]
    assert psnr(*pictures) > 34


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotation_is_carried(degrees: int, tmp_path: Path) -> None:
    recipe = Recipe(width=320, height=176, frames=3, rotation=degrees)
    clip = converted(stored(recipe, tmp_path / "source"), tmp_path / "out", TranscodeOptions("h264"))
    assert clip.rotation == degrees
    assert numbers(clip, recipe) == [0, 1, 2], "the pixels themselves are not turned"


@pytest.mark.parametrize(
    ("fps", "most", "kept"),
    [
        (Fraction(60), Fraction(30), list(range(0, 40, 2))),
        (Fraction(60000, 1001), Fraction(30), list(range(0, 40, 2))),
        (Fraction(30), Fraction(30), list(range(40))),
        (Fraction(30000, 1001), Fraction(30), list(range(40))),
        (Fraction(50), Fraction(25), list(range(0, 40, 2))),
    ],
)
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_frames_above_the_rate_are_left_out(
    fps: Fraction, most: Fraction, kept: list[int], container: Any, tmp_path: Path
) -> None:
    """Matroska rounds to milliseconds: 33, 67, 100 are still 30 frames a second."""
    recipe = Recipe(width=96, height=64, frames=40, fps=fps, container=container)
    source = stored(recipe, tmp_path / "source")
    clip = converted(source, tmp_path / "out", TranscodeOptions("h264", max_fps=most))
    assert numbers(clip, recipe) == kept
    assert times(clip) == [times(source)[n] for n in kept]
    end = source.duration * Fraction(*source.time_base)
    assert clip.duration * Fraction(*clip.time_base) == end


@pytest.mark.parametrize("max_fps", [None, Fraction(10)])
@pytest.mark.parametrize(
    ("codec", "pix_fmt", "name"),
    [
        ("gif", "rgb8", "a.gif"),
        ("ffv1", "yuv420p", "a.mkv"),
        ("prores", "yuv422p10le", "a.mov"),
        ("h263", "yuv420p", "a.3gp"),
    ],
)
def test_the_last_frame_of_a_file_lasts_as_long_as_it_says(
    codec: str, pix_fmt: str, name: str, max_fps: Fraction | None, tmp_path: Path
) -> None:
    """As the pause at a GIF's end. The last of 8 frames is dropped if at most 10 a second are kept."""
    with av.open(str(tmp_path / name), "w") as output:
        stream: Any = output.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 128, 96, pix_fmt
        for number in range(8):
            frame = av.VideoFrame.from_ndarray(np.full((96, 128, 3), 25 * number, dtype=np.uint8))
            for packet in stream.encode(frame.reformat(format=pix_fmt)):
                packet.duration = 6 if number == 7 else 1
                output.mux(packet)
    clip = converted(tmp_path / name, tmp_path / "out", TranscodeOptions(max_fps=max_fps))
    shown = [0, 3, 5] if max_fps else [*range(8)]
    assert times(clip) == [Fraction(number, 25) for number in shown]
    assert clip.duration * Fraction(*clip.time_base) == Fraction(13, 25)


def test_the_last_frame_of_an_avi_that_is_dropped(tmp_path: Path) -> None:
    """An AVI's stream of 1 ms says of each frame that it lasts 1 ms. It is 40 ms, as of the others."""
    with av.open(str(tmp_path / "a.avi"), "w") as output:
        stream: Any = output.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for number in range(8):
            frame = av.VideoFrame(64, 64, "yuv420p")
            frame.pts, frame.time_base = 40 * number, Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    clip = converted(tmp_path / "a.avi", tmp_path / "out", TranscodeOptions(max_fps=Fraction(10)))
    assert [float(at) for at in times(clip)] == [0, 0.12, 0.2]
    assert clip.duration * Fraction(*clip.time_base) == Fraction(8, 25)


@pytest.mark.parametrize("most", [5, 12.5])
def test_the_rate_may_be_any_number(most: float, tmp_path: Path) -> None:
    recipe = Recipe(width=96, height=64, frames=20, fps=Fraction(25))
    options = TranscodeOptions("h264", max_fps=most)  # type: ignore[arg-type] # as from a notebook
    assert options == TranscodeOptions("h264", max_fps=Fraction(most))
    clip = converted(stored(recipe, tmp_path / "source"), tmp_path / "out", options)
    assert numbers(clip, recipe) == list(range(0, 20, round(25 / most)))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=60), st.integers(1, 50))
def test_no_second_has_more_frames_than_asked_for(steps: list[int], most: int) -> None:
    from streamvid.video.transcode import _FrameClock

    ticks = np.cumsum([0, *steps]).tolist()
    clock = _FrameClock(Fraction(1, 1000), (), Fraction(most))
    kept = [at for at in ticks if clock.add(at, at) is not None]
    assert kept[0] == 0
    assert set(kept) <= set(ticks)
    for n in range(len(kept)):
        within = [at for at in kept if kept[n] <= at < kept[n] + 1000]
        assert len(within) <= most + 1
    # What was left out came sooner than a frame's time after one that was kept.
    for at in set(ticks) - set(kept):
        assert any(at - 1000 / most < k < at for k in kept)


def test_what_cannot_be_stored_is_decoded_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mpeg2.ts"
    with av.open(str(path), "w", format="mpegts") as output:
        stream: Any = output.add_stream("mpeg2video", rate=25)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 160, 96, "yuv420p", 4_000_000
        recipe = Recipe(width=160, height=96, frames=20, gop=10)
        for number, frame in enumerate(frames_of(paint(recipe))):
            frame.pts, frame.time_base = number, Fraction(1, 25)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    with pytest.raises(VideoError, match="codec is mpeg2video"):
        store_clip(path, tmp_path)
    clip = converted(path, tmp_path / "out", TranscodeOptions("h264"))
    assert numbers(clip, recipe) == list(range(20))
    assert times(clip) == [Fraction(n, 25) for n in range(20)]


def test_a_recording_of_mpeg2_that_begins_long_before_a_key_frame(tmp_path: Path) -> None:
    """So long that FFmpeg has opened the decoder without a sequence header, which the packets before it need."""
    path = tmp_path / "a.ts"
    with av.open(str(path), "w", format="mpegts") as output:
        stream: Any = output.add_stream("mpeg2video", rate=25)
        stream.width, stream.height, stream.gop_size = 32, 32, 300
        stream.codec_context.options = {"sc_threshold": "1000000000"}
        for number in range(320):
            frame = av.VideoFrame(32, 32, "yuv420p")
            for plane in frame.planes:
                plane.update(bytes([128]) * plane.buffer_size)
            frame.pts, frame.time_base = number, Fraction(1, 25)
            for packet in stream.encode(frame):
                if number > 20:
                    output.mux(packet)
        output.mux(stream.encode(None))
    clip = converted(path, tmp_path / "out", TranscodeOptions("h264"))
    assert times(clip) == [Fraction(n, 25) for n in range(20)]


def test_packets_without_data_are_no_frames(tmp_path: Path) -> None:
    """In Ogg they show the frame before on, and VLC ends its files with one. They are an error to FFmpeg's decoder."""
    encoder: Any = av.CodecContext.create("mpeg2video", "w")
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = 160, 96, "yuv420p", Fraction(1, 25)
    recipe = Recipe(width=160, height=96, frames=12)
    packets = [bytes(packet) for picture in (*frames_of(paint(recipe)), None) for packet in encoder.encode(picture)]
    source = write_ogm(tmp_path / "a.ogm", [*packets[:5], b"", *packets[5:], b""], fourcc=b"MPG2", size=(160, 96))
    clip = converted(source, tmp_path / "out", TranscodeOptions("h264"))
    assert numbers(clip, recipe) == list(range(12))


def test_an_edit_list_of_several_parts(tmp_path: Path) -> None:
    """FFmpeg demuxes a part's packets from the key frame before it on, some of them again, at times of other parts."""
    recipe = Recipe(fps=Fraction(25), frames=24, gop=8, delay=Fraction(1), width=160, height=96)
    path = write(recipe, tmp_path / "a.mp4")
    data = path.read_bytes()
    at = data.index(b"elst") + 8
    assert data[at : at + 4] == (2).to_bytes(4, "big")  # an empty edit, and one of the whole
    edits = struct.pack(">IihhIihh", 160, 1024, 1, 0, 200, 1024 + 16 * 512, 1, 0)
    path.write_bytes(data[: at + 4] + edits + data[at + 4 + len(edits) :])
    clip = converted(path, tmp_path / "out", TranscodeOptions("h264"))
    assert numbers(clip, recipe) == [0, 1, 2, 3, 16, 17, 18, 19, 20]
    assert times(clip) == [Fraction(n, 25) for n in range(9)]


def test_damage_is_not_concealed(tmp_path: Path) -> None:
    source = write(Recipe(frames=60, gop=30), tmp_path / "source.mp4")
    flip_bytes(source, 0.5, 0.51, 0.52)
    (tmp_path / "in").mkdir()
    clip = store_clip(source, tmp_path / "in")
    with pytest.raises(VideoError, match=r"frame [0-9]+ of it is damaged or missing"):
        transcode(clip, tmp_path / "out.mp4", TranscodeOptions("h264"))
    lost = without_packets(write(Recipe(frames=60, gop=30), source), tmp_path / "lost.mp4", 40)
    with pytest.raises(VideoError, match="reference pictures are missing before its packet 40"):
        transcode(store_clip(lost, tmp_path / "in"), tmp_path / "out.mp4", TranscodeOptions("h264"))


def test_alpha_is_dropped_and_rgb_becomes_bt601(tmp_path: Path) -> None:
    picture = np.zeros((96, 160, 4), dtype=np.uint8)
    picture[:, :, 3] = 255
    picture[:, :80, 0] = picture[:, 80:, 2] = 255  # red beside blue
    frame = av.VideoFrame.from_ndarray(picture, format="rgba")
    encode(
        TimedFrames([TimedFrame(frame, 0, 1)], Fraction(1, 25), Fraction(25)),
        tmp_path / "a.mp4",
        TranscodeOptions("h264"),
    )
    clip = store_clip(tmp_path / "a.mp4", tmp_path)
    assert (clip.pix_fmt, clip.color_space, clip.color_range) == ("yuv420p", "smpte170m", "tv")
    (shown,) = decode_with_pyav(whole(clip))
    np.testing.assert_allclose(shown[48, 20], [255, 0, 0], atol=8)
    np.testing.assert_allclose(shown[48, 140], [0, 0, 255], atol=8)


def test_frames_at_the_same_time_are_a_tick_apart(tmp_path: Path) -> None:
    """As a recorder writes them that rounds to its clock. A copy has them as they are."""
    made, source = write(Recipe(frames=12, b_frames=0, gop=6), tmp_path / "made.mkv"), tmp_path / "a.mkv"
    with remuxing(made, source) as copy:
        for number, packet in enumerate(copy.packets):
            packet.pts = packet.dts = 100 * (number // 2)
            packet.time_base = Fraction(1, 1000)
            copy.mux(packet)
    clip = store_clip(source, tmp_path)
    assert times(clip) == [Fraction(number // 2, 10) for number in range(12)]
    encoded = converted(clip, tmp_path / "out", TranscodeOptions())
    assert times(encoded) == [
        Fraction(number // 2, 10) + number % 2 * Fraction(*clip.time_base) for number in range(12)
    ]
    assert numbers(encoded, Recipe(frames=12)) == [*range(12)]


def test_times_must_rise(tmp_path: Path) -> None:
    frame = av.VideoFrame(64, 64, "yuv420p")
    with pytest.raises(VideoError, match="do not rise"):
        encode(
            TimedFrames([TimedFrame(frame, at, at + 1) for at in (0, 5, 5)], Fraction(1, 25), Fraction(25)),
            tmp_path / "a.mp4",
            TranscodeOptions(),
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"codec": "vp8"},
        {"short_side": 4},
        {"max_fps": Fraction(0)},
        {"gop": 0},
        {"crf": 99},
        {"codec": "mjpeg", "crf": 0},
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"choose from|positive"):
        TranscodeOptions(**wrong)


def test_the_stored_sample_description_is_tagged_hvc1(tmp_path: Path) -> None:
    """QuickTime plays nothing else."""
    clip = converted(stored(WIDE, tmp_path / "source"), tmp_path / "out", TranscodeOptions("hevc"))
    assert clip.stsd[20:24] == b"hvc1"
    assert codec_configuration(clip.stsd, b"hvcC")[0] == 1


def test_fields_in_packets_of_their_own_are_no_frames(tmp_path: Path) -> None:
    """As FFmpeg's parser cuts raw and transport streams; a frame is a packet in a dataset."""
    pictures: list[Picture] = ["fields", "frame", "repeated field", "fields"]
    expected = decode_with_pyav(whole(store_clip(write_fields(tmp_path / "together.mp4", pictures * 3), tmp_path)))
    apart = write_fields(tmp_path / "apart.mp4", pictures * 3, apart=True)
    with pytest.raises(CannotCopyError, match=r"single fields.*transcode"):
        store_clip(apart, tmp_path)
    transcode(apart, tmp_path / "encoded.mp4", TranscodeOptions("h264", crf=1))
    made = decode_with_pyav(whole(store_clip(tmp_path / "encoded.mp4", tmp_path)))
    assert made.shape == expected.shape == (12, 160, 160, 3)
    assert np.abs(made.astype(int) - expected).mean() < 4


@pytest.mark.parametrize("container", ["h264", "ts"])
@pytest.mark.parametrize("cut_off", [False, True])
def test_fields_of_which_the_second_has_no_time(container: str, cut_off: bool, tmp_path: Path) -> None:
    """As in broadcasts, with one time for both in a PES packet, and in raw streams: FFmpeg's parser cuts them apart. If
    the file ends within the last field, its frame is left out."""
    pictures: list[Picture] = ["fields", "frame", "repeated field", "fields"]
    together = write_fields(tmp_path / "a.mp4", pictures * 3)
    expected = decode_with_pyav(whole(store_clip(together, tmp_path)))[: 11 if cut_off else 12]
    source = tmp_path / f"a.{container}"
    if container == "ts":
        without_packets(together, source)
    source.write_bytes(source.read_bytes()[: -5000 if cut_off else None])
    options = PackOptions(transcode=TranscodeOptions("h264", crf=1), fps=Fraction(25))
    clip, transcoded = remux_or_build(str(source), source, tmp_path / "clip", options, Retry(), cut_only=False)
    assert transcoded
    assert (CUT_OFF in clip.source_remarks) == cut_off
    made = decode_with_pyav(whole(clip))
    assert made.shape == expected.shape
    assert np.abs(made.astype(int) - expected).mean() < 4
    shown = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(shown, np.arange(len(expected)) / 25, atol=0.0001)


@pytest.mark.parametrize(
    "unit",
    [b"\x09\x10", b"\x0c\xff\xff\x80", b"\x06\x05\x11" + bytes(range(16)) + b"x\x80", b""],
    ids=["delimiter", "filler", "message", "parameter set"],
)
@pytest.mark.parametrize("at", [7, 20])
def test_packets_of_h264_without_a_picture_are_no_frames(unit: bytes, at: int, tmp_path: Path) -> None:
    """Some recorders make packets of delimiters, filler, messages or parameter sets alone, in the midst or at the end.
    FFmpeg's decoder calls them invalid, and players go on."""
    source, target = write(Recipe(frames=20, gop=10, b_frames=2), tmp_path / "a.mp4"), tmp_path / "b.mp4"
    with remuxing(source, target) as copy:
        avcc, packets = copy.stream.codec_context.extradata or b"", copy.packets
        unit = unit or avcc[8 : 8 + int.from_bytes(avcc[6:8], "big")]  # its SPS (ISO/IEC 14496-15, 5.3.3.1.2)
        base, ticks = packets[0].time_base, packets[0].duration or 1
        more = av.Packet(len(unit).to_bytes(4, "big") + unit)
        more.dts = (packets[at].dts or 0) - 1 if at < 20 else (packets[-1].dts or 0) + ticks
        more.pts, more.time_base = more.dts + 8 * ticks, base
        for packet in [*packets[:at], more, *packets[at:]]:
            copy.mux(packet)
    clip, transcoded = remux_or_build(str(target), target, tmp_path / "clip", PackOptions(), Retry(), cut_only=False)
    assert transcoded
    frames = decode_with_pyav(whole(clip))
    assert [read_frame_number(frame) for frame in frames] == [*range(20)]
