"""CPU cores that decode jobs of the NVDEC queue with FFmpeg while the engines have more than they can do.

A core decodes about as many H.264 packets a second as an NVDEC engine. Both standards define decoded samples bit for
bit, so FFmpeg and NVDEC give the same luma and chroma, and the same GPU kernel converts both to RGB: the pixels do not
depend on who decoded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from streamvid.color import nv12
from streamvid.decode.decode_job import GopJob, SessionKey
from streamvid.decode.job_queue import DecodeQueue
from streamvid.errors import VideoError
from streamvid.video.codec_context import ReusableCodecContext, in_band_description, reorder_depth

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_STAGED_BYTES: Final = 16 << 20
"""Bytes of decoded frames copied to the GPU at once."""
_MAX_STAGED: Final = 32
_PIX_FMTS: Final = {8: ("yuv420p", "yuvj420p"), 10: ("yuv420p10le",)}

log = logging.getLogger(__name__)


class CpuAssistWorker:
    """Decodes jobs with FFmpeg and has the GPU convert them to RGB. To be used by one thread.

    Args:
        device_id: the GPU's number.
        queue: where jobs come from.
    """

    def __init__(self, device_id: int, queue: DecodeQueue) -> None:
        import torch

        self._device_id, self._queue = device_id, queue
        self.doing: tuple[GopJob, ...] = ()
        self.packets = 0
        """See `streamvid.decode.engine_threads.Worker`."""
        self._abandoned = False
        self._stream = torch.cuda.Stream(device_id)  # type: ignore[no-untyped-call]
        self._key: SessionKey | None = None
        self._context = ReusableCodecContext(taken=self._count)
        # Planes of staged frames in pinned memory, uint8 or int16 [frames, samples]; rows of the output they go to.
        self._planes = torch.empty(0)
        self._dst_rows = torch.empty(_MAX_STAGED, dtype=torch.int64, pin_memory=True)
        self._staged: list[int] = []
        # The job of the frame staged last.
        self._last: GopJob | None = None

    def run(self) -> None:
        """See `streamvid.decode.engine_threads.Worker`."""
        import torch

        with torch.cuda.device(self._device_id), torch.cuda.stream(self._stream):
            while not self._abandoned and (jobs := self._queue.take_for_cpu()):
                self.doing = tuple(jobs)
                failed = self._decode_all(jobs)
                for job in jobs:
                    if job in failed:
                        log.debug("left to an engine: %s", failed[job])
                        self._queue.retry(job, job.as_video_error(failed[job]))
                    else:
                        job.group.finish()
                # While waiting for the next jobs, hold no reference to the output of these.
                del job, jobs, failed
                self._last, self.doing = None, ()

    def abandon(self) -> list[GopJob]:
        """See `streamvid.decode.engine_threads.Worker`."""
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
            self._convert()
            self._stream.synchronize()
        except Exception as error:
            # Frames of the other jobs may have been among those that failed to reach the GPU.
            failed = dict.fromkeys(jobs, error)
            self._staged.clear()
        return failed

    def _decode(self, job: GopJob) -> None:
        wanted = dict(job.dst_rows)
        key = job.key
        stsd = in_band_description(key.codec, width=key.width, height=key.height)
        packets = zip(job.packets, job.display_order, strict=True)
        # To the last frame: those behind the last wanted one may be damaged, and it predicted from them.
        count = 0
        for frame in self._context.decode(stsd, packets, reorder=reorder_depth(job.display_order)):
            self._stage(frame, job, wanted)
            count += 1
        if wanted or count != len(job.packets):
            raise VideoError(f"frames of clip {job.encoded.name} do not come out of the decoder")

    def _configure(self, key: SessionKey) -> None:
        """Allocate pinned memory for planes of this configuration."""
        import torch

        if key == self._key:
            return
        self._context = ReusableCodecContext(taken=self._count)
        count = min(_MAX_STAGED, max(1, _STAGED_BYTES // key.surface_bytes))
        dtype = torch.uint8 if key.bit_depth == 8 else torch.int16
        self._planes = torch.empty((count, key.surface_rows * key.width), dtype=dtype, pin_memory=True)
        self._key = key

    def _stage(self, frame: VideoFrame, job: GopJob, wanted: dict[int, int]) -> None:
        """Copy the planes of a frame to pinned memory and take it out of `wanted` (rank → row), if it is there."""
        # Unwanted frames count, too: others are predicted from them, and an engine may conceal damage differently.
        if frame.is_corrupt:
            raise VideoError(f"a frame of clip {job.encoded.name} is damaged")
        row = wanted.pop(frame.pts, None) if frame.pts is not None else None
        if row is None:
            return
        key = job.key
        if (frame.width, frame.height) != (key.width, key.height) or frame.format.name not in _PIX_FMTS[key.bit_depth]:
            raise VideoError(f"clip {job.encoded.name} decodes to {frame.width}x{frame.height}, {frame.format.name}")
        # One kernel launch converts by one matrix.
        if len(self._staged) == len(self._planes) or (
            self._last is not None and self._last.encoded.color != job.encoded.color
        ):
            self._convert()
        target = self._planes.numpy()[len(self._staged)]
        start = 0
        for plane in frame.planes:
            # FFmpeg pads the lines of a plane.
            lines = np.frombuffer(memoryview(plane), dtype=target.dtype).reshape(plane.height, -1)[:, : plane.width]
            np.copyto(target[start : start + lines.size].reshape(lines.shape), lines)
            start += lines.size
        self._staged.append(row)
        self._last = job

    def _convert(self) -> None:
        """Send the staged frames to the GPU and convert them to RGB."""
        import torch

        job, self._last = self._last, None
        if job is None:
            return
        count, key = len(self._staged), job.key
        self._dst_rows.numpy()[:count] = self._staged
        self._staged.clear()
        dst_rows = self._dst_rows[:count].to(self._stream.device, non_blocking=True)
        planes = self._planes[:count].to(self._stream.device, non_blocking=True)
        luma = key.height * key.width
        surfaces = planes.new_empty((count, key.surface_rows, key.width))
        surfaces.view(count, -1)[:, :luma].copy_(planes[:, :luma])
        # Interleave U and V, as in NVDEC's surfaces.
        chroma = surfaces.view(count, -1)[:, luma:].view(count, -1, 2)
        chroma.copy_(planes[:, luma:].view(count, 2, -1).transpose(1, 2))
        color = job.encoded.color
        if color.as_dali and key.bit_depth > 8:
            samples, surfaces = surfaces, torch.empty_like(surfaces, dtype=torch.uint8)
            nv12.to_8_bit(samples, surfaces, count=count, shift=0)
        nv12.to_rgb(surfaces, job.out, dst_rows, count=count, color=color)
        # The pinned memory is overwritten next.
        self._stream.synchronize()
