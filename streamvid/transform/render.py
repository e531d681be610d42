"""Encoded batches → tensors: decoding and the transform, in the form that fits the transform and the device.

`make_renderer` decides which: `CpuRenderer` needs no DALI, `DaliRenderer` runs the transform's graph on either device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from streamvid.arrays import Bool
from streamvid.decode.base import Pending, PendingFrames
from streamvid.decode.cpu import CpuDecoder, InThreadDecoder
from streamvid.decode.deadline import LateBatches
from streamvid.decode.gpu import GpuDecoder
from streamvid.decode.isolated import IsolatedDecoder
from streamvid.errors import VideoError
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.fetch.epoch_reader import Rescue
from streamvid.transform.cpu_batch_writer import CpuBatchWriter, fits_batch_writer
from streamvid.transform.cpu_crop_resize import Scratch, crop_boxes, fits_crop_resize, resize_in_one_thread
from streamvid.transform.cpu_frame_renderer import RenderedFrames
from streamvid.transform.dali_pipeline import DaliPipeline, DecodedBatch
from streamvid.transform.params import ClipTransform, batch_params
from streamvid.transform.spec import Transform, Views, by_view

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@dataclass(frozen=True)
class RenderedBatch:
    """A batch as tensors.

    Attributes:
        encoded: what it was made from.
        tensors: by name, [batch, …] on the renderer's device: each view in its transform's layout and dtype, then
            `streamvid.fetch.encoded_batch.BATCH_COLUMNS`.
    """

    encoded: EncodedBatch
    tensors: dict[str, torch.Tensor]


class BatchSource(Protocol):
    """An iterator over encoded batches that another thread makes."""

    def __next__(self) -> EncodedBatch: ...

    def ready(self) -> bool:
        """Whether `next` returns without waiting."""


class RunAhead(Protocol):
    """Has an iterator's items made in a thread of its own, some of them ahead of who takes them."""

    def __call__(self, items: Iterator[T], /) -> Iterator[T]: ...


