"""Every container is opened by its content: the right frames at the right times, and no other file or URL."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from streamvid.decode.cpu import decode_with_pyav
from streamvid.errors import InputError, VideoError
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.packing.prepare import remux_or_build, transcode_if_needed
from streamvid.storage.retry import Retry
from streamvid.video import recordings
from streamvid.video.containers import FORMATS, RAW_STREAMS
from streamvid.video.encoders import leave_real_time
from streamvid.video.missing_times import fill_times
from streamvid.video.probe import CannotCopyError, VideoFile, open_video
from streamvid.video.remux import remux_with_ffmpeg, store_clip
from streamvid.video.stored_clip import CUT_OFF, UNNUMBERED, StoredClip
from streamvid.video.timestamps import decoded_times
from streamvid.video.transcode import TranscodeOptions
from tests.support import images, mpeg4
from tests.support.clips import decoded_pictures, frames_of, write
from tests.support.packed import packing_inline
from tests.support.reference import slice_of
from tests.support.remux import remuxing
from tests.support.serving import Handler, serving
from tools.clips import Recipe, read_frame_number
from tools.pictures import Image, draw_frame_number
from tools.recipes import Codec

FRAMES, RATE, WIDTH, HEIGHT = 15, 30, 176, 144
_X264 = {"x264-params": "keyint=6:min-keyint=6:bframes=2:scenecut=0:log-level=none"}
_X265 = {"x265-params": "keyint=6:min-keyint=6:bframes=2:log-level=none:pools=1:frame-threads=1"}
_MPEG = {"bf": "2", "g": "6", "qmin": "2", "qmax": "3"}


def encode(
    path: Path, muxer: str, codec: str, pix_fmt: str = "yuv420p", *, rate: int = RATE, frames: int = FRAMES,
    options: dict[str, str] | None = None, size: tuple[int, int] = (WIDTH, HEIGHT), sound: str = "",
    numbered: bool = True, noisy: bool = False, times: Sequence[int] | None = None,
) -> Path:  # fmt: skip
    """Frames with their numbers drawn on them, in a container that tools/recipes.py does not know.

    Args:
        noisy: with noise around the numbers, so that no two frames fit into a pack.
        times: when each is shown, in periods of the rate; default: one after the other.
    """
    with av.open(str(path), "w", format=muxer, options={"fflags": "+bitexact"}) as output:
        stream: Any = output.add_stream(codec, rate=rate, options=options or {})
        stream.width, stream.height, stream.pix_fmt = *size, pix_fmt
        stream.codec_context.thread_count = 1
        audio: Any = output.add_stream(sound, rate=48000) if sound else None

        def picture(number: int) -> Image:
            if noisy:
                made = np.random.default_rng(number).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
            else:
                made = np.full((size[1], size[0], 3), 4 * number % 256, dtype=np.uint8)
            if numbered:
                draw_frame_number(made, number)
            return made

        for number, frame in enumerate(frames_of(map(picture, range(frames)), pix_fmt)):
            frame.pts, frame.time_base = times[number] if times else number, Fraction(1, rate)
            output.mux(stream.encode(frame))
            leave_real_time()
            if sound:
                silence = av.AudioFrame.from_ndarray(np.zeros((1, 2304), np.int16), "s16", "stereo")
                silence.sample_rate = 48000
                output.mux(audio.encode(silence))
        output.mux(stream.encode(None))
        if sound:
            output.mux(audio.encode(None))
    return path


def prepare(source: Path, folder: Path, **options: Any) -> tuple[StoredClip, bool]:
    folder.mkdir()
    clip, transcoded = remux_or_build(str(source), source, folder, PackOptions(**options), Retry(), cut_only=False)
    return clip.as_file(folder / "stored.mp4"), transcoded


def decoded(path: Path) -> list[np.ndarray[Any, Any]]:
    with open_video(path) as container:
        container.streams.video[0].codec_context.thread_count = 1
        return decoded_pictures(container.decode(video=0))


def check(source: Path, folder: Path, *, copied: bool, rate: int = RATE, frames: int = FRAMES, **options: Any) -> None:
    """The frames of a sequential decode, bit for bit where packets are copied, a frame's duration apart."""
    clip, transcoded = prepare(source, folder, **options)
    assert transcoded is not copied
    expected, stored = decoded(source), decoded(clip.mp4)
    assert [read_frame_number(picture) for picture in stored] == list(range(frames))
    if copied:
        assert len(stored) == len(expected)
        assert all(np.array_equal(a, b) for a, b in zip(stored, expected, strict=True))
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(seconds, np.arange(frames) / rate, atol=0.0011)  # FLV, ASF and RealMedia count in ms


COPIED = {
    "h264.mpg": ("mpeg", "libx264", _X264),
    "hevc.vob": ("vob", "libx265", _X265),
    "h264.flv": ("flv", "libx264", _X264),
    "hevc.flv": ("flv", "libx265", _X265),
    "h264.asf": ("asf", "libx264", _X264),
    "mpeg4.asf": ("asf", "mpeg4", _MPEG),
    "h264.mxf": ("mxf", "libx264", _X264),
    "h264.nut": ("nut", "libx264", _X264),
    "mpeg4.nut": ("nut", "mpeg4", _MPEG),
    "vp9.ivf": ("ivf", "libvpx-vp9", {"deadline": "realtime"}),
    "vp8.ivf": ("ivf", "libvpx", {"deadline": "realtime"}),
    "vp8.ogv": ("ogg", "libvpx", {"deadline": "realtime"}),
    "raw.h264": ("h264", "libx264", _X264),
    "raw.h265": ("hevc", "libx265", _X265),
}


@pytest.mark.parametrize("name", COPIED)
def test_packets_are_copied_out_of(name: str, tmp_path: Path) -> None:
    muxer, codec, options = COPIED[name]
    # The name says nothing: the content decides.
    source = encode(tmp_path / "%03d.png", muxer, codec, options=options)
    check(source, tmp_path / "clip", copied=True)


@pytest.mark.parametrize("name", ["raw.h264", "raw.h265"])
def test_a_raw_stream_may_have_further_layers(name: str, tmp_path: Path) -> None:
    """FFmpeg does not know such a stream by its content: a unit of SVC, or of a second view, behind each slice."""
    muxer, codec, options = COPIED[name]
    source = encode(tmp_path / "raw", muxer, codec, options=options)
    first, *units = re.split(rb"\0*\0\0\x01", source.read_bytes())
    of_layer = b"\x74\x80\0\7\x80" if name == "raw.h264" else b"\2\x09\x80"
    slices = range(1, 6) if name == "raw.h264" else range(22)
    kind = (lambda unit: unit[0] & 31) if name == "raw.h264" else (lambda unit: unit[0] >> 1)
    layered = [part for unit in units for part in ((unit, of_layer) if kind(unit) in slices else (unit,))]
    source.write_bytes(first + b"".join(b"\0\0\0\1" + unit for unit in layered))
    check(source, tmp_path / "clip", copied=True)


