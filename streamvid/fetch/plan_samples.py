"""Steps of the plan → sample plans: which frames of each clip, and the packets and byte ranges that decode to them.

Nothing of a clip is read here but its frame index. `streamvid.fetch.encoded_batch` reads the packets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np

from streamvid.arrays import Float64, Int64
from streamvid.dataset.clip_source import ClipSource, ShardPaths
from streamvid.dataset.members import MemberColumn
from streamvid.errors import ClipError
from streamvid.plan.epoch import Step
from streamvid.plan.rng import AUGMENT, draws
from streamvid.plan.sample_id import row_of, rows_of, sample_of
from streamvid.sampling.base import ClipTimes, FrameSampler, Selection, lengthen, select
from streamvid.sampling.padding import Pad
from streamvid.storage.byte_range import WASTE
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.url import is_local
from streamvid.video.index_blocks import AnyIndex, IndexBlocks, packets_of
from streamvid.video.packet_selection import PacketSelection, byte_ranges

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
        members: files beside the clips in their tars that are read, too.
    """

    sampling: FrameSampler
    seed: int
    num_random: int
    checksum: Checksum | None = "crc32c"
    members: tuple[MemberColumn, ...] = ()


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
        members: as of `SampleSpec`.
    """

    clip: int
    epoch: int
    valid: bool
    selection: Selection
    random: Float64
    packets: PacketSelection
    spans: Int64
    absent: int = -1
    members: tuple[MemberColumn, ...] = ()


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
        reader, path_of: for the frame indexes, see `ClipSource.use_indexes`.

    Raises:
        DatasetError: an index cannot be read, or is damaged.
    """
    items = step.sample_ids.tolist()
    about = list(zip(items, step.passes.tolist(), step.valid.tolist(), step.stands_for.tolist(), strict=True))
    random = [draws(spec.seed, number, item, spec.sampling.num_random) for item, number, _, _ in about]

    def plan(n: int, index: AnyIndex) -> SamplePlan:
        if reader is not None:
            reader.turn.pause()
        item, number, valid, absent = about[n]
        clip = row_of(item)
        selection = select(spec.sampling, clip_times(dataset, clip, index), random[n], number=sample_of(item))
        for_transform = draws(spec.seed, number, item, spec.num_random, purpose=AUGMENT)
        made = make_sample(dataset, spec, index, clip, number, valid, selection, for_transform, reader, path_of)
        return replace(made, absent=absent)

    return dataset.use_indexes(rows_of(step.sample_ids).tolist(), plan, reader=reader, path_of=path_of)


def pad_to_longest(samples: Sequence[SamplePlan], pad: Pad) -> list[SamplePlan]:
    """Give all samples as many frame positions as the longest has."""
    length = max(len(sample.selection.frames) for sample in samples)
    return [replace(sample, selection=lengthen(sample.selection, length, pad)) for sample in samples]


def clip_times(dataset: ClipSource, clip: int, index: AnyIndex) -> ClipTimes:
    """When the frames of a clip are shown. Of blocks, all of it but metadata may raise MissingBlocks."""
    rows = dataset.clips
    duration = int(rows.duration[clip])
    tick = Fraction(int(rows.time_base_num[clip]), int(rows.time_base_den[clip]))
    if isinstance(index, IndexBlocks):
        return _BlockTimes(index, duration, tick, rows.key[clip], lambda: _meta(dataset, clip))
    return ClipTimes(
        index.frame_pts, duration, tick, rows.key[clip], lambda: index.keyframes, lambda: _meta(dataset, clip)
    )


class _BlockTimes(ClipTimes):
    """The times of a clip from blocks of its index."""

    index: IndexBlocks

    def __init__(
        self, index: IndexBlocks, duration: int, tick: Fraction, key: str, find_meta: Callable[[], Mapping[str, Any]]
    ) -> None:
        find_keyframes = lambda: index.whole.keyframes  # noqa: E731
        about = {"duration": duration, "tick": tick, "key": key, "find_keyframes": find_keyframes}
        self.__dict__.update(about, find_meta=find_meta, index=index)

    @cached_property
    def pts(self) -> Int64:
        """int64 [frames]: what takes the whole index."""
        return self.index.whole.frame_pts

    @property
    def frames(self) -> int:
        return self.index.frames

    def frames_at(self, ticks: Int64) -> Int64:
        return self.index.frames_at(ticks)

    def frames_before(self, ticks: int) -> int:
        return self.index.frames_before(ticks)

    def times(self, frames: Int64) -> Int64:
        return self.index.times(frames)


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
    index: AnyIndex,
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
    packets = packets_of(index, frames)
    if spec.checksum == "sha256":
        spans = np.array([[0, dataset.clips.mp4_size[clip]]], dtype=np.int64)
    elif is_local(dataset.location(clip, path_of)):
        spans = byte_ranges(packets)
    else:  # up to how many bytes between two ranges cost less than another request
        spans = byte_ranges(packets, gap=(reader or dataset.reader).remote.link.gap, waste=WASTE)
    return SamplePlan(clip, epoch, valid, selection, random, packets, spans, members=spec.members)
