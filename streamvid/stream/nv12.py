"""What NVDEC delivers → RGB, on the GPU, by Triton kernels: the same pixels, bit for bit, as DALI's GPU decoder.

DALI converts so, as fitted to what DALI 2.4 delivers: chroma is taken to lie at the centre of its four luma samples,
and interpolated linearly with clamped borders; then the matrix of BT.601 on levels from 0 to 1, with black at 0.0625
and no colour at 0.5, or that of JPEG for full range, in float32. (16 / 255 and 128 / 255 would be exact; the difference
is 0.07 of a level in luma and half a level in chroma.)

Of 10-bit streams DALI has NVDEC deliver 8 bits, which NVDEC dithers, as fitted to what an H200 delivers: of each two by
two samples of a plane, the remainders of the division by 4 are summed; (sum + 1) // 4 of the four are rounded up, those
with the largest remainders. Of equal remainders the sample nearest to the middle of its four by four comes first; of
remainders of 3 it comes last.
"""

from __future__ import annotations

from typing import Any, Final

_BLOCK: Final = 512
"""Pixels that one program of a kernel makes, side by side."""


def to_rgb(nv12: Any, out: Any, *, full_range: bool, shift: int = 0) -> None:
    """Convert frames, on the current CUDA stream.

    Args:
        nv12: tensor [frames, 3 * height / 2, width]: luma, then chroma, U and V side by side; uint8, or int16 that
            holds unsigned samples of 10 bits, height and width then multiples of 4.
        out: uint8 tensor [frames, height, width, 3], contiguous; written.
        full_range: luma from 0 to 255 rather than 16 to 235 (8 bit).
        shift: bits that 10-bit samples are shifted to the left by: 6 as NVDEC delivers them.
    """
    import torch

    # Importing Triton takes long, and needs a GPU.
    from streamvid.stream.nv12_kernel import nv12_to_rgb

    frames, height, width, _ = out.shape
    if nv12.dtype != torch.uint8:
        nv12 = _narrowed(nv12, height, shift)
    grid = (-(-width // _BLOCK), height, frames)
    nv12_to_rgb[grid](nv12, out, height, width, nv12.stride(0), nv12.stride(1), FULL=full_range, BLOCK=_BLOCK)


def _narrowed(wide: Any, height: int, shift: int) -> Any:
    """10 bits → 8: uint8, of the same shape."""
    import torch

    from streamvid.stream.nv12_kernel import narrow

    narrowed = torch.empty(wide.shape, dtype=torch.uint8, device=wide.device)
    frames, rows, width = wide.shape
    # Chroma: as many samples side by side as luma, but every other one belongs to the same plane.
    for start, stop, step in ((0, height, 1), (height, rows, 2)):
        grid = (-(-(width // 2) // _BLOCK), (stop - start) // 2, frames)
        narrow[grid](
            wide[:, start:], narrowed[:, start:], width, wide.stride(0), wide.stride(1), STEP=step, SHIFT=shift,
            BLOCK=_BLOCK,
        )  # fmt: skip
    return narrowed
