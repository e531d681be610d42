"""How a map-style dataset deals with bad clips, in each of the processes that read it."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.errors import InputError
from streamvid.loader.clip_items import At, ResolvedItem
from streamvid.loader.quarantine import ErrorPolicy, Quarantine
from streamvid.plan.absent import AbsentRows, repeats
from streamvid.plan.sample_id import row_of, rows_of
from streamvid.plan.world import World, find_world
from streamvid.transform.output_size import check_output_sizes
from streamvid.transform.spec import Transform, Views


class ItemErrors:
    """Which clips of a map-style dataset are absent, and what stands in their place.

    Instances can be pickled, and used in forked processes: each process reads the quarantine itself, at first use and
    in every new epoch.

    Args:
        excluded: int64 [rows], clips that are not delivered.
    """

    def __init__(self, policy: ErrorPolicy, excluded: Int64, seed: int) -> None:
        self.policy, self.excluded, self._seed = policy, excluded, seed
        self._known: tuple[int, int, Quarantine, AbsentRows] | None = None

    def __reduce__(self) -> tuple[type[ItemErrors], tuple[ErrorPolicy, Int64, int]]:
        return ItemErrors, (self.policy, self.excluded, self._seed)

    def known(self, dataset: ClipSource, epoch: int) -> tuple[Quarantine, AbsentRows]:
        """The quarantine of this process, and the clips that are absent in this epoch."""
        here = os.getpid()
        if self._known is None or self._known[0] != here:
            clips = len(dataset)
            self._known = (
                here,
                -1,
                Quarantine(self.policy, dataset, self.excluded, clips=clips, world=this_world()),
                AbsentRows(),
            )
        _, number, quarantine, absent = self._known
        if number != epoch:
            quarantine.world, absent = this_world(), quarantine.absent()
            self._known = here, epoch, quarantine, absent
        return quarantine, absent

    def begin(self) -> None:
        """Make the next use read the quarantine again."""
        if self._known is not None:
            self._known = self._known[0], -1, *self._known[2:]

    def place(
        self,
        dataset: ClipSource,
        wanted: ResolvedItem,
        epoch: int,
        ids: Callable[[], Int64],
        transform: Transform | Views,
        step: int = 0,
    ) -> ResolvedItem:
        """The item to read for an item: itself, or, if its clip is absent, another sample of the dataset with the same
        output size, drawn by seed, epoch and item. If the item names frames, as many first frames of the other clip
        replace them. Frames of a clip that is excluded but not bad are read if an item names them.

        Raises:
            DatasetError: the dataset has no other sample of that size.
        """
        _, absent = self.known(dataset, epoch)
        row = np.array([wanted.row])
        if not absent.among(row, step)[0]:
            return wanted
        if wanted.at is not None and wanted.row in self.excluded and not absent.found(row, step)[0]:
            return wanted

        def fitting() -> Int64:
            every = ids()
            rows = rows_of(every)
            try:
                check_output_sizes(transform, dataset.clips, rows)
            except InputError:
                clips = dataset.clips
                same = [column[rows] == column[wanted.row] for column in (clips.width, clips.height, clips.rotation)]
                every = every[np.logical_and.reduce(same)]
            return every

        item, number = np.array([wanted.number]), np.array([epoch])
        (chosen,) = repeats(item, number, [fitting], absent, seed=self._seed, step=step).tolist()
        at, last = wanted.at, int(dataset.clips.frames[row_of(chosen)]) - 1
        if at is not None:
            at = At(row_of(chosen), frames=[min(n, last) for n, _ in enumerate(at.frames or at.seconds or ())])
        return ResolvedItem(row_of(chosen), chosen, at, absent=wanted.row)


def this_world() -> World:
    """The world as this process knows it now; a single rank if its environment is contradictory."""
    try:
        return find_world(settle=False)
    except InputError:
        return World(0, 1)
