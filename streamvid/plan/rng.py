"""Random numbers by seed, pass and sample: the same whoever draws them, on any rank, in any order."""

from __future__ import annotations

from typing import Final

import numpy as np

from streamvid.arrays import Float64

ORDER, SAMPLE, COPIES, SHARDS, MIX, AUGMENT, BUCKET = range(7)
"""What random numbers are for; each purpose has a stream of its own."""
_MASK64: Final = (1 << 64) - 1


def generator(seed: int, number: int, purpose: int, *, part: int = 0, sample_id: int = 0) -> np.random.Generator:
    """A counter-based generator (Salmon et al., SC 2011): its own stream for every combination of arguments.

    Args:
        seed: any integer.
        number: of the pass, or of a block of a mixture.
        purpose: one of the constants above.
        part: which of the mixed datasets.
        sample_id: for draws of a single sample.
    """
    # As uint64 from the start: NumPy would make float64 of a list of small and large integers.
    key = np.array([seed & _MASK64, number & _MASK64], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, part, sample_id, purpose]))


def draws(seed: int, number: int, sample_id: int, count: int, *, purpose: int = SAMPLE) -> Float64:
    """float64 [count], uniform in [0, 1): the random numbers of a sample in a pass, whoever decodes it, and when."""
    if not count:
        return np.empty(0)
    return generator(seed, number, purpose, sample_id=sample_id).random(count)
