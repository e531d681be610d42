"""Decoded surfaces (NV12, or P016 for more than 8 bits) on a GPU → pixels in the output tensors, many per launch.

A launch takes a table with a row for each picture: the addresses of its surface, of its pixels and of its clip's
parameters. So surfaces of any clips, sizes and batches can share a launch. The kernels are in
`streamvid.color.surface_kernel`, which follows the definition of `streamvid.color.render`, and in `nv12_kernel`, which
reproduces the pixels of DALI's decoder.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from streamvid.arrays import Float64, Int64
from streamvid.color.render import PlaneFormat, conversion
from streamvid.color.tags import Color

if TYPE_CHECKING:
    import torch

ROW: Final = 5
"""int64 numbers in a row of the table: address of the surface, its pitch in samples, bytes from luma to chroma, address
of the pixels, address of the parameters."""
FLOATS: Final = 8
"""Index at which the float32 parameters of a clip begin. Before them, as int64: height and width of luma, height and
width of the picture, output strides of channel, line and pixel in elements, right shift of samples in bits."""
PARAMS: Final = FLOATS + 20
"""Size of a clip's parameters for a view, in int64 numbers."""
_PACKED: Final = struct.Struct(f"={FLOATS}q{2 * (PARAMS - FLOATS)}f")
MOST_PICTURES: Final = 65535
"""Most pictures of a launch: the limit of a CUDA grid's third dimension."""
_BLOCK: Final = 256
"""Setting of `surface_kernel`: most pixels of a line per program."""
_SPAN, _WARPS = 512, 2
"""Settings of `surface_kernel`: pairs of samples per load, and warps."""
_LONG_SPAN, _LONG_WARPS = 1024, 4
"""The same for long lines. With half as many pairs each of their pixels is summed up in two passes: of 4K a third
slower."""
_DALI_BLOCK: Final = 512
"""Setting of `nv12_kernel`: most pixels of a line per program."""
_NO_CHANGE: Final = (1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)


class Window(NamedTuple):
    """Part of a surface: lines [top, bottom) and columns [left, right), in luma samples, even."""

    top: int
    bottom: int
    left: int
    right: int

    def joined(self, other: Window) -> Window:
        """The smallest window that contains both."""
        top, left = min(self.top, other.top), min(self.left, other.left)
        return Window(top, max(self.bottom, other.bottom), left, max(self.right, other.right))


@dataclass(frozen=True)
class Kernel:
    """The settings that all pictures of a launch share.

    Attributes:
        dtype: dtype of the output: "uint8", "float16", "bfloat16" or "float32".
        wide: whether samples have 16 bits.
        recolours: whether a second matrix follows the conversion (`color_change`).
        as_dali: whether to make whole pictures with the pixels of DALI's decoder; uint8, channels last.
        full_range: whether luma is from 0 to 255; used only with `as_dali`.
        rgb: whether the source is RGB, uint8 [height, width, 3], instead of a surface: it is cropped and resized, not
            converted.
        long_lines: whether a program's pixels are made of long lines (`has_long_lines`): faster for those, slower for
            others, with the same pixels.
    """

    dtype: str
    wide: bool
    recolours: bool = False
    as_dali: bool = False
    full_range: bool = False
    rgb: bool = False
    long_lines: bool = False


def clip_params(
    form: PlaneFormat,
    color: Color,
    *,
    start: tuple[float, float],
    end: tuple[float, float],
    size: tuple[int, int],
    strides: tuple[int, int, int],
    mean: Sequence[float] = (0, 0, 0),
    std: Sequence[float] = (1, 1, 1),
    change: Float64 | None = None,
) -> Int64:
    """The parameters of a clip for one view, int64 [PARAMS].

    Args:
        form: the planes of its surfaces.
        color: matrix, range and siting of their samples.
        start, end, size, mean, std: as in `streamvid.color.render.PlaneRenderer`; no mean and std for uint8.
        strides: strides of the output's channels, lines and pixels, in elements.
        change: float64 [3, 4], from `color_change`.
    """
    scales = [(high - low) / out for low, high, out in zip(start, end, size, strict=True)]
    across, down = (0.25 * position for position in color.siting)  # as in `streamvid.color.resample.taps`
    counts = [math.ceil(2 * max(scale * share, 1.0)) + 1 for share in (1, 0.5) for scale in scales]
    made = np.empty(PARAMS, dtype=np.int64)
    _PACKED.pack_into(
        made.data, 0, form.height, form.width, *size, *strides, 16 - form.bits if form.bits > 8 else 0,
        start[0], scales[0], start[1], scales[1], across, down, *counts, *_conversion(color, form.bits),
        *(value for pair in zip(mean, std, strict=True) for value in (pair[0], 1 / pair[1])),
        *(_NO_CHANGE if change is None else change.ravel()),
    )  # fmt: skip
    return made


