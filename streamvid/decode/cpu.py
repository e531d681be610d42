"""Decoding on the CPU with FFmpeg: slices are cut at key frames, and threads decode the segments.

Each frame goes to a frame sink as planes of YUV as soon as it is decoded; the sink converts it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from time import perf_counter
from typing import ClassVar, Final, Protocol

import numpy as np

from streamvid.arrays import UInt8
from streamvid.color import render
from streamvid.color.full_size import FullSizeConverter
from streamvid.color.picture import Picture
from streamvid.color.tags import ColorOption
from streamvid.decode.base import FrameSink, Pending
from streamvid.decode.deadline import Pace
from streamvid.decode.deadline_threads import DeadlineThreads
from streamvid.decode.slice_frames import (
    DamagedClipError,
    SliceSegment,
    StuckDecoderError,
    decode_pictures,
    undecodable,
)
from streamvid.video import native_decoder
from streamvid.video.codec_context import ReusableCodecContext
from streamvid.video.image_decoder import opens_pipeline
from streamvid.video.native_decoder import FindTargets
from streamvid.video.packet_selection import EncodedSlice
from streamvid.workers import START_S

_MIN_SEGMENT: Final = 32
"""Fewest packets of a segment: opening a codec context costs as much as decoding a frame of 640x360."""


class SliceDecoder(Protocol):
    """Decodes one slice at a time, for one thread.

    Attributes:
        keeps_limit: whether `frames` itself raises StuckDecoderError at its limit. If not, a stuck thread has to be
            abandoned.
    """

    keeps_limit: ClassVar[bool]

    @property
    def packets(self) -> int:
        """Packets that FFmpeg was given so far; read by other threads."""

    def frames(
        self,
        encoded: EncodedSlice,
        segment: SliceSegment | None = None,
        *,
        limit_s: float,
        targets: FindTargets | None = None,
    ) -> Iterator[tuple[int, Picture]]:
        """The wanted frames of a slice, or of a segment of one.

        Args:
            encoded, segment: as in `decode_frames`.
            limit_s: most seconds for the segment, as `streamvid.stopwatch.Stopwatch` counts them.
            targets: returns, for a picture format, the targets to which frames may be written instead of being yielded.

        Returns:
            each frame's row and the frame, which is valid until the next is requested; not always in order.

        Raises:
            DamagedClipError: the slice does not decode to its frames.
        """

    def close(self) -> None:
        """Free the decoder's memory and processes."""


