"""The transform as a DALI pipeline whose inputs are decoded batches."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import tee
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from streamvid.decode.base import Frames
from streamvid.errors import InputError
from streamvid.fetch.encoded_batch import BATCH_COLUMNS, EncodedBatch
from streamvid.forks import abandon_pipeline, in_children
from streamvid.transform.dali_graph import build_graph, input_names
from streamvid.transform.params import PARAM_TYPES, ClipTransform, Params
from streamvid.transform.spec import Views, by_view

if TYPE_CHECKING:
    import torch
    from nvidia.dali.data_node import DataNode
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    Tensors = dict[str, torch.Tensor]

Array = npt.NDArray[np.generic]
InputType = tuple[type[np.generic], int]
"""An input of the graph: dtype, and number of dimensions per clip."""


@dataclass(frozen=True)
class DecodedBatch:
    """A batch and its decoded frames.

    Attributes:
        encoded: the batch before decoding.
        params: the transform's parameters for its clips.
        frames: for each input of the graph, for each clip, uint8 [decoded, height, width, 3]. There is one input, of
            frames as decoded, or one for each view, of frames that are upright, cropped and resized.
    """

    encoded: EncodedBatch
    params: Params
    frames: Sequence[Sequence[Frames]]


class GraphOutputs:
    """The outputs of a DALI pipeline around the transform's graph, and the conversions that PyTorch makes afterwards.

    Args:
        spec: the transform.
        on_gpu: whether the pipeline runs on a GPU.

    Attributes:
        views: the transforms by view.
        spec: the transform to build the graph from: `spec` with float32 in the place of bfloat16, which DALI does not
            write, and, on the CPU, of float16, which DALI takes three times as long to write. PyTorch converts the
            result in next to no time.
        names: names of the outputs, in order: views, then `BATCH_COLUMNS`.
    """

    def __init__(self, spec: ClipTransform, *, on_gpu: bool) -> None:
        self.views = by_view(spec.transform)
        self._converted = [
            view
            for view, transform in self.views.items()
            if transform.dtype == "bfloat16" or (transform.dtype == "float16" and not on_gpu)
        ]
        drawn = {**self.views, **{view: replace(self.views[view], dtype="float32") for view in self._converted}}
        share = spec.transform.share if isinstance(spec.transform, Views) else ()
        self.spec = replace(spec, transform=Views(drawn, share=share))
        self.names = [*self.views, *BATCH_COLUMNS]

    def finish(self, tensors: Tensors, batch: EncodedBatch) -> Tensors:
        """Convert the outputs for a batch to the transform's dtypes, and check the output of `Transform(dali)`.

        Raises:
            InputError: `Transform(dali)` did not keep frames, channels or dtype.
        """
        import torch

        # Not on a GPU, where comparing would wait for all work that the training loop has queued.
        if not tensors["clip"].is_cuda and tensors["clip"].tolist() != batch.clips.tolist():
            raise AssertionError("DALI returned a batch out of order")
        for view in self._converted:
            tensors[view] = tensors[view].to(getattr(torch, self.views[view].dtype))
        frames = tensors["mask"].shape[1]
        for view, transform in self.views.items():
            if transform.dali is None:
                continue
            video, axes = tensors[view], transform.layout.index
            if video.ndim != 5 or (video.shape[1 + axes("T")], video.shape[1 + axes("C")]) != (frames, 3):
                raise InputError(
                    f"Transform(dali) must leave one image of three channels for each of {frames} frames, "
                    f"but batch[{view!r}] has the shape {tuple(video.shape)}"
                )
            if str(video.dtype) != f"torch.{transform.dtype}":
                raise InputError(f"Transform(dali) must return uint8, but batch[{view!r}] comes out as {video.dtype}")
        return tensors


class DaliPipeline:
    """Runs the transform's graph over decoded batches.

    Args:
        spec: the transform.
        device_id: the GPU's number, or None for the CPU.
        max_batch: clips per batch at most.
        threads: CPU threads.
        crop_resized: as in `streamvid.transform.dali_graph.build_graph`.
        depth: batches that DALI works on at the same time: 2 for `run`, 1 for `run_once`.
    """

    def __init__(
        self,
        spec: ClipTransform,
        *,
        device_id: int | None,
        max_batch: int,
        threads: int,
        crop_resized: bool,
        depth: int = 2,
    ) -> None:
        from nvidia.dali import pipeline_def

        on_gpu = device_id is not None
        self._outputs = outputs = GraphOutputs(spec, on_gpu=on_gpu)
        names = input_names(spec, crop_resized=crop_resized)
        self._feed = feed = _Feed(names, frame_inputs=len(outputs.views) if crop_resized else 1)

        @pipeline_def(batch_size=max_batch, num_threads=threads, device_id=device_id, prefetch_queue_depth=depth)
        def pipeline() -> tuple[DataNode, ...]:
            frames, params, columns = feed.inputs(on_gpu)
            views = build_graph(outputs.spec, frames, params, crop_resized=crop_resized)
            return *views, *([node.gpu() for node in columns] if on_gpu else columns)

        self._pipeline = in_children(pipeline(), abandon_pipeline)
        self._pipeline.build()
        self._iterator: DALIGenericIterator | None = None
        self._ended = False

    def run(self, batches: Iterator[DecodedBatch]) -> Iterator[tuple[EncodedBatch, Tensors]]:
        """The tensors of an epoch's batches, views and `BATCH_COLUMNS`, in order; DALI works on the next ones
        meanwhile.

        This object cannot be used again after an epoch that failed or was left early.
        """
        iterator = None
        try:
            iterator = self._start(batches)
            while True:
                try:
                    (tensors,) = next(iterator)
                except StopIteration:
                    self._ended = True
                    return
                encoded = self._feed.inside.popleft()
                yield encoded, self._outputs.finish(tensors, encoded)
        except Exception as error:
            # An exception that is kept would keep DALI's pipeline alive, through the frames of its traceback.
            traceback.clear_frames(error.__traceback__)
            raise
        finally:
            del iterator

    def run_once(self, batch: DecodedBatch) -> Tensors:
        """The tensors of one batch of one clip on the CPU, without working ahead."""
        import torch

        self._feed.start(iter([batch]))
        outputs = zip(self._outputs.names, self._pipeline.run(), strict=True)
        tensors = {name: torch.from_numpy(np.array(output.at(0))[None]) for name, output in outputs}
        return self._outputs.finish(tensors, batch.encoded)

    def close(self) -> None:
        """Free DALI's pipeline, now."""
        del self._iterator, self._pipeline

    def _start(self, batches: Iterator[DecodedBatch]) -> DALIGenericIterator:
        from nvidia.dali.plugin.base_iterator import LastBatchPolicy
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        self._feed.start(batches)
        if self._iterator is None:
            # PARTIAL returns every batch unchanged: the plan has decided about the last one.
            self._iterator = DALIGenericIterator(
                [self._pipeline],
                self._outputs.names,
                auto_reset=False,
                last_batch_policy=LastBatchPolicy.PARTIAL,
                prepare_first_batch=False,
            )
        if self._ended:
            # Resetting starts the pipeline, which takes the first batches from the source at once.
            self._iterator.reset()
            self._ended = False
        return self._iterator


