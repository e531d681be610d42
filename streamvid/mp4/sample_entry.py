"""A video track's sample description box (`stsd`), and the codec's configuration box in it (ISO/IEC 14496-12, 8.5.2 and
12.1.3).

Sample descriptions are copied as a whole from source to clip to slice, so this module need not know the codecs.
"""

from __future__ import annotations

import re
import struct
from typing import Final

from streamvid.mp4.boxes import be32, box, children, find_box, find_track, full_box, iter_boxes

ENTRY_BYTES: Final = 86
"""Box header and fixed fields of a VisualSampleEntry; its configuration boxes follow."""
ENTRY_START: Final = 16
"""Where the first entry of a `stsd` box begins: after box header, version and flags, and entry count."""
BIT_RATE_BOX: Final = r"(?s)\x00\x00\x00\x14btrt.{12}"
"""The box of bit rates (8.5.2.2) as a regular expression. FFmpeg writes other ones into every file, and they do not
matter for decoding: sample descriptions are compared without it."""
_SIZE_AT: Final = ENTRY_START + 32
_MIN_CONFIGURATION_BYTES: Final = {
    b"avcC": 7, b"hvcC": 22, b"av1C": 4, b"colr": 10, b"vpcC": 10, b"esds": 4, b"dvcC": 5, b"dvvC": 5,
}  # fmt: skip


def sample_description(data: bytes | memoryview) -> bytes:
    """The `stsd` box, header included, of the only video track of an MP4.

    Raises:
        ValueError: there is no such box, or it has more than one entry.
    """
    found = find_box(data, b"stsd")
    if found is None:
        raise ValueError("no sample description box in the MP4")
    payload, stop = found
    if stop - payload < 8 or struct.unpack_from(">I", data, payload + 4)[0] != 1:
        raise ValueError("the video changes its format midway (more than one sample description)")
    return bytes(data[payload - 8 : stop])


def read_entries(moov: bytes, track: int) -> dict[bytes, dict[bytes, bytes]]:
    """The sample entries of a video track by their four-letter codes, each as the payloads of its boxes without that of
    bit rates.

    Args:
        moov: the payload of a `moov` box.
        track: the track's number (`track_ID`).

    Returns:
        empty if it cannot be parsed.
    """
    try:
        start, end = find_track(moov, track)[b"mdia"]
        for name in (b"minf", b"stbl", b"stsd"):
            start, end = children(moov, start, end)[name]
    except (struct.error, IndexError, KeyError):
        return {}
    return {
        kind: {
            name: moov[at:to] for name, at, to in iter_boxes(moov, payload - 8 + ENTRY_BYTES, stop) if name != b"btrt"
        }
        for kind, payload, stop in iter_boxes(moov, start + 8, end)
    }


def codec_configuration(stsd: bytes, name: bytes) -> bytes:
    """The payload of a box such as `avcC` inside the sample description's only entry.

    Raises:
        ValueError: there is no such box, or it is too short.
    """
    for kind, payload, end in iter_boxes(stsd, ENTRY_START + ENTRY_BYTES, len(stsd)):
        if kind == name:
            if end - payload < _MIN_CONFIGURATION_BYTES[name]:
                raise ValueError(f"the {name.decode()} box is too short")
            return stsd[payload:end]
    raise ValueError(f"no {name.decode()} box in the sample description")


def without_sequence_header(stsd: bytes) -> bytes:
    """A sample description with its `av1C` cut to the four fixed bytes (AV1 Codec ISO Media File Format Binding,
    2.3.3); unchanged for other codecs.

    The sequence header in `av1C` may allow larger pictures than the stream has, and FFmpeg refuses those: SVT-AV1's
    allows 16384x8704 with switch frames. The stream repeats the header, and there each picture's size counts.
    """
    for kind, payload, end in iter_boxes(stsd, ENTRY_START + ENTRY_BYTES, len(stsd)):
        if kind == b"av1C" and end > payload + 4:
            shorter = bytearray(stsd[: payload + 4] + stsd[end:])
            for at in (0, ENTRY_START, payload - 8):
                (size,) = struct.unpack_from(">I", stsd, at)
                struct.pack_into(">I", shorter, at, max(0, size - (end - payload - 4)))
            return bytes(shorter)
    return stsd


def without_bit_rate(stsd: bytes) -> bytes:
    """A sample description without bit rates, to compare with others; its box sizes are wrong."""
    return re.sub(BIT_RATE_BOX.encode(), b"", stsd)


