"""An epoch of the plan → encoded batches, read in chunks of steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from streamvid.dataset.clip_source import ClipSource
from streamvid.errors import ClipError
from streamvid.fetch.encoded_batch import EncodedBatch, read_batches
from streamvid.fetch.plan_samples import SampleSpec
from streamvid.fetch.shard_access import ShardAccess
from streamvid.plan.epoch import Epoch
from streamvid.plan.sample_id import rows_of
from streamvid.storage.range_reader import FileTooShort

_CHUNK_CLIPS: Final = 64
"""Clips whose packets are read together: enough for long reads, few enough for memory."""
_PREFETCHED_STEPS: Final = 64
"""How many steps ahead shards of a remote dataset are downloaded, if the cache has room for them."""
_CHUNKS_AHEAD: Final = 8
"""Chunks that are read side by side by range, each in a thread, so that they wait for the storage together."""
_AHEAD_BYTES: Final = 256 << 20
"""Bytes of those chunks, unless two single steps take more."""


class Rescue(Protocol):
    """Makes a batch anew in which a clip is bad, or seems to be."""

    def __call__(self, number: int, cause: Exception | None = None, *, decode: bool = True) -> EncodedBatch:
        """The batch of that number, with other clips in the place of bad ones.

        Args:
            number: of the batch.
            cause: what failed, for the log, if that was no clip's fault.
            decode: find out whether its slices decode, too.

        Raises:
            StreamvidError: of a storage, or because there are too many bad clips.
        """

    def is_stale(self, batch: EncodedBatch) -> bool:
        """Whether a clip of the batch was found bad in it or before it, since it was read."""


def read_epoch(
    dataset: ClipSource,
    access: ShardAccess,
    spec: SampleSpec,
    epoch: Epoch,
    stop: threading.Event,
    rescue: Rescue | None = None,
    *,
    batch_size: int,
) -> Generator[EncodedBatch, None, None]:
    """The remaining batches of an epoch, in order.

    Steps are read in chunks. The first chunk is a single step, so that the first batch comes soon. Where byte ranges
    of remote shards are read rather than whole shards, several chunks are under way.

    Args:
        dataset: where clips come from.
        access: opens its shards.
        spec: how samples are drawn from clips.
        epoch: the steps of this rank.
        stop: gives up waiting for a storage.
        rescue: for batches whose clips are damaged; None: their errors are raised.
        batch_size: clips per step at most.

    Raises:
        DatasetError: a shard cannot be read, or an index is damaged.
    """

    longest = max(1, _CHUNK_CLIPS // batch_size)

    def read_once(start: int, end: int) -> list[EncodedBatch]:
        batches = read_batches(dataset, [epoch.step(number) for number in range(start, end)], spec, access, stop)
        access.have_read(range(start, end))
        return batches

    def read_alone(number: int) -> EncodedBatch:
        try:
            return read_once(number, number + 1)[0]
        except (ClipError, FileTooShort) as error:
            if rescue is None:
                raise
            return rescue(number, error, decode=False)

    def read(start: int, end: int) -> list[EncodedBatch]:
        if end - start > 1:
            try:
                return read_once(start, end)
            except (ClipError, FileTooShort):
                if rescue is None:
                    raise
        return [read_alone(number) for number in range(start, end)]

    if access.by_range:
        yield from _read_ahead(read_once, read, epoch, longest)
        return
    start, length = epoch.done, 1
    while start < epoch.steps:
        end = min(start + length, epoch.steps)
        access.prefetch(upcoming_shards(dataset, epoch, end))
        yield from read(start, end)
        start, length = end, min(2 * length, longest)


def _read_ahead(
    read: Callable[[int, int], list[EncodedBatch]],
    read_again: Callable[[int, int], list[EncodedBatch]],
    epoch: Epoch,
    longest: int,
) -> Generator[EncodedBatch, None, None]:
    """The batches of chunks that are read side by side: of single steps until it is known how many bytes a step takes,
    then of as many as take their share of `_AHEAD_BYTES`, and of `longest` steps at most. Those with damaged clips are
    read again when their turn comes, as what is bad in one counts for all after it."""
    pending: deque[tuple[int, int, Future[list[EncodedBatch]]]] = deque()
    start, length, chunks, heaviest = epoch.done, 1, _CHUNKS_AHEAD // 2, 1
    with ThreadPoolExecutor(_CHUNKS_AHEAD, thread_name_prefix="streamvid-fetch") as pool:
        try:
            while start < epoch.steps or pending:
                while start < epoch.steps and len(pending) < chunks:
                    end = min(start + length, epoch.steps)
                    pending.append((start, end, pool.submit(read, start, end)))
                    start = end
                first, behind, future = pending.popleft()
                try:
                    batches = future.result()
                except (ClipError, FileTooShort):
                    batches = read_again(first, behind)
                heaviest = max(heaviest, *(batch.bytes_read for batch in batches))
                length = min(max(1, _AHEAD_BYTES // _CHUNKS_AHEAD // heaviest), 2 * length, longest)
                chunks = min(max(2, _AHEAD_BYTES // (length * heaviest)), _CHUNKS_AHEAD)
                yield from batches
        finally:
            for _, _, future in pending:
                future.cancel()


def upcoming_shards(dataset: ClipSource, epoch: Epoch, start: int) -> Iterator[int]:
    """The shards that the next `_PREFETCHED_STEPS` steps from `start` on will read, in that order, with repeats."""
    for number in range(start, min(start + _PREFETCHED_STEPS, epoch.steps)):
        yield from dataset.clips.shard[rows_of(epoch.step(number).sample_ids)].tolist()
