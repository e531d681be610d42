"""Batches on the CPU without DALI: each frame is written into the batch's tensors as soon as it is decoded.

That is for transforms of which nothing is left after `streamvid.transform.cpu_crop_resize` but flips, normalising and a
layout. The numbers are those of `streamvid.transform.dali_graph`, up to the last bit or two of a float. DALI's graph
would take several times as long for them, and could begin only when all frames of a batch are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import UInt8
from streamvid.transform.cpu_crop_resize import CropResizedFrames, Scratch, crop_boxes, fits_crop_resize
from streamvid.transform.params import Params, batch_params
from streamvid.transform.spec import DType, Transform, Views, by_view

if TYPE_CHECKING:
    import torch

    from streamvid.fetch.encoded_batch import EncodedBatch
    from streamvid.video.packet_selection import EncodedSlice

_Number = np.uint8 | np.float16 | np.uint16 | np.float32
_DTYPES: Final[Mapping[DType, type[_Number]]] = {
    "uint8": np.uint8,
    "float16": np.float16,
    "bfloat16": np.uint16,  # NumPy has no bfloat16: its bits
    "float32": np.float32,
}
_SERIAL_NUMBERS: Final = 1 << 15
"""Numbers that PyTorch converts without starting threads of its own; decoding keeps all cores busy already."""


def fits_batch_writer(transform: Transform | Views) -> bool:
    """Whether nothing is left for DALI to do, in any view."""
    return fits_crop_resize(transform) and all(
        one.dali is None and one.span("rotate") is None and not (one.recolours or one.blur or one.erase)
        for one in by_view(transform).values()
    )


class CpuBatchWriter:
    """The arrays of a batch, and the sinks that write decoded frames into them.

    Args:
        transform: one that `fits_batch_writer`.
        batch: its clips come out in one size.
        scratch: memory to work in.

    Attributes:
        tensors: of each view, [batch, …] in its layout and dtype; complete once all sinks have got all frames.
        sinks: of each clip (`streamvid.decode.base.FrameSink`).
    """

    def __init__(self, transform: Transform | Views, batch: EncodedBatch, scratch: Scratch) -> None:
        params = batch_params(transform, batch)
        boxes = crop_boxes(transform, params, batch.heights, batch.widths)
        views = [
            _View(one, batch.gather.shape, boxes[0][number].size, scratch)
            for number, one in enumerate(by_view(transform).values())
        ]
        names = list(by_view(transform))
        self.tensors = {name: view.tensor for name, view in zip(names, views, strict=True)}
        self.sinks = []
        for clip, (encoded, gather) in enumerate(zip(batch.slices, batch.gather, strict=True)):
            frames = CropResizedFrames(boxes[clip], height=encoded.height, width=encoded.width, scratch=scratch)
            flips = [_flips(params, view, clip) for view in names]
            self.sinks.append(_Sink(clip, encoded, gather.tolist(), frames, views, flips))


def _flips(params: Params, view: str, clip: int) -> tuple[slice, slice]:
    """Slices of a frame's rows and columns that flip it as the clip's parameters say."""
    vertical, horizontal = (params.get(f"{view}.{name}") for name in ("upside_down", "mirror"))
    rows = slice(None, None, -1 if vertical is not None and vertical[clip] else 1)
    return rows, slice(None, None, -1 if horizontal is not None and horizontal[clip] else 1)


class _Sink:
    """Writes the frames of one clip to the frame positions that show them, in all views."""

    def __init__(
        self,
        clip: int,
        encoded: EncodedSlice,
        gather: list[int],
        frames: CropResizedFrames,
        views: Sequence[_View],
        flips: Sequence[tuple[slice, slice]],
    ) -> None:
        self._clip, self._frames, self._views, self._flips = clip, frames, views, flips
        self._positions: list[list[int]] = [[] for _ in range(len(encoded.frames))]
        black: list[int] = []
        for position, row in enumerate(gather):
            (self._positions[row] if row >= 0 else black).append(position)
        for view in views:
            view.blacken(clip, black)

    def write(self, row: int, planes: Sequence[UInt8]) -> None:
        """See `streamvid.decode.base.FrameSink`."""
        positions = self._positions[row]
        if not positions:
            return
        for view, frame, flips in zip(self._views, self._frames.of(planes), self._flips, strict=True):
            view.write(self._clip, positions, [plane[flips] for plane in frame])


class _View:
    """One view of a batch.

    Args:
        transform: says layout, dtype, mean and std.
        shape: clips, and frame positions of each.
        size: height and width.
        scratch: memory to work in.

    Attributes:
        tensor: [batch, …], in the transform's layout and dtype.
    """

    def __init__(self, transform: Transform, shape: tuple[int, ...], size: tuple[int, int], scratch: Scratch) -> None:
        import torch

        lengths = {"T": shape[1], "C": 3, "H": size[0], "W": size[1]}
        axes = [lengths[axis] for axis in transform.layout]
        array: npt.NDArray[_Number] = np.empty((shape[0], *axes), dtype=_DTYPES[transform.dtype])
        self._dtype: torch.dtype = getattr(torch, transform.dtype)
        self.tensor = torch.from_numpy(array).view(self._dtype)
        # The same memory, as [batch, frames, channels, height, width].
        self._array = array.transpose(0, *(1 + transform.layout.index(axis) for axis in "TCHW"))
        self._scratch = scratch
        mean, std = transform.mean_std
        self._mean = [np.float32(255 * value) for value in mean]
        self._scale = [np.float32(1 / (255 * value)) for value in std]

    def write(self, clip: int, positions: Sequence[int], planes: Sequence[UInt8]) -> None:
        """Write a frame, red, green and blue, uint8 [height, width] each, to all positions that show it."""
        first = self._array[clip, positions[0]]
        for channel, plane in enumerate(planes):
            self._normalise(channel, plane, first[channel])
        for position in positions[1:]:
            self._array[clip, position] = first

    def blacken(self, clip: int, positions: Sequence[int]) -> None:
        """Write a black frame."""
        if positions:
            self.write(clip, positions, [np.zeros(self._array.shape[3:], dtype=np.uint8)] * 3)

    def _normalise(self, channel: int, plane: UInt8, out: npt.NDArray[_Number]) -> None:
        if out.dtype == np.uint8:
            out[:] = plane
            return
        half = self._dtype.itemsize == 2
        numbers = self._scratch.take("numbers", (4 * out.size,)).view(np.float32).reshape(out.shape) if half else out
        np.subtract(plane, self._mean[channel], out=numbers, dtype=np.float32)
        np.multiply(numbers, self._scale[channel], out=numbers)
        if half:
            _to_half(numbers, out, self._dtype)


def _to_half(numbers: npt.NDArray[_Number], out: npt.NDArray[_Number], dtype: torch.dtype) -> None:
    """float32 → float16 or bfloat16, by PyTorch, which is ten times as fast at it as NumPy."""
    import torch

    lines = max(1, _SERIAL_NUMBERS // numbers.shape[1])
    for start in range(0, len(numbers), lines):
        torch.from_numpy(out[start : start + lines]).view(dtype).copy_(torch.from_numpy(numbers[start : start + lines]))