def coded_size(stsd: bytes) -> tuple[int, int]:
    """Width and height in the sample description's only entry, in pixels.

    Raises:
        ValueError: the sample description is too short.
    """
    if len(stsd) < ENTRY_START + ENTRY_BYTES:
        raise ValueError("the sample description is too short")
    width, height = struct.unpack_from(">HH", stsd, _SIZE_AT)
    return width, height


def with_coded_size(stsd: bytes, width: int, height: int) -> bytes:
    """A sample description with another width and height, in pixels."""
    return stsd[:_SIZE_AT] + struct.pack(">HH", width, height) + stsd[_SIZE_AT + 4 :]


def visual_sample_description(entry: bytes, configuration: bytes, *, width: int, height: int) -> bytes:
    """A `stsd` box with one VisualSampleEntry.

    Args:
        entry: the entry's four-letter code, such as b"vp08".
        configuration: the whole configuration box.
        width, height: of the coded frames, in pixels.
    """
    # data_reference_index; width, height; 72 dpi both ways; frame_count; compressorname; depth.
    fields = struct.pack(">H16xHHIIIH32sHH", 1, width, height, 72 << 16, 72 << 16, 0, 1, bytes(32), 24, 0xFFFF)
    return full_box(b"stsd", be32([1]), box(entry, bytes(6), fields, configuration))


_ES, _DECODER_CONFIGURATION, _DECODER_SPECIFIC_INFO = 3, 4, 5
"""Tags of descriptors (ISO/IEC 14496-1, 7.2.2.1)."""
_FIELD_BYTES: Final = {_ES: 3, _DECODER_CONFIGURATION: 13, _DECODER_SPECIFIC_INFO: 0}
"""Before the descriptors inside (7.2.6.5 and 7.2.6.6)."""


def _descriptors(payload: bytes) -> dict[int, bytes]:
    """The nested descriptors of an `esds` box by their tags, as far as they have the usual order."""
    found, at, end = {}, 4, len(payload)
    for tag, fields in _FIELD_BYTES.items():
        if payload[at : at + 1] != bytes([tag]):
            break
        at, size = at + 1, 0
        more = True
        while more:  # sizeOfInstance: seven bits a byte, and whether another follows
            more, size, at = payload[at] > 127, size << 7 | payload[at] & 127, at + 1
        found[tag] = payload[at : min(end, at + size)]
        if tag == _ES and found[tag][2:3] > b"\x1f":  # streamDependenceFlag, URL_Flag, OCRstreamFlag
            break
        at, end = at + fields, min(end, at + size)
    return found


def codec_of_esds(payload: bytes) -> str:
    """ "mpeg4" or "mjpeg" by the objectTypeIndication of an `esds` box (ISO/IEC 14496-1, 7.2.6.6); "" for other codecs,
    or an unusual box."""
    kinds = {0x20: "mpeg4", 0x6C: "mjpeg"}
    return kinds.get(int.from_bytes(_descriptors(payload).get(_DECODER_CONFIGURATION, b"")[:1], "big"), "")


def decoder_specific_info(stsd: bytes) -> bytes:
    """The headers in the `esds` box of MPEG-4 part 2 (DecoderSpecificInfo, ISO/IEC 14496-1, 7.2.6.7); empty if packets
    have them.

    Raises:
        ValueError: the sample description has no such box, or an unusual one.
    """
    try:
        found = _descriptors(codec_configuration(stsd, b"esds"))
    except IndexError:
        found = {}
    if _DECODER_CONFIGURATION not in found:
        raise ValueError("the esds box in the sample description is damaged")
    return found.get(_DECODER_SPECIFIC_INFO, b"")


def mjpeg_sample_description(stsd: bytes) -> bytes:
    """The sample description for Motion JPEG in an MP4, made from that of a MOV file (`jpeg`)."""
    decoder = bytes([4, 13, 0x6C, 0x11]) + bytes(11)  # a video stream, without buffer size and bit rates
    esds = full_box(b"esds", bytes([3, 3 + len(decoder) + 3, 0, 0, 0]) + decoder + bytes([6, 1, 2]))
    kept = [
        stsd[at - 8 : end] for kind, at, end in iter_boxes(stsd, ENTRY_START + ENTRY_BYTES, len(stsd)) if kind in _SHOWN
    ]
    width, height = coded_size(stsd)
    return visual_sample_description(b"mp4v", b"".join([esds, *kept]), width=width, height=height)


_SHOWN: Final = (b"pasp", b"colr", b"fiel")
"""Boxes of a sample entry that say how pictures are shown."""
