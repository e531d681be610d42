"""Shards as files: local ones in place, remote ones through the shard cache, or, by range, where they are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from streamvid.dataset.clip_source import ClipSource, shard_errors
from streamvid.storage.shard_cache import CacheUnusable, ShardCache
from streamvid.storage.url import is_local

_SHARE: Final = 16
"""A rank leases at most 1/16 of the cache at once, and prefetches as much, so that the ranks of a node share it."""


class ShardAccess:
    """Opens a dataset's shards.

    Args:
        dataset: local, remote, or several of both.
        cache: for remote shards; None: they are read where they are.
        limit_bytes: the cache's limit.
    """

    def __init__(self, dataset: ClipSource, *, cache: ShardCache | None, limit_bytes: int) -> None:
        self._dataset = dataset
        self._cache = cache
        self._share = limit_bytes // _SHARE
        self.by_range = cache is None and not dataset.is_local
        """Whether remote shards are read where they are."""

    def groups(self, shards: Iterable[int]) -> list[list[int]]:
        """Split shards into groups that may be open at the same time: remote ones by this rank's share of the cache."""
        groups: list[list[int]] = []
        taken = 0
        for number in shards:
            size = self._fetched_bytes(number)
            if not groups or taken + size > self._share:
                groups.append([])
                taken = 0
            groups[-1].append(number)
            taken += size
        return groups

    @contextlib.contextmanager
    def open(
        self, shards: Sequence[int], stop: threading.Event | None = None, *, local: bool = False
    ) -> Iterator[list[str]]:
        """Local paths of the shards, valid inside the `with` block; their URLs while the cache cannot be used.

        Args:
            shards: their numbers.
            stop: gives up waiting for their storage.
            local: an error instead of URLs.

        Raises:
            DatasetError: a remote shard cannot be downloaded, or is damaged.
        """
        with contextlib.ExitStack() as leases:
            paths = []
            for number in shards:
                path, entry = self._dataset.shard_path(number), self._dataset.shards[number]
                if self._cache is not None and not is_local(path):
                    try:
                        with shard_errors(self._dataset, [number]):
                            lease = self._cache.lease(path, size=entry.bytes, sha256=entry.sha256, stop=stop)
                        path = str(leases.enter_context(lease).path)
                    except CacheUnusable as error:
                        if local:
                            raise
                        self._cache.warn("without", "%s Until then shards are read where they are.", error)
                paths.append(path)
            yield paths

    def distrust(self, shards: Iterable[int]) -> None:
        """Have the cache check its copies of shards before it uses them again."""
        for number in shards:
            if self._cache is not None and not is_local(self._dataset.shard_path(number)):
                self._cache.distrust(self._dataset.shards[number].sha256)

    def prefetch(self, shards: Iterable[int]) -> None:
        """Start to download shards, given in the order of need, as many as this rank's share of the cache holds."""
        if self._cache is None:
            return
        taken = 0
        for number in dict.fromkeys(shards):
            entry = self._dataset.shards[number]
            size = self._fetched_bytes(number)
            taken += size
            if taken > self._share:
                return
            if size:
                self._cache.prefetch(self._dataset.shard_path(number), size=size, sha256=entry.sha256)

    def _fetched_bytes(self, number: int) -> int:
        """Bytes of the cache that opening a shard takes; 0 for a local one."""
        local = self._cache is None or is_local(self._dataset.shard_path(number))
        return 0 if local else self._dataset.shards[number].bytes
