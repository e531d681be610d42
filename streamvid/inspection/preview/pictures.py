"""Frames → small JPEGs, and the strip that those of a sample make."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import av
import numpy as np

from streamvid.arrays import Int64, UInt8

MOST_PICTURES: Final = 16
"""Pictures of a strip. Of a longer sample they are evenly spaced ones."""
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
