"""NAL units of H.264 and HEVC: the numbers of their types.

ITU-T H.264, 7.3.1 and table 7-1; ITU-T H.265, 7.3.1.2 and table 7-1.
"""

from __future__ import annotations

from typing import Final

HEADER_BYTES: Final = {"h264": 1, "hevc": 2}
"""Of a NAL unit, before its payload."""

H264_SLICES: Final = range(1, 6)
"""All that belongs to a picture: slices, and partitions of slices."""
H264_HEADS: Final = (1, 2, 5)
"""Those of them that begin with a slice header."""
H264_IDR: Final = 5
H264_SEQUENCE: Final = 7
H264_PICTURE: Final = 8

HEVC_SLICES: Final = range(32)
HEVC_IRAP: Final = range(16, 24)
"""Pictures that decoding may start at, BLA_W_LP to CRA_NUT, and two types that are reserved for more of them."""
HEVC_RANDOM_ACCESS: Final = range(16, 22)
"""The same without those that are reserved."""
HEVC_IDR: Final = (19, 20)
HEVC_CRA: Final = 21
HEVC_RASL: Final = (8, 9)
HEVC_SUB_LAYER_NON_REFERENCE: Final = frozenset(range(0, 16, 2))
HEVC_RADL_OR_RASL: Final = range(6, 10)
HEVC_VIDEO: Final = 32
HEVC_SEQUENCE: Final = 33
HEVC_PICTURE: Final = 34
HEVC_END: Final = 36

SLICES: Final = {"h264": H264_SLICES, "hevc": HEVC_SLICES}
IDR: Final = {"h264": (H264_IDR,), "hevc": HEVC_IDR}
SEQUENCES: Final = {"h264": H264_SEQUENCE, "hevc": HEVC_SEQUENCE}
PARAMETER_SETS: Final = {"h264": (H264_SEQUENCE, H264_PICTURE), "hevc": (HEVC_VIDEO, HEVC_SEQUENCE, HEVC_PICTURE)}


def kind(first: int, codec: str) -> int:
    """A NAL unit's type.

    Args:
        first: its first byte.
        codec: "h264" or "hevc".
    """
    return first & 31 if codec == "h264" else first >> 1 & 63
