"""Steps of the plan → encoded batches: reads the samples' byte ranges, and cuts out their packets."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Bool, Float64, Int64, UInt8
from streamvid.color.tags import Color, clip_color
from streamvid.dataset.clip_source import ClipSource, ShardPaths, shard_errors
from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.members import Values, read_columns
from streamvid.errors import ClipError, DatasetError
from streamvid.fetch.plan_samples import Checksum, SamplePlan, SampleSpec, clip_paths, pad_to_longest, plan_samples
from streamvid.fetch.shard_access import ShardAccess
from streamvid.plan.epoch import Step
from streamvid.plan.sample_id import rows_of
from streamvid.sampling.base import Selection
from streamvid.storage.byte_range import ByteRange, FileVersion
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.shared_ranges import SharedRanges
from streamvid.storage.turn import Turn
from streamvid.video.packet_selection import (
    EncodedSlice,
    PacketSelection,
    byte_ranges,
    contradiction,
    damaged_packet,
    extract_each,
)
from streamvid.video.stored_clip import UNORDERED

BATCH_COLUMNS: Final[Mapping[str, tuple[type[np.generic], int]]] = {
    "mask": (np.bool_, 1),
    "pts": (np.float64, 1),
    "label": (np.int64, 0),
    "clip": (np.int64, 0),
    "valid": (np.bool_, 0),
    "epoch": (np.int64, 0),
}
"""Columns of a batch besides the frames: dtype, and number of dimensions per clip."""

T = TypeVar("T", bound=np.generic)
NO_LABEL: Final = -100
"""The label of clips without one in batches: the default `ignore_index` of PyTorch's losses."""


@dataclass(frozen=True)
class EncodedBatch:
    """A batch that was read but not decoded, with all inputs of decoding and rendering.

    Attributes:
        slices: one per clip. Empty if DALI reads the packets.
        clips: int64 [batch], row numbers.
        epochs: int64 [batch], the pass over its dataset in which each clip comes.
        labels: int64 [batch], class numbers, `NO_LABEL` for none.
        valid: bool [batch], False for clips that only fill the batch or stand in for absent ones.
        mask: bool [batch, frames], True for real frames, False for padding.
        seconds: float64 [batch, frames], from the clip's first frame; -1 for a black picture.
        heights, widths: int64 [batch], of decoded frames, before rotation.
        rotations: int64 [batch], degrees clockwise that rotate frames upright, plus 360 if frames are mirrored, left to
            right, before the rotation.
        gather: int64 [batch, frames], index of the decoded frame at each frame position; -1 for a black picture.
        random: float64 [batch, num_random], uniform in [0, 1), for the transform.
        bytes_read: bytes read from the shards for this batch.
        absent: int64 [batch], row of the absent clip that each clip stands in for; -1 for none.
        number: number of the step, or of the list of items.
        members: other members of the clips' WebDataset samples, by name: an array [batch, …], or a list.
    """

    slices: list[EncodedSlice]
    clips: Int64
    epochs: Int64
    labels: Int64
    valid: Bool
    mask: Bool
    seconds: Float64
    heights: Int64
    widths: Int64
    rotations: Int64
    gather: Int64
    random: Float64
    bytes_read: int
    absent: Int64
    number: int = 0
    members: Mapping[str, Values] = field(default_factory=dict)

    def columns(self) -> dict[str, npt.NDArray[np.generic]]:
        """The arrays that `BATCH_COLUMNS` names, in its order."""
        values = (self.mask, self.seconds, self.labels, self.clips, self.valid, self.epochs)
        return dict(zip(BATCH_COLUMNS, values, strict=True))


