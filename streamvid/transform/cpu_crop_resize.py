"""Where a view's picture lies in decoded frames, and making it on the CPU: cut out, resized and turned upright.

On the CPU that is done frame by frame where frames are decoded, so that frames of full size go nowhere: DALI's resize
takes some ten times as long there. On a GPU it is part of the graph (`streamvid.transform.dali_graph`). Both filter
alike: a triangle as wide as what a pixel of the picture covers, over the frame and what goes on behind the part that is
shown; at the frame's edge its outermost pixels are repeated. PyTorch's resize of uint8 does the same but for pixels at
the edge of what it is given, which are made here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Float32, Int64, UInt8
from streamvid.transform.spec import Transform, Views, by_view

_NEAR: Final = 1 / 256
"""Places this near to a whole pixel are on it: they were rounded to float32 on their way."""


@dataclass(frozen=True)
class CropBox:
    """One view's picture in the frames of a clip.

    Attributes:
        turns: quarter turns clockwise that stand a frame upright.
        start, end: y and x of the part that is shown, in pixels of the upright frame, from its upper left corner.
        size: height and width of the picture that it is resized to.
    """

    turns: int
    start: tuple[float, float]
    end: tuple[float, float]
    size: tuple[int, int]


def fits_crop_resize(transform: Transform | Views) -> bool:
    """Whether all pictures can be made here: if nothing is resized, or with the linear filter.

    PyTorch's cubic filter cuts values off between its two passes, and DALI's does not. Where two pixels are as near,
    the nearest one is the other's."""
    return all(
        one.interpolation == "bilinear" or not (one.resize or one.random_short_side or one.random_resized_crop)
        for one in by_view(transform).values()
    )


def crop_boxes(
    transform: Transform | Views, inputs: Mapping[str, npt.NDArray[np.generic]], sizes: Sequence[tuple[int, int]]
) -> list[list[CropBox]]:
    """Per clip, where the picture of each view lies.

    Args:
        transform: what is done to frames.
        inputs: what `streamvid.transform.params.inputs` made for these clips.
        sizes: height and width of each clip's decoded frames, before they stand upright.
    """
    placed = []
    for n, (height, width) in enumerate(sizes):
        turns = round(-float(inputs["angle"][n]) / 90) % 4
        upright = (width, height) if turns % 2 else (height, width)
        mine = []
        for view in by_view(transform):
            size, start, end = (_pair(inputs.get(f"{view}.{name}"), n) for name in ("size", "start", "end"))
            size = size or upright
            if end is None:
                # A crop alone leaves pixels as large as they are.
                end = (start[0] + size[0], start[1] + size[1]) if start else upright
            mine.append(CropBox(turns, start or (0, 0), end, (round(size[0]), round(size[1]))))
        placed.append(mine)
    return placed


def _pair(values: npt.NDArray[Any] | None, n: int) -> tuple[float, float] | None:
    return None if values is None else (float(values[n, 0]), float(values[n, 1]))


def resize_alone() -> None:
    """Have PyTorch use no other threads for what the calling thread asks for: each of many has work of its own, and
    helpers that wait for more of it take a tenth of a resize's time."""
    import torch

    others = torch.get_num_threads()
    torch.set_num_threads(1)
    # Threads that begin later would follow. What another one says counts for those, and not here any more.
    usual = threading.Thread(target=torch.set_num_threads, args=(others,))
    usual.start()
    usual.join()


class Scratch(threading.local):
    """Memory of each thread that is written again and again: the system takes longer to hand out fresh memory than a
    resize lasts."""

    def __init__(self) -> None:
        self._memory: dict[str, UInt8] = {}

    def take(self, name: str, shape: tuple[int, ...]) -> UInt8:
        """An array of that shape, uint8, with anything in it; good until the thread takes another of that name."""
        size = math.prod(shape)
        memory = self._memory.get(name)
        if memory is None or len(memory) < size:
            memory = self._memory[name] = np.zeros(size, dtype=np.uint8)
        return memory[:size].reshape(shape)


