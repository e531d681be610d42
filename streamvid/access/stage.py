"""Encoded batches → PyTorch batches: decoded in a thread, transformed by DALI, all in the process that uses them."""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from streamvid.stream.batches import DecodedBatch, TorchBatches
from streamvid.stream.decode import CpuDecoder, Decoder, GpuDecoder
from streamvid.stream.samples import EncodedBatch, Recipe

_AHEAD: Final = 2
"""Batches that are decoded or wait for the transform at most."""


class Stage:
    """Decoders and transforms; they live as long as it does, and are used by one iteration each.

    Args:
        recipe: what is made of every clip.
        device_id: the GPU's number, or None for the CPU.
        threads: CPU threads that decode and transform.
        max_batch: clips per batch at most.
        rotates: some clips are to be turned upright.
    """

    def __init__(self, recipe: Recipe, *, device_id: int | None, threads: int, max_batch: int, rotates: bool) -> None:
        self._recipe, self._rotates = recipe, rotates
        self._device_id, self._threads, self._max_batch = device_id, threads, max_batch
        # Those that no iteration uses.
        self._decoders: list[Decoder] = []
        self._transforms: list[TorchBatches] = []

    def run(self, batches: Iterator[EncodedBatch]) -> Iterator[tuple[EncodedBatch, dict[str, Any]]]:
        """The batches, each with its tensors, in order.

        `batches` is taken from in the calling thread: PyTorch watches its workers, and Python its keyboard, there.
        An error of any stage is raised at once.
        """
        decoder = self._decoders.pop() if self._decoders else self._make_decoder()
        transform = self._transforms.pop() if self._transforms else self._make_transform()
        thread = ThreadPoolExecutor(1, thread_name_prefix="streamvid-proxy")
        passed: deque[EncodedBatch] = deque()
        whole = False

        def stop() -> None:
            thread.shutdown(wait=True, cancel_futures=True)

        # An iterator that is still alive when Python ends must not run into DALI's own clean-up.
        atexit.register(stop)
        try:
            for tensors in transform.over(_decoded(batches, decoder, thread, passed)):
                encoded = passed.popleft()
                # On a GPU looking would wait for all that the training loop has queued there.
                if not tensors["clip"].is_cuda and tensors["clip"].tolist() != encoded.clips.tolist():
                    raise AssertionError("DALI handed out a batch out of turn")
                yield encoded, tensors
            whole = True
        finally:
            atexit.unregister(stop)
            stop()
            # A decoder that failed may be of no use; batches of an iteration that was left early are still inside the
            # transform's pipeline. The next iteration makes new ones.
            if whole and not self._decoders:
                self._decoders.append(decoder)
                self._transforms.append(transform)
            else:
                decoder.close()

    def close(self) -> None:
        """Free threads and device memory that no iteration uses."""
        while self._decoders:
            self._decoders.pop().close()
        self._transforms.clear()

    def _make_decoder(self) -> Decoder:
        if self._device_id is None:
            return CpuDecoder(threads=self._threads, max_batch=self._max_batch)
        return GpuDecoder(device_id=self._device_id, threads=self._threads, max_batch=self._max_batch)

    def _make_transform(self) -> TorchBatches:
        return TorchBatches(
            self._recipe.transform,
            device_id=self._device_id,
            max_batch=self._max_batch,
            threads=self._threads,
            rotates=self._rotates,
            has_blanks=self._recipe.pad in ("constant", "none"),
        )


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


def _decoded(
    batches: Iterator[EncodedBatch], decoder: Decoder, thread: ThreadPoolExecutor, passed: deque[EncodedBatch]
) -> Iterator[DecodedBatch]:
    """Decode in the thread, a few batches ahead of what is asked for."""
    pending: deque[_Decoding] = deque()
    ahead = 0

    def next_decoded() -> DecodedBatch:
        one = pending.popleft()
        frames = one.finish(thread).result()
        passed.append(one.encoded)
        return DecodedBatch(one.encoded, frames)

    for encoded in batches:
        begun = thread.submit(decoder.submit, encoded.slices)
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
