"""Files that end within a frame, as recordings that were killed and downloads that broke off: their last packet is
left out."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice
from typing import Final

import av

from streamvid.video.gaps import find_extent
from streamvid.video.probe import VideoFile
from streamvid.video.recordings import breaks_off, track_packets

_LENGTH_STATED: Final = ("avi", "flv", "mov")
"""Containers whose headers say where the file ends. There `whole_packets` leaves out what FFmpeg's demuxer marks."""
_DECODER_MARKS: Final = ("h264", "mpeg1video", "mpeg2video", "mpeg4")
"""Codecs of which FFmpeg's decoder marks every picture that is not whole. Of HEVC it does not miss slices."""


def without_cut_off_packet(source: VideoFile) -> VideoFile:
    """The same video, without its last packet if the file ends within it.

    A transport stream tells that by its pieces, but for one packet in 184. Of that, and in containers that do not say
    where they end, the last packet is decoded. Of Matroska that is followed by something else, such as zeros, the last
    packet counts as cut off.

    Raises:
        av.error.FFmpegError: the file cannot be read.
        ValueError: as of `VideoFile.open`.
    """
    with source.open() as (container, stream):
        name = container.format.name.split(",")[0]
        if name == "matroska":
            return replace(source, cut_off=find_extent(source.path, name).ends_in_gap)
        if name in _LENGTH_STATED or stream.codec_context is None:
            return source
        if name == "mpegts":
            broken = breaks_off(source.path, stream.id)
            if not broken or stream.codec_context.codec.canonical_name not in _DECODER_MARKS:
                return replace(source, cut_off=broken)
        keys, marked = [0, 0], False
        for number, packet in enumerate(packet for packet in track_packets(container, stream) if packet.size):
            marked = packet.is_corrupt
            if packet.is_keyframe:
                keys = [keys[1], number]
    # From the last key frame but one on, as the last frames may refer to frames before the last key frame. Others may
    # be missing even then, so that an end that seems damaged is decoded again from the start.
    marked = marked and name not in ("mpeg", "mpegts")
    return replace(source, cut_off=marked or (_ends_damaged(source, keys[0]) and _ends_damaged(source, 0)))


def _ends_damaged(source: VideoFile, first: int) -> bool:
    """Whether the last packet, which may be a field, does not decode to a whole picture, if decoding starts with packet
    `first`."""
    damaged: dict[int, bool] = {}  # by the packets with which pictures begin
    last = -1
    with source.open() as (container, stream):
        context = stream.codec_context
        context.flags |= av.codec.context.Flags.copy_opaque
        if context.codec.canonical_name == "mjpeg":  # as decoders of clips do: `open_context`
            context.options = {**context.options, "err_detect": "explode"}
        packets = (packet for packet in track_packets(container, stream) if packet.size)
        for packet in chain(islice(packets, first, None), [None]):
            if packet is not None:
                packet.opaque = last = last + 1
            try:
                for frame in context.decode(packet):
                    if isinstance(frame.opaque, int):
                        damaged[frame.opaque] = frame.is_corrupt
            except av.error.FFmpegError:
                damaged[last] = True
    return bool(damaged) and damaged[max(damaged)]
