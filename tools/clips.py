"""A factory for video files, for tests, the demo and benchmarks: `write` makes what a `Recipe` says."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.stream
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter

from streamvid.mp4.boxes import MIRRORED, write_rotation
from streamvid.video.encoders import leave_real_time
from streamvid.video.probe import frame_rotation
from tools.damage import end_edit_after, flip_bytes, lie_about_duration, lie_about_sample, lie_about_size, truncate
from tools.pictures import Image, draw_frame_number, painter, read_frame_number
from tools.recipes import Recipe, hard_recipes

__all__ = [
    "Recipe",
    "Seen",
    "flip_bytes",
    "hard_recipes",
    "lie_about_duration",
    "lie_about_sample",
    "lie_about_size",
    "look",
    "paint",
    "read_frame_number",
    "truncate",
    "write",
]

_ENCODERS = {
    "h264": "libx264",
    "hevc": "libx265",
    "vp9": "libvpx-vp9",
    "vp8": "libvpx",
    "av1": "libsvtav1",
    "mpeg4": "mpeg4",
    "mjpeg": "mjpeg",
}
_MUXERS = {"mp4": "mp4", "mov": "mov", "mkv": "matroska", "webm": "webm", "avi": "avi", "ts": "mpegts"}
# PCM in AVI: a codec with a delay would start before 0, and the muxer then moves the video by less than a frame, which
# an AVI rounds.
_SOUND = {"mp4": "aac", "mov": "aac", "ts": "aac", "mkv": "libopus", "webm": "libopus", "avi": "pcm_s16le"}
# ISO/IEC 23091-2 numbers: matrix, primaries, transfer; and what FFmpeg's scaler calls the matrix.
_COLOURS = {
    "bt601": (6, 6, 6, Colorspace.SMPTE170M),
    "bt709": (1, 1, 1, Colorspace.ITU709),
    "bt2020": (9, 9, 14, Colorspace.BT2020),
    "untagged": (2, 2, 2, Colorspace.SMPTE170M),
}


@dataclass(frozen=True)
class Seen:
    """The result of decoding a file with FFmpeg: frame numbers and seconds in the order of output."""

    numbers: list[int]
    seconds: list[float | None]
    rotation: int


def write(recipe: Recipe, path: Path | str, pictures: Iterable[Image] | None = None) -> Path:
    """Make the clip. The file's name need not match the container.

    Args:
        recipe: what it is made of.
        path: where to.
        pictures: what it shows, one picture for each frame, instead of the recipe's style and number.
    """
    path = Path(path)
    # AVFMT_FLAG_BITEXACT keeps versions and random ids out of the file: the same recipe gives the same bytes.
    options = {"fflags": "+bitexact", **dict(recipe.muxer)}
    if recipe.delay or recipe.trim or recipe.from_key or recipe.drop:
        options = {"avoid_negative_ts": "disabled", **options}
    with _quiet(recipe), av.open(str(path), "w", format=_MUXERS[recipe.container], options=options) as output:
        stream: Any = output.add_stream(_ENCODERS[recipe.codec], rate=recipe.fps, options=_encoder_options(recipe))
        _configure(stream, recipe)
        sound: Any = output.add_stream(_SOUND[recipe.container], rate=48000) if recipe.audio else None
        cover: Any = output.add_stream("mjpeg", rate=1) if recipe.cover else None
        # The muxer puts the streams' packets into order.
        if sound is not None:
            output.mux(list(_sound_packets(sound, recipe)))
        if cover is not None:
            output.mux(list(_cover_packets(cover)))
        for packet in _video_packets(stream, recipe, paint(recipe) if pictures is None else pictures):
            output.mux(packet)
    if recipe.trim_end:
        ticks = recipe.frame_ticks()
        end_edit_after(path, float((ticks[recipe.frames - recipe.trim_end] - ticks[recipe.trim]) * recipe.time_base))
    if recipe.rotation >= MIRRORED:
        with path.open("r+b") as file:
            write_rotation(file, recipe.rotation, width=recipe.width, height=recipe.height)
    return path


def paint(recipe: Recipe) -> Iterator[Image]:
    """The frames before they are coded, uint8 [height, width, 3]."""
    scene = painter(recipe.style, recipe.seed, recipe.width, recipe.height)
    for n in range(recipe.frames):
        if recipe.scene and n and n % recipe.scene == 0:
            scene = painter(recipe.style, recipe.seed + 1000 * (n // recipe.scene), recipe.width, recipe.height)
        picture = scene(n % recipe.scene if recipe.scene else n)
        if recipe.number:
            draw_frame_number(picture, n)
        yield picture


def look(path: Path | str) -> Seen:
    """Decode a file's video and read the frame numbers."""
    numbers: list[int] = []
    seconds: list[float | None] = []
    rotation = 0
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            rotation = frame_rotation(frame)
            numbers.append(read_frame_number(np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8)))
            seconds.append(None if frame.pts is None or frame.time_base is None else float(frame.pts * frame.time_base))
    return Seen(numbers, seconds, rotation)


