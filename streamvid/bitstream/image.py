"""Parses the headers of image files before they are decoded: JPEG, PNG, WebP, TIFF, BMP, JPEG 2000.

Only features on which all used decoders agree are accepted; all others are refused, with the reason.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from streamvid.bitstream import jpeg
from streamvid.bitstream.packet_kind import PacketKind
from streamvid.mp4.boxes import iter_boxes
from streamvid.mp4.sample_entry import coded_size

CODECS: Final[Mapping[str, bytes]] = {
    "jpeg": b"jpeg", "png": b"png ", "webp": b"webp", "tiff": b"tiff", "bmp": b"bmp ", "jpeg2000": b"mjp2",
}  # fmt: skip
"""Codecs of clips that are single images → the four letters of their sample entries, QuickTime's where it has some."""
MAX_SIDE: Final = 16384
"""Frames wider or higher than this, in pixels, are refused: no model needs them, and a header may be forged."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_JP2: Final = b"\0\0\0\x0cjP  \r\n\x87\n"
_CODESTREAM: Final = b"\xff\x4f\xff\x51"
_SUBSAMPLED: Final = {(1, 1): "444", (2, 1): "422", (2, 2): "420", (1, 2): "440", (4, 1): "411"}
_PNG_FORMATS: Final = {
    (0, 1): "monob", (0, 2): "gray", (0, 4): "gray", (0, 8): "gray", (0, 16): "gray16be",
    (2, 8): "rgb24", (2, 16): "rgb48be", (3, 1): "pal8", (3, 2): "pal8", (3, 4): "pal8", (3, 8): "pal8",
    (4, 8): "ya8", (4, 16): "ya16be", (6, 8): "rgba", (6, 16): "rgba64be",
}  # fmt: skip
"""By colour type and bit depth (PNG, 11.2.1)."""
_BMP_FORMATS: Final = {1: "pal8", 4: "pal8", 8: "pal8", 24: "bgr24", 32: "bgra"}
_TIFF_TAGS: Final = {1: "B", 2: "B", 3: "H", 4: "I"}
_TIFF_READ: Final = frozenset((256, 257, 258, 259, 262, 273, 274, 277, 279, 284, 324, 325, 339))
"""Tags that are looked at, each once, as in libtiff."""
_TIFF_COMPRESSIONS: Final = (1, 2, 3, 4, 5, 7, 8, 32773, 32946)
_TIFF_COLOURS: Final = {5: "CMYK", 8: "Lab", 9: "Lab", 10: "Lab"}
_MAX_AREA: Final = (1 << 28) - 1
"""FFmpeg's limit (`av_image_check_size`) of width and height, 128 added to each."""
_MAX_CLAIMED: Final = 1 << 25
_MAX_DENSITY: Final = 1 << 16
"""An image of more pixels than the first has a byte for each so many at least, as the blankest page of a fax has
(ITU-T T.6: a bit a line). Decoders allocate what a header claims, OpenJPEG 16 bytes for each pixel."""
_MAX_PARTS: Final = 1 << 16
"""Chunks or boxes of a file that are looked at."""
_MAX_TILES: Final = 1 << 20
"""Strips or tiles of a TIFF, and tile-parts of JPEG 2000, that are looked at: tiles of 16x16 in the largest image."""
_CUT_OFF: Final = "it is cut off"


@dataclass(frozen=True)
class ImageHeader:
    """The contents of the header of an image file.

    Attributes:
        codec: one of `CODECS`.
        width, height: stored size in pixels.
        pix_fmt: FFmpeg's name of the pixel format; or "cmyk", for which FFmpeg has no name.
        rotation: the display rotation, from the EXIF orientation: one of `streamvid.mp4.boxes.ROTATIONS`.
        head, part: what decoders get instead of the whole file: a head, and the bytes of the file from and to these
            positions; None is the whole file.
    """

    codec: str
    width: int
    height: int
    pix_fmt: str
    rotation: int = 0
    head: bytes = b""
    part: tuple[int, int] | None = None


class AnimationError(ValueError):
    """An image file that FFmpeg reads as a video."""


def is_image(head: bytes) -> bool:
    """Whether a file that begins with `head` is an image of a supported format."""
    return _reader(head) is not None


