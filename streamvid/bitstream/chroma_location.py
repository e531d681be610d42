"""The location of chroma samples among luma samples, from sequence parameter sets and decoder configurations."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from streamvid.bitstream import h264, hevc_sps
from streamvid.bitstream.annexb import NAL_SYNTAX, parameter_sets
from streamvid.bitstream.nal import stated_colors
from streamvid.mp4.sample_entry import codec_configuration

_NAMES: Final = ("left", "center", "topleft", "top", "bottomleft", "bottom")
"""FFmpeg's names of chroma_sample_loc_type_top_field, 0 to 5 (ITU-T H.264 and H.265, figure E-1)."""
_OF_AV1: Final = {1: "left", 2: "topleft"}
"""chroma_sample_position: CSP_VERTICAL and CSP_COLOCATED (AV1 bitstream specification, 6.4.2)."""


@lru_cache(maxsize=4096)
def chroma_location(codec: str, stsd: bytes) -> str:
    """The location, by FFmpeg's name; "unknown" if the clip's configuration does not have it.

    Args:
        codec, stsd: as in docs/format.md.
    """
    try:
        if codec == "av1":  # av1C, byte 2: chroma_sample_position in the last two bits
            return _OF_AV1.get(codec_configuration(stsd, b"av1C")[2] & 3, "unknown")
        if codec not in NAL_SYNTAX:
            return "unknown"
        syntax = NAL_SYNTAX[codec]
        units = syntax.sequence_parameter_sets(parameter_sets(codec, stsd).annex_b)
        to_vui = h264.skip_to_vui if codec == "h264" else hevc_sps.skip_to_vui
        found = {stated_colors(unit, syntax.header_bytes, to_vui).location for unit in units}
    except (ValueError, IndexError):
        return "unknown"
    return location_name(found.pop()) if len(found) == 1 else "unknown"


def location_name(number: int | None) -> str:
    """FFmpeg's name of a chroma_sample_loc_type; "unknown" if it has none."""
    return "unknown" if number is None else dict(enumerate(_NAMES)).get(number, "unknown")
