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
from streamvid.storage.shard_cache import CacheUnusable
from streamvid.storage.turn import OneAtATime, Turn

_CHUNK_CLIPS: Final = 64
"""Clips whose packets are read together: enough for long reads, few enough for memory."""
_PREFETCHED_STEPS: Final = 64
"""How many steps ahead shards of a remote dataset are downloaded, if the cache has room for them."""
_CHUNKS_AHEAD: Final = 12
"""Chunks planned ahead of the loop if shards are read by range, each in a thread, so that they wait for the storage
concurrently."""
_PARTS_AT_ONCE: Final = 32
"""Parts of chunks whose packets are read concurrently, each in a thread."""
_PART_CLIPS: Final = 8
"""Fewest clips of a part. With `_PARTS_AT_ONCE` parts that is about as many requests as may be in flight."""
_LEAD: Final = 8
"""Once `_CHUNKS_AHEAD` chunks are ahead of the loop, planning a chunk goes before reading parts that are needed up to
this many chunks earlier. Otherwise all chunks would be read, and then all planned, while the loop waits. It never goes
before planning an earlier chunk: packets are read in the order of chunks."""
_PLANNED_AT_ONCE: Final = 4
"""Full-length chunks that may read frame indexes at a time, or shorter chunks with as many steps: enough to keep up,
few enough not to delay packets."""
_COMPUTING: Final = 1e-3
_PAUSE: Final = 1e-5
"""After `_COMPUTING` seconds of computing, a chunk's thread sleeps for `_PAUSE` seconds. Otherwise the training loop
would wait for the GIL for 5 ms (`sys.getswitchinterval`) or more."""
_GROWTH: Final = 2
"""Chunks start with one step and get one more step for every `_GROWTH` steps of the epoch so far: a loop that takes two
thirds of the reader's rate then waits for no chunk."""
_AHEAD_BYTES: Final = 256 << 20
"""Most bytes of packets that are read ahead of the loop, unless a single step has more."""
_SHARES: Final = 8
"""A chunk of several steps takes at most this fraction (one in eight) of `_AHEAD_BYTES`."""