TRANSCODED: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "mpeg2.mpg": ("mpeg", "mpeg2video", "yuv420p", _MPEG),
    "mpeg1.mpg": ("mpeg", "mpeg1video", "yuv420p", _MPEG),
    "mpeg2.vob": ("dvd", "mpeg2video", "yuv420p", _MPEG),
    "raw.m2v": ("mpeg2video", "mpeg2video", "yuv420p", _MPEG),
    "raw.m1v": ("mpeg1video", "mpeg1video", "yuv420p", _MPEG),
    "mpeg2.mxf": ("mxf", "mpeg2video", "yuv420p", _MPEG),
    "mpeg2.asf": ("asf", "mpeg2video", "yuv420p", _MPEG),
    "mpeg1.avi": ("avi", "mpeg1video", "yuv420p", _MPEG),
    "mpeg2.nut": ("nut", "mpeg2video", "yuv420p", _MPEG),
    "mpeg2.wtv": ("wtv", "mpeg2video", "yuv420p", _MPEG),
    "sorenson.flv": ("flv", "flv", "yuv420p", {}),
    "wmv2.wmv": ("asf", "wmv2", "yuv420p", {}),
    "rv20.rm": ("rm", "rv20", "yuv420p", {}),
    "flash.swf": ("swf", "flv", "yuv420p", {}),
    "a.gif": ("gif", "gif", "rgb8", {}),
    "a.apng": ("apng", "apng", "rgb24", {}),
    "a.y4m": ("yuv4mpegpipe", "wrapped_avframe", "yuv420p", {}),
    "ffv1.nut": ("nut", "ffv1", "yuv420p", {}),
}


@pytest.mark.parametrize("name", TRANSCODED)
def test_frames_are_transcoded_out_of(name: str, tmp_path: Path) -> None:
    muxer, codec, pix_fmt, options = TRANSCODED[name]
    rate = 25 if name == "a.gif" else RATE  # GIF counts in hundredths
    source = encode(tmp_path / name, muxer, codec, pix_fmt, options=options, rate=rate)
    check(source, tmp_path / "clip", copied=False, rate=rate)


def test_an_edit_list_that_hides_all_of_what_is_transcoded_is_named(tmp_path: Path) -> None:
    source = encode(tmp_path / "a.mp4", "mp4", "mpeg2video", options=_MPEG)
    data = bytearray(source.read_bytes())
    struct.pack_into(">i", data, data.index(b"elst") + 16, 1 << 30)  # media_time of the first edit
    source.write_bytes(data)
    with pytest.raises(VideoError, match="all its frames are hidden by an edit list"):
        prepare(source, tmp_path / "clip")


def test_times_that_ffmpeg_makes_up(tmp_path: Path) -> None:
    """In a pack that begins several pictures of MPEG-2 FFmpeg guesses their times: at the end, one for two of them."""
    source = encode(
        tmp_path / "a.vob", "vob", "mpeg2video", rate=25, frames=62, options={"bf": "2", "g": "12"}, sound="mp2",
        size=(320, 192), numbered=False,
    )  # fmt: skip
    with open_video(source) as container:
        times = [packet.pts for packet in container.demux(video=0) if packet.size]
    assert len(set(times)) < len(times)
    clip, _ = prepare(source, tmp_path / "clip")
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(seconds, np.arange(62) / 25, atol=1e-4)


