"""Detects, by their parameter sets, HEVC streams of which FFmpeg's decoder makes other samples than NVDEC.

x265 writes a hash of each picture (`hash=1`). By these hashes, FFmpeg 5.1 and 8 are wrong, with and without assembler
code, and libde265 and NVDEC are right. With high chroma offsets it is the other way round. The test of this module has
an example of each.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from streamvid.bitstream import hevc_sps
from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.hevc_pps import read_pictures
from streamvid.bitstream.packets import nal_units

_SPS: Final = 33
_MOST_QP: Final = 51
_MOST_CHROMA_QP: Final = 57


@lru_cache(maxsize=4096)
def ffmpeg_is_exact(codec: str, sets: bytes) -> bool:
    """Whether FFmpeg's samples of a stream with these parameter sets are known to be those of NVDEC.

    Args:
        codec: "h264" or "hevc".
        sets: the parameter sets in Annex B, as in `streamvid.bitstream.nal.ParameterSets`.
    """
    if codec != "hevc":
        return True
    units = nal_units(sets)
    try:
        sequences = [hevc_sps.read_coding_tools(BitReader.of_nal(unit[2:])) for unit in units if unit[0] >> 1 == _SPS]
        pictures = read_pictures(sets)
    except ValueError:
        return False
    return not (
        any(sps.shown.samples.depth > 10 for sps, _, _ in sequences)  # wrong at a QP of 45 and more
        or any(tree_block == 16 and adaptive_offsets for _, tree_block, adaptive_offsets in sequences)
        or any(pps.constrained_intra or pps.lossless_blocks for pps in pictures)
        # FFmpeg's deblocking filter limits the QP of chroma.
        or any(_MOST_QP + pps.chroma_offset > _MOST_CHROMA_QP for pps in pictures)
    )
