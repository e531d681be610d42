"""Random batches for a pool of decode sessions, on a GPU and without one."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

import numpy as np
import numpy.typing as npt

from streamvid.decode.nvdec import NvdecSessionPool
from streamvid.video.stored_clip import StoredClip
from tests.support.reference import slice_of


def agree(
    pool: NvdecSessionPool,
    clips: Iterable[tuple[StoredClip, npt.NDArray[np.uint8]]],
    *,
    each: int = 3,
    rounds: int,
    seed: int = 0,
    frames: int = 5,
) -> None:
    """Random frames of clips in random order, several batches at a time, are the expected ones. Closes the pool.

    Args:
        clips: with the expected frames, uint8 [frames, height, width, 3].
        each: slices of each clip in a batch.
        frames: frames of a slice.
    """
    known, rng, begun = list(clips), np.random.default_rng(seed), []
    with closing(pool):
        for _ in range(rounds):
            order = rng.permutation(np.repeat(np.arange(len(known)), each)).tolist()
            wanted = [np.sort(rng.choice(len(known[n][1]), frames, replace=False)) for n in order]
            slices = [slice_of(known[n][0], chosen) for n, chosen in zip(order, wanted, strict=True)]
            begun.append((order, wanted, pool.submit(slices)))
        for order, wanted, pending in begun:
            for n, chosen, got in zip(order, wanted, pending.result(), strict=True):
                clip, expected = known[n]
                size = f"{clip.width}x{clip.height}"
                np.testing.assert_array_equal(got.cpu().numpy(), expected[chosen], err_msg=size)
