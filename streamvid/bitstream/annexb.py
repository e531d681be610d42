"""The properties of H.264 and HEVC streams that a hardware decoder needs, by codec."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from streamvid.bitstream import h264, hevc, hevc_sps
from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.nal import DpbRequirement, NalSyntax, ParameterSets

NAL_SYNTAX: Final[dict[str, NalSyntax]] = {"h264": h264.SYNTAX, "hevc": hevc.SYNTAX}
"""By codec, for all codecs that consist of NAL units."""


@lru_cache(maxsize=1024)
def parameter_sets(codec: str, stsd: bytes) -> ParameterSets:
    """Read a track's decoder configuration.

    Args:
        codec: "h264" or "hevc".
        stsd: the whole sample description box.

    Raises:
        ValueError: there is no `avcC` or `hvcC` box, or it is cut off.
    """
    return h264.parameter_sets(stsd) if codec == "h264" else hevc.parameter_sets(stsd)


@lru_cache(maxsize=4096)
def dpb_requirement(codec: str, sets: bytes) -> DpbRequirement:
    """The DPB that parameter sets require.

    Args:
        codec: "h264" or "hevc".
        sets: the parameter sets in Annex B, as in `ParameterSets`.

    Returns:
        the requirement; with a group of its own if they cannot be parsed, or have several sequence parameter sets.
    """
    read: Callable[[BitReader], DpbRequirement] = h264.dpb_requirement if codec == "h264" else hevc_sps.dpb_requirement
    syntax = NAL_SYNTAX[codec]
    try:
        (sps,) = syntax.sequence_parameter_sets(sets)
        return read(BitReader.of_nal(sps[syntax.header_bytes :]))
    except ValueError:
        return DpbRequirement(f"sets {sets.hex()}", 0, 0)
