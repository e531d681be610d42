"""Decides whether a run fetches byte ranges or whole shards of a remote dataset, by the predicted cost of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from streamvid.arrays import Int64, UInt8
from streamvid.dataset.clip_source import ClipSource
from streamvid.fetch.plan_samples import SampleSpec, plan_samples
from streamvid.plan.epoch import Step
from streamvid.plan.sample_id import rows_of
from streamvid.storage.byte_range import (
    PART_BYTES,
    REQUEST_BYTES,
    WASTE,
    ByteRange,
    in_parts,
    join,
    whole_blocks,
)
from streamvid.storage.explain import NoRangesError
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.url import is_local
from streamvid.video.packet_selection import byte_ranges

Fetch = Literal["auto", "ranges", "shards"]
FETCHES: Final[tuple[Fetch, ...]] = ("auto", "ranges", "shards")

_PROBED: Final = 16
"""Number of samples whose byte ranges are planned to predict those of all."""


@dataclass(frozen=True)
class FetchCost:
    """The predicted cost of fetching an epoch on one node.

    Attributes:
        bytes, requests: total number of bytes, and of requests.
    """

    bytes: float
    requests: float

    @property
    def weight(self) -> float:
        """The cost in bytes, in which a request counts as a fixed number of bytes."""
        return self.bytes + self.requests * REQUEST_BYTES


def cost_of_ranges(
    dataset: ClipSource, sample_ids: Int64, spec: SampleSpec, *, samples: int, chunks: int = _PROBED, at_once: int = 1
) -> FetchCost:
    """The cost of fetching samples and their frame indexes by byte range, from a bucket and through a cache. Estimated
    by planning some samples from all over the dataset, because an epoch is in random order.

    Args:
        dataset: the dataset.
        sample_ids: int64 [samples], the samples to choose from.
        spec: how samples are drawn from clips.
        samples: number of samples that a node takes in an epoch.
        chunks: number of chunks of samples that are planned.
        at_once: samples in a chunk; those read together share requests.

    Raises:
        DatasetError: an index cannot be read.
    """
    sample_ids = sample_ids[~np.isin(rows_of(sample_ids), dataset.forgotten)]  # some clips have no bytes to read
    if not len(sample_ids):
        return FetchCost(0.0, 0.0)
    reader = _Noted(like=dataset.reader)
    dataset.forget_indexes()
    size = requests = planned = 0
    places = _spread(len(sample_ids), chunks * at_once)
    for first in range(0, len(places), at_once):
        probed = np.unique(sample_ids[places[first : first + at_once]])
        step = Step(probed, np.zeros(len(probed), dtype=np.int64), np.ones(len(probed), dtype=bool))
        reader.noted.clear()
        plans = plan_samples(dataset, step, spec, reader=reader)
        packets = []
        for sample in plans:
            spans, path = sample.spans, dataset.location(sample.clip)
            origin = int(dataset.clips.mp4_offset[sample.clip])
            if spec.checksum != "sha256":  # as local files are planned with other gaps
                spans = byte_ranges(sample.packets, gap=reader.remote.link.gap, waste=WASTE)
            packets += [ByteRange(path, origin + start, origin + end) for start, end in spans.tolist()]
        kept = _kept_files(dataset, rows_of(probed))
        for ranges in (*reader.noted, packets):
            whole = [whole_blocks(piece, kept[piece.path]) if piece.path in kept else piece for piece in ranges]
            asked = wanted = join(whole, gap=reader.remote.link.gap)[0]
            if ranges is not packets:  # bytes between frame indexes are not read again
                asked, wanted = join(whole, gap=REQUEST_BYTES, waste=math.inf)[0], join(whole, gap=0)[0]
            size += sum(piece.end - piece.start for piece in wanted)
            requests += len(in_parts(asked))
        planned += len(plans)
    return FetchCost(size * samples / planned, requests * samples / planned)


class _Noted(RangeReader):
    """A reader that notes which ranges of frame indexes are read together."""

    def __init__(self, like: RangeReader) -> None:
        super().__init__(like.retry, like=like)
        self.noted: list[list[ByteRange]] = []

    def read(self, ranges: Sequence[ByteRange], *versions: Any, **options: Any) -> list[UInt8]:
        self.noted.append([*ranges])
        return super().read(ranges, *versions, **options)


def _spread(count: int, wanted: int) -> Int64:
    """int64 [at most wanted]: indices below `count`, uniform, in random order; if `count` is large, some may repeat."""
    dice = np.random.default_rng(0)
    return dice.permutation(count)[:wanted] if count <= 1 << 20 else dice.integers(0, count, wanted)


def _kept_files(dataset: ClipSource, clips: Int64) -> dict[str, int]:
    """The files of the clips' shards, which a cache of ranges keeps in whole blocks, and their sizes in bytes."""
    shards = np.unique(dataset.clips.shard[clips]).tolist()
    return {dataset.shard_path(s, name): size for s in shards for name, size in dataset.shards[s].sizes.items()}


def cost_of_shards(
    dataset: ClipSource, sample_ids: Int64, *, samples: int, there: Callable[[int], bool] = lambda _: False
) -> FetchCost:
    """The cost of fetching whole shards, tars and frame indexes, each once.

    Args:
        dataset, sample_ids, samples: as in `cost_of_ranges`.
        there: whether the cache has a shard already, by its number.
    """
    # A shard is needed if the epoch has one of its samples.
    held = np.bincount(dataset.clips.shard[rows_of(sample_ids)], minlength=len(dataset.shards)) / len(sample_ids)
    needed = 1 - (1 - held) ** samples if samples < len(sample_ids) else (held > 0).astype(np.float64)
    needed[np.array([there(s) for s in range(len(dataset.shards))])] = 0
    files = np.array([(shard.bytes, shard.packets_bytes) for shard in dataset.shards], dtype=np.float64)
    requests = (np.ceil(files / PART_BYTES) + 1).sum(axis=1)  # for each file, a request for its size, too
    return FetchCost(float(needed @ files.sum(axis=1)), float(needed @ requests))


def choose_fetch(
    dataset: ClipSource,
    sample_ids: Int64,
    spec: SampleSpec,
    *,
    samples: int,
    cache_bytes: int,
    cached: Callable[[str], bool],
    in_order: bool,
) -> Literal["ranges", "shards"]:
    """Choose the cheaper mode. Whole shards may cost twice as much as ranges if the cache holds them all, as they are
    kept for the next epoch. If it does not, they are chosen only if the order goes shard by shard, since they would be
    fetched many times otherwise.

    Args:
        dataset, sample_ids, spec, samples: as in `cost_of_ranges`.
        cache_bytes: size limit of the cache.
        cached: whether the cache has a shard already, by its SHA-256.
        in_order: whether the order goes shard by shard.

    Raises:
        DatasetError: an index cannot be read.
    """
    if not all(entry.has_tar for entry in dataset.shards):
        return "ranges"

    def there(s: int) -> bool:
        return is_local(dataset.shard_path(s)) or cached(dataset.shards[s].sha256)

    fits = cost_of_shards(dataset, sample_ids, samples=samples).bytes <= cache_bytes
    if not fits and not in_order:
        return "ranges"
    shards = cost_of_shards(dataset, sample_ids, samples=samples, there=there).weight / (2 if fits else 1)
    if shards <= 2 * samples * REQUEST_BYTES:  # at least an index and a range for each sample
        return "shards"
    try:
        ranges = cost_of_ranges(dataset, sample_ids, spec, samples=samples).weight
    except NoRangesError:
        return "shards"
    return "shards" if shards <= ranges else "ranges"
