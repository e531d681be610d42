"""Whether slices of HEVC fit their parameter sets. They do not where files of other settings were joined without
decoding, and the second's parameter sets were lost: decoders then make garbage of them, without an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import av

from streamvid.bitstream import hevc, packet_info
from streamvid.bitstream.nal import split_packet
from streamvid.bitstream.packet_kind import Classifier, PacketKind
from streamvid.bitstream.packets import START_CODE

_HEAD_BYTES: Final = 4096
"""Bytes of a slice that are enough for almost every header."""


def checking_classifier(codec: str, stsd: bytes) -> Classifier:
    """`packet_info.classifier`, which also finds slices of HEVC that do not fit (`PacketKind.misfit`), at random access
    points: headers of other slices are longer, and of the same sets."""
    of = packet_info.classifier(codec, stsd)
    if codec != "hevc":
        return of
    fits = _slice_check(stsd)

    def classify(packet: memoryview) -> PacketKind:
        kind = of(packet)
        return replace(kind, broken=True, misfit=True) if kind.random_access and not fits(packet) else kind

    return classify


def _slice_check(stsd: bytes) -> Callable[[memoryview], bool]:
    """A function of a track's random access points, in decode order, that returns whether slices fit, also if FFmpeg
    cannot read all parameter sets. Its bitstream filters check the range of every field of a slice's header, and the
    header's end.

    Args:
        stsd: the track's sample description box.
    """
    stated, bitstream_filter = hevc.parameter_sets(stsd), av.BitStreamFilterContext("hevc_metadata", "hevc")

    def reads(units: bytes) -> bool:
        try:
            bitstream_filter.filter(av.Packet(units))
        except av.error.InvalidDataError:
            return False
        return True

    knows_sets = not stated.annex_b or reads(stated.annex_b)

    def fits(packet: memoryview) -> bool:
        nonlocal knows_sets
        fit = True
        for unit in split_packet(packet, stated.length_size):
            kind = hevc.SYNTAX.unit_type(unit[0])
            if kind in hevc.SYNTAX.parameter_sets:
                knows_sets = knows_sets and reads(START_CODE + bytes(unit))
            elif knows_sets and kind in hevc.RANDOM_ACCESS and hevc.is_base_layer(unit):
                fit = fit and any(reads(START_CODE + bytes(part)) for part in (unit[:_HEAD_BYTES], unit))
        return fit

    return fits
