"""Conversion of decoded frames to an encoder's input format: size, 4:2:0, bit depth, and colour tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import av  # noqa: F401 - first, as in native_decoder.py
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from streamvid.color.tags import MATRICES, settled_tags, tag_names
from streamvid.errors import VideoError
from streamvid.video.encoders import ENCODERS, Target

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

_UNSPECIFIED, _BT601, _YCGCO = 2, 6, 8
"""Values of ITU-T H.273."""
_LIMITED, _FULL = 1, 2
"""Values of FFmpeg's AVColorRange."""
_SWSCALE: Final = {
    1: Colorspace.ITU709, 4: Colorspace.FCC, 7: Colorspace.SMPTE240M, 9: Colorspace.BT2020, 10: Colorspace.BT2020,
}  # fmt: skip
"""swscale's names of H.273's matrices. They matter only if the matrix is changed, or RGB is made."""
_EXACT: Final = Interpolation.ACCURATE_RND | Interpolation.BITEXACT
"""The same pixels with every instruction set."""


def encoded_size(width: int, height: int, codec: Target, short_side: int | None) -> tuple[int, int]:
    """The size in which frames are encoded: the source's, unless `short_side` is smaller.

    Both sides are scaled by the same factor, rounded to the nearest even number (halves down), because 4:2:0 has a
    chroma sample for every two pixels, and raised to the encoder's minimum.

    Args:
        width, height: of the source's frames, in pixels.
        codec: the codec to encode to.
        short_side: pixels of the shorter side; None, or more than the source's: not scaled.

    Returns:
        width and height, in pixels.
    """
    shorter = min(width, height)
    part, whole = (short_side, shorter) if short_side is not None and short_side < shorter else (1, 1)

    def rounded(side: int) -> int:
        # The even number nearest to side·part/whole; halves are rounded down, so that no side grows.
        return max(-2 * ((whole - side * part) // (2 * whole)), ENCODERS[codec].min_side)

    return rounded(width), rounded(height)


class EncoderFormat:
    """Converts frames to one size and pixel format of an encoder, chosen by the first frame.

    Primaries, transfer, matrix and range are kept; there is no tone mapping. Matrix and range are always tagged, by
    `streamvid.color.tags.settled_tags`, because players guess missing tags from the frame size, which may have changed.
    RGB becomes BT.601, tagged so; frames for Motion JPEG, which has no tags, become BT.601 in full range. An alpha
    channel is dropped.

    Args:
        short_side: as in `encoded_size`.
        tags: the clip's `color_space` and `color_range`; None: the frames' own.

    Attributes:
        size: width and height of converted frames, in pixels.
    """

    def __init__(
        self, first: VideoFrame, codec: Target, short_side: int | None, tags: tuple[str, str] | None = None
    ) -> None:
        self.size = encoded_size(first.width, first.height, codec, short_side)
        depth = max(component.bits for component in first.format.components)
        is_10_bit = depth > 8 and max(ENCODERS[codec].bit_depths) > 8
        self._format = "yuv420p10le" if is_10_bit else "yuv420p"
        self._given = tags
        rgb = _is_rgb(first)
        number, from_matrix, from_range = self._meaning(first)
        jpeg = codec == "mjpeg"
        full = from_range == ColorRange.JPEG
        self._to_range = ColorRange.JPEG if jpeg or (full and not rgb) else ColorRange.MPEG
        self._to_matrix = Colorspace.ITU601 if jpeg else from_matrix
        self._tags = (
            _BT601 if rgb or jpeg else number,
            _UNSPECIFIED if jpeg else int(first.color_primaries),
            _UNSPECIFIED if jpeg else int(first.color_trc),
            int(self._to_range),
        )
        self._with_chroma, self._reformatter = VideoReformatter(), VideoReformatter()

    def _meaning(self, frame: VideoFrame) -> tuple[int, Colorspace, ColorRange]:
        """A frame's matrix, as H.273's number and for swscale, and its range. Both may change within a stream."""
        rgb, name = _is_rgb(frame), frame.format.name
        own_range = int(frame.color_range) or (_FULL if name.startswith(("gray", "ya", "pal", "mono")) else _LIMITED)
        try:
            tags = tag_names(int(frame.colorspace), int(frame.color_primaries), own_range == _FULL)
            size = frame.width, frame.height
            matrix, color_range = self._given or settled_tags(tags, codec="", pix_fmt=name, size=size)
        except ValueError as error:
            raise VideoError(str(error)) from error
        number = {known: number for number, known in MATRICES.items()}[matrix]
        swscale = Colorspace.ITU601 if rgb else _SWSCALE.get(number, Colorspace.ITU601)
        return number, swscale, ColorRange.JPEG if rgb or color_range == "pc" else ColorRange.MPEG

    def configure(self, context: VideoCodecContext) -> None:
        """Set size, pixel format and colour tags of an encoder."""
        context.width, context.height = self.size
        context.pix_fmt = self._format
        context.colorspace, context.color_primaries, context.color_trc, context.color_range = self._tags

    def __call__(self, frame: VideoFrame) -> VideoFrame:
        """The frame in the encoder's format.

        Raises:
            VideoError: swscale cannot convert the frame, or would take its colours for others.
        """
        number, from_matrix, from_range = self._meaning(frame)
        if number == _YCGCO != self._tags[0]:
            raise VideoError("its colours are coded as YCgCo, which swscale does not convert: use another --codec")
        try:
            if from_range == ColorRange.MPEG and frame.format.name.startswith(("gray", "ya")):
                # swscale takes it for full range, whatever it is told: its levels are copied beside grey chroma first.
                bits = min(frame.format.components[0].bits, 16)
                frame = self._with_chroma.reformat(
                    frame,
                    format=f"yuv420p{bits}le" if bits > 8 else "yuv420p",
                    dst_color_range=ColorRange.JPEG,
                    interpolation=_EXACT,
                    threads=1,
                )
            return self._reformatter.reformat(
                frame,
                width=self.size[0],
                height=self.size[1],
                format=self._format,
                src_colorspace=from_matrix,
                dst_colorspace=self._to_matrix,
                src_color_range=from_range,
                dst_color_range=self._to_range,
                interpolation=Interpolation.BICUBIC | _EXACT,
                threads=1,
            )
        except ValueError as error:
            raise VideoError(f"its pictures of {frame.format.name} cannot be converted: {error}") from error


def _is_rgb(frame: VideoFrame) -> bool:
    return frame.format.is_rgb or int(frame.colorspace) == 0
