"""FFmpeg's frames → RGB on the CPU: BT.601 matrix, chroma sited at the centre, bilinear (docs/decoding.md).

DALI's GPU decoder converts in this way regardless of a stream's tags; this reproduces it on the CPU.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from streamvid.arrays import UInt8
from streamvid.mp4.writer import SLICE_TIMESCALE

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

Planes = tuple[UInt8, UInt8, UInt8]
"""Red, green and blue of a frame, uint8 [height, width] each."""

_FLAGS: Final = "bilinear+accurate_rnd+full_chroma_int"
"""swscale flags of DALI's CPU decoder, for the same pixels, bit for bit."""
_MAX_GRAPHS: Final = 4
"""Filter graphs that a converter keeps, one per frame size and format; each holds a frame or two."""


class RgbConverter(threading.local):
    """Converts frames of any size and format, in any thread.

    Each thread keeps filter graphs and buffers of its own: fresh memory for a frame would cost as much time in page
    faults as the conversion itself.
    """

    def __init__(self) -> None:
        self._graphs: OrderedDict[tuple[int, int, str, bool], Any] = OrderedDict()

    def __call__(self, frame: VideoFrame, *, full_range: bool) -> Planes:
        """Convert one frame.

        Args:
            frame: the decoded frame.
            full_range: whether luma is from 0 to 255 rather than 16 to 235 (8 bit), regardless of the frame's tags.

        Returns:
            views of one buffer, which is not reused while any of them is alive.
        """
        key = (frame.width, frame.height, frame.format.name, full_range)
        graph = self._graphs.pop(key, None) or _graph(frame, full_range)
        self._graphs[key] = graph
        if len(self._graphs) > _MAX_GRAPHS:
            self._graphs.popitem(last=False)
        red, green, blue = _converted(graph, frame)
        if not full_range and _may_overflow(frame):
            *_, darker = _converted(graph, _with_less_luma(frame))
            blue = np.where(darker == 255, darker, blue)
        return red, green, blue


def _converted(graph: Any, frame: VideoFrame) -> Planes:
    graph.push(frame)
    converted = graph.pull()
    if converted.format.name == "rgb24":
        (packed,) = converted.planes
        lines = np.frombuffer(packed, dtype=np.uint8).reshape(packed.height, packed.line_size)
        lines = lines[:, : 3 * frame.width]
        return lines[:, ::3], lines[:, 1::3], lines[:, 2::3]
    green, blue, red = (
        np.frombuffer(plane, dtype=np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width]
        for plane in converted.planes
    )
    return red, green, blue


def _may_overflow(frame: VideoFrame) -> bool:
    """Whether blue may become 0 instead of 255.

    swscale computes with 22 fractional bits in 32: if 1.164·(Y-16) + 2.018·(U-128) reaches 512, in pixels far beyond
    limited range (Y from 235 on, U from 244), the overflow makes it negative. Red and green cannot reach that, and in
    full range blue cannot, either.
    """
    if frame.format.is_rgb or len(frame.planes) < 3:
        return False
    luma, chroma = _samples(frame, 0), _samples(frame, 1)
    scale = 1 << (frame.format.components[0].bits - 8)
    return bool(chroma.max() >= 243 * scale and luma.max() >= 234 * scale)


def _with_less_luma(frame: VideoFrame) -> VideoFrame:
    """The frame with its luma clipped to a level at which blue does not overflow, but is still 255."""
    made = type(frame)(frame.width, frame.height, frame.format.name)
    for number, target in enumerate(made.planes):
        samples = _samples(frame, number)
        if number == 0:
            samples = np.minimum(samples, samples.dtype.type(200 << (frame.format.components[0].bits - 8)))
        lines = np.zeros((target.height, target.line_size // samples.itemsize), dtype=samples.dtype)
        width = min(samples.shape[1], lines.shape[1])
        lines[:, :width] = samples[:, :width]
        target.update(lines.tobytes())
    return made


def _samples(frame: VideoFrame, number: int) -> Any:
    """A plane's samples, uint8 or uint16 [height, width and more]."""
    plane: Any = frame.planes[number]
    lines = np.frombuffer(plane, dtype=np.uint8).reshape(plane.height, plane.line_size)
    return lines if frame.format.components[0].bits == 8 else lines.view(np.uint16)


def _graph(frame: VideoFrame, full_range: bool) -> Any:
    """FFmpeg's filter graph for frames like this one. PyAV's reformatter has no option for chroma siting."""
    import av  # first, as in native_decoder.py
    import av.filter

    graph = av.filter.Graph()
    graph.threads = 1
    last = graph.add_buffer(
        width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1, SLICE_TIMESCALE)
    )
    # swscale's planar output is twice as fast, and equal except at odd sides, where single pixels are one level off.
    output = "rgb24" if frame.width % 2 or frame.height % 2 else "gbrp"
    for name, options in (
        # Convert interlaced frames as whole frames, as GPUs do; swscale's default is field by field.
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
