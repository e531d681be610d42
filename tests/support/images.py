"""Image files of all kinds that pack takes or lists, made with Pillow, and what each must decode to."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Picture = npt.NDArray[np.uint8]
HEIGHT, WIDTH = 46, 61


def picture(height: int = HEIGHT, width: int = WIDTH, channels: int = 3) -> Picture:
    """A picture without symmetry, smooth enough that a JPEG of it is near it."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [(np.sin(x / 9 + n) + np.cos(y / 7 - n)) * 50 + 120 + y / 2 for n in range(channels)]
    return np.stack(waves, axis=-1).clip(0, 255).astype(np.uint8)


def encode(image: Image.Image | Picture, form: str, **options: Any) -> bytes:
    """A file of Pillow's format of that name."""
    target = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(target, form, **options)
    return target.getvalue()


def chunk(kind: bytes, body: bytes) -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_of(samples: npt.NDArray[np.uint16], size: tuple[int, int] | None = None) -> bytes:
    """A PNG of 16 bits per channel, RGB; `size` (width, height) is what its header claims."""
    height, width, _ = samples.shape
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in samples)
    header = struct.pack(">IIBBBBB", *(size or (width, height)), 16, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def tiff_of(tags: Mapping[int, tuple[int, ...]], strips: list[bytes], extra: int = 0) -> bytes:
    """A TIFF of these tags, as SHORTs or LONGs, and strips without compression; and `extra` tags of a million bytes."""
    starts = [8 + sum(len(strip) for strip in strips[:n]) for n in range(len(strips))]
    tags = {**tags, 273: tuple(starts), 279: tuple(len(strip) for strip in strips)}
    data = b"".join(strips) + (bytes(1 << 20) if extra else b"")
    entries = b""
    for tag, values in sorted(tags.items()):
        kind, form = (4, "I") if tag in (273, 279) else (3, "H")
        value = struct.pack(f"<{len(values)}{form}", *values)
        if len(value) > 4:
            data, value = data + value, struct.pack("<I", 8 + len(data))
        entries += struct.pack("<HHI", tag, kind, len(values)) + value.ljust(4, b"\0")
    entries += b"".join(struct.pack("<HHII", 60000 + n, 1, 1 << 20, 8) for n in range(extra))
    return (
        struct.pack("<4sI", b"II*\0", 8 + len(data)) + data + struct.pack("<H", len(tags) + extra) + entries + bytes(4)
    )


def planar_tiff(samples: npt.NDArray[Any], orientation: int = 1) -> bytes:
    """A TIFF whose channels are stored one after the other."""
    height, width, count = samples.shape
    tags = {256: (width,), 257: (height,), 258: (samples.itemsize * 8,) * count, 259: (1,), 262: (2,), 277: (count,)}
    tags |= {274: (orientation,), 278: (height,), 284: (2,), **({338: (2,)} if count == 4 else {})}
    return tiff_of(tags, [np.ascontiguousarray(samples[..., n]).tobytes() for n in range(count)])


def exif(orientation: int) -> Image.Exif:
    """EXIF metadata with an orientation."""
    made = Image.Exif()
    made[0x112] = orientation
    return made


def by_orientation(upright: Picture) -> dict[int, Picture]:
    """The pixels of files that EXIF orientations stand upright, by orientation."""
    turned = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.transpose(1, 0, 2),
        6: np.rot90(upright), 7: upright[::-1, ::-1].transpose(1, 0, 2), 8: np.rot90(upright, -1),
    }  # fmt: skip
    return {number: np.ascontiguousarray(pixels) for number, pixels in turned.items()}


@dataclass(frozen=True)
class ImageFile:
    """An image file: its extension, codec, bytes, and its pixels, exact or within a level or so."""

    extension: str
    codec: str
    data: bytes
    pixels: Picture
    within: int = 0


