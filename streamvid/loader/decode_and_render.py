"""Encoded batches → PyTorch batches: the decoder and the transform, which live longer than an iteration."""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

from streamvid.decode.base import Decoder
from streamvid.decode.cpu import CpuDecoder
from streamvid.decode.gpu import GpuDecoder
from streamvid.fetch.plan_samples import EncodedBatch, SampleSpec
from streamvid.sampling.padding import has_black_frames
from streamvid.transform.cpu_crop_resize import (
    CropResizedFrames,
    CropResizeSink,
    Scratch,
    crop_boxes,
    fits_crop_resize,
    resize_alone,
)
from streamvid.transform.cpu_renderer import CpuBatchWriter, fits_cpu_renderer
from streamvid.transform.dali_renderer import DecodedBatch, FinishedBatches, TorchBatches
from streamvid.transform.spec import Transform, Views

Submit = Callable[[EncodedBatch], Callable[[], Any]]
"""Begins to decode a batch; the function that comes back waits for its frames, as of a `DecodedBatch`."""
Begun = tuple[Iterator[DecodedBatch], Callable[[], None]]
"""Decoded batches, and what ends the threads that make them."""


class DecodeAndRender:
    """Decoders and transforms, used by one iteration each at a time.

    Args:
        recipe: what is made of every clip.
        device_id: the GPU's number, or None for the CPU.
        threads: CPU threads that decode and transform.
        max_batch: clips per batch at most.
        rotates: some clips are to be turned upright.
    """

    def __init__(
        self, recipe: SampleSpec, *, device_id: int | None, threads: int, max_batch: int, rotates: bool
    ) -> None:
        self._recipe, self._rotates = recipe, rotates
        self._device_id, self._threads, self._max_batch = device_id, threads, max_batch
        self._placed = device_id is None and fits_crop_resize(recipe.transform)
        self._finished = device_id is None and fits_cpu_renderer(recipe.transform)
        self._scratch = Scratch()
        # Those that no iteration uses. Iterations at the same time each have their own.
        self._decoders: list[Decoder] = []
        self._transforms: list[TorchBatches | FinishedBatches] = []

    def run(self, begin: Callable[[Submit], Begun]) -> Generator[tuple[EncodedBatch, dict[str, Any]], None, None]:
        """Batches, each with its tensors, in order; an error of any thread is raised here, in its place.

        Args:
            begin: starts decoding by the function that it is given. Its batches are taken in the calling thread.
        """
        decoder = self._decoders.pop() if self._decoders else self._make_decoder()
        transform = self._transforms.pop() if self._transforms else self._make_transform()
        passed: deque[EncodedBatch] = deque()
        decoded, stop = begin(partial(self._submit, decoder))

        def noted() -> Iterator[DecodedBatch]:
            for batch in decoded:
                passed.append(batch.encoded)
                yield batch

        whole = False
        # An iterator that is still alive when Python ends must not run into DALI's own clean-up.
        atexit.register(stop)
        try:
            for tensors in transform.over(noted()):
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

    def _submit(self, decoder: Decoder, batch: EncodedBatch) -> Callable[[], Any]:
        if not self._placed:
            return decoder.submit(batch.slices).result
        assert isinstance(decoder, CpuDecoder)
        if self._finished:
            views = CpuBatchWriter(self._recipe.transform, batch, self._scratch)
            written = decoder.write(batch.slices, views.canvases)
            return lambda: (written.result(), views.tensors)[1]
        sinks = canvases(self._recipe.transform, batch, self._scratch)
        written = decoder.write(batch.slices, sinks)
        return lambda: (written.result(), [sink.frames for sink in sinks])[1]

    def _make_decoder(self) -> Decoder:
        if self._device_id is None:
            return CpuDecoder(threads=self._threads, initializer=resize_alone)
        return GpuDecoder(device_id=self._device_id, threads=self._threads, max_batch=self._max_batch)

    def _make_transform(self) -> TorchBatches | FinishedBatches:
        if self._finished:
            return FinishedBatches()
        return TorchBatches(
            self._recipe.transform,
            device_id=self._device_id,
            max_batch=self._max_batch,
            threads=self._threads,
            placed=self._placed,
            rotates=self._rotates,
            has_blanks=has_black_frames(self._recipe.sampling.pad),
        )


def canvases(transform: Transform | Views, batch: EncodedBatch, scratch: Scratch) -> list[CropResizeSink]:
    """What takes the frames of each clip of a batch on the CPU, where DALI is to go on with them."""
    slices = batch.slices
    placed = crop_boxes(transform, batch.inputs, [(part.height, part.width) for part in slices])
    return [
        CropResizeSink(
            CropResizedFrames(views, height=part.height, width=part.width, scratch=scratch),
            [view.size for view in views],
            len(part.frames),
        )
        for views, part in zip(placed, slices, strict=True)
    ]
