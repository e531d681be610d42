"""Decoding of a video whose colour tags change: FFmpeg's decoders give some frames the tags of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import av  # noqa: F401 - first, as in native_decoder.py
from av.codec.context import Flags

from streamvid.video.output_order import decode

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

_MISSING: Final = {"colorspace": 2, "color_primaries": 2, "color_trc": 2, "color_range": 0}
"""The tags of frames and decoders in FFmpeg, and their values where there is no tag."""
_CODECS: Final = ("h264", "hevc", "vvc", "mpeg2video")
"""Those that output frames later, and read tags before the picture: dav1d (AV1) reads them with the frame."""


class TagKeepingDecoder:
    """A decoder whose frames have the tags of their own sequence. FFmpeg completes missing tags when a frame is output:
    by those of the next sequence, if that has begun meanwhile.

    Args:
        context: FFmpeg's decoder, not opened yet, with one thread.
    """

    def __init__(self, context: VideoCodecContext) -> None:
        self._context = context
        self._delays = context.codec.canonical_name in _CODECS
        if self._delays:
            context.flags |= Flags.copy_opaque

    def decode(self, packet: Packet[Any] | None) -> list[VideoFrame]:
        """The frames that are output for a packet; for None, the last ones. Errors as of `output_order.decode`."""
        sequence: dict[str, int] = {}
        if self._delays and packet is not None:
            packet.opaque = sequence
        frames = self._context.decode(None) if packet is None else decode(self._context, packet)
        sequence.update((name, int(getattr(self._context, name))) for name in _MISSING)
        for frame in frames if self._delays else ():
            own: Any = frame.opaque or {}
            for name, value in own.items():
                if value == _MISSING[name]:
                    setattr(frame, name, value)
        return frames