_VARIABLE = [5 * number + number * 7 % 11 // 2 for number in range(24)]


@pytest.mark.parametrize("times", [_VARIABLE, [0, *range(9, 31), 60]], ids=["variable", "pauses"])
def test_a_program_stream_of_a_variable_rate(times: list[int], tmp_path: Path) -> None:
    """Also with a pause behind the first frame, and one before the last. Frames that share a pack have one time."""
    source = encode(
        tmp_path / "a.mpg", "mpeg", "libx264", options=_X264, frames=24, times=times, size=(64, 64), noisy=True
    )
    with open_video(source, fill_times=False) as container:
        stored = [packet.pts for packet in container.demux(video=0) if packet.pts is not None]
    assert 12 < len(stored) < 24
    clip, _ = prepare(source, tmp_path / "clip")
    assert [read_frame_number(picture) for picture in decoded(clip.mp4)] == list(range(24))
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    said = (np.array(stored) - stored[0]) / 90_000
    assert np.isin(said.round(3), (np.array(times) / RATE).round(3)).all()
    assert np.isin(said.round(3), seconds.round(3)).all()


@pytest.mark.parametrize(("times", "filled"), [
    ({0: 0, 2: 60, 5: 120, 7: 240}, [0, 30, 60, 80, 100, 120, 180, 240, 250]),
    ({0: 0, 3: 60, 4: 60, 8: 160}, [0, 20, 40, 60, 80, 100, 120, 140, 160]),  # one of two frames has the other's time
    ({0: 0, 1: 10, 2: 20, 4: 40, 6: 50, 8: 80}, [0, 10, 20, 30, 40, 50, 60, 70, 80]),  # a time too early
    ({0: 0, 1: 10, 2: 20, 4: 40, 6: 70, 8: 80}, [0, 10, 20, 30, 40, 50, 60, 70, 80]),
    ({0: 0, 2: 20, 4: 40, 6: 60, 8: 300}, [0, 10, 20, 30, 40, 50, 60, 180, 300]),
    ({0: 0, 2: 50, 3: 30, 4: 40, 5: 50, 8: 80}, [0, 10, 20, 30, 40, 50, 60, 70, 80]),  # the time of a later frame
    ({0: 0, 1: 200, 2: 210, 3: 220, 4: 210, 5: 0, 6: 10, 7: 20, 8: 30}, [0, 200, 210, 220, 230, 240, 250, 260, 270]),
])  # fmt: skip
def test_frames_without_times_between_those_with_times(times: dict[int, int], filled: list[int]) -> None:
    stored = np.array([times.get(number, -(1 << 63)) for number in range(9)])
    assert fill_times(stored, np.full(9, 10)).tolist() == filled


@pytest.mark.parametrize(("muxer", "codec", "options"), [("vob", "mpeg2video", _MPEG), ("mpeg", "libx264", _X264)])
def test_recordings_that_were_joined(muxer: str, codec: str, options: dict[str, str], tmp_path: Path) -> None:
    """Joined byte by byte, as `cat` does it, the clock begins anew: the second part comes behind the first."""
    source = encode(tmp_path / "a", muxer, codec, options=options, frames=24)
    source.write_bytes(2 * source.read_bytes())
    clip, _ = prepare(source, tmp_path / "clip")
    assert [read_frame_number(picture) for picture in decoded(clip.mp4)] == 2 * list(range(24))
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(seconds, np.arange(48) / RATE, atol=1e-4)


@pytest.mark.parametrize("muxer", ["mpeg", "mpegts"])
def test_another_track_begins_in_the_middle(muxer: str, tmp_path: Path) -> None:
    """As subtitles do on a DVD, and audio where a broadcast changes: FFmpeg finds it neither at the start nor at the
    end, and PyAV asks for its last packet."""
    noise: dict[str, Any] = {"options": _X264, "frames": 24, "noisy": True}
    silent = encode(tmp_path / "silent", muxer, "libx264", **noise).read_bytes()
    begins = (5 << 20) // len(silent) + 1  # FFmpeg looks at 5 MB at the start, and at less at the end
    middle = encode(tmp_path / "middle", muxer, "libx264", sound="mp2", **noise).read_bytes()
    source = tmp_path / "a"
    source.write_bytes(begins * silent + middle + silent)
    with open_video(source) as container, pytest.raises(IndexError):
        list(container.demux(video=0))
    clip, _ = prepare(source, tmp_path / "clip")
    assert [read_frame_number(picture) for picture in decoded(clip.mp4)] == (begins + 2) * list(range(24))


def _pieces(path: Path) -> tuple[list[bytes], list[int]]:
    """The pieces of a transport stream of FFmpeg's, and which of them begin a packet of its video."""
    data = path.read_bytes()
    pieces = [data[at : at + 188] for at in range(0, len(data), 188)]
    return pieces, [n for n, piece in enumerate(pieces) if int.from_bytes(piece[1:3], "big") == 0x4100]


@pytest.mark.parametrize(
    ("codec", "options"), [("libx264", _X264), ("libx265", _X265), ("mpeg4", _MPEG), ("mpeg2video", _MPEG)]
)
@pytest.mark.parametrize("m2ts", [False, True])
def test_transport_streams_that_were_joined(
    codec: str, options: dict[str, str], m2ts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FFmpeg takes the last packet before a join for a damaged one, as pieces of it may be missing. The clock begins
    anew, too."""
    monkeypatch.setattr(recordings, "_BLOCK", 5)  # PES packets lie in several blocks
    source = encode(tmp_path / "a.ts", "mpegts", codec, options=options, frames=24)
    if m2ts:
        source.write_bytes(b"".join(bytes(4) + piece for piece in _pieces(source)[0]))
    expected = decoded(source)
    source.write_bytes(3 * source.read_bytes())
    clip, transcoded = prepare(source, tmp_path / "clip")
    stored = decoded(clip.mp4)
    assert [read_frame_number(picture) for picture in stored] == 3 * list(range(24))
    assert transcoded or all(map(np.array_equal, stored, 3 * expected))
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(seconds, np.arange(72) / RATE, atol=1e-4)


@pytest.mark.parametrize(("codec", "options"), [("libx264", _X264), ("mpeg2video", _MPEG)])
@pytest.mark.parametrize(
    ("muxer", "ticks", "hours"), [("mpegts", 90_000, 8), ("nut", 1_000_000, 1), ("matroska", 1000, 40)]
)
def test_pauses_that_are_too_long_for_the_ticks_of_an_mp4(
    codec: str, options: dict[str, str], muxer: str, ticks: int, hours: int, tmp_path: Path
) -> None:
    """As of a camera that records only when something moves."""
    whole = encode(tmp_path / "whole.mp4", "mp4", codec, options=options, frames=24)
    path = tmp_path / "paused"
    with (
        av.open(str(whole), options={"ignore_editlist": "1"}) as source,
        av.open(str(path), "w", format=muxer) as output,
    ):
        track = output.add_stream_from_template(source.streams.video[0], opaque=True)
        track.time_base = Fraction(1, ticks)
        packets = [packet for packet in source.demux(video=0) if packet.size]
        key = next(number for number, packet in enumerate(packets) if number and packet.is_keyframe)
        shown = sorted(packet.pts for packet in packets).index(min(packet.pts for packet in packets[key:]))
        for number, packet in enumerate(packets):
            scale = ticks * packet.time_base
            pause = 3600 * hours * ticks * (number >= key) + ticks
            packet.pts, packet.dts = round(packet.pts * scale) + pause, round(packet.dts * scale) + pause
            packet.stream, packet.time_base, packet.duration = track, track.time_base, 0
            output.mux(packet)
    clip, transcoded = prepare(path, tmp_path / "clip")
    assert transcoded == (codec == "mpeg2video")
    assert [read_frame_number(picture) for picture in decoded(clip.mp4)] == list(range(24))
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    times = np.arange(24) / RATE + 3600 * hours * (np.arange(24) >= shown)
    np.testing.assert_allclose(seconds, times, rtol=0, atol=0.0011)


@pytest.mark.parametrize("lost", ["first piece", "middle piece", "last piece", "packet", "end of the first part"])
@pytest.mark.parametrize("block", [5, 1 << 18])
def test_transport_streams_of_which_pieces_are_missing(
    lost: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "_BLOCK", block)
    options = {"x264-params": f"{_X264['x264-params']}:cabac=0"}
    source = encode(tmp_path / "a.ts", "mpegts", "libx264", options=options, size=(1280, 720))
    pieces, starts = _pieces(source)
    begin, end = starts[6], starts[7]  # a key frame
    video = [n for n in range(begin, end) if pieces[n][1] & 0x1F == 1]
    assert len(video) > 2
    gone = {
        "first piece": video[:1], "middle piece": video[1:2], "last piece": video[-1:], "packet": video,
        "end of the first part": range(video[-1], len(pieces)),
    }[lost]  # fmt: skip
    kept = [piece for n, piece in enumerate(pieces) if n not in gone]
    source.write_bytes(b"".join(kept + pieces))
    with pytest.raises(VideoError, match="a packet in it is damaged or cut off"):
        prepare(source, tmp_path / "clip")
    with pytest.raises(ValueError, match="a packet in it is damaged or cut off"):  # where it is transcoded
        decoded_times(VideoFile(source), "h264", "mpegts")


@pytest.mark.parametrize(
    ("muxer", "codec"),
    [
        ("mpegts", "mpeg2video"), ("flv", "flv"), ("avi", "wmv2"), ("mpeg", "mpeg2video"), ("vob", "libx264"),
        ("asf", "wmv2"), ("asf", "mjpeg"), ("nut", "libx264"), ("nut", "mpeg4"), ("mxf", "mpeg2video"),
        ("ivf", "libvpx"), ("h264", "libx264"), ("mpeg2video", "mpeg2video"), ("m4v", "mpeg4"), ("mjpeg", "mjpeg"),
    ],
)  # fmt: skip
def test_what_is_cut_off_within_its_last_frame(muxer: str, codec: str, tmp_path: Path) -> None:
    """As recordings that were killed and downloads that broke off are; what is transcoded, too, goes as far as it is
    whole."""
    options = {
        "libx264": {"x264-params": "keyint=6:bframes=0:log-level=none"},
        "libvpx": {"deadline": "realtime"},
    }.get(codec, {"qmin": "2", "qmax": "3", "g": "6"})
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    source = encode(tmp_path / "a", muxer, codec, pix_fmt, options=options, frames=12, noisy=True)
    data = source.read_bytes()
    end = data.rindex(b"idx1") if muxer == "avi" else len(data)
    source.write_bytes(data[: end - (500 if muxer == "ivf" else 4000)])
    clip, transcoded = prepare(source, tmp_path / "clip", fps=Fraction(RATE))
    assert transcoded == (codec in ("mpeg2video", "flv", "wmv2"))
    assert CUT_OFF in clip.source_remarks
    assert [read_frame_number(picture) for picture in decoded(clip.mp4)] == [*range(11)]
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(seconds, np.arange(11) / RATE, atol=0.0011)


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
def test_a_whole_transport_stream_whose_last_piece_is_full(codec: str, tmp_path: Path) -> None:
    """Such as one in 184 is: nothing in its pieces tells that the last frame is whole."""
    source = encode(tmp_path / "a.ts", "mpegts", codec, options=_X264 if codec == "libx264" else _MPEG, frames=24)
    data = source.read_bytes()
    payload = data[-184 + 1 + data[-184] :]
    assert data[-185] & 0x20  # adaptation_field_control (ISO/IEC 13818-1, 2.4.3.3): stuffing; zeros come in its place
    source.write_bytes(data[:-185] + bytes([data[-185] & ~0x20]) + payload + bytes(184 - len(payload)))
    clip, _ = prepare(source, tmp_path / "clip")
    assert CUT_OFF not in clip.source_remarks
    assert [read_frame_number(picture) for picture in decoded(clip.mp4)] == [*range(24)]


def test_a_flash_video_whose_parameter_sets_change(tmp_path: Path) -> None:
    """As a live stream that began again with other settings is recorded: a copy would have two sample descriptions."""
    first = encode(tmp_path / "a.flv", "flv", "libx264", options=_X264)
    other = {"x264-params": f"{_X264['x264-params']}:cabac=0:ref=1:8x8dct=0"}
    data, joined = encode(tmp_path / "b.flv", "flv", "libx264", options=other).read_bytes(), first.read_bytes()
    at = 13
    while at < len(data):  # tags: type, size, time in ms (Adobe Flash Video File Format Specification 10.1, E.4.1)
        end = at + 15 + int.from_bytes(data[at + 1 : at + 4], "big")
        later = int.from_bytes(data[at + 4 : at + 7], "big") + 1000 * FRAMES // RATE
        joined += data[at : at + 4] + later.to_bytes(3, "big") + data[at + 7 : end]
        at = end
    first.write_bytes(joined)
    with pytest.raises(CannotCopyError, match="more than one sample description"):
        store_clip(first, tmp_path)
    clip, transcoded = prepare(first, tmp_path / "clip")
    assert transcoded
    assert [read_frame_number(picture) for picture in decoded(clip.mp4)] == 2 * list(range(FRAMES))


@pytest.mark.parametrize(("codec", "options"), [("flv", {}), ("libx264", _X264)])
def test_a_flash_video_whose_clock_begins_anew(codec: str, options: dict[str, str], tmp_path: Path) -> None:
    """It counts ms up to 2^31, 24 days, as of a server that runs on; it was said to have a pause of 597 hours."""
    begin = (1 << 31) * RATE // 1000 - 7
    times = range(begin, begin + FRAMES)
    source = encode(tmp_path / "a.flv", "flv", codec, options=options, times=times)
    with open_video(source) as container:
        seen = [packet.dts for packet in container.demux(video=0) if packet.size]
    assert np.abs(np.diff(seen)).max() > 1 << 30
    check(source, tmp_path / "clip", copied=codec == "libx264")


def test_a_recording_of_which_there_is_a_header_alone(tmp_path: Path) -> None:
    source = _write_matroska(tmp_path / "a.mkv", b"V_VP8", b"", (64, 64), [])
    source.write_bytes(source.read_bytes()[:52])
    with pytest.raises(VideoError, match="it ends with its header: it is cut off, or its recording was"):
        prepare(source, tmp_path / "clip")


def test_a_recording_that_was_stopped_before_its_first_frame(tmp_path: Path) -> None:
    """It was said to have no IDR picture."""
    source = encode(tmp_path / "a.flv", "flv", "libx264", options=_X264)
    data, at = source.read_bytes(), 13
    while data[at] != 9 or data[at + 12] != 1:  # a video tag of AVCPacketType 1, a NAL unit (E.4.3.1)
        at += 15 + int.from_bytes(data[at + 1 : at + 4], "big")
    source.write_bytes(data[:at])
    with pytest.raises(VideoError, match="its video track is empty: it holds no packet"):
        prepare(source, tmp_path / "clip")


def test_an_initialization_segment_alone(tmp_path: Path) -> None:
    """As init.mp4 beside the .m4s of HLS and DASH."""
    source = write(Recipe(frames=6, muxer=(("movflags", "frag_keyframe+empty_moov"),)), tmp_path / "a.mp4")
    source.write_bytes(source.read_bytes()[: source.read_bytes().index(b"moof") - 4])
    with pytest.raises(VideoError, match="no packet; if it is an initialization segment, join its segments behind it"):
        prepare(source, tmp_path / "clip")


@pytest.mark.parametrize(("codec", "options"), [("libx264", _X264), ("mpeg2video", _MPEG), ("libx265", _X265)])
def test_a_transport_stream_whose_packets_are_not_numbered(codec: str, options: dict[str, str], tmp_path: Path) -> None:
    """Some recorders leave continuity_counter (ISO/IEC 13818-1, 2.4.3.2) at 0. FFmpeg then marks each packet as
    corrupt, and decodes all. Of HEVC it does not notice when some are lost."""
    frames = 200
    source = encode(tmp_path / "a.ts", "mpegts", codec, options=options, frames=frames, noisy=True)
    data = bytearray(source.read_bytes())
    data[3::188] = bytes(number & 0xF0 for number in data[3::188])
    source.write_bytes(data)
    if codec == "libx265":
        with pytest.raises(VideoError, match="damaged"):
            prepare(source, tmp_path / "clip")
        return
    clip, _ = prepare(source, tmp_path / "clip")
    assert clip.source_remarks == (UNNUMBERED,)
    assert [read_frame_number(picture) for picture in decoded(clip.mp4)] == [*range(frames)]
    begins = [at for at in range(0, len(data), 188) if data[at + 1] & 0x41 == 0x41 and data[at + 2] == 0]
    del data[begins[150] + 188 : begins[150] + 2 * 188]  # neither near the start nor the middle
    source.write_bytes(data)
    with packing_inline(), pytest.raises(InputError, match=r"damaged|do not decode"):
        pack([source], tmp_path / "set", progress=False)


def test_a_transport_stream_whose_clock_falls_back_by_a_few_frames(tmp_path: Path) -> None:
    source = encode(tmp_path / "a.ts", "mpegts", "libx264", options={**_X264, "bf": "0"}, frames=3)
    data = bytearray(2 * source.read_bytes())
    counters: dict[int, int] = {}
    for at in range(0, len(data), 188):  # continuity_counter (ISO/IEC 13818-1, 2.4.3.2): no packet seems to be missing
        pid = int.from_bytes(data[at + 1 : at + 3], "big") & 0x1FFF
        counters[pid] = counters.get(pid, -1) + (data[at + 3] >> 4 & 1)
        data[at + 3] = data[at + 3] & 0xF0 | counters[pid] & 15
    source.write_bytes(data)
    with pytest.raises(VideoError, match="its clock falls back, as where recordings were joined"):
        prepare(source, tmp_path / "clip")


@pytest.mark.parametrize(
    ("codec", "name", "b_frames"),
    [("h264", "V_MPEG4/ISO/AVC", 0), ("hevc", "V_MPEGH/ISO/HEVC", 3), ("mpeg4", "V_MPEG4/ISO/ASP", 2)],
)
def test_a_clock_that_is_set_between_key_frames(codec: Any, name: str, b_frames: int, tmp_path: Path) -> None:
    """As a camera's that asks for the time, or for five frames. Sorted, the times are those of other frames."""
    recipe = Recipe(codec=codec, frames=60, gop=60, b_frames=b_frames, width=160, height=144)
    with av.open(str(write(recipe, tmp_path / "a.mp4"))) as container:
        stream: Any = container.streams.video[0]
        packets: list[Any] = [packet for packet in container.demux(stream) if packet.size]
        times = [2000 + round(1000 * packet.pts * stream.time_base) for packet in packets]
        private = stream.codec_context.extradata
    for end, by in ((30, 0), (60, -200), (60, -1000), (60, -1900), (35, 20_000)):
        moved = [time + by * (30 <= number < end) for number, time in enumerate(times)]
        source = _write_matroska(
            tmp_path / "a.mkv", name.encode(), private, (160, 144), zip(moved, packets, strict=True)
        )
        folder = tmp_path / f"clip {by}"
        if by:
            with pytest.raises(VideoError, match="its clock falls back: copy it to a raw stream"):
                prepare(source, folder)
        else:
            clip, _ = prepare(source, folder)
            assert [read_frame_number(picture) for picture in decoded(clip.mp4)] == list(range(60))


@pytest.mark.parametrize(("codec", "name"), [("h264", "V_MPEG4/ISO/AVC"), ("vp8", "V_VP8")])
def test_a_key_frame_whose_time_alone_falls_back(codec: Any, name: str, tmp_path: Path) -> None:
    """No recording begins there: those that follow it would have come a second late."""
    recipe = Recipe(codec=codec, container="mkv", frames=90, gop=30, b_frames=0, width=160, height=144)
    with av.open(str(write(recipe, tmp_path / "a.mkv"))) as container:
        stream: Any = container.streams.video[0]
        packets: list[Any] = [packet for packet in container.demux(stream) if packet.size]
        times = [2000 + round(1000 * packet.pts * stream.time_base) for packet in packets]
        private = stream.codec_context.extradata or b""
    times[60] -= 1000
    source = _write_matroska(tmp_path / "b.mkv", name.encode(), private, (160, 144), zip(times, packets, strict=True))
    with pytest.raises(VideoError, match="its clock falls back"):
        prepare(source, tmp_path / "clip")
    times[60] += 1000

    def longest(name_of_file: str, *falls: int) -> float:
        """The longest time of a frame, in frames, if those from the last key frame on are so much earlier each."""
        later = [time - falls[min(number, len(falls) - 1)] for number, time in enumerate(times[60:])]
        pairs = zip([*times[:60], *later], packets, strict=True)
        joined = _write_matroska(tmp_path / f"{name_of_file}.mkv", name.encode(), private, (160, 144), pairs)
        clip, _ = prepare(joined, tmp_path / name_of_file)
        return float(np.diff(clip.index.frame_pts).max() * clip.time_base[0] / clip.time_base[1] * recipe.fps)

    assert longest("as-long", 1000) < 2
    assert longest("longer", 700) < 2  # than what it falls back by
    assert 30 < longest("pause", 1000, -1000) < 63


@pytest.mark.parametrize(("by", "longest"), [(1000, 1.2), (1700, 1.2), (400, 1.2), (-900, 28)])
def test_a_clock_that_falls_back_for_one_group(by: int, longest: float, tmp_path: Path) -> None:
    """By its length, half or twice that: the next one was said to come behind a pause of the same length. A clock that
    is ahead for a group is in a pause."""
    recipe = Recipe(container="mkv", frames=120, gop=30, b_frames=0, width=160, height=144)
    with av.open(str(write(recipe, tmp_path / "a.mkv"))) as container:
        stream: Any = container.streams.video[0]
        packets: list[Any] = [packet for packet in container.demux(stream) if packet.size]
        times = [2000 + round(1000 * packet.pts * stream.time_base) for packet in packets]
        private = stream.codec_context.extradata or b""
    moved = [time - by * (60 <= number < 90) for number, time in enumerate(times)]
    source = _write_matroska(
        tmp_path / "b.mkv", b"V_MPEG4/ISO/AVC", private, (160, 144), zip(moved, packets, strict=True)
    )
    clip, _ = prepare(source, tmp_path / "clip")
    steps = np.diff(clip.index.frame_pts) * clip.time_base[0] / clip.time_base[1] * recipe.fps
    assert longest - 0.3 < steps.max() < longest + 0.3


def test_a_frame_that_is_decoded_before_sixteen_others(tmp_path: Path) -> None:
    """Its clock does not fall back."""
    options = {"x264-params": "bframes=16:b-adapt=0:b-pyramid=none:scenecut=0:threads=1:keyint=60"}
    check(
        encode(tmp_path / "a.mkv", "matroska", "libx264", options=options, frames=40),
        tmp_path / "clip",
        copied=True,
        frames=40,
    )


def test_dv_is_transcoded(tmp_path: Path) -> None:
    source = encode(tmp_path / "a.dv", "dv", "dvvideo", rate=25, frames=5, size=(720, 576))
    check(source, tmp_path / "clip", copied=False, rate=25, frames=5)


# Raw streams


@pytest.mark.parametrize(("codec", "options"), [("mpeg2video", _MPEG), ("libx264", _X264)])
def test_a_program_stream_without_times_is_shown_at_its_rate(
    codec: str, options: dict[str, str], tmp_path: Path
) -> None:
    """As a raw stream is; MPEG-2 in it was rejected."""
    source = encode(tmp_path / "a.vob", "vob", codec, options=options, noisy=True)
    data = bytearray(source.read_bytes())
    for found in re.finditer(rb"\x00\x00\x01[\xe0-\xef]..[\x80-\xbf]", bytes(data), re.DOTALL):
        at = found.end()
        size = {2: 5, 3: 10}.get(data[at] >> 6, 0)  # PTS_DTS_flags
        data[at] &= 0x3F
        data[at + 2 : at + 2 + size] = b"\xff" * size  # stuffing
    source.write_bytes(data)
    with open_video(source) as container:
        assert all(packet.pts is None for packet in container.demux(video=0))
    check(source, tmp_path / "clip", copied=codec == "libx264")


@pytest.mark.parametrize(("muxer", "codec"), [("mjpeg", "mjpeg"), ("h263", "h263"), ("obu", "libsvtav1")])
def test_a_stream_without_a_rate_wants_one(muxer: str, codec: str, tmp_path: Path) -> None:
    pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    options = {"preset": "12", "svtav1-params": "lp=1"} if muxer == "obu" else {}
    source = encode(tmp_path / "raw", muxer, codec, pix_fmt, options=options)
    with pytest.raises(VideoError, match="its frames have no times, and its header states no frame rate: give --fps"):
        prepare(source, tmp_path / "refused")
    check(source, tmp_path / "clip", copied=codec != "h263", rate=12, fps=Fraction(12))


def test_mpeg4_states_times_and_not_a_rate(tmp_path: Path) -> None:
    """Its pictures count full seconds and fractions; B-VOPs from another one than the others do."""
    source = encode(tmp_path / "a.m4v", "m4v", "mpeg4", options=_MPEG, rate=5)
    check(source, tmp_path / "clip", copied=True, rate=5, fps=Fraction(12))


@pytest.mark.parametrize("b_frames", [0, 2])
def test_raw_mpeg4_that_was_joined(b_frames: int, tmp_path: Path) -> None:
    """The clock of each part begins anew, maybe in other ticks. It was said to have no times."""
    source, rates, data = tmp_path / "a.m4v", (5, 5, 7, 5), b""
    for rate in rates:
        data += encode(source, "m4v", "mpeg4", options=_MPEG | {"bf": f"{b_frames}"}, rate=rate).read_bytes()
    source.write_bytes(data)
    clip, transcoded = prepare(source, tmp_path / "clip")
    assert not transcoded
    assert [read_frame_number(picture) for picture in decoded(clip.mp4)] == len(rates) * list(range(FRAMES))
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(np.diff(seconds), np.repeat(1 / np.array(rates), FRAMES)[:-1])


def test_a_raw_packed_bitstream(tmp_path: Path) -> None:
    """Each B-VOP has a VOP behind it that is not coded and has the time of the VOP before: they counted as frames."""
    vops = mpeg4.packed(mpeg4.encoded(tmp_path, b_frames=1))
    source = tmp_path / "a.m4v"
    source.write_bytes(b"".join(one.data for one in vops))
    clip, transcoded = prepare(source, tmp_path / "clip")
    assert not transcoded
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(seconds, np.arange(24) / 25, atol=1e-9)
    for got, expected in zip(decoded(clip.mp4), decoded(source), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", ["raw.m4v", "raw.m2v", "a.mpg"])
def test_a_stream_that_begins_in_the_middle(name: str, tmp_path: Path) -> None:
    """B-frames before which a key frame is missing are not shown."""
    muxer = {"raw.m4v": "m4v", "raw.m2v": "mpeg2video", "a.mpg": "mpeg"}[name]
    codec = "mpeg4" if muxer == "m4v" else "mpeg2video"
    source = encode(tmp_path / name, muxer, codec, options={**_MPEG, "g": "9"}, frames=40)
    data = source.read_bytes()
    source.write_bytes(data[len(data) // 3 :])
    expected = [read_frame_number(picture) for picture in decoded(source)]
    assert expected == list(range(expected[0], 40))
    assert 9 <= expected[0] < 30
    clip, _ = prepare(source, tmp_path / "clip")
    assert len(clip.index.visible) == len(expected)
    assert [read_frame_number(picture) for picture in decoded(clip.mp4)][-len(expected) :] == expected
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(seconds, np.arange(len(expected)) / RATE, atol=1e-4)


@pytest.mark.parametrize("transcoded", [False, True])
@pytest.mark.parametrize("muxer", ["avi", "matroska", "mp4"])
def test_interlaced_mpeg4_that_begins_with_b_frames_of_missing_references(
    muxer: str, transcoded: bool, tmp_path: Path
) -> None:
    """FFmpeg takes the distance of fields from these, and loses all other B-frames. So did an AVI, which is decoded for
    its order; and what was transcoded was said to be damaged."""
    options = {"flags": "+ildct+ilme", "bf": "2", "g": "6", "b_strategy": "0"}
    whole = encode(tmp_path / "a.mp4", "mp4", "mpeg4", options=options, frames=24)
    with remuxing(whole, tmp_path / "b", format=muxer) as copy:
        third = [number for number, packet in enumerate(copy.packets) if packet.is_keyframe][2]
        for packet in copy.packets[third:]:
            copy.mux(packet)
    assert len(decoded(tmp_path / "b")) == 6
    how: dict[str, Any] = {"transcode": TranscodeOptions()} if transcoded else {"compatible_with": "any"}
    clip = transcode_if_needed(prepare(tmp_path / "b", tmp_path / "c", **how)[0], tmp_path, PackOptions(**how))
    pictures = decode_with_pyav(slice_of(clip, range(15)))
    assert [read_frame_number(picture) for picture in pictures] == list(range(9, 24))
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(seconds, np.arange(15) / RATE, atol=0.0011)


def test_motion_jpeg_that_looks_like_a_picture(tmp_path: Path) -> None:
    """FFmpeg takes it for a single picture."""
    source = tmp_path / "a.mjpeg"
    source.write_bytes(FRAMES * images.encode(images.picture(120, 160), "JPEG"))
    clip, transcoded = prepare(source, tmp_path / "clip", fps=Fraction(10))
    assert not transcoded
    assert len(clip.index.visible) == FRAMES


def test_y4m_without_a_rate_wants_one(tmp_path: Path) -> None:
    source = encode(tmp_path / "a.y4m", "yuv4mpegpipe", "wrapped_avframe", frames=3)
    source.write_bytes(source.read_bytes().replace(b" F30:1", b" F0:0", 1))
    with pytest.raises(VideoError, match="give --fps"):
        prepare(source, tmp_path / "refused")
    check(source, tmp_path / "clip", copied=False, frames=3, rate=12, fps=Fraction(12))


@pytest.mark.parametrize("rate", [24, 50])
@pytest.mark.parametrize("name", ["raw.h264", "raw.h265"])
def test_the_rate_in_the_header_wins(name: str, rate: int, tmp_path: Path) -> None:
    muxer, codec, options = COPIED[name]
    source = encode(tmp_path / name, muxer, codec, options=options, rate=rate)
    check(source, tmp_path / "clip", copied=True, rate=rate, fps=Fraction(12))


def test_a_clock_is_no_rate(tmp_path: Path) -> None:
    """An encoder that was fed milliseconds writes 1000 into the header."""
    source = encode(tmp_path / "raw.h264", "h264", "libx264", options=_X264, rate=1000)
    with pytest.raises(VideoError, match="give --fps"):
        prepare(source, tmp_path / "refused")


def test_pulldown_makes_24_frames_last_as_long_as_30(tmp_path: Path) -> None:
    """repeat_first_field shows a frame for three fields: 24 frames take the time of 30."""
    data = bytearray(encode(tmp_path / "a.m2v", "mpeg2video", "mpeg2video", options={"g": "6"}).read_bytes())
    at, pictures = data.find(b"\0\0\1\xb5"), 0
    while at >= 0:
        if data[at + 4] >> 4 == 8:  # picture_coding_extension: top_field_first, repeat_first_field, progressive_frame
            data[at + 7] |= 0x82 if pictures % 2 else 0x80
            data[at + 8] |= 0x80
            pictures += 1
        elif data[at + 4] >> 4 == 1:
            data[at + 5] &= ~0x08  # sequence_extension: not progressive_sequence
        at = data.find(b"\0\0\1\xb5", at + 4)
    (tmp_path / "a.m2v").write_bytes(data)
    clip, _ = prepare(tmp_path / "a.m2v", tmp_path / "clip")
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    fields = np.diff(np.round(seconds * 2 * RATE))
    assert sorted(set(fields.tolist())) == [2, 3]
    assert fields.sum() == round(2.5 * (FRAMES - 1))


# What is refused

PLAYLISTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:1,\n{target}\n#EXT-X-ENDLIST\n",
    "ffconcat": "ffconcat version 1.0\nfile {target}\n",
    "concat": "ffconcat version 1.0\nfile '{target}'\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
    'mediaPresentationDuration="PT1S" profiles="urn:mpeg:dash:profile:isoff-live:2011"><Period><AdaptationSet '
    'mimeType="video/mp4"><Representation id="1" bandwidth="1"><BaseURL>{target}</BaseURL></Representation>'
    "</AdaptationSet></Period></MPD>",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
    "imf": '<?xml version="1.0"?><CompositionPlaylist xmlns="http://www.smpte-ra.org/schemas/2067-3/2016"/>',
    "vobsub": "# VobSub index file, v7\nid: en, index: 0\ntimestamp: 00:00:00:000, filepos: 0\n",
    "avisynth": 'DirectShowSource("{target}")\n',
    "subtitles": "1\n00:00:00,000 --> 00:00:01,000\n{target}\n",
}


@pytest.fixture
def requests() -> Iterator[tuple[str, list[str]]]:
    """A server's URL, and the paths that it was asked for."""
    seen: list[str] = []

    with serving(Handler, answer=lambda handler: (seen.append(handler.path), handler.send(404))) as port:
        yield f"http://127.0.0.1:{port}/secret.ts", seen


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_playlists_are_refused(kind: str, tmp_path: Path, requests: tuple[str, list[str]]) -> None:
    secret = write(Recipe(container="ts", frames=4), tmp_path / "secret.ts")
    url, seen = requests
    for number, target in enumerate([secret, secret.name, url]):
        for extension in ("mp4", "m3u8", "mpd", "idx", "avs"):
            source = tmp_path / f"list{number}.{extension}"
            source.write_text(PLAYLISTS[kind].format(target=target))
            shutil.copy(secret, source.with_suffix(".sub"))
            with pytest.raises(VideoError):
                prepare(source, tmp_path / source.name.replace(".", "-"))
    assert not seen


@pytest.mark.parametrize("name", ["list.txt", "list.tsv", "list.json"])
def test_a_list_in_another_format_is_told_so(name: str, tmp_path: Path) -> None:
    source = tmp_path / name
    source.write_text({"list.json": '[{"path": "ä.mp4"}]'}.get(name, "path\tlabel\nä.mp4\t1\n"))
    with pytest.raises(VideoError, match=r"it is text and no video; a list of videos is a .csv, .jsonl or .parquet"):
        prepare(source, tmp_path / "refused")


@pytest.mark.parametrize("kind", ["ffconcat", "dash", "imf", "sdp", "vobsub", "hls"])
def test_the_reason_says_what_it_is(kind: str, tmp_path: Path) -> None:
    source = tmp_path / "a.mp4"
    source.write_text(PLAYLISTS[kind].format(target="secret.ts"))
    with pytest.raises(VideoError, match=r"it is an? .*(playlist|script|manifest|description|index)"):
        prepare(source, tmp_path / "clip")


NAMES = ["-a.mp4", "concat:b.ts", "subfile,,start,0,end,9,,:a.mp4", "data:video", "http:a", "%03d.gif", "a*?[b].gif"]


@pytest.mark.parametrize("name", NAMES)
def test_names_like_urls_and_patterns_are_plain_files(name: str, tmp_path: Path) -> None:
    source = encode(tmp_path / "source", "gif", "gif", "rgb8", rate=25, frames=4).rename(tmp_path / name)
    encode(tmp_path / "001.gif", "gif", "gif", "rgb8", rate=25, frames=2)
    check(source, tmp_path / "clip", copied=False, rate=25, frames=4)


def test_a_track_in_another_file_is_not_read(tmp_path: Path) -> None:
    """An MOV whose data reference names a file, as QuickTime's reference movies have."""
    source = write(Recipe(container="mov", frames=4), tmp_path / "a.mov")
    data = source.read_bytes()
    at = data.index(b"dref") - 4
    # A reference by path: an alias record (QuickTime File Format, dref) of type 2, absolute path.
    path = str(tmp_path / "secret.mov").encode()
    shutil.copy(source, tmp_path / "secret.mov")
    record = bytes(150) + (2).to_bytes(2, "big") + len(path).to_bytes(2, "big") + path + bytes(len(path) % 2)
    record += b"\xff\xff\0\0"
    alias = (12 + len(record)).to_bytes(4, "big") + b"alis" + bytes(4) + record
    dref = (16 + len(alias)).to_bytes(4, "big") + b"dref" + bytes(4) + (1).to_bytes(4, "big") + alias
    old = int.from_bytes(data[at : at + 4], "big")
    edited = bytearray(data[:at] + dref + data[at + old :])
    for box in (b"moov", b"trak", b"mdia", b"minf", b"dinf"):
        place = data.index(box) - 4
        size = int.from_bytes(edited[place : place + 4], "big") + len(dref) - old
        edited[place : place + 4] = size.to_bytes(4, "big")
    source.write_bytes(edited)
    # FFmpeg would follow it if it were allowed to.
    with av.open(str(source), options={"enable_drefs": "1", "use_absolute_path": "1"}) as container:
        assert sum(packet.size > 0 for packet in container.demux(video=0)) == 4
    with pytest.raises(VideoError):
        prepare(source, tmp_path / "clip")


def test_split_mxf_is_refused(tmp_path: Path) -> None:
    options = {"b": "36M"}
    source = encode(
        tmp_path / "a.mxf", "mxf_opatom", "dnxhd", "yuv422p", rate=25, frames=2, options=options, size=(1920, 1080)
    )
    with pytest.raises(VideoError, match="a part of a split MXF clip"):
        prepare(source, tmp_path / "clip")


def test_no_demuxer_on_the_list_opens_other_files() -> None:
    names = {name for entry in FORMATS for name in entry.split(",")}
    refused = {
        "hls", "dash", "concat", "sdp", "imf", "image2", "image2pipe", "avisynth", "vapoursynth", "lavfi",
        "tty", "vobsub", "mlv", "rtsp", "rtp", "rawvideo", "webm_dash_manifest", "alsa", "fbdev", "v4l2",
        "x11grab", "kmsgrab",
    }  # fmt: skip
    assert not names & refused
    assert names >= RAW_STREAMS
    assert names <= {name for entry in av.formats_available for name in entry.split(",")}


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "git lfs pull"),
        (b"<!DOCTYPE html>\n<html>", "a web page"),
        (b"\x1f\x8b\x08" + bytes(50), r"compressed \(gzip\)"),
    ],
)
def test_what_is_no_video_is_told_by_its_content(tmp_path: Path, data: bytes, what: str) -> None:
    (tmp_path / "a.mp4").write_bytes(data)
    with pytest.raises(VideoError, match=what):
        prepare(tmp_path / "a.mp4", tmp_path / "clip")


def test_audio_and_pictures_are_refused(tmp_path: Path) -> None:
    picture = encode(tmp_path / "a.mp4", "image2pipe", "png", "rgb24", frames=1)
    with pytest.raises(VideoError, match="it is a single picture"):
        prepare(picture, tmp_path / "picture")
    with av.open(str(tmp_path / "b.mp4"), "w", format="flac") as output:
        stream: Any = output.add_stream("flac", rate=48000, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 4800), np.int16), format="s16", layout="mono")
        sound.sample_rate, sound.pts = 48000, 0
        output.mux([*stream.encode(sound), *stream.encode(None)])
    with pytest.raises(VideoError, match="it is audio"):
        prepare(tmp_path / "b.mp4", tmp_path / "audio")


