"""Sample ids: one int64 says which clip, which of the clip's samples, and which repeat of that in a pass.

A plan shuffles and divides samples as int64 arrays of ids. If every clip gives one sample, ids are row numbers. Bits 0
to 31 are the row, 32 to 51 the sample's number, 52 to 62 the repeat.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from streamvid.arrays import Int64

_ROW_BITS: Final = 32
_SAMPLE_BITS: Final = 20
MAX_SAMPLES: Final = 1 << _SAMPLE_BITS
"""Samples that one clip can give."""
MAX_REPEATS: Final = 1 << (63 - _ROW_BITS - _SAMPLE_BITS)
"""Times that one sample can come in a pass."""


def row_of(sample_id: int) -> int:
    """The clip's row number."""
    return sample_id & ((1 << _ROW_BITS) - 1)


def sample_of(sample_id: int) -> int:
    """Which sample of the clip, from 0."""
    return sample_id >> _ROW_BITS & (MAX_SAMPLES - 1)


def rows_of(sample_ids: Int64) -> Int64:
    """int64 [samples]: the clips' row numbers."""
    return sample_ids & ((1 << _ROW_BITS) - 1)


def expand(rows: Int64, samples: Int64) -> Int64:
    """The ids of clips that give several samples each.

    Args:
        rows: int64 [clips].
        samples: int64 [clips], how many samples each gives.

    Returns:
        int64 [sum of samples], clip by clip.
    """
    if np.all(samples == 1):
        return rows
    starts = np.cumsum(samples) - samples
    number = np.arange(int(samples.sum()), dtype=np.int64) - np.repeat(starts, samples)
    return np.repeat(rows, samples) | number << _ROW_BITS


def repeat(sample_ids: Int64, times: Int64) -> Int64:
    """Repeat each sample `times` times, int64 [samples]; 0 leaves it out. The repeats are numbered.

    Raises:
        ValueError: a sample would come more often than MAX_REPEATS.
    """
    if np.all(times == 1):
        return sample_ids
    if np.max(times, initial=0) > MAX_REPEATS:
        raise ValueError(f"a sample would come {np.max(times)} times in a pass; the limit is {MAX_REPEATS}")
    starts = np.cumsum(times) - times
    number = np.arange(int(times.sum()), dtype=np.int64) - np.repeat(starts, times)
    return np.repeat(sample_ids, times) | number << (_ROW_BITS + _SAMPLE_BITS)
