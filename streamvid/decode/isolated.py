"""FFmpeg in a child process: if a clip crashes or hangs FFmpeg, only that clip is lost.

Frames are returned in memory that both processes map. It has no name in the file system, so nothing remains, however
the processes end.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar, Final

import numpy as np

from streamvid.arrays import UInt8
from streamvid.bitstream.image import is_image_entry
from streamvid.color.picture import Picture, picture_of
from streamvid.color.render import PlaneFormat, Samples
from streamvid.decode.deadline import LEAST_S, Pace
from streamvid.decode.slice_frames import (
    CrashedDecoderError,
    SliceSegment,
    StuckDecoderError,
    decode_frames,
    undecodable,
)
from streamvid.errors import VideoError
from streamvid.host import memory_is_short
from streamvid.video.codec_context import ReusableCodecContext, bare_context
from streamvid.video.image_decoder import image_pipeline
from streamvid.video.packet_selection import EncodedSlice
from streamvid.workers import START_S, WorkerCrashError, WorkerProcess, WorkerStuckError, start_worker

_LARGEST: Final = 6
"""Most bytes per pixel: three planes of 16 bits at luma's size."""
_LEAST_BYTES: Final = 8 << 20
"""Least bytes of a process's shared memory: room for groups of small frames; large frames go one by one, so that they
stay in the cores' caches."""
_PACKET_S: Final = LEAST_S
"""Seconds without progress by a packet after which a decoder counts as stuck."""
_TRIED_S: Final = LEAST_S / 2
"""The same for the second attempt at a slice, so that a slice is known to hang within 10 s."""


class IsolatedDecoder:
    """Decodes slices in a child process, which is replaced when it dies: a `streamvid.decode.cpu.SliceDecoder`, for one
    thread at a time. As a context manager it ends the process on exit.
    """

    keeps_limit: ClassVar[bool] = True
    packets = 0

    def __init__(self) -> None:
        self._memory = os.memfd_create("streamvid-frames")
        self._map: mmap.mmap | None = None
        self._process: WorkerProcess | None = None

    def frames(
        self,
        encoded: EncodedSlice,
        segment: SliceSegment | None = None,
        *,
        limit_s: float,
        packet_s: float = _PACKET_S,
        targets: object = None,
    ) -> Iterator[tuple[int, Picture]]:
        """The wanted frames of a slice, or of a segment of one, as `streamvid.decode.slice_frames` gives them.

        Args:
            encoded, segment: as in `decode_frames`.
            limit_s: seconds after which the process is killed, as `streamvid.stopwatch.Stopwatch` counts them.
            packet_s: seconds without a further packet after which the process is killed.
            targets: not used.

        Returns:
            each frame's row and the frame, which is valid until the next is requested; not always in order.

        Raises:
            DamagedClipError: the slice does not decode to its frames; as StuckDecoderError: it does not in time; as
                CrashedDecoderError: the process died.
            OSError, StreamvidError: no process can be started.
        """
        frame = _LARGEST * encoded.height * encoded.width
        size = 2 * frame * max(1, _LEAST_BYTES // 2 // max(1, frame))
        if self._map is None or len(self._map) < size:
            os.ftruncate(self._memory, size)
            self._map = mmap.mmap(self._memory, size)
        slots = _slots(self._map, encoded)
        part = _cut(encoded, segment)
        try:
            for first, rows, form, pix_fmt in self._start(encoded).stream(
                _decode_into, self._memory, len(self._map), part, segment, limit_s=limit_s, silent_s=packet_s
            ):
                for slot, row in enumerate(rows, first):
                    yield row, Picture(_planes(slots[slot], form), form, pix_fmt)
        except WorkerCrashError as error:
            self._process = None
            if isinstance(error, WorkerStuckError):
                raise undecodable(StuckDecoderError, encoded, str(error)) from error
            raise undecodable(CrashedDecoderError, encoded, str(error), from_outside=error.from_outside) from error
        except GeneratorExit:
            self._process = None  # the stream was not read to its end
            raise

    def close(self) -> None:
        """End the process and free the memory."""
        if self._process is not None:
            self._process.kill()
            self._process.end()
            self._process = None
        self._map = None
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1

    def __enter__(self) -> IsolatedDecoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, encoded: EncodedSlice) -> WorkerProcess:
        if self._process is not None and not self._process.is_alive():
            self._process.end()  # it died while idle: no slice is to blame
            self._process = None

        def ready() -> WorkerProcess:
            process = WorkerProcess(inherit=[self._memory])
            process.handshake()
            # Imports may take long on a busy disk: they do not count against the first slice's limit.
            process.call(_prepare, self._memory, is_image_entry(encoded.stsd), limit_s=START_S)
            return process

        if self._process is None:
            self._process = start_worker(ready)
        return self._process


