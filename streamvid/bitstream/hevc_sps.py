"""Sequence parameter sets of HEVC: 7.3.2.2.1 and 7.3.3 (profile_tier_level) of ITU-T H.265. Comments name the syntax
elements that are read or skipped."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.nal import DpbRequirement, ShownArea
from streamvid.bitstream.packet_kind import Samples


@dataclass(frozen=True)
class Sps:
    """The part of a sequence parameter set up to log2_max_pic_order_cnt_lsb_minus4.

    Attributes:
        max_sub_layers: most temporal sub-layers.
        level_idc: general_level_idc.
        separate_colour_plane: whether slice headers have a colour_plane_id.
        poc_lsb_bits: size of slice_pic_order_cnt_lsb in a slice header.
        shown: the displayed area, see `ShownArea`.
    """

    max_sub_layers: int
    level_idc: int
    separate_colour_plane: bool
    poc_lsb_bits: int
    shown: ShownArea = field(compare=False)


def read_sps(bits: BitReader) -> Sps:
    """Read a sequence parameter set up to log2_max_pic_order_cnt_lsb_minus4.

    Raises:
        ValueError: it ends early.
    """
    layers, level = skip_profile_tier_level(bits)
    bits.ue()  # sps_seq_parameter_set_id
    chroma = bits.ue()  # chroma_format_idc
    separate = bits.u(1) if chroma == 3 else 0  # separate_colour_plane_flag
    width, height = bits.ue(), bits.ue()  # pic_width_in_luma_samples, pic_height_in_luma_samples
    left = right = top = bottom = 0
    if bits.u(1):  # conformance_window_flag
        left, right, top, bottom = (bits.ue() for _ in range(4))  # conf_win_left_offset and so on
    across, down = (2 if chroma in (1, 2) else 1), (2 if chroma == 1 else 1)  # SubWidthC, SubHeightC
    size = width - across * (left + right), height - down * (top + bottom)
    samples = Samples(across > 1, down > 1, 8 + bits.ue(), gray=chroma == 0)  # bit_depth_luma_minus8
    bits.ue()  # bit_depth_chroma_minus8
    return Sps(layers, level, bool(separate), bits.ue() + 4, ShownArea(across * left, down * top, *size, samples))


def skip_profile_tier_level(bits: BitReader) -> tuple[int, int]:
    """Skip a sequence parameter set up to its id. Returns the number of temporal sub-layers, and general_level_idc."""
    bits.u(4)  # sps_video_parameter_set_id
    layers = bits.u(3) + 1  # sps_max_sub_layers_minus1
    bits.u(1)  # sps_temporal_id_nesting_flag
    bits.u(88)  # general profile, tier and constraint flags
    level = bits.u(8)  # general_level_idc
    present = [(bits.u(1), bits.u(1)) for _ in range(layers - 1)]  # sub_layer_profile_ and _level_present_flag
    if present:
        bits.u(2 * (9 - layers))  # reserved_zero_2bits
    for with_profile, with_level in present:
        bits.u(88 * with_profile + 8 * with_level)
    return layers, level


def shown_area(bits: BitReader) -> ShownArea:
    """The displayed area of decoded pictures in a sequence parameter set. Fields are pictures of their own.

    Raises:
        ValueError: it ends early.
    """
    return read_sps(bits).shown


def dpb_requirement(bits: BitReader) -> DpbRequirement:
    """The DPB that a sequence parameter set requires.

    Raises:
        ValueError: it ends early.
    """
    return _dpb_requirement(bits, read_sps(bits))


def _dpb_requirement(bits: BitReader, sps: Sps) -> DpbRequirement:
    for_every_layer = bits.u(1)  # sps_sub_layer_ordering_info_present_flag
    kept = reorder = 0
    for _ in range(sps.max_sub_layers if for_every_layer else 1):
        kept = max(kept, bits.ue() + 1)  # sps_max_dec_pic_buffering_minus1
        reorder = bits.ue()  # sps_max_num_reorder_pics
        bits.ue()  # sps_max_latency_increase_plus1
    return DpbRequirement(str(sps.level_idc), kept, reorder)


def read_coding_tools(bits: BitReader) -> tuple[Sps, int, bool]:
    """Read a sequence parameter set up to sample_adaptive_offset_enabled_flag.

    Returns:
        its first part; the side of coding tree blocks in luma samples, 64 for more; and that flag.

    Raises:
        ValueError: it ends early.
    """
    sps = read_sps(bits)
    _dpb_requirement(bits, sps)
    # log2_min_luma_coding_block_size_minus3, log2_diff_max_min_luma_coding_block_size
    tree_block = 1 << min(bits.ue() + 3 + bits.ue(), 6)
    for _ in range(4):
        bits.ue()  # sizes of transform blocks, depths of transform hierarchies
    if bits.u(1) and bits.u(1):  # scaling_list_enabled_flag, sps_scaling_list_data_present_flag
        _skip_scaling_lists(bits)
    bits.u(1)  # amp_enabled_flag
    return sps, tree_block, bool(bits.u(1))


def skip_to_vui(bits: BitReader) -> bool:
    """Skip a sequence parameter set up to its VUI (annex E). Returns whether it has one.

    Raises:
        ValueError: it ends early, or exceeds a limit.
    """
    sps, _, _ = read_coding_tools(bits)
    if bits.u(1):  # pcm_enabled_flag
        bits.u(8)  # pcm_sample_bit_depth_luma_minus1 and _chroma_minus1
        bits.ue()  # log2_min_pcm_luma_coding_block_size_minus3
        bits.ue()  # log2_diff_max_min_pcm_luma_coding_block_size
        bits.u(1)  # pcm_loop_filter_disabled_flag
    pictures = 0
    for number in range(_limited(bits.ue(), 64)):  # num_short_term_ref_pic_sets
        pictures = _skip_reference_picture_set(bits, pictures if number else None)
    if bits.u(1):  # long_term_ref_pics_present_flag
        for _ in range(_limited(bits.ue(), 32)):  # num_long_term_ref_pics_sps
            bits.u(sps.poc_lsb_bits + 1)  # lt_ref_pic_poc_lsb_sps, used_by_curr_pic_lt_sps_flag
    bits.u(2)  # sps_temporal_mvp_enabled_flag, strong_intra_smoothing_enabled_flag
    return bool(bits.u(1))  # vui_parameters_present_flag


def _skip_scaling_lists(bits: BitReader) -> None:
    """scaling_list_data, 7.3.4."""
    for size in range(4):
        for _ in range(2 if size == 3 else 6):
            if not bits.u(1):  # scaling_list_pred_mode_flag
                bits.ue()  # scaling_list_pred_matrix_id_delta
                continue
            for _ in range(min(64, 1 << (4 + 2 * size)) + (size > 1)):
                bits.se()  # scaling_list_dc_coef_minus8, scaling_list_delta_coef


def _skip_reference_picture_set(bits: BitReader, before: int | None) -> int:
    """Skip st_ref_pic_set, 7.3.7, of an SPS. Returns its number of pictures; `before` is that of the previous one."""
    if before is not None and bits.u(1):  # inter_ref_pic_set_prediction_flag
        bits.u(1)  # delta_rps_sign
        bits.ue()  # abs_delta_rps_minus1
        # used_by_curr_pic_flag, use_delta_flag
        return sum(bool(bits.u(1) or bits.u(1)) for _ in range(before + 1))
    pictures = _limited(bits.ue() + bits.ue(), 32)  # num_negative_pics, num_positive_pics
    for _ in range(pictures):
        bits.ue()  # delta_poc_s0_minus1 and _s1_
        bits.u(1)  # used_by_curr_pic_s0_flag and _s1_
    return pictures


def _limited(count: int, most: int) -> int:
    if count > most:
        raise ValueError(f"a count of {count}, {most} at most")
    return count
