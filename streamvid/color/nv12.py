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


def to_rgb(nv12: Any, out: Any, places: Any, *, count: int, full_range: bool) -> None:
    """Convert frames, on the current CUDA stream.

    Args:
        nv12: uint8 tensor [frames, 3 * height / 2, width], contiguous: luma, then chroma, U and V side by side.
        out: uint8 tensor [pictures, height, width, 3], contiguous; written.
        places: int64 tensor [frames]: which picture of `out` each frame becomes.
        count: how many frames are converted: the first ones.
        full_range: luma from 0 to 255 rather than 16 to 235 (8 bit).
    """
    # Importing Triton takes long, and needs a GPU.
    from streamvid.color.nv12_kernel import nv12_to_rgb

    _, height, width, _ = out.shape
    grid = (-(-width // _BLOCK), height, count)
    nv12_to_rgb[grid](nv12, out, places, height, width, FULL=full_range, BLOCK=_BLOCK)


def narrow(wide: Any, out: Any, *, count: int, shift: int) -> None:
    """10 bits → 8, on the current CUDA stream.

    Args:
        wide: int16 tensor [frames, 3 * height / 2, width], contiguous, that holds unsigned samples of 10 bits; height
            and width are multiples of 4.
        out: uint8 tensor of the same shape, contiguous; written.
        count: how many frames: the first ones.
        shift: bits that samples are shifted to the left by: 6 as NVDEC delivers them.
    """
    from streamvid.color import nv12_kernel

    _, rows, width = wide.shape
    grid = (-(-width // 2 // _BLOCK), rows // 2, count)
    nv12_kernel.narrow[grid](wide, out, rows * 2 // 3, width, SHIFT=shift, BLOCK=_BLOCK)
