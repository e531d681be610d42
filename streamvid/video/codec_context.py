"""Opens FFmpeg's decoder for clips, and DALI's for images, in the same way for loaders, packing and `verify`.

The output of a codec context depends on its parameters and on earlier packets. Here it gets the parameters that
FFmpeg's demuxer would set for the whole clip, and every run of packets begins with an empty decoder. So a frame does
not depend on the other frames that are decoded with it.
"""

from __future__ import annotations

import errno
import io
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain, count, islice
from operator import sub
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from streamvid.arrays import Int64
from streamvid.bitstream.h264 import HIGH_444
from streamvid.bitstream.image import is_image_entry
from streamvid.bitstream.jpeg import has_tables
from streamvid.bitstream.packet_info import tells_sets
from streamvid.color.picture import Picture
from streamvid.mp4.sample_entry import coded_size, visual_sample_description, without_bit_rate, without_sequence_header
from streamvid.mp4.writer import composition_offsets, slice_header
from streamvid.video.image_decoder import decode_images
from streamvid.video.native_decoder import NativeDecoder, NativeRun

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

MAX_REORDER: Final = 16
"""Most pictures that an H.264 decoder may delay (max_dec_frame_buffering, A.3.1 of ITU-T H.264)."""

MAX_PIXELS: Final = 1 << 26
"""Most pixels of a picture in codecs with inter prediction, for which FFmpeg holds ten and more pictures. 8192x8192 is
twice what any level of H.264, and any level of HEVC and AV1 below 7, allows."""
_MAX_INTRA_PIXELS: Final = 1 << 28
"""Most pixels of a picture in codecs without it."""


class _Kept(NamedTuple):
    """An open codec context, with the sample description (without bit rate), reorder depth and pixel limit that it was
    opened with."""

    stsd: bytes
    reorder: int
    pixels: int
    context: VideoCodecContext | NativeDecoder


