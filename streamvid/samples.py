"""Plan steps → encoded samples: choose frames, find their packets, read them, cut them out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from streamvid import read, transform
from streamvid.dataset import Dataset
from streamvid.index import FrameIndex, Int64
from streamvid.plan import Step, draws
from streamvid.sampling import All, ClipTimes, Pad, Sampling, Selection, lengthen, select
from streamvid.slice import EncodedSlice, Slice, gather, minimal, ranges
from streamvid.transform import Inputs, Transform

GAP_BYTES: Final = 64 << 10
"""On a local disk, reading this much too much costs less than another read."""

OpenShards = Callable[[Sequence[int]], AbstractContextManager[Sequence[str]]]
"""Local paths of shards by number, usable inside the `with`."""


@dataclass(frozen=True)
class Recipe:
    """What is made of every clip."""

    sampling: Sampling
    pad: Pad
    transform: Transform
    seed: int


@dataclass(frozen=True)
class Sample:
    """One clip of a batch, chosen but not read yet.

    Attributes:
        clip: row number.
        valid: False if it is only there to fill the batch.
        selection: which frame each slot shows.
        random: float64 [transform.DRAWS], for the transform.
        part: the packets to decode.
        spans: int64 [ranges, 2], the bytes of the clip's mp4 to read.
    """

    clip: int
    valid: bool
    selection: Selection
    random: npt.NDArray[np.float64]
    part: Slice
    spans: Int64


@dataclass(frozen=True)
class EncodedBatch:
    """A batch, ready to be decoded.

    Attributes:
        slices: per clip, what to decode.
        inputs: per clip, what the transform takes.
        clips: int64 [batch], row numbers.
        labels: int64 [batch], -1 for none.
        valid: bool [batch].
        mask: bool [batch, slots].
        seconds: float64 [batch, slots].
        bytes_read: from the shards, for this batch.
    """

    slices: list[EncodedSlice]
    inputs: list[Inputs]
    clips: Int64
    labels: Int64
    valid: npt.NDArray[np.bool_]
    mask: npt.NDArray[np.bool_]
    seconds: npt.NDArray[np.float64]
    bytes_read: int


def choose(dataset: Dataset, step: Step, recipe: Recipe, epoch: int) -> list[Sample]:
    """Choose the frames of a step's clips, and find their packets.

    Raises:
        DatasetError: an index is damaged.
    """
    samples = []
    for clip, valid in zip(step.clips.tolist(), step.valid.tolist(), strict=True):
        index = dataset.index(clip)
        random = draws(recipe.seed, epoch, clip, transform.DRAWS + recipe.sampling.draws)
        selection = select(recipe.sampling, clip_times(dataset, clip, index), random[transform.DRAWS :], recipe.pad)
        samples.append(make_sample(index, clip, valid, selection, random[: transform.DRAWS]))
    if isinstance(recipe.sampling, All):
        slots = max(len(sample.selection.frames) for sample in samples)
        samples = [
            Sample(s.clip, s.valid, lengthen(s.selection, slots, recipe.pad), s.random, s.part, s.spans) for s in samples
        ]
    return samples


def clip_times(dataset: Dataset, clip: int, index: FrameIndex) -> ClipTimes:
    """When the frames of a clip are shown."""
    rows = dataset.clips
    tick = Fraction(int(rows.time_base_num[clip]), int(rows.time_base_den[clip]))
    return ClipTimes(index.frame_pts, int(rows.duration[clip]), tick)


def make_sample(index: FrameIndex, clip: int, valid: bool, selection: Selection, random: npt.NDArray[np.float64]) -> Sample:
    """The sample of a clip that shows the selected frames."""
    shown = selection.frames[selection.frames >= 0]
    # A constant picture needs no frame, but a decoder needs one to make a picture of that size.
    frames = np.unique(shown) if len(shown) else np.zeros(1, dtype=np.int64)
    part = minimal(index, frames)
    return Sample(clip, valid, selection, random, part, ranges(part, gap=GAP_BYTES))


def encode(dataset: Dataset, batches: Sequence[Sequence[Sample]], recipe: Recipe, open_shards: OpenShards) -> list[EncodedBatch]:
    """Read the packets of several batches at once, and cut them out.

    Raises:
        DatasetError: a shard cannot be read.
    """
    rows = dataset.clips
    samples = [sample for batch in batches for sample in batch]
    shards = sorted({int(rows.shard[sample.clip]) for sample in samples})
    with open_shards(shards) as paths:
        path_of = dict(zip(shards, paths, strict=True))
        wanted = [
            read.ByteRange(path_of[int(rows.shard[s.clip])], int(rows.mp4_offset[s.clip]) + start, int(rows.mp4_offset[s.clip]) + end)
            for s in samples
            for start, end in s.spans.tolist()
        ]
        blocks = iter(read.read(wanted))
    encoded = []
    for batch in batches:
        slices = []
        for sample in batch:
            mine = [next(blocks) for _ in range(len(sample.spans))]
            slices.append(_encoded_slice(dataset, sample, gather(sample.part, sample.spans, mine)))
        encoded.append(_encoded_batch(dataset, batch, slices, recipe))
    return encoded


def _encoded_slice(dataset: Dataset, sample: Sample, data: npt.NDArray[np.uint8]) -> EncodedSlice:
    rows, clip, part = dataset.clips, sample.clip, sample.part
    return EncodedSlice(
        name=rows.key[clip],
        codec=rows.codec[clip],
        stsd=rows.stsds[rows.stsd_id[clip]],
        width=int(rows.width[clip]),
        height=int(rows.height[clip]),
        full_range=rows.color_range[clip] == "pc",
        data=data,
        sizes=part.sizes,
        ranks=part.ranks,
        frames=part.frames,
        plain=part.plain,
    )


def _encoded_batch(dataset: Dataset, batch: Sequence[Sample], slices: list[EncodedSlice], recipe: Recipe) -> EncodedBatch:
    rows = dataset.clips
    clips = np.array([sample.clip for sample in batch], dtype=np.int64)
    inputs = []
    for sample in batch:
        frames = sample.selection.frames
        unique = np.unique(frames[frames >= 0])
        inputs.append(
            transform.inputs(
                recipe.transform,
                height=int(rows.height[sample.clip]),
                width=int(rows.width[sample.clip]),
                rotation=int(rows.rotation[sample.clip]),
                gather=np.where(frames >= 0, np.searchsorted(unique, frames), -1),
                random=sample.random,
            )
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
