"""FFmpeg's decoder of a clip, or DALI's of an image, the same for all who decode: loaders, packing and `verify`.

What a codec context gives depends on what it was told when it was opened, and on what it has decoded before. It is told
here what FFmpeg's demuxer would tell it of the whole clip, and every run of packets begins with an empty decoder. So a
frame does not depend on which others are decoded with it.
"""

from __future__ import annotations

import errno
import io
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from streamvid.arrays import Int64
from streamvid.bitstream.image import is_image_entry
from streamvid.color.picture import Picture
from streamvid.mp4.sample_entry import coded_size, visual_sample_description, without_bit_rate
from streamvid.mp4.writer import composition_offsets, slice_header
from streamvid.video.image_decoder import decode_images
from streamvid.video.native_decoder import NativeDecoder, NativeRun

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

MAX_REORDER: Final = 16
"""Pictures that H.264 lets a decoder hold back at most (max_dec_frame_buffering, A.3.1 of ITU-T H.264)."""

MAX_PIXELS: Final = 1 << 26
"""Of a picture, of a video that predicts pictures from others: FFmpeg holds ten and more of them. 8192x8192 is twice
as much as any level of H.264, and any of HEVC and AV1 below 7, allows."""
_MAX_INTRA_PIXELS: Final = 1 << 28


class _Kept(NamedTuple):
    """An open codec context, the sample description it was opened for but for the bit rate, and the reordering and size
    that it was told of."""

    stsd: bytes
    reorder: int
    pixels: int
    context: VideoCodecContext | NativeDecoder


class ReusableCodecContext(threading.local):
    """A codec context per thread, kept open for the next stream with the same sample description, whatever bit rate it
    names: opening one and allocating its frames takes as long as decoding three of them.

    Args:
        strict: raise for any error in a NAL unit, see `open_context`.
        taken: called before each packet that FFmpeg is given.
    """

    def __init__(self, *, strict: bool = False, taken: Callable[[], object] = lambda: None) -> None:
        self._strict, self._taken = strict, taken
        self._kept: _Kept | None = None

    def decode(
        self, stsd: bytes, packets: Iterable[tuple[bytes, int]], *, reorder: int, pixels: int = _MAX_INTRA_PIXELS
    ) -> Iterator[VideoFrame]:
        """Decode a stream that depends on nothing before it.

        Args:
            packets: in decode order, each with its place in display order, which becomes the `pts` of its frame.
                They are taken only as frames are asked for.
            reorder: the most pictures that are decoded before one of them and displayed after it: see
                `reorder_depth`.
            pixels: the largest picture that is decoded: see `limit_pixels`.

        Returns:
            all frames, in display order.

        Raises:
            av.error.FFmpegError: they cannot be decoded.
        """
        if is_image_entry(stsd):
            yield from decode_images(stsd, packets)
            return
        with self._held(stsd, reorder, pixels, native=False) as context:
            assert not isinstance(context, NativeDecoder)
            yield from _decode(context, packets, self._taken)

    def pictures(self, stsd: bytes, run: NativeRun, *, reorder: int, pixels: int) -> Iterator[tuple[int, Picture]]:
        """The wanted pictures of a stream, without Python between two packets: see `NativeDecoder.pictures`."""
        with self._held(stsd, reorder, pixels, native=True) as context:
            assert isinstance(context, NativeDecoder)
            yield from context.pictures(run)

    @contextmanager
    def _held(
        self, stsd: bytes, reorder: int, pixels: int, *, native: bool
    ) -> Iterator[VideoCodecContext | NativeDecoder]:
        # Taken out while it is in use, so that one that fails is not kept.
        kept, self._kept, same = self._kept, None, without_bit_rate(stsd)
        if (
            kept is None
            or (kept.stsd, kept.pixels, isinstance(kept.context, NativeDecoder)) != (same, pixels, native)
            or kept.reorder < reorder
        ):
            kept = _Kept(same, reorder, pixels, self._open(stsd, reorder, pixels, native))
        # A caller that has all the frames it wants closes its generator early; the context is still good. A native one
        # may be freed already: what is garbage, after an error, Python finalizes in any order.
        with suppress(*(() if native else (GeneratorExit,))):
            yield kept.context
        if not _has_history(kept.context):
            kept.context.flush_buffers()
            self._kept = kept

    def _open(self, stsd: bytes, reorder: int, pixels: int, native: bool) -> VideoCodecContext | NativeDecoder:
        if native:
            return NativeDecoder(unfilled_mp4(stsd, reorder), pixels=min(pixels, MAX_PIXELS))
        context = open_context(stsd, reorder, strict=self._strict)
        limit_pixels(context, pixels)
        return context


