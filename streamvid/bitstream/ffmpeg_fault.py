"""Detects, by their parameter sets, HEVC streams of which FFmpeg's decoder makes other samples than NVDEC.

x265 writes a hash of each picture (`hash=1`), by which FFmpeg 5.1 and 8 are wrong, with and without assembler code, and
libde265 and NVDEC are right: but for high chroma offsets, for which it is the other way round. The test of this module
has an example of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from streamvid.bitstream import hevc_sps
from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.packets import START_CODE

_SPS: Final = 33
_PPS: Final = 34
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
    units = [unit for unit in sets.split(START_CODE) if unit]
    try:
        sequences = [hevc_sps.read_coding_tools(BitReader.of_nal(unit[2:])) for unit in units if unit[0] >> 1 == _SPS]
        pictures = [_read_pps(BitReader.of_nal(unit[2:])) for unit in units if unit[0] >> 1 == _PPS]
    except ValueError:
        return False
    return not (
        any(sps.shown.samples.depth > 10 for sps, _, _ in sequences)  # wrong at a QP of 45 and more
        or any(tree_block == 16 and adaptive_offsets for _, tree_block, adaptive_offsets in sequences)
        or any(pps.constrained_intra or pps.lossless_blocks for pps in pictures)
        # FFmpeg's deblocking filter limits the QP of chroma.
        or any(_MOST_QP + pps.chroma_offset > _MOST_CHROMA_QP for pps in pictures)
    )


@dataclass(frozen=True)
class _Pps:
    """Fields of a picture parameter set.

    Attributes:
        constrained_intra: whether intra prediction leaves out neighbours of inter prediction.
        chroma_offset: the larger offset of chroma's QP to that of luma.
        lossless_blocks: whether coding blocks may be lossless.
    """

    constrained_intra: bool
    chroma_offset: int
    lossless_blocks: bool


def _read_pps(bits: BitReader) -> _Pps:
    """7.3.2.3.1 of ITU-T H.265, up to transquant_bypass_enabled_flag."""
    bits.ue()  # pps_pic_parameter_set_id
    bits.ue()  # pps_seq_parameter_set_id
    bits.u(7)  # dependent_slice_segments_enabled_flag to cabac_init_present_flag
    bits.ue()  # num_ref_idx_l0_default_active_minus1
    bits.ue()  # num_ref_idx_l1_default_active_minus1
    bits.se()  # init_qp_minus26
    constrained = bool(bits.u(1))  # constrained_intra_pred_flag
    bits.u(1)  # transform_skip_enabled_flag
    if bits.u(1):  # cu_qp_delta_enabled_flag
        bits.ue()  # diff_cu_qp_delta_depth
    offset = max(bits.se(), bits.se())  # pps_cb_qp_offset, pps_cr_qp_offset
    bits.u(3)  # pps_slice_chroma_qp_offsets_present_flag, weighted_pred_flag, weighted_bipred_flag
    return _Pps(constrained, offset, bool(bits.u(1)))  # transquant_bypass_enabled_flag
