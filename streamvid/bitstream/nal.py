"""Common parts of H.264 and HEVC: NAL units, parameter sets, and output order by picture order count.

MP4 files have parameter sets in the sample description (ISO/IEC 14496-15); NVDEC needs them in band.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.packet_kind import Samples, StatedColors
from streamvid.bitstream.packets import START_CODE, nal_units
from streamvid.mp4.sample_entry import codec_configuration

_LEAST_UNIT: Final = 4
"""FFmpeg ignores fewer bytes than this after the last unit of a packet (h2645_parse.c)."""
_PERIOD_BITS: Final = 40
"""Bits of `PacketKind.order` that hold the picture order count; above them are numbered coded video sequences."""
_MIDDLE: Final = 1 << (_PERIOD_BITS - 1)
_EXTENDED_SAR: Final = 255
HEADER_BYTES: Final = 48
"""Bytes of a NAL unit that are enough for a slice header up to its picture order count, and for the fields of a PPS."""


@dataclass(frozen=True)
class NalSyntax:
    """A codec's NAL unit header, and its unit types by purpose (table 7-1 of both standards).

    Attributes:
        header_bytes: size of the header.
        type_shift, type_mask: position of nal_unit_type in the first byte.
        vcl: types of all parts of coded pictures.
        idr: types of slices of IDR pictures.
        sps: type of sequence parameter sets.
        parameter_sets: types of all parameter sets.
        configuration: name of the box with the decoder configuration, of H.264 and HEVC.
        length_at: position of lengthSizeMinusOne in that box (ISO/IEC 14496-15, 5.3.3.1 and 8.3.3.1).
    """

    header_bytes: int
    type_shift: int
    type_mask: int
    vcl: range
    idr: tuple[int, ...]
    sps: int
    parameter_sets: tuple[int, ...]
    configuration: bytes = b""
    length_at: int = 0

    def length_size(self, box: bytes) -> int:
        """Bytes of the length before each NAL unit, by the decoder configuration."""
        return (box[self.length_at] & 3) + 1

    def unit_type(self, first: int) -> int:
        """nal_unit_type, from the first byte of a unit."""
        return first >> self.type_shift & self.type_mask

    def leading_units(self, packet: memoryview, length_size: int) -> list[tuple[int, memoryview]]:
        """Types and bytes of a packet's NAL units up to its first slice.

        Args:
            packet: the packet in the format of MP4 files.
            length_size: bytes of the length before each unit.

        Raises:
            ValueError: one of these units does not end within the packet.
        """
        found: list[tuple[int, memoryview]] = []
        at = 0
        while at + length_size < len(packet):
            start = at + length_size
            at = start + int.from_bytes(packet[at:start], "big")
            if at == start or at > len(packet):
                raise ValueError("a NAL unit does not end within its packet")
            kind = packet[start] >> self.type_shift & self.type_mask
            found.append((kind, packet[start:at]))
            if kind in self.vcl:
                break
        return found

    def is_idr(self, units: Sequence[tuple[int, memoryview]]) -> bool:
        """Whether a packet with these `leading_units` has an IDR picture, so that no packet from it on refers to
        earlier packets."""
        # The type of the first slice decides; delimiters, parameter sets and SEI may come before it.
        return bool(units) and units[-1][0] in self.idr

    def in_band_parameter_sets(self, units: Sequence[tuple[int, memoryview]]) -> bytes:
        """The parameter sets among `leading_units` in Annex B; may be empty."""
        return b"".join([START_CODE + unit for kind, unit in units if kind in self.parameter_sets])

    def sequence_parameter_sets(self, sets: bytes) -> list[bytes]:
        """The sequence parameter sets among parameter sets in Annex B, without start codes."""
        return [unit for unit in nal_units(sets) if self.unit_type(unit[0]) == self.sps]


@dataclass(frozen=True)
class ParameterSets:
    """The decoder configuration of a sample description: the `avcC` or `hvcC` box.

    Attributes:
        annex_b: the parameter sets in the order of the box, each with a start code.
        length_size: bytes of the length before each NAL unit in the MP4: 1, 2 or 4.
        bit_depth: bits per luma sample.
    """

    annex_b: bytes
    length_size: int
    bit_depth: int


@dataclass(frozen=True)
class ShownArea:
    """The displayed area of decoded pictures, from a sequence parameter set.

    Attributes:
        left, top: upper left corner of the area, in luma samples.
        width, height: size of the area, in luma samples.
        samples: chroma and depth of the pictures.
        fields: whether pictures may be coded as fields.
        mixes_fields: whether macroblocks of frames may be coded as fields, too (MBAFF).
    """

    left: int
    top: int
    width: int
    height: int
    samples: Samples
    fields: bool = False
    mixes_fields: bool = False


@dataclass(frozen=True)
class DpbRequirement:
    """The decoded picture buffer (DPB) that a stream's parameter sets require.

    A hardware decoder is opened for a number of frames. If a later stream needs more, its pixels are wrong without an
    error, so this must be known before streams share a decode session.

    Attributes:
        group: streams of one codec and size may share a session if their groups are equal, and it was opened for at
            least as many frames.
        frames: number of frames that the stream needs, comparable within its group.
        reorder: most pictures that may be decoded before a picture and displayed after it.
    """

    group: str
    frames: int
    reorder: int


def read_units(box: bytes, at: int, count: int) -> tuple[bytes, int]:
    """Convert parameter sets of an `avcC` or `hvcC` box, each preceded by a 16-bit length, to Annex B.

    Args:
        box: the box's payload.
        at: position of the first length in it.
        count: number of units.

    Returns:
        the units with start codes, and the position after them in the box.

    Raises:
        IndexError: the box is cut off.
    """
    units: list[bytes] = []
    for _ in range(count):
        size = box[at] << 8 | box[at + 1]
        if at + 2 + size > len(box):
            raise IndexError
        units += (START_CODE, box[at + 2 : at + 2 + size])
        at += 2 + size
    return b"".join(units), at


def split_packet(packet: memoryview, length_size: int) -> list[memoryview]:
    """The NAL units of a packet in the format of MP4 files, without their lengths; units that do not fit are left
    out."""
    units = []
    position, end = 0, len(packet)
    while position + length_size < end:
        length = int.from_bytes(packet[position : position + length_size], "big")
        position += length_size
        if length and position + length <= end:
            units.append(packet[position : position + length])
        position += length
    return units


def is_broken(packet: memoryview, units: list[memoryview], length_size: int) -> bool:
    """Whether a packet has bytes outside of its NAL units, because a unit is empty or does not fit: FFmpeg and NVDEC
    then refuse the whole packet. Arguments as in `split_packet`."""
    return len(packet) - sum(map(len, units)) - length_size * len(units) >= _LEAST_UNIT


class KnownSets:
    """The parameter sets that a decoder has, and whether a decoder that starts at a packet would have the same.

    A set in band is valid until another of its type and number comes. So a later random access packet that does not
    repeat it is no start: a decoder would use the set of the sample description, and output other pictures.

    Args:
        syntax: the codec's syntax.
        sets: the parameter sets of the sample description.
        number: the number (id) of a parameter set, a NAL unit; raises ValueError if it ends early.
    """

    def __init__(self, syntax: NalSyntax, sets: Sequence[bytes], number: Callable[[bytes], int]) -> None:
        self._syntax, self._number = syntax, number
        self._stated = dict(self._named(unit) for unit in sets if unit.rstrip(b"\0"))
        self.changed: dict[tuple[int, int | bytes], bytes] = {}
        """By type and number, the sets in band so far that differ from the sample description's."""

    def take(self, units: Sequence[memoryview | bytes]) -> tuple[bool, bool]:
        """Process the next packet in decode order.

        Args:
            units: its NAL units, without their lengths.

        Returns:
            whether a decoder that starts here has the same sets; whether the packet has sets that others may need.
        """
        own, same = dict[tuple[int, int | bytes], bytes](), None
        for unit in units:
            kind = self._syntax.unit_type(unit[0])
            if kind in self._syntax.parameter_sets:
                own.update([self._named(bytes(unit))])
            elif kind in self._syntax.vcl and same is None:  # sets behind a slice are for the next picture
                same = self.changed.keys() <= own.keys()
        if same is None:
            same = self.changed.keys() <= own.keys()
        if not own:
            return same, False
        before = {**self._stated, **self.changed}
        for name, unit in own.items():
            self.changed.pop(name, None)
            if self._stated.get(name) != unit:
                self.changed[name] = unit
        return same, any(before.get(name) != unit for name, unit in own.items())

    def sequence_set(self, part: memoryview, picture_set: Callable[[bytes], int]) -> bytes | None:
        """The sequence parameter set of a picture; None if it is unknown.

        Args:
            part: one of its slices, a NAL unit that `take` has seen.
            picture_set: reads the number of the picture parameter set in a slice; raises ValueError if that ends early.
        """
        sets = {**self._stated, **self.changed}
        found = {number: unit for (kind, number), unit in sets.items() if kind == self._syntax.sps}
        if len(found) == 1:  # as in most streams: slices need not be read
            return next(iter(found.values()))
        with suppress(ValueError, KeyError):
            unit = sets[self._syntax.parameter_sets[-1], picture_set(bytes(part[:HEADER_BYTES]))]
            bits = BitReader.of_nal(unit[self._syntax.header_bytes :])
            bits.ue()  # pic_parameter_set_id, pps_pic_parameter_set_id
            return found[bits.ue()]  # seq_parameter_set_id, pps_seq_parameter_set_id
        return None

    def _named(self, unit: bytes) -> tuple[tuple[int, int | bytes], bytes]:
        unit, kind = unit.rstrip(b"\0"), self._syntax.unit_type(unit[0])
        with suppress(ValueError):
            return (kind, self._number(unit)), unit
        return (kind, unit), unit


