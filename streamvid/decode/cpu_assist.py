"""Cores of the CPU that have nothing else to do decode beside the engines of the GPU.

A core decodes about as many packets of H.264 a second as an engine. FFmpeg and NVDEC give the same luma and chroma, bit
for bit, as both standards demand, and the GPU makes RGB of both by the same kernel: nobody can tell who decoded.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from streamvid.color import nv12
from streamvid.decode.cpu import ReusableCodecContext
from streamvid.decode.decode_job import GopJob, SessionKey
from streamvid.decode.job_queue import DecodeQueue
from streamvid.errors import VideoError

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_STAGED: Final = 16 << 20
"""Bytes of frames that are copied to the GPU at once."""
_MOST_STAGED: Final = 32
_FORMATS: Final = {8: ("yuv420p", "yuvj420p"), 10: ("yuv420p10le",)}

log = logging.getLogger(__name__)


class CpuAssistWorker:
    """Decodes runs with FFmpeg, and has the GPU make RGB of them. To be used by one thread.

    Args:
        device_id: the GPU's number.
        waiting: where runs come from.
    """

    def __init__(self, device_id: int, waiting: DecodeQueue) -> None:
        import torch

        self._device_id, self._waiting = device_id, waiting
        self._stream = torch.cuda.Stream(device_id)  # type: ignore[no-untyped-call]
        self._kind: SessionKey | None = None
        self._decoder = ReusableCodecContext()
        self._host: Any = None
        self._places = torch.empty(_MOST_STAGED, dtype=torch.int64, pin_memory=True)
        # Rows of what lies in the host's memory, and the run that the last is of.
        self._staged: list[int] = []
        self._last: GopJob | None = None

    def work(self) -> None:
        """Decode until no more runs come."""
        import torch

        with torch.cuda.device(self._device_id), torch.cuda.stream(self._stream):
            while runs := self._waiting.spare():
                failed = self._decode_all(runs)
                for run in runs:
                    if run in failed:
                        log.debug("left to an engine: %s", failed[run])
                        self._waiting.again(run, run.wrong(failed[run]))
                    else:
                        run.batch.finished()
                # Until the next come, their frames must not be kept.
                del run, runs, failed
                self._last = None

    def _decode_all(self, runs: Sequence[GopJob]) -> dict[GopJob, Exception]:
        """Decode runs of one kind and batch, and wait until their frames are written; those that fail, and why."""
        import av

        failed: dict[GopJob, Exception] = {}
        try:
            self._make_room(runs[0].kind)
            for run in runs:
                try:
                    self._decode(run)
                except (VideoError, av.error.FFmpegError) as error:
                    failed[run] = error
            self._convert()
            self._stream.synchronize()
        except Exception as error:
            # It may have been the others' frames, too, that were on their way to the GPU.
            failed = dict.fromkeys(runs, error)
            self._staged.clear()
        return failed

    def _decode(self, run: GopJob) -> None:
        rows = dict(run.rows)
        for frame in self._decoder.decode(run.kind.codec, b"", zip(run.packets, run.ranks, strict=True)):
            self._take(frame, run, rows)
            if not rows:
                break
        if rows:
            raise VideoError(f"{len(rows)} frames of clip {run.part.name} do not come out of the decoder")

    def _make_room(self, kind: SessionKey) -> None:
        """Memory for planes, in the host's memory where the GPU can fetch it."""
        import torch

        if kind == self._kind:
            return
        self._decoder = ReusableCodecContext()
        count = min(_MOST_STAGED, max(1, _STAGED // kind.frame_bytes))
        dtype = torch.uint8 if kind.bits == 8 else torch.int16
        self._host = torch.empty((count, kind.rows * kind.width), dtype=dtype, pin_memory=True)
        self._kind = kind

    def _take(self, frame: VideoFrame, run: GopJob, rows: dict[int, int]) -> None:
        """Copy a frame's planes, if it is wanted."""
        # Also one that nobody wants: others are made from it, and an engine may make them otherwise.
        if frame.is_corrupt:
            raise VideoError(f"a frame of clip {run.part.name} is damaged")
        row = rows.pop(frame.pts, None) if frame.pts is not None else None
        if row is None:
            return
        kind = run.kind
        if (frame.width, frame.height) != (kind.width, kind.height) or frame.format.name not in _FORMATS[kind.bits]:
            raise VideoError(f"clip {run.part.name} decodes to {frame.width}x{frame.height}, {frame.format.name}")
        # A conversion makes one range of levels.
        if len(self._staged) == len(self._host) or (
            self._last is not None and self._last.part.full_range != run.part.full_range
        ):
            self._convert()
        to = self._host.numpy()[len(self._staged)]
        at = 0
        for plane in frame.planes:
            # A plane's lines may be longer than the picture is wide.
            lines = np.frombuffer(memoryview(plane), dtype=to.dtype).reshape(plane.height, -1)[:, : plane.width]
            np.copyto(to[at : at + lines.size].reshape(lines.shape), lines)
            at += lines.size
        self._staged.append(row)
        self._last = run

    def _convert(self) -> None:
        """Send what is staged to the GPU and make RGB of it."""
        import torch

        run, self._last = self._last, None
        if run is None:
            return
        count, kind = len(self._staged), run.kind
        self._places.numpy()[:count] = self._staged
        self._staged.clear()
        places = self._places[:count].to(self._stream.device, non_blocking=True)
        planes = self._host[:count].to(self._stream.device, non_blocking=True)
        luma = kind.height * kind.width
        interleaved = planes.new_empty((count, kind.rows, kind.width))
        interleaved.view(count, -1)[:, :luma].copy_(planes[:, :luma])
        # U and V side by side, as NVDEC has them.
        pairs = interleaved.view(count, -1)[:, luma:].view(count, -1, 2)
        pairs.copy_(planes[:, luma:].view(count, 2, -1).transpose(1, 2))
        if kind.bits > 8:
            wide, interleaved = interleaved, torch.empty_like(interleaved, dtype=torch.uint8)
            nv12.narrow(wide, interleaved, count=count, shift=0)
        nv12.to_rgb(interleaved, run.out, places, count=count, full_range=run.part.full_range)
        # The host's memory is written again.
        self._stream.synchronize()
