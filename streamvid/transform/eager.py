"""`Transform.apply`: a transform at once, without a loader."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Eager:
    """What `streamvid.transform.spec.Transform` and `Views` have in common: they can be applied."""

    def apply(self, frames: Any, *, seed: int = 0, epoch: int = 0, clip: int = 0) -> Any:
        """Apply it to one clip or image: on the CPU as a loader there does it, else by DALI's dynamic mode.

        The draw is named as a loader names it: equal `seed`, and `epoch` and `clip` as a batch has them, give equal
        choices. (Of several samples of a clip, it is the first one's.)

        Args:
            frames: uint8 [F, H, W, 3] or, an image, [H, W, 3]: RGB, upright; an array or a tensor, on a GPU, too.
            seed: of the loader.
            epoch: in which pass over its dataset the clip comes.
            clip: its row.

        Returns:
            a tensor on the frames' device, in the transform's `layout`, without T for an image, and its `dtype`; of
            `Views` a dict of such.

        Raises:
            InputError: other frames; too small ones for a crop; `dali` is given, which needs a graph.
        """
        # By name: it is made of the transforms that this is a part of.
        return import_module("streamvid.transform.apply").apply_transform(
            self, frames, seed=seed, epoch=epoch, clip=clip
        )
