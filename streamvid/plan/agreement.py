"""Whether all ranks of a process group stream the same epoch: each computes its part of the plan by itself, so that a
rank with another seed, dataset or position would repeat clips of others, and lose its own, without a word."""

from __future__ import annotations

import json
import logging
import weakref
from dataclasses import astuple
from typing import Any, Final

from streamvid.errors import InputError
from streamvid.plan.checkpoint import Cursor
from streamvid.plan.world import PROCESS_GROUP

log = logging.getLogger(__name__)

_KEY: Final = "streamvid/plans"


class Agreement:
    """Compares what ranks begin, through the store of torch.distributed's process group, in which the first rank of a
    turn leaves what it streams for the others. Nobody waits for anybody. A difference is an error before the first
    loader's first batch, and a warning later: a run that has trained goes on.

    Turns are counted by loader, in the order of their first batches, and by iteration over each; one that begins where
    the last one did, as after an error, is no turn of its own. Loaders whose rank or mesh was given take no part: they
    may be one rank's own.
    """

    def __init__(self) -> None:
        self._group: weakref.ref[Any] | None = None
        self._loader, self._turn, self._last = 0, 0, ""

    def check(self, cursor: Cursor) -> None:
        """Compare an iteration that begins at `cursor` with that of the other ranks.

        Raises:
            InputError: another rank streams something else, or begins elsewhere, and this is the first batch of all.
        """
        world = cursor.schedule.plan.world
        if world.source != PROCESS_GROUP or world.size == 1:
            return
        import torch.distributed

        plan = _plan(cursor)
        mine = json.dumps([world.rank, *plan.values()])
        try:
            group: Any = torch.distributed.group.WORLD
            store = group.get_group_store()
            if self._group is None or self._group() is not group:
                self._group, self._turn, self._last = weakref.ref(group), 0, ""
                self._loader = store.add(f"{_KEY}/{world.rank}", 1)
            if self._last != mine:
                self._turn, self._last = self._turn + 1, mine
            found = store.compare_set(f"{_KEY}/{self._loader}/{self._turn}", "", mine)
        except (AttributeError, ValueError, RuntimeError) as error:
            log.debug("The ranks were not compared: %s", error)  # a process group without a store, or one that is gone
            return
        rank, *others = json.loads(found)
        for (what, here), there in zip(plan.items(), others, strict=False):
            if here != there:
                text = (
                    f"rank {world.rank} and rank {rank} do not stream the same: {what} differs ({here} and {there}); "
                    "make and load it alike on all ranks, loaders in the same order; one that not all ranks iterate "
                    "over needs rank and world_size"
                )
                if (self._loader, self._turn) == (1, 1):
                    raise InputError(text)
                log.warning("%s", text)
                return


def _plan(cursor: Cursor) -> dict[str, str]:
    """All that the ranks' parts of an epoch depend on, with a name for each."""
    schedule, position = cursor.schedule, cursor.position
    identity, plan = schedule.identity, schedule.plan
    return {
        "the dataset, or the selection of its clips (where, keys, weights)": identity.dataset,
        "sampling or its padding": identity.sampling,
        "seed": str(plan.stream.seed),
        "shuffle": plan.stream.shuffle,
        "steps_per_epoch": str(plan.steps),
        "locality, or the weights of the Mix": identity.order,
        "batch_size": str(plan.batch_size),
        "group_by_size": str(plan.bucket_steps),
        "last_batch": plan.last_batch,
        "the number of nodes of locality='node'": str(plan.topology.partitions),
        "the epoch": str(position.epoch),
        "the state that was loaded": str([position.first, position.size, *map(astuple, position.history)]),
    }