def read_batches(
    dataset: ClipSource,
    steps: Sequence[Step],
    spec: SampleSpec,
    access: ShardAccess,
    stop: threading.Event | None = None,
) -> list[EncodedBatch]:
    """Read the frame indexes and then the packets of several steps together; remote shards through the shard cache.

    Args:
        dataset: the dataset.
        steps: the samples.
        spec: how samples are drawn from clips.
        access: opens the dataset's shards, each once for indexes and packets.
        stop: set to give up waiting for a storage.

    Returns:
        a batch for each step.

    Raises:
        DatasetError: a shard cannot be read, or an index is damaged.
    """
    whole = _together(steps)
    ids, passes, valid, absent = whole.sample_ids, whole.passes, whole.valid, whole.stands_for
    shards = dataset.clips.shard[rows_of(ids)]
    found: dict[int, tuple[SamplePlan, EncodedSlice]] = {}
    for group in access.groups(np.unique(shards).tolist()):
        members = np.flatnonzero(np.isin(shards, group))
        some = Step(ids[members], passes[members], valid[members], steps[0].number, absent=absent[members])
        try:
            planned, read = _read_step(dataset, some, spec, access, group, stop)
        except ClipError:
            # Read a second time if the bytes came from the cache, which may be damaged.
            if not access.distrust(group):
                raise
            planned, read = _read_step(dataset, some, spec, access, group, stop)
        found.update(zip(members.tolist(), zip(planned, read, strict=True), strict=True))
    samples, slices = zip(*(found[n] for n in range(len(ids))), strict=True)
    return _encoded(dataset, steps, spec, samples, slices, access.reader((), stop, Turn(steps[0].number)))


def plan_parts(
    dataset: ClipSource,
    parts: Sequence[Sequence[Step]],
    spec: SampleSpec,
    access: ShardAccess,
    stop: threading.Event,
    turn: Turn,
) -> list[Callable[[Turn], list[EncodedBatch]]]:
    """Read the frame indexes of several steps, whose shards are read by range.

    Args:
        parts: the steps, in parts. The others are as in `read_batches`.

    Returns:
        for each part a function that reads its packets and raises the errors of `read_batches`. Call each once;
        concurrent calls are fine, earlier parts first.
    """
    steps = [step for part in parts for step in part]
    shards = np.unique(dataset.clips.shard[rows_of(np.concatenate([step.sample_ids for step in steps]))]).tolist()
    reader = access.reader(shards, stop, turn)
    planned = iter(plan_samples(dataset, _together(steps), spec, reader=reader, path_of=dataset.shard_path))
    samples = [list(itertools.islice(planned, sum(len(step.sample_ids) for step in part))) for part in parts]
    turn.admit(sum(bytes_of(some) for some in samples))
    shared = SharedRanges(reader, [byte_ranges_of(dataset, some, dataset.shard_path) for some in samples])

    def read(number: int, turn: Turn) -> list[EncodedBatch]:
        own = samples[number]
        slices = read_slices(dataset, own, shared.reader(number, turn), dataset.shard_path, checksum=spec.checksum)
        return _encoded(dataset, parts[number], spec, own, slices, RangeReader(reader.retry, reader, turn=turn))

    return [partial(read, number) for number in range(len(parts))]


def _together(steps: Sequence[Step]) -> Step:
    """The samples of several steps as one step."""
    names = ("sample_ids", "passes", "valid", "stands_for")
    ids, passes, valid, absent = (np.concatenate([getattr(step, name) for step in steps]) for name in names)
    return Step(ids, passes, valid, steps[0].number, absent=absent)


def _encoded(
    dataset: ClipSource,
    steps: Sequence[Step],
    spec: SampleSpec,
    samples: Sequence[SamplePlan],
    slices: Sequence[EncodedSlice],
    reader: RangeReader,
) -> list[EncodedBatch]:
    """A batch for each step, from the samples and slices of all steps."""
    encoded, first = [], 0
    for step in steps:
        last = first + len(step.sample_ids)
        batch = pad_to_longest(samples[first:last], spec.sampling.pad)
        encoded.append(encoded_batch(dataset, batch, list(slices[first:last]), number=step.number, reader=reader))
        first = last
    return encoded


def _read_step(
    dataset: ClipSource,
    step: Step,
    spec: SampleSpec,
    access: ShardAccess,
    shards: Sequence[int],
    stop: threading.Event | None,
) -> tuple[list[SamplePlan], list[EncodedSlice]]:
    """Plan and read the samples of a step with its shards open."""
    with access.open(shards, stop, checked=spec.checksum is not None) as path_of:
        reader = access.reader(shards, stop, Turn(step.number))
        planned = plan_samples(dataset, step, spec, reader=reader, path_of=path_of)
        return planned, read_slices(dataset, planned, reader, path_of, checksum=spec.checksum)


