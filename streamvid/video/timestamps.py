"""Presentation times, sizes and visibility of a file's packets, through FFmpeg's demuxer."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import av
import numpy as np

from streamvid.arrays import Bool, Int64
from streamvid.mp4.edit_list import Edit, read_edit
from streamvid.video.probe import demux, open_video, video_stream

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_REORDERED: Final = ("h264", "hevc", "mpeg4")
"""Codecs whose decode order may differ from presentation order."""


@dataclass(frozen=True)
class PacketTimes:
    """The packets of a file's video track, in decode order.

    Attributes:
        pts: int64 [packets], in ticks of `time_base`.
        size: int64 [packets], in bytes.
        keyframe: bool [packets], the container's key frame flags.
        hidden: bool [packets], cut off by an edit list.
        last_duration: of the last packet that has a duration, in ticks; 0 if none has.
        time_base: seconds per tick, as (numerator, denominator).
        edits_applied: FFmpeg applied the edit lists when it demuxed these packets.
        num_skipped: packets that the demuxer gives before these, and that are left out.
    """

    pts: Int64
    size: Int64
    keyframe: Bool
    hidden: Bool
    last_duration: int
    time_base: tuple[int, int]
    edits_applied: bool = True
    num_skipped: int = 0

    def up_to_last_visible(self) -> PacketTimes:
        """The same without the packets after the last visible one in decode order: no frame depends on them.

        Raises:
            ValueError: none is visible.
        """
        shown = np.flatnonzero(~self.hidden)
        if len(shown) == 0:
            raise ValueError("all its frames are hidden by an edit list")
        kept = slice(0, int(shown[-1]) + 1)
        return replace(
            self,
            pts=self.pts[kept],
            size=self.size[kept],
            keyframe=self.keyframe[kept],
            hidden=self.hidden[kept],
        )

    @property
    def origin(self) -> int:
        """The first visible frame's pts."""
        return int(self.pts[~self.hidden].min())

    def last_frame_ticks(self) -> int:
        """Ticks for which the last frame is shown: see `last_frame_duration`."""
        return last_frame_duration(np.unique(self.pts), self.last_duration, Fraction(*self.time_base))


def last_frame_duration(times: Int64, stated: int, time_base: Fraction) -> int:
    """Ticks for which the last frame of a video is shown.

    Args:
        times: int64 [frames], presentation times, rising.
        stated: the container's statement, in ticks.
        time_base: seconds per tick.

    Returns:
        what is stated if that is positive and at most 10 times the longest distance of frames; else the median
        distance, or 1/25 s for a single frame.
    """
    steps = np.diff(times)
    typical = int(np.median(steps)) if len(steps) else max(1, round(1 / time_base / 25))
    longest = max(int(steps.max(initial=0)), typical)
    return stated if 0 < stated <= 10 * longest else max(typical, 1)


def scan_packet_times(source: Path, codec: str, *, trust_times: bool) -> PacketTimes:
    """Times, sizes and visibility of every packet, without keeping their bytes.

    Args:
        source: the file.
        codec: its codec, as in `probe.CODECS`.
        trust_times: the container's presentation times are right where frames are reordered, too.

    Raises:
        ValueError: there are no packets, some are damaged or missing, or their times cannot be determined.
    """
    found = _demux_all(source, codec)
    if not found.times:
        raise ValueError("it holds no packet from which decoding could start")
    edits_applied, num_skipped, hidden = True, 0, np.array(found.discarded)
    if len(found.times) < found.expected or hidden.any():
        whole = _demux_all(source, codec, apply_edits=False)
        if len(whole.times) < found.expected // 2:
            raise ValueError(f"it is cut off: {len(whole.times)} of {found.expected} frames are there")
        restored = _restore_lost(found, whole, read_edit(source, found.track))
        if restored is not None:
            edits_applied, (found, num_skipped, hidden) = False, restored
    if None in found.times or (codec in _REORDERED and not trust_times):
        pts, hidden = _pts_by_decoding(source, codec, found.clock), np.zeros(len(found.times), dtype=bool)
    else:
        pts = np.array(found.times, dtype=np.int64)
    return PacketTimes(
        pts=pts,
        size=np.array(found.sizes, dtype=np.int64),
        keyframe=np.array(found.keys),
        hidden=hidden,
        last_duration=found.last_duration,
        time_base=found.time_base,
        edits_applied=edits_applied,
        num_skipped=num_skipped,
    )


@dataclass(frozen=True)
class _Packets:
    """A track's packets as FFmpeg demuxes them, in decode order.

    Attributes:
        times: presentation times, in ticks.
        clock: decode times, in ticks; numbers of packets that have none.
        sizes: in bytes.
        keys: key frame flags.
        discarded: flags of those that an edit list cuts off.
        last_duration, time_base: as in `PacketTimes`.
        expected: how many the container's header promises; 0 if it does not say.
        track: the track's number in the container.
    """

    times: list[int | None]
    clock: list[int]
    sizes: list[int]
    keys: list[bool]
    discarded: list[bool]
    last_duration: int
    time_base: tuple[int, int]
    expected: int
    track: int


