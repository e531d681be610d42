"""Recordings that were joined byte by byte: the times of their parts, and whether pieces of a transport stream are
missing or only begin anew."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from streamvid.arrays import Bool, Int64, UInt8

_PIECE: Final = 188
_LAYOUTS: Final = ((188, 0), (192, 4), (204, 0))
"""Distance of pieces, and bytes before each: plain, with times as in M2TS, with a code that corrects errors."""
_SYNC: Final = 0x47
RESTART_FRAMES: Final = 10
"""A clock that falls back by more frames than this is one that begins anew."""


def follow_on(pts: Int64, keyframe: Bool, duration: Int64) -> tuple[Int64, Int64]:
    """Presentation times in which each part of a joined recording follows the one before, at the usual distance of its
    frames. A part begins with a key frame whose time is far before that of an earlier frame.

    Args:
        pts, keyframe, duration: [packets], in decode order: times in ticks, the container's flags, and durations in
            ticks, 0 if unknown.

    Returns:
        int64 [packets], the times, and int64 [parts - 1], the packets with which further parts begin.
    """
    made, parts, keys = pts.copy(), [0], np.flatnonzero(keyframe)
    if not len(keys):
        return made, keys
    lows, highs = np.minimum.reduceat(pts, keys).tolist(), np.maximum.reduceat(pts, keys).tolist()
    highest = highs[0]
    for key, low, high in zip(keys.tolist()[1:], lows[1:], highs[1:], strict=True):
        if pts[key] < highest:
            part = slice(parts[-1], key)
            steps = np.diff(np.unique(pts[part]))
            usual = int(np.median(steps)) if len(steps) else max(1, int(duration[key - 1]))
            if pts[key] < highest - RESTART_FRAMES * usual:
                made[key:] = pts[key:] + (made[part].max() + usual - low)
                parts.append(key)
                highest = high
        highest = max(highest, high)
    return made, np.array(parts[1:], dtype=np.int64)


def is_whole(source: Path, pid: int) -> bool:
    """Whether nothing is missing of a track where the numbers of its pieces (continuity_counter) do not go on, as where
    files were joined: `cat a.ts b.ts`, or what FFmpeg's segment muxer wrote. FFmpeg marks packets there as corrupt.

    The piece behind such a place must begin a PES packet from which decoding can start (random_access_indicator), and
    the piece before it end one: by the length that is stated or, as video mostly states none, by stuffing, which only
    the last piece of a PES packet has. What was cut off within a PES packet fails, and so does one in 184 that needs no
    stuffing.

    Args:
        pid: the track's packet identifier.

    References: ISO/IEC 13818-1, 2.4.3.2 to 2.4.3.7.
    """
    pieces = _pieces(np.memmap(source, dtype=np.uint8, mode="r"), pid)
    has_payload, adapted = pieces[:, 3] & 0x10 != 0, pieces[:, 3] & 0x20 != 0
    length = np.where(adapted, pieces[:, 4].astype(np.int64) + 1, 0)
    flags = np.where(length > 1, pieces[:, 5], 0)
    size = np.where(has_payload, _PIECE - 4 - length, 0)
    begins = has_payload & (pieces[:, 1] & 0x40 != 0)
    starts = np.flatnonzero(begins)
    if not len(starts) or (size < 0).any() or (pieces[:, 1] & 0x80).any():  # transport_error_indicator
        return False
    # The adaptation field holds flags, PCR, OPCR and splice_countdown. Others of its fields are not looked at.
    fields = 2 + 6 * (flags >> 4 & 1) + 6 * (flags >> 3 & 1) + (flags >> 2 & 1)
    stuffed = adapted & ((length == 1) | ((flags & 3 == 0) & (length > fields)))
    last = np.maximum.reduceat(np.where(has_payload, np.arange(len(pieces)), 0), starts)
    stated = _stated_sizes(pieces[starts], _PIECE - size[starts])
    full = np.add.reduceat(size, starts) == stated
    counter = pieces[:, 3] & 15
    goes_on = (flags & 0x80 != 0) | (counter == np.roll(counter, 1) + has_payload & 15)  # discontinuity_indicator
    breaks = np.flatnonzero(~goes_on[1:]) + 1
    before = np.searchsorted(starts, breaks) - 1
    ends = np.where(stated > 0, full, stuffed[last])[before] | (before < 0)
    return bool((begins & (flags & 0x40 != 0))[breaks].all() and ends.all() and full[stated > 0].all())


def _pieces(data: UInt8, pid: int) -> UInt8:
    """uint8 [pieces, 188]: those of a track; none if the stream does not consist of pieces."""
    for step, before in _LAYOUTS:
        rows = data[: len(data) // step * step].reshape(-1, step)[:, before : before + _PIECE]
        if (rows[:, 0] == _SYNC).all():
            return np.asarray(rows[((rows[:, 1] & 0x1F).astype(np.int64) << 8 | rows[:, 2]) == pid])
    return np.empty((0, _PIECE), dtype=np.uint8)


def _stated_sizes(first: UInt8, at: Int64) -> Int64:
    """int64 [packets]: sizes of PES packets with their headers, by PES_packet_length; 0 where that is not stated.

    Args:
        first: uint8 [packets, 188], the first piece of each.
        at: int64 [packets], where in these the PES packet begins.
    """
    high, low = (first[np.arange(len(first)), np.minimum(at + byte, _PIECE - 1)].astype(np.int64) for byte in (4, 5))
    length = high << 8 | low
    return np.where(length > 0, length + 6, 0)
