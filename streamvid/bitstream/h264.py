"""H.264 (ITU-T H.264): `avcC`, sequence parameter sets, DPB size, output order and classification of packets.

Comments name the syntax elements that are read or skipped: 7.3.2.1.1 (sequence parameter set), 7.3.3 (slice header)
and E.1 (VUI) of ITU-T H.264.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.nal import (
    HEADER_BYTES,
    DpbRequirement,
    NalSyntax,
    OutputOrder,
    ParameterSets,
    ShownArea,
    is_broken,
    known_sets,
    read_colors,
    read_units,
    split_packet,
    stated_area,
    stated_colors,
)
from streamvid.bitstream.packet_kind import Classifier, PacketKind, Samples
from streamvid.bitstream.sei import SEI, adds_grain, x264_version
from streamvid.mp4.sample_entry import codec_configuration

IDR: Final = 5
SPS: Final = 7
PPS: Final = 8
_VCL: Final = range(1, 6)
WITH_SLICE_HEADER: Final = (1, 2, 5)
"""VCL types that begin with a slice header; data partitions B and C (3, 4) do not."""
SYNTAX: Final = NalSyntax(1, 0, 31, _VCL, (IDR,), SPS, (SPS, PPS), b"avcC", 4)

_WITHOUT_BIT_DEPTH: Final = (66, 77, 88)
"""Baseline, Main and Extended: profiles whose `avcC` does not go on with chroma format and bit depth."""
_WITH_CHROMA_FORMAT: Final = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
"""Values of profile_idc whose parameter sets have chroma_format_idc."""
HIGH_444: Final = 244
"""profile_idc (ITU-T H.264, A.2.8): of lossless 4:2:0, too."""
_FIXED_444: Final = 151
"""x264 coded 4:4:4 in CABAC wrongly before this version. Decoders correct that if they have read its SEI message, which
only the first packet has, so they cannot start anywhere else."""
_FIXED_DIRECT: Final = 34
"""Likewise x264 before this version, and the vectors of spatial direct prediction (8.4.1.2.2)."""


def parameter_sets(stsd: bytes) -> ParameterSets:
    """Read a track's `avcC` box: AVCDecoderConfigurationRecord, ISO/IEC 14496-15, 5.3.3.1.

    Raises:
        ValueError: there is no such box, or it is cut off.
    """
    box = codec_configuration(stsd, SYNTAX.configuration)
    try:
        sequence, at = read_units(box, 6, box[5] & 31)
        picture, at = read_units(box, at + 1, box[at])
    except IndexError as error:
        raise ValueError("the avcC box is cut off") from error
    # chroma_format comes next, then bit_depth_luma_minus8.
    depth = 8 + (box[at + 1] & 7) if len(box) >= at + 4 and box[1] not in _WITHOUT_BIT_DEPTH else 8
    return ParameterSets(sequence + picture, SYNTAX.length_size(box), depth)


def set_number(unit: bytes) -> int:
    """seq_parameter_set_id or pic_parameter_set_id."""
    bits = BitReader.of_nal(unit[1:HEADER_BYTES])
    if unit[0] & 31 == SPS:
        bits.u(24)  # profile_idc, constraint flags, level_idc
    return bits.ue()


@dataclass(frozen=True)
class Sps:
    """The part of a sequence parameter set up to frame_mbs_only_flag. Two are equal if slice headers and picture order
    counts are read alike.

    Attributes:
        profile_idc, constraint_flags, level_idc: as in the parameter set.
        separate_colour_plane: whether slice headers have a colour_plane_id.
        frame_num_bits: size of frame_num in a slice header.
        pic_order_cnt_type: 0, 1 or 2.
        poc_lsb_bits: size of pic_order_cnt_lsb in a slice header; 0 for types 1 and 2.
        frame_mbs_only: whether there are no fields.
        max_num_ref_frames: as in the parameter set.
        width, height: of coded frames, in luma samples.
        crop_unit: unit of the cropping offsets, horizontally and vertically, in luma samples.
        gaps_allowed: whether frame_num may leave out numbers.
        samples: chroma and depth of the pictures.
        transform_bypass: whether macroblocks may be lossless (qpprime_y_zero_transform_bypass_flag).
    """

    profile_idc: int
    constraint_flags: int
    level_idc: int
    separate_colour_plane: bool
    frame_num_bits: int
    pic_order_cnt_type: int
    poc_lsb_bits: int
    frame_mbs_only: bool
    max_num_ref_frames: int = field(compare=False)
    width: int = field(compare=False)
    height: int = field(compare=False)
    crop_unit: tuple[int, int] = field(compare=False)
    gaps_allowed: bool = field(compare=False)
    samples: Samples = field(compare=False)
    transform_bypass: bool = field(compare=False)


def read_sps(bits: BitReader) -> Sps:
    """Read a sequence parameter set up to frame_mbs_only_flag.

    Raises:
        ValueError: it ends early.
    """
    profile, constraints, level = bits.u(8), bits.u(8), bits.u(8)
    bits.ue()  # seq_parameter_set_id
    separate, chroma, depth, bypass = 0, 1, 8, 0
    if profile in _WITH_CHROMA_FORMAT:
        chroma = bits.ue()  # chroma_format_idc
        if chroma == 3:
            separate = bits.u(1)  # separate_colour_plane_flag
        depth += bits.ue()  # bit_depth_luma_minus8
        bits.ue()  # bit_depth_chroma_minus8
        bypass = bits.u(1)  # qpprime_y_zero_transform_bypass_flag
        if bits.u(1):  # seq_scaling_matrix_present_flag
            for number in range(12 if chroma == 3 else 8):
                if bits.u(1):  # seq_scaling_list_present_flag
                    _skip_scaling_list(bits, 16 if number < 6 else 64)
    frame_num_bits = bits.ue() + 4  # log2_max_frame_num_minus4
    order_type, lsb_bits = bits.ue(), 0  # pic_order_cnt_type
    if order_type == 0:
        lsb_bits = bits.ue() + 4  # log2_max_pic_order_cnt_lsb_minus4
    elif order_type == 1:
        bits.u(1)  # delta_pic_order_always_zero_flag
        bits.se()  # offset_for_non_ref_pic
        bits.se()  # offset_for_top_to_bottom_field
        for _ in range(bits.ue()):  # num_ref_frames_in_pic_order_cnt_cycle
            bits.se()  # offset_for_ref_frame
    references = bits.ue()  # max_num_ref_frames
    gaps_allowed = bool(bits.u(1))  # gaps_in_frame_num_value_allowed_flag
    width = 16 * (bits.ue() + 1)  # pic_width_in_mbs_minus1
    map_units = bits.ue() + 1  # pic_height_in_map_units_minus1
    frame_mbs_only = bool(bits.u(1))
    # CropUnitX and CropUnitY, equations 7-19 to 7-22
    across, down = (2 if chroma in (1, 2) else 1), (2 if chroma == 1 else 1)
    in_frame = 2 - frame_mbs_only
    samples = Samples(across > 1, down > 1, depth, gray=chroma == 0)
    return Sps(
        profile, constraints, level, bool(separate), frame_num_bits, order_type, lsb_bits, frame_mbs_only, references,
        width, 16 * map_units * in_frame, (across, down * in_frame), gaps_allowed, samples,
        bool(bypass),
    )  # fmt: skip


def _skip_scaling_list(bits: BitReader, size: int) -> None:
    """scaling_list, 7.3.2.1.1.1."""
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256  # delta_scale
        last = following or last


def shown_area(bits: BitReader) -> ShownArea:
    """The displayed area of decoded pictures in a sequence parameter set.

    Raises:
        ValueError: it ends early.
    """
    return _read_to_vui(bits, read_sps(bits))[0]


def dpb_requirement(bits: BitReader) -> DpbRequirement:
    """The DPB that a sequence parameter set requires.

    Without bitstream_restriction_flag, a decoder may allocate as much as profile and level allow, or only the reference
    frames. Then only streams that are equal in all of these share a group.

    Raises:
        ValueError: it ends early.
    """
    sps = read_sps(bits)
    _, has_vui = _read_to_vui(bits, sps)
    restriction = _bitstream_restriction(bits) if has_vui else None
    references = sps.max_num_ref_frames
    if restriction is None:
        group = f"{sps.profile_idc}/{sps.constraint_flags}/{sps.level_idc}/{references}"
        return DpbRequirement(group, 0, references)
    reorder, kept = restriction
    return DpbRequirement("", max(kept, references), reorder)


def skip_to_vui(bits: BitReader) -> bool:
    """Skip a sequence parameter set up to its VUI (annex E). Returns whether it has one.

    Raises:
        ValueError: it ends early.
    """
    return _read_to_vui(bits, read_sps(bits))[1]


def _read_to_vui(bits: BitReader, sps: Sps) -> tuple[ShownArea, bool]:
    """The displayed area, and whether a VUI follows."""
    mixes_fields = not sps.frame_mbs_only and bool(bits.u(1))  # mb_adaptive_frame_field_flag
    bits.u(1)  # direct_8x8_inference_flag
    left = right = top = bottom = 0
    if bits.u(1):  # frame_cropping_flag
        left, right, top, bottom = (bits.ue() for _ in range(4))  # frame_crop_left_offset and so on
    across, down = sps.crop_unit
    size = sps.width - across * (left + right), sps.height - down * (top + bottom)
    area = ShownArea(across * left, down * top, *size, sps.samples, not sps.frame_mbs_only, mixes_fields)
    return area, bool(bits.u(1))  # vui_parameters_present_flag


def _bitstream_restriction(bits: BitReader) -> tuple[int, int] | None:
    """max_num_reorder_frames and max_dec_frame_buffering of the VUI (E.1.1); None if it does not have them."""
    read_colors(bits)
    if bits.u(1):  # timing_info_present_flag
        bits.u(65)  # num_units_in_tick, time_scale, fixed_frame_rate_flag
    with_hrd = False
    for _ in range(2):
        if bits.u(1):  # nal_hrd_parameters_present_flag, vcl_hrd_parameters_present_flag
            _skip_hrd(bits)
            with_hrd = True
    if with_hrd:
        bits.u(1)  # low_delay_hrd_flag
    bits.u(1)  # pic_struct_present_flag
    if not bits.u(1):  # bitstream_restriction_flag
        return None
    bits.u(1)  # motion_vectors_over_pic_boundaries_flag
    for _ in range(4):
        bits.ue()  # max_bytes_per_pic_denom, max_bits_per_mb_denom, log2_max_mv_length_horizontal and _vertical
    return bits.ue(), bits.ue()


def _skip_hrd(bits: BitReader) -> None:
    """hrd_parameters, E.1.2."""
    count = bits.ue() + 1  # cpb_cnt_minus1
    bits.u(8)  # bit_rate_scale, cpb_size_scale
    for _ in range(count):
        bits.ue()  # bit_rate_value_minus1
        bits.ue()  # cpb_size_value_minus1
        bits.u(1)  # cbr_flag
    bits.u(20)  # three lengths of delays, time_offset_length


class H264Order(OutputOrder):
    """Output order of H.264, for pic_order_cnt_type 0 and 2."""

    def __init__(self, sets: bytes) -> None:
        self._sps: set[Sps] = set()
        self._decoded = 0
        super().__init__(sets)

    def has_profile(self, profile_idc: int) -> bool:
        """Whether any sequence parameter set so far has a profile."""
        return any(sps.profile_idc == profile_idc for sps in self._sps)

    def is_lone_field(self, units: list[memoryview]) -> bool:
        """Whether a packet is a single field, top or bottom, as parsers of raw and transport streams cut them."""
        if len(self._sps) != 1 or next(iter(self._sps)).frame_mbs_only:
            return False
        parities = set()
        with suppress(ValueError):
            for unit in units:
                if unit[0] & 31 in WITH_SLICE_HEADER:
                    bits = BitReader.of_nal(bytes(unit[1:HEADER_BYTES]))
                    in_field = read_slice(bits, next(iter(self._sps))).in_field
                    parities.add(bits.u(1) if in_field else None)  # bottom_field_flag
        return len(parities) == 1 and None not in parities

    def _read_parameter_set(self, unit: bytes | memoryview) -> None:
        if unit[0] & 31 == SPS:
            self._sps.add(read_sps(BitReader.of_nal(bytes(unit[1:]))))

    def _picture_order_count(self, units: list[memoryview]) -> int | None:
        for unit in units:
            self._read_parameter_set(unit)
            kind = unit[0] & 31
            if kind in WITH_SLICE_HEADER:
                return self._of_slice(unit, is_reference=bool(unit[0] >> 5 & 3), is_idr=kind == IDR)
        return None

    def _of_slice(self, unit: memoryview, *, is_reference: bool, is_idr: bool) -> int | None:
        if len(self._sps) != 1:
            return None  # which set applies, by the picture parameter set, is not tracked
        (sps,) = self._sps
        if is_idr:
            self._start_period()
        self._decoded += 1
        if sps.pic_order_cnt_type == 2:
            return self._decoded  # output order is decode order
        if sps.pic_order_cnt_type != 0:
            return None
        bits = BitReader.of_nal(bytes(unit[1:HEADER_BYTES]))
        if read_slice(bits, sps).in_field:
            bits.u(1)  # bottom_field_flag
        if is_idr:
            bits.ue()  # idr_pic_id
        count = self._extend_lsb(bits.u(sps.poc_lsb_bits), sps.poc_lsb_bits)
        if is_reference:
            self._previous = count
        return count


class SliceBegin(NamedTuple):
    """A slice header up to field_pic_flag; `slice_type` from 0 to 4."""

    slice_type: int
    picture_set: int
    frame_num: int
    in_field: bool


def read_slice(bits: BitReader, sps: Sps) -> SliceBegin:
    """Read a slice header up to field_pic_flag."""
    bits.ue()  # first_mb_in_slice
    slice_type, picture_set = bits.ue() % 5, bits.ue()  # slice_type, pic_parameter_set_id
    bits.u(2 * sps.separate_colour_plane)  # colour_plane_id
    frame_num = bits.u(sps.frame_num_bits)
    return SliceBegin(slice_type, picture_set, frame_num, not sps.frame_mbs_only and bool(bits.u(1)))


def _picture_set(part: bytes) -> int:
    """pic_parameter_set_id of a slice."""
    bits = BitReader.of_nal(part[1:])
    bits.ue(), bits.ue()  # first_mb_in_slice, slice_type
    return bits.ue()


def is_by_early_x264(units: list[memoryview]) -> bool:
    """Whether a packet says that x264 made the stream, in a version whose direct prediction decoders correct."""
    return (x264_version(units) or _FIXED_DIRECT) < _FIXED_DIRECT


def lacks_picture(packet: memoryview, avcc: bytes) -> bool:
    """Whether a packet in the format of MP4 files is sound and has no slice, but parameter sets or messages alone.

    Args:
        avcc: the payload of the track's `avcC` box.
    """
    length_size = SYNTAX.length_size(avcc)
    units = split_packet(packet, length_size)
    return not (is_broken(packet, units, length_size) or any(unit[0] & 31 in _VCL for unit in units))


def classifier(stsd: bytes) -> Classifier:
    """The classifier of a track's packets.

    Raises:
        ValueError: the sample description has no `avcC` box.
    """
    known, stated, length_size = known_sets(SYNTAX, stsd, parameter_sets, set_number)
    order = H264Order(stated)
    is_faulty = False
    first: bytes | None = None

    def classify(packet: memoryview) -> PacketKind:
        nonlocal is_faulty, first
        units = split_packet(packet, length_size)
        version = x264_version(units)
        if version is not None:
            is_faulty = version < (_FIXED_444 if order.has_profile(HIGH_444) else _FIXED_DIRECT)
        # The first byte, 7.3.1: nal_ref_idc in bits 5 and 6, nal_unit_type in bits 0 to 4.
        parts = [unit for unit in units if unit[0] & 31 in _VCL]
        broken = is_broken(packet, units, length_size)
        knows_all, tells = known.take(units)
        if not parts:
            return PacketKind(order=None, broken=broken)
        sps = known.sequence_set(parts[0], _picture_set)
        first = first or sps
        area = sps and stated_area(sps, 1, shown_area)
        samples = area.samples if area else None
        is_told = sps != first or any(unit[0] & 31 == SPS for unit in units)
        return PacketKind(
            random_access=parts[0][0] & 31 == IDR and knows_all and not (is_faulty and version is None),
            disposable=all((part[0] >> 5) & 3 == 0 for part in parts) and not tells,
            order=order.next_rank(units),
            broken=broken,
            lone_field=order.is_lone_field(units),
            colors=stated_colors(sps, 1, skip_to_vui) if sps and is_told else None,
            size=(area.width, area.height) if area else None,
            samples=samples,
            adds_grain=adds_grain([bytes(unit[1:]) for unit in units if unit[0] & 31 == SEI], samples),
        )

    return classify
