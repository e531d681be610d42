"""Decoded frames → RGB at full size, for callers that resize later or not at all."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from streamvid.arrays import UInt8
from streamvid.color.picture import GRAY, Picture
from streamvid.color.render import PlaneFormat, PlaneRenderer
from streamvid.color.tags import Color
from streamvid.color.yuv_to_rgb import RgbConverter

if TYPE_CHECKING:
    from av.video.frame import VideoFrame


@cache
def _as_dali() -> RgbConverter:
    """One for all clips: it keeps filter graphs, for each thread its own."""
    return RgbConverter()


class FullSizeConverter:
    """Converts frames of one clip; any thread may call it.

    Args:
        color: matrix, range and siting of their samples.
    """

    def __init__(self, color: Color) -> None:
        self._color = color
        self._renderers: dict[PlaneFormat, PlaneRenderer] = {}

    def __call__(self, picture: Picture, out: UInt8) -> None:
        """Write a frame to `out`, uint8 [3, height, width] of any strides."""
        form = picture.form
        if self._color.as_dali and form.subsampling[0] != GRAY:  # which swscale takes for full range always
            planes = _as_dali()(_frame_of(picture), full_range=self._color.full_range)
            for target, plane in zip(out, planes, strict=True):
                target[:] = plane
            return
        if form not in self._renderers:
            size = (form.height, form.width)
            self._renderers[form] = PlaneRenderer(form, self._color, start=(0, 0), end=size, size=size)
        self._renderers[form](picture.planes, out)


def _frame_of(picture: Picture) -> VideoFrame:
    """FFmpeg's frame with a copy of the planes."""
    import av

    frame = av.VideoFrame(picture.form.width, picture.form.height, picture.pix_fmt)
    for target, samples in zip(frame.planes, picture.planes, strict=False):
        plane: Any = target
        lines = np.frombuffer(plane, dtype=np.uint8).reshape(plane.height, plane.line_size).view(samples.dtype)
        lines[:, : samples.shape[1]] = samples
    return frame
