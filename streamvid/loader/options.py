"""Converts a StreamLoader's options into those of the plan, and opens its datasets, remote ones through a cache of
shards."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np

from streamvid.checks import boolean, integer, one_of
from streamvid.dataset.dataset import Dataset
from streamvid.dataset.revisions import dataset_path
from streamvid.errors import InputError
from streamvid.fetch.fetch_mode import Fetch, choose_fetch
from streamvid.loader.sample_set import SampleSet
from streamvid.plan.epoch import LAST_BATCH, LastBatch
from streamvid.plan.epoch_plan import Plan
from streamvid.plan.inputs import DatasetLike, Mix, Subset
from streamvid.plan.permutation import SHUFFLES, Shuffle
from streamvid.sampling.base import FrameSampler
from streamvid.storage.cache_dir import user_cache_dir
from streamvid.storage.retry import Retry
from streamvid.storage.shard_cache import ShardCache
from streamvid.storage.url import given_local_path, is_local, redact

if TYPE_CHECKING:
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy

    from streamvid.loader.clip_dataset import ClipDataset

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
    if drop_last is not None:
        boolean(drop_last, "drop_last")
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
    """How the dataset is read: `fetch`, with "auto" decided; "local" for a local dataset, whose `cache` is None."""
    if cache is None:
        return "local"
    if fetch != "auto":
        return fetch
    pools = samples.pools.pools
    fetched = choose_fetch(
        samples.dataset,
        np.concatenate([pool.sample_ids for pool in pools]) if len(pools) > 1 else pools[0].sample_ids,
        samples.spec,
        samples=len(plan) * plan.batch_size * plan.world.size // plan.world.nodes,
        cache_bytes=cache_bytes,
        cached=cache.holds,
        in_order=plan.stream.shuffle != "full",
    )
    what = {"ranges": "Byte ranges"}.get(fetched, "Whole shards")
    log.info("%s are fetched from %s.", what, redact(samples.dataset.path))
    return fetched


@dataclass
class Opener:
    """Opens a loader's datasets; attributes as in `StreamLoader`, except `cache`.

    Attributes:
        cache: the shard cache, made for the first remote dataset.
    """

    cache_dir: str | os.PathLike[str] | None
    cache_bytes: int
    retry: Retry
    roots: Sequence[str | os.PathLike[str]]
    revision: int | None
    cache: ShardCache | None = None

    def __post_init__(self) -> None:
        if self.cache_dir is not None:
            self.cache_dir = given_local_path(self.cache_dir, "cache_dir")

    def open(
        self, dataset: ClipDataset | Subset | Mix | DatasetLike, sampling: FrameSampler | None, **options: Any
    ) -> SampleSet:
        """The samples of a loader's dataset; `options` as in `SampleSet.open`, and errors.

        Raises:
            InputError: an option does not apply to this dataset.
        """
        from streamvid.loader.clip_dataset import ClipDataset

        if self.revision is not None and isinstance(dataset, Mix):
            raise InputError("revision is of one dataset: give the Mix open ones, Dataset.open(path, revision=…)")
        if isinstance(dataset, ClipDataset):
            if sampling is not None or any(options[name] for name in ("transform", "columns", "seed")):
                raise InputError("a ClipDataset has its own sampling, transform, columns and seed: leave these out")
            samples = dataset.sample_set()
        elif sampling is None:
            if not isinstance(dataset, Dataset | Subset | Mix):
                dataset_path(dataset)  # the first error to tell
            raise InputError("give a sampling, such as sampling=Window(frames=16, fps=8)")
        else:
            samples = SampleSet.open(dataset, sampling=sampling, open_dataset=self._open_cached, **options)
        return samples.at_revision(self.revision)

    def cache_for(self, local: bool) -> ShardCache | None:
        """The cache of a dataset, None if that is local."""
        if not local and self.cache is None:
            folder = user_cache_dir() if self.cache_dir is None else Path(self.cache_dir)
            self.cache = ShardCache(folder, limit_bytes=self.cache_bytes, retry=self.retry)
        return None if local else self.cache

    def close(self) -> None:
        """Free the cache's handles."""
        if self.cache is not None:
            self.cache.close()

    def _open_cached(self, path: str) -> Dataset:
        cache = self.cache_for(is_local(path))
        return Dataset.open(path, cache=cache, retry_for=self.retry, roots=self.roots, revision=self.revision)