def read_header(data: bytes) -> ImageHeader:
    """Read the header of a complete image file.

    Raises:
        ValueError: the file is no image, damaged, cut off, too large, or of an unsupported kind; as AnimationError: an
            animation.
    """
    read = _reader(data)
    if read is None:
        raise ValueError("it is no JPEG, PNG, WebP, TIFF, BMP or JPEG 2000")
    try:
        header = read(data)
    except (struct.error, IndexError) as error:
        raise ValueError(_CUT_OFF) from error
    if not (0 < header.width <= MAX_SIDE and 0 < header.height <= MAX_SIDE):
        raise ValueError(f"it is {header.width}x{header.height}; the limit is {MAX_SIDE} on a side")
    if (header.width + 128) * (header.height + 128) >= _MAX_AREA:
        raise ValueError(f"it is {header.width}x{header.height}, more pixels than a frame of FFmpeg can have")
    if header.width * header.height > max(_MAX_CLAIMED, _MAX_DENSITY * len(data)):
        raise ValueError(f"it claims {header.width}x{header.height} pixels, and has only {len(data):,} bytes")
    return header


def is_image_entry(stsd: bytes) -> bool:
    """Whether a sample description is of an image."""
    return stsd[20:24] in CODECS.values()


def to_decode(data: bytes, stsd: bytes) -> tuple[ImageHeader, bytes]:
    """The header of an image, checked against its clip, and the bytes for decoders: see `part_to_decode`.

    Raises:
        ValueError: as in `part_to_decode`.
    """
    header, head, (start, end) = part_to_decode(data, stsd)
    return header, head + data[start:end] + bytes((end - start) % 2) if head else data


def part_to_decode(data: bytes, stsd: bytes) -> tuple[ImageHeader, bytes, tuple[int, int]]:
    """The header of an image, checked against its clip, and the bytes for decoders: a head, and a part of the file.

    For WebP, that is only the picture, padded to even length, because DALI's parser fails on chunks after one of odd
    length, and alpha is left out in any case. For TIFFs with an orientation it is the file without it, because some
    that nvImageCodec has OpenCV decode would be turned, in memory that is not large enough. For all other files it is
    the file, without a head.

    Raises:
        ValueError: as in `read_header`, or the image contradicts the sample description.
    """
    header = read_header(data)
    if CODECS[header.codec] != stsd[20:24] or (header.width, header.height) != coded_size(stsd):
        raise ValueError(f"it is a {header.codec} of {header.width}x{header.height}, which contradicts its row")
    return header, header.head, header.part or (0, len(data))


def classify(packet: memoryview) -> PacketKind:
    """An image is a picture of its own."""
    try:
        read_header(bytes(packet))
    except ValueError:
        return PacketKind(random_access=True, disposable=True, broken=True)
    return PacketKind(random_access=True, disposable=True)


def _reader(head: bytes) -> Callable[[bytes], ImageHeader] | None:
    readers: tuple[tuple[bytes, Callable[[bytes], ImageHeader]], ...] = (
        (b"\xff\xd8\xff", _jpeg), (_PNG, _png), (b"II*\0", _tiff), (b"MM\0*", _tiff),
        (b"II+\0", _tiff), (b"MM\0+", _tiff), (b"BM", _bmp), (_JP2, _jp2), (_CODESTREAM, _jp2),
    )  # fmt: skip
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _webp
    return next((read for start, read in readers if head.startswith(start)), None)


def _jpeg(data: bytes) -> ImageHeader:
    """ITU-T T.81, B.2.2."""
    jpeg.check_complete(data)
    frame = next(((marker, body) for marker, body in jpeg.segments(data) if marker in jpeg.FRAMES), None)
    if frame is None:
        raise ValueError("it has no frame header")
    marker, body = frame
    bits, height, width, count = struct.unpack_from(">BHHB", body)
    if marker not in jpeg.DECODED:
        raise ValueError("it is a lossless or arithmetic JPEG: save it as baseline or progressive")
    if bits != 8 or count not in (1, 3, 4):
        raise ValueError(f"it is a JPEG of {count} components of {bits} bits: save it with 8 bits in grey, RGB or CMYK")
    pix_fmt = {1: "gray", 4: "cmyk"}.get(count, "")
    if not pix_fmt:
        (luma, *chroma) = [(body[7 + 3 * n] >> 4, body[7 + 3 * n] & 15) for n in range(3)]
        if luma not in _SUBSAMPLED or chroma != [(1, 1), (1, 1)]:
            raise ValueError("its chroma is subsampled in an unusual way: save it again")
        pix_fmt = "gbrp" if _is_rgb_jpeg(data, body) else f"yuvj{_SUBSAMPLED[luma]}p"
    return ImageHeader("jpeg", width, height, pix_fmt, jpeg.rotation(data))