def bytes_of(samples: Sequence[SamplePlan]) -> int:
    """Bytes of the samples' byte ranges in the shards."""
    spans = np.concatenate([np.empty((0, 2), dtype=np.int64), *(sample.spans for sample in samples)])
    return sum((spans[:, 1] - spans[:, 0]).tolist())


def byte_ranges_of(dataset: ClipSource, samples: Sequence[SamplePlan], path_of: ShardPaths) -> list[ByteRange]:
    """The byte ranges of the samples' packets in their files."""
    rows = [sample.clip for sample in samples]
    places = zip(samples, clip_paths(dataset, rows, path_of), dataset.clips.mp4_offset[rows].tolist(), strict=True)
    return [
        ByteRange(path, origin + start, origin + end)
        for sample, path, origin in places
        for start, end in sample.spans.tolist()
    ]


def read_slices(
    dataset: ClipSource,
    samples: Sequence[SamplePlan],
    reader: RangeReader,
    path_of: ShardPaths,
    *,
    checksum: Checksum | None = "crc32c",
) -> list[EncodedSlice]:
    """Read the byte ranges of samples in one call of the reader, and cut their packets out.

    Args:
        dataset: the dataset.
        samples: the samples, in any order, of any shards.
        reader: reads local paths and URLs.
        path_of: returns a shard's path or URL.
        checksum: how the bytes are checked; for "sha256" the samples must have been planned for it.

    Raises:
        DatasetError: a shard cannot be read; the message names the shard and its dataset.
        ClipError: a packet's bytes do not have the checksum in its index.
    """
    rows = [sample.clip for sample in samples]
    paths, wanted = clip_paths(dataset, rows, path_of), byte_ranges_of(dataset, samples, path_of)
    shards = dataset.clips.shard[rows].tolist()
    versions: dict[str, FileVersion] = {}
    foreign: dict[str, int] = {}
    for sample, path in zip(samples, paths, strict=True) if dataset.clips.files is not None else ():
        version = dataset.version(sample.clip)
        if version is not None and versions.setdefault(path, version) != version:
            what = "its file is indexed twice, before and after it was changed: leave one of the datasets out"
            raise dataset.clip_error(sample.clip, what)
        if version is not None:
            foreign.setdefault(path, sample.clip)
    try:
        with shard_errors(dataset, {path: s for path, s in zip(paths, shards, strict=True) if path not in foreign}):
            read = iter(reader.read(wanted, versions))
    except DatasetError as error:
        dataset.raise_file_error(error, foreign)
    blocks = [list(itertools.islice(read, len(sample.spans))) for sample in samples]
    every = extract_each([sample.packets for sample in samples], [sample.spans for sample in samples], blocks)
    slices = []
    for sample, path, own, data in zip(samples, paths, blocks, every, strict=True):
        if checksum is not None:
            _check(dataset, sample, path, data, own[0] if checksum == "sha256" else None)
        slices.append(encoded_slice(dataset.clips, sample.clip, sample.packets, data))
        reader.turn.pause()
        if path in foreign and (sample.packets.crc32c < 0).any():
            _check_bitstream(dataset, sample, path, slices[-1])
    return slices


def _check(dataset: ClipSource, sample: SamplePlan, path: str, data: UInt8, whole: UInt8 | None) -> None:
    """Raise a ClipError unless the packets in `data` and the clip's MP4 in `whole` have the stored checksums. A clip
    that was never read as a whole has no stored SHA-256."""
    bad = damaged_packet(sample.packets, data)
    if bad is None and (whole is None or dataset.sha256(sample.clip) in ("", hashlib.sha256(whole.data).hexdigest())):
        return
    what = f"bytes of it are not those that were indexed, by their {'SHA-256' if bad is None else 'CRC-32C'}"
    raise dataset.clip_error(sample.clip, what, path, packet=None if bad is None else (sample.packets, bad))


def _check_bitstream(dataset: ClipSource, sample: SamplePlan, path: str, read: EncodedSlice) -> None:
    """Compare packets of a clip that was indexed without reading it (`--fast`) with their bitstream, once. Raises a
    ClipError if they contradict the index."""
    part = sample.packets
    if dataset.is_checked(sample.clip, part.numbers):
        return
    if (found := contradiction(read.codec, read.stsd, part, read.data)) is not None:
        number, what = found
        raise dataset.clip_error(sample.clip, f"{what}: index it without --fast", path, packet=(part, number))
    dataset.set_checked(sample.clip, part.numbers)


