"""The matrix, range and chroma siting of a clip's YUV, settled from its tags.

Sources: ITU-T H.273 (matrix_coefficients, colour_primaries), ITU-T H.265 E.3.1 (chroma_sample_loc_type).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from streamvid.bitstream.chroma_location import chroma_location
from streamvid.mp4.sample_entry import codec_configuration

Matrix = Literal["bt601", "bt709", "bt2020", "smpte240m", "fcc", "ycgco", "gbr"]
ColorOption = Literal["auto", "bt601", "bt709", "bt2020"]
"""How colours are converted: by each clip's tags; or, regardless of tags, by BT.601 as in DALI, or by another
matrix."""
KR_KB: Final[Mapping[Matrix, tuple[float, float]]] = {
    "bt601": (0.299, 0.114),
    "bt709": (0.2126, 0.0722),
    "bt2020": (0.2627, 0.0593),
    "smpte240m": (0.212, 0.087),
    "fcc": (0.30, 0.11),
}
"""K_R and K_B of H.273, table 4."""
MATRICES: Final[Mapping[int, str]] = {
    0: "gbr", 1: "bt709", 4: "fcc", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "ycgco", 9: "bt2020nc",
    10: "bt2020c", 11: "smpte2085", 12: "chroma-derived-nc", 13: "chroma-derived-c", 14: "ictcp", 15: "ipt-c2",
    16: "ycgco-re", 17: "ycgco-ro",
}  # fmt: skip
PRIMARIES: Final[Mapping[int, str]] = {
    1: "bt709", 4: "bt470m", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "film", 9: "bt2020", 10: "smpte428",
    11: "smpte431", 12: "smpte432", 22: "jedec-p22",
}  # fmt: skip
"""FFmpeg's names of H.273's numbers, tables 4 and 2."""
_OF_MATRIX: Final[Mapping[str, Matrix]] = {
    "bt709": "bt709", "bt470bg": "bt601", "smpte170m": "bt601", "fcc": "fcc", "smpte240m": "smpte240m",
    "bt2020nc": "bt2020", "bt2020c": "bt2020", "ycgco": "ycgco", "gbr": "gbr",
}  # fmt: skip
_OF_PRIMARIES: Final[Mapping[str, str]] = {
    "bt709": "bt709", "bt470m": "fcc", "bt470bg": "bt470bg", "smpte170m": "smpte170m", "smpte240m": "smpte240m",
    "bt2020": "bt2020nc",
}  # fmt: skip
"""By FFmpeg's names."""
_NO_MATRIX: Final = ("bt2020c", "smpte2085", "chroma-derived-c", "ictcp", "ipt-c2", "ycgco-re", "ycgco-ro")
"""Codings whose conversion to RGB is more than a matrix: constant luminance, LMS, and reversible YCgCo in integers."""
_DOLBY_IPT: Final = (5, 10)
"""Profiles of Dolby Vision for HEVC and for AV1 whose pictures, unless other players are to show them, are coded as
IPT-PQ-C2, which the bitstream does not say."""
_SITINGS: Final[Mapping[str, tuple[int, int]]] = {
    "left": (1, 0), "center": (0, 0), "topleft": (1, 1), "top": (0, 1), "bottomleft": (1, -1), "bottom": (0, -1),
}  # fmt: skip
_HD_WIDTH, _HD_HEIGHT = 1280, 577


@dataclass(frozen=True)
class Color:
    """Matrix, range and chroma siting of a clip's samples.

    Attributes:
        matrix: the matrix that converts Y, Cb and Cr to R, G and B; "gbr": the planes are G, B and R.
        full_range: whether luma is from 0 to 255 rather than 16 to 235 (8 bit).
        siting: position of a chroma sample among the luma samples that it belongs to, horizontally and vertically: 0 in
            their centre, 1 on the first, -1 on the last.
        as_dali: whether to convert at full size, with the pixels of DALI's GPU decoder, bit for bit
            (`streamvid.color.yuv_to_rgb`).
    """

    matrix: Matrix
    full_range: bool
    siting: tuple[int, int]
    as_dali: bool = False

    def chosen(self, option: ColorOption) -> Color:
        """The colour by a transform's option `color`."""
        if option == "auto":
            return self
        if option == "bt601":
            return replace(AS_DALI, full_range=self.full_range)
        return replace(self, matrix=option)


RGB: Final = Color("gbr", True, (0, 0))
AS_DALI: Final = Color("bt601", False, (0, 0), as_dali=True)


