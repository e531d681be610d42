"""Decodes images with DALI's `fn.decoders.image` (nvImageCodec) on CPU or GPU: 8-bit RGB, in the stored orientation."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from streamvid.bitstream.image import CODECS, is_image_entry, to_decode
from streamvid.errors import InputError
from streamvid.forks import abandon_pipeline, in_children

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from nvidia.dali import Pipeline
    from nvidia.dali.data_node import DataNode


def image_pipeline(*, device_id: int | None, threads: int, max_batch: int) -> Pipeline:
    """A DALI pipeline that decodes a batch of images, its input `encoded`, with `image_node`.

    Args:
        device_id: the GPU's number; None for the CPU.
        max_batch: most images in a batch.
    """
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=max_batch, num_threads=threads, device_id=device_id, prefetch_queue_depth=1)
    def graph() -> DataNode:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        return image_node(encoded, "cpu" if device_id is None else "mixed")

    pipeline = in_children(graph(), abandon_pipeline)
    pipeline.build()
    return pipeline


def image_node(encoded: DataNode, device: Literal["cpu", "mixed"]) -> DataNode:
    """Add the decoding of images to a graph: uint8 [height, width, 3] each.

    Alpha is left out, 16 bits are rounded to 8 (v / 257), grey and CMYK become RGB. EXIF orientation is not applied: it
    is the clip's rotation.
    """
    from nvidia.dali import fn, types

    # So that chroma is upsampled alike on both devices; nvJPEG's default differs by up to half the range.
    return fn.decoders.image(
        encoded, device=device, output_type=types.RGB, adjust_orientation=False, jpeg_fancy_upsampling=True
    )


def run_images(pipeline: Pipeline, images: Sequence[bytes]) -> Any:
    """Decode a batch; returns DALI's list of tensors.

    Raises:
        RuntimeError: an image cannot be decoded; the pipeline cannot be used again.
        InputError: nvImageCodec is not installed.
    """
    pipeline.feed_input("encoded", [np.frombuffer(data, dtype=np.uint8) for data in images])
    try:
        (decoded,) = pipeline.run()
    except RuntimeError as error:
        if "libnvimgcodec" in str(error):
            what = "DALI decodes images with nvImageCodec, which cannot be loaded: pip install nvidia-nvimgcodec-cu12"
            raise InputError(what) from error
        raise
    return decoded


def decode_images(stsd: bytes, packets: Iterable[tuple[bytes, int]]) -> Iterator[VideoFrame]:
    """Decode images on the CPU, in the calling thread, which keeps its pipeline.

    Args:
        packets: the image files, each with the `pts` of its frame.

    Raises:
        av.error.FFmpegError: an image is damaged, or contradicts the sample description.
    """
    import av

    mine = _of_threads()
    for data, rank in packets:
        # Taken out while in use, so that a pipeline that fails is not kept; nor is one of another process.
        kept = mine.__dict__.pop("kept", None)
        try:
            _, image = to_decode(data, stsd)
            if kept is None or kept.pid != os.getpid():
                kept = _Kept(image_pipeline(device_id=None, threads=1, max_batch=1))
            pixels = np.asarray(run_images(kept.pipeline, [image]).at(0))
        except (ValueError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and kept is not None:
                abandon_failed(kept.pipeline, [stsd])
            raise av.error.InvalidDataError(errno.EINVAL, reason_of(error)) from error
        frame = av.VideoFrame(pixels.shape[1], pixels.shape[0], "gbrp")
        planes: Any = frame.planes
        for plane, channel in zip(planes, (1, 2, 0), strict=True):  # eight times as fast as `from_ndarray`
            lines = np.frombuffer(plane, dtype=np.uint8).reshape(plane.height, plane.line_size)
            lines[:, : plane.width] = pixels[..., channel]
        mine.kept, frame.pts = kept, rank
        yield frame


def opens_pipeline(stsd: bytes) -> bool:
    """Whether `decode_images` will open a pipeline in this thread for images of this sample description. That takes
    milliseconds, and seconds where there are GPUs: nvImageCodec starts CUDA, for one thread after another."""
    kept = _of_threads().__dict__.get("kept")
    return is_image_entry(stsd) and (kept is None or kept.pid != os.getpid())


def abandon_failed(pipeline: Pipeline, stsds: Iterable[bytes]) -> None:
    """Keep a failed pipeline from being freed if its images, by their sample descriptions, make that dangerous:
    OpenJPEG and libtiff may have corrupted memory that would be freed."""
    if any(stsd[20:24] in (CODECS["jpeg2000"], CODECS["tiff"]) for stsd in stsds):
        abandon_pipeline(pipeline)


def reason_of(error: Exception) -> str:
    """The error of DALI, or of a check before it, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and "no longer valid" not in line]
    return f"DALI: {lines[-1][-200:]}" if isinstance(error, RuntimeError) and lines else " ".join(lines)[:200]


class _Kept:
    """A thread's pipeline. A forked child frees thread-local values of other threads before `in_children` can abandon
    them."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pid, self.pipeline = os.getpid(), pipeline

    def __del__(self) -> None:
        if self.pid != os.getpid():
            abandon_pipeline(self.pipeline)


@cache
def _of_threads() -> threading.local:
    return threading.local()
