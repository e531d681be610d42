"""Decoding for a `GpuDataLoader`: in a thread, while batches are taken from PyTorch's workers in the calling one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from streamvid.fetch.plan_samples import EncodedBatch
from streamvid.loader.decode_and_render import Begun, Submit
from streamvid.transform.dali_renderer import DecodedBatch

_AHEAD: Final = 2
"""Batches that are decoded or wait for the transform at most."""


def begin(batches: Iterator[EncodedBatch], submit: Submit) -> Begun:
    """Start decoding; see `streamvid.loader.decode_and_render.DecodeAndRender.run`.

    `batches` is taken from in the calling thread: PyTorch watches its workers, and Python its keyboard, there.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="streamvid-proxy")

    def stop() -> None:
        thread.shutdown(wait=True, cancel_futures=True)

    return _decoded(batches, submit, thread), stop


class _Decoding:
    """A batch on its way through the decoder: begun, and at some time told to finish.

    Args:
        encoded: the batch.
        begun: gives the function that gives the frames.
    """

    def __init__(self, encoded: EncodedBatch, begun: Future[Callable[[], list[Any]]]) -> None:
        self.encoded, self._begun = encoded, begun
        self._frames: Future[list[Any]] | None = None

    def finish(self, thread: ThreadPoolExecutor) -> Future[list[Any]]:
        """The frames, once the thread has come to them; it takes one thing after the other, so they have begun."""
        if self._frames is None:
            self._frames = thread.submit(lambda: self._begun.result()())
        return self._frames


def _decoded(batches: Iterator[EncodedBatch], submit: Submit, thread: ThreadPoolExecutor) -> Iterator[DecodedBatch]:
    """Decode in the thread, a few batches ahead of what is asked for."""
    pending: deque[_Decoding] = deque()
    ahead = 0

    def next_decoded() -> DecodedBatch:
        one = pending.popleft()
        return DecodedBatch(one.encoded, one.finish(thread).result())

    for encoded in batches:
        begun = thread.submit(submit, encoded)
        if pending:
            # Behind the beginning of the next: a decoder that works on its own has no pause between them.
            pending[-1].finish(thread)
        pending.append(_Decoding(encoded, begun))
        if len(pending) > ahead:
            yield next_decoded()
            # One more from batch to batch: the first does not wait until others have been read.
            ahead = min(ahead + 1, _AHEAD)
    while pending:
        yield next_decoded()
