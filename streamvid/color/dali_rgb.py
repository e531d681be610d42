"""Corrects the RGB of DALI's decoder by a clip's tags."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamvid.color.render import recolouring
from streamvid.color.tags import Color

if TYPE_CHECKING:
    import torch


def recoloured(frames: torch.Tensor, color: Color) -> torch.Tensor:
    """Convert DALI's RGB, which is BT.601 regardless of a stream's tags, to the RGB of another matrix. Levels that DALI
    has clipped cannot be restored, and its chroma siting stays the centre.

    Args:
        frames: uint8 [frames, height, width, 3] on a GPU.
        color: matrix, range and siting of the decoded samples.

    Returns:
        uint8 of the same shape; `frames` itself if nothing changes.
    """
    import torch

    if color.as_dali or color.matrix == "bt601":
        return frames
    factors = torch.from_numpy(recolouring(color)).to(frames.device).T
    made = torch.empty_like(frames)
    for frame, out in zip(frames, made, strict=True):  # one by one, for little memory
        out.copy_((frame.view(-1, 3).float() @ factors).round_().clamp_(0, 255).view_as(out))
    return made
