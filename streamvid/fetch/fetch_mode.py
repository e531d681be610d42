"""Byte ranges or whole shards: what a run of a remote dataset fetches, by how much either would be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.fetch.plan_samples import SampleSpec, plan_samples
from streamvid.plan.epoch import Step
from streamvid.plan.sample_id import rows_of
from streamvid.storage.url import is_local

Fetch = Literal["auto", "ranges", "shards"]
FETCHES: Final[tuple[Fetch, ...]] = ("auto", "ranges", "shards")

_PROBED: Final = 16
"""Samples whose byte ranges are found out, to predict those of all."""
_REQUEST_BYTES: Final = 400_000
"""What a request costs, in bytes: at 2,500 requests a second, as many come in its time on a link of 1 GB/s."""
_SHARD_REQUEST_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class FetchCost:
    """What a node fetches in an epoch, predicted.

    Attributes:
        bytes, requests: in all.
    """

    bytes: float
    requests: float

    @property
    def weight(self) -> float:
        """Bytes, and requests as bytes."""
        return self.bytes + self.requests * _REQUEST_BYTES


def cost_of_ranges(dataset: ClipSource, sample_ids: Int64, spec: SampleSpec, *, samples: int) -> FetchCost:
    """What the byte ranges of samples cost, with one for each frame index. The indexes of some of them all over the
    dataset are read for it.

    Args:
        dataset: whose shards.
        sample_ids: int64, those of a pass.
        spec: how samples are drawn from clips.
        samples: how many a node takes in an epoch.

    Raises:
        DatasetError: an index cannot be read.
    """
    probed = np.unique(sample_ids[np.linspace(0, len(sample_ids) - 1, min(_PROBED, len(sample_ids))).astype(np.int64)])
    step = Step(probed, np.zeros(len(probed), dtype=np.int64), np.ones(len(probed), dtype=bool))
    spans = [sample.spans for sample in plan_samples(dataset, step, spec)]
    size = np.mean([int((one[:, 1] - one[:, 0]).sum()) for one in spans])
    return FetchCost(float(size) * samples, (float(np.mean([len(one) for one in spans])) + 1) * samples)


def cost_of_shards(
    dataset: ClipSource, sample_ids: Int64, *, samples: int, cached: Callable[[str], bool] = lambda _: False
) -> FetchCost:
    """What the whole shards of samples cost, each fetched once.

    Args:
        dataset, sample_ids, samples: as of `cost_of_ranges`.
        cached: whether a shard is there already, by its SHA-256.
    """
    # A shard that holds a share of the samples is needed if one of them is drawn.
    held = np.bincount(dataset.clips.shard[rows_of(sample_ids)], minlength=len(dataset.shards)) / len(sample_ids)
    needed = 1 - np.exp(-held * samples)
    there = [is_local(dataset.shard_path(s)) or cached(one.sha256) for s, one in enumerate(dataset.shards)]
    needed[np.array(there)] = 0
    size = float(np.array([one.bytes for one in dataset.shards], dtype=np.float64) @ needed)
    return FetchCost(size, size / _SHARD_REQUEST_BYTES + float(needed.sum()))


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
    """The cheaper one. Whole shards are kept in the cache for the next epoch, and so may cost twice as much if it holds
    them all; if not, they must come one after the other, as they are fetched many times otherwise.

    Args:
        dataset, sample_ids, spec, samples: as of `cost_of_ranges`.
        cache_bytes: the cache's limit.
        cached: as of `cost_of_shards`.
        in_order: the order goes from shard to shard.

    Raises:
        DatasetError: an index cannot be read.
    """
    if not all(entry.has_tar for entry in dataset.shards):
        return "ranges"
    fits = cost_of_shards(dataset, sample_ids, samples=samples).bytes <= cache_bytes
    if not fits and not in_order:
        return "ranges"
    shards = cost_of_shards(dataset, sample_ids, samples=samples, cached=cached).weight / (2 if fits else 1)
    if shards <= 2 * samples * _REQUEST_BYTES:  # an index and a range for each sample at least
        return "shards"
    return "shards" if shards <= cost_of_ranges(dataset, sample_ids, spec, samples=samples).weight else "ranges"
