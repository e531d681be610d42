"""Slices → frames, FHWC uint8 RGB, on the GPU's decoder or on the CPU. docs/decoding.md says how colours are made.

Both decoders take the same slices and choose the same frames. They know nothing of datasets, ranks or transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

import numpy as np

from streamvid.arrays import UInt8
from streamvid.color.yuv_to_rgb import Planes, RgbConverter
from streamvid.decode.cpu import ReusableCodecContext, SliceSegment, decode_frames, split_at_keyframes
from streamvid.decode.dali_batching import fuse, group
from streamvid.decode.dali_cache_guard import shared_guard
from streamvid.decode.decode_job import is_supported
from streamvid.decode.nvdec import NVDEC_ENGINES, open_session_pool
from streamvid.errors import VideoError
from streamvid.transform.cpu_crop_resize import resize_alone
from streamvid.video.packet_selection import EncodedSlice

Frames = UInt8

_CPU_ONLY: Final = ("mjpeg",)
"""Intra pictures that no GPU decoder behind DALI knows."""


def why_on_cpu(codec: str, *, in_order: bool) -> str:
    """Why `GpuDecoder` leaves a clip to PyAV; empty if it does not.

    Args:
        codec, in_order: as of `EncodedSlice`.
    """
    if codec in _CPU_ONLY:
        return "no GPU decoder knows it"
    # A GPU's decoders hand out pictures in an order of their own; FFmpeg says which is which.
    return "" if in_order else "the order of its pictures is not known"


class Decoder(Protocol):
    """Decodes batches of slices."""

    def submit(self, slices: Sequence[EncodedSlice]) -> Callable[[], list[Any]]:
        """Begin to decode a batch, as far as this decoder works on its own; the function that comes back gives what
        `decode` would. Batches come in the order in which they were submitted."""

    def decode(self, slices: Sequence[EncodedSlice]) -> list[Any]:
        """The wanted frames of each slice, uint8 [frames, height, width, 3], on the decoder's device.

        A list: of NumPy arrays, or of PyTorch tensors on the GPU.

        Raises:
            VideoError: a slice does not decode to its frames.
        """

    def close(self) -> None:
        """Free threads and device memory."""


class FrameSink(Protocol):
    """What becomes of a slice's frames on the CPU: it is given each as soon as it is decoded."""

    def put(self, row: int, planes: Planes) -> None:
        """Take one frame, in any order and from any thread.

        Args:
            row: which of the slice's wanted frames it is.
            planes: its pixels; they stay the caller's.
        """

    @property
    def frames(self) -> Any:
        """What has been made of all of them."""


class FullSizeSink:
    """The frames as they are: uint8 [frames, height, width, 3]."""

    def __init__(self, part: EncodedSlice) -> None:
        self.frames: Frames = np.empty((len(part.frames), part.height, part.width, 3), dtype=np.uint8)

    def put(self, row: int, planes: Planes) -> None:
        for channel, plane in enumerate(planes):
            self.frames[row, ..., channel] = plane


class CpuDecoder:
    """FFmpeg in threads, each on one piece of a slice at a time: slices are cut where they begin anew, so that all
    threads are busy to the end, with few slices, too.

    Args:
        threads: pieces decoded at once.
    """

    def __init__(self, *, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="streamvid-decode", initializer=resize_alone)
        self._convert, self._decoder = RgbConverter(), ReusableCodecContext()

    def submit(
        self, slices: Sequence[EncodedSlice], canvases: Sequence[FrameSink] | None = None
    ) -> Callable[[], list[Any]]:
        """See `Decoder`. Threads go on to the next batch without a pause.

        Args:
            slices: a batch.
            canvases: what takes the frames of each slice; by default they come as they are.
        """
        canvases = canvases or [FullSizeSink(part) for part in slices]
        pending = [
            self._pool.submit(_draw, part, canvas, self._convert, self._decoder, piece)
            for part, canvas in zip(slices, canvases, strict=True)
            for piece in split_at_keyframes(part)
        ]

        def wait() -> list[Any]:
            for future in pending:
                future.result()
            return [canvas.frames for canvas in canvases]

        return wait

    def decode(self, slices: Sequence[EncodedSlice]) -> list[Any]:
        return self.submit(slices)()

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


