"""Frames → a video file whose packets suit streaming: closed GOPs, coded size equal to display size, one thread.

What comes out is stored like any other video (`streamvid.video.remux`). The settings are chosen so that the same
frames give the same bytes wherever and beside whatever they are encoded; docs/packing.md says what that costs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import av
import numpy as np

from streamvid.errors import InputError, VideoError
from streamvid.mp4.edit_list import read_edit
from streamvid.video.encoders import ENCODERS, TARGETS, Target, settings
from streamvid.video.frame_index import HIDDEN
from streamvid.video.pixel_format import Fitter
from streamvid.video.probe import MAX_SIDE, open_video, video_stream
from streamvid.video.remux import as_video_error
from streamvid.video.stored_clip import StoredClip

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame

GOP: Final = 30
"""Frames from one key frame to the next, unless told otherwise: docs/packing.md shows why."""


@dataclass(frozen=True)
class TranscodeOptions:
    """What a video is encoded into.

    Attributes:
        codec: H.264, HEVC, VP9, AV1 or Motion JPEG.
        short_side: pixels of the shorter side; frames are made smaller, never larger. None: as they are.
        max_fps: frames per second at most; frames are left out, none is moved. None: all of them.
        gop: frames from one key frame to the next at most.
        crf: quality, in the codec's own measure, smaller is better; None: the codec's default, near lossless to the
            eye. For Motion JPEG the quantiser scale, 1 to 31.

    Raises:
        InputError: a value that cannot be used.
    """

    codec: Target = "h264"
    short_side: int | None = None
    max_fps: Fraction | None = None
    gop: int = GOP
    crf: int | None = None

    def __post_init__(self) -> None:
        if self.codec not in TARGETS:
            raise InputError(f"cannot convert to {self.codec!r}: choose from {', '.join(TARGETS)}")
        if self.short_side is not None and not 16 <= self.short_side <= MAX_SIDE:
            raise InputError(f"a short side of {self.short_side} pixels: choose from 16 to {MAX_SIDE}")
        if self.max_fps is not None and self.max_fps <= 0:
            raise InputError(f"at most {self.max_fps} frames per second: give a positive rate")
        if not 1 <= self.gop <= 1 << 16:
            raise InputError(f"a GOP of {self.gop} frames: choose from 1 to {1 << 16}")
        least, most = ENCODERS[self.codec].crf_range
        if self.crf is not None and not least <= self.crf <= most:
            raise InputError(f"a crf of {self.crf} for {self.codec}: choose from {least} to {most}")


@dataclass(frozen=True)
class Footage:
    """Pictures with their times: what is encoded.

    Attributes:
        frames: pictures and their times in ticks, rising; read once.
        time_base: seconds per tick.
        rate: frames per second, about; encoders spend bits by it.
        rotation: degrees clockwise that stand the pictures upright; carried, not applied.
        end: ticks at which the last frame ends, once all were read; None if that is not known.
    """

    frames: Iterable[tuple[VideoFrame, int]]
    time_base: Fraction
    rate: Fraction
    rotation: int = 0
    end: int | None = None


def transcode(
    source: Path | StoredClip, target: Path, conversion: TranscodeOptions, *, keyframes: Sequence[Fraction | float] = ()
) -> None:
    """Decode a video and encode its visible frames into an MP4, at exactly the same times.

    Args:
        source: a clip that was stored by copying: its index says which frames are shown, and when. Or a file, for
            codecs that cannot be stored: then its times and its edit list say so.
        target: the MP4 to write.
        conversion: what to encode into.
        keyframes: seconds from the first visible frame; the first frame at or after each becomes a key frame.

    Raises:
        VideoError: a frame is missing or damaged, or the times do not rise: nothing is concealed.
    """
    with as_video_error():
        if isinstance(source, StoredClip):
            encode(_clip_footage(source), target, conversion, keyframes=keyframes)
            return
        with closing(open_video(source)) as container:
            stream = video_stream(container)
            stream.codec_context.thread_count = 1
            first = next(iter(container.decode(stream)), None)
            base, rate = stream.time_base, stream.average_rate
            if first is None or base is None:
                raise ValueError("not one frame of it can be decoded")
            rotation = 0 if first.rotation % 90 else int(-first.rotation) % 360
        encode(Footage(_file_frames(source), base, rate or Fraction(25), rotation), target, conversion,
               keyframes=keyframes)  # fmt: skip


def encode(
    footage: Footage, target: Path, conversion: TranscodeOptions, *, keyframes: Sequence[Fraction | float] = ()
) -> None:
    """Encode pictures into an MP4; memory does not grow with their number but for 8 bytes each.

    Raises:
        VideoError: a picture is damaged, or times do not rise.
    """
    pictures = _thinned(footage, conversion.max_fps)
    first = next(pictures, None)
    if first is None:
        raise VideoError("not one frame of it can be decoded")
    fit = Fitter(first[0], conversion.codec, conversion.short_side)
    rate = min(footage.rate, conversion.max_fps or footage.rate).limit_denominator(1001)
    if not 1 <= rate <= 1000:
        rate = Fraction(25)
    options = {"movflags": "+faststart", "fflags": "+bitexact"}
    with closing(av.open(os.fspath(target), "w", format="mp4", options=options)) as output:
        track: Any = output.add_stream(
            ENCODERS[conversion.codec].name,
            rate=rate,
            options=settings(conversion.codec, gop=conversion.gop, crf=conversion.crf, deep=fit.deep),
        )
        fit.configure(track.codec_context)
        # Frames are counted for the encoder: what it makes of them must not depend on odd clocks or long gaps.
        track.codec_context.time_base = 1 / rate
        track.codec_context.gop_size = conversion.gop
        track.codec_context.thread_count = 1
        track.time_base = footage.time_base
        if conversion.codec == "hevc":
            track.codec_context.codec_tag = "hvc1"
        if footage.rotation:
            track.set_display_rotation(-footage.rotation)  # FFmpeg turns counter-clockwise.
        output.start_encoding()
        clock = _Clock(footage.time_base, keyframes)

        def packets() -> Iterator[Packet[Any]]:
            for frame, ticks in _chain(first, pictures):
                number, key = clock.add(ticks)
                picture = fit(frame)
                picture.pts, picture.time_base = number, 1 / rate
                # A decoded picture still says which kind it was coded as.
                picture.pict_type = av.video.frame.PictureType.I if key else av.video.frame.PictureType.NONE
                yield from track.encode(picture)
            yield from track.encode(None)

        held: Packet[Any] | None = None
        for place, packet in enumerate(packets()):
            if held is not None:
                output.mux(held)
            # x265's own decode times are garbage where a video ends within the first frames.
            assert packet.pts is not None
            packet.pts = clock.presented(packet.pts)
            packet.dts = clock.decoded(place - ENCODERS[conversion.codec].delay)
            packet.time_base, packet.stream, packet.duration = footage.time_base, track, 0
            held = packet
        if held is not None:
            # Written behind the last packet in decode order, and read back as how long the last frame is shown.
            held.duration = clock.last_duration(footage.end)
            output.mux(held)


class _Clock:
    """Frame numbers, as the encoder counts them, to times and back, and which frames must be key frames."""

    def __init__(self, time_base: Fraction, keyframes: Sequence[Fraction | float]) -> None:
        self._base = time_base
        self._due = sorted(Fraction(at) for at in keyframes)[::-1]
        self._ticks: list[int] = []

    def add(self, ticks: int) -> tuple[int, bool]:
        """The next frame's number, and whether it must be a key frame."""
        if self._ticks and ticks <= self._ticks[-1]:
            raise VideoError("its times do not rise from frame to frame")
        self._ticks.append(ticks)
        key = False
        while self._due and self._due[-1] <= (ticks - self._ticks[0]) * self._base:
            self._due.pop()
            key = True
        return len(self._ticks) - 1, key

    def presented(self, number: int) -> int:
        return self._ticks[number] - self._ticks[0]

    def decoded(self, number: int) -> int:
        """When the packet is decoded whose place in decode order, less the encoder's reordering, this is: not after
        it is presented, and rising."""
        return self.presented(number) if number >= 0 else number

    def last_duration(self, end: int | None) -> int:
        """Ticks that the last frame is shown: until the end if that makes sense, else as long as the others."""
        steps = np.diff(self._ticks)
        usual = int(np.median(steps)) if len(steps) else max(1, round(1 / self._base / 25))
        left = 0 if end is None else end - self._ticks[-1]
        return left if 0 < left <= 10 * max(usual, int(steps.max(initial=0))) else usual


