"""Decoded pictures → pictures as an encoder takes them: size, chroma format, bit depth, and the colours' tags."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter

from streamvid.errors import VideoError
from streamvid.video.encoders import ENCODERS, Target

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_UNKNOWN: Final = 2
"""ITU-T H.273: not tagged."""
_BT601: Final = 6


def fitting_size(width: int, height: int, codec: Target, short_side: int | None) -> tuple[int, int]:
    """The size that pictures are encoded in.

    Both sides are scaled alike, and then rounded to the codec's blocks, halves down, so that nothing need be cropped
    off in the bitstream: a side changes by at most half a block.

    Args:
        width, height: of the source's pictures, in pixels.
        codec: what they are encoded into.
        short_side: pixels of the shorter side; None, or more than it has, leaves it as it is.
    """
    encoder = ENCODERS[codec]
    shorter = min(width, height)
    part, whole = (short_side, shorter) if short_side is not None and short_side < shorter else (1, 1)

    def rounded(side: int) -> int:
        # Of side·part/whole, the nearest multiple of the block; exactly half way goes down: nothing is made larger.
        blocks = -((whole * encoder.block - 2 * side * part) // (2 * whole * encoder.block))
        least = -(-encoder.least // encoder.block)
        return max(blocks, least) * encoder.block

    return rounded(width), rounded(height)


class Fitter:
    """Makes pictures fit an encoder. Chosen by the first one; later ones of other sizes are made to fit too.

    Tags of primaries, transfer, matrix and range are kept, and no tone mapping is done. Pictures in RGB become BT.601,
    tagged so; those for Motion JPEG, which has no tags, BT.601 in full range. An alpha channel is dropped.

    Args:
        first: the first picture.
        codec: what they are encoded into.
        short_side: as in `fitting_size`.
    """

    def __init__(self, first: VideoFrame, codec: Target, short_side: int | None) -> None:
        self._size = fitting_size(first.width, first.height, codec, short_side)
        depth = max(component.bits for component in first.format.components)
        self.deep = depth > 8 and max(ENCODERS[codec].depths) > 8
        self._format = "yuv420p10le" if self.deep else "yuv420p"
        rgb = first.format.is_rgb or int(first.colorspace) == 0
        full = (
            rgb or first.format.name.startswith(("yuvj", "gray", "ya", "pal", "mono")) or _range(first) == _FULL
        ) and not (first.format.name.startswith("gray") and _range(first) == _LIMITED)
        self._from_range = ColorRange.JPEG if full else ColorRange.MPEG
        self._from_matrix = Colorspace.ITU601 if rgb else _matrix(first)
        jpeg = codec == "mjpeg"
        self._to_range = ColorRange.JPEG if jpeg or (full and not rgb) else ColorRange.MPEG
        self._to_matrix = Colorspace.ITU601 if jpeg else self._from_matrix
        self._tags = (
            (_BT601 if rgb or jpeg else int(first.colorspace)),
            _UNKNOWN if jpeg else int(first.color_primaries),
            _UNKNOWN if jpeg else int(first.color_trc),
            int(self._to_range) if rgb or jpeg or full else _range(first),
        )
        self._reformatter = VideoReformatter()

    def configure(self, context: Any) -> None:
        """Tell an encoder what it will get."""
        context.width, context.height = self._size
        context.pix_fmt = self._format
        context.colorspace, context.color_primaries, context.color_trc, context.color_range = self._tags

    def __call__(self, frame: VideoFrame) -> VideoFrame:
        """The picture as the encoder takes it.

        Raises:
            VideoError: it cannot be turned into that.
        """
        try:
            return self._reformatter.reformat(
                frame,
                width=self._size[0],
                height=self._size[1],
                format=self._format,
                src_colorspace=self._from_matrix,
                dst_colorspace=self._to_matrix,
                src_color_range=self._from_range,
                dst_color_range=self._to_range,
                # The same pixels on every machine, whatever its instruction set.
                interpolation=Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT,
                threads=1,
            )
        except ValueError as error:
            raise VideoError(f"its pictures of {frame.format.name} cannot be converted: {error}") from error


_LIMITED, _FULL = 1, 2


def _range(frame: VideoFrame) -> int:
    return int(frame.color_range)


def _matrix(frame: VideoFrame) -> Colorspace:
    """What swscale calls the picture's matrix; which one matters only where it is converted into another."""
    known = {1: Colorspace.ITU709, 4: Colorspace.FCC, 7: Colorspace.SMPTE240M, 9: Colorspace.BT2020}
    return known.get(int(frame.colorspace), Colorspace.ITU601)
