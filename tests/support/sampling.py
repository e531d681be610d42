"""Frame samplers with another padding than they were made with."""

from __future__ import annotations

import dataclasses
from typing import Any

from streamvid.arrays import Float64
from streamvid.sampling import base
from streamvid.sampling.base import ClipTimes, FrameSampler, Selection
from streamvid.sampling.padding import Pad


def padded(sampling: FrameSampler, pad: Pad) -> FrameSampler:
    """The sampler, with that padding."""
    changed: Any = dataclasses.replace(sampling, pad=pad)  # type: ignore[type-var]
    return changed  # type: ignore[no-any-return]


def select(sampling: FrameSampler, clip: ClipTimes, random: Float64, pad: Pad, *, sample: int = 0) -> Selection:
    """The frames of one sample, padded so."""
    return base.select(padded(sampling, pad), clip, random, number=sample)
