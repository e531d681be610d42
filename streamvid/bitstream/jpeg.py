"""JPEG: classifies Motion JPEG packets; and reads the coding process, completeness and EXIF orientation of image files
before they are decoded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, TypeVar

from streamvid.bitstream.packet_kind import Classifier, PacketKind
from streamvid.errors import VideoError

Bytes = TypeVar("Bytes", bytes, memoryview)
# ITU-T T.81, table B.1. FFmpeg's decoder takes baseline, extended and progressive Huffman coding.
DECODED: Final = (0xC0, 0xC1, 0xC2)
FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SCAN, _EXIF, _QUANTIZATION, _HUFFMAN = 0xDA, 0xE1, 0xDB, 0xC4
_END: Final = b"\xff\xd9"
_ORIENTATION: Final = 0x0112
_MAX_SEGMENTS: Final = 1 << 16
"""Segments and fill bytes of a picture that are looked at."""
ROTATIONS: Final = {1: 0, 2: 360, 3: 180, 4: 540, 5: 630, 6: 90, 7: 450, 8: 270}
"""EXIF orientation → `streamvid.mp4.boxes.ROTATIONS`."""


def classifier(stsd: bytes) -> Classifier:
    """See `streamvid.bitstream.packet_info.classifier`.

    Every packet of Motion JPEG is a picture of its own, but may lack tables that an earlier packet has (B.2.4 of ITU-T
    T.81): then it is no random access point. `finalize` completes the result.
    """
    brought: set[tuple[int, int]] = set()

    def classify(packet: memoryview) -> PacketKind:
        own = set(_tables(packet))
        start = brought <= own
        brought.update(own)
        markers = {marker for marker, _ in segments(packet)}
        # FFmpeg shows what lies in memory for a picture without a scan, and says nothing.
        broken = bool(markers & FRAMES) and _SCAN not in markers and bytes((0xFF, _SCAN)) not in bytes(packet)
        return PacketKind(random_access=start, disposable=True, broken=broken, size=_picture_size(packet))

    return classify


def finalize(kinds: list[PacketKind]) -> list[PacketKind]:
    """If a picture needs tables of earlier ones, no packet is disposable, because it is unknown which packet has
    them."""
    if all(kind.random_access for kind in kinds):
        return kinds
    return [replace(kind, disposable=False) for kind in kinds]


def has_tables(data: bytes) -> bool:
    """Whether a picture has its own quantization and Huffman tables."""
    return {_QUANTIZATION, _HUFFMAN} <= {marker for marker, _ in _tables(memoryview(data))}


def fits_nvjpeg(data: bytes) -> bool:
    """Whether nvJPEG decodes a JPEG in grey or YCbCr as libjpeg-turbo does.

    It decodes others wrongly: with quantization tables of 16 bits (B.2.4.1), and in grey with sampling factors other
    than 1, which mean nothing for a single component (A.2.2). It interpolates chroma of one or two columns, which
    libjpeg-turbo does not.
    """
    for marker, payload in segments(data):
        if marker in FRAMES:
            width, count, sampling = int.from_bytes(payload[3:5], "big"), payload[5], payload[7]
            if (sampling != 0x11) if count == 1 else (width <= 4):
                return False
        at = 0
        while marker == _QUANTIZATION and at < len(payload):
            if payload[at] >> 4:
                return False
            at += 65
    return True


def _tables(packet: memoryview) -> Iterator[tuple[int, int]]:
    """Marker and number of each table before the first scan; for Huffman tables also the class (B.2.4.1, B.2.4.2)."""
    for marker, payload in segments(packet):
        at = 0
        while marker in (_QUANTIZATION, _HUFFMAN) and at < len(payload):
            number = payload[at]
            if marker == _HUFFMAN:
                yield marker, number
                at += 17 + sum(payload[at + 1 : at + 17])
            else:
                yield marker, number & 15
                at += 1 + 64 * (1 + (number >> 4))


def check_jpeg(data: bytes, name: str) -> None:
    """Refuse an image file that cannot become a frame of Motion JPEG.

    Raises:
        VideoError: the file is no JPEG, cut off, coded losslessly or arithmetically, or neither grey nor YCbCr with 8
            bits.
    """
    if data[:2] != b"\xff\xd8":
        raise VideoError(f"{name} is no JPEG")
    try:
        check_complete(data)
    except ValueError:
        raise VideoError(f"{name} is cut off") from None
    for marker, payload in segments(data):
        if marker in FRAMES:
            if marker not in DECODED:
                raise VideoError(f"{name} is a lossless or arithmetic JPEG: save it as baseline or progressive")
            if len(payload) < 6 or payload[0] != 8 or payload[5] not in (1, 3):
                raise VideoError(f"{name} is not 8-bit grey or YCbCr: save it so")


def check_complete(data: bytes) -> None:
    """Refuse a file that is cut off, because decoders fill the missing part without an error. Data after the end
    marker, such as the video of a motion photo, are allowed; a thumbnail's end marker does not count."""
    at = max((end for _, _, end in _positions(data)), default=2)
    if data.rfind(_END, max(at, len(data) - 65536)) < 0 and data.find(_END, at) < 0:
        raise ValueError("it is cut off")


