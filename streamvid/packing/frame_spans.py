"""Which frames of a video each of its clips gets. Pure: times in, frame numbers out.

Times are compared as fractions, never as floats, and one rule holds for starts and for ends: a frame belongs to a cut
if ``start <= t < end``, where t is when it is shown. So cuts that meet neither lose a frame nor share one, whatever is
rounded. What is rounded is the list: see `ROUNDING`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from streamvid.errors import VideoError
from streamvid.packing.options import Cut, FixedLength, Refused
from streamvid.video.stored_clip import StoredClip
from streamvid.video.trim import frame_end

ROUNDING: Final = Fraction(1, 2000)
"""Seconds by which a start or end may lie behind a frame's time and still mean that frame: lists, and Matroska files,
round times to milliseconds."""


@dataclass(frozen=True)
class FrameSpan:
    """Frames of a video that become a clip.

    Attributes:
        first, end: frame numbers, first < end.
        cut: the listed cut that asks for it, if one does.
    """

    first: int
    end: int
    cut: Cut | None = None


def exact(number: float) -> Fraction:
    """A number as it is written in decimal: 0.1 is a tenth, not the binary fraction nearest to it."""
    return Fraction(repr(float(number)))


def seconds_at(clip: StoredClip, ticks: int) -> Fraction:
    """Ticks of a clip as seconds."""
    return Fraction(ticks * clip.time_base[0], clip.time_base[1])


def frame_at(clip: StoredClip, time: Fraction) -> int:
    """The first frame that is shown at `time`, in seconds, or later; the number of frames if none is."""
    ticks = math.ceil((time - ROUNDING) * clip.time_base[1] / clip.time_base[0])
    return bisect.bisect_left(clip.index.frame_pts, ticks)


def fixed_spans(clip: StoredClip, rule: FixedLength) -> list[FrameSpan]:
    """Clips of one length. Stretches in which no frame comes on screen give no clip.

    A last clip that lacks less than a frame is not too short: 10 s of 29.97 frames a second are 9.977 or 10.01 s.

    Raises:
        VideoError: the tail is dropped, and nothing else is there.
    """
    length = exact(rule.length)
    frames = len(clip.index.visible)
    if rule.unit == "frames":
        starts = list(range(0, frames, int(length)))
        short = frames % int(length) != 0
    else:
        # Which clip each frame falls into: the same rule as `frame_at`, for all starts at once.
        times = (seconds_at(clip, pts) + ROUNDING for pts in clip.index.frame_pts.tolist())
        number = [time // length for time in times]
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
    """Clips from one change of scene to the next.

    Args:
        begins: the numbers of the frames that begin a scene, rising; frame 0 does in any case.
    """
    starts = [0, *(first for first in begins if first > 0)]
    return [FrameSpan(first, end) for first, end in zip(starts, [*starts[1:], len(clip.index.visible)], strict=True)]


def cut_spans(clip: StoredClip, cuts: Sequence[Cut]) -> list[FrameSpan | Refused]:
    """Clips as a list wants them, in order of their starts. Ends behind the video's are moved to it: durations are
    often given rounded up."""
    made = [_cut_span(clip, cut) for cut in cuts]
    refused: list[FrameSpan | Refused] = [one for one in made if isinstance(one, Refused)]
    spans = [one for one in made if isinstance(one, FrameSpan)]
    return [*refused, *sorted(spans, key=lambda span: (span.first, span.end))]


def _cut_span(clip: StoredClip, cut: Cut) -> FrameSpan | Refused:
    frames = len(clip.index.visible)
    if cut.unit == "frames":
        first = int(cut.start)
        end = frames if cut.end is None else min(int(cut.end), frames)
    else:
        first = frame_at(clip, exact(cut.start))
        end = frames if cut.end is None else frame_at(clip, exact(cut.end))
    if first < end:
        return FrameSpan(first, end, cut)
    if first >= frames:
        length = f"{frames} frames" if cut.unit == "frames" else f"{float(seconds_at(clip, clip.duration)):.6g} s"
        return Refused(f"the {called(cut)} begins behind the last frame of the video, which has {length}")
    return Refused(f"the {called(cut)} holds no frame: none comes on screen between its start and its end")


def called(cut: Cut) -> str:
    """A cut in a message."""
    end = "the end" if cut.end is None else f"{cut.end:.10g}"
    return f"cut from {cut.start:.10g} to {end} ({cut.unit})"


def span_columns(clip: StoredClip, span: FrameSpan) -> dict[str, float | int]:
    """Where a clip was cut out, as its metadata say it: in seconds from the video's first frame, and in frames."""
    return {
        "start": float(seconds_at(clip, int(clip.index.frame_pts[span.first]))),
        "end": float(seconds_at(clip, frame_end(clip, span.end - 1))),
        "start_frame": span.first,
        "end_frame": span.end,
    }
