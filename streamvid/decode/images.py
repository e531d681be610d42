"""Images decoded for a GPU, a batch at a time: by nvJPEG and nvJPEG2000, and of other formats by CPU threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from streamvid.bitstream.image import to_decode
from streamvid.errors import VideoError
from streamvid.video.image_decoder import abandon_failed, image_pipeline, reason_of, run_images
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    import torch
    from nvidia.dali import Pipeline


class ImageBatches:
    """A DALI pipeline that is opened when it is needed, and again after an error, as it is of no use then.

    Args: as of `streamvid.video.image_decoder.image_pipeline`.
    """

    def __init__(self, *, device_id: int, threads: int, max_batch: int) -> None:
        self._device_id, self._threads, self._max_batch = device_id, threads, max_batch
        self._pipeline: Pipeline | None = None

    def decode(self, slices: Sequence[EncodedSlice]) -> list[torch.Tensor]:
        """The wanted frames of each slice of an image, uint8 [frames, height, width, 3] on the GPU.

        Raises:
            VideoError: one is damaged, or DALI reports an error.
        """
        import torch
        from torch.utils.dlpack import from_dlpack

        files = [_wanted(encoded) for encoded in slices]
        images = [image for one in files for image in one]
        decoded: list[torch.Tensor] = []
        pipeline, self._pipeline = self._pipeline, None
        for first in range(0, len(images), self._max_batch):
            if pipeline is None:
                pipeline = image_pipeline(device_id=self._device_id, threads=self._threads, max_batch=self._max_batch)
            try:
                made = run_images(pipeline, images[first : first + self._max_batch])
            except RuntimeError as error:
                abandon_failed(pipeline, [encoded.stsd for encoded in slices])
                names = ", ".join(sorted({encoded.name for encoded in slices})[:8])
                what = f"DALI could not decode a batch with the images {names}, …: {reason_of(error)}"
                raise VideoError(what) from error
            decoded += [from_dlpack(made[n]) for n in range(len(made))]
        self._pipeline = pipeline
        frames, start = [], 0
        for encoded, one in zip(slices, files, strict=True):
            frames.append(torch.stack(decoded[start : start + len(one)]))
            start += len(one)
            if list(frames[-1].shape[1:]) != [encoded.height, encoded.width, 3]:
                what = f"{encoded.width}x{encoded.height}, but decodes to {list(frames[-1].shape[1:])}"
                raise VideoError(f"the image {encoded.name} is said to be {what}: pack it again")
        torch.cuda.synchronize(self._device_id)
        return frames

    def __enter__(self) -> ImageBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipeline = None


def _wanted(encoded: EncodedSlice) -> list[bytes]:
    """The files of a slice's frames, in their order. Raises VideoError if one is damaged, or not what its row says."""
    ends = np.cumsum(encoded.sizes)
    found = {
        rank: encoded.data[end - size : end].tobytes()
        for rank, end, size in zip(encoded.display_order.tolist(), ends.tolist(), encoded.sizes.tolist(), strict=True)
    }
    try:
        return [to_decode(found[rank], encoded.stsd) for rank in encoded.frames.tolist()]
    except (ValueError, KeyError) as error:
        raise VideoError(f"the image {encoded.name} is damaged ({error}): check it with `streamvid verify`") from error
