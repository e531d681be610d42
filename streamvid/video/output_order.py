"""The order in which a decoder outputs a file's pictures, and when they are shown by their decode times."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import av
import numpy as np

from streamvid.arrays import Int64
from streamvid.bitstream import h264, mpeg4
from streamvid.bitstream.packet_kind import PacketKind
from streamvid.errors import VideoError
from streamvid.video.codec_context import padded_packet
from streamvid.video.probe import CannotCopyError, VideoFile, demux

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

_COUNT_ANEW: Final = "copy it to a raw stream (ffmpeg -i … -c copy a.h264, a.hevc or a.m4v), and pack that with --fps"


@dataclass(frozen=True)
class OutputOrder:
    """The order in which a decoder outputs pictures.

    Attributes:
        packets: int64 [frames], the numbers of their packets.
        delay: how many packets a decoder has taken by then that it outputs later: FFmpeg's `has_b_frames`.
    """

    packets: Int64
    delay: int

    def matched(self, count: int | None = None) -> OutputOrder:
        """The order of all `count` packets of a file, each of which gives a picture, or is a leading one that cannot.

        Args:
            count: how many packets there are; None: those that gave a picture.

        Raises:
            CannotCopyError: there are fewer pictures than packets, as where packets hold single fields.
            ValueError: packets and pictures do not match.
        """
        order = self.packets.tolist()
        # B-frames behind the first key frame refer to frames before it, which are not there: they are not shown.
        leading = sorted(set(range(count or 0)).difference(order))
        if leading == list(range(1, len(leading) + 1)):
            order = leading + order
        apart = len(set(order)) == len(order)
        if count is not None and len(order) < count and apart:
            raise CannotCopyError(f"its {count} packets decode to {len(order)} frames, where each must be one")
        if count not in (None, len(order)) or not apart:
            raise ValueError(
                f"its {count or len(set(order))} packets decode to {len(order)} frames, "
                "and its container holds no times to match them: re-encode it first"
            )
        return OutputOrder(np.array(order, dtype=np.int64), self.delay)

    def shown_at(self, clock: Int64) -> Int64:
        """When the pictures are shown where a container has decode times alone: as the decoder outputs them.

        A picture comes out when the packet `delay` behind its place is decoded, and encoders make decode times so: the
        times of pictures, later by the delay. The last ones follow at the usual distance.

        Args:
            clock: int64 [packets], decode times in ticks.

        Returns:
            int64 [frames], rising.

        Raises:
            ValueError: two packets have the same time.
        """
        times = distinct(clock[self.packets], self.packets)
        usual = round(float(np.median(np.diff(times)))) if len(times) > 1 else 1
        return np.concatenate([times, times[-1:] + usual * np.arange(1, self.delay + 1)])[self.delay :]


def output_order(
    source: VideoFile, codec: str, *, apply_edits: bool = True, num_skipped: int = 0, count: int | None = None
) -> OutputOrder:
    """Decode a file's video for the order of its pictures.

    Args:
        source: the file.
        codec: as FFmpeg names it.
        apply_edits, num_skipped: as of `streamvid.video.packet_times.PacketTimes`.
        count: how many packets to decode; None: all.

    Raises:
        ValueError: a frame cannot be matched with its packet, or is output twice.
    """
    with source.open(apply_edits=apply_edits) as (container, stream):
        context = stream.codec_context
        context.flags |= av.codec.context.Flags.copy_opaque
        order: list[int] = []
        newest: list[int] = []  # packet that the decoder was given last, when it output each of them
        kind_of = mpeg4.vop_classifier(context.extradata or b"")
        kinds: list[PacketKind] = []
        number = -1
        end = None if count is None else num_skipped + count
        for number, packet in enumerate(islice(demux(source, container, stream, codec), num_skipped, end)):
            if codec == "mpeg4":
                kinds.append(kind_of(memoryview(bytes(packet))))
                if number and all(kind.disposable for kind in islice(kinds, 1, None)):
                    continue  # its references are missing, and FFmpeg would take distances of interlaced VOPs from it
            if packet.is_discard:  # cut off by an edit list: its picture would be kept back
                packet = padded_packet(bytes(packet))
            packet.opaque = number
            order.extend(_number(frame) for frame in decode(context, packet))
            newest.extend([number] * (len(order) - len(newest)))
        order.extend(_number(frame) for frame in context.decode(None))
        newest.extend([number + 1] * (len(order) - len(newest)))
    mpeg4.check_delay(kinds)
    # How many packets that give a frame the decoder has, less the frames that it has output.
    taken = np.searchsorted(np.sort(order), newest, side="right")
    taken += np.array(newest) > number
    delay = int((taken - np.arange(1, len(order) + 1)).max(initial=0))
    silent = {number for number, kind in enumerate(kinds) if kind.hidden}
    if silent:  # they count as pictures that are shown, of which the decoder says nothing
        every = mpeg4.output_order([kind.disposable for kind in kinds])
        order = every if [number for number in every if number not in silent] == order else order
    return OutputOrder(np.array(order, dtype=np.int64), delay)


def decode(context: VideoCodecContext, packet: Packet[Any]) -> list[VideoFrame]:
    """The frames that a decoder outputs for a packet. A packet of H.264 without a picture, such as recorders make of
    parameter sets or messages alone, is an error to FFmpeg's decoder, which players ignore.

    Raises:
        av.error.FFmpegError: the packet cannot be decoded.
    """
    try:
        return context.decode(packet)
    except av.error.InvalidDataError:
        avcc = (context.codec.canonical_name == "h264" and context.extradata) or b""
        if avcc[:1] == b"\1" and h264.lacks_picture(memoryview(packet), avcc):
            return []
        raise


def distinct(clock: Int64, packets: Int64) -> Int64:
    """The times in order. Of frames with one time, each is a tick behind the one before, if there is room.

    Times may be in another order than pictures within a group that a decoder reorders. Between two groups, where it has
    output all packets so far before all later ones, times that fall back by more than a frame are of a clock that was
    set.

    Args:
        clock: int64 [frames], presentation or decode times, in the order of pictures.
        packets: int64 [frames], the numbers of their packets.

    Raises:
        ValueError: there is none, or most frames have the time of another, so that they have no times.
        VideoError: the clock falls back.
    """
    before, behind = _around_places(packets)
    last, first = _around_places(clock)
    ordered, fall = np.sort(clock), int((last - first)[before < behind].max(initial=0))
    if fall and fall > np.median(np.diff(ordered)):
        raise VideoError(f"its clock falls back: {_COUNT_ANEW}")
    numbers = np.arange(len(ordered))
    begins = np.maximum.accumulate(np.where(np.diff(ordered, prepend=ordered[:1] - 1) > 0, numbers, 0))
    apart: Int64 = ordered + numbers - begins
    if 2 * len(np.unique(begins)) <= len(begins) > 1 or (np.diff(apart) <= 0).any():
        raise ValueError(f"frames of it are shown at the same time: {_COUNT_ANEW}")
    return apart


def _around_places(values: Int64) -> tuple[Int64, Int64]:
    """Of each place between two values: the highest before it, and the lowest behind it."""
    return np.maximum.accumulate(values)[:-1], np.minimum.accumulate(values[::-1])[::-1][1:]


def ticks_needed(times: Int64) -> int:
    """In how many each tick must be divided so that `distinct` has room."""
    found, counts = np.unique(times, return_counts=True)
    return int(np.ceil(counts[:-1] / np.diff(found)).max(initial=1))


def _number(frame: VideoFrame) -> int:
    """The number of the packet that the frame was decoded from."""
    if not isinstance(frame.opaque, int):
        raise ValueError("its frames cannot be matched with its packets: re-encode it first")
    return frame.opaque
