"""Decodes images for a GPU, a batch at a time: JPEGs with nvJPEG, all others in CPU threads."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from streamvid.bitstream.image import ImageHeader, to_decode
from streamvid.bitstream.jpeg import fits_nvjpeg
from streamvid.bitstream.packets import packets_in
from streamvid.decode.base import GpuFrames
from streamvid.errors import VideoError
from streamvid.video.image_decoder import abandon_failed, image_pipeline, reason_of, run_images
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    import torch
    from nvidia.dali import Pipeline


_ON_GPU: Final = ("gray", "yuvj420p", "yuvj422p", "yuvj440p", "yuvj411p", "yuvj444p")
"""JPEGs that nvJPEG decodes. All else is decoded as on the CPU: with device="mixed", DALI 2.4 has CPU threads do it,
too, and gives wrong pixels of PNGs with 4 bits, and pixels of some damaged files."""


class ImageBatches:
    """DALI pipelines for CPU and GPU. The CPU's is opened at the first call, the GPU's for the first JPEGs; and again
    after an error, after which they cannot be used.

    Args: as in `streamvid.video.image_decoder.image_pipeline`.
    """

    def __init__(self, *, device_id: int, threads: int, max_batch: int) -> None:
        import torch

        self._device, self._threads, self._max_batch = torch.device("cuda", device_id), threads, max_batch
        self._pipelines: dict[bool, Pipeline] = {}

    def decode(self, slices: Sequence[EncodedSlice]) -> list[GpuFrames]:
        """The wanted frames of each slice of an image.

        Raises:
            VideoError: an image is damaged, or DALI reports an error.
        """
        import torch

        files = [_wanted(encoded) for encoded in slices]
        images = [_Image(encoded, *image) for encoded, wanted in zip(slices, files, strict=True) for image in wanted]
        on_gpu = [is_for_gpu(image.header, image.data) for image in images]
        order = sorted(range(len(images)), key=on_gpu.__getitem__)
        for on in pipelines_for(slices) - {*self._pipelines}:
            self._pipelines[on] = image_pipeline(
                device_id=self._device.index if on else None, threads=self._threads, max_batch=self._max_batch
            )
        sizes = [images[n].decoded_bytes for n in order]
        starts = np.empty(len(images), dtype=np.int64)
        starts[order] = np.cumsum(sizes) - sizes
        memory = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        for route, numbers in itertools.groupby(order, key=on_gpu.__getitem__):
            while some := [*itertools.islice(numbers, self._max_batch)]:
                self._run([images[n] for n in some], memory[starts[some[0]] :], slices, on_gpu=route)
        torch.cuda.synchronize(self._device)
        parts = np.split(starts, np.cumsum([len(wanted) for wanted in files])[:-1])
        return [
            GpuFrames(memory, part, encoded.height, encoded.width) for part, encoded in zip(parts, slices, strict=True)
        ]

    def _run(
        self, images: Sequence[_Image], memory: torch.Tensor, slices: Sequence[EncodedSlice], *, on_gpu: bool
    ) -> None:
        """Decode images of these slices into memory, one after the other."""
        import torch

        pipeline = self._pipelines.pop(on_gpu)
        try:
            decoded = run_images(pipeline, [image.data for image in images])
        except RuntimeError as error:
            abandon_failed(pipeline, [encoded.stsd for encoded in slices])
            names = ", ".join(sorted({encoded.name for encoded in slices})[:8])
            what = f"DALI could not decode a batch with the images {names}, …: {reason_of(error)}"
            raise VideoError(what) from error
        self._pipelines[on_gpu] = pipeline
        for image, shape in zip(images, decoded.shape(), strict=True):
            if tuple(shape) != image.decoded_shape:
                what = f"{image.encoded.width}x{image.encoded.height}, but decodes to {list(shape)}"
                raise VideoError(f"the image {image.encoded.name} is said to be {what}: pack it again")
        # All at once: a tensor for each would take Python a tenth of a millisecond.
        size = sum(image.decoded_bytes for image in images)
        target = memory if on_gpu else torch.empty(size, dtype=torch.uint8, device="cpu")
        decoded.copy_to_external(ctypes.c_void_p(target.data_ptr()))
        if not on_gpu:
            memory[: len(target)].copy_(target)

    def __enter__(self) -> ImageBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipelines.clear()


def is_for_gpu(header: ImageHeader, data: bytes) -> bool:
    """Whether nvJPEG decodes an image."""
    return header.codec == "jpeg" and header.pix_fmt in _ON_GPU and fits_nvjpeg(data)


def pipelines_for(slices: Sequence[EncodedSlice]) -> set[bool]:
    """The pipelines that must be open for a batch of images: False is the CPU's, True the GPU's."""
    return {False, any(encoded.codec == "jpeg" for encoded in slices)}


@dataclass(frozen=True)
class _Image:
    """An image of a slice: its header, and the bytes for decoders."""

    encoded: EncodedSlice
    header: ImageHeader
    data: bytes

    @property
    def decoded_shape(self) -> tuple[int, int, int]:
        return self.encoded.height, self.encoded.width, 3

    @property
    def decoded_bytes(self) -> int:
        return math.prod(self.decoded_shape)


def _wanted(encoded: EncodedSlice) -> list[tuple[ImageHeader, bytes]]:
    """Header and file of each of a slice's frames, in order. Raises VideoError if one is damaged, or contradicts its
    row."""
    found = dict(zip(encoded.display_order.tolist(), packets_in(encoded.data, encoded.sizes), strict=True))
    try:
        return [to_decode(found[rank].tobytes(), encoded.stsd) for rank in encoded.frames.tolist()]
    except (ValueError, KeyError) as error:
        raise VideoError(f"the image {encoded.name} is damaged ({error}): check it with `streamvid verify`") from error
