"""Recordings that were joined byte by byte: the times of their parts, and whether pieces of a transport stream are
missing or only begin anew. And recordings that end within a frame.

A piece is a packet of a transport stream, of 188 bytes; a packet is one of FFmpeg's, or a PES packet where it says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from streamvid.arrays import Bool, Int64, UInt8
from streamvid.video.mapped import mapped

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.stream import VideoStream

_PIECE: Final = 188
_LAYOUTS: Final = ((188, 0), (192, 4), (204, 0))
"""Distance of pieces, and bytes before each: plain, with times as in M2TS, with a code that corrects errors."""
_SYNC: Final = 0x47
_BLOCK: Final = 1 << 18
"""Pieces of a transport stream that are looked at together: 49 MB."""
_TAIL_BYTES: Final = 4 << 20
"""Bytes at the end of a transport stream in which its last PES packet begins."""
_FLASH_CLOCK: Final = 1 << 31
_MINUTE: Final = 60_000
_TELLS_LOSS: Final = ("h264", "mpeg1video", "mpeg2video", "mpeg4")
"""Codecs of which a decoder notices most missing pieces: of HEVC FFmpeg's misses half."""
RESTART_FRAMES: Final = 10
"""A clock that falls back by more frames than this is one that begins anew."""


def follow_on(pts: Int64, keyframe: Bool, duration: Int64, *, least: float = RESTART_FRAMES) -> tuple[Int64, Int64]:
    """Presentation times in which each part of a joined recording follows the one before, at the usual distance of its
    frames. A part begins with a key frame whose time is far before that of an earlier frame, unless the next frames go
    on behind that: then the time of the key frame alone is wrong. A clock that leaps to where it would be if it had not
    fallen back has come back, and there is no pause.

    Args:
        pts, keyframe, duration: [packets], in decode order: times in ticks, the container's flags, and durations in
            ticks, 0 if unknown.
        least: how far, in frames.

    Returns:
        int64 [packets], the times, and int64 [parts - 1], the packets with which further parts begin.
    """
    made, parts, keys = pts.copy(), [0], np.flatnonzero(keyframe)
    if not len(keys):
        return made, keys
    lows, highs = np.minimum.reduceat(pts, keys).tolist(), np.maximum.reduceat(pts, keys).tolist()
    highest = highs[0]
    ends = [*keys.tolist(), len(pts), len(pts)]
    for key, low, high, end in zip(ends[1:-2], lows[1:], highs[1:], ends[3:], strict=True):
        added = int(made[key] - pts[key])
        falls, leaps = pts[key] < highest, low - highest > added > 0
        if falls or leaps:
            part = slice(parts[-1], key)
            steps = np.diff(np.unique(pts[part]))
            usual = int(np.median(steps)) if len(steps) else max(1, int(duration[key - 1]))
        if falls:
            later = pts[key:end][pts[key:end] > highest]
            goes_on = len(later) and later.min() <= highest + RESTART_FRAMES * usual
            fall = highest - int(pts[key])
            if fall > least * usual and not (goes_on and 2 * (end - key - len(later)) * usual < fall):
                made[key:] = pts[key:] + (made[part].max() + usual - low)
                parts.append(key)
                highest = high
        elif leaps and low - highest - added <= 2 * usual:  # the clock comes back: it fell for a while
            made[key:] = pts[key:]
            parts.append(key)
        highest = max(highest, high)
    return made, np.array(parts[1:], dtype=np.int64)


def clock_offsets(clock: Int64) -> Int64:
    """int64 [packets]: what to add to times of FLV, whose clock begins anew at 2^31 ms, or leaps over as many.

    Args:
        clock: int64 [packets], decode times in ms.
    """
    steps = np.diff(clock, prepend=clock[:1])
    turns = np.round(steps / _FLASH_CLOCK).astype(np.int64)
    turns[np.abs(steps - turns * _FLASH_CLOCK) > _MINUTE] = 0  # recordings were joined
    return -np.cumsum(turns) * _FLASH_CLOCK