class GpuDecoder:
    """NVDEC: by decoders that stay open (`streamvid.decode.nvdec`) where PyNvVideoCodec is installed and takes the
    clip, by DALI's `fn.decoders.video` else.

    For DALI slices that go together are fused into as many streams as are decoded at once; clips that it would mix up
    with others, and those of `why_on_cpu`, go to the CPU: see `streamvid.decode.dali_batching` and
    `streamvid.decode.dali_cache_guard`.

    Args:
        device_id: the GPU's number.
        threads: CPU threads.
        max_batch: slices per batch at most.
        streams: streams per batch in DALI, if slices share sample descriptions; by default one per engine of an H200,
            and at most one per thread. More gain next to nothing at 720p, and lose at 1080p: docs/performance.md.
        sessions: False leaves all to DALI.
    """

    def __init__(
        self, *, device_id: int, threads: int, max_batch: int, streams: int = NVDEC_ENGINES, sessions: bool = True
    ) -> None:
        self._sessions = open_session_pool(device_id, threads=threads) if sessions else None
        self._dali: DaliDecoder | None = None
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="streamvid-decode")
        self._device_id, self._threads, self._max_batch = device_id, threads, max_batch
        self._streams = min(streams, threads)

    def leaves_to_dali(self, codec: str, stsd: bytes, width: int, height: int) -> bool:
        """Whether DALI, with its decoder cache, decodes such a clip; arguments as of `decode_job.is_supported`."""
        return codec not in _CPU_ONLY and not (self._sessions is not None and is_supported(codec, stsd, width, height))

    def decode(self, slices: Sequence[EncodedSlice]) -> list[Any]:
        """Per slice a PyTorch tensor on the GPU; several may be parts of the same memory."""
        return self.submit(slices)()

    def submit(self, slices: Sequence[EncodedSlice]) -> Callable[[], list[Any]]:
        """See `Decoder`. The engines of decoders that stay open go on to the next batch without a pause."""
        guard = shared_guard()
        in_sessions: list[int] = []
        by_dali: list[int] = []
        on_cpu: list[int] = []
        for number, part in enumerate(slices):
            if why_on_cpu(part.codec, in_order=part.in_order):
                on_cpu.append(number)
            elif not self.leaves_to_dali(part.codec, part.stsd, part.width, part.height):
                in_sessions.append(number)
            elif guard.admit(self._device_id, part.codec, part.width, part.height):
                by_dali.append(number)
            else:
                on_cpu.append(number)
        open_frames = (
            self._sessions.submit([slices[n] for n in in_sessions])
            if self._sessions is not None and in_sessions
            else None
        )
        elsewhere = {n: self._pool.submit(decode_with_pyav, slices[n]) for n in on_cpu}

        def wait() -> list[Any]:
            import torch

            frames: dict[int, Any] = {}
            if by_dali:
                frames.update(zip(by_dali, self._on_gpu([slices[n] for n in by_dali]), strict=True))
            for n, future in elsewhere.items():
                frames[n] = torch.from_numpy(future.result()).to(f"cuda:{self._device_id}")
            if elsewhere:
                torch.cuda.synchronize(self._device_id)
            if open_frames is not None:
                frames.update(zip(in_sessions, open_frames(), strict=True))
            return [frames[n] for n in range(len(slices))]

        return wait

    def _on_gpu(self, slices: Sequence[EncodedSlice]) -> list[Any]:
        """By DALI."""
        from torch.utils.dlpack import from_dlpack

        if self._dali is None:
            self._dali = DaliDecoder(device_id=self._device_id, threads=self._threads, max_batch=self._max_batch)
        streams = group(slices, self._streams)
        fused = [fuse([slices[n] for n in numbers]) for numbers in streams]
        decoded = self._dali.run(fused)
        frames: dict[int, Any] = {}
        for place, (numbers, part) in enumerate(zip(streams, fused, strict=True)):
            tensor = from_dlpack(decoded[place])
            _check_shape(tuple(tensor.shape), part)
            ends = np.cumsum([len(slices[n].frames) for n in numbers]).tolist()
            for n, end in zip(numbers, ends, strict=True):
                frames[n] = tensor[end - len(slices[n].frames) : end]
        return [frames[n] for n in range(len(slices))]

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._dali = None
        if self._sessions is not None:
            self._sessions.close()
            self._sessions = None


class DaliDecoder:
    """A DALI pipeline that decodes what it is fed, on a GPU."""

    def __init__(self, *, device_id: int, threads: int, max_batch: int) -> None:
        from nvidia.dali import fn, pipeline_def, types

        @pipeline_def(batch_size=max_batch, num_threads=threads, device_id=device_id, prefetch_queue_depth=1)
        def graph() -> Any:
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
            frames = fn.external_source(name="frames", dtype=types.INT32, ndim=1)
            return fn.decoders.video(encoded, frames=frames, device="mixed")

        self._pipe = graph()
        self._pipe.build()

    def run(self, slices: Sequence[EncodedSlice]) -> Any:
        try:
            self._pipe.feed_input("encoded", [part.to_mp4() for part in slices])
            self._pipe.feed_input("frames", [part.frames.astype(np.int32) for part in slices])
            (decoded,) = self._pipe.run()
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            names = ", ".join(sorted({part.name for part in slices})[:8])
            raise VideoError(f"DALI could not decode a batch with the clips {names}, …: {reason}") from error
        return decoded


def _check_shape(shape: tuple[int, ...], part: EncodedSlice) -> None:
    wanted = (len(part.frames), part.height, part.width, 3)
    if shape != wanted:
        raise VideoError(
            f"clip {part.name} decodes to frames of shape {list(shape)}, its dataset says {list(wanted)}: pack it again"
        )


def decode_with_pyav(
    part: EncodedSlice,
    canvas: FrameSink | None = None,
    convert: RgbConverter | None = None,
    decoder: ReusableCodecContext | None = None,
) -> Any:
    """Decode one slice on the CPU, in the calling thread, without holding the GIL while FFmpeg works.

    Args:
        part: the slice.
        canvas: what takes its frames; by default they come as they are.
        convert, decoder: keep filters, memory and FFmpeg's decoder from slice to slice.

    Returns:
        uint8 [frames, height, width, 3], RGB; or what the canvas makes.

    Raises:
        VideoError: the slice does not decode to its frames.
    """
    canvas = canvas or FullSizeSink(part)
    _draw(part, canvas, convert or RgbConverter(), decoder or ReusableCodecContext())
    return canvas.frames


def _draw(
    part: EncodedSlice,
    canvas: FrameSink,
    convert: RgbConverter,
    decoder: ReusableCodecContext,
    piece: SliceSegment | None = None,
) -> None:
    for row, frame in decode_frames(part, piece, decoder=decoder):
        canvas.put(row, convert(frame, full_range=part.full_range))
