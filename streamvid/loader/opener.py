"""Opens what a loader is given: datasets by path or URL, remote ones through a cache of shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.loader.sample_set import SampleSet
from streamvid.plan.inputs import DatasetLike, Mix, Subset
from streamvid.sampling.base import FrameSampler
from streamvid.storage.cache_dir import user_cache_dir
from streamvid.storage.retry import Retry
from streamvid.storage.shard_cache import ShardCache
from streamvid.storage.url import given_path, is_local

if TYPE_CHECKING:
    from streamvid.loader.clip_dataset import ClipDataset


@dataclass
class Opener:
    """How a loader's datasets are opened; all but `cache` as of `StreamLoader`.

    Attributes:
        cache: of shards, made for the first dataset that is not local.
    """

    cache_dir: str | os.PathLike[str] | None
    cache_bytes: int
    retry: Retry
    roots: Sequence[str | os.PathLike[str]]
    revision: int | None
    cache: ShardCache | None = None

    def __post_init__(self) -> None:
        self._folder = user_cache_dir() if self.cache_dir is None else Path(given_path(self.cache_dir, "cache_dir"))

    def open(
        self, dataset: ClipDataset | Subset | Mix | DatasetLike, sampling: FrameSampler | None, **options: Any
    ) -> SampleSet:
        """The samples of a loader's dataset; `options` as of `SampleSet.open`, and errors.

        Raises:
            InputError: an option that does not go with the dataset.
        """
        from streamvid.loader.clip_dataset import ClipDataset

        if self.revision is not None and isinstance(dataset, Mix):
            raise InputError("revision is of one dataset: give the Mix open ones, Dataset.open(path, revision=…)")
        if isinstance(dataset, ClipDataset):
            if sampling is not None or any(options[name] for name in ("transform", "columns", "seed")):
                raise InputError("a ClipDataset has its own sampling, transform, columns and seed: leave these out")
            return dataset.sample_set()
        if sampling is None:
            raise InputError("give a sampling, such as sampling=Window(frames=16, fps=8)")
        return SampleSet.open(dataset, sampling=sampling, open_dataset=self._open_cached, **options)

    def cache_for(self, local: bool) -> ShardCache | None:
        """The cache of a dataset, None if that is local."""
        if not local and self.cache is None:
            self.cache = ShardCache(self._folder, limit_bytes=self.cache_bytes, retry=self.retry)
        return None if local else self.cache

    def close(self) -> None:
        """Free the cache's handles."""
        if self.cache is not None:
            self.cache.close()

    def _open_cached(self, path: str) -> Dataset:
        cache = self.cache_for(is_local(path))
        return Dataset.open(path, cache=cache, retry_for=self.retry, roots=self.roots, revision=self.revision)