def _configure(stream: Any, recipe: Recipe) -> None:
    """Set what is set on FFmpeg's encoder rather than through its options."""
    context = stream.codec_context
    context.width, context.height, context.pix_fmt = recipe.width, recipe.height, recipe.pix_fmt
    context.time_base = recipe.time_base
    # Fixed, since some encoders' output depends on it. libvpx's threads for VP8 wait for each other in busy loops.
    context.thread_count = 1 if recipe.codec == "vp8" else 2
    context.gop_size = recipe.gop
    if recipe.codec in ("h264", "mpeg4"):
        context.max_b_frames = recipe.b_frames
    matrix, primaries, transfer, _ = _COLOURS[recipe.colour]
    context.colorspace, context.color_primaries, context.color_trc = matrix, primaries, transfer
    context.color_range = 2 if recipe.full_range else 1
    if recipe.tag:
        context.codec_tag = recipe.tag
    if recipe.rotation % MIRRORED:
        stream.set_display_rotation(-recipe.rotation % MIRRORED)  # FFmpeg turns counter-clockwise.


def _encoder_options(recipe: Recipe) -> dict[str, str]:
    gop, b_frames = recipe.gop, recipe.b_frames
    crf = {} if recipe.crf is None else {"crf": str(recipe.crf)}
    extra: dict[str, str] = dict(recipe.params)
    options: dict[str, str]
    match recipe.codec:
        case "h264":
            params = {"scenecut": "0", "keyint": gop, "min-keyint": gop, "open-gop": int(recipe.open_gop)}
            # With macroblock trees the same frames and B-frames give other bytes now and then.
            params |= {"b-adapt": "0", "b-pyramid": "normal" if b_frames > 1 else "none", "mbtree": "0", **extra}
            options = {"preset": "veryfast", "x264-params": _params(params), **crf}
        case "hevc":
            # x265 gives packets times from unwritten memory if there are fewer frames than it holds back.
            b_frames = b_frames if recipe.frames > 2 else 0
            params = {"log-level": "none", "scenecut": 0, "keyint": gop, "min-keyint": gop, "pools": "2"}
            params |= {"open-gop": int(recipe.open_gop), "bframes": b_frames, "b-adapt": 0, "frame-threads": 1}
            params |= {"b-pyramid": int(b_frames > 1), **extra}
            options = {"preset": "ultrafast", "x265-params": _params(params), **crf}
        case "vp9" | "vp8":
            # libvpx takes crf alone as an upper bound on quality, and 256 kbit/s as the rate, unless told otherwise.
            rate = {"crf": str(recipe.crf or 20), "b": "0" if recipe.codec == "vp9" else "2M"}
            if "b" in dict(recipe.options):
                rate = {}
            # A positive cpu-used would let VP8 choose its tools by the clock.
            cpu = "8" if recipe.codec == "vp9" else "-8"
            speed = {"deadline": "realtime", "cpu-used": cpu, "lag-in-frames": "0", "auto-alt-ref": "0"}
            options = {"keyint_min": str(gop), **rate, **speed}
        case "av1":
            # With more than one thread, SVT-AV1 4.1 waits for itself for ever once in some hundred clips of key frames.
            options = {"preset": "12", "crf": str(recipe.crf or 30), "svtav1-params": _params({"lp": 1, **extra})}
        case "mpeg4":
            # FFmpeg has no closed GOPs with scene cut detection, hence the threshold.
            closed = {} if recipe.open_gop else {"flags": "+cgop"}
            options = {"sc_threshold": "1000000000", "qmin": "2", "qmax": str(recipe.crf or 4), **closed}
        case "mjpeg":
            options = {"qmin": "2", "qmax": str(recipe.crf or 4), "strict": "unofficial"}
    return {**options, **dict(recipe.options)}


