"""Times of all frames, of a container that gives those of some."""

from __future__ import annotations

from typing import Final

import numpy as np

from streamvid.arrays import Float64, Int64
from streamvid.video.recordings import RESTART_FRAMES

NO_PTS: Final = -(1 << 63)
"""The time of a frame without one."""


def fill_gaps(times: Int64, durations: Int64) -> Int64:
    """Times of all frames, where a few have none, as FFmpeg reads none below 0 from Matroska. The times that there are
    stay what they are. Arguments and errors as of `fill_times`."""
    at, numbers = np.flatnonzero(times != NO_PTS), np.arange(len(times))
    usual = np.median(np.diff(times[at]) / np.diff(at)) if len(at) > 1 else np.median(durations)
    filled: Int64 = np.round(np.interp(numbers, at, times[at])).astype(np.int64)
    outside = np.minimum(numbers - at[0], 0) + np.maximum(numbers - at[-1], 0)
    filled += np.round(outside * usual).astype(np.int64)
    return _rising(filled)


def fill_times(times: Int64, durations: Int64) -> Int64:
    """The times of all frames of a container that gives those of packs, which may have several frames, as of MPEG
    program streams.

    A frame begins when the previous one ends, and stored times correct that. FFmpeg's parsers give a time to the wrong
    frame, too, if a start code lies across two packs. So one that two frames have is ignored and, where most agree with
    the frames' durations, one that is too early or a frame late.

    Args:
        times: int64 [frames], in display order, in ticks; -2**63 for frames without a time.
        durations: int64 [frames], in ticks; 0 if unknown.

    Returns:
        int64 [frames].

    Raises:
        ValueError: the times do not rise.
    """
    at = np.flatnonzero(times != NO_PTS)
    twice = np.concatenate([[False], np.diff(times[at]) == 0, [False]])
    at = at[~(twice[1:] | twice[:-1])]
    if not len(at):
        raise ValueError("its frames have the same time")
    if not (durations > 0).all():
        steps = np.diff(times[at]) / np.diff(at)
        durations = np.full(len(times), round(float(np.median(steps))) if len(steps) else 1)
    ends = np.cumsum(durations)
    ahead = times[at] - (ends - durations)[at]
    usual = np.median(durations)
    if len(at) > 2 and np.mean(np.abs(np.diff(ahead)) < usual / 2) > 0.5:
        parts = np.flatnonzero(np.diff(times[at]) < -RESTART_FRAMES * usual) + 1
        ahead = np.concatenate(
            [_smoothed(*part, usual) for part in zip(np.split(ahead, parts), np.split(times[at], parts), strict=True)]
        )
    # The clock falls back where recordings were joined; then the frames' durations continue the times.
    steps = np.diff(ahead)
    ahead -= np.concatenate([[0], np.cumsum(np.where(steps < -RESTART_FRAMES * usual, steps, 0))])
    filled: Int64 = ends - durations + np.round(np.interp(np.arange(len(times)), at, ahead)).astype(np.int64)
    return _rising(filled)


def _smoothed(ahead: Float64, times: Int64, usual: float) -> Float64:
    """How far the stored times of a recording are ahead of the frames' durations, corrected where a time is too early,
    a frame late, or later than the next. Times that are later by more come behind a pause.

    Args:
        ahead, times: [stored], in ticks, in display order.
        usual: a frame's duration in ticks.
    """
    if len(ahead) < 3:
        return ahead
    middle = np.median(np.stack([ahead[:-2], ahead[1:-1], ahead[2:]]), axis=0)
    middle = np.concatenate([ahead[:1], middle, middle[-1:]])
    is_wrong = (ahead - middle < 1.5 * usual) | (np.diff(times, append=times[-1] + 1) <= 0)
    return np.where(is_wrong, middle, ahead)


def _rising(times: Int64) -> Int64:
    if (np.diff(times) <= 0).any():
        raise ValueError("its times do not rise from frame to frame")
    return times
