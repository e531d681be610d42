"""Decodes batches in order, and submits the next batch while it waits for the result of the previous one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from itertools import islice
from typing import Final, Protocol, TypeVar

import numpy as np

from streamvid.decode.base import Pending
from streamvid.decode.deadline import LateBatches
from streamvid.errors import VideoError
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.fetch.epoch_reader import Rescue

T = TypeVar("T")
_POLL_S: Final = 0.001
AHEAD_PIXELS: Final = 1024 * 1280 * 720
"""Pixels of wanted frames in the batches that are begun behind the one that the loop waits for: enough to keep a GPU's
engines busy while Python hands that batch over and begins another."""
MOST_BEGUN: Final = 8
"""Most batches that are begun at a time."""


class BatchSource(Protocol):
    """An iterator over encoded batches that another thread makes."""

    def __next__(self) -> EncodedBatch: ...

    def ready(self) -> bool:
        """Whether `next` returns without waiting."""


def decoded_in_order(
    batches: BatchSource,
    submit: Callable[[EncodedBatch], Pending[T]],
    rescue: Rescue | None = None,
    last_resort: Callable[[EncodedBatch], Pending[T]] | None = None,
    *,
    ahead_pixels: int = 0,
) -> Generator[T, None, None]:
    """The results of batches, in order.

    The next batch is submitted before the result of the current one is complete, so that NVDEC engines or CPU threads
    that have finished their part go on with the next. No result waits for the next batch to be read. An error is raised
    after the results of all earlier batches.

    Args:
        batches: the encoded batches.
        submit: begins to decode a batch.
        rescue: makes a batch that does not decode again, without its bad clips.
        last_resort: decodes in another way a batch that fails again although all its slices are good (or, without a
            rescue, may be); None: its error is raised.
        ahead_pixels: batches after the current one are submitted until their wanted frames have this many pixels; at
            least one batch.
    """
    begun: deque[tuple[EncodedBatch, Pending[T]]] = deque()
    error: Exception | None = None
    ended = False
    with LateBatches() as late:
        while begun or not ended:
            behind = sum(_pixels(batch) for batch, _ in islice(begun, 1, None))
            wants = not ended and (len(begun) < 2 or (behind < ahead_pixels and len(begun) < MOST_BEGUN))
            if wants and (not begun or batches.ready()):
                try:
                    batch = next(batches, None)
                    if batch is None:
                        ended = True
                    else:
                        begun.append((batch, _begin(batch, submit)))
                except Exception as raised:
                    error, ended = raised, True
            elif wants and not begun[0][1].done():
                time.sleep(_POLL_S)
            else:
                batch, pending = begun.popleft()
                result = pending.result
                if rescue is not None or last_resort is not None:
                    result = partial(_rescued, batch, pending, submit, rescue, last_resort)
                yield late.wait_for(result, [encoded.name for encoded in batch.slices])
    if error is not None:
        try:
            raise error
        finally:
            # An exception refers to this frame, and this frame, through `submit`, to DALI's pipeline: see
            # `streamvid.transform.dali_pipeline.DaliPipeline.close`.
            del error


def _pixels(batch: EncodedBatch) -> int:
    """Pixels of a batch's wanted frames, before cropping."""
    return sum(len(encoded.frames) * encoded.height * encoded.width for encoded in batch.slices)


def _begin(batch: EncodedBatch, submit: Callable[[EncodedBatch], Pending[T]]) -> Pending[T]:
    """Submit a batch; an error of its clips is raised by the result."""
    try:
        return submit(batch)
    except VideoError as error:
        found = error.with_traceback(None)

    def fail() -> T:
        raise found

    return Pending(fail)


def _rescued(
    batch: EncodedBatch,
    pending: Pending[T],
    submit: Callable[[EncodedBatch], Pending[T]],
    rescue: Rescue | None,
    last_resort: Callable[[EncodedBatch], Pending[T]] | None,
) -> T:
    """The result of a batch, or of the batch that the rescue made in its place."""
    try:
        result = pending.result()
        if rescue is None or not rescue.is_stale(batch):
            return result
        del result
        batch = rescue(batch.number, decode=False)
        return submit(batch).result()
    except VideoError as error:
        cause = error.with_traceback(None)
    while True:
        before, batch = batch, batch if rescue is None else rescue(batch.number, cause)
        try:
            return submit(batch).result()
        except VideoError as error:
            cause = error.with_traceback(None)
            if np.array_equal(before.clips, batch.clips) and np.array_equal(before.absent, batch.absent):
                break  # no clip is at fault
    if last_resort is None:
        raise cause
    return last_resort(batch).result()
