"""The packets of a video track with their times, which become the clip's."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import numpy as np

from streamvid.arrays import Bool, Int64

_MOST_TICKS: Final = (1 << 31) - 1
"""From packet to packet in an MP4 (`stts`), as FFmpeg writes and reads it."""
_GIF: Final = 100
"""Ticks per second of GIF's clock."""
_QUICKTIME: Final = 600
"""Ticks per second of QuickTime's clock: apart from GIF's the slowest to which containers round times."""
_FINEST: Final = 10_000
"""Ticks per second that FFmpeg's muxer has at least (movenc.c), by doubling them."""


@dataclass(frozen=True)
class PacketTimes:
    """The packets of a file's video track, in decode order.

    Attributes:
        pts: int64 [packets], in ticks of `time_base`.
        size: int64 [packets], in bytes.
        keyframe: bool [packets], the container's key frame flags.
        hidden: bool [packets], whether an edit list cuts the packet off.
        last_duration: duration in ticks of the last packet that has one; 0 if none has.
        time_base: seconds per tick, as (numerator, denominator).
        edits_applied: whether FFmpeg applied the edit lists when it demuxed these packets.
        num_skipped: number of packets that the demuxer returns before these, and that are left out.
        overlaps: whether FFmpeg hides some, because their MP4 fragment begins before the end of the one before.
        incomplete: bool [packets], whether pieces of the packet, or packets before it since the last key frame, are
            missing; None: nothing is.
    """

    pts: Int64
    size: Int64
    keyframe: Bool
    hidden: Bool
    last_duration: int
    time_base: tuple[int, int]
    edits_applied: bool = True
    num_skipped: int = 0
    overlaps: bool = False
    incomplete: Bool | None = None

    def up_to_last_visible(self) -> PacketTimes:
        """A copy without the packets after the last visible one in decode order, on which no frame depends.

        Raises:
            ValueError: no packet is visible.
        """
        shown = np.flatnonzero(~self.hidden)
        if len(shown) == 0:
            raise ValueError("all its frames are hidden by an edit list")
        return self.rows(slice(0, int(shown[-1]) + 1))

    def rows(self, rows: slice) -> PacketTimes:
        """A copy with some of the packets."""
        return replace(
            self,
            pts=self.pts[rows],
            size=self.size[rows],
            keyframe=self.keyframe[rows],
            hidden=self.hidden[rows],
            incomplete=None if self.incomplete is None else self.incomplete[rows],
        )

    def in_coarsest_ticks(self) -> PacketTimes:
        """A copy in the largest ticks that have all its times; the first visible frame is at 0.

        FFmpeg's MP4 muxer divides the ticks of its sources, milliseconds into 16. Their times are rounded to the
        undivided ones, which samplers have to know (`streamvid.sampling.windows`). Where frames are one such tick
        apart, or no container has such a slow clock, times are not rounded: the ticks, `_FINEST` or more, have the end
        of the last frame, too.
        """
        num, den = self.time_base
        times = (self.pts - self.origin) * num
        common = math.gcd(int(np.gcd.reduce(times)), den)
        ticks, factor = den // common, 1
        rounded = ticks >= _QUICKTIME or ticks == den == _GIF
        if not rounded or np.median(np.diff(np.unique(times))) == common:
            common = math.gcd(common, self.last_duration * num)
            ticks = den // common
            while factor * ticks < _FINEST:
                factor *= 2
        last = max(round(self.last_duration * num * factor / common), min(self.last_duration, 1))  # 0 is not stated
        return replace(self, pts=times // common * factor, last_duration=last, time_base=(1, factor * ticks))

    @property
    def origin(self) -> int:
        """The first visible frame's pts."""
        return int(self.pts[~self.hidden].min())

    def last_frame_ticks(self) -> int:
        """Duration of the last frame in ticks: see `last_frame_duration`."""
        return last_frame_duration(np.unique(self.pts[~self.hidden]), self.last_duration, Fraction(*self.time_base))


def last_frame_duration(times: Int64, stated: int, time_base: Fraction) -> int:
    """Duration of the last frame of a video in ticks.

    Args:
        times: int64 [frames], presentation times of the displayed frames, ascending.
        stated: the duration in the container, in ticks.
        time_base: seconds per tick.

    Returns:
        `stated`, if that is at most 10 times the longest distance of frames, and not less than 2 ms where they are
        twice as far apart: FFmpeg's muxer may write 1 tick. Else the median distance, or 1/25 s for a single frame.
        If it is longer than the shortest distance by up to 1/600 s, rounded up to a tick, times are rounded, and it is
        that: the end may not lie behind a next frame's time, or a window at the clip's own rate would show the last
        frame twice.
    """
    steps = np.diff(times)
    typical = int(np.median(steps)) if len(steps) else max(1, round(1 / time_base / 25))
    shortest = int(steps.min()) if len(steps) else 0
    longest = max(int(steps.max(initial=0)), typical)
    least = min(Fraction(shortest, 2), 1 / (500 * time_base))
    found = stated if stated > 0 and least <= stated <= 10 * longest else max(typical, 1)
    return shortest if 0 < shortest < found <= shortest + math.ceil(1 / (_QUICKTIME * time_base)) else found


def fit_pauses(times: Int64, time_base: Fraction) -> tuple[Int64, Fraction]:
    """Times whose pauses an MP4 can have, as of a camera that records only when something moves: where one is too long
    (7 hours in the ticks of a transport stream), in ticks of 0.1 ms.

    Args:
        times: int64 [frames], in any order, in ticks.
        time_base: seconds per tick.

    Returns:
        the times, and seconds per tick; as given if no pause is too long.

    Raises:
        ValueError: one is too long for these ticks, too.
    """
    pause = int(np.diff(np.sort(times)).max(initial=0))
    # A clip may have more ticks: `PacketTimes.in_coarsest_ticks`.
    if pause * max(Fraction(1), time_base * 2 * _FINEST) <= _MOST_TICKS:
        return times, time_base
    if (seconds := pause * time_base) * _FINEST > _MOST_TICKS:
        raise ValueError(
            f"it has a pause of {float(seconds / 3600):.0f} hours, and an MP4 at most one of 59: split it there first"
        )
    first = int(times.min())
    ticks = [round((time - first) * time_base * _FINEST) for time in times.tolist()]
    return np.array(ticks, dtype=np.int64), Fraction(1, _FINEST)
