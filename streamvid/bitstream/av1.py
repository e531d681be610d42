"""AV1: classification of temporal units.

All state that a frame can leave for later frames (pictures, probabilities, motion vectors, loop filter and segmentation
parameters, film grain) is in the eight reference slots: AV1 bitstream specification 7.20, "reference frame update
process". So a temporal unit whose frames refresh no slot is disposable. Sections are those of that specification.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.packet_kind import Classifier, PacketKind, Samples, StatedColors
from streamvid.mp4.sample_entry import codec_configuration

_SEQUENCE_HEADER, _FRAME_HEADER, _TILE_GROUP, _FRAME = 1, 3, 4, 6
_KEY, _INTRA_ONLY, _SWITCH = 0, 2, 3
_ALL_SLOTS: Final = 255
_FRAME_BYTES: Final = 32
"""Bytes of a frame header that are enough up to frame_size."""
_SEQUENCE_BYTES: Final = 1024
"""Bytes of a sequence header that are enough up to order_hint_bits_minus_1."""
_SELECT: Final = 2
"""SELECT_SCREEN_CONTENT_TOOLS and SELECT_INTEGER_MV: the flag is in each frame header."""


@dataclass(frozen=True)
class _Sequence:
    """The colour description and pixel format of a sequence header, and the fields on which the positions of
    refresh_frame_flags and frame_size in a frame header depend.

    Attributes:
        operating_point: operating_point_idc of the first operating point, the one that is decoded: its layers, as of
            `_obus`; 0 if there are no layers.
        screen_content_tools: seq_force_screen_content_tools.
        integer_mv: seq_force_integer_mv.
        order_hint_bits: OrderHintBits.
        size: the largest width and height of its pictures, which they have if their headers say no other.
        size_bits: bits of a width and of a height in a frame header.
    """

    operating_point: int
    screen_content_tools: int
    integer_mv: int
    order_hint_bits: int
    colors: StatedColors | None
    samples: Samples | None
    size: tuple[int, int]
    size_bits: tuple[int, int]


@dataclass(frozen=True)
class _Picture:
    """A decoded picture: its frame_type, and its width and height (upscaled, 7.16); None if unknown."""

    frame_type: int | None = None
    size: tuple[int, int] | None = None


def classifier(stsd: bytes) -> Classifier:
    """The classifier of a track's temporal units.

    Args:
        stsd: the sample description box; `av1C` may be missing, because sequence headers are in the stream, too.
    """
    try:
        configuration = codec_configuration(stsd, b"av1C")
    except ValueError:
        configuration = b""
    return _TemporalUnits(configuration).classify


class _TemporalUnits:
    """Classifies the temporal units of a track, which must come in decode order.

    Args:
        configuration: the payload of the track's `av1C` box, or b"".
    """

    def __init__(self, configuration: bytes) -> None:
        self._sequence: _Sequence | None = None
        self._is_still = False  # reduced_still_picture_header: frame headers begin behind show_frame, which is set
        self._slots = [_Picture()] * 8  # the reference slots
        for kind, _, payload in _obus(memoryview(configuration)[4:]):
            if kind == _SEQUENCE_HEADER:
                self._take_sequence(payload)

    def _take_sequence(self, payload: memoryview) -> None:
        self._sequence = _sequence(payload)
        self._is_still = bool(len(payload) and payload[0] & 0b1000)

    def classify(self, unit: memoryview) -> PacketKind:
        """A random access point begins with a sequence header, without which decoders cannot start, and a key frame
        that is displayed immediately (7.6). A key frame that is displayed later does not count, because frames
        displayed before it may refer to earlier ones."""
        starts: bool | None = None
        has_header = refreshes = False
        colors, samples, size, highest = None, None, None, 0
        displayed = Counter[int]()  # of each spatial layer, of which a decoder outputs the highest
        for kind, layers, payload in _obus(unit):
            wanted = self._sequence.operating_point if self._sequence else None
            layer = 0 if wanted == 0 else layers >> 9
            if kind == _SEQUENCE_HEADER:
                self._take_sequence(payload)
                if self._sequence is not None:
                    colors, samples = self._sequence.colors, self._sequence.samples
                has_header = True
            elif wanted and layers & ~wanted:  # decoders drop it (5.3.1, drop_obu)
                displayed[layer] += 0
                continue
            elif kind in (_FRAME_HEADER, _FRAME, _TILE_GROUP) and starts is None:
                first = payload[0] if len(payload) and kind != _TILE_GROUP else 0xFF
                # not show_existing_frame, KEY_FRAME, show_frame
                starts = has_header and (self._is_still or first >> 4 == 0b0001)
            if kind in (_FRAME_HEADER, _FRAME):
                # show_existing_frame, show_frame; a frame that is cut off counts as shown, so that it is missed.
                shown = self._is_still or bool(not len(payload) or payload[0] & 0b1001_0000)
                displayed[layer] += shown
                picture, refreshed = self._frame(BitReader(payload[:_FRAME_BYTES]))
                refreshes |= refreshed != 0
                if shown and layer >= highest:
                    highest, size = layer, picture.size
        pictures = max(displayed.values(), default=-1)
        return PacketKind(
            random_access=starts is True,
            disposable=starts is False and not (has_header or refreshes),
            hidden=pictures == 0,
            several=pictures > 1,
            colors=colors,
            size=size,
            samples=samples,
        )

    def _frame(self, bits: BitReader) -> tuple[_Picture, int]:
        """Process a frame header. Returns its picture, and the slots that it refreshes, a bit each (5.9.2,
        uncompressed_header); all of them if that is unknown."""
        picture, refreshed = _Picture(), _ALL_SLOTS
        with suppress(ValueError):
            if self._sequence is None:
                pass
            elif bits.u(1):  # show_existing_frame
                picture = self._slots[bits.u(3)]
                # A key frame that is displayed late refreshes all slots (7.21, reference frame loading process).
                refreshed = _ALL_SLOTS if picture.frame_type in (_KEY, None) else 0
            else:
                picture, refreshed = _frame_header(bits, self._sequence, self._slots)
        self._slots = [picture if refreshed >> slot & 1 else old for slot, old in enumerate(self._slots)]
        return picture, refreshed


def _frame_header(bits: BitReader, sequence: _Sequence, slots: Sequence[_Picture]) -> tuple[_Picture, int]:
    """The picture and refresh_frame_flags of a frame header; reading begins after show_existing_frame (5.9.2)."""
    frame_type, shown = bits.u(2), bits.u(1)
    if not shown:
        bits.u(1)  # showable_frame
    resets = frame_type == _SWITCH or (frame_type == _KEY and shown)
    error_resilient = resets or bits.u(1)
    bits.u(1)  # disable_cdf_update
    tools = bits.u(1) if sequence.screen_content_tools == _SELECT else sequence.screen_content_tools
    if tools and sequence.integer_mv == _SELECT:
        bits.u(1)  # force_integer_mv
    overrides = frame_type == _SWITCH or bits.u(1)  # frame_size_override_flag
    bits.u(sequence.order_hint_bits)
    is_intra = frame_type in (_KEY, _INTRA_ONLY)
    if not is_intra and not error_resilient:
        bits.u(3)  # primary_ref_frame
    refreshed = _ALL_SLOTS if resets else bits.u(8)
    if not overrides:
        return _Picture(frame_type, sequence.size), refreshed
    size = None
    with suppress(ValueError):
        if error_resilient and (not is_intra or refreshed != _ALL_SLOTS):
            bits.u(8 * sequence.order_hint_bits)  # ref_order_hint
        references: list[_Picture] = []
        if not is_intra:
            short = bool(sequence.order_hint_bits and bits.u(1))  # frame_refs_short_signaling
            bits.u(6 * short)  # last_frame_idx, gold_frame_idx, from which the others follow
            references = [_Picture() if short else slots[bits.u(3)] for _ in range(7)]  # ref_frame_idx
        for reference in references if not error_resilient else ():
            if bits.u(1):  # found_ref
                return _Picture(frame_type, reference.size), refreshed
        size = bits.u(sequence.size_bits[0]) + 1, bits.u(sequence.size_bits[1]) + 1
    return _Picture(frame_type, size), refreshed


def _sequence(payload: memoryview) -> _Sequence | None:
    """Read a sequence header; None if it ends early, or has unsupported parts."""
    try:
        return _sequence_header(BitReader(payload[:_SEQUENCE_BYTES]))
    except ValueError:
        return None


def _sequence_header(bits: BitReader) -> _Sequence | None:
    """sequence_header_obu (5.5). None for still pictures, decoder models and frame ids, which are not supported."""
    profile = bits.u(3)  # seq_profile
    bits.u(1)  # still_picture
    if bits.u(1):  # reduced_still_picture_header
        return None
    if bits.u(1):  # timing_info_present_flag
        bits.u(32 + 32)  # num_units_in_display_tick, time_scale
        if bits.u(1):  # equal_picture_interval
            _uvlc(bits)  # num_ticks_per_picture_minus_1
        if bits.u(1):  # decoder_model_info_present_flag
            return None
    delays = bits.u(1)  # initial_display_delay_present_flag
    points = []
    for _ in range(bits.u(5) + 1):  # operating_points_cnt_minus_1
        points.append(bits.u(12))  # operating_point_idc
        if bits.u(5) > 7:  # seq_level_idx
            bits.u(1)  # seq_tier
        if delays and bits.u(1):  # initial_display_delay_present_for_this_op
            bits.u(4)
    width_bits, height_bits = bits.u(4) + 1, bits.u(4) + 1
    size = bits.u(width_bits) + 1, bits.u(height_bits) + 1
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
    colors = samples = None
    with suppress(ValueError):
        bits.u(3)  # enable_superres, enable_cdef, enable_restoration
        colors, samples = _color_config(bits, profile)
    return _Sequence(points[0], tools, integer_mv, order_hint_bits, colors, samples, size, (width_bits, height_bits))


def _color_config(bits: BitReader, profile: int) -> tuple[StatedColors, Samples]:
    """color_config (5.5.2)."""
    depth = 10 if bits.u(1) else 8  # high_bitdepth
    if depth == 10 and profile == _PROFESSIONAL:
        depth += 2 * bits.u(1)  # twelve_bit
    gray = profile != _HIGH and bool(bits.u(1))  # mono_chrome
    # color_primaries, transfer_characteristics, matrix_coefficients; 2: unspecified
    primaries, transfer, matrix = (bits.u(8), bits.u(8), bits.u(8)) if bits.u(1) else (2, 2, 2)
    if not gray and (primaries, transfer, matrix) == _SRGB:
        return StatedColors(primaries, matrix, full_range=True), Samples(across=False, down=False, depth=depth)
    full_range, location = bool(bits.u(1)), None  # color_range
    across, down = profile != _HIGH, profile == _MAIN
    if profile == _PROFESSIONAL and depth == 12 and not gray:
        across = bool(bits.u(1))  # subsampling_x
        down = across and bool(bits.u(1))  # subsampling_y
    if across and down and not gray:
        location = _LOCATIONS.get(bits.u(2))  # chroma_sample_position
    return StatedColors(primaries, matrix, full_range, location), Samples(across, down, depth, gray)


_MAIN, _HIGH, _PROFESSIONAL = range(3)
_SRGB: Final = (1, 13, 0)
_LOCATIONS: Final = {1: 0, 2: 2}
"""chroma_sample_loc_type of ITU-T H.265 for CSP_VERTICAL and CSP_COLOCATED."""


def _uvlc(bits: BitReader) -> int:
    """uvlc() (4.10.3)."""
    zeros = 0
    while zeros < 32 and not bits.u(1):
        zeros += 1
    return bits.u(zeros) + (1 << zeros) - 1 if zeros < 32 else (1 << 32) - 1


def _obus(data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Types, layers and payloads of the open bitstream units (5.3); a size beyond the end of the data is cut. Layers
    are bits: temporal_id one of the lower 8, spatial_id one of the upper 4; 0 if they are not stated."""
    position, end = 0, len(data)
    while position < end:
        header = data[position]
        kind, has_extension, has_size = header >> 3 & 15, header >> 2 & 1, header >> 1 & 1
        extension = data[position + 1] if has_extension and position + 1 < end else None
        layers = 0 if extension is None else 1 << (extension >> 5) | 256 << (extension >> 3 & 3)
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
        yield kind, layers, data[position : position + size]
        position += size
