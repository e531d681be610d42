"""Damage of pictures that decoders conceal, or that only those find that meet it: slices of HEVC that do not fit their
parameter sets, as where files of other settings were joined without decoding, and the second's parameter sets were
lost; and zeros in the midst of a picture, as of a lost sector of a disk, or of a download that was not finished."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import av

from streamvid.bitstream import hevc, packet_info
from streamvid.bitstream.annexb import NAL_SYNTAX
from streamvid.bitstream.nal import split_packet
from streamvid.bitstream.packet_kind import Classifier, PacketKind
from streamvid.bitstream.packets import START_CODE
from streamvid.mp4.sample_entry import codec_configuration

_HEAD_BYTES: Final = 4096
"""Bytes of a slice that are enough for almost every header."""
_ZEROS: Final = bytes(512)
"""In H.264, HEVC and MPEG-4 two in a row are all that there can be."""
_PIXELS_PER_ZERO: Final = 512
"""Of VP8 and VP9: some encoders, as GStreamer's for VA, do not mark macroblocks without coefficients, so that most of a
still picture is zeros, one per 2,600 pixels or more at the probabilities that VP8 begins with."""
HOLE: Final = re.compile(_ZEROS + rb"(?<!\0(?s:.{512}))\0*+[^\0\1]")
"""Zeros that are no padding, which only a start code or nothing may follow. The literal comes first, for speed."""
_VOP: Final = re.compile(rb"\0\0\x01\xb6")


def checking_classifier(codec: str, stsd: bytes) -> Classifier:
    """`packet_info.classifier`, which also finds zeros in the midst of a picture (`PacketKind.zeroed`) and, at random
    access points, slices of HEVC that do not fit (`PacketKind.misfit`): headers of others are longer, and of the same
    sets."""
    of, pictures = packet_info.classifier(codec, stsd), _pictures(codec, stsd)
    fits = _slice_check(stsd) if codec == "hevc" else None
    least = 0

    def classify(packet: memoryview) -> PacketKind:
        nonlocal least
        kind = of(packet)
        if kind.size is not None and codec in ("vp8", "vp9"):
            least = math.prod(kind.size) // _PIXELS_PER_ZERO
        if bytes(packet).find(_ZEROS) >= 0 and any(
            len(hole[0]) > least for part in pictures(packet) for hole in HOLE.finditer(part)
        ):
            return replace(kind, broken=True, zeroed=True)
        return replace(kind, broken=True, misfit=True) if fits and kind.random_access and not fits(packet) else kind

    return classify


def _pictures(codec: str, stsd: bytes) -> Callable[[memoryview], Sequence[memoryview]]:
    """A function that gives the parts of a packet that are coded pictures. None, of codecs in which there may be zeros:
    AV1 and Motion JPEG, which encoders pad."""
    if (syntax := NAL_SYNTAX.get(codec)) is not None:
        vcl, unit_type = syntax.vcl, syntax.unit_type
        length_size = syntax.length_size(codec_configuration(stsd, syntax.configuration))
        return lambda packet: [unit for unit in split_packet(packet, length_size) if unit_type(unit[0]) in vcl]
    if codec == "mpeg4":
        return lambda packet: [packet[vop.start() :] for vop in [_VOP.search(packet)] if vop]
    return lambda packet: [packet] if codec in ("vp8", "vp9") else []


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
