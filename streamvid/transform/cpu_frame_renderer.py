"""Renders decoded frames of a clip on the CPU: crop, resize, convert and normalise for all its views."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Int64, UInt8
from streamvid.color.full_size import FullSizeConverter
from streamvid.color.picture import Picture
from streamvid.color.render import PlaneFormat, PlaneRenderer, Targets, normalise
from streamvid.decode.base import FrameSink
from streamvid.transform.crop_boxes import CropBox, Scratch, as_decoded
from streamvid.transform.spec import Transform
from streamvid.video.packet_selection import EncodedSlice

Pixels = npt.NDArray[Any]


def as_written(out: Pixels, *, turns: int, mirrored: bool) -> Pixels:
    """A view of an upright picture [3, height, width] with a `CropBox`'s rotation and mirroring undone, so that frames
    are written as they are decoded."""
    lying = np.rot90(out, turns, axes=(1, 2)) if turns else out
    return lying[:, :, ::-1] if mirrored else lying


class FrameRenderer:
    """Renders frames of one clip for all its views. Thread-safe.

    Planes are resized and then converted to RGB (`streamvid.color.render`); with a transform that converts first, the
    planes of RGB are resized.

    Args:
        transforms, boxes: one per view. Only cropping, resizing and normalising are done here.
        encoded: the clip; its frames may be rotated.
        scratch: scratch memory.
    """

    def __init__(
        self, transforms: Sequence[Transform], boxes: Sequence[CropBox], encoded: EncodedSlice, scratch: Scratch
    ) -> None:
        self._views = list(zip(transforms, boxes, strict=True))
        self._color = encoded.color.chosen(transforms[0].color)
        self._height, self._width, self._scratch = encoded.height, encoded.width, scratch
        self._renderers: dict[PlaneFormat, list[PlaneRenderer]] = {}
        self._convert: FullSizeConverter | None = None
        if transforms[0].converts_first:
            self._convert = FullSizeConverter(self._color)
            self._rgb = PlaneFormat(encoded.height, encoded.width, (1, 1), 8, is_rgb=True)
            self._cuts = [as_decoded(box, encoded.height, encoded.width).cut for box in boxes]

    def __call__(self, picture: Picture, outs: Sequence[Pixels]) -> None:
        """Render a frame.

        Args:
            picture: the decoded frame.
            outs: per view [3, height, width] in the transform's dtype (bfloat16 as uint16), of any strides; written.
        """
        lying = [
            as_written(out, turns=box.turns, mirrored=box.mirrored)
            for out, (_, box) in zip(outs, self._views, strict=True)
        ]
        if self._convert is None:
            for renderer, out in zip(self._of(picture.form), lying, strict=True):
                renderer(picture.planes, out)
            return
        rgb: UInt8 = self._scratch.take((3, self._height, self._width))
        self._convert(picture, rgb)
        views = zip(self._of(self._rgb), self._views, self._cuts, lying, strict=True)
        for renderer, (transform, _), cut, out in views:
            if cut is None:
                renderer((rgb[1], rgb[2], rgb[0]), out)
            else:  # which needs no filter
                mean, std = transform.mean_std
                normalise(list(rgb[:, cut[0], cut[1]]), out, dtype=transform.dtype, mean=mean, std=std)

    def targets(self, form: PlaneFormat, out: Pixels, offsets: Int64) -> Targets | None:
        """The targets with which C code renders frames of a plane format; None if it cannot.

        Args:
            form: the planes' format.
            out: as of a call, for the only view.
            offsets: as in `PlaneRenderer.targets`.
        """
        if self._convert is not None or len(self._views) > 1:
            return None
        ((_, box),), (renderer,) = self._views, self._of(form)
        return renderer.targets(as_written(out, turns=box.turns, mirrored=box.mirrored), offsets)

    def _of(self, form: PlaneFormat) -> list[PlaneRenderer]:
        if form not in self._renderers:
            self._renderers[form] = [self._renderer(form, *view) for view in self._views]
        return self._renderers[form]

    def _renderer(self, form: PlaneFormat, transform: Transform, box: CropBox) -> PlaneRenderer:
        part = as_decoded(box, self._height, self._width)
        mean, std = transform.mean_std
        return _plane_renderer(
            form,
            self._color,
            start=part.start,
            end=part.end,
            size=part.size,
            dtype=transform.dtype,
            mean=tuple(255 * value for value in mean),
            std=tuple(255 * value for value in std),
        )


_plane_renderer = lru_cache(maxsize=256)(PlaneRenderer)
"""Shared by clips with equal arguments: making one takes longer than rendering a frame."""


class RenderedFrames(FrameSink):
    """Keeps the cropped and resized frames of all views of a clip, for DALI (`streamvid.decode.base.FrameSink`).

    Args:
        transforms, boxes, encoded, scratch: as in `FrameRenderer`.

    Attributes:
        frames: of each view, uint8 [count, height, width, 3].
    """

    def __init__(
        self, transforms: Sequence[Transform], boxes: Sequence[CropBox], encoded: EncodedSlice, scratch: Scratch
    ) -> None:
        levels = [Transform(dtype="uint8", color=view.color, resize_in=view.resize_in) for view in transforms]
        self._render = FrameRenderer(levels, boxes, encoded, scratch)
        shapes = [(len(encoded.frames), *box.size, 3) for box in boxes]
        self.frames: list[UInt8] = [np.empty(shape, dtype=np.uint8) for shape in shapes]

    def write(self, row: int, picture: Picture) -> None:
        """See `streamvid.decode.base.FrameSink`."""
        self._render(picture, [frames[row].transpose(2, 0, 1) for frames in self.frames])
