"""What NVDEC delivers → RGB, on the GPU, by one Triton kernel: the same pixels, bit for bit, as DALI's own conversion.

DALI's GPU decoder converts so, as fitted to what DALI 2.4 delivers: chroma is taken to lie at the centre of its four
luma samples, and interpolated linearly with clamped borders; then the matrix of BT.601 on levels from 0 to 1, with
black at 0.0625 and no colour at 0.5, or that of JPEG for full range, in float32. (16 / 255 and 128 / 255 would be
exact; the difference is 0.07 of a level in luma and half a level in chroma.)
"""

from __future__ import annotations

from typing import Any, Final

_BLOCK: Final = 512
"""Pixels that one program of the kernel makes, side by side."""


def to_rgb(nv12: Any, out: Any, *, full_range: bool) -> None:
    """Convert frames, on the current CUDA stream.

    Args:
        nv12: uint8 tensor [frames, 3 * height / 2, width]: luma, then chroma, U and V side by side.
        out: uint8 tensor [frames, height, width, 3], contiguous; written.
        full_range: luma from 0 to 255 rather than 16 to 235 (8 bit).
    """
    # Importing Triton takes long, and needs a GPU.
    from streamvid.stream.nv12_kernel import nv12_to_rgb

    frames, height, width, _ = out.shape
    grid = (-(-width // _BLOCK), height, frames)
    nv12_to_rgb[grid](nv12, out, height, width, nv12.stride(0), nv12.stride(1), FULL=full_range, BLOCK=_BLOCK)
