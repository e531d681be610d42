"""FFmpeg's frames as planes of samples."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from streamvid.color.render import PlaneFormat, Samples

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

GRAY: Final = 1 << 16
"""The subsampling that stands for gray: one neutral chroma sample for the whole frame."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A decoded frame, valid as long as the memory of its planes.

    Attributes:
        planes: Y, Cb and Cr (or G, B and R), uint8 or uint16 [height, width] each.
        form: their format.
        pix_fmt: FFmpeg's name of the pixel format.
    """

    planes: tuple[Samples, Samples, Samples]
    form: PlaneFormat
    pix_fmt: str


def picture_of(frame: VideoFrame) -> Picture:
    """The planes of a frame, not copied. Only pixel formats other than planar YUV, planar RGB and gray are converted,
    by FFmpeg to planar RGB. Alpha is left out."""
    name = frame.format.name
    if not name.startswith(("yuv", "gray", "gbr")) or name.endswith("be"):
        # Packed and paletted formats; none of them has subsampled chroma.
        frame = frame.reformat(format="gbrp", threads=1)  # a decoding thread has its core
        name = "gbrp"
    form = _format(name, frame.height, frame.width)
    return _picture(
        [_samples(plane, plane.height, plane.width, plane.line_size, form.bits) for plane in frame.planes[:3]],
        form,
        name,
    )


def picture_at(name: str, height: int, width: int, addresses: Sequence[int | None], strides: Sequence[int]) -> Picture:
    """The planes of an FFmpeg frame in memory.

    Args:
        name: FFmpeg's name of the pixel format: planar YUV, planar RGB or gray.
        height, width: size in pixels.
        addresses: addresses of the planes; None if there is no plane.
        strides: strides of the planes, in bytes.
    """
    form = _format(name, height, width)
    sizes = [(height, width), form.chroma, form.chroma]
    return _picture(
        [
            _samples((ctypes.c_uint8 * (stride * rows)).from_address(address), rows, columns, stride, form.bits)
            for address, stride, (rows, columns) in zip(addresses, strides, sizes, strict=True)
            if address is not None
        ],
        form,
        name,
    )


def _picture(planes: Sequence[Any], form: PlaneFormat, name: str) -> Picture:
    luma, *chroma = planes
    if form.subsampling[0] == GRAY:
        neutral: Any = np.full((1, 1), 1 << (form.bits - 1), dtype=luma.dtype)
        chroma = [neutral, neutral]
    return Picture((luma, chroma[0], chroma[1]), form, name)


@lru_cache(maxsize=256)
def _format(name: str, height: int, width: int) -> PlaneFormat:
    import av

    form = av.VideoFormat(name)
    bits = form.components[0].bits
    if len(form.components) < 3:
        return PlaneFormat(height, width, (GRAY, GRAY), bits)
    subsampling = (16 // form.chroma_height(16), 16 // form.chroma_width(16))
    return PlaneFormat(height, width, subsampling, bits, is_rgb=form.is_rgb)


def _samples(memory: Any, height: int, width: int, stride: int, bits: int) -> Any:
    lines = np.frombuffer(memory, dtype=np.uint8).reshape(height, stride)
    return (lines if bits == 8 else lines.view(np.uint16))[:, :width]
