"""Padding: what a sample shows at frame positions behind the clip's end. The names are those of DALI's video reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import numpy as np

from streamvid.arrays import Int64

Pad = Literal["none", "constant", "edge", "reflect_1001", "reflect_101"]
"""How a clip that is too short is padded: `edge` repeats its last frame, `constant` shows black frames, `reflect_101`
runs backwards from the frame before the last, `reflect_1001` from the last; `none` leaves such clips out."""


def _edge(index: Int64, count: int) -> Int64:
    return np.minimum(index, count - 1)


def _reflect_101(index: Int64, count: int) -> Int64:
    if count < 2:
        return _edge(index, count)
    index = index % (2 * count - 2)
    return np.where(index >= count, 2 * count - 2 - index, index)


def _reflect_1001(index: Int64, count: int) -> Int64:
    if count < 1:
        return _edge(index, count)
    index = index % (2 * count)
    return np.where(index >= count, 2 * count - 1 - index, index)


_FRAME_AT: Final[dict[Pad, Callable[[Int64, int], Int64]]] = {
    "none": _edge,
    "constant": _edge,
    "edge": _edge,
    "reflect_1001": _reflect_1001,
    "reflect_101": _reflect_101,
}
PADS: Final[tuple[Pad, ...]] = tuple(_FRAME_AT)


def reflect_index(index: Int64, count: int, pad: Pad) -> Int64:
    """Frame numbers from `count` on, brought back into 0 … count - 1 by the padding mode; others stay.

    Args:
        index: int64 [positions], from 0.
        count: frames of the clip; with 0, all indexes become -1.
        pad: "constant" and "none" give what "edge" gives; the caller puts black frames in their place.
    """
    return _FRAME_AT[pad](index, count)


def has_black_frames(pad: Pad) -> bool:
    """Whether samples may hold black frames: with "none", too, where a batch is padded to its longest sample."""
    return pad in ("constant", "none")
