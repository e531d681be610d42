"""Plan steps → encoded samples: choose frames, find their packets, read them, cut them out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np

from streamvid.arrays import Bool, Float64, Int64, UInt8
from streamvid.dataset.clip_source import ClipSource
from streamvid.errors import DatasetError
from streamvid.fetch.shard_access import ShardAccess
from streamvid.plan.epoch_plan import Step
from streamvid.plan.permutation import AUGMENT, draws
from streamvid.plan.sample_id import row_of, sample_of
from streamvid.sampling.base import ClipTimes, FrameSampler, Selection, lengthen, select
from streamvid.sampling.spread import All
from streamvid.storage.range_reader import ByteRange, RangeReader
from streamvid.transform import params
from streamvid.transform.params import Fields
from streamvid.transform.spec import Transform, Views
from streamvid.video.frame_index import FrameIndex
from streamvid.video.packet_selection import EncodedSlice, PacketSelection, extract_packets, ranges, select_packets
from streamvid.video.stored_clip import UNORDERED

GAP_BYTES: Final = 64 << 10
"""On a local disk, reading this much too much costs less than another read."""


@dataclass(frozen=True)
class SampleSpec:
    """What is made of every clip."""

    sampling: FrameSampler
    transform: Transform | Views
    seed: int


@dataclass(frozen=True)
class SamplePlan:
    """One clip of a batch, chosen but not read yet.

    Attributes:
        clip: row number.
        valid: False if it is only there to fill the batch.
        selection: which frame each slot shows.
        random: float64 [transform.num_random], for the transform.
        packets: the packets to decode.
        spans: int64 [ranges, 2], the bytes of the clip's mp4 to read.
    """

    clip: int
    valid: bool
    selection: Selection
    random: Float64
    packets: PacketSelection
    spans: Int64


@dataclass(frozen=True)
class EncodedBatch:
    """A batch, ready to be decoded.

    Attributes:
        slices: per clip, what to decode.
        inputs: what the transform takes: see `streamvid.transform.params.inputs`.
        clips: int64 [batch], row numbers.
        labels: int64 [batch], -1 for none.
        valid: bool [batch].
        mask: bool [batch, slots].
        seconds: float64 [batch, slots].
        bytes_read: from the shards, for this batch.
    """

    slices: list[EncodedSlice]
    inputs: Fields
    clips: Int64
    labels: Int64
    valid: Bool
    mask: Bool
    seconds: Float64
    bytes_read: int


def plan_samples(dataset: ClipSource, step: Step, recipe: SampleSpec) -> list[SamplePlan]:
    """Choose the frames of a step's clips, and find their packets.

    Raises:
        DatasetError: an index is damaged.
    """
    samples = []
    for item, number, valid in zip(step.items.tolist(), step.passes.tolist(), step.valid.tolist(), strict=True):
        clip = row_of(item)
        index = dataset.index(clip)
        for_sampling = draws(recipe.seed, number, item, recipe.sampling.num_random)
        for_transform = draws(recipe.seed, number, item, recipe.transform.num_random, purpose=AUGMENT)
        times = clip_times(dataset, clip, index)
        selection = select(recipe.sampling, times, for_sampling, number=sample_of(item))
        samples.append(make_sample(index, clip, valid, selection, for_transform))
    if isinstance(recipe.sampling, All):
        slots = max(len(sample.selection.frames) for sample in samples)
        samples = [replace(s, selection=lengthen(s.selection, slots, recipe.sampling.pad)) for s in samples]
    return samples


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
        raise DatasetError(f"the metadata of clip {dataset.key(clip)!r} are not a JSON object: pack the dataset again")
    return meta


def make_sample(index: FrameIndex, clip: int, valid: bool, selection: Selection, random: Float64) -> SamplePlan:
    """The sample of a clip that shows the selected frames."""
    shown = selection.frames[selection.frames >= 0]
    # A constant picture needs no frame, but a decoder needs one to make a picture of that size.
    frames = np.unique(shown) if len(shown) else np.zeros(1, dtype=np.int64)
    part = select_packets(index, frames)
    return SamplePlan(clip, valid, selection, random, part, ranges(part, gap=GAP_BYTES))


def encode(
    dataset: ClipSource, batches: Sequence[Sequence[SamplePlan]], recipe: SampleSpec, access: ShardAccess
) -> list[EncodedBatch]:
    """Read the packets of several batches at once, and cut them out.

    Raises:
        DatasetError: a shard cannot be read.
    """
    flat = [sample for batch in batches for sample in batch]
    shards = dataset.clips.shard[[sample.clip for sample in flat]]
    slices: dict[int, EncodedSlice] = {}
    for group in access.groups(np.unique(shards).tolist()):
        members = np.flatnonzero(np.isin(shards, group)).tolist()
        with access.open(group) as paths:
            path_of = dict(zip(group, paths, strict=True))
            # A new reader each time: a file that stays open takes disk space after the cache has evicted it.
            read = read_slices(dataset, [flat[n] for n in members], RangeReader(), path_of.__getitem__)
        slices.update(zip(members, read, strict=True))
    encoded, first = [], 0
    for batch in batches:
        encoded.append(encoded_batch(dataset, batch, [slices[first + n] for n in range(len(batch))], recipe))
        first += len(batch)
    return encoded


def read_slices(
    dataset: ClipSource, samples: Sequence[SamplePlan], reader: RangeReader, path_of: Callable[[int], str]
) -> list[EncodedSlice]:
    """Read the byte ranges of samples in one call of the reader, and cut their packets out.

    Args:
        dataset: whose clips they are.
        samples: in any order; their shards may differ.
        reader: reads local paths and URLs.
        path_of: gives the path or URL of a shard's tar by its number.

    Raises:
        DatasetError: a shard cannot be read. Names the shard.
    """
    wanted = []
    for sample in samples:
        path, origin = path_of(int(dataset.clips.shard[sample.clip])), int(dataset.clips.mp4_offset[sample.clip])
        wanted += [ByteRange(path, origin + start, origin + end) for start, end in sample.spans.tolist()]
    blocks = iter(reader.read(wanted))
    slices = []
    for sample in samples:
        own = [next(blocks) for _ in range(len(sample.spans))]
        slices.append(encoded_slice(dataset, sample, extract_packets(sample.packets, sample.spans, own)))
    return slices


def encoded_slice(dataset: ClipSource, sample: SamplePlan, data: UInt8) -> EncodedSlice:
    """A sample's packets and what a decoder needs to know of them; `data` is uint8 [bytes], in decode order."""
    rows, clip, part = dataset.clips, sample.clip, sample.packets
    return EncodedSlice(
        name=rows.key[clip],
        codec=rows.codec[clip],
        stsd=rows.stsds[rows.stsd_id[clip]],
        width=int(rows.width[clip]),
        height=int(rows.height[clip]),
        full_range=rows.color_range[clip] == "pc",
        data=data,
        sizes=part.sizes,
        display_order=part.display_order,
        frames=part.frames,
        starts=part.starts,
        in_order=UNORDERED not in rows.traits[clip].split(","),
    )


