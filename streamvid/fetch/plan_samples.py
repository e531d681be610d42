"""Steps of the plan → sample plans: which frames of each clip, and the packets and byte ranges that decode to them.

Nothing of a clip is read here but its frame index. `streamvid.fetch.encoded_batch` reads the packets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np

from streamvid.arrays import Float64, Int64
from streamvid.dataset.clip_source import ClipSource, ShardPaths
from streamvid.errors import ClipError
from streamvid.plan.epoch import Step
from streamvid.plan.rng import AUGMENT, draws
from streamvid.plan.sample_id import row_of, rows_of, sample_of
from streamvid.sampling.base import ClipTimes, FrameSampler, Selection, lengthen, select
from streamvid.sampling.padding import Pad
from streamvid.storage.byte_range import WASTE
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.url import is_local
from streamvid.video.frame_index import FrameIndex
from streamvid.video.packet_selection import PacketSelection, byte_ranges, select_packets

Checksum = Literal["crc32c", "sha256"]
CHECKSUMS: Final[tuple[Checksum, ...]] = ("crc32c", "sha256")


@dataclass(frozen=True)
class SampleSpec:
    """How samples are drawn from clips.

    Attributes:
        sampling: chooses the frames.
        seed: of all random numbers.
        num_random: random numbers per sample that the transform takes.
        checksum: by what the bytes that are read are checked; "sha256" reads whole clips for it.
    """

    sampling: FrameSampler
    seed: int
    num_random: int
    checksum: Checksum | None = "crc32c"


@dataclass(frozen=True)
class SamplePlan:
    """One sample of a batch: its frames are chosen, its packets are not read yet.

    Attributes:
        clip: row number.
        epoch: in which pass over the dataset it comes; its random numbers depend on it.
        valid: False if it only fills the batch up.
        selection: which frame each frame position shows.
        random: float64 [num_random], uniform in [0, 1), for the transform.
        packets: the packets to decode.
        spans: int64 [ranges, 2], the bytes of the clip's mp4 to read.
        absent: row of the absent clip in whose place it stands, -1 for none.
    """

    clip: int
    epoch: int
    valid: bool
    selection: Selection
    random: Float64
    packets: PacketSelection
    spans: Int64
    absent: int = -1


def plan_samples(
    dataset: ClipSource,
    step: Step,
    spec: SampleSpec,
    *,
    reader: RangeReader | None = None,
    path_of: ShardPaths | None = None,
) -> list[SamplePlan]:
    """Choose the frames of a step's clips, or of some of them, and find their packets.

    Args:
        dataset: the clips.
        step: which, and in which pass.
        spec: how samples are drawn from clips.
        reader, path_of: for the frame indexes, see `ClipSource.indexes`.

    Raises:
        DatasetError: an index cannot be read, or is damaged.
    """
    samples = []
    indexes = dataset.indexes(rows_of(step.sample_ids).tolist(), reader=reader, path_of=path_of)
    items = zip(step.sample_ids.tolist(), step.passes.tolist(), step.valid.tolist(), indexes, strict=True)
    for (item, number, valid, index), absent in zip(items, step.stands_for.tolist(), strict=True):
        clip = row_of(item)
        for_sampling = draws(spec.seed, number, item, spec.sampling.num_random)
        for_transform = draws(spec.seed, number, item, spec.num_random, purpose=AUGMENT)
        times = clip_times(dataset, clip, index)
        selection = select(spec.sampling, times, for_sampling, number=sample_of(item))
        made = make_sample(dataset, spec, index, clip, number, valid, selection, for_transform, reader, path_of)
        samples.append(replace(made, absent=absent))
    return samples


def pad_to_longest(samples: Sequence[SamplePlan], pad: Pad) -> list[SamplePlan]:
    """Give all samples as many frame positions as the longest has."""
    length = max(len(sample.selection.frames) for sample in samples)
    return [replace(sample, selection=lengthen(sample.selection, length, pad)) for sample in samples]


def clip_times(dataset: ClipSource, clip: int, index: FrameIndex) -> ClipTimes:
    """When the frames of a clip are shown."""
    rows = dataset.clips
    tick = Fraction(int(rows.time_base_num[clip]), int(rows.time_base_den[clip]))
    return ClipTimes(
        index.frame_pts,
        int(rows.duration[clip]),
        tick,
        key=rows.key[clip],
        find_keyframes=lambda: index.keyframes,
        find_meta=lambda: _meta(dataset, clip),
    )


def _meta(dataset: ClipSource, clip: int) -> Mapping[str, Any]:
    text = dataset.clips.meta[clip]
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError):
        meta = None
    if not isinstance(meta, dict):
        shard = dataset.shards[int(dataset.clips.shard[clip])].name
        raise ClipError("its metadata are not a JSON object", row=clip, key=dataset.key(clip), shard=shard)
    return meta


def make_sample(
    dataset: ClipSource,
    spec: SampleSpec,
    index: FrameIndex,
    clip: int,
    epoch: int,
    valid: bool,
    selection: Selection,
    random: Float64,
    reader: RangeReader | None = None,
    path_of: ShardPaths | None = None,
) -> SamplePlan:
    """The sample of a clip that shows the selected frames; arguments as of `SamplePlan` and `plan_samples`."""
    shown = selection.frames[selection.frames >= 0]
    # If all positions are black, one frame is decoded nevertheless: the black frames take its size.
    frames = np.unique(shown) if len(shown) else np.zeros(1, dtype=np.int64)
    packets = select_packets(index, frames)
    if spec.checksum == "sha256":
        spans = np.array([[0, dataset.clips.mp4_size[clip]]], dtype=np.int64)
    elif is_local(dataset.location(clip, path_of)):
        spans = byte_ranges(packets)
    else:  # up to how many bytes between two ranges cost less than another request
        spans = byte_ranges(packets, gap=(reader or dataset.reader).remote.link.gap, waste=WASTE)
    return SamplePlan(clip, epoch, valid, selection, random, packets, spans)
