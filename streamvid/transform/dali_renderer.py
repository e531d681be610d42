"""Decoded batches → PyTorch batches: the transform's DALI pipeline behind a `DALIGenericIterator`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from streamvid.errors import InputError
from streamvid.fetch.plan_samples import EncodedBatch
from streamvid.transform.dali_graph import fields, graph
from streamvid.transform.params import KINDS
from streamvid.transform.spec import Transform, Views, by_view

ABOUT: Final = {
    "mask": (np.bool_, 1),
    "pts": (np.float64, 1),
    "label": (np.int64, 0),
    "clip": (np.int64, 0),
    "valid": (np.bool_, 0),
}
"""What a batch holds beside the frames: dtype and number of dimensions per clip."""


@dataclass(frozen=True)
class DecodedBatch:
    """A batch and its frames.

    Attributes:
        encoded: what it was decoded from.
        frames: per clip uint8 [decoded, height, width, 3], a NumPy array or a tensor on the GPU; or a list of them, the
            placed pictures of each view; or the finished tensors of all clips by the name of their view.
    """

    encoded: EncodedBatch
    frames: Any


class TorchBatches:
    """Runs the transform over decoded batches; lives as long as the run.

    Args:
        transform: what to do with the frames.
        device_id: the GPU's number, or None for the CPU.
        max_batch: clips per batch at most.
        threads: CPU threads.
        placed, rotates, has_blanks: as in `streamvid.transform.dali_graph.graph`.
    """

    def __init__(
        self,
        transform: Transform | Views,
        *,
        device_id: int | None,
        max_batch: int,
        threads: int,
        placed: bool,
        rotates: bool,
        has_blanks: bool,
    ) -> None:
        from nvidia.dali import pipeline_def
        from nvidia.dali.plugin.base_iterator import LastBatchPolicy
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        self._views = by_view(transform)
        names = fields(transform, placed=placed, rotates=rotates, has_blanks=has_blanks)
        self._feed = _Feed(names, views=len(self._views) if placed else None)
        self._ended = False
        on_gpu = device_id is not None
        # On the CPU DALI takes three times as long to write float16 as float32, and PyTorch next to nothing to convert.
        self._halve = [view for view, one in self._views.items() if one.dtype == "float16" and not on_gpu]
        views = {view: replace(one, dtype="float32") for view, one in self._views.items() if view in self._halve}
        made = Views({**self._views, **views})

        @pipeline_def(batch_size=max_batch, num_threads=threads, device_id=device_id, prefetch_queue_depth=2)
        def pipeline() -> Any:
            frames, given, about = self._feed.nodes(on_gpu)
            videos = graph(made, frames, given, placed=placed, rotates=rotates, has_blanks=has_blanks)
            return *videos, *([node.gpu() for node in about] if on_gpu else about)

        self._pipeline = pipeline()
        self._pipeline.build()
        # The plan decides how the last batch is made; here every batch is handed on as it comes.
        self._iterator = DALIGenericIterator(
            [self._pipeline],
            [*self._views, *ABOUT],
            auto_reset=False,
            last_batch_policy=LastBatchPolicy.PARTIAL,
            prepare_first_batch=False,
        )

    def over(self, source: Iterator[DecodedBatch]) -> Iterator[dict[str, Any]]:
        """One epoch's batches. After an epoch that was left early, this object is of no use any more."""
        self._feed.start(source)
        if self._ended:
            # Resetting starts the pipeline, which takes the first batches from the source at once.
            self._iterator.reset()
            self._ended = False
        while True:
            try:
                (batch,) = next(self._iterator)
            except StopIteration:
                self._ended = True
                return
            for view in self._halve:
                batch[view] = batch[view].half()
            for view, one in self._views.items():
                if one.dali is not None:
                    check_own(view, one, batch)
            yield batch