class ReusableCodecContext(threading.local):
    """A codec context per thread, kept open for the next stream with the same sample description (its bit rate aside):
    opening one and allocating its frames takes as long as decoding three frames.

    Args:
        strict: raise for any error in a NAL unit: see `open_context`.
        taken: called before each packet that PyAV feeds to the decoder.
        any_history: keep a codec context even if damage in the stream before, or its codec, may show in the next.
    """

    def __init__(
        self, *, strict: bool = False, taken: Callable[[], object] = lambda: None, any_history: bool = False
    ) -> None:
        self._strict, self._taken, self._any_history = strict, taken, any_history
        self._kept: _Kept | None = None
        self._damaged = self._told = False

    def decode(
        self, stsd: bytes, packets: Iterable[tuple[bytes, int]], *, reorder: int, pixels: int = _MAX_INTRA_PIXELS
    ) -> Iterator[VideoFrame]:
        """Decode a stream that starts at a random access packet.

        Args:
            stsd: the sample description box.
            packets: in decode order, each with its rank in display order, which becomes the `pts` of its frame.
                Consumed lazily, as frames are asked for.
            reorder: the stream's `reorder_depth`.
            pixels: most pixels of a picture: see `limit_pixels`.

        Returns:
            all frames, in display order.

        Raises:
            av.error.FFmpegError: the packets cannot be decoded.
        """
        if is_image_entry(stsd):
            yield from decode_images(stsd, packets)
            return
        packets = iter(packets)
        head = list(islice(packets, 1))
        if head and self._kept is not None and self._kept.context.name == "mjpeg" and not has_tables(head[0][0]):
            self._kept = None  # a decoder would take those of the stream before for the standard's
        with self._held(stsd, reorder, pixels, native=False) as context:
            assert not isinstance(context, NativeDecoder)
            tells = tells_sets(context.codec.canonical_name, stsd)

            def looked_at() -> Iterator[tuple[bytes, int]]:
                for data, rank in chain(head, packets):
                    self._told |= tells(memoryview(data))
                    yield data, rank

            for frame in _decode(context, looked_at(), self._taken):
                self._damaged |= frame.is_corrupt
                yield frame

    def pictures(self, stsd: bytes, run: NativeRun, *, reorder: int, pixels: int) -> Iterator[tuple[int, Picture]]:
        """The wanted pictures of a stream, decoded by the native part: see `NativeDecoder.pictures`."""
        with self._held(stsd, reorder, pixels, native=True) as context:
            assert isinstance(context, NativeDecoder)
            tells = tells_sets(context.name, stsd)
            self._told = any(map(tells, run.each_packet()))
            yield from context.pictures(run)

    @contextmanager
    def _held(
        self, stsd: bytes, reorder: int, pixels: int, *, native: bool
    ) -> Iterator[VideoCodecContext | NativeDecoder]:
        # Taken out while in use, so that a context that failed is not kept.
        kept, self._kept, same = self._kept, None, without_bit_rate(stsd)
        self._damaged = self._told = False
        if (
            kept is None
            or (kept.stsd, kept.pixels, isinstance(kept.context, NativeDecoder)) != (same, pixels, native)
            or kept.reorder < reorder
        ):
            kept = _Kept(same, reorder, pixels, self._open(stsd, reorder, pixels, native))
        # A caller that has all its frames closes the generator early; then the context is kept, but no native one: a
        # generator that is garbage after an error is closed, too, and its decoder may have been finalized before.
        with suppress(*(() if native else (GeneratorExit,))):
            yield kept.context
        if not self._told and (self._any_history or not (self._damaged or _has_history(kept))):
            kept.context.flush_buffers()
            self._kept = kept

    def _open(self, stsd: bytes, reorder: int, pixels: int, native: bool) -> VideoCodecContext | NativeDecoder:
        if native:
            return NativeDecoder(unfilled_mp4(stsd, reorder), pixels=min(pixels, MAX_PIXELS))
        context = open_context(stsd, reorder, strict=self._strict)
        limit_pixels(context, pixels)
        return context


def _has_history(kept: _Kept) -> bool:
    """Whether flushing a decoder leaves state of the previous stream: for MPEG-4, the distance of the first B-frame;
    for H.264 in the 4:4:4 profile, which lossless 4:2:0 has, too, the version of x264; for VP8, the pixels that replace
    a damaged key frame."""
    context = kept.context
    name = context.name if isinstance(context, NativeDecoder) else context.codec.canonical_name
    if name != "h264":
        return name in ("mpeg4", "vp8")
    profile = kept.stsd.partition(b"avcC")[2][1:2]  # AVCProfileIndication (ISO/IEC 14496-15, 5.3.3.1.2)
    return "444" in (context.pix_fmt or "") or profile == bytes([HIGH_444])


def reorder_depth(display_order: Int64 | Sequence[int]) -> int:
    """The reorder depth of a stream: the most pictures that precede any picture in decode order and follow it in
    display order.

    Args:
        display_order: [packets], at least one, a permutation of consecutive numbers: each packet's rank by presentation
            time.
    """
    # Without NumPy, which lets go of the GIL even for short arrays, and may take milliseconds to get it back.
    ranks = display_order.tolist() if isinstance(display_order, np.ndarray) else display_order
    depth: int = max(map(sub, count(min(ranks)), ranks))
    return min(MAX_REORDER, depth)


def in_band_description(codec: str, *, width: int, height: int) -> bytes:
    """A sample description box for packets in Annex B, with their parameter sets in band; `codec` is h264 or hevc."""
    return visual_sample_description({"h264": b"avc1", "hevc": b"hvc1"}[codec], b"", width=width, height=height)


