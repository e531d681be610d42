"""Decodes the wanted frames of a slice with FFmpeg in the calling thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from streamvid.bitstream.packet_info import classifier
from streamvid.bitstream.packets import packets_in
from streamvid.color.picture import Picture, picture_of
from streamvid.errors import VideoError
from streamvid.host import limit_met, memory_is_short
from streamvid.video import native_decoder
from streamvid.video.codec_context import MAX_REORDER, ReusableCodecContext, reorder_depth
from streamvid.video.native_decoder import CorruptPictureError, FindTargets, NativeRun
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Frame = TypeVar("Frame")

SliceSegment = tuple[int, int]
"""A range of a slice's packets: first, and end (exclusive)."""


class DamagedClipError(VideoError):
    """A slice that does not decode to its frames.

    Attributes:
        clip: the clip's key.
        reason: the reason, without the clip's key.
    """

    clip: str
    reason: str


class StuckDecoderError(DamagedClipError):
    """A slice that was not decoded by its deadline."""


class CrashedDecoderError(DamagedClipError):
    """A slice with which FFmpeg's process died."""


def decode_frames(
    encoded: EncodedSlice, segment: SliceSegment | None = None, *, context: ReusableCodecContext | None = None
) -> Iterator[tuple[int, VideoFrame]]:
    """Decode a slice, or a segment of one, without holding the GIL while FFmpeg works.

    Args:
        encoded: the slice.
        segment: a range of its packets; default: all.
        context: keeps FFmpeg's decoder open from slice to slice.

    Returns:
        pairs of row (index in `encoded.frames`) and wanted frame, not always in order.

    Raises:
        DamagedClipError: the slice does not decode to its frames.
        VideoError: this process gets no memory, so that nothing is known about the slice.
    """
    return _decoded(encoded, segment, partial(_by_pyav, context or ReusableCodecContext()))


def decode_pictures(
    encoded: EncodedSlice,
    segment: SliceSegment | None,
    *,
    context: ReusableCodecContext,
    taken: ctypes.c_int64,
    targets: FindTargets | None = None,
) -> Iterator[tuple[int, Picture]]:
    """Like `decode_frames`, but yields planes, each valid until the next is requested. The native part decodes, if it
    was built and supports the codec.

    Args:
        encoded, segment: as in `decode_frames`.
        context: keeps FFmpeg's decoder open; must also increment `taken` if PyAV decodes.
        taken: incremented for each packet that FFmpeg is given.
        targets: returns, for a picture format, the targets to which the native part writes pictures instead of yielding
            them.

    Raises:
        DamagedClipError: the slice does not decode to its frames.
    """
    if encoded.codec in native_decoder.CODECS and native_decoder.compiled() is not None:
        yield from _decoded(encoded, segment, partial(_by_native, context, taken, targets))
        return
    for row, frame in decode_frames(encoded, segment, context=context):
        yield row, picture_of(frame)


class _Run(NamedTuple, Generic[Frame]):
    """Packets of a slice that are decoded from an empty decoder on.

    Attributes:
        frames: the wanted frames, each with its rank, and its height and width.
        has_shown: whether FFmpeg has output the picture of a rank so far.
        rendered: ranks of the wanted frames that the native part has written to their targets so far.
    """

    frames: Iterator[tuple[int, tuple[int, int], Frame]]
    has_shown: Callable[[int], bool]
    rendered: Callable[[], Iterable[int]] = tuple


_Decode = Callable[[EncodedSlice, SliceSegment, Mapping[int, int], int], _Run[Frame]]
"""Begins to decode a segment of a slice. Gets the row of each wanted rank, and the reorder depth in pictures."""


def _decoded(
    encoded: EncodedSlice, segment: SliceSegment | None, decode: _Decode[Frame]
) -> Iterator[tuple[int, Frame]]:
    import av

    first, last = segment or (0, len(encoded.sizes))
    inside = set(encoded.display_order[first:last].tolist()) if last - first < len(encoded.sizes) else None
    rows = {int(rank): row for row, rank in enumerate(encoded.frames) if inside is None or int(rank) in inside}
    reorder = reorder_depth(encoded.display_order) if encoded.in_order else MAX_REORDER
    cuts = [first, *(start for start in encoded.starts.tolist() if first < start < last), last]
    try:
        for part in pairwise(cuts):
            run = decode(encoded, part, rows, reorder)
            # To the last frame, as a frame after the last wanted one may be damaged, and the wanted one predicted from
            # it.
            for rank, size, frame in run.frames:
                row = rows.pop(rank)
                if size != (encoded.height, encoded.width):
                    raise _damaged(
                        encoded,
                        f"it decodes to frames of {size[1]}x{size[0]}, not of {encoded.width}x{encoded.height}; "
                        "a video whose size changes midway gets one size if it is packed with --codec",
                    )
                yield row, frame
            for rank in run.rendered():
                del rows[rank]
            if _is_incomplete(encoded, part, run.has_shown):
                raise _damaged(encoded, "a packet decodes to no picture")
    except CorruptPictureError:
        raise _damaged(encoded, "FFmpeg marks a picture as damaged") from None
    except av.error.FFmpegError as error:
        raise _damaged(encoded, f"FFmpeg: {error.strerror or type(error).__name__}") from error
    if rows:
        raise _damaged(encoded, "its packets do not decode to as many frames")


