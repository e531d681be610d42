"""NV12 surfaces of NVDEC → RGB by Triton kernels on the GPU, the same pixels as DALI's GPU decoder, bit for bit.

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

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

_BLOCK: Final = 512
"""Pixels of a row that one program of a kernel writes."""


def to_rgb(surfaces: torch.Tensor, out: torch.Tensor, dst_rows: torch.Tensor, *, count: int, full_range: bool) -> None:
    """Convert NV12 surfaces to RGB, on the current CUDA stream.

    Args:
        surfaces: uint8 [surfaces, 3 * height / 2, width], contiguous: luma, then interleaved U and V.
        out: uint8 [frames, height, width, 3], contiguous; written.
        dst_rows: int64 [surfaces], the frame of `out` that each surface becomes.
        count: how many surfaces to convert, from the first.
        full_range: luma from 0 to 255 rather than 16 to 235 (8 bit).
    """
    # Importing Triton is slow, and needs a GPU.
    from streamvid.color.nv12_kernel import nv12_to_rgb

    _, height, width, _ = out.shape
    grid = (-(-width // _BLOCK), height, count)
    nv12_to_rgb[grid](surfaces, out, dst_rows, height, width, FULL=full_range, BLOCK=_BLOCK)


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
