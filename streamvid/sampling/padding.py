"""Padding: what a sample shows at frame positions behind the clip's end. The names are those of DALI's video reader."""

from __future__ import annotations

from typing import Final, Literal, get_args

import numpy as np

from streamvid.arrays import Int64

Pad = Literal["none", "constant", "edge", "reflect_1001", "reflect_101"]
"""How a clip that is too short is padded: `edge` repeats its last frame, `constant` shows black frames, `reflect_101`
runs backwards from the frame before the last, `reflect_1001` from the last; `none` leaves such clips out."""


PADS: Final[tuple[Pad, ...]] = get_args(Pad)


def reflect_index(index: Int64, count: int, pad: Pad) -> Int64:
    """Frame numbers from `count` on, brought back into 0 … count - 1 by the padding mode; others stay.

    Args:
        index: int64 [positions], from 0.
        count: frames of the clip; with 0, all indexes become -1.
        pad: "constant" and "none" give what "edge" gives; the caller puts black frames in their place.
    """
    if pad == "reflect_1001" and count >= 1:
        index = index % (2 * count)
        return np.where(index >= count, 2 * count - 1 - index, index)
    if pad == "reflect_101" and count >= 2:
        index = index % (2 * count - 2)
        return np.where(index >= count, 2 * count - 2 - index, index)
    return np.minimum(index, count - 1)


def has_black_frames(pad: Pad) -> bool:
    """Whether samples may hold black frames: with "none", too, where a batch is padded to its longest sample."""
    return pad in ("constant", "none")
