"""Decoding on the CPU with FFmpeg: slices are cut at key frames, and threads decode the segments.

`streamvid.color.yuv_to_rgb` converts the frames to RGB.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from streamvid.arrays import UInt8
from streamvid.color.yuv_to_rgb import Planes, RgbConverter
from streamvid.decode.base import FrameSink, Pending
from streamvid.errors import VideoError
from streamvid.mp4.writer import slice_header
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

_MIN_SEGMENT: Final = 32
"""Packets of a segment at least: opening a codec context costs as much as decoding a frame of 640x360."""

SliceSegment = tuple[int, int]
"""Packets of a slice, from and to."""


class CpuDecoder:
    """Decodes with FFmpeg in threads, each on one segment of a slice at a time, so that few long slices keep all
    threads busy, too.

    Args:
        threads: segments decoded at once. 0: the thread that waits for a batch decodes it, one slice after the other.
        initializer: called once in each thread before it decodes.
    """

    def __init__(self, *, threads: int, initializer: Callable[[], None] | None = None) -> None:
        self._pool: ThreadPoolExecutor | None = None
        if threads:
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="streamvid-decode", initializer=initializer)
        self._convert, self._context = RgbConverter(), ReusableCodecContext()

    def submit(self, slices: Sequence[EncodedSlice]) -> Pending[list[UInt8]]:
        """Begin to decode a batch: see `streamvid.decode.base.Decoder`."""
        sinks = [_FullSizeSink(encoded) for encoded in slices]
        written = self.write(slices, sinks)

        def frames() -> list[UInt8]:
            written.result()
            return [sink.frames for sink in sinks]

        return Pending(frames)

    def write(self, slices: Sequence[EncodedSlice], sinks: Sequence[FrameSink]) -> Pending[None]:
        """Begin to decode a batch into sinks, one for each slice.

        Returns:
            what waits until all frames are written; its `result` raises VideoError if a slice does not decode.
        """
        pairs = list(zip(slices, sinks, strict=True))
        futures: list[Future[None]] = []
        if self._pool is not None:
            for encoded, sink in pairs:
                for segment in split_at_keyframes(encoded):
                    futures.append(self._pool.submit(self._decode, encoded, sink, segment))

        def wait() -> None:
            for future in futures:
                future.result()
            if self._pool is None:
                for encoded, sink in pairs:
                    self._decode(encoded, sink, None)

        return Pending(wait)

    def decode(self, slices: Sequence[EncodedSlice]) -> list[UInt8]:
        """The wanted frames of each slice, uint8 [frames, height, width, 3].

        Raises:
            VideoError: a slice does not decode to its frames.
        """
        return self.submit(slices).result()

    def close(self) -> None:
        """Free the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _decode(self, encoded: EncodedSlice, sink: FrameSink, segment: SliceSegment | None) -> None:
        for row, frame in decode_frames(encoded, segment, context=self._context):
            sink.write(row, self._convert(frame, full_range=encoded.full_range))


def decode_with_pyav(encoded: EncodedSlice) -> UInt8:
    """Decode one slice in the calling thread, without holding the GIL while FFmpeg works.

    Returns:
        uint8 [frames, height, width, 3], RGB.

    Raises:
        VideoError: the slice does not decode to its frames.
    """
    return CpuDecoder(threads=0).decode([encoded])[0]


class _FullSizeSink:
    """Keeps the frames as decoded: uint8 [frames, height, width, 3]."""

    def __init__(self, encoded: EncodedSlice) -> None:
        self.frames: UInt8 = np.empty((len(encoded.frames), encoded.height, encoded.width, 3), dtype=np.uint8)

    def write(self, row: int, planes: Planes) -> None:
        """See `streamvid.decode.base.FrameSink`."""
        for channel, plane in enumerate(planes):
            self.frames[row, ..., channel] = plane


def split_at_keyframes(encoded: EncodedSlice) -> list[SliceSegment]:
    """Cut a slice into segments that decode independently of each other, in order."""
    cuts = [0]
    if not np.isin(encoded.frames, encoded.display_order).all():
        # A wanted frame that no packet has: only decoding the slice as a whole notices that, and raises.
        return [(0, len(encoded.sizes))]
    for start in encoded.starts.tolist():
        if start - cuts[-1] >= _MIN_SEGMENT and len(encoded.sizes) - start >= _MIN_SEGMENT:
            cuts.append(start)
    return list(zip(cuts, [*cuts[1:], len(encoded.sizes)], strict=True))