# Times


def test_times_between_dated_packs_are_filled_in(tmp_path: Path) -> None:
    """MPEG program streams date packs, in which several frames may begin."""
    source = encode(tmp_path / "a.mpg", "mpeg", "libx264", options=_X264)
    with open_video(source) as container:
        undated = [packet.pts is None for packet in container.demux(video=0) if packet.size]
    assert any(undated)
    assert not all(undated)
    clip = remux_with_ffmpeg(source, tmp_path)
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(seconds, np.arange(FRAMES) / RATE, atol=1e-4)


PAUSES = [0, 1, 2, 5, 6, 7, 8, 20, 21, 22, 23, 24, 28, 29, 30]


def check_pauses(source: Path, folder: Path) -> None:
    """The clip of a source has all frames, at the times of `PAUSES`."""
    clip, _ = prepare(source, folder / "clip")
    assert [read_frame_number(picture) for picture in decoded(clip.mp4)] == list(range(FRAMES))
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(seconds, np.array(PAUSES) / RATE, atol=0.0011)


@pytest.mark.parametrize(
    ("muxer", "codec", "options"),
    [("avi", "libx264", _X264), ("avi", "mpeg4", _MPEG), ("asf", "libx264", _X264)],
)
def test_pauses_where_a_container_has_decode_times_alone(
    muxer: str, codec: str, options: dict[str, str], tmp_path: Path
) -> None:
    """A pause lies where a decoder outputs nothing: a picture or two behind the packet that comes late."""
    source = encode(tmp_path / "a", muxer, codec, options=options, times=PAUSES)
    check_pauses(source, tmp_path)


