"""A model's tensor → frames to look at, with layout, dtype and normalisation undone; frames → small JPEGs, and the
strip that those of a sample make."""

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
        jpeg: the frame.
        width, height: its pixels.
        seconds: presentation time, from the clip's first frame; None where it is unknown or the frame is black.
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
    """What a sample shows, or why it shows nothing.

    Attributes:
        title: the clip's key, or what stands for it.
        pictures: some of its frame positions, in order.
        positions: how many it has.
        facts: few words on the clip each.
        fields: its metadata, name and value.
        more_fields: those that are shown on demand.
        bad: why the clip cannot be shown; "" for sound ones.
        row: of the dataset, -1 if unknown.
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
        seconds: its presentation time; negative of a black frame.
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
    """How a tensor's values become 0 to 1: times `std`, plus `mean`.

    Attributes:
        mean, std: of R, G, B.
        words: that in words.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    words: str

    def rgb(self, values: Float64 | UInt8) -> UInt8:
        """Values [height, width, 3] as uint8 of that shape: uint8 as they are; NaN is black."""
        if values.dtype == np.uint8:
            return np.asarray(values, dtype=np.uint8)
        shown = np.nan_to_num(values * self.std + self.mean, nan=0.0, posinf=1.0, neginf=0.0)
        return np.asarray(np.clip(np.rint(shown * 255), 0, 255), dtype=np.uint8)


def scale_of(transform: Transform) -> Scale:
    """The scale that undoes what a transform does to values."""
    if transform.dtype == "uint8":
        return Scale((0.0,) * 3, (1 / 255,) * 3, "pixels as they are")
    return Scale(*transform.mean_std, "normalisation undone by the transform's mean and std")


def guess_scale(video: torch.Tensor) -> Scale:
    """A scale for values of which nothing is known, by their range."""
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
    """The layout of a clip's tensor by its four dimensions. Where that may be TCHW or CTHW, as of three frames, it is
    CTHW, a Transform's default.

    Raises:
        InputError: it fits no layout of 3 channels and that many frames, if they are known.
    """
    for layout in reversed(LAYOUTS):
        if len(shape) == 4 and shape[layout.index("C")] == 3 and frames in (None, shape[layout.index("T")]):
            return layout
    count = "" if frames is None else f" for {frames} frames"
    raise InputError(f"a clip of the shape {list(shape)} is in none of the layouts CTHW, TCHW and THWC{count}")


def frame_of(clip: torch.Tensor, layout: Layout, position: int) -> Float64 | UInt8:
    """A frame of a clip, [height, width, 3], uint8 as it is and all else float64.

    Args:
        clip: of four dimensions in that layout; on any device, of any dtype.
    """
    import torch

    frame = clip.detach().select(layout.index("T"), position).cpu()
    axes = layout.replace("T", "")
    frame = frame.permute([axes.index(axis) for axis in "HWC"])
    return np.asarray((frame if frame.dtype == torch.uint8 else frame.to(torch.float64)).numpy())
