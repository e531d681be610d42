"""Cropping, resizing and rotating upright on the CPU, frame by frame, as frames are decoded.

So frames of full size need not be kept or copied; DALI's resize takes some ten times as long on the CPU. On a GPU, the
graph does this (`streamvid.transform.dali_graph`). Both use the same filter: a triangle as wide as the source pixels
that an output pixel covers, which also takes in pixels around the crop; at the frame's edge the outermost pixels are
repeated. PyTorch's antialiased resize of uint8 does the same but for pixels at the edge of its input; those are
computed here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Float32, Int64, UInt8
from streamvid.color.resample import taps
from streamvid.transform.params import Params, followers
from streamvid.transform.spec import Transform, Views, by_view

if TYPE_CHECKING:
    import torch

_NEAR: Final = 1 / 256
"""Coordinates this near to a whole pixel are taken to be on it: they were rounded to float32 on their way."""


@dataclass(frozen=True)
class CropBox:
    """The part of a clip's frames that one view shows.

    Attributes:
        turns: quarter turns clockwise that rotate a frame upright.
        mirrored: whether the frame is flipped, left to right, before it is turned.
        start, end: y and x of the part, in pixels of the upright frame, from its upper left corner.
        size: height and width that the part is resized to.
    """

    turns: int
    start: tuple[float, float]
    end: tuple[float, float]
    size: tuple[int, int]
    mirrored: bool = False


def fits_crop_resize(transform: Transform | Views) -> bool:
    """Whether all views can be cropped and resized here: if they are not resized, or with the linear filter.

    PyTorch's cubic filter clips values between its two passes, and DALI's does not; their nearest pixels differ where
    two are equally near."""
    following = followers(transform)
    return all(
        spec.interpolation == "bilinear"
        or not (spec.resize or spec.random_short_side or spec.random_resized_crop or view in following)
        for view, spec in by_view(transform).items()
    )


def crop_boxes(transform: Transform | Views, params: Params, heights: Int64, widths: Int64) -> list[list[CropBox]]:
    """For each clip, the box of each view.

    Args:
        transform: the transform.
        params: its parameters for the clips (`streamvid.transform.params`).
        heights, widths: int64 [clips], of decoded frames, before rotation.
    """
    boxes = []
    for n, (height, width) in enumerate(zip(heights.tolist(), widths.tolist(), strict=True)):
        turns = round(-float(params["angle"][n]) / 90) % 4
        upright = (width, height) if turns % 2 else (height, width)
        views = []
        for view in by_view(transform):
            size, start, end = (_pair(params.get(f"{view}.{name}"), n) for name in ("size", "start", "end"))
            size = size or upright
            if end is None:
                # A crop without a resize does not change the scale.
                end = (start[0] + size[0], start[1] + size[1]) if start else upright
            mirrored = bool(params["mirrored"][n])
            views.append(CropBox(turns, start or (0, 0), end, (round(size[0]), round(size[1])), mirrored))
        boxes.append(views)
    return boxes


def _pair(values: npt.NDArray[Any] | None, n: int) -> tuple[float, float] | None:
    return None if values is None else (float(values[n, 0]), float(values[n, 1]))


def resize_in_one_thread() -> None:
    """Make PyTorch use no helper threads for operations of the calling thread: all cores are busy with threads like it,
    and helpers, which spin while they wait, take a tenth of a resize's time."""
    import torch

    others = torch.get_num_threads()
    torch.set_num_threads(1)
    # `set_num_threads` also sets the default of later threads; called in another thread, it does only that.
    restoring = threading.Thread(target=torch.set_num_threads, args=(others,))
    restoring.start()
    restoring.join()


class Scratch(threading.local):
    """Buffers that each thread reuses, because allocating fresh memory takes longer than a resize."""

    def __init__(self) -> None:
        self._memory: dict[str, UInt8] = {}

    def take(self, name: str, shape: tuple[int, ...]) -> UInt8:
        """A uint8 array of the shape, with arbitrary contents, valid until the thread takes another of the same
        name."""
        size = math.prod(shape)
        memory = self._memory.get(name)
        if memory is None or len(memory) < size:
            memory = self._memory[name] = np.zeros(size, dtype=np.uint8)
        return memory[:size].reshape(shape)


