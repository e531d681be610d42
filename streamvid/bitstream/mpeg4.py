"""MPEG-4 part 2 (ISO/IEC 14496-2): classification of packets, and their times.

Comments name the syntax elements that are read or skipped: 6.2.3 (VideoObjectLayer), 6.2.4 (Group_of_VideoObjectPlane)
and 6.2.5 (VideoObjectPlane).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.nal import KnownSets, NalSyntax
from streamvid.bitstream.packet_kind import Classifier, PacketKind
from streamvid.mp4.sample_entry import decoder_specific_info

_START: Final = b"\x00\x00\x01"
VOP_START_CODE: Final = b"\x00\x00\x01\xb6"
_VOL, _GOV, _VISUAL_OBJECT, _VOP = range(0x20, 0x30), 0xB3, 0xB5, 0xB6
_I_VOP, B_VOP = 0, 2
_USER_DATA: Final = 0xB2
_SETS: Final = NalSyntax(1, 0, 255, range(_VOP, _VOP + 1), (), _VOL[0], (*_VOL, _USER_DATA))
_ENCODERS: Final = (b"DivX", b"Lavc", b"FFmpe", b"ffmpeg", b"XviD")
"""Names in user data that make FFmpeg decode as the encoder intended, by another IDCT, for instance."""
_HEADER_BYTES: Final = 64
_XVID_TAGS: Final = ("XVID", "RMP4", "ZMP4", "SIPP")


def classifier(stsd: bytes) -> Classifier:
    """The classifier of a track's packets; the sample description need not have headers."""
    headers = b""
    with suppress(ValueError):
        headers = decoder_specific_info(stsd)
    return vop_classifier(headers)


def vop_classifier(headers: bytes) -> Classifier:
    """The classifier of the packets after some headers. It reads vop_coding_type (6.2.5), the two bits after
    vop_start_code (0 I, 1 P, 2 B, 3 S), and vop_coded. A VOP that is not coded repeats the previous picture, so that
    decoders output none; it still counts for the times of B-VOPs. A packet of several VOPs ("packed bitstream") is not
    a frame; FFmpeg splits it only in AVI files."""
    clock, known, layer = VopClock(), KnownSets(_SETS, sections(headers), lambda unit: 0), _layer(headers)
    distances = _Distances()
    with suppress(ValueError):
        clock.read_headers(headers)

    def classify(packet: memoryview) -> PacketKind:
        nonlocal layer
        data = bytes(packet)
        at = data.find(VOP_START_CODE)
        if at:  # most packets have no headers
            with suppress(ValueError):
                clock.read_headers(data)
            if (own := _layer(data[: max(at, 0)])) is not None:
                layer = own
                distances.begin()
        knows_all, tells = known.take(sections(data[: max(at, 0)]))
        if at < 0 or at + 4 >= len(data):
            return PacketKind()
        coding_type, coded, uneven, passed_over = data[at + 4] >> 6, True, False, False
        in_fields = layer is not None and layer.interlaced
        if clock.resolution:  # else no header came before it
            with suppress(ValueError):
                time, is_b, coded = clock.take(data[at + 4 : at + 4 + _HEADER_BYTES])
                uneven, passed_over = distances.take(time, is_b=is_b, in_fields=in_fields)
        return PacketKind(
            random_access=coded and coding_type == _I_VOP and knows_all,
            disposable=coding_type == B_VOP and not tells,
            tells_sets=tells,
            hidden=not coded or passed_over,
            several=data.rfind(VOP_START_CODE) > at,  # twice as fast as to find the next
            in_fields=in_fields,
            uneven=uneven,
            delay_unstated=layer is not None and layer.delay_unstated,
            size=(layer.width, layer.height) if layer else None,
        )

    return classify


def check_delay(kinds: Sequence[PacketKind]) -> None:
    """Raise ValueError if there are B-VOPs where FFmpeg expects none: it shows the VOP before the first of them twice,
    once too early."""
    if any(kind.delay_unstated and kind.disposable for kind in kinds):
        raise ValueError(
            "its headers do not say that it has B-VOPs (they lack vol_control_parameters), so that decoders show a "
            "picture twice: re-encode it first"
        )


