"""Options of loaders, as their users write them → as the plan takes them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np

from streamvid.checks import integer, one_of
from streamvid.errors import InputError
from streamvid.fetch.fetch_mode import Fetch, choose_fetch
from streamvid.loader.sample_set import SampleSet
from streamvid.plan.epoch import LAST_BATCH, LastBatch
from streamvid.plan.epoch_plan import Plan
from streamvid.plan.permutation import SHUFFLES, Shuffle
from streamvid.storage.shard_cache import ShardCache
from streamvid.storage.url import redact

if TYPE_CHECKING:
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy

log = logging.getLogger(__name__)

_BUCKET_STEPS: Final = 64
"""Steps with group_by_size=True: of 30 decoder configurations, a batch then holds at most 1.5 on average."""


def check_steps(plan: Plan) -> None:
    """Raises InputError if an epoch has no step."""
    if len(plan) == 0:
        raise InputError(
            f"{plan.size} clips do not fill one step of {plan.world.size} ranks x {plan.batch_size} clips, "
            "and last_batch is 'drop': give a smaller batch_size or another last_batch"
        )


def bucket_steps(group_by_size: bool | int) -> int:
    """How many steps are bucketed together; 0 for no bucketing."""
    if isinstance(group_by_size, bool):
        return _BUCKET_STEPS if group_by_size else 0
    return integer(group_by_size, "group_by_size")


def last_batch_policy(last_batch: LastBatch | LastBatchPolicy | None, drop_last: bool | None) -> LastBatch:
    """The options `last_batch` and `drop_last`."""
    if drop_last not in (None, True, False):
        raise InputError(f"drop_last must be True or False; it is {drop_last!r}")
    if last_batch is None:
        return "drop" if drop_last else "partial"
    if drop_last is not None:
        raise InputError("give last_batch or drop_last, not both")
    name: Any = last_batch if isinstance(last_batch, str) else getattr(last_batch, "name", last_batch)
    name = name.lower() if isinstance(name, str) else name  # DALI's LastBatchPolicy in capitals
    one_of(name, LAST_BATCH, "last_batch")
    return cast(LastBatch, name)


def shuffle_order(shuffle: bool | Shuffle) -> Shuffle:
    """The option `shuffle`."""
    if isinstance(shuffle, bool):
        return "full" if shuffle else "none"
    one_of(shuffle, SHUFFLES, "shuffle")
    return shuffle


def fetched_as(
    fetch: Fetch, plan: Plan, samples: SampleSet, cache: ShardCache | None, cache_bytes: int
) -> Literal["local", "ranges", "shards"]:
    """What of the dataset is read; `cache` is None where it is local."""
    if cache is None:
        return "local"
    if fetch != "auto":
        return fetch
    fetched = choose_fetch(
        samples.dataset,
        np.concatenate([pool.sample_ids for pool in samples.pools.pools]),
        samples.spec,
        samples=len(plan) * plan.batch_size * plan.world.size // plan.world.nodes,
        cache_bytes=cache_bytes,
        cached=cache.holds,
        in_order=plan.stream.shuffle != "full",
    )
    what = {"ranges": "Byte ranges"}.get(fetched, "Whole shards")
    log.info("%s are fetched from %s.", what, redact(samples.dataset.path))
    return fetched
