"""Checks that all ranks of a process group stream the same epoch. Each rank computes its part of the plan by itself, so
a rank with another seed, dataset or position would silently repeat clips of other ranks and omit its own."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
import weakref
from collections.abc import Mapping
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final

import streamvid
from streamvid.errors import InputError
from streamvid.plan.checkpoint import Cursor
from streamvid.plan.world import MESH, PROCESS_GROUP, World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

log = logging.getLogger(__name__)

_KEY: Final = "streamvid/plans"
_APART_S: Final = 60.0
"""Longer than ranks begin an iteration after each other, even without collective calls between iterations."""
_NO_STORE: Final = (LookupError, ValueError, RuntimeError)
"""Errors of a process group that has no store, or is gone."""
_OWN: Final = re.compile(r" at 0x[0-9A-Fa-f]+|(?<=cuda):[0-9]+")
"""What a `repr` has of its process: addresses, and the device of a tensor."""
_MOST_SHOWN: Final = 300
"""Most characters of a difference that are shown."""


class Agreement:
    """Compares the epochs that ranks begin, through the store of torch.distributed's process group: the first rank of a
    turn writes its plan to the store, the others compare theirs. No rank waits for another. A difference is an error
    before the first loader's first batch, and a warning later, so that a run that has trained goes on; of what is made
    of the clips it is always a warning, because that is compared by its `repr`, which may name what differs between
    processes.

    A turn is an iteration over a loader; loaders are numbered in the order of their first batches. An iteration that
    begins where the last one did, as after an error, is the same turn. Loaders whose rank was given are not compared,
    because they may exist on one rank only.

    Args:
        mesh: the mesh whose ranks are compared; default: all ranks of the process group.
        made: what is made of the clips, by name, such as the transform; its `repr` is compared, too.
    """

    def __init__(self, mesh: DeviceMesh | None = None, made: Mapping[str, object] | None = None) -> None:
        self._mesh = mesh
        self._shown = {name: _OWN.sub("", repr(value)) for name, value in (made or {}).items()}
        # A weak reference, because a store's port is free only after group and store are gone.
        self._group: weakref.ref[Any] | None = None
        self._watched = False  # whether to warn when other ranks leave the current iteration
        self._key, self._rank, self._first = "", 0, False
        self._turn, self._ranks, self._last, self._record = 0, 0, "", ""
        self._epoch, self._made, self._steps, self._begun = 0, 0, 0, 0.0
        self._alone = False  # whether it was said that other ranks have not begun the current turn

    def check(self, cursor: Cursor, world: World) -> None:
        """Compare an iteration that begins at `cursor` with that of the other ranks.

        Raises:
            InputError: this is the first batch of all, and another rank has another plan or begins at another position.
        """
        self._watched = False
        if world.source not in (PROCESS_GROUP, MESH):
            return
        plan = _plan(cursor) | self._shown
        mine = json.dumps([*plan.values()])
        try:
            store = self._joined(world)
            if self._last != mine:
                self._warn_of_missing(store)
                self._begun, self._alone = time.monotonic(), False
                self._ranks = world.size if self._mesh is None else self._mesh.mesh.numel()
                self._turn, self._last = self._turn + 1, mine
                self._record = json.dumps([self._rank, self._made, *plan.values()])
                store.add(self._ranks_key, 1)
            found = store.compare_set(f"{self._key}/{self._turn}", "", self._record)
        except _NO_STORE as error:
            log.debug("The ranks were not compared: %s", error)
            return
        self._epoch, self._made, self._steps = cursor.epoch_number, 0, len(cursor.schedule.plan)
        rank, _, *others = json.loads(found)
        for (what, here), there in zip(plan.items(), others, strict=False):
            if here != there:
                text = (
                    f"rank {self._rank} and rank {rank} do not stream the same: {what} differs "
                    f"({here[:_MOST_SHOWN]} and {there[:_MOST_SHOWN]}); "
                    "make and load it alike on all ranks, loaders in the same order; one that not all ranks iterate "
                    "over needs rank and world_size"
                )
                if self._first and self._turn == 1 and what not in self._shown:
                    raise InputError(text)
                log.warning("%s", text)
                return
        self._watched = cursor.schedule.plan.stream.shuffle != "none" or cursor.schedule.plan.steps is not None

    def went_on(self) -> None:
        """Note that the iteration yields another batch. Warns if another rank has already left this iteration and begun
        the next one, as by a `next(iter(loader))` of its own: that rank is an epoch ahead. At the last batch, warns if
        other ranks have not begun this iteration."""
        self._made += 1
        # Checked at batches 2, 4, 8, …, so that the store is asked rarely.
        ahead, last = self._watched and self._made > 1 and not self._made & (self._made - 1), self._made == self._steps
        if not (ahead or last):
            return
        group, following = None if self._group is None else self._group(), f"{self._key}/{self._turn + 1}"
        try:
            store = None if group is None else _store_of(group)
            if store is None:
                return
            if last:
                self._warn_of_missing(store)
            if not ahead or not store.check([following]):
                return
            rank, made, *_ = json.loads(store.get(following))
        except _NO_STORE as error:
            log.debug("The ranks were not compared: %s", error)
            return
        if made < self._made:
            log.warning(
                "rank %d has left epoch %d after %d of its batches and begun the next one, and rank %d is still in it: "
                "clips will be repeated and lost; take single batches on all ranks, or call set_epoch on all before "
                "each epoch", rank, self._epoch, made, self._rank,
            )  # fmt: skip
            self._watched = False

    @property
    def _ranks_key(self) -> str:
        """The key of the number of ranks that have begun the current turn."""
        return f"{self._key}/{self._turn}/ranks"

    def _warn_of_missing(self, store: Any) -> None:
        """Warn, once, if some of the ranks have not begun the turn that ended here, as if one rank alone evaluates."""
        if self._alone or not 0 < self._steps <= self._made or time.monotonic() - self._begun <= _APART_S:
            return
        if (begun := store.add(self._ranks_key, 0)) < self._ranks:
            self._alone = True
            log.warning(
                "only %d of %d ranks have begun epoch %d of this loader, so the clips of the others were left out: a "
                "loader that not all ranks iterate over needs rank and world_size; one rank alone, as for evaluation, "
                "world_size=1", begun, self._ranks, self._epoch,
            )  # fmt: skip

    def _joined(self, world: World) -> Any:
        """The process group's store. If this loader has not used the store yet, assigns its number among the rank's
        loaders."""
        import torch.distributed

        group: Any = torch.distributed.group.WORLD
        store = _store_of(group)
        if self._group is None or self._group() is not group:
            members, self._rank = "", world.rank
            if self._mesh is not None:
                members = hashlib.sha256(repr(self._mesh.mesh.tolist()).encode()).hexdigest()[:16]
                self._rank = self._mesh.get_rank()
            # torchrun keeps the store when it restarts the ranks, possibly more or fewer of them.
            key = f"{_KEY}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}/{world.size}"
            self._first = store.add(f"{key}/{self._rank}", 1) == 1
            self._key = f"{key}/{members}/{store.add(f'{key}/{members}/{self._rank}/loaders', 1)}"
            self._group, self._turn, self._last, self._made = weakref.ref(group), 0, "", 0
        return store


def _store_of(group: Any) -> Any:
    """The store of a process group. `ProcessGroup.get_group_store` gives it, too, but not in PyTorch 2.8.

    Raises:
        LookupError: it has none, or is gone.
    """
    from torch.distributed.distributed_c10d import _get_process_group_store

    store = _get_process_group_store(group)
    if store is None:
        raise LookupError("the process group has no store")  # as MPI's
    return store


def _plan(cursor: Cursor) -> dict[str, str]:
    """Everything that the ranks' parts of an epoch depend on, by name."""
    schedule, position = cursor.schedule, cursor.position
    identity, plan = schedule.identity, schedule.plan
    return {
        "the version of streamvid": streamvid.__version__,
        "the dataset, or the selection of its clips (where, keys, weights)": identity.dataset,
        "sampling or its padding": identity.sampling,
        "seed": str(plan.stream.seed),
        "shuffle": plan.stream.shuffle,
        "steps_per_epoch": str(plan.steps),
        "locality, or the weights of the Mix": identity.order,
        "batch_size": str(plan.batch_size),
        "group_by_size": str(plan.bucket_steps),
        "last_batch": plan.last_batch,
        "the number of nodes of locality='node' (give ranks_per_node if nodes are of unequal size)": str(
            plan.topology.partitions
        ),
        "the epoch": str(position.epoch),
        "the state that was loaded": str([position.first, position.size, *map(astuple, position.history)]),
    }
