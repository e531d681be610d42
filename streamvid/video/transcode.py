"""Transcoding: frames → an MP4 with closed GOPs, in 4:2:0.

The MP4 is then stored like any other video (`streamvid.video.remux`). Encoders run with one thread, and with options
for the same bytes on every machine; docs/packing.md has the cost of that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import av
import numpy as np

from streamvid.bitstream.image import MAX_SIDE
from streamvid.checks import decimal, is_integer, is_real, shown, suggesting
from streamvid.errors import InputError, VideoError
from streamvid.mp4.boxes import write_rotation
from streamvid.video.encoders import ENCODERS, TARGETS, Target, encoder_options, leave_real_time
from streamvid.video.packet_times import last_frame_duration
from streamvid.video.pixel_format import EncoderFormat
from streamvid.video.probe import VideoFile
from streamvid.video.remux import as_video_error
from streamvid.video.stored_clip import StoredClip
from streamvid.video.timed_frames import TimedFrames, frames_of_clip, frames_of_file

if TYPE_CHECKING:
    from av.packet import Packet

GOP: Final = 30
"""Default distance of key frames, in frames: docs/packing.md has the measurements."""


@suggesting
@dataclass(frozen=True)
class TranscodeOptions:
    """How to encode a video.

    Attributes:
        codec: H.264, HEVC, VP9, AV1 or Motion JPEG.
        short_side: pixels of the shorter side; frames are made smaller, never larger. None: unchanged.
        max_fps: most frames per second; frames are dropped, but never moved. None: all are kept. A float stands for its
            decimal notation.
        gop: most frames from one key frame to the next.
        crf: quality, in the codec's own measure, smaller is better; None: the codec's default, near lossless to the
            eye. For Motion JPEG the quantiser scale, 1 to 31.

    Raises:
        InputError: an option is invalid.
    """

    codec: Target = "h264"
    short_side: int | None = None
    max_fps: Fraction | None = None
    gop: int = GOP
    crf: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.codec, str) or self.codec not in TARGETS:
            raise InputError(f"cannot transcode to {self.codec!r}: choose from {', '.join(TARGETS)}")
        for name in ("short_side", "gop", "crf"):
            if not is_integer(given := getattr(self, name)) and (given is not None or name == "gop"):
                raise InputError(f"TranscodeOptions({name}) must be a whole number; it is {shown(given)}")
        if self.max_fps is not None and not is_real(self.max_fps):
            raise InputError(f"TranscodeOptions(max_fps) must be a number; it is {shown(self.max_fps)}")
        if self.short_side is not None and not 16 <= self.short_side <= MAX_SIDE:
            raise InputError(f"a short side of {self.short_side} pixels: choose from 16 to {MAX_SIDE}")
        if self.max_fps is not None and self.max_fps <= 0:
            raise InputError(f"at most {self.max_fps} frames per second: give a positive rate")
        if self.max_fps is not None:
            object.__setattr__(self, "max_fps", decimal(self.max_fps))
        if not 1 <= self.gop <= 1 << 16:
            raise InputError(f"a GOP of {self.gop} frames: choose from 1 to {1 << 16}")
        least, most = ENCODERS[self.codec].crf_range
        if self.crf is not None and not least <= self.crf <= most:
            raise InputError(f"a crf of {self.crf} for {self.codec}: choose from {least} to {most}")


def transcode(
    source: VideoFile | Path | StoredClip,
    target: Path,
    options: TranscodeOptions,
    *,
    keyframes: Sequence[Fraction | float] = (),
) -> None:
    """Decode a video and encode its visible frames into an MP4, at exactly the same times.

    Args:
        source: a clip that was stored by copying, whose index has the displayed frames and their times; or, for codecs
            that cannot be stored, a file, with its timestamps and edit list.
        target: the MP4 to write.
        keyframes: seconds from the first visible frame; the first frame at or after each becomes a key frame.

    Raises:
        VideoError: a frame is missing or damaged, or times do not ascend; errors are never concealed.
    """
    with as_video_error():
        if isinstance(source, StoredClip):
            encode(frames_of_clip(source), target, options, keyframes=keyframes)
            return
        file = VideoFile(source) if isinstance(source, Path) else source
        try:
            encode(frames_of_file(file), target, options, keyframes=keyframes)
        except _TimesFallError:
            encode(frames_of_file(file, by_order=True), target, options, keyframes=keyframes)


def encode(
    source: TimedFrames, target: Path, options: TranscodeOptions, *, keyframes: Sequence[Fraction | float] = ()
) -> None:
    """Encode frames into an MP4. Memory grows only by the frames' times.

    Args:
        target, options, keyframes: as in `transcode`.

    Raises:
        VideoError: a frame is damaged, or times do not ascend.
    """
    frames = iter(source.frames)
    first = next(frames, None)
    if first is None:
        raise VideoError("not one frame of it can be decoded")
    encoder_format = EncoderFormat(first.frame, options.codec, options.short_side, source.tags)
    rate = min(source.rate, options.max_fps or source.rate).limit_denominator(1001)
    encoder = ENCODERS[options.codec]
    if not 1 <= rate <= encoder.most_fps:
        rate = Fraction(25)
    ticks = str(source.time_base.denominator)
    muxer_options = {"movflags": "+faststart", "fflags": "+bitexact", "video_track_timescale": ticks}
    settings = encoder_options(options.codec, gop=options.gop, crf=options.crf, width=encoder_format.size[0])
    # From chroma at full width, swscale makes samples in the centre.
    siting = "center" if first.frame.format.chroma_width(2) > 1 else source.siting
    if siting != "left" and options.codec in ("h264", "hevc"):
        settings["chroma_sample_location"] = siting
    with closing(av.open(os.fspath(target), "w", format="mp4", options=muxer_options)) as output:
        track: Any = output.add_stream(encoder.name, rate=rate, options=settings)
        encoder_format.configure(track.codec_context)
        # The encoder gets frame numbers as times, so that its output does not depend on odd time bases or long gaps.
        track.codec_context.time_base = 1 / rate
        track.codec_context.gop_size = options.gop
        track.codec_context.thread_count = 1
        track.time_base = source.time_base
        if options.codec == "hevc":
            track.codec_context.codec_tag = "hvc1"
        output.start_encoding()
        if options.codec == "av1":
            leave_real_time()
        clock = _FrameClock(source.time_base, keyframes, options.max_fps)

        def packets() -> Iterator[Packet[Any]]:
            for frame, begin, end in chain([first], frames):
                if (slot := clock.add(begin, end)) is None:
                    continue
                number, key = slot
                converted = encoder_format(frame)
                converted.pts, converted.time_base = number, 1 / rate
                # A decoded frame still has the picture type of its source.
                converted.pict_type = av.video.frame.PictureType.I if key else av.video.frame.PictureType.NONE
                yield from track.encode(converted)
            yield from track.encode(None)

        held: Packet[Any] | None = None
        for number, packet in enumerate(packets()):
            if held is not None:
                output.mux(held)
            # x265's own decode times are wrong if a video ends within the first frames.
            assert packet.pts is not None
            packet.pts = clock.pts(packet.pts)
            packet.dts = clock.dts(number - encoder.reorder_frames)
            packet.time_base, packet.stream, packet.duration = source.time_base, track, 0
            held = packet
        if held is not None:
            # Stored as the duration of the last packet in decode order, and read back as the last frame's.
            held.duration = clock.last_duration()
            output.mux(held)
    if source.rotation:
        with target.open("r+b") as file:
            write_rotation(file, source.rotation, width=encoder_format.size[0], height=encoder_format.size[1])


class _TimesFallError(VideoError):
    """Frames whose times do not rise."""


class _FrameClock:
    """Decides which frames of a source are encoded and which must be key frames, and translates the encoder's frame
    numbers to times.

    Frames are dropped on a grid of times that restarts after a gap. They may be early by a millisecond, as some
    containers round to them: 33, 67 and 100 ms are 30 frames per second.

    Args:
        time_base: seconds per tick.
        keyframes: seconds from the first frame, as in `transcode`.
        max_fps: as of `TranscodeOptions`.
    """

    def __init__(self, time_base: Fraction, keyframes: Sequence[Fraction | float], max_fps: Fraction | None) -> None:
        self._base = time_base
        self._due_keys = sorted(Fraction(at) for at in keyframes)[::-1]
        self._step = 1 / (max_fps * time_base) if max_fps else Fraction(0)
        self._slack = min(max(Fraction(1), Fraction(1, 1000) / time_base), self._step / 4)
        self._due = Fraction(0)
        self._source: list[int] = []
        self._end = 0
        self._ticks: list[int] = []

    def add(self, begin: int, end: int) -> tuple[int, bool] | None:
        """The number of a frame and whether it must be a key frame; None: it is dropped, and the one before stays on
        screen. `begin` and `end` are as in `TimedFrame`."""
        if self._source and begin <= self._source[-1]:
            raise _TimesFallError("its times do not rise from frame to frame")
        self._source.append(begin)
        self._end = end
        if not self._ticks or begin >= self._due + self._step:
            self._due = Fraction(begin)
        if begin + self._slack < self._due:
            return None
        self._due += self._step
        self._ticks.append(begin)
        key = False
        while self._due_keys and self._due_keys[-1] <= (begin - self._ticks[0]) * self._base:
            self._due_keys.pop()
            key = True
        return len(self._ticks) - 1, key

    def pts(self, number: int) -> int:
        """Ticks from the first frame to frame `number`."""
        return self._ticks[number] - self._ticks[0]

    def dts(self, number: int) -> int:
        """The decode time for the packet whose number in decode order minus `Encoder.reorder_frames` is `number`. It
        ascends, and is never after the presentation time."""
        return self.pts(number) if number >= 0 else number

    def last_duration(self) -> int:
        """Duration of the last frame in ticks: until the end of the source's last one."""
        end = self._source[-1] + self._last(self._source, self._end - self._source[-1])
        return self._last(self._ticks, end - self._ticks[-1])

    def _last(self, ticks: list[int], stated: int) -> int:
        return last_frame_duration(np.array(ticks, dtype=np.int64), stated, self._base)
