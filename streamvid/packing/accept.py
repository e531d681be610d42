"""Which frames of a clip must decode, as a loader decodes them, for the clip to be accepted."""

from __future__ import annotations

from typing import Final

import numpy as np

from streamvid.decode.damage import Damage, find_damage
from streamvid.packing.options import DecodeLevel
from streamvid.video.stored_clip import StoredClip

_WINDOW: Final = 64
"""Frames at the start of a clip, and in its middle, that must decode by default: as most models take at most."""


def find_clip_damage(clip: StoredClip, level: DecodeLevel) -> Damage | None:
    """Decode the frames of a clip that an option of packing asks for.

    Returns:
        all the damage of the clip if one of them is damaged; else None.
    """
    count = len(clip.index.visible)
    if level == "none":
        return None
    if level == "all":
        frames = np.arange(count)
    else:
        middle = (count - _WINDOW) // 2
        # One more where there are two ways to halve the rest.
        centre = np.arange(max(0, middle), min(count, middle + _WINDOW + 1))
        frames = np.union1d(np.arange(min(count, _WINDOW)), centre)
    found = find_damage(clip.index, frames, clip.slice)
    # All that is damaged is listed, whatever was looked for.
    return found and find_damage(clip.index, np.arange(count), clip.slice)