@lru_cache(maxsize=256)
def _conversion(color: Color, bits: int) -> list[float]:
    return conversion(color, bits).ravel().tolist()


def source_window(
    form: PlaneFormat, *, start: tuple[float, float], end: tuple[float, float], size: tuple[int, int]
) -> Window:
    """A window, hardly larger than necessary, with all samples that the kernel reads for a view. Arguments as in
    `clip_params`."""
    sides = []
    for length, low, high, out in zip((form.height, form.width), start, end, size, strict=True):
        scale = (high - low) / out
        # Beyond the outermost centres: a triangle's reach in chroma, and two chroma samples, because taps with zero
        # weight are read, too. Siting is half a sample at most.
        more = 2 * (max(0.5 * scale, 1.0) + 2) - 0.5 * scale
        first, last = math.floor(low - more) // 2 * 2, math.ceil(high + more) // 2 * 2 + 2
        sides.append((max(0, first), min(length, last)))
    return Window(sides[0][0], sides[0][1], sides[1][0], sides[1][1])


def has_long_lines(*, start: tuple[float, float], end: tuple[float, float], size: tuple[int, int]) -> bool:
    """Whether a program of the kernel reads more samples of a line than it usually holds. Arguments as in
    `clip_params`."""
    scale = (end[1] - start[1]) / size[1]
    return min(_BLOCK, size[1]) * scale + 2 * max(scale, 1.0) > 2 * _SPAN


def color_change(*, brightness: float, contrast: float, saturation: float, hue: float) -> Float64:
    """float64 [3, 4]: levels (R, G, B, 1) → levels, as in DALI's `color_twist` for uint8.

    Args:
        brightness, contrast, saturation: factors.
        hue: degrees.
    """
    to_yiq = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
    cosine, sine = saturation * math.cos(math.radians(hue)), saturation * math.sin(math.radians(hue))
    turned = np.array([[1, 0, 0], [0, cosine, sine], [0, -sine, cosine]])
    factors = brightness * contrast * np.linalg.inv(to_yiq) @ turned @ to_yiq
    return np.column_stack([factors, np.full(3, brightness * (128 - 128 * contrast))])


def launch(
    kernel: Kernel, table: torch.Tensor, count: int, size: tuple[int, int], scratch: torch.Tensor | None = None
) -> None:
    """Make the pixels of surfaces, on the current CUDA stream.

    Args:
        kernel: the launch's settings.
        table: int64 [rows, ROW] on the GPU.
        count: rows of the table to use, from the first; at most `MOST_PICTURES`.
        size: height and width of the largest picture.
        scratch: on the GPU, uint8 [count, bytes of an 8-bit surface] or larger; only for wide samples with `as_dali`.
    """
    # Importing Triton is slow, and needs a GPU.
    import triton.language as tl

    if kernel.as_dali:
        from streamvid.color import nv12_kernel

        grid = (-(-size[1] // _DALI_BLOCK), size[0], count)
        if scratch is not None:
            halves = (-(-size[1] // 2 // _DALI_BLOCK), size[0] * 3 // 4, count)
            nv12_kernel.to_8_bit[halves](table, scratch, scratch.stride(0), ROW=ROW, SHIFT=6, BLOCK=_DALI_BLOCK)
        nv12_kernel.nv12_to_rgb[grid](
            table, scratch, 0 if scratch is None else scratch.stride(0), ROW=ROW, FULL=kernel.full_range,
            DITHERED=scratch is not None, BLOCK=_DALI_BLOCK,
        )  # fmt: skip
        return
    from streamvid.color.surface_kernel import render, render_rgb

    grid, output = (-(-size[1] // _BLOCK), size[0], count), getattr(tl, kernel.dtype)
    span, warps = (_LONG_SPAN, _LONG_WARPS) if kernel.long_lines else (_SPAN, _WARPS)
    given = {"BLOCK": _BLOCK, "SPAN": span, "ROW": ROW, "FLOATS": FLOATS, "num_warps": warps}
    if kernel.rgb:
        render_rgb[grid](table, OUT=output, RECOLOURS=kernel.recolours, **given)
        return
    pair, bits = (tl.uint32, 16) if kernel.wide else (tl.uint16, 8)
    render[grid](table, PAIR=pair, BITS=bits, OUT=output, RECOLOURS=kernel.recolours, **given)
