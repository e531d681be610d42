"""Encoded batches → tensors: decoding and the transform, by one of three renderers.

`make_renderer` chooses by transform and device: `CpuRenderer` and `GpuRenderer` need no DALI, `DaliRenderer` runs the
transform's graph on CPU or GPU.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

from streamvid.arrays import Bool
from streamvid.color.surfaces import Kernel
from streamvid.decode.base import Pending, PendingFrames
from streamvid.decode.cpu import CpuDecoder, InThreadDecoder
from streamvid.decode.gpu import GpuDecoder
from streamvid.decode.isolated import IsolatedDecoder
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.fetch.epoch_reader import Rescue
from streamvid.transform.cpu_batch_writer import BatchMemory, CpuBatchWriter, fits_batch_writer
from streamvid.transform.cpu_frame_renderer import RenderedFrames
from streamvid.transform.crop_boxes import Scratch, crop_boxes, fits_crop_resize
from streamvid.transform.dali_pipeline import DaliPipeline, DecodedBatch
from streamvid.transform.gpu_pictures import GpuPictures, fits_one_pass, fits_surfaces
from streamvid.transform.in_order import AHEAD_PIXELS, BatchSource, decoded_in_order
from streamvid.transform.params import ClipTransform, Params, batch_params
from streamvid.transform.spec import Transform, Views, by_view

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@dataclass(frozen=True)
class RenderedBatch:
    """A batch as tensors.

    Attributes:
        encoded: the batch that was decoded.
        tensors: by name, [batch, …] on the renderer's device: each view in its transform's layout and dtype, then
            `streamvid.fetch.encoded_batch.BATCH_COLUMNS`.
    """

    encoded: EncodedBatch
    tensors: dict[str, torch.Tensor]


class RunAhead(Protocol):
    """Runs an iterator in a thread of its own, some items ahead of the consumer."""

    def __call__(self, items: Iterator[T], /) -> Iterator[T]: ...


class Renderer(Protocol):
    """Decodes batches and makes their tensors.

    Attributes:
        shared: whether several iterations may run at the same time; batches are decoded in the order in which they are
            submitted.
    """

    shared: ClassVar[bool]

    def run(self, batches: BatchSource, run_ahead: RunAhead, rescue: Rescue | None = None) -> Iterator[RenderedBatch]:
        """The tensors of batches, in order; an error is raised in its batch's place.

        Args:
            batches: encoded batches, consumed as far ahead as decoding needs, in the thread of `run_ahead`.
            run_ahead: moves decoding into a thread of its own.
            rescue: makes batches that do not decode again; None: their errors are raised.
        """

    def render_sample(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """The tensors of a batch of one clip.

        Raises:
            VideoError: the clip does not decode to its frames.
            RuntimeError: DALI cannot transform them; the renderer cannot be used again.
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
        threads: CPU threads that decode and transform; 0 for a renderer that is used only for `render_sample`, with one
            decoding thread.
        max_batch: clips per batch at most.
        on_cpu: bool [clips of the dataset]: with a GPU, the clips that the CPU decodes; default: none.
        isolate: whether the CPU decodes in child processes (`streamvid.decode.isolated`).
    """
    if device_id is None:
        if fits_batch_writer(spec.transform):
            return CpuRenderer(spec.transform, threads=threads, isolate=isolate)
        return DaliRenderer(spec, _cpu_decoder(threads, isolate), threads=threads, max_batch=max_batch)
    decoder = GpuDecoder(device_id=device_id, threads=threads, max_batch=max_batch, isolate=isolate)
    if decoder.sessions is not None and fits_one_pass(spec.transform):
        return GpuRenderer(spec.transform, decoder, on_cpu=on_cpu)
    return DaliRenderer(spec, decoder, device_id=device_id, threads=threads, max_batch=max_batch, on_cpu=on_cpu)


class CpuRenderer:
    """A `Renderer` that writes frames into the batch as they are decoded (`streamvid.transform.cpu_batch_writer`).

    Args:
        transform, threads, isolate: as in `make_renderer`.
    """

    shared: ClassVar[bool] = True

    def __init__(self, transform: Transform | Views, *, threads: int, isolate: bool = False) -> None:
        self._transform, self._scratch, self._memory = transform, Scratch(), BatchMemory()
        self._decoder = _cpu_decoder(threads, isolate)

    def run(self, batches: BatchSource, run_ahead: RunAhead, rescue: Rescue | None = None) -> Iterator[RenderedBatch]:
        return run_ahead(decoded_in_order(batches, self._submit, rescue))

    def render_sample(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        return self._submit(batch).result().tensors

    def close(self) -> None:
        """Free the decoder's threads."""
        self._decoder.close()

    def _submit(self, batch: EncodedBatch) -> Pending[RenderedBatch]:
        writer = CpuBatchWriter(self._transform, batch, self._scratch, self._memory)
        written = self._decoder.write(batch.slices, writer.sinks)

        def rendered() -> RenderedBatch:
            import torch

            written.result()
            # Copies: the arrays of a batch may be memory that is shared with a worker.
            columns = {name: torch.tensor(column, device="cpu") for name, column in batch.columns().items()}
            return RenderedBatch(batch, {**writer.tensors, **columns})

        return Pending(rendered, written.done)


