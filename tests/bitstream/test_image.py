"""Headers of images: parsed as by Pillow; files that are cut off or invalid are refused, and never make the parser
hang."""

from __future__ import annotations

import io
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from streamvid.bitstream.image import CODECS, MAX_SIDE, classify, is_image_entry, read_header, to_decode
from streamvid.mp4.sample_entry import visual_sample_description
from tests.support.images import HEIGHT, WIDTH, chunk, encode, exif, listed, picture, taken, tiff_of


@pytest.mark.parametrize("name", sorted(taken()))
def test_headers_say_what_the_file_is(name: str) -> None:
    file = taken()[name]
    header = read_header(file.data)
    assert (header.width, header.height) == Image.open(io.BytesIO(file.data)).size
    assert (header.codec, header.rotation) == (file.codec, 0)
    kind = classify(memoryview(file.data))
    assert kind.random_access
    assert kind.disposable
    assert not kind.broken


@pytest.mark.parametrize("name", sorted(name for name in listed() if not name.startswith("cut_")))
def test_what_is_not_read_is_refused_with_the_reason(name: str) -> None:
    _, data, reason = listed()[name]
    with pytest.raises(ValueError, match=reason):
        read_header(data)
    assert classify(memoryview(data)).broken


def test_jp2_files_are_refused_by_their_boxes() -> None:
    """Of the header box, and where one is cut off."""
    data = encode(picture(), "JPEG2000")
    srgb, sycc = b"colr\1\0\0\0\0\0\x10", b"colr\1\0\0\0\0\0\x12"
    assert srgb in data
    for changed, reason in (
        (data.replace(srgb, sycc), "other colours"),
        (data.replace(srgb, srgb.replace(b"colr", b"pclr")), "palette"),
        (data.replace(b"\x16ihdr", b"\xffihdr"), "cut off"),
        (data[:-9], "cut off"),
    ):
        with pytest.raises(ValueError, match=reason):
            read_header(changed)


def test_jpegs_are_told_apart_by_their_colours() -> None:
    formats = {name: read_header(file.data).pix_fmt for name, file in taken().items() if file.codec == "jpeg"}
    assert formats["jpeg_rgb"] == "gbrp"
    assert formats["jpeg_cmyk"] == "cmyk"
    assert formats["jpeg_grey"] == "gray"
    assert {formats[f"jpeg_{name}"] for name in ("420", "progressive", "restarts")} == {"yuvj420p"}


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_read_in_every_format_that_has_it(form: str, orientation: int) -> None:
    data = encode(picture(), form, exif=exif(orientation))
    assert read_header(data).rotation == {1: 0, 2: 360, 3: 180, 4: 540, 5: 630, 6: 90, 7: 450, 8: 270}[orientation]


def test_an_image_that_is_not_what_its_row_says_is_not_decoded() -> None:
    file = taken()["png_rgb"]
    stsd = visual_sample_description(CODECS["png"], b"", width=61, height=46)
    assert is_image_entry(stsd)
    assert to_decode(file.data, stsd)[1] == file.data
    for entry, width in ((b"png ", 60), (b"jpeg", 61)):
        with pytest.raises(ValueError, match="contradicts its row"):
            to_decode(file.data, visual_sample_description(entry, b"", width=width, height=46))


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I4s", len(body) + 8, kind) + body