class CropResizer:
    """Makes one view's pictures of frames of one size, in any thread.

    Args:
        placement: where the picture lies.
        height, width: of the decoded frames, which may lie on their side.
        scratch: memory to work in.
    """

    def __init__(self, placement: CropBox, *, height: int, width: int, scratch: Scratch) -> None:
        # What is made of a frame as it lies is turned afterwards, when there is less to turn.
        lying = _as_decoded(placement, height, width)
        self._turns, self._scratch = placement.turns, scratch
        self._rows, self._columns = (
            _Axis(source, start, end, out)
            for source, start, end, out in zip((height, width), lying.start, lying.end, lying.size, strict=True)
        )

    def __call__(self, planes: Sequence[UInt8]) -> list[UInt8]:
        """The picture's red, green and blue, uint8 [height, width] each, of those of a frame as decoded; they may be
        views of these."""
        rows, columns = self._rows, self._columns
        if rows.cuts and columns.cuts:
            made = [plane[rows.origin : rows.stop, columns.origin : columns.stop] for plane in planes]
        else:
            made = list(self._resized(planes))
        return [np.rot90(plane, -self._turns) for plane in made]

    def _resized(self, planes: Sequence[UInt8]) -> UInt8:
        """uint8 [3, height, width], as the frame lies."""
        import torch

        rows, columns = self._rows, self._columns
        across = columns.stop - columns.origin
        # PyTorch is fast where colours lie together. Lines of pixels can be mixed as they are: there is less to put
        # together afterwards.
        block = self._scratch.take("colours", (rows.made, across, 3))
        for channel, plane in enumerate(planes):
            lines = plane[rows.origin : rows.stop, columns.origin : columns.stop]
            block[..., channel] = self._fewer_lines(lines)[:, :across]
        pixels = torch.from_numpy(block)[None].permute(0, 3, 1, 2)
        made = _resize(pixels, (rows.made, columns.made), (1.0, columns.scale))
        out: UInt8 = made[0, :, rows.lead : rows.lead + rows.out, columns.lead : columns.lead + columns.out].numpy()
        if len(rows.border):
            out[:, rows.border] = _lines(planes, rows, columns)
        if len(columns.border):
            out[:, :, columns.border] = _lines([plane.T for plane in planes], columns, rows).transpose(0, 2, 1)
        return out

    def _fewer_lines(self, lines: UInt8) -> UInt8:
        """Resized from top to bottom alone: uint8 [made, width, rounded up to a multiple of 4]."""
        import torch

        height, width = lines.shape
        if width % 4 or not lines.flags.c_contiguous:
            copy = self._scratch.take("lines", (height, -(-width // 4) * 4))
            copy[:, :width] = lines
            lines = copy
        # As four colours of a picture a fourth as wide.
        pixels = torch.from_numpy(lines).view(1, height, -1, 4).permute(0, 3, 1, 2)
        made = _resize(pixels, (self._rows.made, pixels.shape[3]), (self._rows.scale, 1.0))
        return np.asarray(made.permute(0, 2, 3, 1).numpy()).reshape(self._rows.made, -1)


def _resize(pixels: Any, size: tuple[int, int], scales: tuple[float, float]) -> Any:
    """uint8 tensor [1, channels, height, width] → the same of another size, from the upper left corner on.

    What torch.nn.functional.interpolate(antialias=True) calls, which takes a size or scales, not both.
    """
    import torch

    return torch.ops.aten._upsample_bilinear2d_aa(pixels, list(size), False, 1 / scales[0], 1 / scales[1])


class CropResizedFrames:
    """The pictures of a clip's views.

    Args:
        placements: of each view.
        height, width: of the decoded frames.
        scratch: memory to work in.
    """

    def __init__(self, crop_boxes: Sequence[CropBox], *, height: int, width: int, scratch: Scratch) -> None:
        self._placements = crop_boxes
        # Views that lie alike are made once.
        self._placers = {one: CropResizer(one, height=height, width=width, scratch=scratch) for one in crop_boxes}

    def of(self, planes: Sequence[UInt8]) -> list[list[UInt8]]:
        """Of a decoded frame's red, green and blue, uint8 [height, width] each, those of each view."""
        made = {one: place(planes) for one, place in self._placers.items()}
        return [made[one] for one in self._placements]


class CropResizeSink:
    """A canvas (`streamvid.decode.base.FrameSink`) of the pictures of a clip's views.

    Args:
        pictures: makes them.
        sizes: height and width of each view's.
        count: how many frames there are.

    Attributes:
        frames: uint8 [frames, height, width, 3] of each view.
    """

    def __init__(self, pictures: CropResizedFrames, sizes: Sequence[tuple[int, int]], count: int) -> None:
        self._pictures = pictures
        self.frames = [np.empty((count, *size, 3), dtype=np.uint8) for size in sizes]

    def write(self, row: int, planes: Sequence[UInt8]) -> None:
        for frames, picture in zip(self.frames, self._pictures.of(planes), strict=True):
            for channel, plane in enumerate(picture):
                frames[row, ..., channel] = plane


class _Axis:
    """One direction of resizing: `out` pixels of the part of `source` ones from `start` to `end`.

    Attributes:
        scale: pixels of the frame to one of the picture.
        cuts: nothing is to be resized.
        origin, stop: the pixels of the frame that PyTorch gets.
        lead: how many pixels it makes before those that are wanted: its first one begins at a whole pixel.
        made: how many it makes in all.
        border: int64 [n], pixels of the picture that see more of the frame than PyTorch does.
    """

    def __init__(self, source: int, start: float, end: float, out: int) -> None:
        self.source, self.start, self.out = source, start, out
        self.scale = (end - start) / out
        self.cuts = abs(self.scale - 1) * out < _NEAR and abs(start - round(start)) < _NEAR
        if self.cuts:
            self.scale, self.lead, self.made = 1.0, 0, out
            self.origin, self.stop = round(start), round(start) + out
            self.border: Int64 = np.empty(0, dtype=np.int64)
            return
        reach = max(self.scale, 1.0)
        # A part of a picture that is resized as a whole begins so many pixels of the picture from the frame's edge.
        leads = np.arange(int(start / self.scale + 0.5) + 1)
        begins = start - leads * self.scale
        whole = np.abs(begins - np.rint(begins)) < _NEAR
        self.lead = int(np.argmax(whole)) if whole.any() else int(np.argmin(np.abs(begins - np.rint(begins))))
        self.origin = max(0, round(start - self.lead * self.scale))
        self.stop = min(source, math.ceil(end + reach))
        self.made = self.lead + out
        # PyTorch resizes nothing where there are as many pixels before as after.
        self.made += self.made == self.stop - self.origin
        centres = start + (np.arange(out) + 0.5) * self.scale
        sees_more = (centres - reach < self.origin - 0.5) | (centres + reach > self.stop + 0.5)
        self.border = np.flatnonzero(sees_more)

    @cached_property
    def taps(self) -> tuple[Int64, Float32]:
        """Pixels of the frame that each of the picture is made of, int64 [out, taps], and their weights, float32."""
        reach = max(self.scale, 1.0)
        centres = self.start + (np.arange(self.out) + 0.5) * self.scale
        at = np.floor(centres - reach)[:, None] + np.arange(math.ceil(2 * reach) + 1)
        weights = np.maximum(0, 1 - np.abs(at + 0.5 - centres[:, None]) / reach)
        weights /= weights.sum(axis=1, keepdims=True)
        return np.clip(at, 0, self.source - 1).astype(np.int64), weights.astype(np.float32)

    @cached_property
    def beyond(self) -> tuple[Int64, Float32]:
        """Pixels of the frame that those of `border` are made of, int64 [n], and their weights, float32 [border, n]."""
        every, shares = self.taps
        at, weights = every[self.border], shares[self.border]
        wanted, inverse = np.unique(at, return_inverse=True)
        mixed = np.zeros((len(at), len(wanted)), dtype=np.float32)
        # The frame's last pixel stands for those behind it: one place has several weights.
        np.add.at(mixed, (np.arange(len(at))[:, None], inverse.reshape(at.shape)), weights)
        return wanted, mixed


def _lines(planes: Sequence[UInt8], across: _Axis, along: _Axis) -> UInt8:
    """The picture's lines at `across.border`, uint8 [3, lines, along.out], of planes whose first axis is `across`."""
    wanted, mixed = across.beyond
    band = np.stack([plane[wanted] for plane in planes]).astype(np.float32)
    at, weights = along.taps
    values: Float32 = np.einsum("clxt,xt->clx", (mixed @ band)[:, :, at], weights)
    return np.asarray(np.clip(np.rint(values), 0, 255), dtype=np.uint8)


def _as_decoded(placement: CropBox, height: int, width: int) -> CropBox:
    """The same part in the coordinates of the frame as it was decoded; its picture is turned afterwards."""
    (top, left), (bottom, right), (high, wide) = placement.start, placement.end, placement.size
    match placement.turns:
        case 1:
            start, end, size = (height - right, top), (height - left, bottom), (wide, high)
        case 2:
            start, end, size = (height - bottom, width - right), (height - top, width - left), (high, wide)
        case 3:
            start, end, size = (left, width - bottom), (right, width - top), (wide, high)
        case _:
            return placement
    return CropBox(0, start, end, size)