def encoded_batch(
    dataset: ClipSource, batch: Sequence[SamplePlan], slices: list[EncodedSlice], recipe: SampleSpec
) -> EncodedBatch:
    """Samples of as many slots each, and their slices, as a batch."""
    rows = dataset.clips
    clips = np.array([sample.clip for sample in batch], dtype=np.int64)
    gathers = []
    for sample in batch:
        frames = sample.selection.frames
        unique = np.unique(frames[frames >= 0])
        gathers.append(np.where(frames >= 0, np.searchsorted(unique, frames), -1))
    inputs = params.inputs(
        recipe.transform,
        heights=rows.height[clips].astype(np.int64),
        widths=rows.width[clips].astype(np.int64),
        rotations=rows.rotation[clips].astype(np.int64),
        gather=np.stack(gathers),
        random=np.stack([sample.random for sample in batch]),
    )
    return EncodedBatch(
        slices=slices,
        inputs=inputs,
        clips=clips,
        labels=rows.label[clips],
        valid=np.array([sample.valid for sample in batch]),
        mask=np.stack([sample.selection.mask for sample in batch]),
        seconds=np.stack([sample.selection.seconds for sample in batch]),
        bytes_read=sum(int((sample.spans[:, 1] - sample.spans[:, 0]).sum()) for sample in batch),
    )
