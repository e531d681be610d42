"""Batches without DALI: on the CPU, where nothing is asked for but what `streamvid.transform.cpu_crop_resize` does,
flips, normalising and a layout. Each frame is written where it belongs in the batch as soon as it is decoded.

The numbers are those of `streamvid.transform.dali_graph`, to the last bit or two of a float. DALI's graph would take
several times as long for them, and could begin only when all frames are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Float32, UInt8
from streamvid.transform.cpu_crop_resize import CropBox, CropResizedFrames, Scratch, crop_boxes, fits_crop_resize
from streamvid.transform.spec import DType, Transform, Views, by_view

if TYPE_CHECKING:
    from streamvid.fetch.plan_samples import EncodedBatch

_TYPES: Final[dict[DType, Any]] = {"uint8": np.uint8, "float16": np.float16, "float32": np.float32}
_PIECE: Final = 1 << 15
"""Numbers that PyTorch converts without more threads, of which there are as many as cores already."""


def fits_cpu_renderer(transform: Transform | Views) -> bool:
    """Whether DALI has nothing to do for any view."""
    return fits_crop_resize(transform) and all(
        one.dali is None and one.span("rotate") is None and not (one.recolours or one.blur or one.erase)
        for one in by_view(transform).values()
    )


class CpuBatchWriter:
    """The views of a batch, and the canvases that write into them (`streamvid.decode.base.FrameSink`).

    Args:
        transform: one of those that `can_finish`.
        batch: its clips come out in one size.
        scratch: memory to work in.

    Attributes:
        tensors: of each view, [batch, …] in its layout and dtype, .
        canvases: of each clip.
    """

    def __init__(self, transform: Transform | Views, batch: EncodedBatch, scratch: Scratch) -> None:
        import torch

        slices = batch.slices
        placed = crop_boxes(transform, batch.inputs, [(part.height, part.width) for part in slices])
        slots = batch.mask.shape[1]
        views = {
            view: _Finished(one, len(slices), slots, placed[0][number].size, scratch)
            for number, (view, one) in enumerate(by_view(transform).items())
        }
        self.tensors = {view: torch.from_numpy(one.array) for view, one in views.items()}
        self.canvases = [_Canvas(n, batch, placed[n], views, scratch) for n in range(len(slices))]


class _Canvas:
    """Where the frames of one clip go."""

    def __init__(
        self,
        clip: int,
        batch: EncodedBatch,
        placed: Sequence[CropBox],
        views: dict[str, _Finished],
        scratch: Scratch,
    ) -> None:
        part = batch.slices[clip]
        self._clip, self._views = clip, views
        self._pictures = CropResizedFrames(placed, height=part.height, width=part.width, scratch=scratch)
        shown = batch.inputs["shown"][clip].reshape(-1) > 0
        gather = np.where(shown, batch.inputs["gather"][clip], -1)
        self._slots = [np.flatnonzero(gather == row).tolist() for row in range(len(part.frames))]
        self._flips = [
            tuple(
                slice(None, None, -1 if flips is not None and flips[clip] else 1)
                for flips in (batch.inputs.get(f"{view}.upside_down"), batch.inputs.get(f"{view}.mirror"))
            )
            for view in views
        ]
        for one in views.values():
            one.blacken(clip, np.flatnonzero(~shown).tolist())

    def write(self, row: int, planes: Sequence[UInt8]) -> None:
        slots = self._slots[row]
        if not slots:
            return
        for view, picture, flips in zip(self._views.values(), self._pictures.of(planes), self._flips, strict=True):
            view.write(self._clip, slots, [plane[flips] for plane in picture])


class _Finished:
    """One view of a batch.

    Attributes:
        array: its numbers, in the transform's layout and dtype.
    """

    def __init__(self, transform: Transform, clips: int, slots: int, size: tuple[int, int], scratch: Scratch) -> None:
        lengths = {"T": slots, "C": 3, "H": size[0], "W": size[1]}
        self.array = np.empty((clips, *(lengths[axis] for axis in transform.layout)), dtype=_TYPES[transform.dtype])
        # The same memory, as [batch, slots, channels, height, width].
        self._pictures = self.array.transpose(0, *(1 + transform.layout.index(axis) for axis in "TCHW"))
        self._scratch = scratch
        mean, std = transform.mean_std
        self._less = [np.float32(255 * value) for value in mean]
        self._times = [np.float32(1 / (255 * value)) for value in std]

    def write(self, clip: int, slots: Sequence[int], planes: Sequence[UInt8]) -> None:
        """Write a picture, red, green and blue, uint8 [height, width] each, into all slots that show it."""
        first = self._pictures[clip, slots[0]]
        for channel, plane in enumerate(planes):
            self._normalise(channel, plane, first[channel])
        for slot in slots[1:]:
            self._pictures[clip, slot] = first

    def blacken(self, clip: int, slots: Sequence[int]) -> None:
        """Write a black picture."""
        if slots:
            self.write(clip, slots, [np.zeros(self._pictures.shape[3:], dtype=np.uint8)] * 3)

    def _normalise(self, channel: int, plane: UInt8, out: npt.NDArray[Any]) -> None:
        if out.dtype == np.uint8:
            out[:] = plane
            return
        numbers = out
        if out.dtype == np.float16:
            numbers = self._scratch.take("numbers", (4 * out.size,)).view(np.float32).reshape(out.shape)
        np.subtract(plane, self._less[channel], out=numbers, dtype=np.float32)
        numbers *= self._times[channel]
        if numbers is not out:
            _to_half(numbers, out)


def _to_half(numbers: Float32, out: npt.NDArray[np.float16]) -> None:
    """By PyTorch, which is ten times as fast at it as NumPy."""
    import torch

    lines = max(1, _PIECE // numbers.shape[1])
    for start in range(0, len(numbers), lines):
        torch.from_numpy(out[start : start + lines]).copy_(torch.from_numpy(numbers[start : start + lines]))
