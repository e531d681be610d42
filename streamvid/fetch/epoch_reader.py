"""An epoch of the plan → encoded batches, read in chunks of steps."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, Protocol

from streamvid.arrays import Int64
from streamvid.dataset.clip_source import ClipSource
from streamvid.errors import ClipError
from streamvid.fetch.encoded_batch import EncodedBatch, plan_parts, read_batches
from streamvid.fetch.plan_samples import SampleSpec
from streamvid.fetch.shard_access import ShardAccess
from streamvid.plan.epoch import Epoch
from streamvid.plan.sample_id import rows_of
from streamvid.storage.range_reader import FileTooShort
from streamvid.storage.turn import OneAtATime, Turn

_CHUNK_CLIPS: Final = 64
"""Clips whose packets are read together: enough for long reads, few enough for memory."""
_PREFETCHED_STEPS: Final = 64
"""How many steps ahead shards of a remote dataset are downloaded, if the cache has room for them."""
_CHUNKS_AHEAD: Final = 12
"""Chunks that are under way side by side by range, each in a thread, so that they wait for the storage together."""
_PARTS_AT_ONCE: Final = 32
_PART_CLIPS: Final = 8
"""Parts of chunks whose packets are read side by side, each in a thread, and how many clips one has at least: as many
requests as may be under way."""
_LEAD: Final = 8
"""Once as many chunks are ahead of the loop as may be, the next is planned before parts that are as many chunks away
are read: else all of them are read, and then all are planned, while the loop waits."""
_PLANNED_AT_ONCE: Final = 4
"""Of those, how many of the longest may read frame indexes at a time, or as many steps in more: enough to keep up, few
enough not to hold up packets."""
_COMPUTING: Final = 1e-3
_PAUSE: Final = 1e-5
"""After so many seconds of computing a chunk's thread sleeps for so long. Else the training loop would wait for 5 ms
(`sys.getswitchinterval`), or twice that, when it wants to go on meanwhile."""
_GROWTH: Final = 4
"""A chunk has one step and one more for so many before it: a loop that takes 0.8 of what comes waits for none."""
_AHEAD_BYTES: Final = 256 << 20
"""Bytes that they read ahead of the loop, unless a single step takes more."""
_SHARES: Final = 8
"""A chunk of several steps takes one in so many of those bytes at most."""


class Rescue(Protocol):
    """Makes a batch anew in which a clip is bad, or seems to be."""

    def __call__(self, number: int, cause: Exception | None = None, *, decode: bool = True) -> EncodedBatch:
        """The batch of that number, with other clips in the place of bad ones.

        Args:
            number: of the batch.
            cause: what failed, for the log, if that was no clip's fault.
            decode: find out whether its slices decode, too.

        Raises:
            StreamvidError: of a storage, or because there are too many bad clips.
        """

    def leave_out(self, error: ClipError, number: int) -> None:
        """From this batch on, have another clip in the place of one that is bad by what this process has found."""

    def is_stale(self, batch: EncodedBatch) -> bool:
        """Whether a clip of the batch was found bad in it or before it, since it was read."""


def read_epoch(
    dataset: ClipSource,
    access: ShardAccess,
    spec: SampleSpec,
    epoch: Epoch,
    stop: threading.Event,
    rescue: Rescue | None = None,
    *,
    batch_size: int,
) -> Generator[EncodedBatch, None, None]:
    """The remaining batches of an epoch, in order.

    Steps are read in chunks. The first chunk is a single step, so that the first batch comes soon. Where byte ranges
    of remote shards are read rather than whole shards, several chunks are under way.

    Args:
        dataset: where clips come from.
        access: opens its shards.
        spec: how samples are drawn from clips.
        epoch: the steps of this rank.
        stop: gives up waiting for a storage.
        rescue: for batches whose clips are damaged; None: their errors are raised.
        batch_size: clips per step at most.

    Raises:
        DatasetError: a shard cannot be read, or an index is damaged.
    """

    longest = max(1, _CHUNK_CLIPS // batch_size)

    def read_once(steps: range) -> list[EncodedBatch]:
        batches = read_batches(dataset, [epoch.step(number) for number in steps], spec, access, stop)
        access.have_read(steps)
        return batches

    def read_alone(number: int) -> EncodedBatch:
        try:
            return read_once(range(number, number + 1))[0]
        except (ClipError, FileTooShort) as error:
            if rescue is None:
                raise
            return rescue(number, error, decode=False)

    def read(steps: range) -> list[EncodedBatch]:
        if len(steps) > 1:
            try:
                return read_once(steps)
            except (ClipError, FileTooShort):
                if rescue is None:
                    raise
        return [read_alone(number) for number in steps]

    def plan(parts: Sequence[range], turn: Turn) -> list[Callable[[Turn], list[EncodedBatch]]]:
        steps = [[epoch.step(number) for number in part] for part in parts]
        return plan_parts(dataset, steps, spec, access, stop, turn)

    if access.by_range:
        least = -(-_PART_CLIPS // batch_size)
        for number, batches in _read_ahead(plan, read, _Chunks(epoch, dataset.clips.mp4_size, longest), least):
            access.have_read(range(number, number + len(batches)))
            yield from batches
        return
    start, length = epoch.done, 1
    while start < epoch.steps:
        end = min(start + length, epoch.steps)
        access.prefetch(upcoming_shards(dataset, epoch, end))
        yield from read(range(start, end))
        start, length = end, min(2 * length, longest)


class _Chunks:
    """Cuts an epoch into chunks of steps, numbered from 0 on, and says when each may be read: first its frame indexes,
    a few chunks at a time, then its packets, as soon as the chunks before it leave room for their bytes. Chunks that
    wait for that know their ranges, and ask for them at once when it is their turn.

    The first chunk is a single step, and they grow with what is read, up to `longest` steps or a share of
    `_AHEAD_BYTES`, by the bytes of their clips' MP4s and what part of these it has been so far.

    Attributes:
        computing: held by the one that computes.
    """

    def __init__(self, epoch: Epoch, sizes: Int64, longest: int) -> None:
        self._epoch, self._sizes, self._longest = epoch, sizes, longest
        self._changed = threading.Condition()
        self.computing = OneAtATime()
        self._start, self._part = epoch.done, 0.0
        self._cut = self._turn = 0
        self._planning: dict[int, tuple[int, int]] = {}
        self._inside: dict[int, int] = {}
        self._closed = False

    def cut(self, number: int) -> range:
        """The steps of a chunk, as soon as its frame indexes may be read; none behind the epoch's end."""
        with self._changed:
            most_steps = _PLANNED_AT_ONCE * self._longest
            self._wait(lambda: number == self._cut and sum(n for n, _ in self._planning.values()) < most_steps)
            first = end = self._start
            length = min(1 + (first - self._epoch.done) // _GROWTH, self._longest)
            weight, most = 0, _AHEAD_BYTES / _SHARES / (self._part or 1.0)
            while end < min(first + length, self._epoch.steps):
                more = int(self._sizes[rows_of(self._epoch.step(end).sample_ids)].sum())
                if weight and weight + more > most:
                    break
                end, weight = end + 1, weight + more
            self._planning[number], self._start, self._cut = (end - first, weight), end, number + 1
            self._changed.notify_all()
            return range(first, end)

    def enter(self, number: int, size: int) -> None:
        """Wait until the packets of a chunk may be read, so many bytes; not a second time."""
        with self._changed:
            if (planned := self._planning.pop(number, None)) is None:
                return
            self._part = max(self._part, size / max(planned[1], 1))
            self._changed.notify_all()
            self._wait(
                lambda: number == self._turn and sum(self._inside.values()) + size * bool(self._inside) <= _AHEAD_BYTES
            )
            self._turn, self._inside[number] = number + 1, size
            self._changed.notify_all()

    def leave(self, number: int) -> None:
        """The loop takes a chunk."""
        with self._changed:
            self._inside.pop(number, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait(self, may: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._closed or may())
        if self._closed:
            raise CancelledError


class _ComputingTurn(Turn):
    """The place among others of who plans a chunk, or reads a part of one: earlier steps compute first, and have their
    packets read first. To be entered.

    Args:
        chunk: which is planned.
        step: the first of those that are planned or read.
        urgency: the step for which it is needed, if not that.
    """

    def __init__(self, chunks: _Chunks, chunk: int, step: int, urgency: int | None = None) -> None:
        super().__init__(step)
        self._chunks, self._chunk, self._urgency = chunks, chunk, step if urgency is None else urgency

    def __enter__(self) -> Turn:
        self._chunks.computing.acquire(self._urgency)
        self._since = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._chunks.computing.release()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def pause(self) -> None:
        if time.monotonic() - self._since > _COMPUTING:
            time.sleep(_PAUSE)
            self._since = time.monotonic()
            if self._chunks.computing.is_wanted_before(self._urgency):
                with self.waiting():
                    pass

    def admit(self, size: int) -> None:
        with self.waiting():
            self._chunks.enter(self._chunk, size)


_Part = tuple[range, Future[list[EncodedBatch]] | None]


def _read_ahead(
    plan: Callable[[Sequence[range], Turn], list[Callable[[Turn], list[EncodedBatch]]]],
    read_again: Callable[[range], list[EncodedBatch]],
    chunks: _Chunks,
    least: int,
) -> Generator[tuple[int, list[EncodedBatch]], None, None]:
    """Batches of some steps, with the number of the first, of chunks that are planned and read side by side. A chunk's
    packets are read in parts of at least so many steps, which the loop need not wait for together. Those with damaged
    clips are read again when their turn comes, as what is bad in one counts for all after it."""

    def read_part(read: Callable[[Turn], list[EncodedBatch]], number: int, step: int) -> list[EncodedBatch]:
        with _ComputingTurn(chunks, number, step) as turn:
            return read(turn)

    def plan_chunk(number: int) -> tuple[range, list[_Part] | None]:
        steps = chunks.cut(number)
        try:
            if not steps:
                return steps, []
            parts = [steps[first : first + least] for first in range(0, len(steps), least)]
            urgency = max(steps.start - _LEAD * len(steps), 0) if number >= _CHUNKS_AHEAD else steps.start
            with _ComputingTurn(chunks, number, steps.start, urgency) as turn:
                functions = plan(parts, turn)
            reads = zip(parts, functions, strict=True)
            return steps, [(own, readers.submit(read_part, read, number, own.start)) for own, read in reads]
        except (ClipError, FileTooShort):
            return steps, None
        finally:
            chunks.enter(number, 0)  # the next one's turn, if this one has failed before

    with (
        ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="streamvid-fetch") as readers,
        ThreadPoolExecutor(_CHUNKS_AHEAD, thread_name_prefix="streamvid-plan") as planners,
    ):
        pending = deque(planners.submit(plan_chunk, number) for number in range(_CHUNKS_AHEAD))
        try:
            for number in itertools.count():
                steps, parts = pending.popleft().result()
                if not steps:
                    return
                pending.append(planners.submit(plan_chunk, number + _CHUNKS_AHEAD))
                for own, reading in parts or [(steps, None)]:
                    try:
                        batches = read_again(own) if reading is None else reading.result()
                    except (ClipError, FileTooShort):
                        batches = read_again(own)
                    if own.stop == steps.stop:
                        chunks.leave(number)
                    yield own.start, batches
        finally:
            chunks.close()
            readers.shutdown(wait=False, cancel_futures=True)


def upcoming_shards(dataset: ClipSource, epoch: Epoch, start: int) -> Iterator[int]:
    """The shards that the next `_PREFETCHED_STEPS` steps from `start` on will read, in that order, with repeats."""
    for number in range(start, min(start + _PREFETCHED_STEPS, epoch.steps)):
        yield from dataset.clips.shard[rows_of(epoch.step(number).sample_ids)].tolist()