class _Feed:
    """Feeds batches to the pipeline's two external sources: frames, on the device that they were decoded on, and
    parameters and columns, on the CPU.

    It is separate from `DaliPipeline` because DALI's pipeline refers to it: a reference cycle with its owner would be
    freed only by the garbage collector; see `DaliPipeline.close`.

    Args:
        param_names: names of the graph's inputs besides frames.
        frame_inputs: number of inputs for frames.

    Attributes:
        inside: batches that DALI works on, in order.
    """

    def __init__(self, param_names: Sequence[str], *, frame_inputs: int) -> None:
        self._param_names, self._frame_inputs = param_names, frame_inputs
        # One position for each external source.
        self._for_frames: Iterator[DecodedBatch] = iter(())
        self._for_rest: Iterator[DecodedBatch] = iter(())
        self._held: deque[DecodedBatch] = deque(maxlen=3)
        self.inside: deque[EncodedBatch] = deque()

    def inputs(self, on_gpu: bool) -> tuple[list[DataNode], dict[str, DataNode], list[DataNode]]:
        """The frames, the parameters by name, and the columns, as nodes of the pipeline being defined."""
        from nvidia.dali import fn, types

        frames = fn.external_source(
            source=self._next_frames,
            batch=True,
            num_outputs=self._frame_inputs,
            device="gpu" if on_gpu else "cpu",
            dtype=types.UINT8,
            ndim=4,
            layout="FHWC",
        )
        _, params, columns = external_inputs(self._next_rest, self._param_names)
        return list(frames), params, columns

    def start(self, batches: Iterator[DecodedBatch]) -> None:
        """Take batches from this iterator from now on."""
        self.inside.clear()
        self._for_frames, self._for_rest = tee(_noted(batches, self.inside))

    def _next_frames(self) -> Sequence[Sequence[Frames]]:
        batch = next(self._for_frames)
        # DALI copies frames on the GPU after this returns. When it asks for the next but one, the copy has been made:
        # the pipeline works on two batches at a time.
        self._held.append(batch)
        return tuple(batch.frames)

    def _next_rest(self) -> tuple[list[Array], ...]:
        batch = next(self._for_rest)
        return input_arrays(batch.encoded, batch.params, self._param_names)


def _noted(batches: Iterator[DecodedBatch], inside: deque[EncodedBatch]) -> Iterator[DecodedBatch]:
    for batch in batches:
        inside.append(batch.encoded)
        yield batch


def external_inputs(
    source: Callable[[], tuple[list[Array], ...]] | Iterator[tuple[list[Array], ...]],
    param_names: Sequence[str],
    before: Sequence[InputType] = (),
) -> tuple[list[DataNode], dict[str, DataNode], list[DataNode]]:
    """Add an external source on the CPU to a pipeline definition: inputs of the caller, parameters and columns.

    Args:
        source: returns the arrays of each batch: those for `before`, then `input_arrays`.
        param_names: as in `input_arrays`.
        before: types of the caller's own inputs.

    Returns:
        The nodes for `before`, the parameters by name, and the columns.
    """
    from nvidia.dali import fn, types

    inputs = [*before, *(PARAM_TYPES[name.rpartition(".")[2]] for name in param_names), *BATCH_COLUMNS.values()]
    nodes = fn.external_source(
        source=source,
        batch=True,
        num_outputs=len(inputs),
        dtype=[types.to_dali_type(np.dtype(dtype).name) for dtype, _ in inputs],
        ndim=[ndim for _, ndim in inputs],
    )
    params, end = nodes[len(before) :], len(before) + len(param_names)
    return list(nodes[: len(before)]), dict(zip(param_names, params, strict=False)), list(nodes[end:])


def input_arrays(batch: EncodedBatch, params: Params, names: Sequence[str]) -> tuple[list[Array], ...]:
    """The arrays of a batch for an external source: for each input, an array for each clip. First the transform's
    parameters of the given names, then `BATCH_COLUMNS`."""
    inputs = (*(params[name] for name in names), *batch.columns().values())
    return tuple([np.asarray(value) for value in values] for values in inputs)
