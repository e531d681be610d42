"""The part of a clip's frames that each view shows, and memory to make pictures in."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Int64, UInt8
from streamvid.transform.params import Params, followers
from streamvid.transform.spec import Transform, Views, by_view

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

    @property
    def cut(self) -> tuple[slice, slice] | None:
        """The rows and columns of a part that is not resized and begins at a whole pixel; None for others."""
        axes = list(zip(self.start, self.end, self.size, strict=True))
        if any(abs(end - start - size) >= _NEAR or abs(start - round(start)) >= _NEAR for start, end, size in axes):
            return None
        rows, columns = (slice(round(start), round(start) + size) for start, _, size in axes)
        return rows, columns


def fits_crop_resize(transform: Transform | Views) -> bool:
    """Whether all views can be cropped and resized where frames are decoded: not resized, or with the linear filter."""
    following = followers(transform)
    return all(
        spec.interpolation == "bilinear" or not (spec.resizes or view in following)
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


class Scratch(threading.local):
    """A buffer that each thread reuses: fresh memory would cost as much time in page faults as the work in it."""

    def __init__(self) -> None:
        self._memory: UInt8 = np.empty(0, dtype=np.uint8)

    def take(self, shape: tuple[int, ...]) -> UInt8:
        """A uint8 array of the shape, with arbitrary contents, valid until the thread takes another."""
        size = math.prod(shape)
        if len(self._memory) < size:
            self._memory = np.zeros(size, dtype=np.uint8)
        return self._memory[:size].reshape(shape)


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