class FinishedBatches:
    """What `TorchBatches` does where the decoder's threads have done all of the transform."""

    def over(self, source: Iterator[DecodedBatch]) -> Iterator[dict[str, Any]]:
        """One epoch's batches."""
        import torch

        for batch in source:
            yield {
                **batch.frames,
                **{name: torch.tensor(column) for name, column in zip(ABOUT, about(batch.encoded), strict=True)},
            }


def about(batch: EncodedBatch) -> tuple[Any, ...]:
    """What `ABOUT` names, in its order."""
    return batch.mask, batch.seconds, batch.labels, batch.clips, batch.valid


def check_own(view: str, transform: Transform, batch: Mapping[str, Any]) -> None:
    """Whether the user's own part of the graph left what the rest of a batch relies on."""
    video, mask = batch[view], batch["mask"]
    at = 1 + transform.layout.index("T")
    colours = 1 + transform.layout.index("C")
    if video.ndim != 5 or (video.shape[at], video.shape[colours]) != (mask.shape[1], 3):
        raise InputError(
            f"Transform(dali) must leave one picture of three channels for each of {mask.shape[1]} frames, "
            f"but batch[{view!r}] has the shape {tuple(video.shape)}"
        )
    if str(video.dtype) != f"torch.{transform.dtype}":
        raise InputError(f"Transform(dali) must return uint8, but batch[{view!r}] comes out as {video.dtype}")


class _Feed:
    """Splits batches over the pipeline's external sources, one of which takes frames on the GPU, the other the rest
    on the CPU.

    Args:
        names: what the graph takes: see `streamvid.transform.dali_graph.fields`.
        views: how many views the frames come in; None if they come as decoded.
    """

    def __init__(self, names: Sequence[str], *, views: int | None) -> None:
        self._fields, self._frame_views = names, views
        self._source: Iterator[DecodedBatch] = iter(())
        self._frames: deque[DecodedBatch] = deque()
        self._rest: deque[DecodedBatch] = deque()
        self._held: deque[DecodedBatch] = deque(maxlen=3)

    def start(self, source: Iterator[DecodedBatch]) -> None:
        """Take batches from there from now on."""
        self._source = source
        self._frames.clear()
        self._rest.clear()

    def nodes(self, on_gpu: bool) -> tuple[list[Any], dict[str, Any], list[Any]]:
        """The frames, the fields by name, and what goes out beside the video, as nodes of the graph being defined."""
        from nvidia.dali import fn, types

        kinds = [KINDS[name.rpartition(".")[2]] for name in self._fields] + list(ABOUT.values())
        frames = fn.external_source(
            source=self._next_frames,
            batch=True,
            num_outputs=self._frame_views or 1,
            device="gpu" if on_gpu else "cpu",
            dtype=types.UINT8,
            ndim=4,
            layout="FHWC",
        )
        rest = fn.external_source(
            source=self._next_rest,
            batch=True,
            num_outputs=len(kinds),
            dtype=[types.to_dali_type(np.dtype(dtype).name) for dtype, _ in kinds],
            ndim=[ndim for _, ndim in kinds],
        )
        return list(frames), dict(zip(self._fields, rest, strict=False)), list(rest[len(self._fields) :])

    def _pull(self, mine: deque[DecodedBatch], other: deque[DecodedBatch]) -> DecodedBatch:
        if not mine:
            batch = next(self._source)
            mine.append(batch)
            other.append(batch)
        return mine.popleft()

    def _next_frames(self) -> Any:
        batch = self._pull(self._frames, self._rest)
        # DALI copies frames on the GPU after this returns. When it asks for the next but one, the copy has been made:
        # the pipeline works on two batches at a time.
        self._held.append(batch)
        if self._frame_views is None:
            return (batch.frames,)
        return tuple([pictures[view] for pictures in batch.frames] for view in range(self._frame_views))

    def _next_rest(self) -> tuple[list[Any], ...]:
        batch = self._pull(self._rest, self._frames).encoded
        return (
            *([np.asarray(value) for value in batch.inputs[name]] for name in self._fields),
            *([np.asarray(value) for value in column] for column in about(batch)),
        )
