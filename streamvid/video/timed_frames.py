"""Frames to be encoded, decoded from a stored clip or from a file, with the times at which they are on screen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import av
import numpy as np

from streamvid.arrays import Int64
from streamvid.bitstream.h264_gaps import FrameNumbers
from streamvid.color.tags import siting_name, usual_siting
from streamvid.mp4.edit_list import read_edit
from streamvid.video.frame_index import HIDDEN, LEADING
from streamvid.video.frame_tags import TagKeepingDecoder
from streamvid.video.probe import VideoFile, frame_rotation, probe_first_frame
from streamvid.video.raw_rate import frame_rate
from streamvid.video.recordings import whole_packets
from streamvid.video.stored_clip import StoredClip
from streamvid.video.timestamps import NoTimesError, decoded_times

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream


class TimedFrame(NamedTuple):
    """A frame, and the ticks at which it appears and disappears; the same tick twice if its end is unknown."""

    frame: VideoFrame
    begin: int
    end: int


@dataclass(frozen=True)
class TimedFrames:
    """Frames to be encoded, with their presentation times.

    Attributes:
        frames: frames in the order of their times; read once. Only the last one's end counts.
        time_base: seconds per tick.
        rate: approximate frames per second, for the encoder's rate control.
        rotation: the display rotation, one of `streamvid.mp4.boxes.ROTATIONS`; written to the MP4, not applied.
        tags: the clip's `color_space` and `color_range`; None: the frames' own.
        siting: siting of the chroma, FFmpeg's name. H.264 and HEVC are tagged if it is not "left"; VP9 and AV1 have no
            tag for the centre.
    """

    frames: Iterable[TimedFrame]
    time_base: Fraction
    rate: Fraction
    rotation: int = 0
    tags: tuple[str, str] | None = None
    siting: str = "left"


def frames_of_clip(clip: StoredClip) -> TimedFrames:
    """The displayed frames of a clip that was stored by copying, by its index.

    Decoding raises ValueError if a frame is missing or damaged.
    """
    base = Fraction(*clip.time_base)
    shown = clip.index.frame_pts
    rate = Fraction(len(shown)) / (Fraction(clip.duration) * base) if clip.duration > 0 else Fraction(25)
    tags = clip.color_space, clip.color_range
    return TimedFrames(_decode_clip(clip), base, rate, clip.rotation, tags, siting_name(clip.color.siting))


def _decode_clip(clip: StoredClip) -> Iterator[TimedFrame]:
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
    ends = np.append(times[1:], times[:1] + clip.duration)
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
            yield TimedFrame(frame, int(times[expected]), int(ends[expected]))
            expected += 1
    if expected != len(wanted):
        raise ValueError(f"frame {expected} of it is damaged or missing")


def frames_of_file(source: VideoFile, *, by_order: bool = False) -> TimedFrames:
    """The displayed frames of a file, for codecs that cannot be stored, by its timestamps and edit list.

    Args:
        by_order: as of `decoded_times`.

    Raises:
        VideoError, ValueError: no frame is displayed, or times are missing; decoding raises them, too.
    """
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
    frames, base = (_decode_file(source), base) if times is None else (_decode_dated(source, *times), times[1])
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


def _decode_stream(source: VideoFile, rate: Fraction) -> Iterator[TimedFrame]:
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
            shown = round(2 * rate * frame.duration * frame.time_base) if repeats and frame.time_base else 2
            end = ticks + max(shown, 2)
            yield TimedFrame(frame, ticks, end)
            ticks = end


def _decode_dated(source: VideoFile, times: Int64, base: Fraction) -> Iterator[TimedFrame]:
    """All frames of a file, in order, at `times`, int64 [frames], in ticks of `base` seconds."""
    number = 0
    with source.open() as (container, stream):
        for number, frame in enumerate(_decoded(source, container, stream), start=1):
            if frame.is_corrupt or number > len(times):
                raise ValueError(f"frame {number - 1} of it is damaged or has no time")
            begin, lasts = int(times[number - 1]), frame.duration * (frame.time_base or base) / base
            yield TimedFrame(frame, begin, begin + round(lasts))
    if number != len(times):
        raise ValueError(f"its {len(times)} packets decode to {number} frames, and it holds no times to match them")


def _decode_file(source: VideoFile) -> Iterator[TimedFrame]:
    """The displayed frames of a file, by its edit list, with their times."""
    with source.open() as (_, stream):
        shown = read_edit(source.path, stream.id)
    # FFmpeg loses frames where an edit ends (`streamvid.video.timestamps`).
    with source.open(apply_edits=shown is None) as (container, stream):
        for number, frame in enumerate(_decoded(source, container, stream)):
            if frame.pts is None or frame.is_corrupt:
                raise ValueError(f"frame {number} of it is damaged or has no time")
            if shown is None or shown.begin <= frame.pts < shown.end:
                end = frame.pts + frame.duration
                yield TimedFrame(frame, frame.pts, end if shown is None else min(end, shown.end))