def _is_rgb_jpeg(data: bytes, frame: bytes) -> bool:
    """Whether three components are R, G and B, decided like libjpeg: by Adobe's marker, or else by their names."""
    kinds = [(marker, body[:12]) for marker, body in jpeg.segments(data)]
    if any(marker == 0xE0 and body[:5] == b"JFIF\0" for marker, body in kinds):
        return False
    adobe = [body[11] for marker, body in kinds if marker == 0xEE and body[:5] == b"Adobe" and len(body) > 11]
    return adobe[-1] == 0 if adobe else frame[6:15:3] == b"RGB"


def _png(data: bytes) -> ImageHeader:
    """PNG (third edition), 5 and 11."""
    width, height, bits, colour = 0, 0, 0, 0
    rotation, begun = 0, False
    for number, (kind, body) in enumerate(_chunks(data, len(_PNG), ">I4s", sized_first=True, trailer=4)):
        if number == 0:
            if kind != b"IHDR":
                raise ValueError("it does not begin with the header of a PNG")
            width, height, bits, colour = struct.unpack_from(">IIBB", body)
        elif kind == b"IDAT":
            begun = True
        elif kind == b"acTL" and not begun:
            raise AnimationError("it is an animated PNG, which is a video")
        elif kind == b"eXIf":
            rotation = jpeg.rotation_of_exif(bytes(body))
        elif kind == b"IEND":
            break
    else:
        raise ValueError(_CUT_OFF)
    if (colour, bits) not in _PNG_FORMATS:
        raise ValueError(f"it has the colour type {colour} with {bits} bits, which no PNG has")
    return ImageHeader("png", width, height, _PNG_FORMATS[colour, bits], rotation)


def _webp(data: bytes) -> ImageHeader:
    """RFC 9649, 2."""
    end = struct.unpack_from("<I", data, 4)[0] + 8
    if end > len(data):
        raise ValueError(_CUT_OFF)
    found: ImageHeader | None = None
    canvas, rotation, at = None, 0, 12
    for kind, body in _chunks(memoryview(data)[:end], 12, "<4sI", sized_first=False, trailer=0):
        part = (at, at + 8 + len(body))
        at = part[1] + len(body) % 2
        if kind == b"VP8X":
            if body[0] & 2:
                raise ValueError("it is an animated WebP, which FFmpeg does not decode: convert it to a video")
            canvas = tuple(1 + int.from_bytes(body[n : n + 3], "little") for n in (4, 7))
        elif kind == b"VP8 " and found is None:
            if bytes(body[3:6]) != b"\x9d\x01\x2a":
                raise ValueError("its picture is damaged")
            width, height = struct.unpack_from("<HH", body, 6)
            found = ImageHeader("webp", width & 0x3FFF, height & 0x3FFF, "yuv420p", part=part)
        elif kind == b"VP8L" and found is None:
            signature, bits = struct.unpack_from("<BI", body)
            if signature != 0x2F:
                raise ValueError("its picture is damaged")
            found = ImageHeader("webp", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF), "argb", part=part)
        elif kind == b"EXIF":
            rotation = jpeg.rotation_of_exif(bytes(body))
    if found is None:
        raise ValueError("it holds no picture")
    if canvas not in (None, (found.width, found.height)):
        raise ValueError("its picture has another size than its canvas")
    start, end = found.part or (0, 0)
    head = b"RIFF" + (4 + end - start + (end - start) % 2).to_bytes(4, "little") + b"WEBP"
    return replace(found, rotation=rotation, head=head)