def encoded_slice(rows: ClipTable, clip: int, part: PacketSelection, data: UInt8) -> EncodedSlice:
    """Packets of a clip with the decoder's configuration; `data` is uint8 [bytes], in decode order."""
    stsd = rows.stsds[rows.stsd_id[clip]]
    return EncodedSlice(
        name=rows.key[clip],
        codec=rows.codec[clip],
        stsd=stsd,
        width=int(rows.width[clip]),
        height=int(rows.height[clip]),
        color=row_color(rows, clip, stsd),
        data=data,
        sizes=part.sizes,
        display_order=part.display_order,
        frames=part.frames,
        starts=part.starts,
        in_order=UNORDERED not in rows.traits[clip].split(","),
    )


def read_packets(dataset: ClipSource, clip: int, packets: PacketSelection) -> EncodedSlice:
    """Read some packets of a clip without a plan, with the checks of a loader; errors as in `read_slices`."""
    frames = packets.frames
    shown = Selection(frames, np.ones(len(frames), dtype=bool), np.zeros(len(frames)))
    sample = SamplePlan(clip, 0, True, shown, np.empty(0), packets, byte_ranges(packets))
    return read_slices(dataset, [sample], dataset.reader, dataset.shard_path)[0]


def labels_of(dataset: ClipSource, rows: Int64) -> Int64:
    """int64 [rows]: the labels of clips, `NO_LABEL` for none."""
    found = dataset.clips.label[rows]
    return np.where(found < 0, NO_LABEL, found)


def encoded_batch(
    dataset: ClipSource,
    samples: Sequence[SamplePlan],
    slices: list[EncodedSlice],
    *,
    number: int = 0,
    reader: RangeReader | None = None,
) -> EncodedBatch:
    """A batch of samples of equally many frame positions, and their slices; `reader` is for `read_columns`."""
    rows = dataset.clips
    clips = np.array([sample.clip for sample in samples], dtype=np.int64)
    selections = [sample.selection for sample in samples]
    return EncodedBatch(
        slices=slices,
        clips=clips,
        epochs=np.array([sample.epoch for sample in samples], dtype=np.int64),
        labels=labels_of(dataset, clips),
        valid=np.array([sample.valid for sample in samples]),
        mask=_stacked([selection.mask for selection in selections]),
        seconds=_stacked([selection.seconds for selection in selections]),
        heights=rows.height[clips].astype(np.int64),
        widths=rows.width[clips].astype(np.int64),
        rotations=rows.rotation[clips].astype(np.int64),
        gather=_gather(_stacked([selection.frames for selection in selections])),
        random=_stacked([sample.random for sample in samples]),
        bytes_read=bytes_of(samples),
        absent=np.array([sample.absent for sample in samples], dtype=np.int64),
        number=number,
        members=read_columns(dataset, samples[0].members, clips.tolist(), reader),
    )


def _stacked(arrays: Sequence[npt.NDArray[T]]) -> npt.NDArray[T]:
    """`np.stack` of arrays of one length, in a quarter of its time."""
    return np.concatenate(arrays).reshape(len(arrays), len(arrays[0]))


def _gather(frames: Int64) -> Int64:
    """`EncodedBatch.gather` of frame numbers, int64 [clips, frames]: where each is among its clip's distinct ones."""
    order = np.argsort(frames, axis=1, kind="stable")
    rising = np.take_along_axis(frames, order, axis=1)
    new = rising >= 0
    new[:, 1:] &= rising[:, 1:] != rising[:, :-1]
    ranks = np.empty(frames.shape, dtype=np.int64)
    np.put_along_axis(ranks, order, np.cumsum(new, axis=1) - 1, axis=1)
    return ranks


def row_color(rows: ClipTable, clip: int, stsd: bytes | None = None) -> Color:
    """Matrix, range and siting of a clip's samples; `stsd` saves looking it up."""
    return clip_color(
        codec=rows.codec[clip],
        stsd=rows.stsds[rows.stsd_id[clip]] if stsd is None else stsd,
        color_space=rows.color_space[clip],
        color_range=rows.color_range[clip],
        width=int(rows.width[clip]),
        height=int(rows.height[clip]),
    )