def _params(params: dict[str, Any]) -> str:
    return ":".join(f"{name}={value}" for name, value in params.items())


def _video_packets(stream: Any, recipe: Recipe, pictures: Iterable[Image]) -> Iterator[Any]:
    """Encode, then leave out and shift what the recipe wants left out and shifted."""
    keys = dropped = 0
    for number, packet in enumerate(_encode(stream, recipe, pictures)):
        keys += packet.is_keyframe
        if keys <= recipe.from_key:
            continue
        if dropped < recipe.drop:
            dropped += 1
            continue
        # Packets before 0 make FFmpeg's MP4 muxer write an edit list that hides them.
        shift = int(recipe.delay / packet.time_base)
        if recipe.trim:
            shift -= int(recipe.frame_ticks()[recipe.trim] * recipe.time_base / packet.time_base)
        packet.pts += shift
        packet.dts += shift
        # VP8 packets come in the order of the frames.
        yield _hide(packet) if recipe.is_hidden(number) else packet


def _hide(packet: Any) -> Any:
    """The same VP8 frame with its show_frame bit cleared, as encoders write alternative reference frames."""
    data = bytearray(bytes(packet))
    data[0] &= ~0x10
    hidden: Any = av.Packet(bytes(data))
    for name in ("pts", "dts", "time_base", "stream", "is_keyframe"):
        setattr(hidden, name, getattr(packet, name))
    return hidden


def _cover_packets(stream: Any) -> Iterator[Any]:
    stream.disposition = av.stream.Disposition.attached_pic
    stream.width, stream.height, stream.pix_fmt = 64, 64, "yuvj420p"
    yield from stream.encode(av.VideoFrame.from_ndarray(np.full((64, 64, 3), 90, np.uint8), format="rgb24"))
    yield from stream.encode(None)


def _encode(stream: Any, recipe: Recipe, pictures: Iterable[Image]) -> Iterator[Any]:
    *_, matrix = _COLOURS[recipe.colour]
    levels = ColorRange.JPEG if recipe.full_range else ColorRange.MPEG
    # One for all: `VideoFrame.reformat` makes one for each frame, in which most of the time of a small frame goes.
    reformatter = VideoReformatter()
    for picture, tick in zip(pictures, recipe.frame_ticks(), strict=True):
        source = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame = reformatter.reformat(
            source, format=recipe.pix_fmt, dst_colorspace=matrix, dst_color_range=levels, threads=1
        )
        frame.pts, frame.time_base = tick, recipe.time_base
        packets = stream.encode(frame)
        if recipe.codec == "av1":
            leave_real_time()
        yield from packets
    yield from stream.encode(None)


def _sound_packets(stream: Any, recipe: Recipe) -> Iterator[Any]:
    """A tone as long as the video."""
    seconds = float(recipe.frame_ticks()[-1] * recipe.time_base) + float(1 / recipe.fps)
    resampler = av.AudioResampler(format=stream.codec_context.format, layout="stereo", rate=48000, frame_size=1024)
    stream.codec_context.layout = "stereo"
    wave = (np.sin(np.arange(int(48000 * seconds)) * (440 * 2 * np.pi / 48000)) * 8000).astype(np.int16)
    tone = av.AudioFrame.from_ndarray(wave[None, :], format="s16", layout="mono")
    tone.sample_rate, tone.pts, tone.time_base = 48000, 0, Fraction(1, 48000)
    for frame in resampler.resample(tone):
        yield from stream.encode(frame)
    yield from stream.encode(None)


@contextmanager
def _quiet(recipe: Recipe) -> Iterator[None]:
    """SVT-AV1 writes a banner to stderr, and only an environment variable stops it."""
    before = os.environ.get("SVT_LOG")
    if recipe.codec == "av1" and before is None:
        os.environ["SVT_LOG"] = "1"
    try:
        yield
    finally:
        if recipe.codec == "av1" and before is None:
            del os.environ["SVT_LOG"]