def decode_isolated(
    slices: Sequence[EncodedSlice], *, deadline: float | None = None, processes: int = 1
) -> list[VideoError | None]:
    """Try to decode slices in child processes, to find out whether each decodes, is damaged, or hangs or crashes
    FFmpeg.

    Args:
        slices: the slices; their frames are dropped.
        deadline: most seconds per slice; default: by its size and number of packets. Each packet may take 5 s.
        processes: number of slices that are tried at the same time.

    Returns:
        for each slice None, or its error from `streamvid.decode.slice_frames`: a DamagedClipError, StuckDecoderError or
        CrashedDecoderError.
    """
    pace = Pace()

    def check(some: Sequence[EncodedSlice]) -> list[VideoError | None]:
        found: list[VideoError | None] = []
        with IsolatedDecoder() as decoder:
            for encoded in some:
                try:
                    limit_s = deadline or pace.deadline(encoded)
                    for _ in decoder.frames(encoded, limit_s=limit_s, packet_s=_TRIED_S):
                        pass
                    found.append(None)
                except VideoError as error:
                    found.append(error.with_traceback(None))
        return found

    # Where memory is short, not in further threads: CPython waits for ever for one that gets no memory to begin.
    parts = 1 if memory_is_short() else max(1, min(processes, len(slices)))
    if parts == 1:
        return check(slices)
    result: list[VideoError | None] = [None] * len(slices)
    with ThreadPoolExecutor(parts, thread_name_prefix="streamvid-check") as pool:
        for n, found in enumerate(pool.map(check, [slices[n::parts] for n in range(parts)])):
            result[n::parts] = found
    return result


def _cut(encoded: EncodedSlice, segment: SliceSegment | None) -> EncodedSlice:
    """The slice with the bytes of a segment's packets only; the other packets have size 0."""
    if segment is None or segment == (0, len(encoded.sizes)):
        return encoded
    numbers = np.arange(len(encoded.sizes))
    ends = np.concatenate([[0], np.cumsum(encoded.sizes)])
    inside = (numbers >= segment[0]) & (numbers < segment[1])
    data = encoded.data[int(ends[segment[0]]) : int(ends[segment[1]])]
    return replace(encoded, data=data, sizes=np.where(inside, encoded.sizes, 0))


def _slots(memory: mmap.mmap, encoded: EncodedSlice) -> UInt8:
    """The memory as slots for an even number of frames, uint8 [slots, bytes]."""
    frame = _LARGEST * encoded.height * encoded.width
    count = len(memory) // (2 * frame) * 2
    return np.frombuffer(memory, dtype=np.uint8, count=count * frame).reshape(count, frame)


def _planes(slot: UInt8, form: PlaneFormat) -> tuple[Samples, Samples, Samples]:
    """A slot as the planes of a frame."""
    chroma = form.chroma
    luma_size, chroma_size = form.height * form.width, chroma[0] * chroma[1]
    samples: Samples = slot if form.bits == 8 else slot[: len(slot) // 2 * 2].view(np.uint16)
    parts: Any = np.split(samples, np.cumsum([luma_size, chroma_size, chroma_size]))
    luma, first, second, _ = parts
    return luma.reshape(form.height, form.width), first.reshape(chroma), second.reshape(chroma)


def _decode_into(
    descriptor: int, size: int, encoded: EncodedSlice, segment: SliceSegment | None
) -> Generator[tuple[int, list[int], PlaneFormat, str], None, None]:
    """In the child: decode into the shared memory, whose halves are used in turn: the parent reads one half while the
    other is filled. Yields, for each filled half, its first slot, the frames' rows and their plane and pixel format."""
    slots = _slots(_mapped(descriptor, size), encoded)
    context = _context(descriptor)
    half, first = len(slots) // 2, 0
    rows: list[int] = []
    before: Picture | None = None
    for row, frame in decode_frames(encoded, segment, context=context):
        picture = picture_of(frame)
        if before is not None and rows and (before.form, before.pix_fmt) != (picture.form, picture.pix_fmt):
            yield first, rows, before.form, before.pix_fmt
            first, rows = half - first, []
        before = picture
        for target, plane in zip(_planes(slots[first + len(rows)], picture.form), picture.planes, strict=True):
            target[:] = plane
        rows.append(row)
        if len(rows) == half:
            yield first, rows, picture.form, picture.pix_fmt
            first, rows = half - first, []
    if rows and before is not None:
        yield first, rows, before.form, before.pix_fmt


def _prepare(descriptor: int, images: bool) -> None:
    """In the child: import what decoding needs."""
    import av.filter  # noqa: F401

    _context(descriptor)
    bare_context("h264")
    if images:
        image_pipeline(device_id=None, threads=1, max_batch=1)


@lru_cache(maxsize=1)
def _mapped(descriptor: int, size: int) -> mmap.mmap:
    return mmap.mmap(descriptor, size)


@lru_cache(maxsize=1)
def _context(descriptor: int) -> ReusableCodecContext:
    """The codec context that is kept from slice to slice. It reads a byte of the shared memory before each packet, by
    which the parent sees progress (`WorkerProcess.stream`)."""
    return ReusableCodecContext(taken=partial(os.pread, descriptor, 1, 0))