class CropResizer:
    """Crops, resizes and turns frames of one size for one view, in any thread.

    Args:
        box: the part of the frame that the view shows.
        height, width: size of the decoded frames, before rotation.
        scratch: memory to work in.
    """

    def __init__(self, box: CropBox, *, height: int, width: int, scratch: Scratch) -> None:
        # Resize in the decoded orientation, and rotate afterwards, when there are fewer pixels.
        part = as_decoded(box, height, width)
        self._turns, self._mirrored, self._scratch = box.turns, box.mirrored, scratch
        self._rows, self._columns = (
            _Axis(source, start, end, out)
            for source, start, end, out in zip((height, width), part.start, part.end, part.size, strict=True)
        )

    def __call__(self, planes: Sequence[UInt8]) -> list[UInt8]:
        """Planes R, G and B of a decoded frame → those of the view, uint8 [height, width] each, which may share memory
        with the frame's."""
        rows, columns = self._rows, self._columns
        if rows.cuts and columns.cuts:
            made = [plane[rows.origin : rows.stop, columns.origin : columns.stop] for plane in planes]
        else:
            made = list(self._resized(planes))
        return [np.rot90(plane[:, ::-1] if self._mirrored else plane, -self._turns) for plane in made]

    def _resized(self, planes: Sequence[UInt8]) -> UInt8:
        """uint8 [3, height, width], in the orientation of the decoded frame."""
        import torch

        rows, columns = self._rows, self._columns
        across = columns.stop - columns.origin
        # PyTorch's resize is fast on interleaved colours. Rows are filtered before they are interleaved: planes can be
        # filtered vertically as they are, and fewer rows are left to interleave.
        block = self._scratch.take("colours", (rows.made, across, 3))
        for channel, plane in enumerate(planes):
            lines = plane[rows.origin : rows.stop, columns.origin : columns.stop]
            block[..., channel] = self._resized_vertically(lines)[:, :across]
        pixels = torch.from_numpy(block)[None].permute(0, 3, 1, 2)
        made = _resize(pixels, (rows.made, columns.made), (1.0, columns.scale))
        out: UInt8 = made[0, :, rows.lead : rows.lead + rows.out, columns.lead : columns.lead + columns.out].numpy()
        if len(rows.border):
            out[:, rows.border] = _lines(planes, rows, columns)
        if len(columns.border):
            out[:, :, columns.border] = _lines([plane.T for plane in planes], columns, rows).transpose(0, 2, 1)
        return out

    def _resized_vertically(self, lines: UInt8) -> UInt8:
        """A plane, resized only vertically: uint8 [made, width, rounded up to a multiple of 4]."""
        import torch

        height, width = lines.shape
        if width % 4 or not lines.flags.c_contiguous:
            copy = self._scratch.take("lines", (height, -(-width // 4) * 4))
            copy[:, :width] = lines
            lines = copy
        # Viewed as an image of four channels, a fourth as wide.
        pixels = torch.from_numpy(lines).view(1, height, -1, 4).permute(0, 3, 1, 2)
        made = _resize(pixels, (self._rows.made, pixels.shape[3]), (self._rows.scale, 1.0))
        return np.asarray(made.permute(0, 2, 3, 1).numpy()).reshape(self._rows.made, -1)


def _resize(pixels: torch.Tensor, size: tuple[int, int], scales: tuple[float, float]) -> torch.Tensor:
    """Resize a uint8 tensor [1, channels, height, width], anchored at the upper left corner.

    Calls the operator behind torch.nn.functional.interpolate(antialias=True), which itself takes a size or scales, but
    not both.
    """
    import torch

    resize: Callable[..., torch.Tensor] = torch.ops.aten._upsample_bilinear2d_aa
    return resize(pixels, list(size), False, 1 / scales[0], 1 / scales[1])


class _Axis:
    """Resizing along one axis: the part of `source` pixels from `start` to `end` becomes `out` pixels.

    Attributes:
        scale: source pixels per output pixel.
        cuts: whether the part is only cut out, not resized.
        origin, stop: range of the source pixels that are passed to PyTorch.
        lead: output pixels that PyTorch makes before the wanted ones, because its input begins at a whole pixel.
        made: output pixels that PyTorch makes in all.
        border: int64 [n], output pixels whose filter covers source pixels outside of that range.
    """

    def __init__(self, source: int, start: float, end: float, out: int) -> None:
        self._source, self._start, self._end, self.out = source, start, end, out
        self.scale = (end - start) / out
        self.cuts = abs(self.scale - 1) * out < _NEAR and abs(start - round(start)) < _NEAR
        if self.cuts:
            self.scale, self.lead, self.made = 1.0, 0, out
            self.origin, self.stop = round(start), round(start) + out
            self.border: Int64 = np.empty(0, dtype=np.int64)
            return
        reach = max(self.scale, 1.0)
        # PyTorch's input begins at a whole source pixel, which some output pixel before the first wanted one begins at,
        # too.
        leads = np.arange(int(start / self.scale + 0.5) + 1)
        begins = start - leads * self.scale
        whole = np.abs(begins - np.rint(begins)) < _NEAR
        self.lead = int(np.argmax(whole)) if whole.any() else int(np.argmin(np.abs(begins - np.rint(begins))))
        self.origin = max(0, round(start - self.lead * self.scale))
        self.stop = min(source, math.ceil(end + reach))
        self.made = self.lead + out
        # PyTorch copies its input if the output has as many pixels.
        self.made += self.made == self.stop - self.origin
        centres = start + (np.arange(out) + 0.5) * self.scale
        sees_more = (centres - reach < self.origin - 0.5) | (centres + reach > self.stop + 0.5)
        self.border = np.flatnonzero(sees_more)

    @cached_property
    def taps(self) -> tuple[Int64, Float32]:
        """For each output pixel, the source pixels that its filter covers, int64 [out, taps], and their weights,
        float32 [out, taps]."""
        made = taps(self._source, self._start, self._end, self.out, repeats=True)
        return made.first[:, None] + np.arange(len(made.weights)), made.weights.T

    @cached_property
    def beyond(self) -> tuple[Int64, Float32]:
        """Source pixels that the filters of `border` cover, int64 [n], and their weights, float32 [border, n]."""
        every, shares = self.taps
        at, weights = every[self.border], shares[self.border]
        wanted, inverse = np.unique(at, return_inverse=True)
        mixed = np.zeros((len(at), len(wanted)), dtype=np.float32)
        mixed[np.arange(len(at))[:, None], inverse.reshape(at.shape)] = weights
        return wanted, mixed


def _lines(planes: Sequence[UInt8], across: _Axis, along: _Axis) -> UInt8:
    """Output lines at `across.border`, uint8 [3, lines, along.out], of planes whose first axis is `across`."""
    wanted, mixed = across.beyond
    band = np.stack([plane[wanted] for plane in planes]).astype(np.float32)
    at, weights = along.taps
    values: Float32 = np.einsum("clxt,xt->clx", (mixed @ band)[:, :, at], weights)
    return np.asarray(np.clip(np.rint(values), 0, 255), dtype=np.uint8)


def as_decoded(box: CropBox, height: int, width: int) -> CropBox:
    """The same box in the coordinates of the frame as decoded; the resized frame is rotated afterwards."""
    (top, left), (bottom, right), (high, wide) = box.start, box.end, box.size
    match box.turns:
        case 1:
            start, end, size = (height - right, top), (height - left, bottom), (wide, high)
        case 2:
            start, end, size = (height - bottom, width - right), (height - top, width - left), (high, wide)
        case 3:
            start, end, size = (left, width - bottom), (right, width - top), (wide, high)
        case _:
            start, end, size = box.start, box.end, box.size
    if box.mirrored:
        start, end = (start[0], width - end[1]), (end[0], width - start[1])
    return CropBox(0, start, end, size)