def orientation(data: bytes) -> int:
    """EXIF orientation, 1 to 8; 1 if the file has none."""
    for marker, payload in segments(data):
        if marker == _EXIF and payload[:6] == b"Exif\0\0":
            return _tiff_orientation(payload[6:])
    return 1


def rotation(data: bytes) -> int:
    """The display rotation of a JPEG, from its EXIF orientation: one of `streamvid.mp4.boxes.ROTATIONS`."""
    return ROTATIONS[orientation(data)]


def rotation_of_exif(exif: bytes) -> int:
    """The display rotation from EXIF metadata, with or without their identifier in a JPEG."""
    return ROTATIONS[_tiff_orientation(exif.removeprefix(b"Exif\0\0"))]


def picture_height(data: bytes) -> int:
    """Lines of a JPEG picture, by its frame header (B.2.2 of ITU-T T.81); 0 if there is none before its data."""
    size = _picture_size(memoryview(data))
    return size[1] if size else 0


def _picture_size(packet: memoryview) -> tuple[int, int] | None:
    for marker, payload in segments(packet):
        if marker in FRAMES:
            return int.from_bytes(payload[3:5], "big"), int.from_bytes(payload[1:3], "big")
    return None


def segments(data: Bytes) -> Iterator[tuple[int, Bytes]]:
    """Marker and payload of each segment up to the first scan, whose payload is left out."""
    return ((marker, data[start:end]) for marker, start, end in _positions(data))


def _positions(data: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    """Marker, and start and end of the payload, of each segment up to the first scan, whose payload is left out."""
    at = 2
    for _ in range(_MAX_SEGMENTS):
        if at + 4 > len(data) or data[at] != 0xFF:
            return
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == _SCAN:
            yield marker, at, at
            return
        (size,) = struct.unpack_from(">H", data, at + 2)
        if size < 2:
            return
        yield marker, at + 4, at + 2 + size
        at += 2 + size


def _tiff_orientation(tiff: bytes) -> int:
    """The orientation tag of the first directory (TIFF 6.0, section 2)."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 10:
        return 1
    (start,) = struct.unpack_from(f"{order}I", tiff, 4)
    if start + 2 > len(tiff):
        return 1
    (count,) = struct.unpack_from(f"{order}H", tiff, start)
    for n in range(count):
        entry = start + 2 + 12 * n
        if entry + 12 > len(tiff):
            break
        tag, kind = struct.unpack_from(f"{order}HH", tiff, entry)
        if tag == _ORIENTATION and kind in (3, 4):
            (value,) = struct.unpack_from(f"{order}{'HI'[kind - 3]}", tiff, entry + 8)
            return int(value) if 1 <= value <= 8 else 1
    return 1
