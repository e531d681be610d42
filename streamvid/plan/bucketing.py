"""Bucketing: batches whose clips share a decoder configuration, as length-grouped samplers do for text and speech.

An order is cut into windows of some steps, and the samples of a window are sorted by bucket key. The window bounds
what is given up of the shuffle: a sample stays within the steps that the shuffled order has put it into.
"""

from __future__ import annotations

import numpy as np

from streamvid.arrays import Int64
from streamvid.plan.bucket_key import BucketKeys


def bucket_order(
    keys: BucketKeys, *, ranks: int, batch: int, window: int, full: int, random: np.random.Generator | None
) -> Int64:
    """Rearrange an order so that each batch holds few different bucket keys.

    The samples of a window are sorted by key (stable, so that those of one key keep their order) and cut into steps,
    and those into batches. Then the steps of a window are shuffled, and the batches of a step among the ranks: at any
    step all ranks get clips of about the same size, and as much to do.

    Args:
        keys: of the samples, in their order.
        ranks, batch: a step takes `batch` samples for each rank.
        window: steps that are sorted together. The last window takes up to twice as many, so that none is small.
        full: steps that the samples fill. Samples behind them stay last whatever their keys, so that dropping an
            incomplete step drops samples at random.
        random: shuffles steps and batches; None leaves them sorted.

    Returns:
        int64 [samples]: for each place in the new order, the place in the old one.
    """
    share = ranks * batch
    order = np.empty(len(keys), dtype=np.int64)
    steps = np.arange(full)
    # All windows of one length at a time, then the last, which is longer, then what fills no step.
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
