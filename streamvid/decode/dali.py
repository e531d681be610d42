"""Decoding with DALI's `fn.decoders.video` on a GPU, slices of equal configuration joined into one stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from streamvid.decode.dali_batching import fuse, group
from streamvid.errors import VideoError
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    import torch
    from nvidia.dali.backend import TensorListGPU
    from nvidia.dali.data_node import DataNode


class DaliDecoder:
    """A DALI pipeline that decodes the slices that it is fed.

    Args:
        device_id: the GPU's number.
        threads: CPU threads of the pipeline.
        max_batch: streams per batch at most.
    """

    def __init__(self, *, device_id: int, threads: int, max_batch: int) -> None:
        from nvidia.dali import fn, pipeline_def, types

        @pipeline_def(batch_size=max_batch, num_threads=threads, device_id=device_id, prefetch_queue_depth=1)
        def graph() -> DataNode:
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
            frames = fn.external_source(name="frames", dtype=types.INT32, ndim=1)
            return fn.decoders.video(encoded, frames=frames, device="mixed")

        self._pipe = graph()
        self._pipe.build()

    def run(self, slices: Sequence[EncodedSlice]) -> TensorListGPU:
        """Decode each slice as a stream of its own: per slice uint8 [frames, height, width, 3].

        Raises:
            VideoError: DALI reports an error. The decoder is of no use then.
        """
        decoded: TensorListGPU
        try:
            self._pipe.feed_input("encoded", [encoded.to_mp4() for encoded in slices])
            self._pipe.feed_input("frames", [encoded.frames.astype(np.int32) for encoded in slices])
            (decoded,) = self._pipe.run()
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            names = ", ".join(sorted({encoded.name for encoded in slices})[:8])
            raise VideoError(f"DALI could not decode a batch with the clips {names}, …: {reason}") from error
        return decoded

    def decode(self, slices: Sequence[EncodedSlice], *, streams: int) -> list[torch.Tensor]:
        """Decode slices, joined into about `streams` streams (`streamvid.decode.dali_batching`).

        Returns:
            per slice a uint8 tensor [frames, height, width, 3]; those of one stream share memory.

        Raises:
            VideoError: as `run`; or frames have another size than their clip's.
        """
        from torch.utils.dlpack import from_dlpack

        groups = group(slices, streams)
        fused = [fuse([slices[n] for n in numbers]) for numbers in groups]
        decoded = self.run(fused)
        frames: dict[int, torch.Tensor] = {}
        for at, (numbers, stream) in enumerate(zip(groups, fused, strict=True)):
            tensor = from_dlpack(decoded[at])
            wanted = [len(stream.frames), stream.height, stream.width, 3]
            if list(tensor.shape) != wanted:
                raise VideoError(
                    f"clip {stream.name} decodes to frames of shape {list(tensor.shape)}, "
                    f"its dataset says {wanted}: pack it again"
                )
            ends = np.cumsum([len(slices[n].frames) for n in numbers]).tolist()
            for n, end in zip(numbers, ends, strict=True):
                frames[n] = tensor[end - len(slices[n].frames) : end]
        return [frames[n] for n in range(len(slices))]
