"""Transcoding: frames → an MP4 with closed GOPs, in 4:2:0.

The MP4 is then stored like any other video (`streamvid.video.remux`). Encoders run with one thread, and with options
for the same bytes on every machine; docs/packing.md has the cost of that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import av
import numpy as np

from streamvid.arrays import Int64
from streamvid.bitstream.h264_gaps import FrameNumbers
from streamvid.bitstream.image import MAX_SIDE
from streamvid.checks import decimal, is_integer, is_real, shown, suggesting
from streamvid.color.tags import siting_name, usual_siting
from streamvid.errors import InputError, VideoError
from streamvid.mp4.boxes import write_rotation
from streamvid.mp4.edit_list import read_edit
from streamvid.video.encoders import ENCODERS, TARGETS, Target, encoder_options, leave_real_time
from streamvid.video.frame_index import HIDDEN, LEADING
from streamvid.video.frame_tags import TagKeepingDecoder
from streamvid.video.packet_times import last_frame_duration
from streamvid.video.pixel_format import EncoderFormat
from streamvid.video.probe import VideoFile, frame_rotation, probe_first_frame
from streamvid.video.raw_rate import frame_rate
from streamvid.video.recordings import whole_packets
from streamvid.video.remux import as_video_error
from streamvid.video.stored_clip import StoredClip
from streamvid.video.timestamps import NoTimesError, decoded_times

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

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


@dataclass(frozen=True)
class TimedFrames:
    """Frames to be encoded, with their presentation times.

    Attributes:
        frames: frames with their times in ticks, ascending; read once.
        time_base: seconds per tick.
        rate: approximate frames per second, for the encoder's rate control.
        rotation: the display rotation, one of `streamvid.mp4.boxes.ROTATIONS`; written to the MP4, not applied.
        end: the tick at which the last frame ends; None if unknown.
        tags: the clip's `color_space` and `color_range`; None: the frames' own.
        siting: siting of the chroma, FFmpeg's name. H.264 and HEVC are tagged if it is not "left"; VP9 and AV1 have no
            tag for the centre.
    """

    frames: Iterable[tuple[VideoFrame, int]]
    time_base: Fraction
    rate: Fraction
    rotation: int = 0
    end: int | None = None
    tags: tuple[str, str] | None = None
    siting: str = "left"


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
            encode(_frames_of_clip(source), target, options, keyframes=keyframes)
            return
        file = VideoFile(source) if isinstance(source, Path) else source
        try:
            encode(_frames_of_file(file), target, options, keyframes=keyframes)
        except _TimesFallError:
            encode(_frames_of_file(file, by_order=True), target, options, keyframes=keyframes)


def encode(
    source: TimedFrames, target: Path, options: TranscodeOptions, *, keyframes: Sequence[Fraction | float] = ()
) -> None:
    """Encode frames into an MP4. Memory grows only by 8 bytes per frame.

    Args:
        target, options, keyframes: as in `transcode`.

    Raises:
        VideoError: a frame is damaged, or times do not ascend.
    """
    frames = _limit_fps(source, options.max_fps)
    first = next(frames, None)
    if first is None:
        raise VideoError("not one frame of it can be decoded")
    encoder_format = EncoderFormat(first[0], options.codec, options.short_side, source.tags)
    rate = min(source.rate, options.max_fps or source.rate).limit_denominator(1001)
    encoder = ENCODERS[options.codec]
    if not 1 <= rate <= encoder.most_fps:
        rate = Fraction(25)
    ticks = str(source.time_base.denominator)
    muxer_options = {"movflags": "+faststart", "fflags": "+bitexact", "video_track_timescale": ticks}
    settings = encoder_options(options.codec, gop=options.gop, crf=options.crf, width=encoder_format.size[0])
    # From chroma at full width, swscale makes samples in the centre.
    siting = "center" if first[0].format.chroma_width(2) > 1 else source.siting
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
        clock = _FrameClock(source.time_base, keyframes)

        def packets() -> Iterator[Packet[Any]]:
            for frame, ticks in chain([first], frames):
                number, key = clock.add(ticks)
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
            held.duration = clock.last_duration(source.end)
            output.mux(held)
    if source.rotation:
        with target.open("r+b") as file:
            write_rotation(file, source.rotation, width=encoder_format.size[0], height=encoder_format.size[1])


class _TimesFallError(VideoError):
    """Frames whose times do not rise."""


class _FrameClock:
    """Translates the encoder's frame numbers to times, and decides which frames must be key frames.

    Args:
        time_base: seconds per tick.
        keyframes: seconds from the first frame, as in `transcode`.
    """

    def __init__(self, time_base: Fraction, keyframes: Sequence[Fraction | float]) -> None:
        self._base = time_base
        self._due = sorted(Fraction(at) for at in keyframes)[::-1]
        self._ticks: list[int] = []

    def add(self, ticks: int) -> tuple[int, bool]:
        """The next frame's number, and whether it must be a key frame."""
        if self._ticks and ticks <= self._ticks[-1]:
            raise _TimesFallError("its times do not rise from frame to frame")
        self._ticks.append(ticks)
        key = False
        while self._due and self._due[-1] <= (ticks - self._ticks[0]) * self._base:
            self._due.pop()
            key = True
        return len(self._ticks) - 1, key

    def pts(self, number: int) -> int:
        """Ticks from the first frame to frame `number`."""
        return self._ticks[number] - self._ticks[0]

    def dts(self, number: int) -> int:
        """The decode time for the packet whose number in decode order minus `Encoder.reorder_frames` is `number`. It
        ascends, and is never after the presentation time."""
        return self.pts(number) if number >= 0 else number

    def last_duration(self, end: int | None) -> int:
        """Duration of the last frame in ticks, if it ends at the tick `end`."""
        left = 0 if end is None else end - self._ticks[-1]
        return last_frame_duration(np.array(self._ticks, dtype=np.int64), left, self._base)


