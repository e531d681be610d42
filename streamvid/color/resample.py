"""Resampling along one axis with a triangle filter, as in antialiased bilinear resizing of torchvision and Pillow: it
is as wide as the source samples that an output pixel covers, at least two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from streamvid.arrays import Float32, Int32


@dataclass(frozen=True, eq=False)
class Taps:
    """Output sample n is the sum over t of weights[t, n] * source[first[n] + t].

    Attributes:
        first: int32 [out]; first + taps is at most the source's length.
        weights: float32 [taps, out]; those of an output sample add up to 1.
    """

    first: Int32
    weights: Float32


@lru_cache(maxsize=256)
def taps(
    source: int, start: float, end: float, out: int, *, subsampling: int = 1, siting: int = 0, repeats: bool = False
) -> Taps:
    """The taps for resampling the part of an axis from `start` to `end` to `out` samples.

    Args:
        source: number of samples of the plane along the axis.
        start, end: in luma samples, from the edge of the first luma sample.
        out: number of output samples.
        subsampling: luma samples per sample of this plane.
        siting: position of this plane's sample among them, as in `streamvid.color.tags.Color`.
        repeats: whether the outermost sample is repeated beyond the frame's edge, as in DALI; if not, the filter is cut
            off there, as in torchvision and Pillow.
    """
    shift = siting * (0.5 - 0.5 / subsampling)
    start, end = start / subsampling + shift, end / subsampling + shift
    scale = (end - start) / out
    reach = max(scale, 1.0)
    centres = start + (np.arange(out) + 0.5) * scale
    at = np.floor(centres - reach)[:, None] + np.arange(math.ceil(2 * reach) + 1)
    shares = np.maximum(0, 1 - np.abs(at + 0.5 - centres[:, None]) / reach)
    shares *= repeats | ((at >= 0) & (at < source))
    shares /= shares.sum(axis=1, keepdims=True)
    inside = np.clip(at, 0, source - 1).astype(np.int64)
    # Only samples with a weight, since others may lie in another row's memory.
    low = np.where(shares > 0, inside, source).min(axis=1)
    count = int((np.where(shares > 0, inside, 0).max(axis=1) - low).max()) + 1
    first = np.minimum(low, source - count)
    place = np.clip(inside - first[:, None], 0, count - 1) * out + np.arange(out)[:, None]
    weights = np.bincount(place.ravel(), shares.ravel(), count * out).astype(np.float32)
    return Taps(first.astype(np.int32), weights.reshape(count, out))
