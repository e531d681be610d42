"""The cost of a frame sampler: bytes read and packets decoded per clip, computed from frame indexes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.fetch.fetch_mode import FetchCost, cost_of_ranges, cost_of_shards
from streamvid.fetch.plan_samples import SampleSpec, clip_times, shown_frames
from streamvid.plan.inputs import make_pools, open_source
from streamvid.sampling.base import FrameSampler, select
from streamvid.storage.url import redact
from streamvid.video.packet_selection import byte_ranges, select_packets

_CLIPS: Final = 500
"""Clips over which the means are taken at most."""
_AT_ONCE: Final = 64
"""Samples that a loader reads together, if a batch has no more."""
_CHUNKS: Final = 4
"""Chunks of samples that are planned to predict the cost of an epoch."""
_SHARDS: Final = 16
"""The most shards that the clips come from."""


@dataclass(frozen=True)
class SamplingCost:
    """Means over clips, with one sample of each.

    Attributes:
        clips: number of clips.
        frames: distinct frames delivered.
        packets: packets decoded for them.
        bytes: bytes read for them from a local disk, including small gaps that are read rather than skipped.
        reads: byte ranges read.
        whole_packets, whole_bytes: packets and bytes of whole clips.
    """

    clips: int
    frames: float
    packets: float
    bytes: float
    reads: float
    whole_packets: float
    whole_bytes: float

    @property
    def decoded_per_frame(self) -> float:
        """Packets decoded per frame delivered."""
        return self.packets / self.frames


@dataclass(frozen=True)
class EpochCost:
    """The requests and bytes that one node fetches from a bucket in an epoch over all clips, in random order, with a
    cache that is large enough.

    Attributes:
        samples: number of samples in the epoch.
        ranges: cost of byte ranges.
        shards: cost of whole shards.
        cheaper: the one that ``fetch="auto"`` chooses if the cache is large enough for all shards.
        money: price of `ranges` and of `shards`; None without prices.
    """

    samples: int
    ranges: FetchCost
    shards: FetchCost
    cheaper: Literal["ranges", "shards"]
    money: tuple[float, float] | None


def epoch_cost(dataset: Dataset, sampling: FrameSampler, *, prices: tuple[float, float] | None = None) -> EpochCost:
    """Predict the requests of a `StreamLoader` from the frame indexes of some clips. A local dataset is treated as if
    it were in a bucket.

    Args:
        dataset: at least one clip.
        prices: price of a gigabyte (10**9 bytes), and of a thousand requests.

    Raises:
        DatasetError: an index cannot be read.
        InputError: no clip is long enough for the sampling.
    """
    pools = make_pools(open_source(dataset, Dataset.open), sampling)
    ids = pools.pools[0].sample_ids
    spec = SampleSpec(sampling, seed=0, num_random=0)
    ranges = cost_of_ranges(dataset, ids, spec, samples=len(ids), chunks=_CHUNKS, at_once=_AT_ONCE)
    shards = cost_of_shards(dataset, ids, samples=len(ids))
    # As in `choose_fetch`: whole shards stay in the cache for the next epoch.
    whole = shards.weight / 2 <= ranges.weight and all(entry.has_tar for entry in dataset.shards)
    cheaper: Literal["ranges", "shards"] = "shards" if whole else "ranges"
    money = None
    if prices is not None:
        gigabyte, thousand = prices
        money = (
            gigabyte * ranges.bytes / 1e9 + thousand * ranges.requests / 1e3,
            gigabyte * shards.bytes / 1e9 + thousand * shards.requests / 1e3,
        )
    return EpochCost(len(ids), ranges, shards, cheaper, money)


def sampling_cost(dataset: ClipSource, sampling: FrameSampler) -> SamplingCost:
    """The mean cost of a frame sampler, computed from the frame indexes of some clips, the same at every call.

    Raises:
        InputError: all clips are forgotten.
        DatasetError: a shard cannot be read, or an index is damaged.
    """
    random = np.random.default_rng(0)
    figures = []
    rows = _chosen(dataset, random)
    if not len(rows):
        raise InputError(f"all clips of {redact(dataset.path)} are forgotten: there is none to sample")
    for row, index in zip(rows.tolist(), dataset.indexes(rows.tolist()), strict=True):
        selection = select(sampling, clip_times(dataset, row, index), random.random(sampling.num_random))
        (frames,) = shown_frames([selection])
        part = select_packets(index, frames)
        spans = byte_ranges(part)
        read = int((spans[:, 1] - spans[:, 0]).sum())
        figures.append((len(frames), len(part.sizes), read, len(spans), len(index), int(dataset.clips.mp4_size[row])))
    means = np.mean(figures, axis=0).tolist()
    return SamplingCost(len(rows), *means)


def _chosen(dataset: ClipSource, random: np.random.Generator) -> Int64:
    """Ascending rows: all clips of a small dataset, else a random choice from shards drawn with weights by size."""
    sizes = np.array([entry.clips for entry in dataset.shards], dtype=np.int64)
    filled = np.flatnonzero(sizes)
    if len(filled) > _SHARDS:
        filled = np.sort(random.choice(filled, _SHARDS, replace=False, p=sizes[filled] / sizes.sum()))
    rows = np.concatenate([np.arange(dataset.rows(s).start, dataset.rows(s).stop) for s in filled.tolist()])
    rows = rows[~np.isin(rows, dataset.forgotten)]
    return rows if len(rows) <= _CLIPS else np.sort(random.choice(rows, _CLIPS, replace=False))
