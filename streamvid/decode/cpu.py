"""Slices → pictures by FFmpeg, on the CPU: which frames of a slice are wanted, and where it can be cut for several
threads. Making RGB of them is `streamvid.color.yuv_to_rgb`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from streamvid.errors import VideoError
from streamvid.mp4 import boxes
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

_LEAST: Final = 32
"""Packets of a piece at least: opening FFmpeg's decoder costs as much as decoding a picture of 640x360."""

SliceSegment = tuple[int, int]
"""Packets of a slice, from and to."""


def split_at_keyframes(part: EncodedSlice) -> list[SliceSegment]:
    """Cut a slice into pieces that decode each by itself, in order."""
    cuts = [0]
    if not np.isin(part.frames, part.display_order).all():
        return [(0, len(part.sizes))]  # which fails: no piece by itself would miss the frame that none has
    for start in part.starts.tolist():
        if start - cuts[-1] >= _LEAST and len(part.sizes) - start >= _LEAST:
            cuts.append(start)
    return list(zip(cuts, [*cuts[1:], len(part.sizes)], strict=True))


def decode_frames(
    part: EncodedSlice, piece: SliceSegment | None = None, *, decoder: ReusableCodecContext | None = None
) -> Iterator[tuple[int, VideoFrame]]:
    """Decode a slice, or a piece of one, without holding the GIL while FFmpeg works.

    Args:
        part: the slice.
        piece: default: all of it.
        decoder: what others were decoded with.

    Returns:
        its wanted frames, not always in order, each with its row: frame *i* of `part.frames` has the row *i*.

    Raises:
        VideoError: it does not decode to its frames.
    """
    import av

    decoder = decoder or ReusableCodecContext()
    first, last = piece or (0, len(part.sizes))
    mine = set(part.display_order[first:last].tolist()) if last - first < len(part.sizes) else None
    rows = {int(rank): row for row, rank in enumerate(part.frames) if mine is None or int(rank) in mine}
    try:
        settings = _decoder_settings(part.stsd, part.width, part.height)
        for frame in decoder.decode(*settings, _packets(part, first, last)):
            # Also one that nobody wants: others are made from it, and say nothing.
            if frame.is_corrupt:
                raise VideoError(f"clip {part.name} is damaged: check it with `streamvid verify --decode`")
            row = rows.pop(frame.pts, None) if frame.pts is not None else None
            if row is None:
                continue
            if (frame.width, frame.height) != (part.width, part.height):
                raise VideoError(
                    f"clip {part.name} decodes to frames of {frame.width}x{frame.height}, "
                    f"its dataset says {part.width}x{part.height}: pack it again"
                )
            yield row, frame
            if not rows:
                return
    except av.error.FFmpegError as error:
        raise VideoError(f"clip {part.name} cannot be decoded: {error.strerror}") from error
    if rows:
        raise VideoError(
            f"clip {part.name} does not decode to the frames that its index names: "
            "check it with `streamvid verify --decode`"
        )


class ReusableCodecContext(threading.local):
    """FFmpeg's decoder, one for each thread, which is kept for the next stream of the same settings: to open one and to
    get memory for its pictures takes as long as to decode three of them."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[str, bytes], VideoCodecContext] | None = None

    def decode(self, name: str, extradata: bytes, packets: Iterable[tuple[bytes, int]]) -> Iterator[VideoFrame]:
        """Packets, each with its rank → all their frames; the `pts` of each is the rank of its packet.

        Args:
            name: FFmpeg's, of the decoder.
            extradata: its; empty if parameter sets are in band.
            packets: in decode order, of a stream by itself. No more are taken than frames are asked for.

        Raises:
            av.error.FFmpegError: they cannot be decoded.
        """
        key = name, extradata
        # One that fails is not kept.
        kept, self._kept = self._kept, None
        context = kept[1] if kept is not None and kept[0] == key else _open(name, extradata)
        # Whoever wants no more ends the loop early.
        with suppress(GeneratorExit):
            yield from _decode(context, packets)
        context.flush_buffers()
        self._kept = key, context


def _open(name: str, extradata: bytes) -> VideoCodecContext:
    import av

    context = av.CodecContext.create(name, "r")
    assert isinstance(context, av.VideoCodecContext)
    if extradata:
        context.extradata = extradata
    context.thread_count = 1
    return context


def _decode(context: VideoCodecContext, packets: Iterable[tuple[bytes, int]]) -> Iterator[VideoFrame]:
    import av

    for data, rank in packets:
        # Allocated by FFmpeg, with the zeroed padding behind the data that its decoders read into.
        # av.Packet(bytes) has none: decoders then read past the end, and MPEG-4 frames come out wrong.
        packet = av.Packet(len(data))
        packet.update(data)
        packet.pts = rank
        yield from context.decode(packet)
    yield from context.decode(None)


def _packets(part: EncodedSlice, first: int, last: int) -> Iterator[tuple[bytes, int]]:
    ends = np.cumsum(part.sizes)
    start = int(ends[first - 1]) if first else 0
    for rank, end in zip(part.display_order[first:last].tolist(), ends[first:last].tolist(), strict=True):
        yield part.data[start:end].tobytes(), rank
        start = end


@lru_cache(maxsize=256)
def _decoder_settings(stsd: bytes, width: int, height: int) -> tuple[str, bytes]:
    """FFmpeg's name of the decoder, and its extradata.

    FFmpeg itself takes them out of the sample description, from an MP4 without packets.
    """
    import io

    import av

    head = boxes.header(stsd, np.empty(0, dtype=np.int64), width=width, height=height)
    with av.open(io.BytesIO(head), format="mp4") as container:
        context = container.streams.video[0].codec_context
        return context.codec.name, context.extradata or b""
