"""How a clip's YUV is meant: matrix, range and chroma siting, settled from its tags.

Sources: ITU-T H.273 (matrix_coefficients, colour_primaries), ITU-T H.265 E.3.1 (chroma_sample_loc_type), and for
what is not tagged, what players do: SD is BT.601, larger pictures are BT.709.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

Matrix = Literal["bt601", "bt709", "bt2020", "smpte240m", "fcc", "ycgco", "gbr"]
ColorOption = Literal["auto", "bt601", "bt709", "bt2020"]
"""How colours are converted: by a clip's tags; as DALI does, BT.601 whatever the tags; or by another matrix whatever the
tags."""
KR_KB: Final[Mapping[Matrix, tuple[float, float]]] = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
    "smpte240m": (0.212, 0.087),
    "fcc": (0.30, 0.11),
}
"""K_R and K_B of H.273, table 4."""
_OF_MATRIX: Final[Mapping[str, Matrix]] = {
    "bt709": "bt709", "bt470bg": "bt601", "smpte170m": "bt601", "fcc": "fcc", "smpte240m": "smpte240m",
    "bt2020nc": "bt2020", "bt2020c": "bt2020", "ycgco": "ycgco", "gbr": "gbr",
}  # fmt: skip
_OF_PRIMARIES: Final[Mapping[str, Matrix]] = {
    "bt709": "bt709", "bt470m": "fcc", "bt470bg": "bt601", "smpte170m": "bt601", "smpte240m": "smpte240m",
    "bt2020": "bt2020",
}  # fmt: skip
_SITINGS: Final[Mapping[str, tuple[int, int]]] = {
    "left": (1, 0), "center": (0, 0), "topleft": (1, 1), "top": (0, 1), "bottomleft": (1, -1), "bottom": (0, -1),
}  # fmt: skip
_HD_WIDTH, _HD_HEIGHT = 1024, 576


@dataclass(frozen=True)
class Color:
    """What a decoded clip's samples mean.

    Attributes:
        matrix: by which Y, Cb and Cr become R, G and B; "gbr": the planes are G, B and R.
        full_range: luma from 0 to 255 rather than 16 to 235 (8 bit).
        siting: where a chroma sample lies among the luma samples that it belongs to, across and down: 0 in their
            centre, 1 on the first, -1 on the last.
        as_dali: it is converted at full size, with the pixels of DALI's GPU decoder, bit for bit
            (`streamvid.color.yuv_to_rgb`).
    """

    matrix: Matrix
    full_range: bool
    siting: tuple[int, int]
    as_dali: bool = False

    def chosen(self, option: ColorOption) -> Color:
        """The meaning by a transform's option `color`."""
        if option == "auto":
            return self
        if option == "bt601":
            return Color("bt601", self.full_range, (0, 0), as_dali=True)
        return replace(self, matrix=option)


RGB: Final = Color("gbr", True, (0, 0))


def settle(
    *, matrix: str, primaries: str, color_range: str, location: str, codec: str, width: int, height: int
) -> Color:
    """The meaning of a clip's samples from its tags, by FFmpeg's names ("unknown" where there is none).

    Without a matrix, that of the tagged primaries; without those, BT.709 for pictures that are larger than SD, and
    BT.601 for others. Motion JPEG is BT.601 in full range (JFIF). Chroma lies left where nothing is said, and in
    the centre for Motion JPEG and MPEG-1.
    """
    if codec == "mjpeg":
        return Color("bt601", color_range != "tv", _SITINGS["center"])
    by_size: Matrix = "bt709" if width > _HD_WIDTH or height > _HD_HEIGHT else "bt601"
    found = _OF_MATRIX.get(matrix) or _OF_PRIMARIES.get(primaries) or by_size
    default = "center" if codec == "mpeg1video" else "left"
    return Color(found, color_range == "pc", _SITINGS.get(location, _SITINGS[default]))