class Renderer(Protocol):
    """Decodes batches and makes their tensors; for one iteration at a time."""

    def run(self, batches: BatchSource, run_ahead: RunAhead, rescue: Rescue | None = None) -> Iterator[RenderedBatch]:
        """The tensors of batches, in order; an error is raised in its batch's place.

        Args:
            batches: taken as far ahead as decoding needs, in the thread of `run_ahead`.
            run_ahead: puts decoding into a thread of its own.
            rescue: for batches that do not decode; None: their errors are raised.
        """

    def render_sample(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """The tensors of a batch of one clip.

        Raises:
            VideoError: the clip does not decode to its frames.
            RuntimeError: DALI cannot transform them; the renderer is of no use then.
        """

    def close(self) -> None:
        """Free threads and device memory."""


def make_renderer(
    spec: ClipTransform,
    *,
    device_id: int | None,
    threads: int,
    max_batch: int,
    on_cpu: Bool | None = None,
    isolate: bool = False,
) -> Renderer:
    """The renderer for a transform. DALI is imported only if it is needed.

    Args:
        spec: the transform.
        device_id: the GPU's number, or None for the CPU.
        threads: CPU threads that decode and transform; 0 for `render_sample` alone, with one that decodes.
        max_batch: clips per batch at most.
        on_cpu: bool [clips of the dataset]: with a GPU, the clips that the CPU decodes; default: none.
        isolate: what the CPU decodes, it decodes in child processes (`streamvid.decode.isolated`).
    """
    if device_id is None and fits_batch_writer(spec.transform):
        return CpuRenderer(spec.transform, threads=threads, isolate=isolate)
    return DaliRenderer(spec, device_id=device_id, threads=threads, max_batch=max_batch, on_cpu=on_cpu, isolate=isolate)


class CpuRenderer:
    """Writes frames into the batch as they are decoded: see `streamvid.transform.cpu_batch_writer`.

    Args:
        transform, threads, isolate: as of `make_renderer`.
    """

    def __init__(self, transform: Transform | Views, *, threads: int, isolate: bool = False) -> None:
        self._transform, self._scratch = transform, Scratch()
        self._decoder = _cpu_decoder(threads, isolate)

    def run(self, batches: BatchSource, run_ahead: RunAhead, rescue: Rescue | None = None) -> Iterator[RenderedBatch]:
        """See `Renderer`."""
        return run_ahead(decoded_in_order(batches, self._submit, rescue))

    def render_sample(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """See `Renderer`."""
        return self._submit(batch).result().tensors

    def close(self) -> None:
        """Free the decoder's threads."""
        self._decoder.close()

    def _submit(self, batch: EncodedBatch) -> Pending[RenderedBatch]:
        writer = CpuBatchWriter(self._transform, batch, self._scratch)
        written = self._decoder.write(batch.slices, writer.sinks)

        def rendered() -> RenderedBatch:
            import torch

            written.result()
            # Copies: the arrays of a batch may be memory that is shared with a worker.
            columns = {name: torch.tensor(column) for name, column in batch.columns().items()}
            return RenderedBatch(batch, {**writer.tensors, **columns})

        return Pending(rendered)


class DaliRenderer:
    """Decodes, on the CPU crops and resizes each frame as it is decoded where that is possible, and leaves the rest of
    the transform to DALI (`streamvid.transform.dali_pipeline`).

    Args: as of `make_renderer`.
    """

    def __init__(
        self,
        spec: ClipTransform,
        *,
        device_id: int | None,
        threads: int,
        max_batch: int,
        on_cpu: Bool | None = None,
        isolate: bool = False,
    ) -> None:
        self._transform, self._scratch, self._on_cpu = spec.transform, Scratch(), on_cpu
        self._color = next(iter(by_view(spec.transform).values())).color
        self._cpu_decoder: CpuDecoder | None = None
        self._decoder: CpuDecoder | GpuDecoder
        if device_id is not None:
            self._decoder = GpuDecoder(device_id=device_id, threads=threads, max_batch=max_batch, isolate=isolate)
        else:
            self._decoder = _cpu_decoder(threads, isolate)
            if fits_crop_resize(spec.transform):
                self._cpu_decoder = self._decoder
        self._pipeline = DaliPipeline(
            spec,
            device_id=device_id,
            max_batch=max_batch,
            threads=max(1, threads),
            crop_resized=self._cpu_decoder is not None,
            depth=2 if threads else 1,
        )

    def run(self, batches: BatchSource, run_ahead: RunAhead, rescue: Rescue | None = None) -> Iterator[RenderedBatch]:
        """See `Renderer`."""
        by_cpu = partial(self._submit, on_cpu=True) if isinstance(self._decoder, GpuDecoder) else None
        decoded = decoded_in_order(batches, self._submit, rescue, by_cpu)
        for encoded, tensors in self._pipeline.run(run_ahead(decoded)):
            yield RenderedBatch(encoded, tensors)

    def render_sample(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """See `Renderer`."""
        return self._pipeline.run_once(self._submit(batch).result())

    def close(self) -> None:
        """Free threads and device memory."""
        self._decoder.close()
        self._pipeline.close()

    def _submit(self, batch: EncodedBatch, *, on_cpu: bool = False) -> Pending[DecodedBatch]:
        params = batch_params(self._transform, batch)
        if self._cpu_decoder is None:
            frames = self._submit_slices(batch, on_cpu)
            return Pending(lambda: DecodedBatch(batch, params, [frames.result()]))
        boxes = crop_boxes(self._transform, params, batch.heights, batch.widths)
        sinks = [
            RenderedFrames(
                list(by_view(self._transform).values()),
                views,
                color=one.color,
                height=one.height,
                width=one.width,
                count=len(one.frames),
                scratch=self._scratch,
            )
            for views, one in zip(boxes, batch.slices, strict=True)
        ]
        written = self._cpu_decoder.write(batch.slices, sinks)

        def decoded() -> DecodedBatch:
            written.result()
            return DecodedBatch(
                batch, params, [list(view) for view in zip(*(sink.frames for sink in sinks), strict=True)]
            )

        return Pending(decoded)

    def _submit_slices(self, batch: EncodedBatch, on_cpu: bool) -> PendingFrames:
        if isinstance(self._decoder, CpuDecoder):
            return self._decoder.submit(batch.slices, color=self._color)
        if on_cpu or self._on_cpu is None:
            return self._decoder.submit(batch.slices, [on_cpu] * len(batch.slices), color=self._color)
        return self._decoder.submit(batch.slices, self._on_cpu[batch.clips].tolist(), color=self._color)


def _cpu_decoder(threads: int, isolate: bool) -> CpuDecoder:
    return CpuDecoder(
        threads=threads, initializer=resize_in_one_thread, decoder=IsolatedDecoder if isolate else InThreadDecoder
    )


def decoded_in_order(
    batches: BatchSource,
    submit: Callable[[EncodedBatch], Pending[T]],
    rescue: Rescue | None = None,
    last_resort: Callable[[EncodedBatch], Pending[T]] | None = None,
) -> Iterator[T]:
    """The results of batches, in order.

    The next batch is always submitted before the result of one is waited for: the engines of a GPU, or the threads of
    the CPU's decoder, that are done with their part of a batch go on with the next. Only the first result does not wait
    for the second batch to be read. An error comes after the results of all batches before its own.

    Args:
        batches: encoded ones.
        submit: begins to decode one.
        rescue: makes one anew that does not decode.
        last_resort: decodes one in another way that fails again, though all its slices are good, or without a rescue
            may be; None: its error is raised.
    """
    begun: deque[tuple[EncodedBatch, Pending[T]]] = deque()
    error: Exception | None = None
    ended, is_first, late = False, True, LateBatches()
    while begun or not ended:
        if not ended and (not begun or (len(begun) == 1 and (not is_first or batches.ready()))):
            try:
                batch = next(batches, None)
                if batch is None:
                    ended = True
                else:
                    begun.append((batch, _begin(batch, submit)))
            except Exception as raised:
                error, ended = raised, True
        else:
            is_first = False
            batch, pending = begun.popleft()
            result = pending.result
            if rescue is not None or last_resort is not None:
                result = partial(_rescued, batch, pending, submit, rescue, last_resort)
            yield late.wait_for(result, [encoded.name for encoded in batch.slices])
    if error is not None:
        try:
            raise error
        finally:
            # An exception refers to this frame, and this frame to DALI's pipeline by way of `submit`: see
            # `streamvid.transform.dali_pipeline.DaliPipeline.close`.
            del error


def _begin(batch: EncodedBatch, submit: Callable[[EncodedBatch], Pending[T]]) -> Pending[T]:
    """Submit a batch; an error of its clips comes with its result."""
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
    """The result of a batch, or of the one that is made in its place."""
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
                break  # it is no clip that fails
    if last_resort is None:
        raise cause
    return last_resort(batch).result()
