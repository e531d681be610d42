"""Batches on the CPU without DALI: each frame is written into the batch's tensors as soon as it is decoded.

This is for transforms that consist of cropping and resizing (`streamvid.transform.crop_boxes`), flips, normalising
and a layout. The results equal those of `streamvid.transform.dali_graph`, up to the last bit or two of a float. DALI's
graph would take several times as long, and could begin only when all frames of a batch are decoded.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import UInt8
from streamvid.color.picture import Picture
from streamvid.color.render import PlaneFormat, Targets, normalise
from streamvid.decode.base import FrameSink
from streamvid.transform.cpu_frame_renderer import FrameRenderer
from streamvid.transform.crop_boxes import Scratch, crop_boxes, fits_crop_resize
from streamvid.transform.params import Params, batch_params
from streamvid.transform.spec import DType, Transform, Views, by_view

if TYPE_CHECKING:
    from streamvid.fetch.encoded_batch import EncodedBatch
    from streamvid.video.packet_selection import EncodedSlice

_Number = np.uint8 | np.float16 | np.uint16 | np.float32
_DTYPES: Final[Mapping[DType, type[_Number]]] = {
    "uint8": np.uint8,
    "float16": np.float16,
    "bfloat16": np.uint16,  # NumPy has no bfloat16: uint16 holds its bits
    "float32": np.float32,
}


_LEAST_BYTES: Final = 1 << 20
"""Smaller arrays are not worth being kept."""
_KEPT: Final = 2
"""Arrays that wait for their next use at most. A loop that is at a batch has dropped the one before."""


class BatchMemory:
    """Memory for the arrays of batches, reused as soon as nothing refers to a batch any more: fresh pages take a
    twentieth of the cores' time, and freeing them takes milliseconds with the GIL held."""

    def __init__(self) -> None:
        self._free: deque[UInt8] = deque(maxlen=_KEPT)

    def empty(self, shape: tuple[int, ...], dtype: type[_Number]) -> npt.NDArray[_Number]:
        """An array with arbitrary contents, which shares no memory with any array in use."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size < _LEAST_BYTES:
            return np.empty(shape, dtype=dtype)
        memory = self._take(size)
        # All views and tensors of the array refer to this object.
        lease = (ctypes.c_uint8 * size).from_buffer(memory.data)
        weakref.finalize(lease, self._free.append, memory).atexit = False
        return np.ndarray(shape, dtype, memoryview(lease).cast("B"))

    def _take(self, size: int) -> UInt8:
        for _ in range(len(self._free)):
            try:
                memory = self._free.popleft()
            except IndexError:  # another thread took it
                break
            if size <= len(memory) <= 2 * size:
                return memory
            self._free.append(memory)
        return np.empty(size, dtype=np.uint8)


def fits_batch_writer(transform: Transform | Views) -> bool:
    """Whether all views of the transform can do without DALI."""
    views = by_view(transform).values()
    return fits_crop_resize(transform) and not any(view.needs_graph or view.recolours for view in views)


class CpuBatchWriter:
    """The arrays of a batch, and the sinks that write decoded frames into them.

    Args:
        transform: one that `fits_batch_writer`.
        batch: clips whose outputs have one size.
        scratch: scratch memory.
        memory: allocates the tensors.

    Attributes:
        tensors: by view, [batch, …] in its layout and dtype; complete once all sinks have got all frames.
        sinks: one for each clip (`streamvid.decode.base.FrameSink`).
    """

    def __init__(
        self, transform: Transform | Views, batch: EncodedBatch, scratch: Scratch, memory: BatchMemory | None = None
    ) -> None:
        params = batch_params(transform, batch)
        boxes = crop_boxes(transform, params, batch.heights, batch.widths)
        views = [
            _View(spec, batch.gather.shape, boxes[0][number].size, memory or BatchMemory())
            for number, spec in enumerate(by_view(transform).values())
        ]
        names = list(by_view(transform))
        self.tensors = {name: view.tensor for name, view in zip(names, views, strict=True)}
        self.sinks = []
        for clip, (encoded, gather) in enumerate(zip(batch.slices, batch.gather, strict=True)):
            render = FrameRenderer(list(by_view(transform).values()), boxes[clip], encoded, scratch)
            flips = [_flips(params, view, clip) for view in names]
            self.sinks.append(_Sink(clip, encoded, gather.tolist(), render, views, flips))


def _flips(params: Params, view: str, clip: int) -> tuple[slice, slice]:
    """Slices of a frame's rows and columns that flip it as the clip's parameters say."""
    vertical, horizontal = (params.get(f"{view}.{name}") for name in ("upside_down", "mirror"))
    rows = slice(None, None, -1 if vertical is not None and vertical[clip] else 1)
    return rows, slice(None, None, -1 if horizontal is not None and horizontal[clip] else 1)


class _Sink(FrameSink):
    """Writes the frames of one clip to the frame positions that show them, in all views."""

    def __init__(
        self,
        clip: int,
        encoded: EncodedSlice,
        gather: list[int],
        render: FrameRenderer,
        views: Sequence[_View],
        flips: Sequence[tuple[slice, slice]],
    ) -> None:
        self._clip, self._render, self._views, self._flips = clip, render, views, flips
        self._positions: list[list[int]] = [[] for _ in range(len(encoded.frames))]
        black: list[int] = []
        for position, row in enumerate(gather):
            (self._positions[row] if row >= 0 else black).append(position)
        for view in views:
            view.blacken(clip, black)

    def write(self, row: int, picture: Picture) -> None:
        """See `streamvid.decode.base.FrameSink`."""
        positions = self._positions[row]
        if not positions:
            return
        firsts = [view.pictures[self._clip, positions[0]] for view in self._views]
        self._render(
            picture, [frames[:, rows, columns] for frames, (rows, columns) in zip(firsts, self._flips, strict=True)]
        )
        for view, first in zip(self._views, firsts, strict=True):
            for position in positions[1:]:
                view.pictures[self._clip, position] = first

    def targets(self, form: PlaneFormat) -> Targets | None:
        """See `streamvid.decode.base.FrameSink`; for frames that one frame position shows."""
        pictures, (rows, columns) = self._views[0].pictures[self._clip], self._flips[0]
        shown = np.array([position[0] if len(position) == 1 else -1 for position in self._positions])
        offsets = np.where(shown < 0, -1, shown * pictures.strides[0])
        return self._render.targets(form, pictures[0][:, rows, columns], offsets)


class _View:
    """One view of a batch.

    Args:
        transform: its layout, dtype, mean and std apply.
        shape: number of clips, and of frame positions in each.
        size: height and width.
        memory: allocates the tensor.

    Attributes:
        tensor: [batch, …], in the transform's layout and dtype.
        pictures: the same memory, as [batch, frames, channels, height, width]; bfloat16 as uint16.
    """

    def __init__(
        self, transform: Transform, shape: tuple[int, ...], size: tuple[int, int], memory: BatchMemory
    ) -> None:
        import torch

        lengths = {"T": shape[1], "C": 3, "H": size[0], "W": size[1]}
        axes = [lengths[axis] for axis in transform.layout]
        array = memory.empty((shape[0], *axes), _DTYPES[transform.dtype])
        self.tensor = torch.from_numpy(array).view(getattr(torch, transform.dtype))
        self.pictures = array.transpose(0, *(1 + transform.layout.index(axis) for axis in "TCHW"))
        self._transform = transform

    def blacken(self, clip: int, positions: Sequence[int]) -> None:
        """Write black frames."""
        mean, std = self._transform.mean_std
        black = [np.zeros(self.pictures.shape[3:], dtype=np.uint8)] * 3
        for position in positions:
            normalise(black, self.pictures[clip, position], dtype=self._transform.dtype, mean=mean, std=std)