def _thinned(footage: Footage, max_fps: Fraction | None) -> Iterator[tuple[VideoFrame, int]]:
    """Leave out what comes sooner than the rate allows, by a grid that starts anew after a gap.

    A millisecond is forgiven, since some containers round to them: 33, 67 and 100 ms are 30 frames per second.
    """
    if max_fps is None:
        yield from footage.frames
        return
    step = 1 / (max_fps * footage.time_base)
    slack = min(max(Fraction(1), Fraction(1, 1000) / footage.time_base), step / 4)
    due: Fraction | None = None
    for frame, ticks in footage.frames:
        if due is None or ticks >= due + step:
            due = Fraction(ticks)
        if ticks + slack >= due:
            due += step
            yield frame, ticks


def _chain(first: tuple[VideoFrame, int], rest: Iterator[tuple[VideoFrame, int]]) -> Iterator[tuple[VideoFrame, int]]:
    yield first
    yield from rest


def _clip_footage(clip: StoredClip) -> Footage:
    base = Fraction(*clip.time_base)
    shown = clip.index.frame_pts
    rate = Fraction(len(shown)) / (Fraction(clip.duration) * base) if clip.duration > 0 else Fraction(25)
    return Footage(_clip_frames(clip), base, rate, clip.rotation, int(shown[0]) + clip.duration)