def _demux_all(source: Path, codec: str, *, apply_edits: bool = True) -> _Packets:
    times: list[int | None] = []
    clock: list[int] = []
    sizes: list[int] = []
    keys: list[bool] = []
    discarded: list[bool] = []
    duration = 0
    with closing(open_video(source, apply_edits=apply_edits)) as container:
        stream = video_stream(container)
        base = stream.time_base
        if base is None or base <= 0:
            raise ValueError("its time base is not positive")
        track = stream.id
        expected = stream.frames if container.format.name.startswith("mov") else 0
        for number, packet in enumerate(demux(container, stream, codec)):
            times.append(packet.pts)
            clock.append(packet.dts if packet.dts is not None else number)
            sizes.append(packet.size)
            keys.append(packet.is_keyframe)
            discarded.append(packet.is_discard)
            duration = packet.duration or duration
    return _Packets(times, clock, sizes, keys, discarded, duration, (base.numerator, base.denominator), expected, track)


def _restore_lost(edited: _Packets, whole: _Packets, edit: Edit | None) -> tuple[_Packets, int, Bool] | None:
    """Apply an edit list here, where FFmpeg cuts off frames that the edit list shows.

    FFmpeg compares decode times with the end of an edit (mov.c, mov_fix_index). So it may leave out a key frame there,
    or pictures that are shown before it and decoded after it. Of fragmented files it may hide the first fragment.

    Args:
        edited, whole: the packets as FFmpeg demuxes them with and without edit lists.
        edit: the part of the track that the edit list shows, if it is one part.

    Returns:
        the packets that are needed, how many are left out before them, and which are hidden; None if FFmpeg loses
        none, or that is not known.
    """
    if edit is None or None in whole.times:
        return None
    times = np.array(whole.times, dtype=np.int64)
    shown = (times >= edit.begin) & (times < edit.end)
    if shown.sum() <= edited.discarded.count(False):
        return None
    # From the last key frame on that comes, by decode order and by time, before all that is shown.
    keys = np.flatnonzero(whole.keys)
    before = keys[(keys <= np.argmax(shown)) & (times[keys] <= times[shown].min())]
    first = int(before[-1]) if len(before) else 0
    rest = slice(first, None)
    kept = replace(
        whole,
        times=whole.times[rest],
        clock=whole.clock[rest],
        sizes=whole.sizes[rest],
        keys=whole.keys[rest],
        discarded=whole.discarded[rest],
    )
    return kept, first, ~shown[rest]


def in_output_order(source: Path, codec: str, found: PacketTimes) -> PacketTimes:
    """Assign the same times to the packets in the order in which a decoder outputs their pictures.

    Args:
        source, codec: as for `scan_packet_times`.
        found: what that returned.

    Raises:
        ValueError: packets and frames do not match, or two frames have the same time, so that one would be lost.
    """
    if len(np.unique(found.pts)) != len(found.pts):
        raise ValueError("some of its frames are shown at the same time")
    pts = _pts_by_decoding(
        source, codec, found.pts.tolist(), apply_edits=found.edits_applied, num_skipped=found.num_skipped
    )
    hidden = np.empty_like(found.hidden)
    hidden[np.argsort(pts, kind="stable")] = found.hidden[np.argsort(found.pts, kind="stable")]
    return replace(found, pts=pts, hidden=hidden)


def _pts_by_decoding(
    source: Path, codec: str, times: list[int], *, apply_edits: bool = True, num_skipped: int = 0
) -> Int64:
    """int64 [packets], presentation times for a container that has none, or only decode times, or wrong ones: the
    sorted `times`, given to the packets in the decoder's output order.

    AVI stores no presentation times, and those that demuxers make up for it are wrong where frames are reordered.
    """
    with closing(open_video(source, apply_edits=apply_edits)) as container:
        stream = video_stream(container)
        context = stream.codec_context
        context.flags |= av.codec.context.Flags.copy_opaque
        order: list[int] = []
        for number, packet in enumerate(islice(demux(container, stream, codec), num_skipped, None)):
            packet.opaque = number
            order.extend(_number(frame) for frame in context.decode(packet))
        order.extend(_number(frame) for frame in context.decode(None))
    if len(order) != len(times) or len(set(order)) != len(order):
        raise ValueError(
            f"its {len(times)} packets decode to {len(order)} frames, "
            "and its container holds no times to match them: transcode it first"
        )
    clock = np.sort(np.array(times, dtype=np.int64))
    if len(np.unique(clock)) != len(clock):
        clock = np.arange(len(clock), dtype=np.int64)
    pts = np.empty(len(order), dtype=np.int64)
    pts[np.array(order)] = clock
    return pts


def _number(frame: VideoFrame) -> int:
    """The number of the packet that the frame was decoded from."""
    if not isinstance(frame.opaque, int):
        raise ValueError("its frames cannot be matched with its packets: transcode it first")
    return frame.opaque