def settled_tags(tags: tuple[str, str, str], *, codec: str, pix_fmt: str, size: tuple[int, int]) -> tuple[str, str]:
    """Matrix and range of a video of this width and height, from its tags: matrix, primaries and range. All are
    FFmpeg's names ("unknown" for a missing tag).

    If the matrix is missing, the tagged primaries decide it; if these are missing, too, the size decides,
    as in mpv: BT.709 from 1280 pixels of width or more than 576 of height on, BT.601 below. Motion JPEG is BT.601
    (JFIF). If the range is missing, RGB and Motion JPEG are in full range, all others in limited range.

    Raises:
        ValueError: no supported matrix converts its samples to RGB, or the tagged primaries have none.
    """
    matrix, primaries, color_range = tags
    if pix_fmt.startswith("gbr"):
        matrix = "gbr"
    elif codec == "mjpeg":
        matrix = "bt470bg"
    elif matrix in _NO_MATRIX or (matrix == "chroma-derived-nc" and primaries not in _OF_PRIMARIES):
        by = f" of {primaries} primaries" if matrix == "chroma-derived-nc" else ""
        raise ValueError(
            f"its colours are coded as {matrix}{by}, which streamvid does not convert to RGB: convert it to BT.709 or "
            "BT.2020 (non-constant luminance) first, as by FFmpeg's zscale or libplacebo"
        )
    elif matrix == "gbr" or matrix not in _OF_MATRIX:  # only RGB samples can have that matrix
        matrix = _OF_PRIMARIES.get(primaries) or _by_size(*size)
    full = pix_fmt.startswith("yuvj") or (color_range == "unknown" and (codec == "mjpeg" or matrix == "gbr"))
    return matrix, "pc" if full or color_range == "pc" else "tv"


def mean_alike(one: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether two pairs of settled tags have the same meaning."""
    return (_OF_MATRIX[one[0]], one[1]) == (_OF_MATRIX[other[0]], other[1])


def _by_size(width: int, height: int) -> str:
    return "bt709" if width >= _HD_WIDTH or height >= _HD_HEIGHT else "smpte170m"


def container_tags(stsd: bytes) -> tuple[str, str, str]:
    """Matrix, primaries and range in a sample description, by FFmpeg's names: from `dvcC` or `dvvC` (Dolby Vision
    Streams Within the ISO Base Media File Format, 3.2), `colr` (ISO/IEC 14496-12, 12.1.5; `nclx` has all, QuickTime's
    `nclc` no range), or `vpcC` (VP Codec ISO Media File Format Binding, 2.2)."""
    for name in (b"dvcC", b"dvvC", b"colr", b"vpcC"):
        try:
            box = codec_configuration(stsd, name)
        except ValueError:
            continue
        if name in (b"dvcC", b"dvvC"):
            if box[2] >> 1 in _DOLBY_IPT and not box[4] >> 4:  # dv_profile, dv_bl_signal_compatibility_id
                return "ipt-c2", "bt2020", "pc"
        elif name == b"vpcC":
            return tag_names(box[9], box[7], box[6] & 1)
        elif box[:4] in (b"nclx", b"nclc"):
            primaries, _, matrix = struct.unpack_from(">3H", box, 4)
            return tag_names(matrix, primaries, box[10] >> 7 if box[:4] == b"nclx" and len(box) > 10 else None)
    return tag_names(2, 2, None)


def tag_names(matrix: int, primaries: int, full_range: int | None) -> tuple[str, str, str]:
    """Numbers of H.273 by FFmpeg's names."""
    of_range = {None: "unknown", 0: "tv", 1: "pc"}[full_range]
    return MATRICES.get(matrix, "unknown"), PRIMARIES.get(primaries, "unknown"), of_range


def clip_color(*, codec: str, stsd: bytes, color_space: str, color_range: str, width: int, height: int) -> Color:
    """The colour of a clip from its row, with settled tags or without. The arguments are columns of docs/format.md.

    The siting is that of the parameter sets, or `usual_siting` if they have none.
    """
    if codec == "mjpeg" and color_space != "gbr":
        color_space = "bt470bg"
    return Color(
        _OF_MATRIX[color_space if color_space in _OF_MATRIX else _by_size(width, height)],
        color_range == "pc" or (codec == "mjpeg" and color_range != "tv"),
        _SITINGS.get(chroma_location(codec, stsd), _SITINGS[usual_siting(codec)]),
    )


def usual_siting(codec: str) -> str:
    """The siting if a stream does not have it, by FFmpeg's name: left, or centre for Motion JPEG and MPEG-1."""
    return "center" if codec in ("mjpeg", "mpeg1video") else "left"


def siting_name(siting: tuple[int, int]) -> str:
    """FFmpeg's name of a `Color`'s siting."""
    return next(name for name, place in _SITINGS.items() if place == siting)
