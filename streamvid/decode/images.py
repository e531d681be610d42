"""Decodes images for a GPU, a batch at a time: JPEGs with nvJPEG, all others in CPU threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from streamvid.bitstream.image import ImageHeader, to_decode
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
    """DALI pipelines that are opened on demand, and again after an error, after which they cannot be used.

    Args: as in `streamvid.video.image_decoder.image_pipeline`.
    """

    def __init__(self, *, device_id: int, threads: int, max_batch: int) -> None:
        self._device_id, self._threads, self._max_batch = device_id, threads, max_batch
        self._pipelines: dict[bool, Pipeline] = {}

    def decode(self, slices: Sequence[EncodedSlice]) -> list[torch.Tensor]:
        """The wanted frames of each slice of an image, uint8 [frames, height, width, 3] on the GPU.

        Raises:
            VideoError: an image is damaged, or DALI reports an error.
        """
        import torch

        files = [_wanted(encoded) for encoded in slices]
        images = [image for one in files for image in one]
        made: dict[int, torch.Tensor] = {}
        for on_gpu in (True, False):
            numbers = [n for n, (header, _) in enumerate(images) if is_for_gpu(header) == on_gpu]
            for first in range(0, len(numbers), self._max_batch):
                some = numbers[first : first + self._max_batch]
                made.update(zip(some, self._run([images[n][1] for n in some], slices, on_gpu), strict=True))
        frames, start = [], 0
        for encoded, one in zip(slices, files, strict=True):
            mine = [made[n] for n in range(start, start + len(one))]
            frames.append(torch.stack(mine) if len(mine) > 1 else mine[0][None])
            start += len(one)
            if list(frames[-1].shape[1:]) != [encoded.height, encoded.width, 3]:
                what = f"{encoded.width}x{encoded.height}, but decodes to {list(frames[-1].shape[1:])}"
                raise VideoError(f"the image {encoded.name} is said to be {what}: pack it again")
        torch.cuda.synchronize(self._device_id)
        return frames

    def _run(self, images: Sequence[bytes], slices: Sequence[EncodedSlice], on_gpu: bool) -> list[torch.Tensor]:
        """Decode the images of these slices to separate tensors on the GPU."""
        import torch
        from torch.utils.dlpack import from_dlpack

        pipeline = self._pipelines.pop(on_gpu, None) or image_pipeline(
            device_id=self._device_id if on_gpu else None, threads=self._threads, max_batch=self._max_batch
        )
        try:
            decoded = run_images(pipeline, images)
        except RuntimeError as error:
            abandon_failed(pipeline, [encoded.stsd for encoded in slices])
            names = ", ".join(sorted({encoded.name for encoded in slices})[:8])
            what = f"DALI could not decode a batch with the images {names}, …: {reason_of(error)}"
            raise VideoError(what) from error
        self._pipelines[on_gpu] = pipeline
        if on_gpu:
            return [from_dlpack(decoded[n]).clone() for n in range(len(images))]
        return [torch.from_numpy(np.array(decoded.at(n))).to(f"cuda:{self._device_id}") for n in range(len(images))]

    def __enter__(self) -> ImageBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipelines.clear()


def is_for_gpu(header: ImageHeader) -> bool:
    """Whether nvJPEG decodes an image."""
    return header.codec == "jpeg" and header.pix_fmt in _ON_GPU


def _wanted(encoded: EncodedSlice) -> list[tuple[ImageHeader, bytes]]:
    """Header and file of each of a slice's frames, in order. Raises VideoError if one is damaged, or contradicts its
    row."""
    ends = np.cumsum(encoded.sizes)
    found = {
        rank: encoded.data[end - size : end].tobytes()
        for rank, end, size in zip(encoded.display_order.tolist(), ends.tolist(), encoded.sizes.tolist(), strict=True)
    }
    try:
        return [to_decode(found[rank], encoded.stsd) for rank in encoded.frames.tolist()]
    except (ValueError, KeyError) as error:
        raise VideoError(f"the image {encoded.name} is damaged ({error}): check it with `streamvid verify`") from error