def _by_native(
    context: ReusableCodecContext,
    taken: ctypes.c_int64,
    targets: FindTargets | None,
    encoded: EncodedSlice,
    part: SliceSegment,
    rows: Mapping[int, int],
    reorder: int,
) -> _Run[Picture]:
    first, last = part
    ranks = encoded.display_order[first:last]
    start = int(encoded.sizes[:first].sum())
    run = NativeRun(
        encoded.data[start:], encoded.sizes[first:last], ranks, rows, taken=taken,
        size=(encoded.height, encoded.width), targets=targets,
    )  # fmt: skip
    pictures = context.pictures(encoded.stsd, run, reorder=reorder, pixels=_most_pixels(encoded))
    frames = ((rank, (picture.form.height, picture.form.width), picture) for rank, picture in pictures)
    return _Run(frames, run.has_shown, run.rendered)


def _by_pyav(
    context: ReusableCodecContext, encoded: EncodedSlice, part: SliceSegment, rows: Mapping[int, int], reorder: int
) -> _Run[VideoFrame]:
    shown = set[int | None]()

    def frames() -> Iterator[tuple[int, tuple[int, int], VideoFrame]]:
        packets = _packets(encoded, *part)
        for frame in context.decode(encoded.stsd, packets, reorder=reorder, pixels=_most_pixels(encoded)):
            shown.add(frame.pts)
            # Checked on unwanted frames, too, because wanted frames that are predicted from them have no flag.
            if frame.is_corrupt:
                raise CorruptPictureError
            if frame.pts is not None and frame.pts in rows:
                yield frame.pts, (frame.height, frame.width), frame

    return _Run(frames(), shown.__contains__)


def _is_incomplete(encoded: EncodedSlice, run: SliceSegment, has_shown: Callable[[int], bool]) -> bool:
    """Whether a packet of a run gave no frame although its header marks it as displayed: FFmpeg may skip an unreadable
    packet without an error, and predict later frames from other pictures."""
    ranks = enumerate(encoded.display_order[slice(*run)].tolist(), run[0])
    silent = [n for n, rank in ranks if not has_shown(rank)]
    if not silent:
        return False
    kind_of = classifier(encoded.codec, encoded.stsd)
    kinds = [kind_of(memoryview(packet[0])) for packet in _packets(encoded, *run)]
    return kinds[0].random_access and any(
        not kind.hidden and not kind.skipped_leading and kind.order is not None
        for kind in (kinds[n - run[0]] for n in silent)
    )


def _most_pixels(encoded: EncodedSlice) -> int:
    """FFmpeg's `max_pixels` for a slice, with room for the coded size; a picture that claims more is damaged. FFmpeg
    counts the pixels that it allocates: for MPEG-4 at least 280 rows that are up to 191 wider than the picture."""
    return max((encoded.width + 192) * 280, 4 * (encoded.width + 64) * (encoded.height + 64))


def _damaged(encoded: EncodedSlice, reason: str) -> VideoError:
    if memory_is_short():
        # FFmpeg's decoders report a lack of memory as invalid data, too.
        return VideoError(f"{limit_met(MemoryError(reason))} (clip {encoded.name})")
    return undecodable(DamagedClipError, encoded, reason)


def undecodable(
    kind: type[DamagedClipError], encoded: EncodedSlice, reason: str, *, from_outside: bool = False
) -> DamagedClipError:
    """An error of the given class for a slice. `reason` does not name the clip; `from_outside` as in
    `streamvid.workers.WorkerCrashError`."""
    problem = {StuckDecoderError: "gets FFmpeg stuck", CrashedDecoderError: "crashes FFmpeg"}.get(kind, "is damaged")
    remedy = "check it with `streamvid verify --decode`, pack it again"
    if from_outside:
        problem = "was not decoded: the process that did so was ended"
        remedy = "where memory ran out, use a smaller batch_size or fewer num_threads, or give the run more"
    error = kind(f"clip {encoded.name} {problem} ({reason}): {remedy}")
    error.clip, error.reason = encoded.name, reason
    return error


def _packets(encoded: EncodedSlice, first: int, last: int) -> Iterator[tuple[bytes, int]]:
    start = int(encoded.sizes[:first].sum())
    packets = packets_in(encoded.data[start:], encoded.sizes[first:last])
    return zip(map(bytes, packets), encoded.display_order[first:last].tolist(), strict=True)
