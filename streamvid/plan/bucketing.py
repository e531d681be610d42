"""Batches of few kinds: an order is cut into windows of some steps, and the items of a window are dealt by kind.

Length-grouped samplers of text and speech do the same. The window bounds what is given up: an item stays among those
that the shuffled order has put it with.
"""

from __future__ import annotations

import numpy as np

from streamvid.arrays import Int64
from streamvid.plan.bucket_key import BucketKeys


def bucket_order(
    kinds: BucketKeys, *, ranks: int, batch: int, window: int, full: int, random: np.random.Generator | None
) -> Int64:
    """Rearrange an order so that a batch holds few kinds.

    The items of a window are sorted by kind, which leaves those of one kind in their order, and cut into steps, and
    those into batches. Then the steps of a window are shuffled, and the batches of a step among the ranks. So at any
    step all ranks get clips of about the same size, and as much to do.

    Args:
        kinds: of the items, in their order.
        ranks, batch: a step takes `batch` items for each rank.
        window: steps that are sorted together. The last window takes up to twice as many, so that none is small.
        full: steps that the items fill. Those behind them stay the last ones, whatever their kinds, so that a step
            which is left out leaves out items at random.
        random: shuffles steps and batches; None leaves them sorted.

    Returns:
        int64 [items]: where in the order the items come from that stand at each place.
    """
    share = ranks * batch
    order = np.empty(len(kinds), dtype=np.int64)
    steps = np.arange(full)
    # All windows of one length at a time, then the last, which is longer, then what fills no step.
    even = (max(1, full // window) - 1) * window
    for first, last, length in ((0, even, window), (even, full, full - even)):
        if first == last:
            continue
        items = slice(first * share, last * share)
        in_windows = kinds[items].reshape(-1, length * share)
        sorted_here = np.argsort(in_windows, axis=1, kind="stable")
        sorted_here += np.arange(items.start, items.stop, length * share)[:, None]
        order[items] = sorted_here.reshape(-1)
        if random is not None:
            steps[first:last] = random.permuted(steps[first:last].reshape(-1, length), axis=1).reshape(-1)
    end = full * share
    order[end:] = end + np.argsort(kinds[end:], kind="stable")
    if random is not None and full:
        places = random.permuted(np.tile(np.arange(ranks), (full, 1)), axis=1)
        batches = (steps[:, None] * ranks + places).reshape(-1)
        order[:end] = order[:end].reshape(-1, batch)[batches].reshape(-1)
    return order
