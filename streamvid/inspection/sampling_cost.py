"""What a way of sampling costs: bytes read and frames decoded per clip, worked out on some clips' frame indexes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.fetch.plan_samples import GAP_BYTES, clip_times
from streamvid.sampling.base import FrameSampler, select
from streamvid.video.packet_selection import byte_ranges, select_packets

CLIPS: Final = 500
_SHARDS: Final = 16
"""Clips come from so many shards at most: of a remote dataset, one parquet has to be fetched for each."""


@dataclass(frozen=True)
class SamplingCost:
    """Means over clips, of one sample each.

    Attributes:
        looked_at: how many clips.
        frames: different frames delivered.
        packets: packets decoded for them.
        bytes: read for them from a local disk, gaps that are cheaper to read than to skip included.
        reads: requests for these.
        whole_packets, whole_bytes: packets and bytes of the whole clips.
    """

    looked_at: int
    frames: float
    packets: float
    bytes: float
    reads: float
    whole_packets: float
    whole_bytes: float

    @property
    def decoded_per_frame(self) -> float:
        """Frames decoded per frame delivered."""
        return self.packets / self.frames


def sampling_cost(dataset: ClipSource, sampling: FrameSampler, *, clips: int = CLIPS, seed: int = 0) -> SamplingCost:
    """What a way of sampling costs on average. Reads frame indexes alone, and those of a few shards.

    Args:
        dataset: at least one clip.
        sampling: the way; clips that are too short repeat their last frame.
        clips: how many to look at, at most.
        seed: for which clips, and which of their frames.

    Raises:
        DatasetError: a shard's parquet is gone or damaged.
    """
    random = np.random.default_rng(seed)
    figures = []
    rows = _chosen(dataset, clips, random)
    for row in rows.tolist():
        index = dataset.index(row)
        selection = select(sampling, clip_times(dataset, row, index), random.random(sampling.num_random))
        frames = np.unique(selection.frames)
        part = select_packets(index, frames)
        spans = byte_ranges(part, gap=GAP_BYTES)
        read = int((spans[:, 1] - spans[:, 0]).sum())
        figures.append((len(frames), len(part.sizes), read, len(spans), len(index), int(dataset.clips.mp4_size[row])))
    means = np.mean(figures, axis=0).tolist()
    return SamplingCost(len(rows), *means)


def _chosen(dataset: ClipSource, count: int, random: np.random.Generator) -> Int64:
    """Rows, rising: all clips of a small dataset; else some from a few shards, each shard as likely as it is large."""
    sizes = np.array([entry.clips for entry in dataset.shards], dtype=np.int64)
    filled = np.flatnonzero(sizes)
    if len(filled) > _SHARDS:
        filled = np.sort(random.choice(filled, _SHARDS, replace=False, p=sizes[filled] / sizes.sum()))
    rows = np.concatenate([np.arange(dataset.rows(s).start, dataset.rows(s).stop) for s in filled.tolist()])
    return rows if len(rows) <= count else np.sort(random.choice(rows, count, replace=False))
