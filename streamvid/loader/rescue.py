"""Makes a batch that cannot be read or decoded again, without the clips in it that are bad.

Each clip of the batch is read again from the storage, bypassing the cache, and decoded on a core, in a process that may
crash or hang. Only a clip that fails there, too, is bad; damage by a cache or a driver is not held against it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from streamvid.dataset.clip_source import ClipSource
from streamvid.dataset.members import read_columns
from streamvid.decode.isolated import decode_isolated
from streamvid.decode.slice_frames import CrashedDecoderError, DamagedClipError, StuckDecoderError, decode_frames
from streamvid.errors import ClipError, VideoError
from streamvid.fetch.encoded_batch import EncodedBatch, encoded_batch, read_slices
from streamvid.fetch.plan_samples import SamplePlan, SampleSpec, pad_to_longest, plan_samples
from streamvid.fetch.shard_access import ShardAccess
from streamvid.loader.quarantine import Quarantine
from streamvid.plan.absent import AbsentRows
from streamvid.plan.epoch import Epoch, Step
from streamvid.plan.sample_id import rows_of
from streamvid.sampling.padding import Pad
from streamvid.storage.range_reader import FileTooShort, RangeReader
from streamvid.storage.url import redact
from streamvid.video.packet_selection import EncodedSlice
from streamvid.workers import WorkerCrashError

log = logging.getLogger(__name__)

_PROCESSES: Final = 4
"""Processes that decode the clips of a batch that failed; each takes some 0.3 s to start."""
BAD_CLIP: Final = (ClipError, FileTooShort, VideoError)
"""The errors that are raised for a clip that may be bad."""


@dataclass(frozen=True)
class Member:
    """A place in a batch.

    Attributes:
        row: the clip.
        sample: identifies the sample and whether it counts; equal for members that are read and decoded alike.
        read: reads the sample's packets, bypassing the cache.
        valid, absent: as in `SamplePlan`.
    """

    row: int
    sample: tuple[int, int]
    read: Callable[[], tuple[SamplePlan, EncodedSlice]]
    valid: bool
    absent: int


class Rescuer:
    """A `streamvid.fetch.epoch_reader.Rescue`: makes batches again.

    Args:
        absent: the clips that are not delivered in the epoch; bad clips are added.
        members: a function from a batch's number to its places, with repeats for the clips in `absent`.
        pad: how samples are padded to the longest in the batch.
        threads: most processes that decode at the same time.
    """

    def __init__(
        self,
        dataset: ClipSource,
        quarantine: Quarantine,
        absent: AbsentRows,
        members: Callable[[int], Sequence[Member]],
        *,
        pad: Pad,
        threads: int,
        distrust: Callable[[Sequence[int]], object] = lambda shards: None,
    ) -> None:
        self._dataset, self._quarantine, self._absent, self._members = dataset, quarantine, absent, members
        self._pad, self._processes, self._distrust = pad, min(_PROCESSES, threads), distrust

    def is_stale(self, batch: EncodedBatch) -> bool:
        return bool(self._absent.found(batch.clips, batch.number).any())

    def leave_out(self, error: ClipError, number: int) -> None:
        self._absent.add(error.row, number)
        self._quarantine.add(error)

    def __call__(self, number: int, cause: Exception | None = None, *, decode: bool = True) -> EncodedBatch:
        good: dict[tuple[int, int], tuple[SamplePlan, EncodedSlice]] = {}
        damaged = False
        while True:
            members = self._members(number)
            # If the decoder named the clip that it failed on, the other clips of the batch need no test.
            named = cause.clip if isinstance(cause, DamagedClipError) and not damaged else None
            errors = self._examine([member for member in members if member.sample not in good], good, named, decode)
            for error in errors:
                self._absent.add(error.row, number)
            for error in errors:
                self._quarantine.add(error)
            if not errors:
                break
            damaged = True
        known = self._absent.found(np.array([member.absent for member in members]), number).any()
        if cause is not None and not damaged and not known:
            shards = sorted({int(self._dataset.clips.shard[member.row]) for member in members})
            self._distrust(shards)
            log.warning("read again, all clips of the batch are good; what failed: %s", cause)
        made = [good[member.sample] for member in members]
        plans = [
            replace(plan, valid=member.valid, absent=member.absent)
            for member, (plan, _) in zip(members, made, strict=True)
        ]
        slices = [encoded for _, encoded in made]
        return encoded_batch(self._dataset, pad_to_longest(plans, self._pad), slices, number=number)

    def _examine(
        self,
        members: Sequence[Member],
        good: dict[tuple[int, int], tuple[SamplePlan, EncodedSlice]],
        named: str | None,
        decode: bool,
    ) -> list[ClipError]:
        """Read clips. If `decode`, decode them, too, or only the clip that `named` names. Adds good ones to `good`, and
        returns one error for each of the others."""
        errors: dict[int, ClipError] = {}
        read: dict[tuple[int, int], tuple[SamplePlan, EncodedSlice]] = {}
        for member in members:
            try:
                try:
                    read[member.sample] = member.read()
                except (ClipError, FileTooShort):
                    # This reply may have been damaged in transit, too, while damage in the storage is the same every
                    # time.
                    read[member.sample] = member.read()
            except ClipError as error:
                errors.setdefault(member.row, error)
            except FileTooShort as error:
                errors.setdefault(member.row, self._too_short(member.row, error))
        suspects = {sample for sample, (_, encoded) in read.items() if encoded.name == named} or set(read)
        tried = {sample: values for sample, values in read.items() if decode and sample in suspects}
        good.update((sample, values) for sample, values in read.items() if sample not in tried)
        outcomes = decode_isolated([encoded for _, encoded in tried.values()], processes=self._processes)
        for (sample, (plan, encoded)), failure in zip(tried.items(), outcomes, strict=True):
            # Another error says nothing about the clip: the process got no memory.
            if not isinstance(failure, DamagedClipError) or _is_from_outside(failure):
                good[sample] = plan, encoded
            else:
                errors.setdefault(plan.clip, self._undecodable(plan, encoded, failure))
        return list(errors.values())

    def _too_short(self, row: int, error: FileTooShort) -> ClipError:
        """The error for a clip whose shard, or the .packets file of it, ends before the clip's bytes."""
        cause = error.__cause__ if isinstance(error.__cause__, FileTooShort) else error
        what = f"its file {str(cause).removeprefix(f'{cause.path} ')}"
        index = redact(self._dataset.shard_path(int(self._dataset.clips.shard[row]), "packets"))
        return self._dataset.clip_error(row, what, suspect="index" if cause.path == index else "shard")

    def _undecodable(self, plan: SamplePlan, encoded: EncodedSlice, failure: DamagedClipError) -> ClipError:
        """The error for a clip whose bytes are those that were packed, so that the video itself is bad."""
        reason = failure.reason
        if isinstance(failure, StuckDecoderError | CrashedDecoderError):
            what = "hangs" if isinstance(failure, StuckDecoderError) else "crashes"
            reason = f"its decoder {what}: {reason}"
        first = 0
        if type(failure) is DamagedClipError:
            # It neither hangs nor crashes, so this process can safely decode it up to the packet that fails.
            missing = set(encoded.frames.tolist())
            with contextlib.suppress(VideoError):
                for frame, _ in decode_frames(encoded):
                    missing.discard(int(encoded.frames[frame]))
            first = int(np.flatnonzero(plan.packets.display_order == min(missing, default=0))[0])
        return self._dataset.clip_error(plan.clip, reason, packet=(plan.packets, first), suspect="source")