def _by_pillow(data: bytes) -> Picture:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@cache
def taken() -> dict[str, ImageFile]:
    """Files that are clips, by name."""
    rgb, alpha = picture(), picture(channels=4)
    whole, grey = Image.fromarray(rgb), Image.fromarray(rgb).convert("L")
    deep = (rgb.astype(np.int64) * 257 + 4 * (np.arange(WIDTH)[:, None] - 30)).clip(0, 65535)
    deep16 = deep.astype(np.uint16)
    grey16 = Image.fromarray(deep16[..., 0])
    rounded: Picture = np.rint(deep16 / 257).astype(np.uint8)
    files: dict[str, ImageFile] = {}

    def add(name: str, codec: str, form: str, image: Image.Image | Picture, **options: Any) -> None:
        data = encode(image, form, **options)
        extension = {"JPEG": "jpg", "JPEG2000": "jp2", "TIFF": "tif"}.get(form, form.lower())
        files[name] = ImageFile(extension, codec, data, _by_pillow(data))

    for name, image, options in (
        ("420", whole, {}), ("444", whole, {"subsampling": 0}), ("422", whole, {"subsampling": 1}),
        ("progressive", whole, {"progressive": True}), ("grey", grey, {}), ("cmyk", whole.convert("CMYK"), {}),
        ("rgb", whole, {"keep_rgb": True}), ("restarts", whole, {"restart_marker_rows": 1}),
    ):  # fmt: skip
        add(f"jpeg_{name}", "jpeg", "JPEG", image, quality=90, **options)
    add("jpeg_wide_steps", "jpeg", "JPEG", whole, qtables=[[300] * 64] * 2)
    data = bytearray(files["jpeg_grey"].data)
    data[data.index(b"\xff\xc0") + 11] = 0x22  # sampling factors, which mean nothing for a single component
    files["jpeg_grey22"] = replace(files["jpeg_grey"], data=bytes(data))
    for name, image, options in (
        ("rgb", whole, {}), ("rgba", alpha, {}), ("grey", grey, {}), ("grey_alpha", grey.convert("LA"), {}),
        ("palette", whole.convert("P"), {}), ("bits1", whole.convert("1"), {}),
        ("clear", whole.convert("P"), {"transparency": 3}), ("bits4", whole.quantize(16), {"bits": 4}),
    ):  # fmt: skip
        add(f"png_{name}", "png", "PNG", image, **options)
    add("webp_lossy", "webp", "WEBP", whole, quality=90)
    add("webp_lossless", "webp", "WEBP", whole, lossless=True)
    add("webp_exif", "webp", "WEBP", whole, lossless=True, exif=exif(1))
    add("webp_alpha", "webp", "WEBP", alpha, lossless=True)
    for compression in ("raw", "tiff_lzw", "tiff_deflate", "packbits"):
        add(f"tiff_{compression}", "tiff", "TIFF", whole, compression=compression)
    add("tiff_rgba", "tiff", "TIFF", alpha)
    add("tiff_grey", "tiff", "TIFF", grey)
    add("tiff_bits1", "tiff", "TIFF", whole.convert("1"), compression="group4")
    for name, image in (("rgb", whole), ("palette", whole.convert("P")), ("bits1", whole.convert("1"))):
        add(f"bmp_{name}", "bmp", "BMP", image)
    add("bmp_alpha", "bmp", "BMP", alpha)
    add("jpeg2000_rgb", "jpeg2000", "JPEG2000", whole)
    add("jpeg2000_grey", "jpeg2000", "JPEG2000", grey)
    add("jpeg2000_rgba", "jpeg2000", "JPEG2000", alpha)
    add("jpeg2000_codestream", "jpeg2000", "JPEG2000", whole, no_jp2=True)
    files["png_bits48"] = ImageFile("png", "png", png_of(deep16), rounded)
    only_red = rounded[..., :1].repeat(3, axis=-1)
    for form, extension, codec in (("PNG", "png", "png"), ("TIFF", "tif", "tiff"), ("JPEG2000", "jp2", "jpeg2000")):
        files[f"{codec}_bits16"] = ImageFile(extension, codec, encode(grey16, form), only_red)
    files["tiff_planes"] = ImageFile("tif", "tiff", planar_tiff(rgb), rgb)
    palette = encode(whole.convert("P"), "TIFF")
    files["tiff_palette"] = ImageFile("tif", "tiff", palette, _by_pillow(palette), within=1)
    return files


@cache
def listed() -> dict[str, tuple[str, bytes, str]]:
    """Files that pack lists, by name: extension, bytes, and what the reason says."""
    whole = Image.fromarray(picture())
    two = {"save_all": True, "append_images": [whole.rotate(90)]}
    lossless = bytearray(taken()["jpeg_420"].data)
    lossless[lossless.index(b"\xff\xc0") + 1] = 0xC3
    deep = bytearray(taken()["jpeg_420"].data)
    deep[deep.index(b"\xff\xc0") + 4] = 12
    white = bytearray(taken()["tiff_bits16"].data)
    entry = white.index(struct.pack("<HHI", 262, 3, 1))
    white[entry + 8] = 0
    return {
        "several_pages": ("tif", encode(whole, "TIFF", **two), "several pages"),
        "animated_webp": ("webp", encode(whole, "WEBP", **two), "animated WebP"),
        "grey_alpha_tiff": ("tif", encode(whole.convert("LA"), "TIFF"), "2 samples of 8 bits"),
        "white_is_zero": ("tif", bytes(white), "1 samples of 16 bits in the colours 0"),
        "deep_planes": ("tif", planar_tiff(picture().astype(np.uint16) * 257), "separate planes"),
        "alpha_planes": ("tif", planar_tiff(picture(channels=4)), "separate planes"),
        "big_tiff": ("tif", b"II+\0\x08\0\0\0\x10" + bytes(40), "BigTIFF"),
        "largest": ("png", png_of(np.zeros((4, 4, 3), np.uint16), (16_384, 16_384)), "more pixels than a frame"),
        "cmyk_tiff": ("tif", encode(whole.convert("CMYK"), "TIFF"), "CMYK"),
        "float_tiff": ("tif", encode(whole.convert("F"), "TIFF"), "floating-point"),
        "lossless_jpeg": ("jpg", bytes(lossless), "lossless or arithmetic"),
        "deep_jpeg": ("jpg", bytes(deep), "12 bits"),
        "bomb": ("png", png_of(np.zeros((4, 4, 3), np.uint16), (50_000, 50_000)), "limit is 16384"),
        "tall_jpeg": ("jpg", _with_jpeg_size(65535, 65535), "limit is 16384"),
        "no_png": ("png", b"\x89PNG\r\n\x1a\n" + bytes(40), "does not begin"),
        **{f"cut_{name}": (one.extension, one.data[: len(one.data) * 2 // 3], "") for name, one in taken().items()},
    }


def _with_jpeg_size(width: int, height: int) -> bytes:
    data = bytearray(taken()["jpeg_420"].data)
    struct.pack_into(">HH", data, data.index(b"\xff\xc0") + 5, height, width)
    return bytes(data)
