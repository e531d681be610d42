"""The arguments of a run's plan as JSON for its state, and the plan made from them again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from streamvid.checks import integer
from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.loader.calls import sampler_of
from streamvid.plan.bucket_key import bucket_keys
from streamvid.plan.checkpoint import DAMAGED, RunSchedule
from streamvid.plan.epoch_plan import Plan
from streamvid.plan.inputs import Mix, Pools, Source, Subset, make_pools, open_source
from streamvid.plan.mixture import SampleStream
from streamvid.plan.world import World
from streamvid.storage.url import is_local, local_path, redact

BLOCK_SHARDS: Final = 16
"""Shards whose clips are shuffled together with shuffle="block"."""
_SELECTIONS: Final = ("where", "keys", "weights", "exclude")


def run_about(source: Source, schedule: RunSchedule) -> dict[str, Any]:
    """The arguments of a schedule. `data` is None if they cannot be written as text: keys or weights given as lists, a
    pyarrow expression. Credentials in URLs are left out."""
    plan, stream = schedule.plan, schedule.plan.stream
    parts = [_part(dataset.path, subset) for dataset, subset in zip(source.datasets, source.subsets, strict=True)]
    return {
        "data": None if None in parts else parts,
        "sampling": repr(schedule.sampling),
        "seed": stream.seed,
        "shuffle": stream.shuffle,
        "last_batch": plan.last_batch,
        **({"mix": list(source.weights)} if len(parts) > 1 else {}),
        **({"local": True} if plan.local else {}),
        **({"steps": plan.steps} if plan.steps is not None else {}),
    }


def _part(path: str, subset: Subset) -> dict[str, str] | None:
    chosen = {"path": os.path.abspath(path) if is_local(path) else redact(path)}
    for name in _SELECTIONS:
        value = getattr(subset, name)
        if value is None:
            continue
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str):
            return None
        if name in ("keys", "exclude"):
            value = os.path.abspath(local_path(value)) if is_local(value) else redact(value)
        chosen[name] = value
    return chosen


def replan(
    about: Mapping[str, Any], *, roots: Sequence[str | os.PathLike[str]] = ()
) -> tuple[Source, Pools, RunSchedule]:
    """The datasets, samples and schedule of a run, made from its state, for one rank and batches of one.

    Args:
        about: the result of `run_about`.
        roots: as in `Dataset.open`.

    Raises:
        InputError: the state lacks arguments, or contradicts itself.
        DatasetError: a dataset cannot be opened.
    """
    try:
        parts, sampling = about["data"], about["sampling"]
        if parts is None:
            raise InputError(
                "the state does not say which clips the run had, as keys, weights or a condition were given as values: "
                "make the loader again, and give sv.ledger(state, key, loader=…)"
            )
        subsets = [Subset(part["path"], **{name: part[name] for name in _SELECTIONS if name in part}) for part in parts]
        order = (about["seed"], about["shuffle"], about["last_batch"])
        mix = tuple(integer(weight, "a weight", most=None) for weight in about.get("mix", [1]))
        data = subsets[0] if len(subsets) == 1 else Mix(list(zip(subsets, mix, strict=True)))
    except InputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(DAMAGED) from error
    source = open_source(data, partial(Dataset.open, roots=roots))
    if len(subsets) > 1:
        source = replace(source, weights=mix)  # use the plan's own shares, as Mix would round the weights again
    try:
        sampler = sampler_of(sampling)
    except InputError as error:
        raise InputError(
            f"the run's sampling {sampling[:100]} is not one of streamvid's own: make the loader again, and give "
            "sv.ledger(state, key, loader=…)"
        ) from error
    pools = make_pools(source, sampler)
    seed, shuffle, last_batch = order
    plan = Plan(
        SampleStream(pools.pools, source.weights, seed, shuffle, BLOCK_SHARDS),
        1,
        World(0, 1),
        last_batch,
        bool(about.get("local")),
        about.get("steps"),
        bucket_keys=cache(partial(bucket_keys, source.dataset.clips, pools.rows())),
    )
    return source, pools, RunSchedule(plan, tuple(source.checksums()), sampler)