def track_packets(container: InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """The packets of a track, with empty ones at the end. PyAV raises an IndexError behind them if another track has
    begun meanwhile (audio or subtitles in the middle of a transport or program stream): it asks for one of that, too,
    which it does not know."""
    with suppress(IndexError):
        yield from container.demux(stream)


def whole_packets(
    container: InputContainer, stream: VideoStream, *, cut_off: bool = False
) -> Iterator[Packet[VideoStream]]:
    """The packets of a track, without a last one that is cut off. FFmpeg marks that as corrupt.

    Args:
        container, stream: as `VideoFile.open` gives them. Of a transport or program stream FFmpeg's marks do not count:
            they may be of the packet before.
        cut_off: whether the last packet is cut off: `streamvid.video.cut_off`.

    Raises:
        ValueError: one is damaged; or the last one is cut off, in a file whose tables name it.
    """
    name, corrupt = container.format.name.split(",")[0], False
    must_end = name == "mov" and stream.frames > 0
    held: list[Packet[VideoStream]] = []  # the last packet with data, and empty ones behind it
    for packet in track_packets(container, stream):
        if packet.size:
            if corrupt or (packet.is_corrupt and must_end):
                raise ValueError(DAMAGED)
            corrupt = packet.is_corrupt and name not in ("mpegts", "mpeg")
            yield from held
            held.clear()
        held.append(packet)
    yield from held[1:] if held and held[0].size and (corrupt or cut_off) else held


DAMAGED: Final = "a packet in it is damaged or cut off: copy or record it again, or re-encode it"


def is_numbered(source: Path, pid: int, codec: str) -> bool:
    """Whether the pieces of a transport stream's track have numbers by which missing ones are found.

    Some recorders give all pieces one number. Then, for a codec in `_TELLS_LOSS`, FFmpeg's decoder must notice what is
    missing; others count as numbered, and so as incomplete.

    Args:
        pid, codec: as for `gapless`.
    """
    if codec not in _TELLS_LOSS:
        return True
    stream = _pieces(mapped(source))
    blocks = (_of_track(stream[first : first + _BLOCK], pid) for first in range(0, len(stream), _BLOCK))
    counts = (len(np.unique(pieces[:, 3] & 15)) for pieces in blocks if len(pieces) > 1)
    return next(counts, 2) > 1 or any(count > 1 for count in counts)


def gapless(source: Path, pid: int, codec: str) -> bool:
    """Whether a track that FFmpeg marks as corrupt is complete.

    FFmpeg marks packets where the numbers (continuity_counter) do not go on, as where files were joined, by
    `cat a.ts b.ts` or from segments of FFmpeg. The piece behind such a place must begin a PES packet from which
    decoding can start (random_access_indicator), and the piece before it must end one. A track counts as incomplete if
    a PES packet was cut off there; also in one of 184 places where it was not, because `_PesPackets` does not know that
    the packet ends.

    Without numbers only the sizes of PES packets are checked, if they are stated.

    Args:
        pid: the track's packet identifier.
        codec: as FFmpeg names it.
    """
    stream, numbered = _pieces(mapped(source)), is_numbered(source, pid, codec)
    held = stream[:0]  # the last PES packet of the blocks before
    for first in range(0, len(stream), _BLOCK):
        pieces = np.concatenate([held, _of_track(stream[first : first + _BLOCK], pid)])
        is_last = first + _BLOCK >= len(stream)
        if not is_last and not (pieces[:, 1] & 0x40).any():  # no PES packet begins yet
            held = pieces
            continue
        found = _pes_packets(pieces)
        if found is None:
            return False
        counter = pieces[:, 3] & 15
        follows = counter == np.roll(counter, 1) + found.has_payload & 15
        goes_on = (found.flags & 0x80 != 0) | follows | (not numbered)  # or stated gap
        breaks = np.flatnonzero(~goes_on[1:]) + 1
        begins = np.isin(breaks, found.starts) & (found.flags[breaks] & 0x40 != 0)
        before = np.searchsorted(found.starts, breaks) - 1
        lacks = found.lacks if is_last else found.lacks[:-1]
        if not begins.all() or not (found.ends[before] | (before < 0)).all() or lacks.any():
            return False
        held = pieces[found.starts[-1] :]
    return len(stream) > 0


def incomplete_packets(corrupt: Bool, keyframe: Bool) -> Bool:
    """Packets of which pieces are missing, and those that follow before the next key frame that is surely whole.

    Args:
        corrupt: bool [packets], which of them FFmpeg marks: the damaged one, or the one before it.
        keyframe: bool [packets].
    """
    incomplete, first = np.zeros(len(corrupt), dtype=bool), np.flatnonzero(corrupt)
    ends = np.append(np.flatnonzero(keyframe), len(corrupt))
    # The key frame right behind a marked packet may be the damaged one.
    for begin, end in zip(first, ends[np.searchsorted(ends[:-1], first + 1, side="right")], strict=True):
        incomplete[begin:end] = True
    return incomplete


def breaks_off(source: Path, pid: int) -> bool:
    """Whether a transport stream ends within a PES packet of a track, so that its last frame is not whole.

    Recorders write whole pieces, so one that was killed leaves these. The one packet in 184 that `_PesPackets` does not
    know to end counts as cut off, too: it is rarer than that, and costs a frame, not the recording.
    """
    with source.open("rb") as file:
        file.seek(max(0, source.stat().st_size - _TAIL_BYTES))
        pieces = _pieces(np.frombuffer(file.read(), dtype=np.uint8))
    found = _pes_packets(_of_track(pieces, pid))
    return found is not None and not found.ends[-1]


@dataclass(frozen=True)
class _PesPackets:
    """The PES packets of a track.

    Attributes:
        starts: int64 [packets], the pieces with which they begin.
        ends: bool [packets], whether they are known to be there to their end: by the length that is stated or, as video
            mostly states none, by stuffing, which only the last piece has, and which one in 184 does not need.
        lacks: bool [packets], whether they are shorter or longer than is stated.
        flags: uint8 [pieces], of their adaptation fields; 0 without.
        has_payload: bool [pieces].

    References: ISO/IEC 13818-1, 2.4.3.2 to 2.4.3.7.
    """

    starts: Int64
    ends: Bool
    lacks: Bool
    flags: Int64
    has_payload: Bool


def _pes_packets(pieces: UInt8) -> _PesPackets | None:
    """The PES packets in the pieces of a track, uint8 [pieces, 188]; None if there are none, or pieces are damaged."""
    has_payload, adapted = pieces[:, 3] & 0x10 != 0, pieces[:, 3] & 0x20 != 0
    length = np.where(adapted, pieces[:, 4].astype(np.int64) + 1, 0)
    flags = np.where(length > 1, pieces[:, 5], 0).astype(np.int64)
    size = np.where(has_payload, _PIECE - 4 - length, 0)
    starts = np.flatnonzero(has_payload & (pieces[:, 1] & 0x40 != 0))
    if not len(starts) or (size < 0).any() or (pieces[:, 1] & 0x80).any():  # transport_error_indicator
        return None
    # The adaptation field holds flags, PCR, OPCR and splice_countdown. Others of its fields are not looked at. One
    # that says nothing is stuffing itself.
    fields = 2 + 6 * (flags >> 4 & 1) + 6 * (flags >> 3 & 1) + (flags >> 2 & 1)
    stuffed = adapted & ((flags == 0) | ((flags & 3 == 0) & (length > fields)))
    last = np.maximum.reduceat(np.where(has_payload, np.arange(len(pieces)), 0), starts)
    stated = _stated_sizes(pieces[starts], _PIECE - size[starts])
    full = np.add.reduceat(size, starts) == stated
    return _PesPackets(starts, np.where(stated > 0, full, stuffed[last]), (stated > 0) & ~full, flags, has_payload)


def _pieces(data: UInt8) -> UInt8:
    """A view of a transport stream, uint8 [pieces, 188], without a last one that is cut off; without any if it does not
    consist of those."""
    for step, before in _LAYOUTS:
        for phase in range(min(step, len(data) - step)):
            if data[phase + before] == _SYNC and (data[phase + before :: step] == _SYNC).all():
                end = len(data) - (len(data) - phase) % step
                return data[phase:end].reshape(-1, step)[:, before : before + _PIECE]
    return np.empty((0, _PIECE), dtype=np.uint8)


def _of_track(pieces: UInt8, pid: int) -> UInt8:
    """A copy of the pieces of a track."""
    return np.asarray(pieces[((pieces[:, 1] & 0x1F).astype(np.int64) << 8 | pieces[:, 2]) == pid])


def _stated_sizes(first: UInt8, at: Int64) -> Int64:
    """int64 [packets]: sizes of PES packets with their headers, by PES_packet_length; 0 where that is not stated.

    Args:
        first: uint8 [packets, 188], the first piece of each.
        at: int64 [packets], where in these the PES packet begins.
    """
    high, low = (first[np.arange(len(first)), np.minimum(at + byte, _PIECE - 1)].astype(np.int64) for byte in (4, 5))
    length = high << 8 | low
    return np.where(length > 0, length + 6, 0)
