"""MPEG-4 part 2 (ISO/IEC 14496-2): classification of packets, and their times.

Comments name the syntax elements that are read or skipped: 6.2.3 (VideoObjectLayer), 6.2.4 (Group_of_VideoObjectPlane)
and 6.2.5 (VideoObjectPlane).
"""

from __future__ import annotations

from typing import Final

from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.packet_kind import PacketKind

_START: Final = b"\x00\x00\x01"
_VOP_START_CODE: Final = b"\x00\x00\x01\xb6"
_VOL, _GOV, _VOP = range(0x20, 0x30), 0xB3, 0xB6
_I_VOP, _B_VOP = 0, 2
_HEADER_BYTES: Final = 64


def classify(packet: memoryview) -> PacketKind:
    """Read vop_coding_type (6.2.5), the two bits after vop_start_code: 0 I, 1 P, 2 B, 3 S."""
    data = bytes(packet)
    at = data.find(_VOP_START_CODE)
    if at < 0 or at + 4 >= len(data):
        return PacketKind()
    coding_type = data[at + 4] >> 6
    return PacketKind(random_access=coding_type == _I_VOP, disposable=coding_type == _B_VOP)


class VopClock:
    """Reads when each VOP of a stream is shown.

    A VOP has the fraction of a second at which it is shown, and counts the full seconds since the VOP before it that is
    no B-VOP; a B-VOP counts from the one before that (modulo_time_base, 6.3.5).

    Attributes:
        resolution: ticks per second (vop_time_increment_resolution); 0 before the first packet.
    """

    def __init__(self) -> None:
        self.resolution = 0
        self._second = self._second_before = 0

    def time(self, packet: bytes) -> int:
        """The time of the next VOP in decode order, in ticks.

        Raises:
            ValueError: it holds no VOP, or no VideoObjectLayer came before.
        """
        at = packet.find(_START)
        while 0 <= at < len(packet) - 4:
            kind, bits = packet[at + 3], BitReader(packet[at + 4 : at + 4 + _HEADER_BYTES])
            if kind in _VOL:
                self.resolution = _resolution(bits)
            elif kind == _GOV:
                hours, minutes = bits.u(5), bits.u(6)
                bits.u(1)  # marker_bit
                self._second = 3600 * hours + 60 * minutes + bits.u(6)
            elif kind == _VOP and self.resolution:
                return self._of_vop(bits)
            at = packet.find(_START, at + 3)
        raise ValueError("a packet of it holds no picture")

    def _of_vop(self, bits: BitReader) -> int:
        is_b = bits.u(2) == _B_VOP  # vop_coding_type
        seconds = 0
        while bits.u(1):  # modulo_time_base
            seconds += 1
        bits.u(1)  # marker_bit
        increment = bits.u(max(1, (self.resolution - 1).bit_length()))  # vop_time_increment
        if is_b:
            return (self._second_before + seconds) * self.resolution + increment
        self._second_before = self._second
        self._second += seconds
        return self._second * self.resolution + increment


def _resolution(bits: BitReader) -> int:
    """vop_time_increment_resolution of a VideoObjectLayer."""
    bits.u(9)  # random_accessible_vol, video_object_type_indication
    version = 1
    if bits.u(1):  # is_object_layer_identifier
        version = bits.u(4)  # video_object_layer_verid
        bits.u(3)  # video_object_layer_priority
    if bits.u(4) == _EXTENDED_PAR:  # aspect_ratio_info
        bits.u(16)  # par_width, par_height
    if bits.u(1):  # vol_control_parameters
        bits.u(3)  # chroma_format, low_delay
        if bits.u(1):  # vbv_parameters
            bits.u(79)  # rates and sizes of the buffer, with their markers
    if bits.u(2) == _GRAYSCALE and version != 1:  # video_object_layer_shape
        bits.u(4)  # video_object_layer_shape_extension
    bits.u(1)  # marker_bit
    return bits.u(16)


_EXTENDED_PAR: Final = 15
_GRAYSCALE: Final = 3