def _clip_frames(clip: StoredClip) -> Iterator[tuple[VideoFrame, int]]:
    """The visible frames by the index: one of every visible packet, or an error."""
    index = clip.index
    order = np.argsort(index.pts, kind="stable")
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    visible = (index.flags[order] & HIDDEN) == 0
    times = index.pts[order]
    expected = 0
    wanted = np.flatnonzero(visible)
    with closing(av.open(os.fspath(clip.mp4), "r", options={"ignore_editlist": "1"})) as container:
        stream = container.streams.video[0]
        context = stream.codec_context
        context.thread_count = 1

        def decoded() -> Iterator[VideoFrame]:
            for number, packet in enumerate(p for p in container.demux(stream) if p.size):
                # Decoders hand the packet's time on with its frame: places in presentation order cannot be mistaken.
                packet.pts = int(ranks[number])
                yield from context.decode(packet)
            yield from context.decode(None)

        for frame in decoded():
            if frame.pts is None or not visible[frame.pts]:
                continue
            if frame.is_corrupt or expected == len(wanted) or frame.pts != wanted[expected]:
                raise ValueError(f"frame {expected} of it is damaged or missing")
            expected += 1
            yield frame, int(times[frame.pts])
    if expected != len(wanted):
        raise ValueError(f"frame {expected} of it is damaged or missing")


def _file_frames(source: Path) -> Iterator[tuple[VideoFrame, int]]:
    """The frames that the edit list shows of a file that cannot be stored as it is."""
    with closing(open_video(source)) as container:
        shown = read_edit(source, video_stream(container).id)
    # FFmpeg loses frames where an edit ends (`streamvid.video.timestamps`).
    with closing(open_video(source, edits=shown is None)) as container:
        stream = video_stream(container)
        stream.codec_context.thread_count = 1
        for number, frame in enumerate(container.decode(stream)):
            if frame.pts is None or frame.is_corrupt:
                raise ValueError(f"frame {number} of it is damaged or has no time")
            if shown is None or shown.begin <= frame.pts < shown.end:
                yield frame, frame.pts