def open_context(stsd: bytes, reorder: int, *, strict: bool = False) -> VideoCodecContext:
    """A codec context as FFmpeg's demuxer sets it up: with the extradata, codec tag and size of the sample description.

    Args:
        reorder: as for `ReusableCodecContext.decode`.
        strict: raise for any error in a NAL unit, even one that no picture needs. Motion JPEG is always strict.

    Raises:
        av.error.FFmpegError: the sample description is damaged.
    """
    import av

    try:
        with closing(av.open(io.BytesIO(unfilled_mp4(stsd, reorder)), "r", format="mp4")) as container:
            context = container.streams.video[0].codec_context
    except (ValueError, IndexError) as error:
        raise _damaged() from error
    if context is None:
        raise av.error.InvalidDataError(errno.EINVAL, "its sample description names no codec that FFmpeg knows")
    # Threads swallow errors: with several of them FFmpeg's VP9 decoder gives fewer frames and says nothing.
    context.thread_count = 1
    if strict or context.codec.canonical_name == "mjpeg":
        # Otherwise the damaged part of a picture shows uninitialised memory, without a flag.
        context.options = {"err_detect": "explode"}
    limit_pixels(context)
    return context


def unfilled_mp4(stsd: bytes, reorder: int) -> bytes:
    """An MP4 without packets, from which FFmpeg's demuxer makes the decoder's parameters. Raises
    av.error.InvalidDataError if the sample description is damaged.

    Its table of composition times is reordered by `reorder` pictures: if the bitstream does not state the reorder
    depth, FFmpeg's H.264 decoder starts with the container's, and drops pictures whenever it finds a larger one.
    """
    times = np.append(np.arange(1, reorder + 1), 0)
    sizes = np.ones(reorder + 1, dtype=np.int64)
    try:
        width, height = coded_size(stsd)
        head = without_sequence_header(stsd)
        return slice_header(head, sizes, width=width, height=height, offsets=composition_offsets(times))
    except (ValueError, IndexError) as error:
        raise _damaged() from error


def _damaged() -> Exception:
    import av

    return av.error.InvalidDataError(errno.EINVAL, "its sample description is damaged")


def bare_context(decoder: str, extradata: bytes | None = None) -> VideoCodecContext:
    """A codec context without a container, by the name of FFmpeg's decoder."""
    import av

    context = av.CodecContext.create(decoder, "r")
    assert isinstance(context, av.VideoCodecContext)
    context.extradata = extradata
    context.thread_count = 1
    limit_pixels(context)
    return context


def limit_pixels(context: VideoCodecContext, pixels: int = _MAX_INTRA_PIXELS) -> int:
    """Make a decoder that is not open yet refuse larger pictures before it allocates them: a parameter set of a few
    bytes may claim any size.

    The size in AV1's sequence header does not count: see `without_sequence_header`.

    Args:
        context: the decoder.
        pixels: most pixels of a coded picture, before cropping; not more than `MAX_PIXELS`, or 2²⁸ for codecs without
            inter prediction.

    Returns:
        the limit that was set.
    """
    most = min(pixels, _MAX_INTRA_PIXELS if context.codec.intra_only else MAX_PIXELS)
    context.options = {**context.options, "max_pixels": str(most)}
    if context.codec.canonical_name == "av1" and context.extradata:
        context.extradata, context.width, context.height = context.extradata[:4], 0, 0
    return most


def padded_packet(data: bytes) -> Packet[Any]:
    """A packet allocated by FFmpeg, with the zeroed padding after the data that its decoders read.

    av.Packet(bytes) has no padding: decoders then read past the end, and MPEG-4 frames come out wrong.
    """
    import av

    packet = av.Packet(len(data))
    packet.update(data)
    return packet


def _decode(
    context: VideoCodecContext, packets: Iterable[tuple[bytes, int]], taken: Callable[[], object]
) -> Iterator[VideoFrame]:
    for data, rank in packets:
        taken()
        packet = padded_packet(data)
        packet.pts = rank
        yield from context.decode(packet)
    yield from context.decode(None)
