"""`streamvid.color.surfaces.launch` in NumPy, on host memory: what the kernels do, for tests without a GPU."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from streamvid.color.surfaces import FLOATS, PARAMS, Kernel

_SIZES = {"uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4}


def memory(address: int, count: int, dtype: Any) -> Any:
    """Host memory as an array of that many elements."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=dtype)


def launch(kernel: Kernel, table: Any, count: int, size: tuple[int, int], scratch: Any = None) -> None:
    """See `streamvid.color.surfaces.launch`."""
    for surface, pitch, chroma_at, pixels, at in table[:count].tolist():
        numbers = memory(at, PARAMS, np.int64)
        height, width, high, wide, *strides, shift = numbers[:FLOATS].tolist()
        assert high <= size[0]
        assert wide <= size[1]
        of = numbers[FLOATS:].view(np.float32)
        sample: Any = np.uint16 if kernel.wide else np.uint8
        if kernel.as_dali:  # DALI's conversion is held by tests on a GPU
            assert (scratch is not None) == kernel.wide
            luma = memory(surface, height * pitch, sample).reshape(height, pitch)[:, :width] >> shift
            picture = memory(pixels, 3 * height * width, np.uint8).reshape(height, width, 3)
            picture[:] = (luma >> (2 if kernel.wide else 0))[..., None]
            continue
        made, each = [], np.dtype(sample).itemsize
        for address, step, share, down, right, taps, apart in (
            [(surface + channel, 1, 1, 0.0, 0.0, 6, 3) for channel in range(3)]
            if kernel.rgb
            else [
                (surface, 1, 1, 0.0, 0.0, 6, 1),
                (surface + chroma_at, 2, 0.5, of[5], of[4], 8, 2),
                (surface + chroma_at + each, 2, 0.5, of[5], of[4], 8, 2),
            ]
        ):
            rows, columns = (
                _taps(start * share + shifted, scale * share, out, of[at], -(-length // step), repeats=kernel.rgb)
                for start, shifted, scale, out, at, length in (
                    (of[0], down, of[1], high, taps, height), (of[2], right, of[3], wide, taps + 1, width)
                )
            )  # fmt: skip
            # Nothing but the samples that the kernel reads may be there.
            plane = np.stack(
                [_line(address, line * pitch, apart, columns[0], sample) for line in range(*_span(rows[0]))]
            )
            plane = (plane >> shift)[rows[0] - rows[0].min()]
            tall = np.einsum("nt,ntx->nx", rows[1], plane)
            made.append(np.einsum("xt,nxt->nx", columns[1], tall[:, columns[0] - columns[0].min()]))
        levels = _matrix(np.eye(3, 4) if kernel.rgb else of[10:22], made)
        if kernel.recolours:
            levels = _matrix(of[28:40], levels)
        values = (levels - of[22:28:2, None, None]) * of[23:28:2, None, None]
        _write(pixels, values, strides, kernel.dtype)


def _taps(start: float, scale: float, out: int, taps: float, length: int, *, repeats: bool) -> tuple[Any, Any]:
    """Along an axis, the samples that each output pixel is made of, and their weights; beyond the edge the outermost
    repeats, or nothing is there."""
    reach = max(float(scale), 1.0)
    centres = float(start) + (np.arange(out) + 0.5) * float(scale)
    at = np.floor(centres - reach)[:, None] + np.arange(math.floor(taps))
    weights = np.maximum(0, 1 - np.abs(at + 0.5 - centres[:, None]) / reach)
    weights *= repeats | ((at >= 0) & (at < length))
    return np.clip(at, 0, length - 1).astype(int), weights / weights.sum(axis=1, keepdims=True)


def _span(at: Any) -> tuple[int, int]:
    return int(at.min()), int(at.max()) + 1


def _line(address: int, first: int, step: int, columns: Any, sample: Any) -> Any:
    begin, end = _span(columns)
    size = np.dtype(sample).itemsize
    return memory(address + (first + step * begin) * size, step * (end - begin - 1) + 1, sample)[::step]


def _matrix(of: Any, planes: Any) -> Any:
    factors = of.reshape(3, 4)
    made = np.tensordot(factors[:, :3], np.stack(list(planes)), axes=1) + factors[:, 3, None, None]
    return np.floor(np.clip(made, 0, 255) + 0.5)


def _write(address: int, values: Any, strides: list[int], dtype: str) -> None:
    import torch

    size = _SIZES[dtype]
    low = sum(min(0, (n - 1) * step) for n, step in zip(values.shape, strides, strict=True))
    high = sum(max(0, (n - 1) * step) for n, step in zip(values.shape, strides, strict=True))
    bits: Any = {1: np.uint8, 2: np.uint16, 4: np.uint32}[size]
    target = memory(address + low * size, high - low + 1, bits)
    index = sum(
        np.arange(n).reshape([-1 if axis == m else 1 for m in range(3)]) * step
        for axis, (n, step) in enumerate(zip(values.shape, strides, strict=True))
    )
    kind = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(getattr(torch, dtype))
    target[index - low] = kind.view(getattr(torch, bits.__name__)).numpy()
