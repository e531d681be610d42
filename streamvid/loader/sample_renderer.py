"""Decodes and transforms one sample at a time on the CPU, in a DataLoader's worker."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from streamvid.decode.dali import reason_of
from streamvid.errors import StreamvidError
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.host import limit_met
from streamvid.transform.params import ClipTransform
from streamvid.transform.render import Renderer, make_renderer

if TYPE_CHECKING:
    import torch


class SampleRenderer:
    """Renders batches of one clip with a StreamLoader's renderer for the CPU, so the pixels are the same.

    Instances can be pickled, and used in forked processes: each process opens a renderer of its own.

    Args:
        isolate: decode in a child process (`streamvid.decode.isolated`).
    """

    def __init__(self, spec: ClipTransform, *, isolate: bool = False) -> None:
        self._spec, self._isolate = spec, isolate
        self._pid = os.getpid()
        self._renderer: Renderer | None = None

    def __reduce__(self) -> tuple[partial[SampleRenderer], tuple[ClipTransform]]:
        return partial(SampleRenderer, isolate=self._isolate), (self._spec,)

    def render(self, batch: EncodedBatch) -> dict[str, torch.Tensor]:
        """The tensors of a batch of one clip, without the batch's dimension: see
        `streamvid.transform.render.RenderedBatch`.

        Raises:
            VideoError: the clip does not decode to its frames.
            StreamvidError: the transform fails, which is not held against the clip.
            RuntimeError: no further thread can be started, or there is no memory left: see `streamvid.host.limit_met`.
        """
        if self._renderer is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._renderer = make_renderer(self._spec, device_id=None, threads=0, max_batch=1, isolate=self._isolate)
        try:
            tensors = self._renderer.render_sample(batch)
        except RuntimeError as error:
            self._renderer = None  # DALI's pipeline cannot be used after an error
            if limit_met(error) is not None:
                raise
            raise StreamvidError(f"the transform fails on clip {batch.slices[0].name}: {reason_of(error)}") from error
        return {name: tensor[0] for name, tensor in tensors.items()}
