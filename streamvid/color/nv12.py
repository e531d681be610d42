"""Surfaces of NVDEC → RGB at full size by Triton kernels on the GPU: by a clip's tags (`streamvid.color.render`), or
with the pixels of DALI's GPU decoder, bit for bit.

DALI's conversion, fitted to the output of DALI 2.4: chroma is sited at the centre of its four luma samples and
interpolated bilinearly, clamped at the borders. Then, in float32, the matrix of BT.601 on levels from 0 to 1 with
black at 0.0625 and neutral chroma at 0.5, or that of JPEG for full range. (16 / 255 and 128 / 255 would be exact;
DALI's values are 0.07 of a level off in luma and half a level in chroma.)

For 10-bit streams DALI has NVDEC deliver 8 bits, which NVDEC dithers, fitted to the output of an H200: of each 2×2
samples of a plane, the remainders of the division by 4 are summed, and (sum + 1) // 4 of the four samples are rounded
up, those with the largest remainders first. Ties go to the sample nearest to the centre of its 4×4 block, but for
remainders of 3 to the one farthest from it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from streamvid.color.render import conversion, recolouring
from streamvid.color.tags import Color

if TYPE_CHECKING:
    import torch

_BLOCK: Final = 512
"""Pixels of a row that one program of a kernel writes."""


def to_rgb(
    surfaces: torch.Tensor, out: torch.Tensor, dst_rows: torch.Tensor, *, count: int, color: Color, shift: int = 0
) -> None:
    """Convert surfaces to RGB, on the current CUDA stream.

    Args:
        surfaces: uint8 [surfaces, 3 * height / 2, width], contiguous: luma, then interleaved U and V; int16 for 10
            bits, of which DALI's pixels are made by way of `to_8_bit`.
        out: uint8 [frames, height, width, 3], contiguous; written.
        dst_rows: int64 [surfaces], the frame of `out` that each surface becomes.
        count: how many surfaces to convert, from the first.
        color: what their samples mean.
        shift: as of `to_8_bit`.
    """
    import torch

    _, height, width, _ = out.shape
    grid = (-(-width // _BLOCK), height, count)
    # Importing Triton is slow, and needs a GPU.
    if color.as_dali:
        from streamvid.color.nv12_kernel import nv12_to_rgb

        nv12_to_rgb[grid](surfaces, out, dst_rows, height, width, FULL=color.full_range, BLOCK=_BLOCK)
        return
    from streamvid.color.render_kernel import render

    rows = dst_rows[:count]
    table = _full_size(color, 8 if surfaces.dtype is torch.uint8 else 10, out.device)
    luma = height * width
    render[grid](
        surfaces, surfaces[0].numel(), width, luma, height, width, table, torch.zeros_like(rows), out,
        rows * (3 * luma), height, width, 1, 3 * width, 3, SHIFT=shift, BLOCK=_BLOCK,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _full_size(color: Color, bits: int, device: torch.device) -> torch.Tensor:
    """What `streamvid.color.render_kernel.render` needs to know, for frames that are neither cropped nor resized."""
    import torch

    across, down = color.siting
    box, siting, taps = (0, 1, 0, 1), (across / 4, down / 4), (2, 2, 3, 3)
    row = [*box, *siting, *taps, *conversion(color, bits).ravel().tolist(), *(0, 1) * 3]
    return torch.tensor(row, dtype=torch.float32, device=device)


def recoloured(frames: torch.Tensor, color: Color) -> torch.Tensor:
    """DALI's RGB, which is BT.601 whatever a stream is tagged with, as if converted by another matrix. What DALI has
    clipped does not come back, and its chroma is sited at the centre.

    Args:
        frames: uint8 [frames, height, width, 3] on a GPU.
        color: what decoded samples meant.

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


def to_8_bit(samples: torch.Tensor, out: torch.Tensor, *, count: int, shift: int) -> None:
    """Dither 10-bit surfaces to 8 bits as NVDEC does, on the current CUDA stream.

    Args:
        samples: int16 [surfaces, 3 * height / 2, width], contiguous, unsigned 10-bit samples; height and width are
            multiples of 4.
        out: uint8 of the same shape, contiguous; written.
        count: how many surfaces to convert, from the first.
        shift: bits that samples are shifted to the left by: 6 in NVDEC's P016, 0 in FFmpeg's planes.
    """
    from streamvid.color import nv12_kernel

    _, rows, width = samples.shape
    grid = (-(-width // 2 // _BLOCK), rows // 2, count)
    nv12_kernel.to_8_bit[grid](samples, out, rows * 2 // 3, width, SHIFT=shift, BLOCK=_BLOCK)