def known_sets(
    syntax: NalSyntax, stsd: bytes, parameter_sets: Callable[[bytes], ParameterSets], number: Callable[[bytes], int]
) -> tuple[KnownSets, bytes, int]:
    """The parameter sets that a decoder of a track has before its first packet, also in Annex B, and the number of
    bytes of the length before each NAL unit.

    Args:
        parameter_sets, number: the codec's functions `parameter_sets` and `set_number`.

    Raises:
        ValueError: the sample description has no box with the decoder configuration.
    """
    stated, length_size = b"", syntax.length_size(codec_configuration(stsd, syntax.configuration))
    with suppress(ValueError):  # parameter sets may be in band alone
        stated = parameter_sets(stsd).annex_b
    return KnownSets(syntax, nal_units(stated), number), stated, length_size


class OutputOrder(ABC):
    """The order in which a decoder outputs the pictures of one track, by their picture order counts.

    An NVDEC session, which gets many packets at a time, identifies pictures only by their output order. That must be
    the order of the container's presentation times, which a container may contradict. Picture order counts are decoded
    as in 8.2.1 of ITU-T H.264 and 8.3.1 of ITU-T H.265.

    Args:
        sets: the parameter sets of the sample description, in Annex B.
    """

    def __init__(self, sets: bytes) -> None:
        # prevPicOrderCntMsb and prevPicOrderCntLsb of the last reference picture, which later counts extend.
        self._previous = 0
        self._periods = 0
        with suppress(ValueError):
            for unit in nal_units(sets):
                self._read_parameter_set(unit)

    def next_rank(self, units: list[memoryview]) -> int | None:
        """`PacketKind.order` of the next packet in decode order.

        Args:
            units: the packet's NAL units, without their lengths.

        Returns:
            None if it is unknown, or the picture is not output.
        """
        try:
            count = self._picture_order_count(units)
        except ValueError:
            return None
        return None if count is None else (self._periods << _PERIOD_BITS) + _MIDDLE + count

    @abstractmethod
    def _read_parameter_set(self, unit: bytes | memoryview) -> None:
        """Process a NAL unit if it is a parameter set. Raises ValueError if it ends early."""

    @abstractmethod
    def _picture_order_count(self, units: list[memoryview]) -> int | None:
        """The picture order count of a packet; None if it is unknown, or the picture is not output."""

    def _start_period(self) -> None:
        """Restart the counts at 0; every later picture is output after all earlier ones."""
        self._periods += 1
        self._previous = 0

    def _extend_lsb(self, low: int, bits: int) -> int:
        """The picture order count with these lowest bits that is nearest to the previous one (equations 8-3 of ITU-T
        H.264 and 8-1 of ITU-T H.265)."""
        size = 1 << bits
        high = self._previous - self._previous % size
        if low < self._previous % size and self._previous % size - low >= size // 2:
            high += size
        elif low > self._previous % size and low - self._previous % size > size // 2:
            high -= size
        return high + low


