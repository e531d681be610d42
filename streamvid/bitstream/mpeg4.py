"""MPEG-4 part 2 (ISO/IEC 14496-2): classification of packets."""

from __future__ import annotations

from typing import Final

from streamvid.bitstream.packet_kind import PacketKind

_VOP_START_CODE: Final = b"\x00\x00\x01\xb6"
_I_VOP, _B_VOP = 0, 2


def classify(packet: memoryview) -> PacketKind:
    """Read vop_coding_type (6.2.5), the two bits after vop_start_code: 0 I, 1 P, 2 B, 3 S."""
    data = bytes(packet)
    at = data.find(_VOP_START_CODE)
    if at < 0 or at + 4 >= len(data):
        return PacketKind()
    coding_type = data[at + 4] >> 6
    return PacketKind(random_access=coding_type == _I_VOP, disposable=coding_type == _B_VOP)
