"""Which of a clip's random numbers decides which option of the transform."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Draw(IntEnum):
    """Index of the random number that decides each option, among those of a clip.

    Each has a fixed index, so that switching an option on or off does not change the random choices of the others.
    """

    CROP_X = 0
    CROP_Y = 1
    FLIP = 2
    VERTICAL_FLIP = 3
    SCALE = 4
    AREA = 5
    ASPECT = 6
    ROTATE = 7
    BRIGHTNESS = 8
    CONTRAST = 9
    SATURATION = 10
    HUE = 11
    GRAYSCALE = 12
    BLUR = 13
    BLUR_SIGMA = 14
    ERASE = 15
    ERASE_AREA = 16
    ERASE_ASPECT = 17
    ERASE_X = 18
    ERASE_Y = 19
    TRANSLATE_X = 20
    TRANSLATE_Y = 21
    ZOOM = 22
    SHEAR = 23


DRAWS: Final = 24
"""Random numbers per clip and view."""
