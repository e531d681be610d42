"""An epoch of the plan → encoded batches, read in chunks of steps."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from typing import Final

from streamvid.dataset.clip_source import ClipSource
from streamvid.fetch.encoded_batch import EncodedBatch, read_batches
from streamvid.fetch.plan_samples import SampleSpec
from streamvid.fetch.shard_access import ShardAccess
from streamvid.plan.epoch_plan import Epoch
from streamvid.plan.sample_id import rows_of

_CHUNK_CLIPS: Final = 64
"""Clips whose packets are read together: enough for long reads, few enough for memory."""
_PREFETCHED_STEPS: Final = 64
"""How many steps ahead shards of a remote dataset are downloaded, if the cache has room for them."""


def read_epoch(
    dataset: ClipSource, access: ShardAccess, spec: SampleSpec, epoch: Epoch, stop: threading.Event, *, batch_size: int
) -> Generator[EncodedBatch, None, None]:
    """The remaining batches of an epoch, in order.

    Steps are read in chunks. The first chunk is a single step, so that the first batch comes soon.

    Args:
        dataset: where clips come from.
        access: opens its shards.
        spec: how samples are drawn from clips.
        epoch: the steps of this rank.
        stop: gives up waiting for a storage.
        batch_size: clips per step at most.

    Raises:
        DatasetError: a shard cannot be read, or an index is damaged.
    """
    longest = max(1, _CHUNK_CLIPS // batch_size)
    start, length = epoch.done, 1
    while start < epoch.steps:
        end = min(start + length, epoch.steps)
        access.prefetch(upcoming_shards(dataset, epoch, end))
        yield from read_batches(dataset, [epoch.step(number) for number in range(start, end)], spec, access, stop)
        start, length = end, min(2 * length, longest)


def upcoming_shards(dataset: ClipSource, epoch: Epoch, start: int) -> Iterator[int]:
    """The shards that the next `_PREFETCHED_STEPS` steps from `start` on will read, in that order, with repeats."""
    for number in range(start, min(start + _PREFETCHED_STEPS, epoch.steps)):
        yield from dataset.clips.shard[rows_of(epoch.step(number).sample_ids)].tolist()
