"""Detects, by their headers, streams that decode sessions decode wrongly without an error.

NVIDIA's parser crops only at the right and at the bottom, no session follows a change of a stream's frame size, and
NVDEC garbles MPEG-4 with rare coding tools, lossless H.264, some H.264 that may be in fields and has constrained intra
prediction, and HEVC with small tiles.
PyNvVideoCodec also deinterlaces field pictures, and H.264 frames with field macroblocks (MBAFF); the native module
weaves fields, as FFmpeg does. `tests/gpu/test_codecs.py` has examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from streamvid.bitstream import h264, h264_gaps, hevc_pps, hevc_sps, mpeg4, vpx
from streamvid.bitstream.annexb import NAL_SYNTAX, parameter_sets
from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.nal import HEADER_BYTES, ShownArea, split_packet
from streamvid.bitstream.packets import nal_units

_LEAST_TILE: Final = 256, 64
"""The least width and height of HEVC's tiles, in luma samples (annex A of ITU-T H.265). kvazaar makes smaller ones:
128x64 came out right on an H200, 64x64 garbled."""
_FIELDS = "PyNvVideoCodec deinterlaces pictures that are coded in fields; the native module would not"
_SHORT_VIDEO_PACKET: Final = 12
"""Headers of VOPs, with their start codes, and of video packets are shorter, in bytes."""
_SIZE = "decode sessions crop its pictures in another way"


@lru_cache(maxsize=4096)
def session_fault(codec: str, headers: bytes, width: int, height: int, *, native: bool) -> str:
    """Why decode sessions give other pictures than FFmpeg for a stream with these headers; "" if they do not.

    Args:
        codec: as in docs/format.md.
        headers: parameter sets in Annex B for H.264 and HEVC; the bytes before a VOP for MPEG-4.
        width, height: of FFmpeg's frames, in pixels.
        native: whether the sessions are those of the native module.
    """
    try:
        if codec in NAL_SYNTAX:
            areas = _shown_areas(codec, headers)
            if any((area.left, area.top, area.width, area.height) != (0, 0, width, height) for area in areas):
                return _SIZE
            fault = _h264_fault(headers) if codec == "h264" else _hevc_fault(headers)
            if fault:
                return fault
            return _FIELDS if not native and any(area.mixes_fields for area in areas) else ""
        if codec == "mpeg4":
            layers = mpeg4.video_object_layers(headers)
            if any((layer.width, layer.height) != (width, height) for layer in layers):
                return _SIZE
            if not all(layer.plain for layer in layers):
                return "decode sessions garble MPEG-4 with sprites, partitioned data and the like"
            return "decode sessions deinterlace it" if any(layer.interlaced for layer in layers) else ""
    except ValueError:
        return "its headers cannot be read"
    return ""


def has_headers(codec: str, headers: bytes) -> bool:
    """Whether the headers have the parameter sets or layers that `session_fault` reads."""
    if codec in NAL_SYNTAX:
        return bool(NAL_SYNTAX[codec].sequence_parameter_sets(headers))
    return codec != "mpeg4" or bool(mpeg4.video_object_layers(headers))


def needs_packets(codec: str, stsd: bytes, *, native: bool) -> bool:
    """Whether `packets_fault` has to look at the packets, because the headers leave a fault open."""
    return codec in ("vp8", "vp9", "mpeg4") or (codec == "h264" and not native and _may_have_fields(stsd))


def packets_fault(codec: str, stsd: bytes, packets: Sequence[memoryview], width: int, height: int) -> str:
    """Why decode sessions give other pictures than FFmpeg for these packets; "" if they do not.

    VP8 and VP9 may change their frame size midway, or have spatial layers. MPEG-4 may be interlaced from the middle on,
    where recordings were joined; and behind a video packet without bits, as FFmpeg writes one for a part of a B-VOP
    that does not change, NVDEC puts macroblocks elsewhere. H.264 whose parameter sets allow fields may have none, as
    much of broadcast.

    Args:
        codec, stsd: as in docs/format.md.
        packets: the stored packets.
        width, height: size of frames, in pixels.
    """
    try:
        if codec == "mpeg4":
            found = {mpeg4.headers_of(packet) for packet in packets}
            faults = [session_fault(codec, headers, width, height, native=True) for headers in found]
            if any(_may_have_empty_video_packet(packet) for packet in packets):
                return "NVDEC garbles B-VOPs with an empty video packet"
            return next(filter(None, faults), "")
        if codec == "h264":
            syntax, sets = NAL_SYNTAX[codec], parameter_sets(codec, stsd)
            sps = {h264.read_sps(BitReader.of_nal(unit[1:])) for unit in syntax.sequence_parameter_sets(sets.annex_b)}
            units = (unit for packet in packets for unit in split_packet(packet, sets.length_size))
            slices = (bytes(unit[1:HEADER_BYTES]) for unit in units if unit[0] & 31 in h264.WITH_SLICE_HEADER)
            in_field = (h264.read_slice(BitReader.of_nal(part), one).in_field for part in slices for one in sps)
            return _FIELDS if any(in_field) else ""
        if any(not vpx.coded_sizes(codec, bytes(packet)) <= {(width, height)} for packet in packets):
            return "a session gives all of its frames the size of the first"
    except ValueError:
        return "its packets cannot be read"
    return ""


@lru_cache(maxsize=4096)
def _may_have_fields(stsd: bytes) -> bool:
    try:
        return any(area.fields for area in _shown_areas("h264", parameter_sets("h264", stsd).annex_b))
    except ValueError:
        return True


def _may_have_empty_video_packet(packet: memoryview) -> bool:
    """Whether a packet is a B-VOP with a video packet, not its last one, that is hardly longer than its header.

    A video packet ends with stuffing. The next one begins with a resync_marker (6.3.5.2 of ISO/IEC 14496-2), of which
    17 bits and more are zeros, as nowhere else behind a VOP's header.
    """
    begin = len(mpeg4.headers_of(packet))
    if len(packet) <= begin + 4 or packet[begin + 4] >> 6 != mpeg4.B_VOP:  # vop_coding_type, behind the start code
        return False
    data = bytes(packet)
    while (end := data.find(b"\0\0", begin + 4)) >= 0:
        if end - begin < _SHORT_VIDEO_PACKET:
            return True
        begin = end
    return False


def _h264_fault(headers: bytes) -> str:
    """Why NVDEC garbles H.264 with these parameter sets; "" if it does not."""
    sequences = [
        h264.read_sps(BitReader.of_nal(sps[1:])) for sps in NAL_SYNTAX["h264"].sequence_parameter_sets(headers)
    ]
    if any(sps.transform_bypass for sps in sequences):
        return "NVDEC garbles lossless H.264"
    pictures = [
        h264_gaps.read_pps(BitReader.of_nal(unit[1:]))[1] for unit in nal_units(headers) if unit[0] & 31 == h264.PPS
    ]
    if any(pps.constrained_intra for pps in pictures) and not all(sps.frame_mbs_only for sps in sequences):
        return "NVDEC garbles some H.264 with constrained intra prediction that may be in fields"
    return ""


def _hevc_fault(headers: bytes) -> str:
    """Why NVDEC garbles HEVC with these parameter sets; "" if it does not."""
    pictures = hevc_pps.read_pictures(headers)
    for unit in NAL_SYNTAX["hevc"].sequence_parameter_sets(headers):
        sps, block, _ = hevc_sps.read_coding_tools(BitReader.of_nal(unit[2:]))
        area = sps.shown
        sides = -(-(area.left + area.width) // block), -(-(area.top + area.height) // block)
        for pps in pictures:
            across, down = pps.smallest_tile(*sides)
            if (pps.columns > 1 and across * block < _LEAST_TILE[0]) or (
                pps.rows > 1 and down * block < _LEAST_TILE[1]
            ):
                return "NVDEC garbles HEVC with tiles that are smaller than the standard allows"
    return ""


def _shown_areas(codec: str, headers: bytes) -> list[ShownArea]:
    read, syntax = (h264.shown_area if codec == "h264" else hevc_sps.shown_area), NAL_SYNTAX[codec]
    return [read(BitReader.of_nal(sps[syntax.header_bytes :])) for sps in syntax.sequence_parameter_sets(headers)]
