"""HEVC (ITU-T H.265): `hvcC`, output order and classification of packets.

Comments name the syntax elements that are read or skipped: 7.3.2.3.1 (picture parameter set) and 7.3.6.1 (slice segment
header) of ITU-T H.265.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.hevc_sps import (
    Sps,
    dpb_requirement,
    read_sps,
    shown_area,
    skip_profile_tier_level,
    skip_to_vui,
)
from streamvid.bitstream.nal import (
    HEADER_BYTES,
    NalSyntax,
    OutputOrder,
    ParameterSets,
    is_broken,
    known_sets,
    read_units,
    split_packet,
    stated_area,
    stated_colors,
)
from streamvid.bitstream.packet_kind import Classifier, PacketKind
from streamvid.bitstream.packets import START_CODE, nal_units
from streamvid.bitstream.sei import PREFIX_SEI, adds_grain
from streamvid.mp4.sample_entry import codec_configuration

_VCL: Final = range(32)
_IRAP: Final = range(16, 24)
"""Intra random access point pictures: BLA_W_LP to CRA_NUT, and two types that are reserved for more of them."""
RANDOM_ACCESS: Final = range(16, 22)
"""The same without the reserved types."""
_IDR: Final = (19, 20)
_CRA: Final = 21
_RASL: Final = (8, 9)
_SUB_LAYER_NON_REFERENCE: Final = frozenset(range(0, 16, 2))
_NOT_PREVIOUS: Final = _SUB_LAYER_NON_REFERENCE.union(range(6, 10))
"""Types of pictures that are never prevTid0Pic (8.3.1): sub-layer non-reference, RADL and RASL pictures."""
_VPS: Final = 32
_SPS: Final = 33
_PPS: Final = 34
_ENDS: Final = (36, 37)  # of a coded video sequence: end of sequence, end of bitstream
_PARAMETER_SETS: Final = (_VPS, _SPS, _PPS)
SYNTAX: Final = NalSyntax(2, 1, 63, _VCL, _IDR, _SPS, _PARAMETER_SETS, b"hvcC", 21)

_HVCC_HEADER_BYTES: Final = 23


def parameter_sets(stsd: bytes) -> ParameterSets:
    """Read a track's `hvcC` box: HEVCDecoderConfigurationRecord, ISO/IEC 14496-15, 8.3.3.1.

    Raises:
        ValueError: there is no such box, or it is cut off.
    """
    box = codec_configuration(stsd, SYNTAX.configuration)
    sets = b"".join(units for _, units, _ in _arrays(box))
    return ParameterSets(sets, SYNTAX.length_size(box), 8 + (box[17] & 7))  # bitDepthLumaMinus8


def has_vps(sets: bytes) -> bool:
    """Whether parameter sets in Annex B have a video parameter set, to which the others refer."""
    return any(SYNTAX.unit_type(unit[0]) == _VPS for unit in nal_units(sets))


def pictures(packet: bytes) -> bytes:
    """The slices and parameter sets of a packet in Annex B, which are all that a decoder needs for its picture."""
    return b"".join(
        START_CODE + unit for unit in nal_units(packet) if SYNTAX.unit_type(unit[0]) in (*_VCL, *_PARAMETER_SETS)
    )


def with_complete_arrays(hvcc: bytes) -> bytes:
    """An `hvcC` payload with array_completeness set: no parameter sets are in band, as `hvc1` requires (8.3.3.1.2 and
    8.4.1 of ISO/IEC 14496-15).

    Raises:
        ValueError: the payload is not as long as its arrays.
    """
    arrays = list(_arrays(hvcc))
    if (arrays[-1][2] if arrays else _HVCC_HEADER_BYTES) != len(hvcc):
        raise ValueError("the hvcC box is not as long as its arrays")
    data = bytearray(hvcc)
    for at, _, _ in arrays:
        if data[at] & 63 in _PARAMETER_SETS:
            data[at] |= 0x80
    return bytes(data)


def _arrays(hvcc: bytes) -> Iterator[tuple[int, bytes, int]]:
    """The arrays of NAL units in an `hvcC` payload: start, units in Annex B, and end of each.

    Raises:
        ValueError: the box is cut off.
    """
    end = _HVCC_HEADER_BYTES
    try:
        for _ in range(hvcc[22]):  # numOfArrays
            at = end
            units, end = read_units(hvcc, at + 3, hvcc[at + 1] << 8 | hvcc[at + 2])  # numNalus
            yield at, units, end
    except IndexError as error:
        raise ValueError("the hvcC box is cut off") from error


def set_number(unit: bytes) -> int:
    """vps_video_parameter_set_id, sps_seq_parameter_set_id or pps_pic_parameter_set_id, of the base layer."""
    if not is_base_layer(unit):
        raise ValueError("a parameter set of another layer")
    kind, bits = unit[0] >> 1 & 63, BitReader.of_nal(unit[2:])
    if kind == _PPS:
        return bits.ue()
    if kind == _SPS:
        skip_profile_tier_level(bits)
        return bits.ue()
    return bits.u(4)


class HevcOrder(OutputOrder):
    """Output order of HEVC, for the base layer (nuh_layer_id 0)."""

    def __init__(self, sets: bytes) -> None:
        self._sps: set[Sps] = set()
        # By pps_pic_parameter_set_id: output_flag_present_flag and num_extra_slice_header_bits.
        self._pps: dict[int, tuple[int, int]] = {}
        self._starts_sequence = True
        super().__init__(sets)

    def _read_parameter_set(self, unit: bytes | memoryview) -> None:
        kind = unit[0] >> 1 & 63
        if kind == _SPS:
            self._sps.add(read_sps(BitReader.of_nal(bytes(unit[2:]))))
        elif kind == _PPS:
            bits = BitReader.of_nal(bytes(unit[2:HEADER_BYTES]))
            number = bits.ue()
            bits.ue()  # pps_seq_parameter_set_id
            bits.u(1)  # dependent_slice_segments_enabled_flag
            self._pps[number] = bits.u(1), bits.u(3)

    def _picture_order_count(self, units: list[memoryview]) -> int | None:
        count = None
        for unit in units:
            if not is_base_layer(unit):
                continue
            self._read_parameter_set(unit)
            kind = unit[0] >> 1 & 63
            if kind in _ENDS:
                self._starts_sequence = True
            elif kind in _VCL and len(unit) > 2 and unit[2] >> 7:  # first_slice_segment_in_pic_flag
                count = self._of_slice(unit, kind, is_lowest_layer=unit[1] & 7 == 1)
        return count

    def _of_slice(self, unit: memoryview, kind: int, *, is_lowest_layer: bool) -> int | None:
        if len(self._sps) != 1:
            return None  # which set applies, by pps_seq_parameter_set_id, is not tracked
        (sps,) = self._sps
        bits = BitReader.of_nal(bytes(unit[2:HEADER_BYTES]))
        bits.u(1)  # first_slice_segment_in_pic_flag
        is_irap = kind in _IRAP
        if is_irap:
            bits.u(1)  # no_output_of_prior_pics_flag
        output_flag_present, reserved = self._pps.get(bits.ue(), (0, -1))  # slice_pic_parameter_set_id
        if reserved < 0:
            raise ValueError("a slice refers to no picture parameter set")
        bits.u(reserved)  # slice_reserved_flag
        bits.ue()  # slice_type
        is_output = bits.u(1) if output_flag_present else 1  # pic_output_flag
        bits.u(2 * sps.separate_colour_plane)  # colour_plane_id
        # NoRaslOutputFlag (8.1.3): IDR and BLA pictures, and a CRA picture that is the first of a sequence.
        if is_irap and (kind != _CRA or self._starts_sequence):
            self._start_period()
            self._starts_sequence = False
            count = 0 if kind in _IDR else bits.u(sps.poc_lsb_bits)
        else:
            count = self._extend_lsb(bits.u(sps.poc_lsb_bits), sps.poc_lsb_bits)
        if is_lowest_layer and kind not in _NOT_PREVIOUS:
            self._previous = count
        return count if is_output else None


def _picture_set(part: bytes) -> int:
    """slice_pic_parameter_set_id of a slice segment."""
    bits = BitReader.of_nal(part[2:])
    bits.u(1 + (part[0] >> 1 & 63 in _IRAP))  # first_slice_segment_in_pic_flag, no_output_of_prior_pics_flag
    return bits.ue()


def _is_base_set(unit: bytes | memoryview) -> bool:
    """Whether a NAL unit is a sequence parameter set of the base layer (nuh_layer_id 0)."""
    return len(unit) > 2 and SYNTAX.unit_type(unit[0]) == _SPS and is_base_layer(unit)


def is_base_layer(unit: bytes | memoryview) -> bool:
    """Whether a NAL unit has nuh_layer_id 0. Its header, 7.3.1.2: a zero bit, nal_unit_type (6 bits), nuh_layer_id (6),
    nuh_temporal_id_plus1 (3)."""
    return len(unit) > 1 and not ((unit[0] & 1) << 5 | unit[1] >> 3)


def classifier(stsd: bytes) -> Classifier:
    """The classifier of a track's packets.

    Raises:
        ValueError: the sample description has no `hvcC` box.
    """
    known, stated, length_size = known_sets(SYNTAX, stsd, parameter_sets, set_number)
    order = HevcOrder(stated)
    skips_leading = ended = begun = False
    reorders = True  # unless all sets say that they do not; parameter sets may be only in band
    stated_sets = tuple(filter(_is_base_set, SYNTAX.sequence_parameter_sets(stated)))
    first: bytes | None = None
    with suppress(ValueError):
        reorders = not stated_sets or any(dpb_requirement(BitReader.of_nal(unit[2:])).reorder for unit in stated_sets)

    def classify(packet: memoryview) -> PacketKind:
        nonlocal skips_leading, ended, begun, first
        units = split_packet(packet, length_size)
        knows_all, tells = known.take(units)
        found = None
        for unit in units:
            if len(unit) < 2:
                break
            kind = (unit[0] >> 1) & 63
            ended = ended or kind in _ENDS
            if found is not None or kind not in _VCL or not is_base_layer(unit):
                continue
            sps = known.sequence_set(unit, _picture_set)
            first = first or sps
            area = sps and stated_area(sps, 2, shown_area)
            samples = area.samples if area else None
            is_told = sps != first or any(map(_is_base_set, units))
            drops_prior = False
            if kind in _IRAP:
                # NoOutputOfPriorPicsFlag (C.5.2.2): 1 for a CRA picture, otherwise the second bit of the slice.
                flagged = len(unit) > 2 and bool(unit[2] & 0x40)
                drops_prior, begun = begun and reorders and (ended if kind == _CRA else flagged), True
                # NoRaslOutputFlag (8.1.3) of a picture in the middle: its RASL pictures are not output.
                skips_leading, ended = kind != _CRA or ended, False
            found = PacketKind(
                random_access=kind in RANDOM_ACCESS and knows_all,
                disposable=kind in _SUB_LAYER_NON_REFERENCE and not tells,
                skipped_leading=kind in _RASL,
                tells_sets=tells,
                temporal_id=max((unit[1] & 7) - 1, 0),
                hidden=kind in _RASL and skips_leading,
                order=order.next_rank(units),
                broken=is_broken(packet, units, length_size),
                drops_prior=drops_prior,
                colors=stated_colors(sps, 2, skip_to_vui) if sps and is_told else None,
                size=(area.width, area.height) if area else None,
                samples=samples,
                adds_grain=adds_grain([bytes(unit[2:]) for unit in units if unit[0] >> 1 == PREFIX_SEI], samples),
            )
        return found or PacketKind(order=None, broken=is_broken(packet, units, length_size))

    return classify
