"""`streamvid ledger`: the steps of a run in which a clip was seen, computed from the run's state and the plan."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.compute as pc

from streamvid.arrays import Int64
from streamvid.checks import check, suggest_keywords
from streamvid.dataset.forgotten import forgotten_rows, purged_name, read_table
from streamvid.errors import InputError
from streamvid.loader.run_about import replan
from streamvid.plan.absent import AbsentRows
from streamvid.plan.checkpoint import DAMAGED, RunSchedule, position_from
from streamvid.plan.epoch import Epoch
from streamvid.plan.inputs import Source
from streamvid.plan.run_log import Leg, legs_of, steps_before_legs
from streamvid.plan.sample_id import rows_of, sample_of
from streamvid.plan.world import World
from streamvid.storage.regular_file import regular_file
from streamvid.storage.retry import COMMAND_SECONDS, Retry
from streamvid.storage.url import given_local_path

if TYPE_CHECKING:
    from streamvid.loader.stream_loader import StreamLoader

log = logging.getLogger(__name__)

_DEPTH: Final = 8
_GIVE: Final = "give the file in which a run saved its loader's state_dict(), as JSON or by torch.save"


@dataclass(frozen=True)
class Seen:
    """A place in a batch in which a clip was seen.

    Attributes:
        epoch, step: number of the epoch, and of the step in it, from 0.
        run_step: number of the step in the run, from 0.
        rank, place: the rank, and the index in its batch.
        sample: number of the clip's sample.
        valid: False if it only filled the batch, or stood in for a clip that was forgotten or excluded.
    """

    epoch: int
    step: int
    run_step: int
    rank: int
    place: int
    sample: int
    valid: bool


@suggest_keywords
def ledger(
    run: Mapping[str, Any] | str | os.PathLike[str],
    key: str,
    *,
    loader: StreamLoader | None = None,
    roots: Sequence[str | os.PathLike[str]] = (),
) -> list[Seen]:
    """Find the steps of a run in which a clip was seen, without reading shards or decoding.

    Args:
        run: the state of a StreamLoader, or a file with it: JSON, or written by torch.save.
        key: the clip's key; may be that of a clip that was purged since then.
        loader: a loader made like that of the run, needed if the state does not have all of its arguments
            (docs/revisions.md).
        roots: as in `Dataset.open`.

    Raises:
        InputError: `run` is no state; there is no such clip; the datasets are not those of the run any more.
    """
    check(isinstance(key, str), key, "key", "the key of a clip, a text")
    check(loader is None or hasattr(loader, "planned"), loader, "loader", "a StreamLoader")
    state = run if isinstance(run, Mapping) else _read(run)
    if not {"segments", "legs", "run"} <= state.keys():
        raise InputError("this is not the state of a StreamLoader: give what its state_dict() returned")
    legs, before = legs_of(state), steps_before_legs(state)
    if before:
        log.warning("the state has dropped the run's first %d steps, so only later ones are listed", before)
    if loader is not None:
        source, excluded, schedule = loader.planned()
    else:
        if not isinstance(state["run"], Mapping):
            raise InputError(DAMAGED)
        source, pools, schedule = replan(state["run"], roots=roots)
        excluded = pools.excluded
    schedules = {leg.shards: _of(schedule, leg.shards, state) for leg in legs}
    _check(schedule, state)
    row = _row(source, key)
    own = np.setdiff1d(excluded, source.dataset.forgotten)
    return list(_seen(source, schedules, legs, row, own, before))


def _of(schedule: RunSchedule, shards: int, state: Mapping[str, Any]) -> RunSchedule:
    """The schedule of a dataset with only its first shards."""
    if shards > len(schedule.checksums):
        raise InputError("the dataset has fewer shards than the run saw: it is another one")
    return schedule if shards == len(schedule.checksums) else schedule.before_append(shards, state)


def _check(schedule: RunSchedule, state: Mapping[str, Any]) -> None:
    """Raises InputError if the state is of another schedule."""
    shards = state.get("shards")
    if isinstance(shards, int) and 0 < shards < len(schedule.checksums):
        schedule = schedule.before_append(shards, state)
    position_from(state, schedule.identity)


def _row(source: Source, key: str) -> int:
    try:
        return source.dataset.row(key)
    except InputError:
        with contextlib.suppress(InputError):
            return source.dataset.row(purged_name(key))
        raise


def _seen(
    source: Source, schedules: Mapping[int, RunSchedule], legs: Sequence[Leg], row: int, excluded: Int64, run_step: int
) -> Iterator[Seen]:
    before: tuple[int, int] = (-1, 0)  # the epoch of the previous leg, and its steps so far
    for leg in legs:
        plan, topology = schedules[leg.shards].plan, leg.topology
        absent = AbsentRows(np.concatenate([excluded, _forgotten(source, leg.revisions)]))
        world = World(0, topology.partitions * topology.ranks, topology.partitions)
        plan = replace(plan, batch_size=topology.batch, world=world, bucket_steps=topology.bucket_steps)
        for n in range(leg.epochs):
            start = leg.at(n)
            done = before[1] if start.history and before[0] == start.epoch else 0
            epoch = replace(plan.epoch(start), absent=absent)
            for number, rank, place, sample, valid in _in_epoch(epoch, row, range(epoch.done, epoch.done + leg.steps)):
                step = number - epoch.done
                yield Seen(start.epoch, done + step, run_step + step, rank, place, sample, valid)
            run_step += leg.steps
            before = (start.epoch, done + leg.steps)


def _in_epoch(epoch: Epoch, row: int, steps: range) -> Iterator[tuple[int, int, int, int, bool]]:
    """Step, rank, index in the batch, sample and validity of each occurrence of a clip in these steps."""
    share, batch = epoch.topology.share, epoch.topology.batch
    for number, partition in enumerate(epoch.partitions):
        rows = rows_of(partition.sample_ids[steps.start * share : steps.stop * share])
        wanted = np.flatnonzero((rows == row) | epoch.absent.among(rows, steps.stop)) + steps.start * share
        full = len(partition) // share
        whole = {(at // share, at % share // batch) for at in wanted.tolist() if at // share < full}
        # The last step of an epoch is divided differently, and may be filled.
        last = {(step, rank) for step in steps if step >= full for rank in range(epoch.topology.ranks)}
        for step, rank in sorted(whole | last):
            mine = replace(epoch, partition=number, rank=rank).step(step)
            for place in np.flatnonzero(rows_of(mine.sample_ids) == row).tolist():
                sample = sample_of(int(mine.sample_ids[place]))
                yield step, number * epoch.topology.ranks + rank, place, sample, bool(mine.valid[place])


def _forgotten(source: Source, revisions: Sequence[int]) -> Int64:
    """int64: the rows that were forgotten in these revisions of the datasets, including revisions that a purge has
    ended."""
    found = [np.empty(0, dtype=np.int64)]
    for first, dataset, revision in zip(source.first.tolist(), source.datasets, revisions, strict=False):
        table = read_table(dataset.path, dataset.manifest, Retry.of(COMMAND_SECONDS))
        since = pc.fill_null(table["revision"], 0).to_numpy()
        found.append(first + forgotten_rows(table, dataset.manifest)[since <= revision])
    return np.concatenate(found)


def _read(run: object) -> Mapping[str, Any]:
    """The state in a file."""
    path = Path(given_local_path(run, "run"))
    try:
        with regular_file(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
            try:
                document = json.load(file)
            except (ValueError, RecursionError):
                import torch

                file.seek(0)
                document = torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; {_GIVE}") from error
    except Exception as error:
        raise InputError(f"{path} is neither JSON nor a checkpoint of plain values: {_GIVE}") from error
    found = _state_in(document, _DEPTH)
    if found is None:
        raise InputError(f"{path} holds no state of a StreamLoader: {_GIVE}")
    return found


def _state_in(document: object, depth: int) -> Mapping[str, Any] | None:
    """The first state in a checkpoint, at any depth."""
    if isinstance(document, Mapping) and "segments" in document and "legs" in document:
        return document
    inner = document.values() if isinstance(document, Mapping) else document if isinstance(document, list) else ()
    found = (_state_in(value, depth - 1) for value in inner if depth)
    return next((state for state in found if state is not None), None)