@lru_cache(maxsize=256)
def stated_colors(unit: bytes, header_bytes: int, skip_to_vui: Callable[[BitReader], bool]) -> StatedColors:
    """The colour description of a sequence parameter set, a NAL unit; all unspecified if it cannot be read.

    Args:
        header_bytes: size of the unit's header.
        skip_to_vui: the codec's function of this name.
    """
    with suppress(ValueError):
        bits = BitReader.of_nal(unit[header_bytes:])
        if skip_to_vui(bits):
            return read_colors(bits)
    return StatedColors()


@lru_cache(maxsize=256)
def stated_area(unit: bytes, header_bytes: int, shown_area: Callable[[BitReader], ShownArea]) -> ShownArea | None:
    """The displayed area of the pictures of a sequence parameter set; arguments as `stated_colors`. None if it cannot
    be read."""
    with suppress(ValueError):
        return shown_area(BitReader.of_nal(unit[header_bytes:]))
    return None


def read_colors(bits: BitReader) -> StatedColors:
    """Read a VUI up to its chroma location: E.1.1 of H.264 and E.2.1 of H.265 alike."""
    primaries, matrix, full_range, location = StatedColors()
    if bits.u(1) and bits.u(8) == _EXTENDED_SAR:  # aspect_ratio_info_present_flag, aspect_ratio_idc
        bits.u(32)  # sar_width, sar_height
    if bits.u(1):  # overscan_info_present_flag
        bits.u(1)  # overscan_appropriate_flag
    if bits.u(1):  # video_signal_type_present_flag
        bits.u(3)  # video_format
        full_range = bool(bits.u(1))  # video_full_range_flag
        if bits.u(1):  # colour_description_present_flag
            primaries, _, matrix = bits.u(8), bits.u(8), bits.u(8)  # transfer_characteristics between them
    if bits.u(1):  # chroma_loc_info_present_flag
        location = bits.ue()
        bits.ue()  # chroma_sample_loc_type_bottom_field
    return StatedColors(primaries, matrix, full_range, location)