def _limit_fps(source: TimedFrames, max_fps: Fraction | None) -> Iterator[tuple[VideoFrame, int]]:
    """Drop frames that exceed the rate, on a grid of times that restarts after a gap.

    Frames may be early by a millisecond, as some containers round to them: 33, 67 and 100 ms are 30 frames per second.
    """
    if max_fps is None:
        yield from source.frames
        return
    step = 1 / (max_fps * source.time_base)
    slack = min(max(Fraction(1), Fraction(1, 1000) / source.time_base), step / 4)
    due: Fraction | None = None
    for frame, ticks in source.frames:
        if due is None or ticks >= due + step:
            due = Fraction(ticks)
        if ticks + slack >= due:
            due += step
            yield frame, ticks


def _frames_of_clip(clip: StoredClip) -> TimedFrames:
    base = Fraction(*clip.time_base)
    shown = clip.index.frame_pts
    rate = Fraction(len(shown)) / (Fraction(clip.duration) * base) if clip.duration > 0 else Fraction(25)
    end, tags = int(shown[0]) + clip.duration, (clip.color_space, clip.color_range)
    return TimedFrames(_decode_clip(clip), base, rate, clip.rotation, end, tags, siting_name(clip.color.siting))


def _decode_clip(clip: StoredClip) -> Iterator[tuple[VideoFrame, int]]:
    """The visible frames with their times from the index: exactly one for every visible packet, or an error. Of frames
    with one time, as a copy may have, each is a tick behind the one before."""
    index = clip.index
    order = np.argsort(index.pts, kind="stable")
    display_order = np.argsort(order)
    visible = (index.flags[order] & HIDDEN) == 0
    # Visible frames may be predicted from hidden ones, except leading pictures whose references are missing.
    needed = visible | ((index.flags[order] & LEADING) == 0)
    # FFmpeg takes the distances of interlaced VOPs from a first B-VOP, even if its references are missing.
    missing = range(1, 1 + int(np.cumprod(~needed[display_order[1:]]).sum()) if clip.codec == "mpeg4" else 1)
    wanted, expected = np.flatnonzero(visible), 0
    at = np.arange(len(wanted))
    times = np.maximum.accumulate(index.pts[order][wanted] - at) + at
    with VideoFile(clip.mp4).open(apply_edits=False) as (container, stream):
        context = stream.codec_context
        frame_numbers = FrameNumbers(clip.stsd if clip.codec == "h264" else b"")

        def decoded() -> Iterator[VideoFrame]:
            for number, packet in enumerate(p for p in container.demux(stream) if p.size):
                # Decoders return a packet's pts with its frame, and ranks by presentation time are unique.
                packet.pts = rank = int(display_order[number])
                seen = bool(visible[rank])
                if frame_numbers.gap_before(memoryview(packet), starts=not number, rank=rank, wanted=seen):
                    raise ValueError(f"reference pictures are missing before its packet {number}")
                yield from context.decode(packet) if number not in missing else ()
            yield from context.decode(None)

        for frame in decoded():
            if frame.pts is None or not (visible[frame.pts] or (frame.is_corrupt and needed[frame.pts])):
                continue
            if frame.is_corrupt or expected == len(wanted) or frame.pts != wanted[expected]:
                raise ValueError(f"frame {expected} of it is damaged or missing")
            expected += 1
            yield frame, int(times[expected - 1])
    if expected != len(wanted):
        raise ValueError(f"frame {expected} of it is damaged or missing")


