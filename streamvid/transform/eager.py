"""`Transform.apply`: applies a transform immediately, without a loader."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Eager:
    """Base of `streamvid.transform.spec.Transform` and `Views`, with the method `apply`."""

    def apply(self, frames: Any, *, seed: int = 0, epoch: int = 0, clip: int = 0) -> Any:
        """Apply the transform to one clip or image, as a loader does it on that device; steps for which it needs DALI's
        graph are done by DALI's dynamic mode.

        With a loader's `seed`, and `epoch` and `clip` from its batch, the random choices equal those of the loader (for
        the first sample of a clip that has several).

        Args:
            frames: uint8 [F, H, W, 3] or, an image, [H, W, 3]: RGB, upright; an array or a tensor, on a GPU, too.
            seed: the loader's seed.
            epoch: number of the pass over its dataset in which the clip comes; a tensor of one number is accepted.
            clip: row number of the clip; likewise.

        Returns:
            a tensor on the frames' device, in the transform's `layout` (without T for an image) and `dtype`; for
            `Views` a dict of tensors by view.

        Raises:
            InputError: the frames have another shape or dtype, or are too small for the crop; or the transform has
                `dali`, which needs a graph.
        """
        # Imported by name here, because that module imports the transforms that this is a base of.
        return import_module("streamvid.transform.apply").apply_transform(
            self, frames, seed=seed, epoch=epoch, clip=clip
        )
