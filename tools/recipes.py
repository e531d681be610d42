"""Recipes for synthetic clips: what a clip is made of, as plain data, and one recipe for every hard property."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np

from tools.pictures import Style

Codec = Literal["h264", "hevc", "vp9", "vp8", "av1", "mpeg4", "mjpeg"]
Container = Literal["mp4", "mov", "mkv", "webm", "avi", "ts"]
Colour = Literal["bt601", "bt709", "bt2020", "untagged"]
Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Recipe:
    """One clip. The same recipe makes the same bytes on the same machine with the same libraries.

    Attributes:
        fps: rate; of clips with a variable rate, the usual one.
        frames: how many are encoded.
        gop: frames from one key frame to the next.
        b_frames: most B-frames in a row; H.264, HEVC and MPEG-4 alone. Two and more come as a pyramid, but for MPEG-4.
        open_gop: let frames refer across the next key frame: H.264 recovery points, HEVC CRA, MPEG-4 always can.
        full_range: pixel levels 0 to 255 instead of 16 to 235, and tagged so.
        colour: RGB-YUV matrix and tags. "untagged" is coded as bt601.
        crf: quality; None for the encoder's usual.
        ticks: variable rate: when each frame is shown, in ms, rising. Not for avi.
        jitter: variable rate: the seed of random intervals, with a gap of ten frames here and there. Not for avi.
        rotation: degrees clockwise by which a player turns the frames, in mp4, mov and mkv; plus 360 if it mirrors them
            before that, in mp4 and mov.
        trim: frames that an edit list cuts off the start; their packets are in the file. mp4 and mov alone.
        trim_end: frames that an edit list cuts off the end. mp4 and mov alone.
        delay: seconds before the first frame is shown.
        from_key: leave out all packets before this key frame, counting from 0.
        drop: leave out so many packets from there: the clip starts mid-GOP.
        hidden: every so many frames comes one that is coded but not shown. VP8 alone.
        audio: with a sound track beside the video.
        cover: with a cover picture, which FFmpeg presents as a second video stream. mp4 and mov alone.
        scene: frames from one cut to the next; 0 for no cuts.
        number: draw the frame number.
        tag: the codec tag, where a container has a choice (`hvc1` or `hev1`, `avc3` …).
        options: more of FFmpeg's options for the encoder.
        params: more for `x264-params`, `x265-params` or `svtav1-params`.
        muxer: FFmpeg's options for the container.
    """

    codec: Codec = "h264"
    container: Container = "mp4"
    width: int = 320
    height: int = 180
    fps: Fraction = Fraction(30)
    frames: int = 48
    gop: int = 24
    b_frames: int = 2
    open_gop: bool = False
    pix_fmt: str = "yuv420p"
    full_range: bool = False
    colour: Colour = "bt709"
    crf: int | None = None
    ticks: tuple[int, ...] | None = None
    jitter: int | None = None
    rotation: int = 0
    trim: int = 0
    trim_end: int = 0
    delay: Fraction = Fraction(0)
    from_key: int = 0
    drop: int = 0
    hidden: int = 0
    audio: bool = False
    cover: bool = False
    scene: int = 0
    seed: int = 0
    style: Style = "shapes"
    number: bool = True
    tag: str | None = None
    options: Options = ()
    params: Options = ()
    muxer: Options = ()

    @property
    def variable(self) -> bool:
        """Whether the frame rate varies."""
        return self.ticks is not None or self.jitter is not None

    @property
    def time_base(self) -> Fraction:
        """Seconds per tick of the encoder."""
        return Fraction(1, 1000) if self.variable else 1 / self.fps

    def frame_ticks(self) -> list[int]:
        """When each encoded frame is shown, in ticks, the first at 0."""
        if self.ticks is not None:
            return list(self.ticks)
        if self.jitter is None:
            return list(range(self.frames))
        rng = np.random.default_rng(self.jitter)
        steps = rng.uniform(0.4, 1.6, self.frames) * float(1000 / self.fps)
        if self.frames > 1:
            steps[rng.integers(1, self.frames, max(1, self.frames // 24))] *= 10
        return [0, *(int(t) for t in np.cumsum(np.maximum(1, np.round(steps)))[:-1])]

    def shown(self) -> list[int]:
        """The numbers of the frames that a player shows, in order."""
        first = self.from_key + (1 if self.drop else 0)
        shown = range(max(first * self.gop, self.trim), self.frames - self.trim_end)
        return [n for n in shown if not self.is_hidden(n)]

    def is_hidden(self, number: int) -> bool:
        """Whether a frame is coded but not shown."""
        return bool(self.hidden) and number % self.hidden == self.hidden - 1

    def shown_at(self) -> list[Fraction]:
        """Seconds at which they are shown, from the first."""
        ticks, shown = self.frame_ticks(), self.shown()
        return [(ticks[n] - ticks[shown[0]]) * self.time_base for n in shown]


def hard_recipes() -> dict[str, Recipe]:
    """One clip for each property that has broken a video pipeline, by name; small and quick to make."""
    return {**_h264(), **_h264_containers(), **_hevc(), **_vpx(), **_others()}


def _h264() -> dict[str, Recipe]:
    """Recipes for the features of H.264 bitstreams."""
    return {
        "h264": Recipe(),
        "h264_pyramid": Recipe(b_frames=7, gop=40, frames=90),
        "h264_no_b": Recipe(b_frames=0),
        "h264_intra": Recipe(gop=1, b_frames=0, frames=12),
        "h264_one_gop": Recipe(gop=600, frames=120, b_frames=3),
        "h264_open_gop": Recipe(open_gop=True, b_frames=3, frames=72),
        # No key frames after the first: recovery points, whose first pictures are only partly right.
        "h264_intra_refresh": Recipe(b_frames=0, params=(("intra-refresh", "1"),), frames=60),
        "h264_slices": Recipe(params=(("slices", "4"),)),
        "h264_interlaced": Recipe(params=(("tff", "1"),), height=192),
        "h264_cuts": Recipe(scene=7, params=(("scenecut", "40"), ("min-keyint", "3")), frames=40),
        "h264_444_odd": Recipe(pix_fmt="yuv444p", width=131, height=97),
        "h264_422_10bit": Recipe(pix_fmt="yuv422p10le"),
        "h264_10bit": Recipe(pix_fmt="yuv420p10le"),
        "h264_full_range": Recipe(full_range=True),
        "h264_untagged": Recipe(colour="untagged"),
        # The coded height is 1088: eight rows are cropped off in the bitstream.
        "h264_1080p": Recipe(width=1920, height=1080, frames=10, gop=6),
        "h264_portrait": Recipe(width=90, height=160),
        "h264_tiny": Recipe(width=64, height=64),
        "h264_one_frame": Recipe(frames=1),
        "h264_five_frames": Recipe(frames=5),
        "h264_2997": Recipe(fps=Fraction(30000, 1001)),
    }


def _h264_containers() -> dict[str, Recipe]:
    """Recipes for H.264 in the containers that change it."""
    fragmented = (("movflags", "frag_keyframe+empty_moov"),)
    return {
        "h264_mov": Recipe(container="mov"),
        "h264_mkv": Recipe(container="mkv"),
        "h264_ts": Recipe(container="ts"),
        # AVI has no presentation times: FFmpeg gives packets a pts that merely counts in decode order.
        "h264_avi_b_frames": Recipe(container="avi", b_frames=3),
        "h264_avi_no_b": Recipe(container="avi", b_frames=0),
        # Parameter sets in the stream, none in the sample description.
        "h264_avc3": Recipe(tag="avc3"),
        "h264_fragmented": Recipe(muxer=fragmented),
        "h264_faststart": Recipe(muxer=(("movflags", "faststart"),)),
        "h264_vfr": Recipe(jitter=3, frames=60),
        "h264_vfr_mkv": Recipe(container="mkv", jitter=4, frames=60),
        "h264_vfr_list": Recipe(ticks=(0, 10, 20, 500, 520, 1500, 1501, 1502, 1700, 9000), frames=10),
        "h264_rotated_90": Recipe(rotation=90),
        "h264_rotated_180": Recipe(rotation=180),
        "h264_rotated_270": Recipe(rotation=270, container="mov"),
        "h264_mirrored": Recipe(rotation=360),
        "h264_transposed": Recipe(rotation=630, container="mov"),
        "h264_trimmed": Recipe(trim=10, b_frames=3),
        "h264_trimmed_past_key": Recipe(trim=30, b_frames=3),
        "h264_trimmed_end": Recipe(trim_end=5, b_frames=3),
        "h264_trimmed_both": Recipe(trim=5, trim_end=5, b_frames=3, container="mov"),
        "h264_delayed": Recipe(delay=Fraction(2)),
        "h264_delayed_mkv": Recipe(delay=Fraction(2), container="mkv"),
        "h264_audio": Recipe(audio=True),
        "h264_audio_ts": Recipe(audio=True, container="ts"),
        "h264_audio_trimmed": Recipe(audio=True, trim=10),
        "h264_cover": Recipe(cover=True),
        "h264_ts_mid_gop": Recipe(container="ts", drop=5, frames=72),
        "h264_mkv_mid_gop": Recipe(container="mkv", drop=5, frames=72),
        "h264_open_gop_from_recovery": Recipe(container="ts", open_gop=True, b_frames=3, from_key=1, frames=72),
        # The 33-bit clock of a transport stream runs over after 26.5 hours; this one does after a second.
        "h264_ts_clock_wraps": Recipe(container="ts", delay=Fraction(2**33, 90000) - Fraction(12, 5), frames=72),
    }


def _hevc() -> dict[str, Recipe]:
    base = Recipe(codec="hevc", b_frames=3)
    return {
        "hevc": base,
        "hevc_hvc1": replace(base, tag="hvc1"),
        "hevc_ts": replace(base, container="ts"),
        "hevc_mkv": replace(base, container="mkv"),
        "hevc_10bit": replace(base, pix_fmt="yuv420p10le", colour="bt2020"),
        "hevc_422_10bit": replace(base, pix_fmt="yuv422p10le"),
        "hevc_444": replace(base, pix_fmt="yuv444p"),
        "hevc_open_gop": replace(base, open_gop=True, frames=72),
        "hevc_open_gop_from_cra": replace(base, open_gop=True, frames=72, from_key=1, container="ts"),
        "hevc_intra": replace(base, gop=1, b_frames=0, frames=12),
        "hevc_trimmed": replace(base, trim=10),
        "hevc_temporal_layers": replace(base, params=(("temporal-layers", "2"),)),
        "hevc_vfr": replace(base, jitter=5),
        "hevc_1080p": replace(base, width=1920, height=1080, frames=6, gop=3),
    }


def _vpx() -> dict[str, Recipe]:
    vp9, vp8 = Recipe(codec="vp9", container="webm"), Recipe(codec="vp8", container="webm")
    # libvpx makes hidden frames in one pass only with these, and without crf; it then makes three in 96 frames.
    hidden = (("auto-alt-ref", "1"), ("lag-in-frames", "25"), ("cpu-used", "5"), ("b", "100k"))
    return {
        "vp9": vp9,
        "vp9_mp4": replace(vp9, container="mp4"),
        "vp9_odd": replace(vp9, width=131, height=97),
        # VP9 hides a frame in one packet with the next, a superframe; VP8 gives it a packet that decodes to nothing.
        "vp9_hidden_frames": replace(vp9, options=hidden, frames=96, gop=96),
        "vp9_444": replace(vp9, pix_fmt="yuv444p"),
        "vp9_vfr": replace(vp9, jitter=6),
        "vp9_audio": replace(vp9, audio=True),
        "vp8": vp8,
        "vp8_mkv": replace(vp8, container="mkv"),
        "vp8_odd": replace(vp8, width=131, height=97),
        "vp8_hidden_frames": replace(vp8, hidden=7),
    }


def _others() -> dict[str, Recipe]:
    av1, mpeg4, mjpeg = Recipe(codec="av1"), Recipe(codec="mpeg4"), Recipe(codec="mjpeg", container="avi")
    return {
        "av1": av1,
        "av1_webm": replace(av1, container="webm"),
        "av1_10bit": replace(av1, container="mkv", pix_fmt="yuv420p10le"),
        "mpeg4": mpeg4,
        "mpeg4_open_gop": replace(mpeg4, open_gop=True),
        "mpeg4_avi": replace(mpeg4, container="avi", b_frames=0),
        "mpeg4_avi_b_frames": replace(mpeg4, container="avi", b_frames=2),
        "mpeg4_odd": replace(mpeg4, width=131, height=97),
        "mjpeg_avi": mjpeg,
        "mjpeg_mov": replace(mjpeg, container="mov"),
        "mjpeg_422": replace(mjpeg, pix_fmt="yuvj422p", full_range=True),
        "mjpeg_audio": replace(mjpeg, audio=True),
    }
