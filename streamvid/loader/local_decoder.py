"""One sample at a time, decoded and transformed on the CPU in the calling thread: what a DataLoader's worker does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import UInt8
from streamvid.decode.cpu import CpuDecoder
from streamvid.errors import VideoError
from streamvid.fetch.plan_samples import EncodedBatch
from streamvid.loader.decode_and_render import canvases
from streamvid.transform.cpu_crop_resize import Scratch, fits_crop_resize
from streamvid.transform.cpu_renderer import CpuBatchWriter, fits_cpu_renderer
from streamvid.transform.dali_renderer import check_own
from streamvid.transform.spec import Transform, Views, by_view

_INHERITED: Final[list[object]] = []
"""Pipelines that came with a fork. Their threads did not, so that taking them down would wait for ever: they stay."""


class LocalDecoder:
    """Decodes and transforms batches of one clip, without threads of its own but those of DALI's one.

    The transform is what a StreamLoader does on the CPU, so the pixels are the same. DALI is not even imported where
    there is nothing for it to do (`streamvid.transform.cpu_renderer`).

    Args:
        transform: what to do with the frames.
        rotates, has_blanks: as in `streamvid.transform.dali_graph.graph`.
    """

    def __init__(self, transform: Transform | Views, *, rotates: bool, has_blanks: bool) -> None:
        self._transform, self._rotates, self._has_blanks = transform, rotates, has_blanks
        self._placed, self._scratch = fits_crop_resize(transform), Scratch()
        self._decoder = CpuDecoder(threads=0)
        self._pid = os.getpid()
        self._pipeline: _Synchronous | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"transform": self._transform, "rotates": self._rotates, "has_blanks": self._has_blanks}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def run(self, batch: EncodedBatch) -> dict[str, Any]:
        """The views of a batch of one clip: by name a tensor in the transform's layout and dtype.

        Raises:
            VideoError: the clip does not decode to its frames, or cannot be transformed.
        """
        import torch

        (part,) = batch.slices
        if fits_cpu_renderer(self._transform):
            views = CpuBatchWriter(self._transform, batch, self._scratch)
            self._decoder.write(batch.slices, views.canvases).result()
            return {view: tensor[0] for view, tensor in views.tensors.items()}
        frames: Sequence[UInt8]
        if self._placed:
            (sink,) = canvases(self._transform, batch, self._scratch)
            self._decoder.write(batch.slices, [sink]).result()
            frames = sink.frames
        else:
            frames = self._decoder.decode(batch.slices)
        if self._pid != os.getpid():
            _INHERITED.append(self._pipeline)
            self._pipeline, self._pid = None, os.getpid()
        if self._pipeline is None:
            self._pipeline = _Synchronous(
                self._transform, placed=self._placed, rotates=self._rotates, has_blanks=self._has_blanks
            )
        try:
            pictures = self._pipeline.run(frames, batch)
        except RuntimeError as error:
            self._pipeline = None  # of no use after an error
            reason = " ".join(str(error).split())[:300]
            raise VideoError(f"clip {part.name} cannot be transformed: {reason}") from error
        made = {}
        for view, one in by_view(self._transform).items():
            tensor = torch.from_numpy(pictures[view])
            made[view] = tensor.half() if one.dtype == "float16" else tensor
            if one.dali is not None:
                check_own(view, one, {view: made[view][None], "mask": batch.mask})
        return made


class _Synchronous:
    """The transform's graph for one clip at a time, run when asked."""

    def __init__(self, transform: Transform | Views, *, placed: bool, rotates: bool, has_blanks: bool) -> None:
        from nvidia.dali import fn, pipeline_def, types

        from streamvid.transform.dali_graph import fields, graph
        from streamvid.transform.params import KINDS

        self._views = by_view(transform)
        self._fields = fields(transform, placed=placed, rotates=rotates, has_blanks=has_blanks)
        self._frames = [f"frames {n}" for n in range(len(self._views) if placed else 1)]
        # As in TorchBatches: DALI is slow at float16 on the CPU, PyTorch is not.
        made = Views({
            view: replace(one, dtype="float32") if one.dtype == "float16" else one for view, one in self._views.items()
        })  # fmt: skip

        @pipeline_def(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
        def pipeline() -> Any:
            frames = [fn.external_source(name=name, dtype=types.UINT8, ndim=4, layout="FHWC") for name in self._frames]
            given = {}
            for name in self._fields:
                dtype, ndim = KINDS[name.rpartition(".")[2]]
                kind = types.to_dali_type(np.dtype(dtype).name)
                given[name] = fn.external_source(name=f"field {name}", dtype=kind, ndim=ndim)
            return tuple(graph(made, frames, given, placed=placed, rotates=rotates, has_blanks=has_blanks))

        self._pipeline = pipeline()
        self._pipeline.build()

    def run(self, frames: Sequence[UInt8], batch: EncodedBatch) -> dict[str, npt.NDArray[Any]]:
        """The views of one clip, arrays of their own."""
        for name, pictures in zip(self._frames, frames, strict=True):
            self._pipeline.feed_input(name, [pictures], layout="FHWC")
        for name in self._fields:
            self._pipeline.feed_input(f"field {name}", [np.asarray(value) for value in batch.inputs[name]])
        outputs = self._pipeline.run()
        return {view: np.array(output.at(0)) for view, output in zip(self._views, outputs, strict=True)}
