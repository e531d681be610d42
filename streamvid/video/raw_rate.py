"""The frame rate of streams without times, such as raw H.264: their header's, else the one that the user gives."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from typing import Final

import av

from streamvid.video.codec_context import bare_context
from streamvid.video.probe import VideoFile, demux

_STATES_RATE: Final = frozenset({"h264", "hevc", "av1", "mpeg1video", "mpeg2video", "vc1", "vvc", "dirac", "cavs"})
"""Codecs whose headers may state a frame rate that decoders read. For others FFmpeg's make one up: MPEG-4 states the
resolution of its clock, H.261 and H.263 the rate of a camera that may leave out pictures."""
_FASTEST: Final = 500
"""Frames per second above which a header gives the resolution of its clock and not a rate."""


def frame_rate(source: VideoFile) -> Fraction:
    """Frames per second of a file whose frames have no times.

    Args:
        source: the file, and the rate if its header states none.

    Raises:
        ValueError: it states none, and none is given.
    """
    rate = _stated_rate(source) or source.fps
    if rate is None:
        raise ValueError("its frames have no times, and its header states no frame rate: give --fps to streamvid pack")
    return rate


def _stated_rate(source: VideoFile) -> Fraction | None:
    """The rate that a decoder reads in the stream's own header; FFmpeg's demuxers make up a rate of 25."""
    with source.open() as (container, stream):
        codec = stream.codec_context.codec
        if codec.canonical_name not in _STATES_RATE:
            return None
        bare = bare_context(codec.name, stream.codec_context.extradata)
        for packet in demux(source, container, stream, codec.canonical_name):
            with suppress(av.error.FFmpegError):
                if bare.decode(packet):
                    break
        rate = bare.framerate
    return rate if rate and 0 < rate <= _FASTEST else None