class CpuDecoder:
    """Decodes with FFmpeg in threads. Each thread decodes one segment of a slice at a time, so that a few long slices
    keep all threads busy, too.

    A slice that is not decoded by its deadline (`streamvid.decode.deadline`) fails. If its thread is stuck, the thread
    is abandoned; its frame sinks belong to a batch that is never delivered.

    Args:
        threads: number of segments that are decoded at the same time; 0 counts as 1.
        decoder: class of each thread's decoder; default: FFmpeg in the thread itself.
        pace: computes deadlines.
    """

    def __init__(
        self,
        *,
        threads: int,
        decoder: type[SliceDecoder] | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._pace = Pace() if pace is None else pace
        made = decoder or InThreadDecoder
        self._keeps_limit = made.keeps_limit
        for native in (native_decoder.compiled, render.compiled):
            native()  # here, so that a native part that was not built is logged once, and not by several threads
        self._threads = DeadlineThreads(
            max(1, threads), name="streamvid-decode", tool=lambda: closing(made()),
            progress=lambda decoder: decoder.packets,
        )  # fmt: skip

    def submit(self, slices: Sequence[EncodedSlice], *, color: ColorOption = "bt601") -> Pending[list[UInt8]]:
        """Begin to decode a batch to RGB at full size: uint8 [frames, height, width, 3] for each slice. `color` is the
        transform's option.

        Batches finish in the order in which they were submitted. To keep the threads busy, submit a batch before
        waiting for the previous one.
        """
        sinks = [_FullSizeSink(encoded, color) for encoded in slices]
        written = self.write(slices, sinks)

        def frames() -> list[UInt8]:
            written.result()
            return [sink.frames for sink in sinks]

        return Pending(frames)

    def write(self, slices: Sequence[EncodedSlice], sinks: Sequence[FrameSink]) -> Pending[None]:
        """Begin to decode a batch into sinks, one for each slice.

        Returns:
            the pending batch: `result` waits until all frames are written, and raises VideoError if a slice does not
            decode.
        """
        parts = [
            (encoded, sink, segment)
            for encoded, sink in zip(slices, sinks, strict=True)
            for segment in split_at_keyframes(encoded)
        ]
        # Longest first, so that the last segments of a batch are short: longest processing time first (Graham 1969).
        futures = [
            self._threads.submit(
                partial(self._decode, encoded, sink, segment),
                limits=partial(self._limits, encoded, segment),
                overdue=partial(_overdue, encoded, segment),
            )
            for encoded, sink, segment in sorted(parts, key=_work, reverse=True)
        ]

        def wait() -> None:
            for future in futures:
                future.result()

        return Pending(wait, lambda: all(future.done() for future in futures))

    def close(self) -> None:
        """End the threads. Waits for their segments, but not beyond their deadlines."""
        self._threads.close()

    def _limits(self, encoded: EncodedSlice, segment: SliceSegment) -> tuple[float, float]:
        if self._keeps_limit:
            return math.inf, math.inf
        opening = START_S if opens_pipeline(encoded.stsd) else 0.0
        return (
            opening + self._pace.deadline(encoded, segment[1] - segment[0]),
            opening + self._pace.deadline(encoded, 1),
        )

    def _decode(self, encoded: EncodedSlice, sink: FrameSink, segment: SliceSegment, decoder: SliceDecoder) -> None:
        began, packets, opens = perf_counter(), segment[1] - segment[0], opens_pipeline(encoded.stsd)
        limit_s = self._pace.deadline(encoded, packets)
        for row, picture in decoder.frames(encoded, segment, limit_s=limit_s, targets=sink.targets):
            sink.write(row, picture)
        if not opens:
            self._pace.add(encoded, packets, perf_counter() - began)


def _work(part: tuple[EncodedSlice, FrameSink, SliceSegment]) -> int:
    encoded, _, (first, last) = part
    return (last - first) * encoded.width * encoded.height


def _overdue(encoded: EncodedSlice, segment: SliceSegment, took: str) -> DamagedClipError:
    return undecodable(StuckDecoderError, encoded, f"packets {segment[0]} to {segment[1] - 1}: {took}")


class InThreadDecoder:
    """FFmpeg in the calling thread, which does not hold the GIL while FFmpeg works: a `SliceDecoder`."""

    keeps_limit: ClassVar[bool] = False

    def __init__(self) -> None:
        self._context = ReusableCodecContext(taken=self._count)
        self._taken = ctypes.c_int64()

    @property
    def packets(self) -> int:
        return self._taken.value

    def _count(self) -> None:
        self._taken.value += 1

    def frames(
        self,
        encoded: EncodedSlice,
        segment: SliceSegment | None = None,
        *,
        limit_s: float,
        targets: FindTargets | None = None,
    ) -> Iterator[tuple[int, Picture]]:
        """See `SliceDecoder`; the limit is its caller's."""
        yield from decode_pictures(encoded, segment, context=self._context, taken=self._taken, targets=targets)

    def close(self) -> None:
        """See `SliceDecoder`."""


def decode_with_pyav(encoded: EncodedSlice, *, color: ColorOption = "bt601") -> UInt8:
    """Decode one slice with PyAV's FFmpeg, in the calling thread, which does not hold the GIL meanwhile.

    Args:
        encoded: the slice.
        color: the option of a transform.

    Returns:
        uint8 [frames, height, width, 3], RGB.

    Raises:
        VideoError: the slice does not decode to its frames.
    """
    sink = _FullSizeSink(encoded, color)
    for row, picture in InThreadDecoder().frames(encoded, limit_s=math.inf):
        sink.write(row, picture)
    return sink.frames


class _FullSizeSink(FrameSink):
    """Keeps the frames in RGB at full size: uint8 [frames, height, width, 3]. Raises DamagedClipError if there is not
    enough memory for them: a row may claim any size."""

    def __init__(self, encoded: EncodedSlice, color: ColorOption) -> None:
        self._convert = FullSizeConverter(encoded.color.chosen(color))
        shape = (len(encoded.frames), encoded.height, encoded.width, 3)
        try:
            self.frames: UInt8 = np.empty(shape, dtype=np.uint8)
        except MemoryError:
            what = f"{shape[0]} frames of {encoded.width}x{encoded.height} do not fit into memory"
            raise undecodable(DamagedClipError, encoded, what) from None

    def write(self, row: int, picture: Picture) -> None:
        self._convert(picture, self.frames[row].transpose(2, 0, 1))


def split_at_keyframes(encoded: EncodedSlice) -> list[SliceSegment]:
    """Cut a slice into segments that decode independently of each other, in order."""
    cuts = [0]
    if not set(encoded.frames.tolist()) <= set(encoded.display_order.tolist()):
        # A wanted frame has no packet, which only decoding the whole slice notices, and raises an error.
        return [(0, len(encoded.sizes))]
    for start in encoded.starts.tolist():
        if start - cuts[-1] >= _MIN_SEGMENT and len(encoded.sizes) - start >= _MIN_SEGMENT:
            cuts.append(start)
    return list(zip(cuts, [*cuts[1:], len(encoded.sizes)], strict=True))
