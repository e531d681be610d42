"""Opens shards as files: local ones directly, remote ones through the shard cache or as URLs that are read by range."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from streamvid.dataset.clip_source import ClipSource, ShardPaths, shard_errors
from streamvid.plan.uses import Uses
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.range_cache import Extents, FileIdentity, RangeCache, give_up_latest
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.shard_cache import UNUSABLE_SECONDS, WITHOUT, CacheUnusable, DamagedFile, ShardCache
from streamvid.storage.turn import Turn
from streamvid.storage.url import is_local, redact

_LEFT_NS: Final = 3600 * 10**9
"""After so many nanoseconds without use, files of other datasets are evicted before those of this run's dataset."""
_SHARE: Final = 16
"""A rank leases at most 1/16 of the cache at once, and prefetches as much, so that the ranks of a node share it."""


class ShardAccess:
    """Opens a dataset's shards.

    Args:
        dataset: local, remote, or several of both.
        cache: for remote shards; None: they are read from the storage.
        limit_bytes: size limit of the cache.
        by_range: whether remote shards are read by byte range, which the cache keeps, instead of as a whole.
    """

    def __init__(
        self, dataset: ClipSource, *, cache: ShardCache | None, limit_bytes: int, by_range: bool = False
    ) -> None:
        self._dataset = dataset
        self._cache = cache
        self._share = limit_bytes // _SHARE
        self.by_range = by_range
        dataset.reader.remote.from_whole_files = not by_range
        self._uses: Uses | None = None
        self._without_cache = 0.0
        """Until when no copies in the cache are used, monotonic."""
        self._before = {"requests": 0, "bytes_fetched": 0}
        self._before = self.asked()

    def follow(self, uses: Uses) -> None:
        """Make a full cache evict first the files that are needed latest by the plan. Files of other datasets and runs
        go before those, an hour after their last use."""
        self._uses = uses
        if self._cache is not None and self.by_range:
            self._cache.give_up = self._give_up

    def have_read(self, steps: Iterable[int]) -> None:
        """Note that these steps of the epoch have been read."""
        if self._uses is not None:
            self._uses.read.update(steps)

    def _give_up(self, wanted: int) -> int:
        assert self._cache is not None
        assert self._uses is not None
        dataset, folder = self._dataset, self._cache.folder
        there = {path.name for path, _, _ in folder.kept()}
        own = [
            (number, extension, FileIdentity(sha256, size))
            for number in range(len(dataset.shards))
            for extension, _, size, sha256 in self._fetched(number)
            if folder.ranges(sha256, size).name in there
        ]
        names = {folder.ranges(file.sha256, file.size).name for _, _, file in own}
        if folder.evict_oldest(wanted, before=time.time_ns() - _LEFT_NS, but=names):
            return wanted
        when = self._uses.next()
        extents = []
        for number, extension, file in own:
            rows = dataset.rows(number)
            starts = dataset.clips.index_offset[rows] if extension == "packets" else dataset.clips.mp4_offset[rows]
            if rows.stop > rows.start:
                extents.append(Extents(file, starts, when[rows]))
        return give_up_latest(folder, extents, wanted)

    def asked(self) -> dict[str, Any]:
        """Requests for ranges and whole shards since this object was made, and the bytes asked for, by their names in
        `LoaderStats`."""
        links = [self._dataset.reader.remote.link, *([] if self._cache is None else [self._cache.link])]
        requests = sum(link.requests + link.hedged for link in links)
        size = sum(link.bytes + link.hedged_bytes for link in links)
        before = self._before
        return {"requests": requests - before["requests"], "bytes_fetched": size - before["bytes_fetched"]}

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
        self, shards: Sequence[int], stop: threading.Event | None = None, *, checked: bool = False
    ) -> Iterator[ShardPaths]:
        """The tars and frame indexes of shards as local files, valid inside the `with` block. They are URLs while the
        cache cannot be used, and, if reads are `checked`, for shards whose bytes in the storage contradict
        dataset.json.

        Args:
            shards: their numbers.
            stop: gives up waiting for their storage.
            checked: whether the caller compares packets and indexes with their checksums. If not, a damaged file is an
                error.

        Raises:
            DatasetError: a remote shard cannot be downloaded, or is damaged.
            CacheUnusable: raised in the place of the block's error, if that is a StorageUnavailable for a copy in the
                cache. For a while, shards are then URLs.
        """
        with contextlib.ExitStack() as leases:
            cached: dict[tuple[int, str], str] = {}
            bypassed = self.by_range or time.monotonic() < self._without_cache
            for number in shards:
                for extension, url, size, sha256 in [] if bypassed else self._fetched(number):
                    assert self._cache is not None
                    with shard_errors(self._dataset, {url: number}):
                        try:
                            lease = self._cache.lease(url, size=size, sha256=sha256, stop=stop)
                            cached[number, extension] = leases.enter_context(lease).opened
                        except CacheUnusable as error:
                            self._cache.warn("without", WITHOUT, error)
                        except DamagedFile as error:
                            if not checked:
                                raise
                            self._cache.warn(sha256, "%s Until then only its damaged clips are left out.", error)

            def path_of(s: int, extension: str = "tar", /) -> str:
                return cached.get((s, extension)) or self._dataset.shard_path(s, extension)

            try:
                yield path_of
            except StorageUnavailable as error:
                if self._cache is None or error.path not in {*map(redact, cached.values())}:
                    raise
                self._without_cache = time.monotonic() + UNUSABLE_SECONDS
                unusable = self._cache.gave_up("its disk does not answer")
                self._cache.warn("without", WITHOUT, unusable)
                raise unusable from error

    def reader(
        self, shards: Sequence[int], stop: threading.Event | None = None, turn: Turn | None = None
    ) -> RangeReader:
        """A new reader of shards, for one chunk only: it keeps the files that it reads open, so they take disk space
        even after the cache has evicted them.

        Args:
            shards: their numbers.
            stop: gives up waiting for their storage.
            turn: priority among concurrent readers.
        """
        like = self._dataset.reader
        cache = None
        if self._cache is not None and self.by_range:
            files = [file for number in shards for file in self._fetched(number)]
            cache = RangeCache(self._cache, {url: FileIdentity(sha256, size) for _, url, size, sha256 in files})
        return RangeReader(like.retry if stop is None else like.retry.until(stop), like=like, cache=cache, turn=turn)

    def distrust(self, shards: Iterable[int]) -> bool:
        """Make the cache check its copies of shards before their next use, and drop its ranges of them. Returns whether
        it had any."""
        had = False
        for number in shards:
            for _, _, size, sha256 in self._fetched(number):
                assert self._cache is not None
                had = self._cache.distrust(sha256, size) or had
        return had

    def prefetch(self, shards: Iterable[int]) -> None:
        """Start to download shards, in the given order, as many as this rank's share of the cache holds."""
        taken = 0
        for number in () if self.by_range else dict.fromkeys(shards):
            taken += self._fetched_bytes(number)
            if taken > self._share:
                return
            for _, url, size, sha256 in self._fetched(number):
                assert self._cache is not None
                self._cache.prefetch(url, size=size, sha256=sha256)

    def _fetched(self, number: int) -> list[tuple[str, str, int, str]]:
        """The files of a shard that are read through the cache: extension, URL, size and SHA-256 of each."""
        entry = self._dataset.shards[number]
        if self._cache is None or is_local(self._dataset.shard_path(number)):
            return []
        sums = entry.checksums
        return [
            (extension, self._dataset.shard_path(number, extension), size, sums[extension])
            for extension, size in entry.sizes.items()
        ]

    def _fetched_bytes(self, number: int) -> int:
        """Bytes that opening a shard takes in the cache; 0 for a local shard."""
        return 0 if self.by_range else sum(size for _, _, size, _ in self._fetched(number))