def _has_history(context: VideoCodecContext | NativeDecoder) -> bool:
    """Whether emptying a decoder leaves state of the stream before: of MPEG-4 the distance of the first B-frame, of
    H.264 in 4:4:4 the version of x264, of VP8 what a damaged key frame is filled with."""
    name = context.name if isinstance(context, NativeDecoder) else context.codec.canonical_name
    return name in ("mpeg4", "vp8") or (name == "h264" and "444" in (context.pix_fmt or ""))


def reorder_depth(display_order: Int64 | Sequence[int]) -> int:
    """The most pictures of a stream that are decoded before one of them and displayed after it.

    Args:
        display_order: [packets], at least one, a permutation of consecutive numbers: each packet's rank by presentation
            time.
    """
    ranks = np.asarray(display_order)
    depth = np.arange(len(ranks)) - (ranks - ranks.min())
    return min(MAX_REORDER, int(depth.max()))


def in_band_description(codec: str, *, width: int, height: int) -> bytes:
    """A sample description box for packets in Annex B, with their parameter sets in band; `codec` is h264 or hevc."""
    return visual_sample_description({"h264": b"avc1", "hevc": b"hvc1"}[codec], b"", width=width, height=height)


def open_context(stsd: bytes, reorder: int, *, strict: bool = False) -> VideoCodecContext:
    """A codec context as FFmpeg's demuxer sets it up: with the extradata, codec tag and size of the sample description.

    Args:
        reorder: as for `ReusableCodecContext.decode`.
        strict: raise for any error in a NAL unit, be it one that no picture needs. Motion JPEG is decoded so always.

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
        # Else what is damaged of a picture shows whatever lies in memory, and no flag says so.
        context.options = {"err_detect": "explode"}
    limit_pixels(context)
    return context


def unfilled_mp4(stsd: bytes, reorder: int) -> bytes:
    """An MP4 without packets, by which FFmpeg's demuxer learns how a track is to be decoded. Raises
    av.error.InvalidDataError if the sample description is damaged.

    Where the bitstream does not say how far pictures are reordered, FFmpeg's H.264 decoder begins with what the
    container says, and drops the pictures by which it learns that it is more. So there is a table of times that are
    reordered as far.
    """
    times = np.append(np.arange(1, reorder + 1), 0)
    sizes = np.ones(reorder + 1, dtype=np.int64)
    try:
        width, height = coded_size(stsd)
        return slice_header(stsd, sizes, width=width, height=height, offsets=composition_offsets(times))
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
    """Have a decoder that is not open yet refuse larger pictures before it allocates them: a parameter set of some
    bytes may claim any size, at any time.

    Args:
        pixels: of a picture as it is coded, which may be cropped; `MAX_PIXELS` at most, more for codecs without
            prediction from other pictures.

    Returns:
        what the limit is.
    """
    most = min(pixels, _MAX_INTRA_PIXELS if context.codec.intra_only else MAX_PIXELS)
    context.options = {**context.options, "max_pixels": str(most)}
    return most


def padded_packet(data: bytes) -> Packet[Any]:
    """A packet that FFmpeg allocates, with the zeroed padding behind the data that its decoders read into.

    av.Packet(bytes) has none: decoders then read past the end, and MPEG-4 frames come out wrong.
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