def test_data_after_an_image_do_not_make_it_one_that_is_cut_off() -> None:
    """The video of a motion photo, boxes that ExifTool adds to JPEG 2000, or what a disk rescue left: each was refused
    as cut off."""
    for name, after in (
        ("jpeg_420", bytes(200_000)),
        ("jpeg_progressive", bytes(200_000)),
        ("webp_lossy", b"garbage" * 50),
        ("png_rgb", b"garbage" * 50),
        ("jpeg2000_rgb", box(b"uuid", bytes(500))),
        ("jpeg2000_codestream", bytes(200_000)),
    ):
        data = taken()[name].data
        header = read_header(data + after)
        assert (header.width, header.height, header.pix_fmt) == (WIDTH, HEIGHT, read_header(data).pix_fmt), name
        with pytest.raises(ValueError, match="cut off"):
            read_header(data[: len(data) * 2 // 3])


def test_the_end_of_a_thumbnail_is_not_the_end_of_its_jpeg() -> None:
    small = encode(picture(8, 8), "JPEG")
    data = encode(picture(), "JPEG")
    whole = data[:2] + segment(0xE1, b"Exif\0\0" + small) + data[2:]
    assert read_header(whole).width == WIDTH
    for end in (len(whole) - 2, len(whole) - 500, len(small) + 20):
        with pytest.raises(ValueError, match="cut off"):
            read_header(whole[:end])


def test_what_a_header_claims_costs_no_memory() -> None:
    """A TIFF of 4 MB, each of whose tags claims to be most of it, took all memory of the machine."""
    tags = {256: (4,), 257: (4,), 258: (8,), 259: (1,), 262: (1,), 277: (1,), 278: (4,)}
    boxes = encode(picture(), "JPEG2000")
    at = boxes.index(b"jp2h") - 4
    boxes = boxes[:at] + box(b"jp2h", box(b"free", b"") * 20_000) * 20 + boxes[at:]
    for data in (tiff_of(tags, [bytes(16)], extra=40), boxes):
        tracemalloc.start()
        read_header(data)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        tracemalloc.stop()
    jpeg = taken()["jpeg_420"].data
    for many in (segment(0xE5, b"") * 70_000, b"\xff" * 70_000):
        with pytest.raises(ValueError, match="no frame header"):
            read_header(jpeg[:2] + many + jpeg[2:])


@pytest.mark.parametrize(("form", "at"), [("JPEG2000", 8), ("PNG", 16)])
def test_a_small_file_that_claims_a_large_picture_is_refused(form: str, at: int) -> None:
    """OpenJPEG took 4 GB for 171 bytes of 16384x16000."""
    small = Image.new("RGB", (16, 16))
    data = bytearray(encode(small, form, no_jp2=True) if form == "JPEG2000" else encode(small, form))
    struct.pack_into(">II", data, at, 16384, 16000)
    with pytest.raises(ValueError, match=rf"it claims 16384x16000 pixels, and has only {len(data)} bytes"):
        read_header(bytes(data))
    trailing = bytes(data) + bytes(16384 * 16000 // 65536)
    assert read_header(trailing[: len(trailing) if form == "PNG" else -2] + b"\xff\xd9").width == 16384
    struct.pack_into(">II", data, at, 8192, 4096)
    assert read_header(bytes(data)).width == 8192


def test_an_orientation_of_32_bits_is_one() -> None:
    data = encode(picture(), "JPEG")
    for order, name in (("<", b"II"), (">", b"MM")):
        tiff = struct.pack(f"{order}2sHIHHHIII", name, 42, 8, 1, 0x112, 4, 1, 6, 0)
        assert read_header(data[:2] + segment(0xE1, b"Exif\0\0" + tiff) + data[2:]).rotation == 90


def test_a_png_is_animated_by_a_chunk_before_its_picture_only() -> None:
    data = taken()["png_rgb"].data
    end = data.index(b"IEND") - 4
    assert read_header(data[:end] + chunk(b"acTL", bytes(8)) + data[end:]).codec == "png"
    with pytest.raises(ValueError, match="animated"):
        read_header(data[:33] + chunk(b"acTL", bytes(8)) + data[33:])


def test_other_segments_of_the_same_marker_hide_neither_jfif_nor_adobe() -> None:
    colours = taken()["jpeg_444"].data
    end = 4 + int.from_bytes(colours[4:6], "big")
    adobe, other = segment(0xEE, b"Adobe\0\x64\0\0\0\0\0"), segment(0xEE, bytes(12))
    assert read_header(colours[:2] + adobe + other + colours[end:]).pix_fmt == "gbrp"
    extension = segment(0xE0, b"JFXX\0\x13\1\1abc")
    assert read_header(colours[:end] + extension + adobe + colours[end:]).pix_fmt == "yuvj444p"


@given(st.sampled_from(sorted(taken())), st.data())
def test_damaged_headers_are_refused_or_within_limits(name: str, data: st.DataObject) -> None:
    damaged = bytearray(taken()[name].data)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, min(len(damaged), 300) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    try:
        header = read_header(bytes(damaged))
    except ValueError:
        return
    assert 0 < header.width <= MAX_SIDE
    assert 0 < header.height <= MAX_SIDE
