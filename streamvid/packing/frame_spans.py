"""The frame spans of clips: cut times, lengths and scene changes → frame numbers.

A frame belongs to a cut if ``start <= t < end``, where t is its presentation time in seconds after the first frame.
Times are compared as fractions, so adjacent cuts neither lose a frame nor share one. `rounding` allows for rounded
times. Scenes are those of PySceneDetect's content detector; the frames are decoded here and passed to it with their own
timestamps, so that frame numbers are those of the frame index, also for variable rates and edit lists.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import av
import numpy as np

from streamvid.arrays import UInt8
from streamvid.checks import decimal
from streamvid.errors import InputError, VideoError
from streamvid.packing.options import Cut, FixedLength, PackOptions, RejectedCut, Scenes
from streamvid.packing.source_video import SourceVideo
from streamvid.text import first_line
from streamvid.video.probe import VideoFile
from streamvid.video.remux import as_video_error
from streamvid.video.stored_clip import StoredClip
from streamvid.video.trim import frame_end_ticks

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_ROUNDING: Final = Fraction(1, 2000)
"""Tolerance in seconds: a start or end so little after a frame's time means that frame. Lists round times to
milliseconds."""

_MAX_CLIPS: Final = 10**6
"""Clips of one video: their keys end in six digits."""


@dataclass(frozen=True)
class FrameSpan:
    """The frames of a clip in its video.

    Attributes:
        first, end: frame numbers, half open, first < end.
        cut: the row of the cut list that it is from; None without a cut list.
    """

    first: int
    end: int
    cut: Cut | None = None


def seconds_at(clip: StoredClip, ticks: int) -> Fraction:
    """Ticks of the clip's time base in seconds."""
    return Fraction(ticks * clip.time_base[0], clip.time_base[1])


def rounding(clip: StoredClip) -> Fraction:
    """The tolerance in seconds for the cuts of a clip: half a tick where those are longer, as its own times are rounded
    to ticks (QuickTime's 600ths, GIF's hundredths)."""
    return max(_ROUNDING, Fraction(*clip.time_base) / 2)


def frame_at(clip: StoredClip, time: Fraction) -> int:
    """The first frame displayed at `time` (seconds) or later; the number of frames if there is none."""
    ticks = math.ceil((time - rounding(clip)) * clip.time_base[1] / clip.time_base[0])
    return bisect.bisect_left(clip.index.frame_pts, ticks)


def fixed_spans(clip: StoredClip, rule: FixedLength) -> list[FrameSpan]:
    """Consecutive clips of one length. An interval in which no frame begins gives no clip.

    The tail policy applies to a last clip that is short by at least one frame: 10 s at 29.97 fps are 9.977 or 10.01 s.

    Raises:
        VideoError: the only clip is a tail, and is dropped.
    """
    length = decimal(rule.length)
    frames = len(clip.index.visible)
    if rule.unit == "frames":
        starts = list(range(0, frames, int(length)))
        short = frames % int(length) != 0
    else:
        # For each frame the number of its clip, by the rule of `frame_at`.
        allowed = rounding(clip)
        number = [(seconds_at(clip, pts) + allowed) // length for pts in clip.index.frame_pts.tolist()]
        starts = [n for n in range(frames) if n == 0 or number[n] != number[n - 1]]
        lacking = (number[-1] + 1) * length - seconds_at(clip, clip.duration)
        short = lacking >= seconds_at(clip, clip.duration - int(clip.index.frame_pts[-1]))
    if short and rule.tail == "merge" and len(starts) > 1:
        starts.pop()
    spans = [FrameSpan(first, end) for first, end in zip(starts, [*starts[1:], frames], strict=True)]
    if short and rule.tail == "drop":
        spans.pop()
    if not spans:
        raise VideoError(f"it is shorter than a clip of {rule.length:g} {rule.unit}")
    return spans


def scene_spans(clip: StoredClip, begins: Sequence[int]) -> list[FrameSpan]:
    """Clips from one scene change to the next.

    Args:
        begins: numbers of the frames that begin a scene, ascending; frame 0 may be left out.
    """
    starts = [0, *(first for first in begins if first > 0)]
    return [FrameSpan(first, end) for first, end in zip(starts, [*starts[1:], len(clip.index.visible)], strict=True)]


def cut_spans(clip: StoredClip, cuts: Sequence[Cut]) -> list[FrameSpan | RejectedCut]:
    """Clips of a cut list: rejected cuts, then spans in order of their starts.

    Ends behind the end of the video are moved to it, because durations are often rounded up.
    """
    made = [_cut_span(clip, cut) for cut in cuts]
    return sorted(made, key=lambda cut: (0, 0) if isinstance(cut, RejectedCut) else (cut.first + 1, cut.end))


def _cut_span(clip: StoredClip, cut: Cut) -> FrameSpan | RejectedCut:
    frames = len(clip.index.visible)
    if cut.unit == "frames":
        first = int(cut.start)
        end = frames if cut.end is None else min(int(cut.end), frames)
    else:
        first = frame_at(clip, decimal(cut.start))
        end = frames if cut.end is None else frame_at(clip, decimal(cut.end))
    if cut.frames is not None and first < end and end - first != cut.frames:
        return RejectedCut(f"the {describe_cut(cut)} holds {end - first} frames, and should hold {cut.frames}")
    if first < end:
        return FrameSpan(first, end, cut)
    if first >= frames:
        length = f"{frames} frames" if cut.unit == "frames" else f"{float(seconds_at(clip, clip.duration)):.6g} s"
        return RejectedCut(f"the {describe_cut(cut)} begins after the last frame of the video, which has {length}")
    return RejectedCut(f"the {describe_cut(cut)} holds no frame: no frame begins between its start and its end")


def describe_cut(cut: Cut) -> str:
    """A cut in words, for messages."""
    end = "the end" if cut.end is None else f"{cut.end:.10g}"
    return f"cut from {cut.start:.10g} to {end} ({cut.unit})"


def span_columns(clip: StoredClip, span: FrameSpan) -> dict[str, float | int]:
    """Metadata columns with the place of a clip in its video, in seconds after the first frame and in frame numbers."""
    return {
        "start": float(seconds_at(clip, int(clip.index.frame_pts[span.first]))),
        "end": float(seconds_at(clip, frame_end_ticks(clip, span.end - 1))),
        "start_frame": span.first,
        "end_frame": span.end,
    }


def source_spans(
    source: SourceVideo, whole: StoredClip, options: PackOptions
) -> tuple[list[FrameSpan], list[RejectedCut]]:
    """The frame span of each clip, and the listed cuts without a frame.

    Raises:
        VideoError: there would be no clip, or more than `_MAX_CLIPS`.
    """
    rejected: list[RejectedCut] = []
    match options.cutting:
        case None:
            found = cut_spans(whole, source.cuts or ())
            spans = [cut for cut in found if isinstance(cut, FrameSpan)]
            rejected = [cut for cut in found if isinstance(cut, RejectedCut)]
            if not spans:
                raise no_clip(rejected) if rejected else VideoError("no cuts are listed for it")
        case FixedLength() as rule:
            spans = fixed_spans(whole, rule)
        case Scenes() as rule:
            with as_video_error():
                spans = scene_spans(whole, scene_starts(whole, rule))
    if len(spans) > _MAX_CLIPS:
        raise VideoError(f"it would be cut into {len(spans)} clips; the limit is {_MAX_CLIPS}")
    return spans, rejected


def no_clip(rejected: Sequence[RejectedCut]) -> VideoError:
    """The error for a video of which all cuts are rejected."""
    others = f", and so with the {len(rejected) - 1} others" if len(rejected) > 1 else ""
    return VideoError(rejected[0].reason + others)


_WIDTH: Final = 256
"""Pixels; frames are downscaled to about this width before they are compared, as PySceneDetect does by default."""


def need_scenedetect() -> None:
    """Raise InputError if PySceneDetect is not installed."""
    try:
        import scenedetect  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"finding scenes needs PySceneDetect, which cannot be imported ({first_line(error)}): "
            "pip install 'streamvid[scenes]'"
        ) from error