def _with_decode_times(source: Path, path: Path, muxer: str) -> Path:
    """A copy of a video whose presentation times are its decode times, a second later."""
    with remuxing(source, path, format=muxer) as copy:
        for packet in copy.packets:
            packet.dts += round(1 / packet.time_base)  # none is negative, which an edit list would hide
            packet.pts = packet.dts
            copy.mux(packet)
    return path


@pytest.mark.parametrize("muxer", ["mp4", "flv"])
def test_pauses_where_decode_times_stand_for_times(muxer: str, tmp_path: Path) -> None:
    source = encode(tmp_path / "a", "mp4", "libx264", options=_X264, times=PAUSES)
    check_pauses(_with_decode_times(source, tmp_path / "b", muxer), tmp_path)


def test_matroska_with_a_track_from_an_avi(tmp_path: Path) -> None:
    """Its blocks have decode times, as mkvmerge takes them over, of which FFmpeg makes up times."""
    vops = mpeg4.encoded(tmp_path, b_frames=2)
    source = _with_vfw_track(mpeg4.mux(vops, tmp_path / "a.avi"), tmp_path / "a.mkv")
    clip, transcoded = prepare(source, tmp_path / "clip")
    assert not transcoded
    assert [read_frame_number(picture) for picture in decoded(clip.mp4)] == list(range(len(vops)))
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(seconds, 0.04 * np.arange(len(vops)), atol=0.0011)


