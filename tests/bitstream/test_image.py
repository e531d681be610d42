"""Headers of images: parsed as by Pillow; files that are cut off or invalid are refused, and never make the parser
hang."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from streamvid.bitstream.image import CODECS, MAX_SIDE, classify, is_image_entry, read_header, to_decode
from streamvid.mp4.sample_entry import visual_sample_description
from tests.support.images import encode, exif, listed, picture, taken


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
