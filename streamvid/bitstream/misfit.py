"""What PyNvVideoCodec's decode sessions get wrong without an error, by a stream's headers.

They deinterlace what is coded in fields, crop at the right and at the bottom alone, keep the size of a stream's first
pictures, and garble MPEG-4 with tools that few encoders use (`tests/gpu/test_codecs.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from streamvid.bitstream import h264, hevc, mpeg4, vpx
from streamvid.bitstream.annexb import NAL_SYNTAX
from streamvid.bitstream.bits import BitReader

_FIELDS = "decode sessions deinterlace pictures that are coded in fields"
_SIZE = "decode sessions crop its pictures in another way"


@lru_cache(maxsize=4096)
def misfit(codec: str, headers: bytes, width: int, height: int) -> str:
    """Why decode sessions give other pictures than FFmpeg of a stream with these headers; "" if they do not.

    Args:
        codec: as in docs/format.md.
        headers: of H.264 and HEVC parameter sets in Annex B; of MPEG-4 what comes before a picture.
        width, height: of FFmpeg's frames, in pixels.
    """
    try:
        if codec in NAL_SYNTAX:
            read = h264.shown_area if codec == "h264" else hevc.shown_area
            syntax = NAL_SYNTAX[codec]
            areas = [
                read(BitReader.of_nal(sps[syntax.header_bytes :])) for sps in syntax.sequence_parameter_sets(headers)
            ]
            if any((one.left, one.top, one.width, one.height) != (0, 0, width, height) for one in areas):
                return _SIZE
            return _FIELDS if any(one.fields for one in areas) else ""
        if codec == "mpeg4":
            layers = mpeg4.video_object_layers(headers)
            if any((one.width, one.height) != (width, height) for one in layers):
                return _SIZE
            if not all(one.plain for one in layers):
                return "decode sessions garble MPEG-4 with sprites, partitioned data and the like"
            return _FIELDS if any(one.interlaced for one in layers) else ""
    except ValueError:
        return "its headers cannot be read"
    return ""


def has_headers(codec: str, headers: bytes) -> bool:
    """Whether there is among headers what `misfit` looks at."""
    if codec in NAL_SYNTAX:
        return bool(NAL_SYNTAX[codec].sequence_parameter_sets(headers))
    return codec != "mpeg4" or bool(mpeg4.video_object_layers(headers))


def changes_size(codec: str, packets: Iterable[bytes], width: int, height: int) -> bool:
    """Whether a packet of VP8 or VP9 says that its frames have another size than these, or cannot be read: resolutions
    that change midway, and spatial layers."""
    if codec not in ("vp8", "vp9"):
        return False
    try:
        return any(not vpx.coded_sizes(codec, packet) <= {(width, height)} for packet in packets)
    except ValueError:
        return True