def decode_frames(
    encoded: EncodedSlice, segment: SliceSegment | None = None, *, context: ReusableCodecContext | None = None
) -> Iterator[tuple[int, VideoFrame]]:
    """Decode a slice, or a segment of one, without holding the GIL while FFmpeg works.

    Args:
        encoded: the slice.
        segment: default: all of it.
        context: keeps FFmpeg's decoder open from slice to slice.

    Returns:
        the wanted frames, not always in order, each after its row: its index in `encoded.frames`.

    Raises:
        VideoError: it does not decode to its frames.
    """
    import av

    context = context or ReusableCodecContext()
    first, last = segment or (0, len(encoded.sizes))
    inside = set(encoded.display_order[first:last].tolist()) if last - first < len(encoded.sizes) else None
    rows = {int(rank): row for row, rank in enumerate(encoded.frames) if inside is None or int(rank) in inside}
    try:
        settings = _decoder_settings(encoded.stsd, encoded.width, encoded.height)
        for frame in context.decode(*settings, _packets(encoded, first, last)):
            # Checked on frames that are not wanted, too: wanted ones may be predicted from them, without a flag.
            if frame.is_corrupt:
                raise VideoError(f"clip {encoded.name} is damaged: check it with `streamvid verify --decode`")
            row = rows.pop(frame.pts, None) if frame.pts is not None else None
            if row is None:
                continue
            if (frame.width, frame.height) != (encoded.width, encoded.height):
                raise VideoError(
                    f"clip {encoded.name} decodes to frames of {frame.width}x{frame.height}, "
                    f"its dataset says {encoded.width}x{encoded.height}: pack it again"
                )
            yield row, frame
            if not rows:
                return
    except av.error.FFmpegError as error:
        raise VideoError(f"clip {encoded.name} cannot be decoded: {error.strerror}") from error
    if rows:
        raise VideoError(
            f"clip {encoded.name} does not decode to the frames that its index names: "
            "check it with `streamvid verify --decode`"
        )


class ReusableCodecContext(threading.local):
    """A codec context per thread, kept open for the next stream with the same decoder and extradata: opening one and
    allocating its frames takes as long as decoding three of them."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[str, bytes], VideoCodecContext] | None = None

    def decode(self, name: str, extradata: bytes, packets: Iterable[tuple[bytes, int]]) -> Iterator[VideoFrame]:
        """Decode a stream that depends on nothing before it.

        Args:
            name: FFmpeg's name of the decoder.
            extradata: as FFmpeg has it; empty if parameter sets are in band.
            packets: in decode order, each with its place in display order, which becomes the `pts` of its frame.
                They are taken only as frames are asked for.

        Returns:
            all frames, in display order.

        Raises:
            av.error.FFmpegError: they cannot be decoded.
        """
        key = name, extradata
        # Taken out while it is in use, so that one that fails is not kept.
        kept, self._kept = self._kept, None
        context = kept[1] if kept is not None and kept[0] == key else _open(name, extradata)
        # A caller that has all the frames it wants closes this generator early; the context is still good.
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


def _packets(encoded: EncodedSlice, first: int, last: int) -> Iterator[tuple[bytes, int]]:
    ends = np.cumsum(encoded.sizes)
    start = int(ends[first - 1]) if first else 0
    for rank, end in zip(encoded.display_order[first:last].tolist(), ends[first:last].tolist(), strict=True):
        yield encoded.data[start:end].tobytes(), rank
        start = end


@lru_cache(maxsize=256)
def _decoder_settings(stsd: bytes, width: int, height: int) -> tuple[str, bytes]:
    """FFmpeg's name of the decoder, and its extradata.

    FFmpeg itself reads them from the sample description, in an MP4 without packets.
    """
    import io

    import av

    head = slice_header(stsd, np.empty(0, dtype=np.int64), width=width, height=height)
    with av.open(io.BytesIO(head), format="mp4") as container:
        context = container.streams.video[0].codec_context
        return context.codec.name, context.extradata or b""
