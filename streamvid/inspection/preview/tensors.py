"""A model's tensor → frames to look at: layout, dtype and normalisation are undone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamvid.arrays import Float64, UInt8
from streamvid.errors import InputError
from streamvid.transform.spec import LAYOUTS, Layout, Transform

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Scale:
    """How a tensor's values become 0 to 1: times `std`, plus `mean`.

    Attributes:
        mean, std: of R, G, B.
        words: that in words.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    words: str

    def rgb(self, values: Float64 | UInt8) -> UInt8:
        """Values [height, width, 3] as uint8 of that shape: uint8 as they are; NaN is black."""
        if values.dtype == np.uint8:
            return np.asarray(values, dtype=np.uint8)
        shown = np.nan_to_num(values * self.std + self.mean, nan=0.0, posinf=1.0, neginf=0.0)
        return np.asarray(np.clip(np.rint(shown * 255), 0, 255), dtype=np.uint8)


def scale_of(transform: Transform) -> Scale:
    """The scale that undoes what a transform does to values."""
    if transform.dtype == "uint8":
        return Scale((0.0,) * 3, (1 / 255,) * 3, "pixels as they are")
    return Scale(*transform.mean_std, "normalisation undone by the transform's mean and std")


def guess_scale(video: torch.Tensor) -> Scale:
    """A scale for values of which nothing is known, by their range."""
    import torch

    finite = video.detach()
    if video.is_floating_point():
        finite = finite[torch.isfinite(finite)]
    least, most = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    if not video.is_floating_point() and least >= 0 and most <= 255:
        return Scale((0.0,) * 3, (1 / 255,) * 3, "pixels as they are")
    if video.is_floating_point() and least >= 0 and most <= 1:
        return Scale((0.0,) * 3, (1.0,) * 3, "values from 0 to 1 as they are")
    width = most - least or 1.0
    words = f"values from {least:.4g} to {most:.4g} as black to white; transform= of the loader gives their colours"
    return Scale((-least / width,) * 3, (1 / width,) * 3, words)


def guess_layout(shape: Sequence[int], frames: int | None) -> Layout:
    """The layout of a clip's tensor by its four dimensions. Where that may be TCHW or CTHW, as of three frames, it is
    CTHW, a Transform's default.

    Raises:
        InputError: it fits no layout of 3 channels and that many frames, if they are known.
    """
    for layout in reversed(LAYOUTS):
        if len(shape) == 4 and shape[layout.index("C")] == 3 and frames in (None, shape[layout.index("T")]):
            return layout
    count = "" if frames is None else f" for {frames} frames"
    raise InputError(f"a clip of the shape {list(shape)} is in none of the layouts CTHW, TCHW and THWC{count}")


def frame_of(clip: torch.Tensor, layout: Layout, position: int) -> Float64 | UInt8:
    """A frame of a clip, [height, width, 3], uint8 as it is and all else float64.

    Args:
        clip: of four dimensions in that layout; on any device, of any dtype.
    """
    import torch

    frame = clip.detach().select(layout.index("T"), position).cpu()
    axes = layout.replace("T", "")
    frame = frame.permute([axes.index(axis) for axis in "HWC"])
    return np.asarray((frame if frame.dtype == torch.uint8 else frame.to(torch.float64)).numpy())