class GpuRenderer:
    """A `Renderer` with a kernel that writes NVDEC's surfaces into the batch (`streamvid.transform.gpu_pictures`).

    Args:
        transform: one that `fits_one_pass`.
        decoder: a decoder with sessions; closed with this object.
        on_cpu: as in `make_renderer`.
    """

    shared: ClassVar[bool] = False

    def __init__(self, transform: Transform | Views, decoder: GpuDecoder, *, on_cpu: Bool | None) -> None:
        assert decoder.sessions is not None
        self._transform, self._decoder, self._on_cpu, self._scratch = transform, decoder, on_cpu, Scratch()
        self._stream = decoder.sessions.stream
        self._color = next(iter(by_view(transform).values())).color
        for view in by_view(transform).values():
            decoder.sessions.compile(Kernel(view.dtype, wide=False, recolours=view.recolours))

    def run(self, batches: BatchSource, run_ahead: RunAhead, rescue: Rescue | None = None) -> Iterator[RenderedBatch]:
        made = decoded_in_order(
            batches, self._submit, rescue, partial(self._submit, on_cpu=True), ahead_pixels=AHEAD_PIXELS
        )
        for rendered in _counted(made, run_ahead, self._decoder):
            self._hand_over(rendered.tensors)
            yield rendered

    def render_sample(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        tensors = self._submit(batch).result().tensors
        self._hand_over(tensors)
        return tensors

    def close(self) -> None:
        """Free threads and device memory."""
        self._decoder.close()

    def _hand_over(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Record the tensors on the current stream, so that their memory is decoded into again only after all work is
        done that is queued on that stream when they are freed."""
        import torch

        for tensor in tensors.values():
            tensor.record_stream(torch.cuda.current_stream(tensor.device))

    def _submit(self, batch: EncodedBatch, *, on_cpu: bool = False) -> Pending[RenderedBatch]:
        import torch

        params = batch_params(self._transform, batch)
        with torch.cuda.stream(self._stream):
            pictures = GpuPictures(
                self._transform, batch, params, stream=self._stream, scratch=self._scratch, final=True
            )
            # Copies: the arrays of a batch may be memory that is shared with a worker.
            columns = {
                name: torch.tensor(values, device=self._stream.device) for name, values in batch.columns().items()
            }
        left = _left_to_cpu(batch, self._on_cpu, on_cpu)
        written = self._decoder.write(batch.slices, pictures, left, color=self._color)

        def rendered() -> RenderedBatch:
            written.result()
            self._stream.synchronize()
            return RenderedBatch(batch, {**pictures.tensors, **columns})

        return Pending(rendered, written.done)


class DaliRenderer:
    """A `Renderer` that decodes, if possible crops and resizes, and leaves the rest of the transform to DALI
    (`streamvid.transform.dali_pipeline`).

    Args:
        spec: the transform.
        decoder: the decoder; closed with this object.
        device_id: the GPU's number, or None for the CPU.
        threads, max_batch, on_cpu: as in `make_renderer`.
    """

    shared: ClassVar[bool] = False

    def __init__(
        self,
        spec: ClipTransform,
        decoder: CpuDecoder | GpuDecoder,
        *,
        device_id: int | None = None,
        threads: int,
        max_batch: int,
        on_cpu: Bool | None = None,
    ) -> None:
        self._transform, self._scratch, self._on_cpu = spec.transform, Scratch(), on_cpu
        self._color = next(iter(by_view(spec.transform).values())).color
        self._decoder = decoder
        if isinstance(decoder, CpuDecoder):
            self._crop_resizes = fits_crop_resize(spec.transform)
        else:
            self._crop_resizes = decoder.sessions is not None and fits_surfaces(spec.transform)
        self._pipeline = DaliPipeline(
            spec,
            device_id=device_id,
            max_batch=max_batch,
            threads=max(1, threads),
            crop_resized=self._crop_resizes,
            depth=2 if threads else 1,
        )

    def run(self, batches: BatchSource, run_ahead: RunAhead, rescue: Rescue | None = None) -> Iterator[RenderedBatch]:
        by_cpu = partial(self._submit, on_cpu=True) if isinstance(self._decoder, GpuDecoder) else None
        ahead = AHEAD_PIXELS if by_cpu else 0
        decoded = decoded_in_order(batches, self._submit, rescue, by_cpu, ahead_pixels=ahead)
        for encoded, tensors in self._pipeline.run(_counted(decoded, run_ahead, self._decoder)):
            yield RenderedBatch(encoded, tensors)

    def render_sample(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        return self._pipeline.run_once(self._submit(batch).result())

    def close(self) -> None:
        """Free threads and device memory."""
        self._decoder.close()
        self._pipeline.close()

    def _submit(self, batch: EncodedBatch, *, on_cpu: bool = False) -> Pending[DecodedBatch]:
        params = batch_params(self._transform, batch)
        decoder = self._decoder
        if not self._crop_resizes:
            frames: PendingFrames
            if isinstance(decoder, CpuDecoder):
                frames = decoder.submit(batch.slices, color=self._color)
            else:
                left = _left_to_cpu(batch, self._on_cpu, on_cpu)
                frames = decoder.submit(batch.slices, left, color=self._color)
            return Pending(lambda: DecodedBatch(batch, params, [frames.result()]), frames.done)
        if isinstance(decoder, GpuDecoder):
            return self._submit_to_gpu(batch, params, decoder, _left_to_cpu(batch, self._on_cpu, on_cpu))
        boxes = crop_boxes(self._transform, params, batch.heights, batch.widths)
        views = list(by_view(self._transform).values())
        sinks = [RenderedFrames(views, *pair, self._scratch) for pair in zip(boxes, batch.slices, strict=True)]
        written = decoder.write(batch.slices, sinks)

        def decoded() -> DecodedBatch:
            written.result()
            return DecodedBatch(
                batch, params, [list(view) for view in zip(*(sink.frames for sink in sinks), strict=True)]
            )

        return Pending(decoded, written.done)

    def _submit_to_gpu(
        self, batch: EncodedBatch, params: Params, decoder: GpuDecoder, on_cpu: Sequence[bool]
    ) -> Pending[DecodedBatch]:
        import torch

        assert decoder.sessions is not None
        stream = decoder.sessions.stream
        with torch.cuda.stream(stream):
            pictures = GpuPictures(self._transform, batch, params, stream=stream, scratch=self._scratch, final=False)
        written = decoder.write(batch.slices, pictures, on_cpu, color=self._color)

        def decoded() -> DecodedBatch:
            written.result()
            return DecodedBatch(batch, params, pictures.frames)

        return Pending(decoded, written.done)


def _counted(made: Generator[T, None, None], run_ahead: RunAhead, decoder: CpuDecoder | GpuDecoder) -> Iterator[T]:
    """`run_ahead(made)`, whose waiting batches are counted for the GPU's decode sessions."""
    sessions = decoder.sessions if isinstance(decoder, GpuDecoder) else None
    if sessions is None:
        yield from run_ahead(made)
        return

    def counted() -> Iterator[T]:
        with closing(made):
            for batch in made:
                sessions.waiting(1)
                yield batch

    for batch in run_ahead(counted()):
        sessions.waiting(-1)
        yield batch


def _left_to_cpu(batch: EncodedBatch, on_cpu: Bool | None, every: bool) -> list[bool]:
    """The clips of a batch that the CPU decodes regardless of their route."""
    if every or on_cpu is None:
        return [every] * len(batch.slices)
    found: list[bool] = on_cpu[batch.clips].tolist()
    return found


def _cpu_decoder(threads: int, isolate: bool) -> CpuDecoder:
    return CpuDecoder(threads=threads, decoder=IsolatedDecoder if isolate else InThreadDecoder)
