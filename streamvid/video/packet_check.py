"""Packets of which only a container's tables are known, held against their bitstream when they are used."""

from __future__ import annotations

import numpy as np

from streamvid.arrays import UInt8
from streamvid.bitstream import packet_info
from streamvid.video.packet_selection import PacketSelection


def contradiction(codec: str, stsd: bytes, packets: PacketSelection, data: UInt8) -> tuple[int, str] | None:
    """The first packet of a selection that is not what the index takes it for, and what is wrong; None if all are.

    Args:
        data: uint8 [bytes], the packets one after another.
    """
    of = packet_info.classifier(codec, stsd)
    ends = np.cumsum(packets.sizes)
    kinds = [of(data.data[end - size : end]) for end, size in zip(ends.tolist(), packets.sizes.tolist(), strict=True)]
    for number, kind in enumerate(kinds):
        if kind.broken:
            return number, "its NAL units do not fit"
        if kind.hidden:
            return number, "it is not displayed, and its container displays it"
    for number in packets.starts.tolist():
        if packets.numbers[number] and not kinds[number].random_access:
            return number, "its container calls it a key frame, and decoding cannot start there"
    shown = [kinds[number] for number in np.argsort(packets.display_order).tolist()]
    order = [kind.order for kind in shown if kind.order is not None]
    if len(order) < len(kinds) or (codec in ("h264", "hevc") and (np.diff(order) <= 0).any()):
        return 0, "a decoder outputs its pictures in another order than that of their times"
    return None
