"""Clips that are not delivered: found bad, excluded by the user, or forgotten by the dataset.

They keep their places in the order of an epoch, where repeats of other clips stand in for them, so that no other clip
moves and saved states stay valid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from streamvid.arrays import Bool, Int64
from streamvid.errors import DatasetError
from streamvid.plan.rng import REPEAT, draws
from streamvid.plan.sample_id import rows_of

_DRAWS: Final = 32
"""Number of samples that are drawn at random before the present ones are counted; so many absent ones in a row are
unlikely."""


class AbsentRows:
    """Rows that are not delivered: those known before the epoch, and those found bad during it.

    A clip found bad counts as good before the step in which it was found, for all stages, which run ahead of each
    other. Other threads may read this object while `add` is called.

    Args:
        known: int64 [rows], in any order.
    """

    def __init__(self, known: Int64 | None = None) -> None:
        self._known = np.empty(0, dtype=np.int64) if known is None else np.unique(known)
        self._found: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(len(self._known) or self._found)

    @property
    def count(self) -> int:
        """Number of clips found bad during the epoch."""
        return len(self._found)

    def knows_same_as(self, other: AbsentRows) -> bool:
        """Whether the rows known before the epoch are those that `other` knows."""
        return np.array_equal(self._known, other._known)

    def add(self, row: int, step: int) -> None:
        """Add a clip that was found bad in a step of the epoch."""
        self._found[row] = min(step, self._found.get(row, step))

    def among(self, rows: Int64, step: int) -> Bool:
        """bool [rows]: which of the rows are absent in a step."""
        place = np.searchsorted(self._known, rows)
        here: Bool = np.append(self._known, -1)[place] == rows
        return here | self.found(rows, step)

    def found(self, rows: Int64, step: int) -> Bool:
        """bool [rows]: which of the rows have been found bad during the epoch, in a step or before it."""
        return np.isin(rows, [row for row, since in dict(self._found).items() if since <= step])


def repeats(
    sample_ids: Int64,
    passes: Int64,
    pools: Sequence[Callable[[], Int64]],
    absent: AbsentRows,
    *,
    seed: int,
    step: int,
) -> Int64:
    """The samples that stand in for absent ones: present samples, which so come once more.

    The choice depends only on the seed, the pass and the absent sample, for each of which there is a generator. So a
    clip is replaced by the same one whenever it was found bad, and ranks need not communicate.

    Args:
        sample_ids: int64 [absent], the samples that are replaced.
        passes: int64 [absent], number of the pass over its dataset in which each comes.
        pools: int64 [samples] each, the candidates: those of the first pool that has a present sample.
        absent: the rows that are no candidates.

    Returns:
        int64 [absent], sample ids.

    Raises:
        DatasetError: all samples of all pools are absent.
    """
    drawn = [
        draws(seed, *pair, _DRAWS + 1, purpose=REPEAT)
        for pair in zip(passes.tolist(), sample_ids.tolist(), strict=True)
    ]
    for pool in (made() for made in pools):
        drawn_here = [pool[(numbers[:_DRAWS] * len(pool)).astype(np.int64)] for numbers in drawn]
        candidates = [some[~absent.among(rows_of(some), step)] for some in drawn_here]
        if not all(map(len, candidates)):
            present = pool[~absent.among(rows_of(pool), step)]
            if not len(present):
                continue
            last = [present[int(numbers[_DRAWS] * len(present)) :] for numbers in drawn]
            candidates = [some if len(some) else other for some, other in zip(candidates, last, strict=True)]
        return np.array([some[0] for some in candidates], dtype=np.int64)
    raise DatasetError(
        "all clips are bad or excluded: check the dataset with `streamvid verify --decode`, and the quarantine folder"
    )
