"""FFmpeg's frames → RGB, as docs/decoding.md defines it: the BT.601 matrix, chroma at the centre, bilinear.

That is how DALI's GPU decoder converts, whatever a stream's tags say, so that both devices agree.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from streamvid.arrays import UInt8
from streamvid.mp4 import boxes

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Planes = tuple[UInt8, UInt8, UInt8]
"""A picture's red, green and blue, uint8 [height, width] each."""

_FLAGS: Final = "bilinear+accurate_rnd+full_chroma_int"
"""What DALI's CPU decoder asks of swscale: the same pixels, bit for bit, whoever decodes."""
_GRAPHS: Final = 4
"""Kinds of frames that a converter is ready for at a time; each takes the memory of a frame or two."""


class RgbConverter(threading.local):
    """Converts frames of any size and format, in any thread: each thread has filters and memory of its own, which are
    used again. The system takes as long to hand out fresh memory for a picture as the conversion lasts."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[tuple[int, int, str, bool], Any] = OrderedDict()

    def __call__(self, frame: VideoFrame, *, full_range: bool) -> Planes:
        """Views of memory that is the picture's own as long as one of them lives.

        Args:
            frame: as decoded.
            full_range: luma from 0 to 255 rather than 16 to 235 (8 bit), whatever the frame's tags say.
        """
        key = (frame.width, frame.height, frame.format.name, full_range)
        graph = self._graphs.pop(key, None) or _graph(frame, full_range)
        self._graphs[key] = graph
        if len(self._graphs) > _GRAPHS:
            self._graphs.popitem(last=False)
        graph.push(frame)
        picture = graph.pull()
        if picture.format.name == "rgb24":
            (packed,) = picture.planes
            lines = np.frombuffer(packed, dtype=np.uint8).reshape(packed.height, packed.line_size)
            lines = lines[:, : 3 * frame.width]
            return lines[:, ::3], lines[:, 1::3], lines[:, 2::3]
        green, blue, red = (
            np.frombuffer(plane, dtype=np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width]
            for plane in picture.planes
        )
        return red, green, blue


def _graph(frame: VideoFrame, full_range: bool) -> Any:
    """FFmpeg's filters for frames like this one. PyAV's reformatter cannot be told where chroma lies."""
    import av.filter

    graph = av.filter.Graph()
    graph.threads = 1
    last = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1, boxes.TIMESCALE)
    )
    # swscale's planar output is twice as fast and the same, but off by one here and there if a side is odd.
    output = "rgb24" if frame.width % 2 or frame.height % 2 else "gbrp"
    for name, options in (
        # Interlaced pictures are converted as a whole, as GPUs do it: swscale by itself would go by fields.
        (
            "scale",
            f"flags={_FLAGS}:interl=0:in_chroma_loc=center:in_color_matrix=bt601:"
            f"in_range={'pc' if full_range else 'tv'}:out_range=pc",
        ),
        ("format", f"pix_fmts={output}"),
        ("buffersink", None),
    ):
        node = graph.add(name, options)
        last.link_to(node)
        last = node
    graph.configure()
    return graph


def to_rgb(frame: VideoFrame, *, full_range: bool) -> UInt8:
    """One frame: uint8 [height, width, 3]."""
    return np.stack(RgbConverter()(frame, full_range=full_range), axis=-1)
