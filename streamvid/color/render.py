"""Decoded planes → the pixels of one picture of the model's tensor, in one pass.

The definition: resample Y, Cb and Cr in real numbers, each from its own size and siting (`streamvid.color.resample`),
convert by the matrix, clip to 0 to 255 and round, once; then normalise. RGB planes are treated at edges as DALI's
resize does, so that images are the same on a GPU. `streamvid/native/pixels.c` computes in float32; if it was not
compiled, NumPy does the same in four to five times the time.
"""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Float32, Float64, Int64, UInt8
from streamvid.color.resample import Taps, taps
from streamvid.color.tags import KR_KB, RGB, Color

Samples = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
log = logging.getLogger(__name__)
_SERIAL_NUMBERS: Final = 1 << 15
"""Most elements that PyTorch converts without starting threads."""
_ROWS, _FEW, _BLOCK, _VERSION = 16, 8, 32, 2
"""Constants of pixels.c, by which it lays out scratch memory, and its interface version."""
_TYPES: Final = {"uint8": 0, "float16": 1, "bfloat16": 2, "float32": 3}
"""Numbers of output dtypes in pixels.c."""


@dataclass(frozen=True)
class PlaneFormat:
    """Sizes and sample depth of a frame's planes.

    Attributes:
        height, width: of luma, in samples.
        subsampling: luma samples per chroma sample, vertically and horizontally.
        bits: bits per sample; more than 8 are stored in uint16.
        is_rgb: whether the planes are G, B and R, regardless of the clip's tags.
    """

    height: int
    width: int
    subsampling: tuple[int, int]
    bits: int
    is_rgb: bool = False

    @property
    def chroma(self) -> tuple[int, int]:
        """Height and width of the chroma planes."""
        return -(-self.height // self.subsampling[0]), -(-self.width // self.subsampling[1])


def conversion(color: Color, bits: int) -> Float64:
    """float64 [3, 4]: samples (Y, Cb, Cr, 1) → R, G, B from 0 to 255.

    Equations of MatrixCoefficients and VideoFullRangeFlag in ITU-T H.273, 8.3. With the matrix "gbr" the planes are G,
    B and R.
    """
    scale, peak = 1 << (bits - 8), (1 << bits) - 1
    chroma = 255 / peak if color.full_range else 255 / (224 * scale)
    luma, black = (255 / peak, 0.0) if color.full_range else (255 / (219 * scale), 16.0 * scale)
    if color.matrix == "gbr":
        factors = np.array([[0, 0, 1], [1, 0, 0], [0, 1, 0]]) * luma
        return np.column_stack([factors, np.full(3, -luma * black)])
    if color.matrix == "ycgco":
        factors, chroma = np.array([[1.0, -1, 1], [1, 1, 0], [1, -1, -1]]), luma  # of R, G and B in their range
    else:
        kr, kb = KR_KB[color.matrix]
        of_blue, of_red = 2 * (1 - kb), 2 * (1 - kr)
        green = 1 - kr - kb
        factors = np.array([[1, 0, of_red], [1, -of_blue * kb / green, -of_red * kr / green], [1, of_blue, 0]])
    factors = factors * [luma, chroma, chroma]
    return np.column_stack([factors, -factors @ [black, 128 * scale, 128 * scale]])


def recolouring(color: Color) -> Float32:
    """float32 [3, 3]: RGB of DALI's decoder, which always converts by BT.601 → RGB by the clip's matrix, for limited
    and full range. It cannot restore levels that DALI clipped, nor move DALI's chroma from its siting at the centre."""
    if color.as_dali or color.matrix in ("bt601", "gbr"):
        return np.eye(3, dtype=np.float32)
    made, wanted = (conversion(Color(matrix, True, (0, 0)), 8)[:, :3] for matrix in ("bt601", color.matrix))
    return np.asarray(wanted @ np.linalg.inv(made), dtype=np.float32)


def normalise(
    planes: Sequence[UInt8], out: npt.NDArray[Any], *, dtype: str, mean: Sequence[float], std: Sequence[float]
) -> None:
    """(level / 255 - mean) / std, as `PlaneRenderer` computes it.

    Args:
        planes: red, green and blue, uint8 [height, width] each.
        out: [3, height, width] of the dtype, of any strides; written.
        dtype: as in `PlaneRenderer`.
        mean, std: per channel, in units of the full range; not for uint8.
    """
    for plane, target, centre, spread in zip(planes, out, mean, std, strict=True):
        if dtype == "uint8":
            target[:] = plane
            continue
        numbers = np.subtract(plane, np.float32(255 * centre), dtype=np.float32)
        numbers *= np.float32(1 / (255 * spread))
        _store(numbers, target, dtype)


def _store(numbers: Float32, out: npt.NDArray[Any], dtype: str) -> None:
    """float32 → the dtype; PyTorch converts half floats ten times as fast as NumPy."""
    if dtype == "float32":
        out[:] = numbers
        return
    import torch

    # Without threads of its own: decoding keeps all cores busy already.
    halves = torch.empty(numbers.shape, dtype=getattr(torch, dtype), device="cpu")
    lines = max(1, _SERIAL_NUMBERS // numbers.shape[-1])
    rows, made = numbers.reshape(-1, numbers.shape[-1]), halves.view(-1, numbers.shape[-1])
    for start in range(0, len(rows), lines):
        made[start : start + lines].copy_(torch.from_numpy(rows[start : start + lines]))
    out[:] = (halves.view(torch.uint16) if dtype == "bfloat16" else halves).numpy()


class _Axis(ctypes.Structure):
    _fields_ = (
        ("out", ctypes.c_int32), ("taps", ctypes.c_int32), ("first", ctypes.c_void_p), ("weights", ctypes.c_void_p),
    )  # fmt: skip


class _Settings(ctypes.Structure):
    """The fields of `sv_picture` in pixels.c that are the same for all frames of a clip. `_PICTURE` packs them between
    the planes and the output, which is faster than filling in a ctypes structure."""

    _fields_ = (
        ("rows", _Axis * 2), ("columns", _Axis * 2), ("matrix", ctypes.c_float * 12), ("mean", ctypes.c_float * 3),
        ("scale", ctypes.c_float * 3),
    )  # fmt: skip


_PICTURE: Final = struct.Struct(f"@{3 * 'Pqii'}{ctypes.sizeof(_Settings)}sPqqqi4x")
_OUTPUT_AT: Final = struct.calcsize(f"@{3 * 'Pqii'}{ctypes.sizeof(_Settings)}s0P")


@cache
def compiled() -> Any:
    """The compiled `sv_render`; None, and one warning, if it was not built."""
    for path in sorted(Path(__file__).parents[1].glob("native/pixels*.so")):
        with suppress(OSError, AttributeError):  # built for another machine or an older version
            library = ctypes.CDLL(str(path))
            if library.sv_pixels_version() != _VERSION:
                continue
            library.sv_render.argtypes, library.sv_render.restype = [ctypes.c_void_p, ctypes.c_void_p], None
            return library.sv_render
    log.warning(
        "streamvid's native part was not built: NumPy resizes and converts pictures on the CPU, in five times the "
        "time; install streamvid again where there is a C compiler"
    )
    return None


@dataclass(frozen=True, eq=False)
class Targets:
    """Where `sv_render` writes a clip's pictures of one format, for C code that calls it.

    Attributes:
        render: address of the function.
        picture: an `sv_picture` of pixels.c, in which the addresses of planes and output are still to be filled in.
        output_at: offset of the output's address in `picture`, in bytes.
        outputs: uint64 [rows], the output's address for each row; 0: the picture is not rendered.
        floats: float32 elements of scratch memory that the function needs.
        kept: the array of the outputs, kept alive.
    """

    render: int
    picture: bytes
    output_at: int
    outputs: npt.NDArray[np.uintp]
    floats: int
    kept: object


class PlaneRenderer:
    """Renders frames of one clip for one view. Thread-safe.

    Args:
        planes: format of the frames' planes.
        color: matrix, range and siting of their samples.
        start, end: y and x of the crop box's upper left and lower right corner, in luma samples from the frame's upper
            left corner.
        size: height and width to which the crop is resized.
        dtype: dtype of the output: "uint8", "float16", "bfloat16" (as bits in uint16) or "float32".
        mean, std: per channel, in levels: (level - mean) / std; not for uint8.
    """

    def __init__(
        self,
        planes: PlaneFormat,
        color: Color,
        *,
        start: tuple[float, float],
        end: tuple[float, float],
        size: tuple[int, int],
        dtype: str = "uint8",
        mean: Sequence[float] = (0, 0, 0),
        std: Sequence[float] = (1, 1, 1),
    ) -> None:
        color = RGB if planes.is_rgb else color
        self._wide = planes.bits > 8
        self._matrix = conversion(color, planes.bits).astype(np.float32)
        self._mean: Float32 = np.asarray(mean, dtype=np.float32)
        self._scale: Float32 = (1 / np.asarray(std, dtype=np.float64)).astype(np.float32)
        self._dtype = dtype
        across, down = color.siting
        self._rows, self._columns = (
            (
                taps(source, start[axis], end[axis], size[axis], repeats=planes.is_rgb),
                taps(
                    chroma, start[axis], end[axis], size[axis], subsampling=share, siting=siting, repeats=planes.is_rgb
                ),
            )
            for axis, (source, chroma, share, siting) in enumerate(
                zip((planes.height, planes.width), planes.chroma, planes.subsampling, (down, across), strict=True)
            )
        )
        self._settings = bytes(
            _Settings(
                rows=tuple(map(_axis, self._rows)), columns=tuple(map(_axis, self._columns)),
                matrix=tuple(self._matrix.ravel().tolist()), mean=tuple(self._mean.tolist()),
                scale=tuple(self._scale.tolist()),
            )
        )  # fmt: skip
        longest = max(_BLOCK * -(-_span(column, len(column.first)) // _BLOCK) for column in self._columns)
        tallest = max(_span(row, _FEW) for row in self._rows)
        self._floats = (_ROWS + _FEW + tallest) * longest + (4 * _ROWS + 1) * size[1]

    def __call__(self, planes: Sequence[Samples], out: npt.NDArray[Any]) -> None:
        """Render one frame.

        Args:
            planes: Y, Cb and Cr in this format, uint8 or uint16 [height, width] each.
            out: [3, height, width] of the output's dtype, of any strides; written.
        """
        call = compiled()
        if call is None:
            self._by_numpy(planes, out)
            return
        scratch = np.empty(self._floats, dtype=np.float32)
        call(self._packed([_plane(plane) for plane in planes], out), scratch.ctypes.data)

    def _packed(self, planes: Sequence[tuple[int, int, int, bool]], out: npt.NDArray[Any]) -> bytes:
        y, u, v = planes
        strides = [stride // out.itemsize for stride in out.strides]
        return _PICTURE.pack(*y, *u, *v, self._settings, out.ctypes.data, *strides, _TYPES[self._dtype])

    def targets(self, out: npt.NDArray[Any], offsets: Int64) -> Targets | None:
        """The targets with which C code renders a clip's frames; None if the native part was not built.

        Args:
            out: as in a call, for a picture at offset 0.
            offsets: int64 [rows], bytes from `out` to each row's output; -1: the row is not rendered.
        """
        if (call := compiled()) is None:
            return None
        outputs = np.where(offsets < 0, 0, out.ctypes.data + offsets).astype(np.uintp)
        address = ctypes.cast(call, ctypes.c_void_p).value or 0
        return Targets(address, self._packed(3 * [(0, 0, 1, self._wide)], out), _OUTPUT_AT, outputs, self._floats, out)

    def _by_numpy(self, planes: Sequence[Samples], out: npt.NDArray[Any]) -> None:
        made = [_mixed(plane, self._rows[n > 0], self._columns[n > 0]) for n, plane in enumerate(planes)]
        # Summed in the order of pixels.c; a matrix product would round as BLAS does.
        y, u, v = made
        levels = np.stack([a * y + b * u + d * v + e for a, b, d, e in self._matrix])
        levels = np.floor(np.clip(levels, 0, 255) + np.float32(0.5))
        if self._dtype == "uint8":
            out[:] = levels
            return
        levels -= self._mean[:, None, None]
        levels *= self._scale[:, None, None]
        _store(levels, out, self._dtype)


def _axis(of: Taps) -> _Axis:
    return _Axis(len(of.first), len(of.weights), of.first.ctypes.data, of.weights.ctypes.data)


def _span(of: Taps, count: int) -> int:
    """Most source samples that `count` adjacent output samples depend on."""
    steps = np.cumsum(np.abs(np.diff(of.first, prepend=of.first[:1])))
    count = min(count, len(steps))
    return int((steps[count - 1 :] - steps[: len(steps) - count + 1]).max()) + len(of.weights)


def _plane(samples: Samples) -> tuple[int, int, int, bool]:
    (stride, step), size = samples.strides, samples.itemsize
    return samples.ctypes.data, stride, step // size, size > 1


def _mixed(plane: Samples, rows: Taps, columns: Taps) -> Float32:
    low, high = int(columns.first.min()), int(columns.first.max()) + len(columns.weights)
    part = plane[:, low:high]
    lines = sum(weights[:, None] * part[rows.first + n] for n, weights in enumerate(rows.weights))
    found = sum(weights * lines[:, columns.first - low + n] for n, weights in enumerate(columns.weights))
    return np.asarray(found, dtype=np.float32)
