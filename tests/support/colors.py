"""Pixels as the standards define them: a reference in float64 that shares no code with the product.

ITU-R BT.601-7, BT.709-6 and BT.2020-2, 10-bit and 12-bit forms included; ITU-T H.273 for full range.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

COEFFICIENTS = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}
"""K_R and K_B."""
Box = tuple[tuple[float, float], tuple[float, float], tuple[int, int]]
"""y and x of the upper left and of the lower right corner, in luma samples; height and width of what it becomes."""
Levels = npt.NDArray[np.float64]


def resampled(plane: Levels, start: float, end: float, out: int, to_sample: float, shift: float) -> Levels:
    """Axis 0 of a plane: output pixel n is the mean of samples, by a triangle about its centre, as wide as it; of what
    is beyond the plane nothing, as Pillow and torchvision have it.

    Args:
        start, end: in luma samples.
        to_sample: luma samples per sample of the plane.
        shift: how far the plane's samples lie before the centres of theirs, in samples of the plane.
    """
    scale = (end - start) / out / to_sample
    reach = max(1.0, scale)
    rows = []
    for n in range(out):
        centre = (start + (n + 0.5) * (end - start) / out) / to_sample + shift
        near = range(math.floor(centre - reach) - 1, math.ceil(centre + reach) + 2)
        weights = {i: max(0.0, 1 - abs(i + 0.5 - centre) / reach) for i in near if 0 <= i < len(plane)}
        total = sum(weights.values())
        rows.append(sum(w / total * plane[i] for i, w in weights.items() if w))
    return np.array(rows)


def reference(
    planes: Any,
    matrix: str,
    *,
    full_range: bool,
    bits: int,
    siting: tuple[int, int],
    subsampling: tuple[int, int],
    box: Box,
) -> Levels:
    """float64 [3, height, width], R, G and B from 0 to 255 before rounding.

    Args:
        planes: Y, Cb and Cr.
        siting: of chroma, as of `streamvid.color.tags.Color`.
        subsampling: luma samples per chroma sample, down and across.
    """
    (y0, x0), (y1, x1), (height, width) = box
    made = []
    for n, plane in enumerate(planes):
        down, across = subsampling if n else (1, 1)
        right, below = siting
        tall = resampled(plane.astype(float), y0, y1, height, down, below * (0.5 - 0.5 / down))
        made.append(resampled(tall.T, x0, x1, width, across, right * (0.5 - 0.5 / across)).T)
    kr, kb = COEFFICIENTS[matrix]
    one = 2 ** (bits - 8)
    if full_range:
        y, cb, cr = made[0] / (2**bits - 1), *((c - 128 * one) / (2**bits - 1) for c in made[1:])
    else:
        y, cb, cr = (made[0] - 16 * one) / (219 * one), *((c - 128 * one) / (224 * one) for c in made[1:])
    red, blue = y + 2 * (1 - kr) * cr, y + 2 * (1 - kb) * cb
    green = (y - kr * red - kb * blue) / (1 - kr - kb)
    return np.asarray(np.clip(255 * np.stack([red, green, blue]), 0, 255))