class Rescue(Protocol):
    """Makes a batch again that has a bad clip, or that failed without a known cause."""

    def __call__(self, number: int, cause: Exception | None = None, *, decode: bool = True) -> EncodedBatch:
        """Make a batch with repeats in the place of bad clips.

        Args:
            number: the batch's number.
            cause: the error for the log, if no clip caused it.
            decode: test whether the slices decode, too.

        Raises:
            StreamvidError: the storage failed, or there are too many bad clips.
        """

    def leave_out(self, error: ClipError, number: int) -> None:
        """Put repeats in the place of the clip that `error` names, from batch `number` on."""

    def is_stale(self, batch: EncodedBatch) -> bool:
        """Whether, since the batch was read, one of its clips was found bad in this batch or in an earlier one."""


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

    Steps are read in chunks. The first chunk is a single step, so that the first batch comes soon. If remote shards are
    read by range, several chunks are read concurrently.

    Args:
        dataset: the dataset.
        access: opens its shards.
        spec: how samples are drawn from clips.
        epoch: the steps of this rank.
        stop: set to give up waiting for a storage.
        rescue: remakes batches with damaged clips; None: their errors are raised.
        batch_size: most clips per step.

    Raises:
        DatasetError: a shard cannot be read, or an index is damaged.
    """

    longest = max(1, _CHUNK_CLIPS // batch_size)

    def read_once(steps: range) -> list[EncodedBatch]:
        wanted = [epoch.step(number) for number in steps]
        try:
            batches = read_batches(dataset, wanted, spec, access, stop)
        except CacheUnusable:  # its disk is away: for a while shards are open where they are stored
            batches = read_batches(dataset, wanted, spec, access, stop)
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
    start, length, is_local = epoch.done, 1, dataset.is_local
    while start < epoch.steps:
        end = min(start + length, epoch.steps)
        if not is_local:
            access.prefetch(upcoming_shards(dataset, epoch, end))
        yield from read(range(start, end))
        start, length = end, min(2 * length, longest)


class _Chunks:
    """Cuts an epoch into chunks of steps, numbered from 0, and schedules their reads: first a chunk's frame indexes, a
    few chunks at a time; then its packets, as soon as earlier chunks leave room for its bytes. A waiting chunk has its
    byte ranges planned already, and requests them at once when it is admitted.

    The first chunk is a single step. Chunks grow up to `longest` steps or a share of `_AHEAD_BYTES`, estimated from the
    sizes of their clips' MP4s and the fraction of these that earlier chunks read.

    Args:
        epoch: the steps of this rank.
        sizes: int64 [clips], bytes of the clips' MP4s.
        longest: most steps of a chunk.

    Attributes:
        computing: held by the thread that computes.
    """

    def __init__(self, epoch: Epoch, sizes: Int64, longest: int) -> None:
        self._epoch, self._sizes, self._longest = epoch, sizes, longest
        self._changed = threading.Condition()
        self.computing = OneAtATime()
        self._start, self._part = epoch.done, 0.0
        self._cut = self._turn = 0
        self._starts: list[int] = []
        self._planning: dict[int, tuple[int, int]] = {}
        self._inside: dict[int, int] = {}
        self._closed = False

    def cut(self, number: int) -> range:
        """The steps of a chunk, as soon as its frame indexes may be read; empty after the end of the epoch."""
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
            self._starts.append(first)
            self._changed.notify_all()
            return range(first, end)

    def urgency(self, number: int) -> int:
        """The step whose priority the planning of a chunk has: that of `_LEAD` chunks earlier, but not before that
        of a chunk planned before it."""
        if number < _CHUNKS_AHEAD:
            return self._starts[number]
        return max(self._starts[_CHUNKS_AHEAD - 1], self._starts[number - _LEAD])

    def enter(self, number: int, size: int) -> None:
        """Wait until `size` bytes of packets of a chunk may be read. Does nothing if called again for a chunk. The next
        chunk waits until `queued`."""
        with self._changed:
            if (planned := self._planning.pop(number, None)) is None:
                return
            self._part = max(self._part, size / max(planned[1], 1))
            self._changed.notify_all()
            self._wait(
                lambda: number == self._turn and sum(self._inside.values()) + size * bool(self._inside) <= _AHEAD_BYTES
            )
            self._inside[number] = size

    def queued(self, number: int) -> None:
        """Record that the parts of a chunk wait for a reader, which takes them in order. If those of later chunks came
        first, they could keep all readers, and the loop would wait for them."""
        with self._changed:
            self._turn = number + 1
            self._changed.notify_all()

    def leave(self, number: int) -> None:
        """Record that the loop has taken a chunk."""
        with self._changed:
            self._inside.pop(number, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Make all waiting calls raise CancelledError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait(self, may: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._closed or may())
        if self._closed:
            raise CancelledError


class _ComputingTurn(Turn):
    """The priority of a thread that plans a chunk or reads a part of one: earlier steps compute first, and their
    packets are read first. A context manager, which holds `_Chunks.computing`.

    Args:
        chunks: the epoch's chunks.
        chunk: number of the chunk.
        step: the step whose priority it gets, for computing and for requests.
        admitted: the same once it is admitted; default: `step`.
    """

    def __init__(self, chunks: _Chunks, chunk: int, step: int, admitted: int | None = None) -> None:
        super().__init__(step)
        self._chunks, self._chunk = chunks, chunk
        self._admitted = step if admitted is None else admitted

    def __enter__(self) -> Turn:
        self._chunks.computing.acquire(self.number)
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
            if self._chunks.computing.is_wanted_before(self.number):
                with self.waiting():
                    pass

    def admit(self, size: int) -> None:
        with self.waiting():
            self._chunks.enter(self._chunk, size)
            self.number = self._admitted


_Part = tuple[range, Future[list[EncodedBatch]] | None]


def _read_ahead(
    plan: Callable[[Sequence[range], Turn], list[Callable[[Turn], list[EncodedBatch]]]],
    read_again: Callable[[range], list[EncodedBatch]],
    chunks: _Chunks,
    least: int,
) -> Generator[tuple[int, list[EncodedBatch]], None, None]:
    """Plan and read chunks concurrently, and yield their parts in order: the number of a part's first step, and its
    batches. Parts with damaged clips are read again by `read_again` when the loop needs them, because a clip that is
    found bad in one batch is left out of all later ones.

    Args:
        plan: plans the parts of a chunk; gives a function for each that reads it.
        read_again: reads steps with damaged clips.
        chunks: the epoch's chunks.
        least: fewest steps of a part.
    """

    def read_part(read: Callable[[Turn], list[EncodedBatch]], number: int, step: int) -> list[EncodedBatch]:
        with _ComputingTurn(chunks, number, step) as turn:
            return read(turn)

    def plan_chunk(number: int) -> tuple[range, list[_Part] | None]:
        steps = chunks.cut(number)
        try:
            if not steps:
                return steps, []
            parts = [steps[first : first + least] for first in range(0, len(steps), least)]
            with _ComputingTurn(chunks, number, chunks.urgency(number), steps.start) as turn:
                functions = plan(parts, turn)
            reads = zip(parts, functions, strict=True)
            return steps, [(own, readers.submit(read_part, read, number, own.start)) for own, read in reads]
        except (ClipError, FileTooShort):
            return steps, None
        finally:
            chunks.enter(number, 0)  # if this one failed before `admit`
            chunks.queued(number)

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
