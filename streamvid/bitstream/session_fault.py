"""Detects, by their headers, streams that decode sessions decode wrongly without an error.

NVIDIA's parser crops only at the right and at the bottom, no session follows a change of a stream's frame size, and
NVDEC garbles MPEG-4 with rare coding tools. PyNvVideoCodec also deinterlaces field pictures, and H.264 frames with
field macroblocks (MBAFF); the native module weaves fields, as FFmpeg does. `tests/gpu/test_codecs.py` has examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from streamvid.bitstream import h264, hevc, mpeg4, vpx
from streamvid.bitstream.annexb import NAL_SYNTAX, parameter_sets
from streamvid.bitstream.bits import BitReader
from streamvid.bitstream.nal import ShownArea

_FIELDS = "PyNvVideoCodec deinterlaces pictures that are coded in fields; the native module would not"
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

    VP8 and VP9 may change their frame size midway, or have spatial layers; MPEG-4 may be interlaced from the middle on,
    where recordings were joined. H.264 whose parameter sets allow fields may have none, as much of broadcast.

    Args:
        codec, stsd: as in docs/format.md.
        packets: the stored packets.
        width, height: size of frames, in pixels.
    """
    try:
        if codec == "mpeg4":
            found = {mpeg4.headers_of(packet) for packet in packets}
            faults = [session_fault(codec, headers, width, height, native=True) for headers in found]
            return next(filter(None, faults), "")
        if codec == "h264":
            syntax, sets = NAL_SYNTAX[codec], parameter_sets(codec, stsd)
            sps = {h264.read_sps(BitReader.of_nal(unit[1:])) for unit in syntax.sequence_parameter_sets(sets.annex_b)}
            in_fields = any(h264.is_field(packet, sets.length_size, sequence) for packet in packets for sequence in sps)
            return _FIELDS if in_fields else ""
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


def _shown_areas(codec: str, headers: bytes) -> list[ShownArea]:
    read, syntax = (h264.shown_area if codec == "h264" else hevc.shown_area), NAL_SYNTAX[codec]
    return [read(BitReader.of_nal(sps[syntax.header_bytes :])) for sps in syntax.sequence_parameter_sets(headers)]
