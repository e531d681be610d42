"""When the packets of a file are shown, found out without keeping their bytes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import av
import numpy as np
import numpy.typing as npt

from streamvid.video.index import Int64
from streamvid.video.probe import open_video, packets, video_stream

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_REORDERED: Final = ("h264", "hevc", "mpeg4")


@dataclass(frozen=True)
class Scan:
    """The source's packets in decode order.

    Attributes:
        pts: int64 [packets], in ticks of `time_base`.
        size: int64 [packets], in bytes.
        keyframe: bool [packets], what the container takes for a key frame.
        hidden: bool [packets], cut off by an edit list.
        last_duration: what the last packet says of its duration, in ticks; 0 if nothing.
        time_base: seconds per tick, as (numerator, denominator).
    """

    pts: Int64
    size: Int64
    keyframe: npt.NDArray[np.bool_]
    hidden: npt.NDArray[np.bool_]
    last_duration: int
    time_base: tuple[int, int]

    def until_last_shown(self) -> Scan:
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


def scan(source: Path, codec: str, *, trust_times: bool) -> Scan:
    """Times, sizes and visibility of every packet, without keeping their bytes.

    Args:
        source: the file.
        codec: its codec, as in `probe.CODECS`.
        trust_times: the container's presentation times hold for frames that are reordered too.

    Raises:
        ValueError: there are no packets, some are damaged or missing, or their times cannot be found out.
    """
    times: list[int | None] = []
    clock: list[int] = []
    sizes: list[int] = []
    keys: list[bool] = []
    discarded: list[bool] = []
    duration = 0
    with closing(open_video(source)) as container:
        stream = video_stream(container)
        base = stream.time_base
        if base is None or base <= 0:
            raise ValueError("its time base is not positive")
        expected = stream.frames if container.format.name.startswith("mov") else 0
        for number, packet in enumerate(packets(container, stream, codec)):
            times.append(packet.pts)
            clock.append(packet.dts if packet.dts is not None else number)
            sizes.append(packet.size)
            keys.append(packet.is_keyframe)
            discarded.append(packet.is_discard)
            duration = packet.duration or duration
        edited = any(discarded)
    if not times:
        raise ValueError("it holds no packet from which decoding could start")
    if expected and len(times) < expected // 2 and not edited:
        raise ValueError(f"it is cut off: {len(times)} of {expected} frames are there")
    if None in times or (codec in _REORDERED and not trust_times):
        pts, hidden = _order_by_decoding(source, codec, clock), np.zeros(len(times), dtype=bool)
    else:
        pts, hidden = np.array(times, dtype=np.int64), np.array(discarded)
    return Scan(
        pts=pts,
        size=np.array(sizes, dtype=np.int64),
        keyframe=np.array(keys),
        hidden=hidden,
        last_duration=duration,
        time_base=(base.numerator, base.denominator),
    )


def ordered_by_decoding(source: Path, codec: str, found: Scan) -> Scan:
    """The same times, for the pictures in the order in which a decoder hands them out.

    Args:
        source, codec: as of `scan`.
        found: what that made of it.

    Raises:
        ValueError: packets and frames do not match, or some times are the same: then they would be lost.
    """
    if len(np.unique(found.pts)) != len(found.pts):
        raise ValueError("some of its frames are shown at the same time")
    pts = _order_by_decoding(source, codec, found.pts.tolist())
    hidden = np.empty_like(found.hidden)
    hidden[np.argsort(pts, kind="stable")] = found.hidden[np.argsort(found.pts, kind="stable")]
    return replace(found, pts=pts, hidden=hidden)


def _order_by_decoding(source: Path, codec: str, times: list[int]) -> Int64:
    """pts for a container that has none, or only decode times, or wrong ones: the decoder's order, on the clock of the
    packets.

    AVI stores no presentation times, and those that demuxers make up for it are wrong where frames are reordered.
    """
    with closing(open_video(source)) as container:
        stream = video_stream(container)
        context = stream.codec_context
        context.flags |= av.codec.context.Flags.copy_opaque
        order: list[int] = []
        for number, packet in enumerate(packets(container, stream, codec)):
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


def decode_times(pts: Int64) -> Int64:
    """Strictly rising decode times, none after the packet's presentation time.

    The sorted presentation times, moved back as a whole by as much as the reordering needs.
    """
    ordered = np.sort(pts)
    ramp = np.arange(len(pts), dtype=np.int64)
    rising = np.maximum.accumulate(ordered - ramp) + ramp
    return np.asarray(rising - max(0, int((rising - pts).max())), dtype=np.int64)
