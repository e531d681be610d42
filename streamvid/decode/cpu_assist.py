"""CPU cores that decode jobs of the NVDEC queue with FFmpeg while the engines have a backlog.

A core decodes about as many H.264 packets a second as an NVDEC engine. H.264 and HEVC define decoded samples bit for
bit, so FFmpeg and NVDEC give the same luma and chroma, but for rare streams, which are left to the engines
(`streamvid.bitstream.ffmpeg_fault`). FFmpeg's planes are copied to the GPU in the layout of NVDEC's surfaces, and the
same kernel converts both: pixels do not depend on the decoder.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Final

import numpy as np

from streamvid.arrays import UInt8
from streamvid.color.picture import picture_of
from streamvid.color.render import Samples
from streamvid.color.surfaces import Window
from streamvid.decode.deadline import Pace
from streamvid.decode.decode_job import GopJob
from streamvid.decode.job_queue import DecodeQueue
from streamvid.decode.session_key import SessionKey
from streamvid.decode.surface_queue import FirstLaunches, SurfaceQueue
from streamvid.errors import VideoError
from streamvid.video.codec_context import ReusableCodecContext, in_band_description, reorder_depth

if TYPE_CHECKING:
    import torch
    from av.video.frame import VideoFrame

_STAGED_BYTES: Final = 16 << 20
"""Most bytes of decoded frames that are copied to the GPU at once."""
_MOST: Final = 32
"""Whole frames that are copied at once, at most."""
_PIX_FMTS: Final = {8: ("yuv420p", "yuvj420p"), 10: ("yuv420p10le",), 12: ("yuv420p12le",)}

log = logging.getLogger(__name__)


class CpuAssistWorker:
    """A `streamvid.decode.engine_threads.Worker` that decodes with FFmpeg, and has the GPU convert the frames to
    pixels. To be used by one thread.

    Args:
        stream: CUDA stream for copies and kernels, shared by the cores of a pool: the GPU has few hardware queues for
            streams, and the engines' streams must not share one.
        queue: the pool's job queue.
        pace: the pace that the engines measure.
        first: the pool's `FirstLaunches`.
    """

    def __init__(self, stream: torch.cuda.Stream, queue: DecodeQueue, pace: Pace, first: FirstLaunches) -> None:
        self._stream, self._queue, self._pace = stream, queue, pace
        self.doing: tuple[GopJob, ...] = ()
        self.packets = self.unfed = 0
        """See `streamvid.decode.engine_threads.Worker`."""
        self._abandoned = False
        self._key: SessionKey | None = None
        self._context = ReusableCodecContext(taken=self._count)
        self._first = first
        # Two buffers: one is filled while the other is sent.
        self._uploads: deque[_Upload] = deque()
        # Frames in the first buffer: job, row in the slice, and the surface's arguments of `SurfaceQueue.add`.
        self._staged: list[tuple[GopJob, int, tuple[int, int, int]]] = []

    def run(self) -> None:
        import torch

        with torch.cuda.device(self._stream.device), torch.cuda.stream(self._stream):
            self._surfaces = SurfaceQueue(self._stream, self._first)
            while not self._abandoned and (jobs := self._queue.take_for_cpu()):
                self.doing = tuple(jobs)
                began, ready = perf_counter(), jobs[0].key == self._key
                failed = self._decode_all(jobs)
                of_engine = self._pace.measured(jobs[0].encoded)
                if of_engine and ready and not failed:
                    each = (perf_counter() - began) / sum(len(job.packets) for job in jobs)
                    self._queue.core_took(jobs[0].key, each / of_engine)
                for job in jobs:
                    if job in failed:
                        log.debug("left to an engine: %s", failed[job])
                        self._queue.retry(job, job.as_video_error(failed[job]))
                    else:
                        job.group.finish()
                # While waiting for the next jobs, hold no reference to the output of these.
                del job, jobs, failed
                self.doing = ()

    def abandon(self) -> list[GopJob]:
        self._abandoned = True
        return list(self.doing)

    def _count(self) -> None:
        self.packets += 1

    def _decode_all(self, jobs: Sequence[GopJob]) -> dict[GopJob, Exception]:
        """Decode jobs of one configuration and batch, and wait until their frames are written.

        Returns:
            the jobs that failed, with their errors.
        """
        import av

        failed: dict[GopJob, Exception] = {}
        try:
            self._configure(jobs[0].key)
            for job in jobs:
                try:
                    self._decode(job)
                except (VideoError, av.error.FFmpegError) as error:
                    failed[job] = error
            self._send()
            self._surfaces.synchronize()
        except Exception as error:
            # Frames of the other jobs may not have reached the GPU either.
            failed = dict.fromkeys(jobs, error)
            self._staged.clear()
            self._surfaces.clear()
            with suppress(RuntimeError):
                self._surfaces.synchronize()  # failed work must not write over the result of an engine's retry
            for upload in self._uploads:
                upload.used, upload.reusable = 0, None
        return failed

    def _decode(self, job: GopJob) -> None:
        wanted = job.dst_rows
        key = job.key
        stsd = in_band_description(key.codec, width=key.width, height=key.height)
        packets = zip(job.packets, job.display_order.tolist(), strict=True)
        # To the last frame, as a frame after the last wanted one may be damaged, and the wanted one predicted from it.
        count = 0
        for frame in self._context.decode(stsd, packets, reorder=reorder_depth(job.display_order)):
            self._stage(frame, job, wanted)
            count += 1
        if wanted or count != len(job.packets):
            raise VideoError(f"frames of clip {job.encoded.name} do not come out of the decoder")

    def _configure(self, key: SessionKey) -> None:
        """Allocate memory for surfaces of this configuration."""
        if key == self._key:
            return
        self._context = ReusableCodecContext(taken=self._count)
        size = max(min(_STAGED_BYTES, _MOST * key.surface_bytes), key.surface_bytes + 16)
        if not self._uploads or self._uploads[0].size < size:
            self._uploads.clear()  # before memory is allocated for others
            self._uploads.extend(_Upload(size, self._stream) for _ in range(2))
        self._key = key

    def _stage(self, frame: VideoFrame, job: GopJob, wanted: dict[int, int]) -> None:
        """Copy the planes of a frame to pinned memory, as NVDEC's surfaces have them, and take it out of `wanted`
        (rank → row), if it is there."""
        # Unwanted frames matter, too: others are predicted from them, and an engine may conceal damage differently.
        if frame.is_corrupt:
            raise VideoError(f"a frame of clip {job.encoded.name} is damaged")
        row = wanted.pop(frame.pts, None) if frame.pts is not None else None
        if row is None:
            return
        key = job.key
        if (frame.width, frame.height) != (key.width, key.height) or frame.format.name not in _PIX_FMTS[key.bit_depth]:
            raise VideoError(f"clip {job.encoded.name} decodes to {frame.width}x{frame.height}, {frame.format.name}")
        window = job.target.window
        while not self._uploads[0].has_room(key, window):
            self._send()
        self._staged.append((job, row, self._uploads[0].put(picture_of(frame).planes, key, window)))

    def _send(self) -> None:
        """Queue the upload of the staged frames, and the work on them."""
        staged, self._staged = self._staged, []
        if not staged:
            return
        upload = self._uploads[0]
        self._surfaces.calls.to_device(upload.surface, upload.address, upload.used)
        for job, row, surface in staged:
            self._surfaces.add(job.target, np.array([row], dtype=np.int32), np.array([surface]))
        upload.reusable = self._surfaces.launch()
        self._uploads.rotate(1)


class _Upload:
    """Pinned memory for parts of surfaces, and memory of the same size on the GPU, filled by one copy.

    Attributes:
        size: in bytes.
        address, surface: addresses of the host memory and of the device memory.
        used: bytes to copy.
        reusable: CUDA event after which both may be overwritten; None before the first use.
    """

    def __init__(self, size: int, stream: torch.cuda.Stream) -> None:
        import torch

        self.size, self._memory = size, torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
        self._on_device = torch.empty(size, dtype=torch.uint8, device=stream.device)
        self._bytes: UInt8 = self._memory.numpy()
        self.address, self.surface, self.used = self._memory.data_ptr(), self._on_device.data_ptr(), 0
        self.reusable: torch.cuda.Event | None = None

    def has_room(self, key: SessionKey, window: Window) -> bool:
        """Whether the buffer has room for the window of another surface."""
        if self.reusable is not None:
            self.reusable.synchronize()
            self.reusable, self.used = None, 0
        return self.used + _size(key, window) <= len(self._bytes)

    def put(self, planes: Sequence[Samples], key: SessionKey, window: Window) -> tuple[int, int, int]:
        """Write the window of a frame as NV12, or as P016 with samples in the upper bits.

        Returns:
            the device address at which the whole surface would begin, its pitch in samples, and the bytes from luma to
            chroma.
        """
        wide = key.bit_depth > 8
        top, bottom, left, right = window
        width, lines = right - left, (bottom - top) * 3 // 2
        memory = self._bytes[self.used : self.used + _size(key, window)].view(np.uint16 if wide else np.uint8)
        luma, chroma = np.split(memory[: lines * width].reshape(lines, width), [bottom - top])
        half = (slice(top // 2, bottom // 2), slice(left // 2, right // 2))
        parts = (planes[0][top:bottom, left:right], planes[1][half], planes[2][half])
        for target, samples in zip((luma, chroma[:, ::2], chroma[:, 1::2]), parts, strict=True):
            if wide:
                np.left_shift(samples, 16 - key.bit_depth, out=target)
            else:
                np.copyto(target, samples)
        each = 2 if wide else 1
        begin = self.surface + self.used
        first = begin - each * (top * width + left)
        chroma_at = begin + luma.nbytes - each * (top // 2 * width + left) - first
        self.used += _size(key, window)
        return first, width, chroma_at


def _size(key: SessionKey, window: Window) -> int:
    """Bytes of a window of a surface, rounded up to 16: a load of U and V together needs an even address."""
    samples = (window.bottom - window.top) * (window.right - window.left) * 3 // 2
    return -(-samples * (2 if key.bit_depth > 8 else 1) // 16) * 16