def _bmp(data: bytes) -> ImageHeader:
    """The info header of Windows 3, and later headers that begin with it."""
    start, size = struct.unpack_from("<II", data, 10)
    if size < 40:
        raise ValueError("it is a BMP of OS/2: save it again")
    width, height, planes, bits, compression = struct.unpack_from("<iiHHI", data, 18)
    if planes != 1 or bits not in _BMP_FORMATS or compression not in ((0,) if bits < 32 else (0, 3)):
        raise ValueError(f"it is a BMP with {bits} bits of compression {compression}: save it with 24 bits")
    if compression == 3 and struct.unpack_from("<III", data, 54) != (0xFF0000, 0xFF00, 0xFF):
        raise ValueError("it is a BMP with masks of its own: save it with 24 bits")
    if width > 0 and start + (-(-width * bits // 32) * 4) * abs(height) > len(data):
        raise ValueError(_CUT_OFF)
    return ImageHeader("bmp", width, abs(height), _BMP_FORMATS[bits])


def _tiff(data: bytes) -> ImageHeader:
    """TIFF 6.0, 2 and 8."""
    if 43 in data[2:4]:
        raise ValueError("it is a BigTIFF: save it as a TIFF")
    order = "<" if data[:2] == b"II" else ">"
    turned = None
    tags: dict[int, tuple[int, ...]] = {}
    (at,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, at)
    for entry in range(at + 2, at + 2 + 12 * count, 12):
        tag, kind, number = struct.unpack_from(f"{order}HHI", data, entry)
        if tag == 274 and turned is None:
            turned = entry
        if tag not in _TIFF_READ or tag in tags or kind not in _TIFF_TAGS or number > _MAX_TILES:
            continue
        form = f"{order}{number}{_TIFF_TAGS[kind]}"
        inside = entry + 8 if struct.calcsize(form) <= 4 else struct.unpack_from(f"{order}I", data, entry + 8)[0]
        tags[tag] = struct.unpack_from(form, data, inside)
    if struct.unpack_from(f"{order}I", data, at + 2 + 12 * count)[0]:
        raise ValueError("it is a TIFF of several pages: save each as a file")

    def first(number: int, default: int) -> int:
        return tags[number][0] if tags.get(number) else default

    width, height, colour, samples = first(256, 0), first(257, 0), first(262, -1), first(277, 1)
    bits, compression = tags.get(258, ()), first(259, 1)
    if first(284, 1) == 2 and (samples > 3 or bits[:1] > (8,)):  # nvImageCodec has OpenCV decode planes
        raise ValueError("it is a TIFF of separate planes with alpha or 16 bits: save it interleaved")
    _check_tiff(colour, samples, bits, compression, set(tags.get(339, (1,))))
    starts, sizes = (tags.get(324) or tags.get(273, ()), tags.get(325) or tags.get(279, ()))
    if not starts or len(starts) != len(sizes):
        raise ValueError("it has no offsets of strips or tiles")
    if any(start + size > len(data) for start, size in zip(starts, sizes, strict=True)):
        raise ValueError(_CUT_OFF)
    if bits[0] == 1:
        pix_fmt = "monow" if colour == 0 else "monob"
    elif colour == 3:
        pix_fmt = "pal8"
    else:
        pix_fmt = {1: "gray", 3: "rgb24", 4: "rgba"}[samples]
        if bits[0] == 16:
            end = "le" if order == "<" else "be"
            pix_fmt = {1: "gray16", 3: "rgb48", 4: "rgba64"}[samples] + end
    header = ImageHeader("tiff", width, height, pix_fmt, jpeg.ROTATIONS.get(first(274, 1), 0))
    upright = struct.pack(f"{order}HHIHH", 274, 3, 1, 1, 0)
    if turned is None or data.startswith(upright, turned):
        return header
    return replace(header, head=data[:turned] + upright, part=(turned + 12, len(data)))


def _check_tiff(colour: int, samples: int, bits: tuple[int, ...], compression: int, formats: set[int]) -> None:
    """Refuse features that decoders read differently, or not at all."""
    if not bits or len(bits) != samples:
        raise ValueError("it does not say how many bits its samples have")
    if formats != {1}:
        raise ValueError("its samples are signed or floating-point numbers: save it with 8 or 16 bits")
    if colour in _TIFF_COLOURS:
        raise ValueError(f"it is in {_TIFF_COLOURS[colour]}: save it in RGB")
    wanted = {0: (1,), 1: (1,), 2: (3, 4), 3: (1,), 6: (3,)}.get(colour, ())
    usual = {0: (1, 8), 1: (1, 8, 16), 2: (8, 16)}.get(colour, (8,))
    if samples not in wanted or len(set(bits)) > 1 or bits[0] not in usual or (colour == 6 and compression != 7):
        raise ValueError(f"it is a TIFF of {samples} samples of {bits[0]} bits in the colours {colour}: save it in RGB")
    if compression not in _TIFF_COMPRESSIONS or (compression in (2, 3, 4) and bits[0] != 1):
        raise ValueError(f"it is a TIFF of compression {compression}: save it with LZW or Deflate")


def _jp2(data: bytes) -> ImageHeader:
    """ITU-T T.800, I.5 and A.5.1."""
    start, end = _codestream(data) if data.startswith(_JP2) else (0, len(data))
    if data[start : start + 4] != _CODESTREAM:
        raise ValueError("it holds no JPEG 2000 codestream")
    right, bottom, left, top = struct.unpack_from(">IIII", data, start + 8)
    (count,) = struct.unpack_from(">H", data, start + 40)
    parts = [struct.unpack_from(">BBB", data, start + 42 + 3 * n) for n in range(min(count, 5))]
    bits = parts[0][0] + 1
    if any(part != (bits - 1, 1, 1) for part in parts) or bits not in (8, 16) or count not in (1, 3, 4) or left or top:
        raise ValueError("it is a JPEG 2000 of other than one, three or four components of 8 or 16 bits and one size")
    _check_tile_parts(data, start, end)
    names = {1: "gray", 3: "rgb24", 4: "rgba"} if bits == 8 else {1: "gray16le", 3: "rgb48le", 4: "rgba64le"}
    return ImageHeader("jpeg2000", right, bottom, names[count])


def _codestream(data: bytes) -> tuple[int, int]:
    """Start and end of the codestream in a JP2 file."""
    boxes = _boxes(data, len(_JP2), len(data))
    header = (box for kind, at, end in boxes if kind == b"jp2h" for box in _boxes(data, at, end))
    for kind, at, _ in (*boxes, *islice(header, _MAX_PARTS)):
        if kind == b"pclr":
            raise ValueError("it is a JPEG 2000 with a palette: save it in RGB")
        if kind == b"colr" and data[at] == 1 and struct.unpack_from(">I", data, at + 3)[0] not in (16, 17):
            raise ValueError("it is a JPEG 2000 in other colours than RGB and grey: save it in RGB")
    return next(((at, end) for kind, at, end in boxes if kind == b"jp2c"), (0, 0))


def _check_tile_parts(data: bytes, at: int, end: int) -> None:
    """Refuse a codestream that ends before its end marker (A.4), because decoders may fill the missing part."""
    if b"\xff\xd9" in data[max(at, end - 64) : end]:
        return
    at += 2
    for _ in range(_MAX_TILES):
        marker, size = struct.unpack_from(">HH", data, at)
        if marker == 0xFFD9 and at < end:
            return
        at += struct.unpack_from(">I", data, at + 6)[0] if marker == 0xFF90 else 2 + size
    raise ValueError(_CUT_OFF)


def _boxes(data: bytes, start: int, end: int) -> list[tuple[bytes, int, int]]:
    """As `iter_boxes`. Raises ValueError if a box is cut off."""
    boxes = list(islice(iter_boxes(data, start, end), _MAX_PARTS))
    if end - (boxes[-1][2] if boxes else start) >= 8:
        raise ValueError(_CUT_OFF)
    return boxes


def _chunks(
    data: bytes | memoryview, at: int, form: str, *, sized_first: bool, trailer: int
) -> Iterator[tuple[bytes, memoryview]]:
    """The chunks of a PNG or RIFF file: name and content. Raises ValueError if a chunk is cut off."""
    view = memoryview(data)
    for _ in range(_MAX_PARTS):
        if at + 8 > len(data):
            return
        first, second = struct.unpack_from(form, data, at)
        size, kind = (first, second) if sized_first else (second, first)
        if at + 8 + size > len(data):
            raise ValueError(_CUT_OFF)
        yield kind, view[at + 8 : at + 8 + size]
        at += 8 + size + (trailer or size % 2)
    raise ValueError(f"it has more than {_MAX_PARTS} chunks")