def _frames_of_file(source: VideoFile, *, by_order: bool = False) -> TimedFrames:
    """Args: `by_order`, as of `decoded_times`."""
    with source.open() as (container, stream):
        first, base, rate = next(_decoded(source, container, stream), None), stream.time_base, stream.average_rate
        codec, name = stream.codec_context.codec.canonical_name, container.format.name.split(",")[0]
        if first is None or base is None:
            probe_first_frame(source)  # raises an error if none can be decoded
            raise ValueError("all its frames are hidden by an edit list")
        rotation = frame_rotation(first, source.path)
    try:
        times = decoded_times(source, codec, name, by_order=by_order)
    except NoTimesError:
        rate = frame_rate(source)
        return TimedFrames(_decode_stream(source, rate), 1 / (2 * rate), rate, rotation, siting=usual_siting(codec))
    frames, base = (_decode_file(source), base) if times is None else (_decode_dated(source, times[0]), times[1])
    return TimedFrames(frames, base, rate or Fraction(25), rotation, siting=usual_siting(codec))


def _decoded(source: VideoFile, container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    """The frames of a track, without a last one that is cut off, and without those before the first key frame that
    cannot be decoded. Packets without data, which in Ogg stand for a frame that is shown on, give none."""
    started, decoder = False, TagKeepingDecoder(stream.codec_context)
    for packet in whole_packets(container, stream, cut_off=source.cut_off):
        started = started or packet.is_keyframe
        with nullcontext() if started else suppress(av.error.InvalidDataError):
            for frame in decoder.decode(packet) if packet.size else ():
                started = True
                yield frame
    yield from decoder.decode(None)


def _decode_stream(source: VideoFile, rate: Fraction) -> Iterator[tuple[VideoFrame, int]]:
    """The frames of a file without times, with times by the frame rate, in halves of a frame.

    MPEG-2 may show a frame for one and a half or more (repeat_first_field), as film at 24 frames per second is stored
    at 30. FFmpeg's parser adds that to the duration.
    """
    ticks = 0
    with source.open() as (container, stream):
        repeats = stream.codec_context.codec.canonical_name == "mpeg2video"
        for number, frame in enumerate(_decoded(source, container, stream)):
            if frame.is_corrupt:
                raise ValueError(f"frame {number} of it is damaged")
            # Before the frame is given away, as the encoder sets its times.
            shown = round(2 * rate * frame.duration * frame.time_base) if repeats and frame.time_base else 2
            yield frame, ticks
            ticks += max(shown, 2)


def _decode_dated(source: VideoFile, times: Int64) -> Iterator[tuple[VideoFrame, int]]:
    """All frames of a file, in order, at `times`, int64 [frames]."""
    number = 0
    with source.open() as (container, stream):
        for number, frame in enumerate(_decoded(source, container, stream), start=1):
            if frame.is_corrupt or number > len(times):
                raise ValueError(f"frame {number - 1} of it is damaged or has no time")
            yield frame, int(times[number - 1])
    if number != len(times):
        raise ValueError(f"its {len(times)} packets decode to {number} frames, and it holds no times to match them")


def _decode_file(source: VideoFile) -> Iterator[tuple[VideoFrame, int]]:
    """The displayed frames of a file, by its edit list, with their times."""
    with source.open() as (_, stream):
        shown = read_edit(source.path, stream.id)
    # FFmpeg loses frames where an edit ends (`streamvid.video.timestamps`).
    with source.open(apply_edits=shown is None) as (container, stream):
        for number, frame in enumerate(_decoded(source, container, stream)):
            if frame.pts is None or frame.is_corrupt:
                raise ValueError(f"frame {number} of it is damaged or has no time")
            if shown is None or shown.begin <= frame.pts < shown.end:
                yield frame, frame.pts
