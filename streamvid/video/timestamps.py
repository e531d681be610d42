"""Presentation times, sizes and visibility of a file's packets, through FFmpeg's demuxer.

Where a container has no times for frames, or wrong ones, the video is decoded once for the order of its pictures.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import numpy as np

from streamvid.arrays import Bool, Int64
from streamvid.bitstream import mpeg4
from streamvid.mp4.edit_list import Edit, read_edit
from streamvid.video.containers import TRUSTED_TIMES, is_timed
from streamvid.video.gaps import before_gaps
from streamvid.video.missing_times import NO_PTS, fill_gaps, fill_times
from streamvid.video.output_order import OutputOrder, distinct, output_order, ticks_needed
from streamvid.video.packet_times import PacketTimes, fit_pauses
from streamvid.video.probe import StreamInfo, VideoFile, demux
from streamvid.video.raw_rate import frame_rate
from streamvid.video.recordings import DAMAGED, clock_offsets, follow_on, gapless, incomplete_packets

_REORDERED: Final = (
    "h264", "hevc", "mpeg4", "mpeg1video", "mpeg2video", "vc1", "wmv3", "rv30", "rv40", "cavs", "vvc",
)  # fmt: skip
"""Codecs whose decode order may differ from presentation order."""
_DATES_PACKS: Final = ("mpeg",)
"""Containers with times of packs, which may have several frames; times that FFmpeg derives may be wrong."""
_COARSE: Final = ("flv", "matroska")  # they count in ms: frames of different times may have one there
_COUNTS: Final = ("avi", "mxf", "h264", "hevc", "m4v")
"""Containers that count frames, and streams: all behind a lost frame come too early."""
_ROW: Final = [
    ("pts", np.int64), ("clock", np.int64), ("size", np.int64), ("keyframe", np.bool_), ("discarded", np.bool_),
    ("duration", np.int64), ("corrupt", np.bool_), ("position", np.int64),
]  # fmt: skip


class NoTimesError(ValueError):
    """A video without any times, of which `frame_rate` must be known."""


def scan_packet_times(source: VideoFile, about: StreamInfo, *, cut_only: bool = False) -> PacketTimes:
    """Times, sizes and visibility of every packet, without keeping their bytes.

    Args:
        cut_only: the video is only cut: less than half of it may be missing, or follow what is missing, which
            `PacketTimes.incomplete` then says.

    Raises:
        ValueError: there are no packets, some are damaged or missing, or their times cannot be determined.
    """
    found = _scan(source, about, cut_only=cut_only)
    pts, base = fit_pauses(found.pts, Fraction(*found.time_base))
    last = round(found.last_duration * Fraction(*found.time_base) / base)
    return replace(found, pts=pts, last_duration=last, time_base=base.as_integer_ratio())


def _scan(source: VideoFile, about: StreamInfo, *, cut_only: bool) -> PacketTimes:
    """`scan_packet_times`, in ticks of the container."""
    codec, demuxed = about.codec, _demux_all(source, about.codec)
    found = demuxed.packets
    if found.incomplete is not None and not (cut_only and 2 * np.count_nonzero(found.incomplete) < len(found.pts)):
        remedy = "" if cut_only else "; or cut it (--clip), and the clips there alone are lost"
        raise ValueError(f"{demuxed.damage}{remedy}")
    if not len(found.pts):
        raise ValueError("it holds no packet from which decoding could start")
    if len(found.pts) < demuxed.expected or found.hidden.any():
        whole = _demux_all(source, codec, apply_edits=False).packets
        # Without edit lists, FFmpeg hides frames of a fragment that begins before the end of the one before.
        overlaps = bool(whole.hidden.any())
        found, whole = replace(found, overlaps=overlaps), replace(whole, overlaps=overlaps)
        if len(whole.pts) < demuxed.expected // 2:
            raise ValueError(f"it is cut off: {len(whole.pts)} of {demuxed.expected} frames are there")
        restored = _restore_lost(found, whole, read_edit(source.path, demuxed.track))
        if restored is not None:
            if codec not in _REORDERED:
                _check_clock(restored.pts, ~restored.hidden)
            return restored
    try:
        dated = _date_by_order(source, demuxed, codec, about.container, count=len(found.pts))
    except NoTimesError:
        return _count_times(source, found, codec)
    return found if dated is None else _shown(found, *dated)


def _count_times(source: VideoFile, found: PacketTimes, codec: str) -> PacketTimes:
    """The times of a stream whose container has none: from its pictures (MPEG-4), otherwise from its frame rate."""
    order = output_order(source, codec, count=len(found.pts)).matched(len(found.pts)).packets
    if codec == "mpeg4":
        clock = mpeg4.VopClock()
        with source.open() as (container, stream), suppress(ValueError):
            packets = demux(source, container, stream, codec)
            pts, coded, ticks = np.array([(*clock.time(bytes(packet)), clock.resolution) for packet in packets]).T
            # In halves of a tick: in a packed bitstream, a VOP that is not coded has the time of the VOP before it.
            scale = 2 * int(np.lcm.reduce(ticks))
            pts = pts * (scale // ticks) + (coded == 0)
            if (np.diff(pts[order]) <= 0).any():  # recordings were joined: each counts anew
                pts, _ = follow_on(pts, found.keyframe, 0 * pts, least=-0.5)
            if (np.diff(pts[order]) > 0).all() and scale < 1 << 31:
                return replace(found, pts=pts, time_base=(1, scale), last_duration=0)
    rate = frame_rate(source)
    found = replace(found, time_base=(rate.denominator, rate.numerator), last_duration=1)
    return _shown(found, order, np.arange(len(order), dtype=np.int64))


def decoded_times(
    source: VideoFile, codec: str, container: str, *, by_order: bool = False
) -> tuple[Int64, Fraction] | None:
    """int64 [frames], ascending: times of a file's decoded frames, and a tick's seconds; None: those of its packets.

    Args:
        codec, container: FFmpeg's names.
        by_order: whether the times of the packets contradict the order of the pictures; the order is kept then.

    Raises:
        NoTimesError: no frame has a time.
        ValueError: times are missing, or two are the same, or parts of the file are missing.
    """
    demuxed = _demux_all(source, codec)
    if demuxed.packets.incomplete is not None:  # a decoder may conceal it
        raise ValueError(demuxed.damage)
    dated = _date_by_order(source, demuxed, codec, container)
    pts, base = demuxed.packets.pts, Fraction(*demuxed.packets.time_base)
    if dated is None and (by_order or len(demuxed.parts) or fit_pauses(pts, base)[1] != base):
        order = output_order(source, codec).matched()
        dated = order.packets, _times_in_order(pts, order) if by_order else pts[order.packets]
    return None if dated is None else fit_pauses(dated[1], base)


def _times_in_order(pts: Int64, order: OutputOrder) -> Int64:
    """Times in the order of a decoder that those of packets contradict: decode times if they rise, or as `distinct`."""
    times = pts[order.packets]
    by_decoding = (np.diff(times) < 0).any() and (np.diff(pts) > 0).all()
    return order.shown_at(pts) if by_decoding else distinct(times, order.packets)


def _date_by_order(
    source: VideoFile, demuxed: _Demuxed, codec: str, container: str, *, count: int | None = None
) -> tuple[Int64, Int64] | None:
    """Times by the order of the decoded pictures, if a container has only decode times, or times of only some packets.

    Returns:
        int64 [frames], the packets' numbers in the order of their pictures, and int64 [frames], their times, ascending;
        None if each packet has a reliable presentation time.

    Raises:
        NoTimesError: no packet has a time.
    """
    pts, clock = demuxed.packets.pts, demuxed.clock
    if container in _DATES_PACKS:
        pts = clock = _stored_times(source, codec, len(pts))
    elif container == "matroska" and codec in _REORDERED and _has_decode_times_alone(source, codec):
        pts = np.full(len(pts), NO_PTS)
    elif container == "ogg" and codec in _REORDERED:  # OGM: decode times, one for each page
        clock = fill_gaps(_stored_times(source, codec, len(pts)), demuxed.duration)
        pts = np.full(len(pts), NO_PTS)
    timeless = (pts == NO_PTS) & (clock == NO_PTS)
    if not is_timed(container, source.path) or (len(pts) and timeless.all()):
        raise NoTimesError("none of its frames has a time")
    complete = not (pts == NO_PTS).any()
    if complete and (codec not in _REORDERED or container in TRUSTED_TIMES):
        if container == "mpegts":
            _check_clock(clock, clock != NO_PTS, demuxed.parts)
        elif codec not in _REORDERED:
            _check_clock(pts, ~demuxed.packets.hidden, demuxed.parts)
        return None
    order = output_order(source, codec, count=count).matched(count)
    if not (clock == NO_PTS).any():
        return order.packets, order.shown_at(clock)
    times, lasts = pts[order.packets], demuxed.duration[order.packets]
    if complete:
        return order.packets, distinct(times, order.packets)
    return order.packets, (fill_times if container in _DATES_PACKS else fill_gaps)(times, lasts)


def _check_clock(times: Int64, counts: Bool, parts: Int64 | tuple[()] = ()) -> None:
    """Raise ValueError if times fall from one packet that counts to the next one, other than where a part begins."""
    at = np.flatnonzero(counts)
    if len(np.setdiff1d(at[1:][np.diff(times[at]) < 0], parts)):
        raise ValueError("its clock falls back, as where recordings were joined: copy it to a new MP4 (ffmpeg -c copy)")


@dataclass(frozen=True)
class _Demuxed:
    """A video track as FFmpeg demuxes it.

    Attributes:
        packets: its packets; `NO_PTS` for packets without a presentation time.
        clock: int64 [packets], decode times in ticks; `NO_PTS` for packets without one.
        duration: int64 [packets], duration of each in ticks; 0 if unknown.
        expected: number of packets according to the container's header; 0 if it has none.
        track: the track's number in the container.
        parts: int64 [parts - 1], the numbers of the packets with which recordings begin that were joined behind
            another, or a clock begins anew; the times of `packets` follow those of the part before.
        damage: for a message: what is wrong, if some are incomplete.
    """

    packets: PacketTimes
    clock: Int64
    duration: Int64
    expected: int
    track: int
    parts: Int64
    damage: str


def _stored_times(source: VideoFile, codec: str, count: int) -> Int64:
    """int64 [packets]: the presentation times in the container, without those that FFmpeg invents."""
    with source.open(fill_times=False) as (container, stream):
        found = demux(source, container, stream, codec)
        pts = np.array([NO_PTS if packet.pts is None else packet.pts for packet in found], dtype=np.int64)
    if len(pts) != count:
        raise ValueError("its frames cannot be matched with their times")
    return pts


def _has_decode_times_alone(source: VideoFile, codec: str) -> bool:
    """Whether a Matroska file has its track from an AVI, as `V_MS/VFW/FOURCC`: with decode times in its blocks."""
    with source.open(fill_times=False) as (container, stream):
        first = next(iter(demux(source, container, stream, codec)), None)
    return first is not None and first.pts is None and first.dts is not None


def _demux_all(source: VideoFile, codec: str, *, apply_edits: bool = True) -> _Demuxed:
    with source.open(apply_edits=apply_edits) as (container, stream):
        base = stream.time_base
        if base is None or base <= 0:
            raise ValueError("its time base is not positive")
        rows = np.fromiter(
            (
                (
                    NO_PTS if packet.pts is None else packet.pts,
                    NO_PTS if packet.dts is None else packet.dts,
                    packet.size,
                    packet.is_keyframe,
                    packet.is_discard,
                    packet.duration or 0,
                    packet.is_corrupt,
                    -1 if packet.pos is None else packet.pos,
                )
                for packet in demux(source, container, stream, codec)
            ),
            dtype=_ROW,
        )
        expected = stream.frames if container.format.name.startswith("mov") else 0
        name, track, incomplete, damage = container.format.name.split(",")[0], stream.id, None, ""
        corrupt = rows["corrupt"] if name == "mpegts" else before_gaps(source, name, rows["position"])
        if corrupt.any() and not (name == "mpegts" and gapless(source.path, track, codec)):
            damage = f"{DAMAGED} (look behind byte {rows['position'][: np.argmax(corrupt) + 1].max()})"
            if codec not in ("h264", "hevc") or name in _COUNTS:
                raise ValueError(damage)
            incomplete = incomplete_packets(corrupt, rows["keyframe"])
    pts, clock, parts = rows["pts"].copy(), rows["clock"].copy(), np.empty(0, dtype=np.int64)
    if incomplete is not None:
        for number in np.flatnonzero((pts[1:] == NO_PTS) & incomplete[1:]).tolist():
            pts[number + 1] = pts[number] + 1  # the beginning of a packet, with its time, is missing
    complete = not (pts == NO_PTS).any()
    if name == "flv" and complete and not (clock == NO_PTS).any():
        added = clock_offsets(clock)
        pts, clock, parts = pts + added, clock + added, np.flatnonzero(np.diff(added)) + 1
    if complete and not rows["discarded"].any():
        pts, behind = follow_on(pts, rows["keyframe"], rows["duration"])
        parts = np.union1d(parts, behind)
    finer = ticks_needed(pts) if complete and name in _COARSE else 1
    clock[clock != NO_PTS] *= finer
    durations = rows["duration"][rows["duration"] != 0] * finer
    packets = PacketTimes(
        pts=pts * finer,
        size=rows["size"].copy(),
        keyframe=rows["keyframe"].copy(),
        hidden=rows["discarded"].copy(),
        last_duration=int(durations[-1]) if len(durations) else 0,
        time_base=(base / finer).as_integer_ratio(),
        edits_applied=apply_edits,
        incomplete=incomplete,
    )
    return _Demuxed(packets, clock, rows["duration"] * finer, expected, track, parts, damage)


def _restore_lost(edited: PacketTimes, whole: PacketTimes, edit: Edit | None) -> PacketTimes | None:
    """Apply an edit list here if FFmpeg cuts off frames that the edit list shows.

    FFmpeg compares decode times with the end of an edit (mov.c, mov_fix_index). So it may leave out a key frame there,
    or pictures that are shown before it and decoded after it. Of fragmented files it may hide the first fragment.

    Args:
        edited, whole: the packets as FFmpeg demuxes them with and without edit lists.
        edit: the part of the track that the edit list shows; None if it is not a single part.

    Returns:
        the needed packets; None if FFmpeg loses none, or if that is unknown.
    """
    if edit is None or (whole.pts == NO_PTS).any():
        return None
    shown = (whole.pts >= edit.begin) & (whole.pts < edit.end)
    if shown.sum() <= np.count_nonzero(~edited.hidden):
        return None
    # From the last key frame on that precedes, in decode order and in time, all frames that are shown.
    keys = np.flatnonzero(whole.keyframe)
    before = keys[(keys <= np.argmax(shown)) & (whole.pts[keys] <= whole.pts[shown].min())]
    first = int(before[-1]) if len(before) else 0
    return replace(whole, hidden=~shown, num_skipped=first).rows(slice(first, None))


def in_output_order(found: PacketTimes, output: OutputOrder) -> PacketTimes:
    """Reassign the times of the displayed packets, in the order in which a decoder outputs their pictures. A hidden
    packet gets a time after that of the previous packet, in the coarsest ticks of the others if there is room, else in
    the container's or in finer ones.

    Raises:
        ValueError: packets and frames do not match, two frames have the same time, or no frame is displayed.
    """
    order = (matched := output.matched(len(found.pts))).packets
    if not found.hidden.any():
        return _shown(found, order, _times_in_order(found.pts, matched))
    times = distinct(found.pts[order][shown := ~found.hidden[order]], order[shown])
    if not len(times):
        raise ValueError("none of its frames is shown")
    last = np.maximum(np.cumsum(shown) - 1, 0)
    behind = np.arange(len(order)) - np.flatnonzero(shown)[last]
    most, tick = int(behind.max()), int(np.gcd.reduce(np.diff(times))) or 1
    room = np.diff(times).min(initial=len(order) * tick)
    tick, factor = tick if most * tick < room else 1, 1 if most < room else most + 1
    if (scale := found.time_base[1] * factor) >= 1 << 31:
        raise ValueError("its times need a finer time base than an MP4 can have")
    finer = replace(found, last_duration=found.last_duration * factor, time_base=(found.time_base[0], scale))
    return replace(_shown(finer, order, times[last] * factor + behind * tick), hidden=found.hidden)


def _shown(found: PacketTimes, order: Int64, times: Int64) -> PacketTimes:
    """The packets at new times, int64 [packets], ascending, in the order of their pictures."""
    return replace(found, pts=times[np.argsort(order)], hidden=np.zeros(len(order), dtype=bool))
