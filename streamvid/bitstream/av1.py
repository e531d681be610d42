"""AV1's headers: which temporal units decoding may start at, and which it can go without.

All that a frame can leave behind for later ones (pictures, probabilities, motion vectors, loop filter and segmentation
parameters, film grain) is kept in the eight reference slots: AV1 bitstream specification 7.20, "reference frame update
process". So a temporal unit whose frames refresh none of them is one that nothing depends on. Numbers of sections are
those of that specification.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from streamvid.bitstream.bits import Bits

_SEQUENCE_HEADER, _FRAME_HEADER, _TILE_GROUP, _FRAME = 1, 3, 4, 6
_KEY, _INTRA_ONLY, _SWITCH = 0, 2, 3
_ALL_SLOTS: Final = 255
_FRAME_BYTES: Final = 16
_SEQUENCE_BYTES: Final = 1024
"""What is looked at is over after so many."""
_SELECT: Final = 2
"""The frame header says it: SELECT_SCREEN_CONTENT_TOOLS, SELECT_INTEGER_MV."""


@dataclass(frozen=True)
class _Sequence:
    """What of the sequence header tells where refresh_frame_flags stand in a frame header."""

    screen_content_tools: int
    integer_mv: int
    order_hint_bits: int


class TemporalUnits:
    """Looks at the temporal units of a track, which must come in decode order.

    Args:
        configuration: the payload of the track's `av1C` box, or nothing.
    """

    def __init__(self, configuration: bytes) -> None:
        self._sequence: _Sequence | None = None
        # The frame type in each reference slot; None if it is not known.
        self._types: list[int | None] = [None] * 8
        for kind, payload in _units(memoryview(configuration)[4:]):
            if kind == _SEQUENCE_HEADER:
                self._sequence = _sequence(payload)

    def look(self, unit: memoryview) -> tuple[bool, bool]:
        """Whether decoding may start at a temporal unit, and whether nothing depends on it.

        It may start where the first frame is a key frame that is shown. A key frame that is not shown at once does not
        count: what is decoded before it becomes visible may refer back.
        """
        starts: bool | None = None
        harmless = True
        for kind, payload in _units(unit):
            if kind == _SEQUENCE_HEADER:
                self._sequence = _sequence(payload)
                harmless = False
            elif kind in (_FRAME_HEADER, _FRAME, _TILE_GROUP) and starts is None:
                first = payload[0] if len(payload) and kind != _TILE_GROUP else 0xFF
                starts = first >> 4 == 0b0001  # not show_existing_frame, KEY_FRAME, show_frame
            if kind in (_FRAME_HEADER, _FRAME):
                refreshed = self._refresh(Bits(payload[:_FRAME_BYTES]))
                harmless = harmless and not refreshed
        return starts is True, starts is False and harmless

    def _refresh(self, bits: Bits) -> int:
        """The slots that a frame refreshes, one bit each, all if that is not known (5.9.2, uncompressed_header)."""
        refreshed, frame_type = _ALL_SLOTS, None
        with suppress(ValueError):
            if self._sequence is None:
                pass
            elif bits.u(1):  # show_existing_frame
                frame_type = self._types[bits.u(3)]
                # A key frame that is shown late takes all slots (7.21, reference frame loading process).
                refreshed = _ALL_SLOTS if frame_type in (_KEY, None) else 0
            else:
                frame_type, refreshed = _refresh_frame_flags(bits, self._sequence)
        for slot in range(8):
            if refreshed >> slot & 1:
                self._types[slot] = frame_type
        return refreshed


def _refresh_frame_flags(bits: Bits, sequence: _Sequence) -> tuple[int, int]:
    """The frame's type and refresh_frame_flags; 5.9.2 from behind show_existing_frame."""
    frame_type, shown = bits.u(2), bits.u(1)
    if not shown:
        bits.u(1)  # showable_frame
    resets = frame_type == _SWITCH or (frame_type == _KEY and shown)
    error_resilient = resets or bits.u(1)
    bits.u(1)  # disable_cdf_update
    tools = bits.u(1) if sequence.screen_content_tools == _SELECT else sequence.screen_content_tools
    if tools and sequence.integer_mv == _SELECT:
        bits.u(1)  # force_integer_mv
    if frame_type != _SWITCH:
        bits.u(1)  # frame_size_override_flag
    bits.u(sequence.order_hint_bits)
    if frame_type not in (_KEY, _INTRA_ONLY) and not error_resilient:
        bits.u(3)  # primary_ref_frame
    return frame_type, _ALL_SLOTS if resets else bits.u(8)


def _sequence(payload: memoryview) -> _Sequence | None:
    """A sequence header; None if it ends early, or says what is not followed here."""
    try:
        return _sequence_header(Bits(payload[:_SEQUENCE_BYTES]))
    except ValueError:
        return None


def _sequence_header(bits: Bits) -> _Sequence | None:
    """5.5, sequence_header_obu. None for what is not followed here: still pictures, decoder models, frame ids."""
    bits.u(3 + 1)  # seq_profile, still_picture
    if bits.u(1):  # reduced_still_picture_header
        return None
    if bits.u(1):  # timing_info_present_flag
        bits.u(32 + 32)  # num_units_in_display_tick, time_scale
        if bits.u(1):  # equal_picture_interval
            _uvlc(bits)  # num_ticks_per_picture_minus_1
        if bits.u(1):  # decoder_model_info_present_flag
            return None
    delays = bits.u(1)  # initial_display_delay_present_flag
    for _ in range(bits.u(5) + 1):  # operating_points_cnt_minus_1
        bits.u(12)  # operating_point_idc
        if bits.u(5) > 7:  # seq_level_idx
            bits.u(1)  # seq_tier
        if delays and bits.u(1):  # initial_display_delay_present_for_this_op
            bits.u(4)
    width_bits, height_bits = bits.u(4) + 1, bits.u(4) + 1
    bits.u(width_bits + height_bits)
    if bits.u(1):  # frame_id_numbers_present_flag
        return None
    # use_128x128_superblock, enable_filter_intra, enable_intra_edge_filter; then enable_interintra_compound,
    # enable_masked_compound, enable_warped_motion, enable_dual_filter
    bits.u(3 + 4)
    ordered = bits.u(1)  # enable_order_hint
    if ordered:
        bits.u(2)  # enable_jnt_comp, enable_ref_frame_mvs
    tools = _SELECT if bits.u(1) else bits.u(1)
    integer_mv = _SELECT
    if tools:
        integer_mv = _SELECT if bits.u(1) else bits.u(1)
    order_hint_bits = bits.u(3) + 1 if ordered else 0
    return _Sequence(tools, integer_mv, order_hint_bits)


def _uvlc(bits: Bits) -> int:
    """4.10.3."""
    zeros = 0
    while zeros < 32 and not bits.u(1):
        zeros += 1
    return bits.u(zeros) + (1 << zeros) - 1 if zeros < 32 else (1 << 32) - 1


def _units(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The open bitstream units: type and payload (5.3). A size that does not fit is cut."""
    position, end = 0, len(data)
    while position < end:
        header = data[position]
        kind, has_extension, has_size = header >> 3 & 15, header >> 2 & 1, header >> 1 & 1
        position += 1 + has_extension
        size, shift = 0, 0
        if has_size:  # 4.10.5, leb128
            while position < end and shift <= 49:
                byte = data[position]
                size |= (byte & 127) << shift
                position, shift = position + 1, shift + 7
                if byte < 128:
                    break
        else:
            size = max(end - position, 0)
        yield kind, data[position : position + size]
        position += size
