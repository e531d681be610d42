"""Converts a model's tensor back to frames, undoing layout, dtype and normalisation; and frames to small JPEGs, which
make the strip of a sample."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import av
import numpy as np

from streamvid.arrays import Float64, Int64, UInt8
from streamvid.errors import InputError
from streamvid.transform.spec import LAYOUTS, Layout, Transform

if TYPE_CHECKING:
    import torch

MOST_PICTURES: Final = 16
"""Most pictures of a strip; a longer sample shows evenly spaced ones."""
_HEIGHT, _WIDTH = 128, 256
"""Pixels of a picture at most. Smaller frames keep their size."""
_QUANTIZER: Final = 4
"""FFmpeg's quantizer of Motion JPEG, 2 (best) to 31: about 4 kB for a picture."""


@dataclass(frozen=True)
class Picture:
    """One frame position of a sample.

    Attributes:
        jpeg: the frame as a JPEG.
        width, height: its size in pixels.
        seconds: presentation time, from the clip's first frame; None if it is unknown or the frame is black.
        real: False for padding.
    """

    jpeg: bytes
    width: int
    height: int
    seconds: float | None
    real: bool

    @property
    def uri(self) -> str:
        """The JPEG as a data URI."""
        return "data:image/jpeg;base64," + base64.b64encode(self.jpeg).decode()


@dataclass(frozen=True)
class Strip:
    """The pictures of a sample, or the reason why there are none.

    Attributes:
        title: the clip's key, or a substitute.
        pictures: some of its frame positions, in order.
        positions: number of its frame positions.
        facts: short facts about the clip.
        fields: its metadata, as names and values.
        more_fields: metadata that are shown on demand.
        bad: why the clip cannot be shown; "" if it can.
        row: row number in the dataset, -1 if unknown.
    """

    title: str
    pictures: tuple[Picture, ...] = ()
    positions: int = 0
    facts: tuple[str, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    more_fields: tuple[tuple[str, str], ...] = ()
    bad: str = ""
    row: int = -1


def shown_positions(count: int) -> Int64:
    """int64: the frame positions of a sample of `count` that a strip shows, evenly spaced with both ends."""
    if count <= MOST_PICTURES:
        return np.arange(count, dtype=np.int64)
    return np.linspace(0, count - 1, MOST_PICTURES).round().astype(np.int64)


def make_picture(frame: UInt8, seconds: float | None, *, real: bool) -> Picture:
    """The picture of a frame position.

    Args:
        frame: uint8 [height, width, 3], RGB.
        seconds: presentation time; negative for a black frame.
        real: False for padding.
    """
    height, width = frame.shape[:2]
    scale = min(1.0, _HEIGHT / height, _WIDTH / width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return Picture(_jpeg(frame, *size), *size, seconds if seconds is not None and seconds >= 0 else None, real)


def _jpeg(frame: UInt8, width: int, height: int) -> bytes:
    """A frame, uint8 [height, width, 3], as a JPEG of that size. JFIF has BT.601's matrix and the full range."""
    picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24").reformat(
        width=width,
        height=height,
        format="yuvj444p",
        dst_colorspace="ITU601",
        dst_color_range="JPEG",
        interpolation="AREA",
        threads=1,
    )
    encoder = av.CodecContext.create("mjpeg", "w")
    assert isinstance(encoder, av.VideoCodecContext)
    encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuvj444p"
    encoder.time_base, encoder.thread_count = Fraction(1, 25), 1
    encoder.options = {"flags": "qscale"}
    encoder.qmin = encoder.qmax = _QUANTIZER
    picture.pts = 0
    return b"".join(bytes(packet) for packet in [*encoder.encode(picture), *encoder.encode(None)])


@dataclass(frozen=True)
class Scale:
    """Maps a tensor's values to 0 to 1: times `std`, plus `mean`.

    Attributes:
        mean, std: for R, G, B.
        words: the mapping in words.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    words: str

    def rgb(self, values: Float64 | UInt8) -> UInt8:
        """Values [height, width, 3] as uint8 of the same shape. uint8 is unchanged; NaN becomes black."""
        if values.dtype == np.uint8:
            return np.asarray(values, dtype=np.uint8)
        shown = np.nan_to_num(values * self.std + self.mean, nan=0.0, posinf=1.0, neginf=0.0)
        return np.asarray(np.clip(np.rint(shown * 255), 0, 255), dtype=np.uint8)


def scale_of(transform: Transform) -> Scale:
    """The scale that undoes a transform's normalisation."""
    if transform.dtype == "uint8":
        return Scale((0.0,) * 3, (1 / 255,) * 3, "pixels as they are")
    return Scale(*transform.mean_std, "normalisation undone by the transform's mean and std")


def guess_scale(video: torch.Tensor) -> Scale:
    """A scale for values whose transform is unknown, guessed from their range."""
    import torch

    finite = video.detach()
    if video.is_floating_point():
        finite = finite[torch.isfinite(finite)]
    least, most = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    if not video.is_floating_point() and least >= 0 and most <= 255:
        return Scale((0.0,) * 3, (1 / 255,) * 3, "pixels as they are")
    if video.is_floating_point() and least >= 0 and most <= 1:
        return Scale((0.0,) * 3, (1.0,) * 3, "values from 0 to 1 as they are")
    width = most - least or 1.0
    words = f"values from {least:.4g} to {most:.4g} as black to white; transform= of the loader gives their colours"
    return Scale((-least / width,) * 3, (1 / width,) * 3, words)


def guess_layout(shape: Sequence[int], frames: int | None) -> Layout:
    """Guess the layout of a clip's tensor from its four dimensions. If both TCHW and CTHW are possible, as with three
    frames, it is CTHW, the default of `Transform`.

    Raises:
        InputError: the shape fits no layout with 3 channels (and `frames` frames, if given).
    """
    for layout in reversed(LAYOUTS):
        if len(shape) == 4 and shape[layout.index("C")] == 3 and frames in (None, shape[layout.index("T")]):
            return layout
    count = "" if frames is None else f" for {frames} frames"
    raise InputError(f"a clip of the shape {list(shape)} is in none of the layouts CTHW, TCHW and THWC{count}")


def frame_of(clip: torch.Tensor, layout: Layout, position: int) -> Float64 | UInt8:
    """A frame of a clip, [height, width, 3], uint8 or, for all other dtypes, float64.

    Args:
        clip: four dimensions in the given layout; on any device, of any dtype.
    """
    import torch

    frame = clip.detach().select(layout.index("T"), position).cpu()
    axes = layout.replace("T", "")
    frame = frame.permute([axes.index(axis) for axis in "HWC"])
    return np.asarray((frame if frame.dtype == torch.uint8 else frame.to(torch.float64)).numpy())