def finalize_interlaced(kinds: list[PacketKind]) -> list[PacketKind]:
    """The kinds of a clip's packets, in decode order, of which some are interlaced, by what direct mode takes from the
    first B-VOP that a decoder has met: T_FRAME, in which the distances of fields are counted (7.7.2.2).

    No packet is disposable. If the distances are uneven, decoding starts at the first packet alone.
    """
    even = not any(kind.uneven for kind in kinds)
    return [
        replace(kind, disposable=False, random_access=kind.random_access and (even or number == 0))
        for number, kind in enumerate(kinds)
    ]


class _Distances:
    """The distances of VOPs, as FFmpeg counts them (decode_vop_header in mpeg4videodec.c)."""

    def __init__(self) -> None:
        self._t_frame = 0  # from a reference to the first B-VOP behind a VideoObjectLayer, in ticks
        self._past: int | None = None  # times of the last two references
        self._future: int | None = None
        self._first_b = True  # no B-VOP came since the last reference: it sets T_FRAME if decoding begins there

    def begin(self) -> None:
        """Take a VideoObjectLayer, which comes before the VOP of its packet."""
        self._t_frame = 0

    def take(self, time: int, *, is_b: bool, in_fields: bool) -> tuple[bool, bool]:
        """Take the next VOP in decode order.

        Args:
            time: its display time, in ticks.
            in_fields: whether the stream is interlaced.

        Returns:
            Whether the distances of a B-VOP depend on where decoding began, and whether FFmpeg passes over it, because
            it is not between its references, or finds no field between those of them.
        """
        if not is_b:
            self._past, self._future, self._first_b = self._future, time, True
            return False, False
        if self._past is None or self._future is None:
            return False, False
        past, future = self._past, self._future
        if not past < time < future:
            return in_fields, True
        if not in_fields:
            return False, False
        self._t_frame = self._t_frame or time - past
        is_even = (future - past) % self._t_frame == (time - past) % self._t_frame == 0
        is_even = is_even and not (self._first_b and time - past != self._t_frame)
        self._first_b = False
        # In units of T_FRAME, to which FFmpeg rounds them.
        begin, at, end = ((value + self._t_frame // 2) // self._t_frame for value in (past, time, future))
        return not is_even, not begin < at < end


def _layer(headers: bytes) -> Vol | None:
    """The last VideoObjectLayer among headers that says the size of pictures; None if there is none."""
    with suppress(ValueError):
        layers = [layer for layer in video_object_layers(headers) if layer.width]
        return layers[-1] if layers else None
    return None


def sections(headers: bytes) -> list[bytes]:
    """VideoObjectLayers and names of encoders, each without its start code prefix."""
    found = headers.split(_START)[1:]
    return [
        unit
        for unit in found
        if unit and (unit[0] in _VOL or (unit[0] == _USER_DATA and unit[1:].startswith(_ENCODERS)))
    ]


def user_data_of_tag(tag: str, headers: bytes) -> bytes:
    """User data that has FFmpeg decode a stream as it does by the codec tag of an AVI or Matroska file, which an MP4
    does not have (ff_mpeg4_workaround_bugs in mpeg4videodec.c). b"" if it decodes alike without the tag.

    Args:
        tag: four characters.
        headers: all up to the first VOP.
    """
    if any(unit[0] == _USER_DATA for unit in sections(headers)):
        return b""  # it names the encoder
    name = b"XviD0" if tag in _XVID_TAGS else b"DivX400b0" if tag == "DIVX" and _is_divx_4(headers) else b""
    return name and _START + bytes([_USER_DATA]) + name


def _is_divx_4(headers: bytes) -> bool:
    for kind, at in _start_codes(headers):
        if kind in _VOL:
            padded = headers[at : at + _HEADER_BYTES].ljust(_HEADER_BYTES, b"\0")
            object_type, controlled, *_ = _read_vol_begin(BitReader(padded))
            return not (object_type or controlled)
    return False


def output_order(is_b: Sequence[bool]) -> list[int]:
    """The numbers of VOPs in display order: B-VOPs come before the VOP that precedes them in decode order.

    Args:
        is_b: for each VOP in decode order, whether it is a B-VOP.
    """
    shown: list[int] = []
    held: list[int] = []
    for number, before in enumerate(is_b):
        shown += [number] if before else held
        held = held if before else [number]
    return shown + held


class VopClock:
    """Reads the display time of each VOP of a stream.

    A VOP has the fraction of a second of its time, and the number of full seconds since the previous VOP that is no
    B-VOP; a B-VOP counts from the one before that (modulo_time_base, 6.3.5).

    Attributes:
        resolution: ticks per second (vop_time_increment_resolution); 0 before the first packet.
    """

    def __init__(self) -> None:
        self.resolution = 0
        self._second = self._second_before = 0

    def time(self, packet: bytes) -> tuple[int, bool]:
        """The time of the next VOP in decode order, in ticks, and its vop_coded.

        Raises:
            ValueError: the packet has no VOP, or no VideoObjectLayer came before it.
        """
        at = self.read_headers(packet)
        if at is None or not self.resolution:
            raise ValueError("a packet of it holds no picture")
        ticks, _, coded = self.take(packet[at : at + _HEADER_BYTES])
        return ticks, coded

    def read_headers(self, packet: bytes) -> int | None:
        """Read the headers before the first VOP. Returns the position after the VOP's start code, or None if there is
        no VOP."""
        for kind, at in _start_codes(packet):
            bits = BitReader(packet[at : at + _HEADER_BYTES])
            if kind in _VOL:
                *_, self.resolution = _read_vol_begin(bits)
            elif kind == _GOV:
                hours, minutes = bits.u(5), bits.u(6)
                bits.u(1)  # marker_bit
                self._second = 3600 * hours + 60 * minutes + bits.u(6)
            elif kind == _VOP:
                return at
        return None

    def take(self, vop: bytes) -> tuple[int, bool, bool]:
        """The time of the next VOP in decode order, in ticks, whether it is a B-VOP, and its vop_coded.

        Args:
            vop: the VOP, from after its start code; a VideoObjectLayer came before it.

        Raises:
            ValueError: it ends within its header.
        """
        bits = BitReader(vop)
        is_b = bits.u(2) == B_VOP  # vop_coding_type
        seconds = 0
        while bits.u(1):  # modulo_time_base
            seconds += 1
        bits.u(1)  # marker_bit
        increment = bits.u(max(1, (self.resolution - 1).bit_length()))  # vop_time_increment
        bits.u(1)  # marker_bit
        coded = bool(bits.u(1))  # vop_coded
        if is_b:
            return (self._second_before + seconds) * self.resolution + increment, True, coded
        self._second_before = self._second
        self._second += seconds
        return self._second * self.resolution + increment, False, coded


@dataclass(frozen=True)
class Vol:
    """A VideoObjectLayer (6.2.3).

    Attributes:
        width, height: size of its pictures; 0 if its shape is no rectangle.
        interlaced: whether pictures may be coded as fields.
        plain: whether it is without sprites, overlapped motion compensation, other bit depths, partitioned data,
            scalability and the like, and no decoder takes it for one of another version.
        versioned: whether it states its version.
        delay_unstated: whether it leaves it to its type whether there are B-VOPs (low_delay), and FFmpeg expects none.
        splits_b_vops: whether it may have B-VOPs of several video packets.
    """

    width: int = 0
    height: int = 0
    interlaced: bool = False
    plain: bool = False
    versioned: bool = False
    delay_unstated: bool = False
    splits_b_vops: bool = False


def headers_of(packet: bytes | memoryview) -> bytes:
    """The bytes before a packet's first VOP."""
    if bytes(packet[:4]) == VOP_START_CODE:  # most packets
        return b""
    data = bytes(packet)
    return data[: max(0, data.find(VOP_START_CODE))]


def video_object_layers(headers: bytes) -> list[Vol]:
    """The VideoObjectLayers among headers.

    Raises:
        ValueError: a layer ends early.
    """
    found, of_object = [], 1
    for kind, at in _start_codes(headers):
        if kind == _VISUAL_OBJECT and headers[at] & 0x80:  # is_visual_object_identifier
            of_object = headers[at] >> 3 & 15  # visual_object_verid
        elif kind in _VOL:
            layer = _read_vol(BitReader(headers[at : at + _VOL_BYTES]))
            versioned = bool(headers[at + 1] & 0x40)  # is_object_layer_identifier
            # Without a version of its own NVDEC takes the object's, FFmpeg the first.
            found.append(replace(layer, plain=layer.plain and (versioned or of_object == 1), versioned=versioned))
        elif kind == _VOP:
            break
    return found


def _start_codes(data: bytes) -> Iterator[tuple[int, int]]:
    """The start codes that something follows: the last byte of each, and the position after it."""
    at = data.find(_START)
    while 0 <= at < len(data) - 4:
        yield data[at + 3], at + 4
        at = data.find(_START, at + 3)


def _read_vol(bits: BitReader) -> Vol:
    object_type, controlled, version, low_delay, shape, resolution = _read_vol_begin(bits)
    bits.u(1)  # marker_bit
    if bits.u(1):  # fixed_vop_rate
        bits.u(max(1, (resolution - 1).bit_length()))  # fixed_vop_time_increment
    if shape != _RECTANGULAR:
        return Vol()
    bits.u(1)  # marker_bit
    width = bits.u(13)  # video_object_layer_width
    bits.u(1)  # marker_bit
    height = bits.u(13)  # video_object_layer_height
    bits.u(1)  # marker_bit
    interlaced, no_overlap, split = bits.u(1), bits.u(1), False  # interlaced, obmc_disable
    sprites = bits.u(1 if version == 1 else 2)  # sprite_enable
    plain = no_overlap == 1 and not sprites and not bits.u(1)  # not_8_bit
    if plain and bits.u(1):  # quant_type
        for _ in range(2):
            _skip_matrix(bits)  # intra_quant_mat, nonintra_quant_mat
    if plain:
        if version != 1:
            bits.u(1)  # quarter_sample
        plain, whole = bits.u(1) == 1, bits.u(1)  # complexity_estimation_disable, resync_marker_disable
        split = not whole and not low_delay
        plain = plain and not bits.u(1)  # data_partitioned
    if plain:
        plain = version == 1 or not bits.u(2)  # newpred_enable, reduced_resolution_vop_enable
        plain = plain and not bits.u(1)  # scalability
    unstated = not controlled and object_type in (_SIMPLE, _ADVANCED_SIMPLE)
    return Vol(width, height, bool(interlaced), plain, delay_unstated=unstated, splits_b_vops=split)


def _skip_matrix(bits: BitReader) -> None:
    if bits.u(1):  # load_intra_quant_mat, load_nonintra_quant_mat
        for _ in range(64):
            if not bits.u(8):
                break


def _read_vol_begin(bits: BitReader) -> tuple[int, int, int, bool, int, int]:
    """video_object_type_indication, vol_control_parameters, video_object_layer_verid, whether there are no B-VOPs by
    low_delay or the type, video_object_layer_shape, and vop_time_increment_resolution."""
    bits.u(1)  # random_accessible_vol
    object_type, version = bits.u(8), 1  # video_object_type_indication
    if bits.u(1):  # is_object_layer_identifier
        version = bits.u(4)  # video_object_layer_verid
        bits.u(3)  # video_object_layer_priority
    if bits.u(4) == _EXTENDED_PAR:  # aspect_ratio_info
        bits.u(16)  # par_width, par_height
    low_delay, controlled = object_type == _SIMPLE, bits.u(1)  # vol_control_parameters
    if controlled:
        low_delay = bool(bits.u(3) & 1)  # chroma_format, low_delay
        if bits.u(1):  # vbv_parameters
            bits.u(79)  # rates and sizes of the buffer, with their markers
    shape = bits.u(2)  # video_object_layer_shape
    if shape == _GRAYSCALE and version != 1:
        bits.u(4)  # video_object_layer_shape_extension
    bits.u(1)  # marker_bit
    return object_type, controlled, version, low_delay, shape, bits.u(16)  # vop_time_increment_resolution


_SIMPLE, _ADVANCED_SIMPLE = 1, 17
_EXTENDED_PAR: Final = 15
_RECTANGULAR, _GRAYSCALE = 0, 3
_VOL_BYTES: Final = 256
"""A VideoObjectLayer with two matrices has less."""
