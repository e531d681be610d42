"""When the packets of a file are shown, found out without keeping their bytes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import av
import numpy as np

from streamvid.arrays import Bool, Int64
from streamvid.mp4.edit_list import Edit, read_edit
from streamvid.video.probe import open_video, packets, video_stream

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_REORDERED: Final = ("h264", "hevc", "mpeg4")


@dataclass(frozen=True)
class PacketTimes:
    """The source's packets in decode order.

    Attributes:
        pts: int64 [packets], in ticks of `time_base`.
        size: int64 [packets], in bytes.
        keyframe: bool [packets], what the container takes for a key frame.
        hidden: bool [packets], cut off by an edit list.
        last_duration: what the last packet says of its duration, in ticks; 0 if nothing.
        time_base: seconds per tick, as (numerator, denominator).
        edits: these are the file's packets if FFmpeg follows its edit lists; else if it does not.
        skipped: of those, so many that come before them are not among them.
    """

    pts: Int64
    size: Int64
    keyframe: Bool
    hidden: Bool
    last_duration: int
    time_base: tuple[int, int]
    edits: bool = True
    skipped: int = 0

    def until_last_shown(self) -> PacketTimes:
        """The packets worth keeping: behind the last visible one in decode order, nothing is needed.

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
        """Ticks for which the last frame is shown: what the file says if it is sane, else the median distance."""
        steps = np.diff(np.unique(self.pts))
        typical = int(np.median(steps)) if len(steps) else max(1, round(self.time_base[1] / self.time_base[0] / 25))
        longest = max(int(steps.max()) if len(steps) else 0, typical)
        return self.last_duration if 0 < self.last_duration <= 10 * longest else max(typical, 1)


def scan_packet_times(source: Path, codec: str, *, trust_times: bool) -> PacketTimes:
    """Times, sizes and visibility of every packet, without keeping their bytes.

    Args:
        source: the file.
        codec: its codec, as in `probe.CODECS`.
        trust_times: the container's presentation times hold for frames that are reordered too.

    Raises:
        ValueError: there are no packets, some are damaged or missing, or their times cannot be found out.
    """
    found = _read(source, codec)
    if not found.times:
        raise ValueError("it holds no packet from which decoding could start")
    edits, skipped, hidden = True, 0, np.array(found.discarded)
    if len(found.times) < found.expected or hidden.any():
        whole = _read(source, codec, edits=False)
        if len(whole.times) < found.expected // 2:
            raise ValueError(f"it is cut off: {len(whole.times)} of {found.expected} frames are there")
        mended = _mended(found, whole, read_edit(source, found.track))
        if mended is not None:
            edits, (found, skipped, hidden) = False, mended
    if None in found.times or (codec in _REORDERED and not trust_times):
        pts, hidden = _order_by_decoding(source, codec, found.clock), np.zeros(len(found.times), dtype=bool)
    else:
        pts = np.array(found.times, dtype=np.int64)
    return PacketTimes(
        pts=pts,
        size=np.array(found.sizes, dtype=np.int64),
        keyframe=np.array(found.keys),
        hidden=hidden,
        last_duration=found.last_duration,
        time_base=found.time_base,
        edits=edits,
        skipped=skipped,
    )


@dataclass(frozen=True)
class _Packets:
    """What FFmpeg says of a track's packets, in decode order.

    Attributes:
        times, clock: their presentation and decode times; their numbers where there are no decode times.
        sizes, keys, discarded: as they come, discarded by an edit list.
        last_duration, time_base: as in `PacketTimes`.
        expected: how many the container promises; 0 if it does not say.
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


def _read(source: Path, codec: str, *, edits: bool = True) -> _Packets:
    times: list[int | None] = []
    clock: list[int] = []
    sizes: list[int] = []
    keys: list[bool] = []
    discarded: list[bool] = []
    duration = 0
    with closing(open_video(source, edits=edits)) as container:
        stream = video_stream(container)
        base = stream.time_base
        if base is None or base <= 0:
            raise ValueError("its time base is not positive")
        track = stream.id
        expected = stream.frames if container.format.name.startswith("mov") else 0
        for number, packet in enumerate(packets(container, stream, codec)):
            times.append(packet.pts)
            clock.append(packet.dts if packet.dts is not None else number)
            sizes.append(packet.size)
            keys.append(packet.is_keyframe)
            discarded.append(packet.is_discard)
            duration = packet.duration or duration
    return _Packets(times, clock, sizes, keys, discarded, duration, (base.numerator, base.denominator), expected, track)


def _mended(edited: _Packets, whole: _Packets, edit: Edit | None) -> tuple[_Packets, int, Bool] | None:
    """The packets of a file, how many are left out before them, and which are hidden, if FFmpeg hides some that the
    edit list shows.

    It looks at decode times for where an edit ends (mov.c, mov_fix_index). So at times it leaves out a key frame there,
    or pictures that are shown before it and decoded after it. Of fragmented files it may hide the first fragment.

    Args:
        edited, whole: the packets as FFmpeg gives them with and without edit lists.
        edit: what the edit list says, if that is one part of the track.

    Returns:
        None if nothing is lost, or that is not known.
    """
    if edit is None or None in whole.times:
        return None
    times = np.array(whole.times, dtype=np.int64)
    shown = (times >= edit.begin) & (times < edit.end)
    if shown.sum() <= edited.discarded.count(False):
        return None
    # From the last key frame on that is shown, or would be, before all that is.
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


def ordered_by_decoding(source: Path, codec: str, found: PacketTimes) -> PacketTimes:
    """The same times, for the pictures in the order in which a decoder hands them out.

    Args:
        source, codec: as of `scan`.
        found: what that made of it.

    Raises:
        ValueError: packets and frames do not match, or some times are the same: then they would be lost.
    """
    if len(np.unique(found.pts)) != len(found.pts):
        raise ValueError("some of its frames are shown at the same time")
    pts = _order_by_decoding(source, codec, found.pts.tolist(), edits=found.edits, skipped=found.skipped)
    hidden = np.empty_like(found.hidden)
    hidden[np.argsort(pts, kind="stable")] = found.hidden[np.argsort(found.pts, kind="stable")]
    return replace(found, pts=pts, hidden=hidden)


def _order_by_decoding(source: Path, codec: str, times: list[int], *, edits: bool = True, skipped: int = 0) -> Int64:
    """pts for a container that has none, or only decode times, or wrong ones: the decoder's order, on the clock of the
    packets.

    AVI stores no presentation times, and those that demuxers make up for it are wrong where frames are reordered.
    """
    with closing(open_video(source, edits=edits)) as container:
        stream = video_stream(container)
        context = stream.codec_context
        context.flags |= av.codec.context.Flags.copy_opaque
        order: list[int] = []
        for number, packet in enumerate(islice(packets(container, stream, codec), skipped, None)):
            packet.opaque = number
            order.extend(_number(frame) for frame in context.decode(packet))
        order.extend(_number(frame) for frame in context.decode(None))
    if len(order) != len(times) or len(set(order)) != len(order):
        raise ValueError(
            f"its {len(times)} packets decode to {len(order)} frames, "
            "and its container holds no times to match them: convert it first"
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
        raise ValueError("its frames cannot be matched with its packets: convert it first")
    return frame.opaque
