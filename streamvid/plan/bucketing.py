"""Bucketing: batches whose clips share a decoder configuration, as length-grouped samplers do for text and speech.

The shuffled order is cut into windows of some steps, and the samples of each window are sorted by bucket key. So a
sample stays among the steps of its window, and shuffling suffers only within a window.
"""

from __future__ import annotations

import numpy as np

from streamvid.arrays import Int64
from streamvid.plan.bucket_key import BucketKeys


def bucket_order(
    keys: BucketKeys, *, ranks: int, batch: int, window: int, full: int, random: np.random.Generator | None
) -> Int64:
    """Reorder samples so that each batch holds few different bucket keys.

    The samples of a window are sorted by key (a stable sort) and cut into steps, and each step into batches. Then the
    steps of a window are shuffled, and the batches of a step among the ranks. At any step all ranks get clips of about
    the same size, so that they take about the same time.

    Args:
        keys: [samples], the bucket key of each.
        ranks, batch: a step takes `batch` samples for each rank.
        window: steps whose samples are sorted together. The last window has up to twice as many, so that none is small.
        full: number of steps that the samples fill. The samples of an incomplete step stay last whatever their keys,
            so that dropping it drops samples at random.
        random: shuffles steps and batches; None leaves them sorted.

    Returns:
        int64 [samples]: the new order, as indices into the old one.
    """
    share = ranks * batch
    order = np.empty(len(keys), dtype=np.int64)
    steps = np.arange(full)
    # All windows but the last at once, then the last, which is longer, then the samples of an incomplete step.
    even = (max(1, full // window) - 1) * window
    for first, last, length in ((0, even, window), (even, full, full - even)):
        if first == last:
            continue
        samples = slice(first * share, last * share)
        in_windows = keys[samples].reshape(-1, length * share)
        sorted_here = np.argsort(in_windows, axis=1, kind="stable")
        sorted_here += np.arange(samples.start, samples.stop, length * share)[:, None]
        order[samples] = sorted_here.reshape(-1)
        if random is not None:
            steps[first:last] = random.permuted(steps[first:last].reshape(-1, length), axis=1).reshape(-1)
    end = full * share
    order[end:] = end + np.argsort(keys[end:], kind="stable")
    if random is not None and full:
        rank_of = random.permuted(np.tile(np.arange(ranks), (full, 1)), axis=1)
        batches = (steps[:, None] * ranks + rank_of).reshape(-1)
        order[:end] = order[:end].reshape(-1, batch)[batches].reshape(-1)
    return order
