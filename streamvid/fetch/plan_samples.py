"""Steps of the plan → sample plans: which frames of each clip, and the packets and byte ranges that decode to them.

This reads only frame indexes; `streamvid.fetch.encoded_batch` reads the packets.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

import numpy as np

from streamvid.arrays import Float64, Int64
from streamvid.dataset.clip_source import ClipSource, ShardPaths
from streamvid.dataset.members import MemberColumn
from streamvid.errors import ClipError
from streamvid.plan.epoch import Step
from streamvid.plan.rng import AUGMENT, draws_of_each
from streamvid.plan.sample_id import rows_of, sample_of
from streamvid.sampling.base import ClipTimes, FrameSampler, Selection, lengthen, select
from streamvid.sampling.padding import Pad
from streamvid.storage.byte_range import WASTE
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.url import is_local
from streamvid.video.frame_index import FrameIndex
from streamvid.video.index_blocks import AnyIndex, IndexBlocks
from streamvid.video.packet_selection import PacketSelection, byte_ranges_of_each, select_each

Checksum = Literal["crc32c", "sha256"]
CHECKSUMS: Final[tuple[Checksum, ...]] = ("crc32c", "sha256")


@dataclass(frozen=True)
class SampleSpec:
    """How samples are drawn from clips.

    Attributes:
        sampling: chooses the frames.
        seed: seed of all random numbers.
        num_random: random numbers per sample that the transform takes.
        checksum: how read bytes are checked: "crc32c", "sha256", for which whole clips are read, or None.
        members: other members of the clips' WebDataset samples that are read, too.
    """

    sampling: FrameSampler
    seed: int
    num_random: int
    checksum: Checksum | None = "crc32c"
    members: tuple[MemberColumn, ...] = ()


@dataclass(frozen=True)
class SamplePlan:
    """One sample of a batch, whose frames are chosen, but whose packets are not read yet.

    Attributes:
        clip: row number.
        epoch: number of the pass over the dataset, on which the random numbers depend.
        valid: False if the sample only fills the batch, or stands in for an absent clip.
        selection: the frame at each frame position.
        random: float64 [num_random], uniform in [0, 1), for the transform.
        packets: the packets to decode.
        spans: int64 [ranges, 2], the bytes of the clip's mp4 to read.
        absent: row of the absent clip that the sample stands in for, -1 for none.
        members: as in `SampleSpec`.
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
        step: the samples, and their passes.
        spec: how samples are drawn from clips.
        reader, path_of: read the frame indexes; see `ClipSource.use_indexes`.

    Raises:
        DatasetError: an index cannot be read, or is damaged.
    """
    ids, rows, passes = step.sample_ids.tolist(), rows_of(step.sample_ids).tolist(), step.passes.tolist()
    random = draws_of_each(spec.seed, passes, ids, spec.sampling.num_random)

    def choose(n: int, index: AnyIndex) -> Chosen:
        if reader is not None:
            reader.turn.pause()
        times = clip_times(dataset, rows[n], index)
        return chosen(select(spec.sampling, times, random[n], number=sample_of(ids[n])), index)

    found = dataset.use_indexes(rows, choose, reader=reader, path_of=path_of)
    return make_samples(dataset, spec, step, found, reader, path_of)


Chosen = tuple[Selection, FrameIndex | PacketSelection]
"""The frames of a sample, and the index of its clip, or, if that was read by blocks, its packets."""


def chosen(selection: Selection, index: AnyIndex) -> Chosen:
    """The frames and packets of a sample, for `make_samples`. Raises MissingBlocks if `index` lacks blocks."""
    if isinstance(index, IndexBlocks):
        return selection, index.select(shown_frames([selection])[0])
    return selection, index


def make_samples(
    dataset: ClipSource,
    spec: SampleSpec,
    step: Step,
    found: Sequence[Chosen],
    reader: RangeReader | None = None,
    path_of: ShardPaths | None = None,
) -> list[SamplePlan]:
    """Find the packets of a step's samples, whose chosen frames are in `found`; other arguments as in
    `plan_samples`."""
    rows, passes = rows_of(step.sample_ids).tolist(), step.passes.tolist()
    random = draws_of_each(spec.seed, passes, step.sample_ids.tolist(), spec.num_random, purpose=AUGMENT)
    selections = [selection for selection, _ in found]
    shown = zip(found, shown_frames(selections), strict=True)
    whole = [(index, frames) for (_, index), frames in shown if isinstance(index, FrameIndex)]
    selected = iter(select_each([index for index, _ in whole], [frames for _, frames in whole]))
    packets = [next(selected) if isinstance(index, FrameIndex) else index for _, index in found]
    if spec.checksum == "sha256":
        spans = [np.array([[0, size]], dtype=np.int64) for size in dataset.clips.mp4_size[rows].tolist()]
    else:
        paths = clip_paths(dataset, rows, path_of)
        local = {path for path in set(paths) if is_local(path)}
        near = iter(byte_ranges_of_each([own for own, path in zip(packets, paths, strict=True) if path in local]))
        # Reading up to this many bytes between two ranges costs less than another request.
        gap = (reader or dataset.reader).remote.link.gap
        others = [own for own, path in zip(packets, paths, strict=True) if path not in local]
        away = iter(byte_ranges_of_each(others, gap=gap, waste=WASTE))
        spans = [next(near if path in local else away) for path in paths]
    valid, absent, members = step.valid.tolist(), step.stands_for.tolist(), [spec.members] * len(rows)
    every = zip(rows, passes, valid, selections, random, packets, spans, absent, members, strict=True)
    return [SamplePlan(*values) for values in every]


def clip_paths(dataset: ClipSource, rows: Sequence[int], path_of: ShardPaths | None = None) -> list[str]:
    """`ClipSource.location` of clips."""
    shards = dataset.clips.shard[np.asarray(rows, dtype=np.int64)].tolist()
    tars = {s: (path_of or dataset.shard_path)(s) for s in set(shards) if dataset.shards[s].has_tar}
    return [tars.get(s) or dataset.location(row, path_of) for s, row in zip(shards, rows, strict=True)]


def shown_frames(selections: Sequence[Selection]) -> list[Int64]:
    """For each selection, its distinct frames, ascending. If all positions are black, one frame is decoded
    nevertheless, for the size of the black frames."""
    frames = np.concatenate([np.empty(0, dtype=np.int64), *(selection.frames for selection in selections)])
    clip = np.repeat(np.arange(len(selections)), [len(selection.frames) for selection in selections])
    falls = frames < 0
    falls[1:] |= (frames[1:] <= frames[:-1]) & (clip[1:] == clip[:-1])
    others = set(clip[falls].tolist())
    shown = []
    for number, selection in enumerate(selections):
        own = selection.frames
        if number in others or not len(own):
            own = np.unique(own[own >= 0])
        shown.append(own if len(own) else np.zeros(1, dtype=np.int64))
    return shown


def pad_to_longest(samples: Sequence[SamplePlan], pad: Pad) -> list[SamplePlan]:
    """Pad all samples to the number of frame positions of the longest."""
    length = max(len(sample.selection.frames) for sample in samples)
    return [
        sample
        if len(sample.selection.frames) == length
        else replace(sample, selection=lengthen(sample.selection, length, pad))
        for sample in samples
    ]


def clip_times(dataset: ClipSource, clip: int, index: AnyIndex) -> ClipTimes:
    """The times of a clip's frames, for samplers. If `index` lacks blocks, everything but the metadata may raise
    MissingBlocks."""
    rows = dataset.clips
    duration = int(rows.duration[clip])
    tick = _tick(int(rows.time_base_num[clip]), int(rows.time_base_den[clip]))
    if isinstance(index, IndexBlocks):
        return _BlockTimes(index, duration, tick, rows.key[clip], lambda: _meta(dataset, clip))
    return ClipTimes(
        index.frame_pts, duration, tick, rows.key[clip], lambda: index.keyframes, lambda: _meta(dataset, clip)
    )


_tick = lru_cache(maxsize=1024)(Fraction)


class _BlockTimes(ClipTimes):
    """The times of a clip's frames, computed from blocks of its index."""

    index: IndexBlocks

    def __init__(
        self, index: IndexBlocks, duration: int, tick: Fraction, key: str, find_meta: Callable[[], Mapping[str, Any]]
    ) -> None:
        find_keyframes = lambda: index.whole.keyframes  # noqa: E731
        about = {"duration": duration, "tick": tick, "key": key, "find_keyframes": find_keyframes}
        self.__dict__.update(about, find_meta=find_meta, index=index)

    @cached_property
    def pts(self) -> Int64:
        """int64 [frames], ticks: needs the whole index."""
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
