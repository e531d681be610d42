"""Decoding with DALI's `fn.decoders.video` on a GPU, slices with the same sample description joined into few streams.

A hardware decoder has a cost per stream, not only per frame. A slice begins with a random access point, so if parameter
sets and size are equal, a decoder continues with the next slice without being opened again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from streamvid.bitstream.annexb import NAL_SYNTAX, parameter_sets
from streamvid.bitstream.packet_info import classifier
from streamvid.bitstream.packets import Packets, packets_in
from streamvid.decode.dali_cache_guard import misses_cache
from streamvid.errors import VideoError
from streamvid.forks import abandon_pipeline, in_children
from streamvid.mp4.sample_entry import without_bit_rate
from streamvid.video.packet_selection import EncodedSlice

if TYPE_CHECKING:
    import torch
    from nvidia.dali.backend import TensorListGPU
    from nvidia.dali.data_node import DataNode

_IN_BAND_ENTRIES: Final = (b"avc3", b"hev1")
"""Sample entries whose parameter sets may be in band: equal sample descriptions say nothing about them."""
_BLOCKS_PER_OPENING: Final = 350_000
"""Macroblocks that an NVDEC engine decodes while DALI opens a decoder: about 3.5 million a second and 0.1 s (H200)."""


class DaliDecoder:
    """A DALI pipeline that decodes slices.

    Args:
        device_id: the GPU's number.
        threads: CPU threads of the pipeline.
        max_batch: most streams per batch.
    """

    def __init__(self, *, device_id: int, threads: int, max_batch: int) -> None:
        from nvidia.dali import fn, pipeline_def, types

        @pipeline_def(batch_size=max_batch, num_threads=threads, device_id=device_id, prefetch_queue_depth=1)
        def graph() -> DataNode:
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
            frames = fn.external_source(name="frames", dtype=types.INT32, ndim=1)
            return fn.decoders.video(encoded, frames=frames, device="mixed")

        self._pipe = in_children(graph(), abandon_pipeline)
        self._pipe.build()

    def run(self, slices: Sequence[EncodedSlice]) -> TensorListGPU:
        """Decode each slice as a stream of its own: for each slice uint8 [frames, height, width, 3].

        Raises:
            VideoError: DALI reports an error. The decoder cannot be used again.
        """
        decoded: TensorListGPU
        try:
            self._pipe.feed_input("encoded", [encoded.to_mp4() for encoded in slices])
            self._pipe.feed_input("frames", [encoded.frames.astype(np.int32) for encoded in slices])
            (decoded,) = self._pipe.run()
        except RuntimeError as error:
            reason = reason_of(error)
            names = ", ".join(sorted({encoded.name for encoded in slices})[:8])
            raise VideoError(f"DALI could not decode a batch with the clips {names}, …: {reason}") from error
        return decoded

    def decode(self, slices: Sequence[EncodedSlice], *, streams: int) -> list[torch.Tensor]:
        """Decode slices, joined into about `streams` streams.

        Returns:
            for each slice a uint8 tensor [frames, height, width, 3]; tensors of one stream share memory.

        Raises:
            VideoError: as in `run`, or frames have another size than their clip.
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


def reason_of(error: Exception) -> str:
    """The reason in an error of a DALI pipeline, which stands behind a traceback of the operator's definition."""
    return " ".join(str(error).rpartition("encountered:")[2].partition("C++ context")[0].split())[:300]


def check_packets(slices: Sequence[EncodedSlice]) -> None:
    """Check the headers of packets, because DALI on a GPU returns frames for some invalid packets without an error.

    Raises:
        VideoError: a slice has packets that are no NAL units, or does not begin with a key frame.
    """
    for encoded in slices:
        try:
            if encoded.codec in NAL_SYNTAX:
                length_size = parameter_sets(encoded.codec, encoded.stsd).length_size
                list(Packets.checked(encoded.data, encoded.sizes, length_size=length_size))
                continue
            kind_of = classifier(encoded.codec, encoded.stsd)
            packets = packets_in(encoded.data, encoded.sizes)
            if not all(kind_of(packets[n]).random_access for n in encoded.starts.tolist()):
                raise ValueError("a key frame is none")
        except ValueError as error:
            raise VideoError(f"clip {encoded.name} is damaged ({error}): check it with `streamvid verify`") from error


def group(slices: Sequence[EncodedSlice], streams: int) -> list[list[int]]:
    """Distribute slices over about `streams` streams, of about equal numbers of packets.

    Args:
        slices: the slices of one batch.
        streams: number of streams. There are more if the slices have more sample descriptions.

    Returns:
        the numbers of the slices in each stream, ascending; every slice is in exactly one.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    for number, encoded in enumerate(slices):
        key: tuple[object, ...] = (
            encoded.codec, without_bit_rate(encoded.stsd), encoded.width, encoded.height, encoded.color,
        )  # fmt: skip
        if encoded.stsd[20:24] in _IN_BAND_ENTRIES:
            key += (encoded.name,)
        alike.setdefault(key, []).append(number)
    packets = np.array([len(encoded.sizes) for encoded in slices])
    share = max(1.0, packets.sum() / streams)
    groups: list[list[int]] = []
    for numbers in alike.values():
        load = float(packets[numbers].sum())
        count = min(len(numbers), max(1, round(load / share)), _max_streams(slices[numbers[0]], load))
        bins: list[list[int]] = [[] for _ in range(count)]
        loads = [0] * count
        # Longest processing time first (Graham 1969).
        for number in sorted(numbers, key=lambda n: -int(packets[n])):
            lightest = loads.index(min(loads))
            bins[lightest].append(number)
            loads[lightest] += int(packets[number])
        groups += [sorted(numbers) for numbers in bins]
    return groups


def _max_streams(encoded: EncodedSlice, packets: float) -> int:
    """The number of streams that is fastest if each opens a decoder.

    Decoders are opened one after another, and streams are decoded in parallel: n streams take about n * opening + work
    / n, which is least if both terms are equal.
    """
    if not misses_cache(encoded.codec, encoded.width, encoded.height):
        return int(packets) or 1
    blocks = packets * -(-encoded.width // 16) * -(-encoded.height // 16)
    return max(1, round(math.sqrt(blocks / _BLOCKS_PER_OPENING)))


def fuse(slices: Sequence[EncodedSlice]) -> EncodedSlice:
    """Join slices with the same sample description into one: all packets and wanted frames, in their order."""
    if len(slices) == 1:
        return slices[0]
    based = [*zip(slices, np.cumsum([0, *(len(encoded.sizes) for encoded in slices[:-1])]), strict=True)]
    return replace(
        slices[0],
        name=", ".join(dict.fromkeys(encoded.name for encoded in slices)),
        data=np.concatenate([encoded.data for encoded in slices]),
        sizes=np.concatenate([encoded.sizes for encoded in slices]),
        display_order=np.concatenate([encoded.display_order + base for encoded, base in based]),
        frames=np.concatenate([encoded.frames + base for encoded, base in based]),
        starts=np.zeros(1, dtype=np.int64),
        in_order=True,
    )