def _with_vfw_track(source: Path, target: Path) -> Path:
    """The packets of an AVI in Matroska, by its decode times in ms."""
    with av.open(str(source)) as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        packets = [packet for packet in container.demux(stream) if packet.size]
        size = stream.codec_context.width, stream.codec_context.height
        header = struct.pack("<IiiHH4sIIIII", 40, *size, 1, 24, b"FMP4", 0, 0, 0, 0, 0)
        private = header + (stream.codec_context.extradata or b"")
        at = [round(1000 * (packet.dts or 0) * stream.time_base) for packet in packets]
    return _write_matroska(target, b"V_MS/VFW/FOURCC", private, size, zip(at, packets, strict=True))


def _write_matroska(
    target: Path, codec: bytes, private: bytes, size: tuple[int, int], blocks: Iterable[tuple[int, Any]]
) -> Path:
    """A file of one track with blocks at times in ms, which FFmpeg's muxer would change."""

    def element(name: int, payload: bytes | int) -> bytes:
        data = payload.to_bytes(4, "big") if isinstance(payload, int) else payload
        return name.to_bytes((name.bit_length() + 7) // 8, "big") + (len(data) | 1 << 28).to_bytes(4, "big") + data

    video = element(0xE0, element(0xB0, size[0]) + element(0xBA, size[1]))
    track = element(0xD7, 1) + element(0x73C5, 1) + element(0x83, 1) + element(0x86, codec)
    tracks = element(0x1654AE6B, element(0xAE, track + element(0x63A2, private) + video))
    written = b"".join(
        element(0xA3, struct.pack(">BhB", 0x81, time, 0x80 * packet.is_keyframe) + bytes(packet))
        for time, packet in blocks
    )
    cluster = element(0x1F43B675, element(0xE7, 0) + written)
    info = element(0x1549A966, element(0x2AD7B1, 1_000_000))
    target.write_bytes(element(0x1A45DFA3, element(0x4282, b"matroska")) + element(0x18538067, info + tracks + cluster))
    return target


def test_matroska_that_begins_with_pictures_before_its_first(tmp_path: Path) -> None:
    """As `ffmpeg -ss` copies open GOPs: FFmpeg reads no times of the leading pictures, which are not shown. All others
    are at theirs, and in order."""
    recipe = Recipe(codec="hevc", frames=48, gop=15, b_frames=4, open_gop=True, jitter=3, params=(("b-adapt", "0"),))
    with av.open(str(write(recipe, tmp_path / "a.mp4"))) as container:
        stream: Any = container.streams.video[0]
        packets: list[Any] = [packet for packet in container.demux(stream) if packet.size]
        begin = [number for number, packet in enumerate(packets) if packet.is_keyframe][1]
        times = [round(1000 * (packet.pts - packets[begin].pts) * stream.time_base) for packet in packets[begin:]]
        size, private = (recipe.width, recipe.height), stream.codec_context.extradata
    assert min(times) < 0
    source = _write_matroska(
        tmp_path / "a.mkv", b"V_MPEGH/ISO/HEVC", private, size, zip(times, packets[begin:], strict=True)
    )
    clip, _ = prepare(source, tmp_path / "clip")
    assert not clip.traits
    seconds = clip.index.frame_pts * clip.time_base[0] / clip.time_base[1]
    np.testing.assert_allclose(seconds, np.sort([time for time in times if time >= 0]) / 1000, atol=0.0011)


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_parts_of_open_gops_of_which_a_decoder_loses_frames(codec: Codec, tmp_path: Path) -> None:
    """Their order goes back at the join, without an IDR picture: what a decoder outputs is transcoded."""
    source = write(
        Recipe(codec=codec, container="mkv", frames=60, gop=12, b_frames=3, open_gop=True), tmp_path / "a.mkv"
    )
    joined, clock = tmp_path / "b.mkv", 0
    with remuxing(source, joined) as copy:
        keys = [number for number, packet in enumerate(copy.packets) if packet.is_keyframe]
        for begin, end in ((0, keys[2]), (keys[1], keys[4])):
            for packet in copy.packets[begin:end]:
                again: Any = av.Packet(bytes(packet))
                again.pts, again.dts = 2000 * (1 + (begin > 0)) + packet.pts - copy.packets[begin].pts, clock
                again.is_keyframe, again.time_base = packet.is_keyframe, packet.time_base
                copy.mux(again)
                clock += 1
    with pytest.raises(VideoError, match=r"decoders do not output \d+ of its \d+ frames"):
        prepare(joined, tmp_path / "copied", compatible_with="any")
    clip, transcoded = prepare(joined, tmp_path / "clip")
    assert transcoded
    expected, stored = decoded(joined), decoded(clip.mp4)
    assert len(clip.index.visible) == len(stored) == len(expected) < clock
    assert all(abs(one.astype(int) - two).mean() < 8 for one, two in zip(stored, expected, strict=True))


def test_decode_times_for_times_of_what_is_transcoded(tmp_path: Path) -> None:
    source = encode(tmp_path / "a", "mp4", "mpeg2video", options=_MPEG, times=PAUSES)
    check_pauses(_with_decode_times(source, tmp_path / "b", "matroska"), tmp_path)