def scene_versions(options: PackOptions) -> dict[str, str]:
    """Versions of the libraries that scene detection depends on; empty if the options do not cut at scenes."""
    if not isinstance(options.cutting, Scenes):
        return {}
    import cv2
    import scenedetect

    return {"scenedetect": scenedetect.__version__, "opencv": cv2.__version__}


def scene_starts(clip: StoredClip, rule: Scenes) -> list[int]:
    """Numbers of the frames that begin a new scene, ascending, without frame 0.

    Args:
        clip: the whole video, with its packets in a file.

    Raises:
        FFmpegError: the file cannot be read.
    """
    from scenedetect.common import FrameTimecode, Timecode
    from scenedetect.detectors import ContentDetector

    base = Fraction(*clip.time_base)
    frames = len(clip.index.visible)
    # FrameTimecode needs a frame rate, but only to print; the detector compares exact times.
    rate = max(Fraction(1), frames / (clip.duration * base))
    detector = ContentDetector(min_scene_len=float(rule.min_length))
    found: list[Any] = []
    time = FrameTimecode(Timecode(0, base), rate)
    for pts, frame in _shown_frames(clip):
        time = FrameTimecode(Timecode(pts, base), rate)
        found += detector.process_frame(time, _small(frame, clip))
    found += detector.post_process(time)
    starts = np.searchsorted(clip.index.frame_pts, sorted({frame.pts for frame in found}))
    return [int(number) for number in starts if number > 0]


def _shown_frames(clip: StoredClip) -> Iterator[tuple[int, VideoFrame]]:
    """The displayed frames, each with its pts as in the frame index. Without those that do not decode: their clips are
    rejected later."""
    visible = set(clip.index.frame_pts.tolist())
    shift: int | None = None
    with VideoFile(clip.mp4).open(apply_edits=False) as (container, stream):
        assert stream.time_base is not None
        scale = stream.time_base / Fraction(*clip.time_base)
        for packet in container.demux(stream):
            if shift is None and packet.pts is not None:
                shift = int(packet.pts * scale) - int(clip.index.pts[0])
            frames: list[VideoFrame] = []
            with suppress(av.error.InvalidDataError):
                frames = packet.decode()
            for frame in frames:
                if frame.pts is not None and shift is not None and (pts := int(frame.pts * scale) - shift) in visible:
                    yield pts, frame


def _small(frame: VideoFrame, clip: StoredClip) -> UInt8:
    scale = min(1.0, _WIDTH / clip.width)
    width, height = max(1, round(clip.width * scale)), max(1, round(clip.height * scale))
    picture = frame.reformat(width=width, height=height, format="bgr24", interpolation="AREA").to_ndarray()
    return picture.astype(np.uint8, copy=False)