def _is_from_outside(failure: DamagedClipError) -> bool:
    """Whether the process that decoded a clip was killed from outside, as by the kernel when memory runs out."""
    return isinstance(failure.__cause__, WorkerCrashError) and failure.__cause__.from_outside


def step_members(dataset: ClipSource, spec: SampleSpec, step: Step, reader: RangeReader) -> list[Member]:
    """The members of a step.

    Args:
        step: with repeats in the place of absent clips.
    """

    def read(single: Step) -> tuple[SamplePlan, EncodedSlice]:
        planned = plan_samples(dataset, single, spec, reader=reader, path_of=dataset.shard_path)
        read_columns(dataset, spec.members, [planned[0].clip], reader)
        return planned[0], read_slices(
            dataset, planned, reader, dataset.shard_path, checksum=spec.checksum or "crc32c"
        )[0]

    members = []
    for n, row in enumerate(rows_of(step.sample_ids).tolist()):
        single = step.at(n)
        sample = (int(single.sample_ids[0]), int(single.passes[0]))
        members.append(Member(row, sample, partial(read, single), bool(single.valid[0]), int(step.stands_for[n])))
    return members


def epoch_rescuer(
    dataset: ClipSource,
    access: ShardAccess,
    spec: SampleSpec,
    quarantine: Quarantine,
    threads: int,
    epoch: Epoch,
    stop: threading.Event,
) -> Rescuer | None:
    """The rescuer of an epoch; None if the policy raises the errors of clips."""
    if quarantine.policy.on_error == "raise":
        return None
    reader = RangeReader(dataset.reader.retry.until(stop), like=dataset.reader)
    return Rescuer(
        dataset,
        quarantine,
        epoch.absent,
        lambda number: step_members(dataset, spec, epoch.step(number), reader),
        pad=spec.sampling.pad,
        threads=threads,
        distrust=access.distrust,
    )
