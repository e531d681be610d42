"""Decoding images: bounded before, an error that costs no other image, in forked children and in child processes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageOps
from torch.utils.data import DataLoader

import streamvid as sv
from streamvid.bitstream.image import CODECS
from streamvid.color.full_size import FullSizeConverter
from streamvid.color.tags import RGB
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.isolated import IsolatedDecoder
from streamvid.decode.slice_frames import DamagedClipError
from streamvid.errors import InputError
from streamvid.mp4.sample_entry import visual_sample_description
from streamvid.video import image_decoder
from streamvid.video.image import image_clip
from streamvid.video.image_decoder import decode_images
from streamvid.video.packet_selection import EncodedSlice
from tests.support.images import HEIGHT, WIDTH, ImageFile, encode, exif, picture, planar_tiff, taken


def stsd(codec: str) -> bytes:
    return visual_sample_description(CODECS[codec], b"", width=WIDTH, height=HEIGHT)


def encoded(file: ImageFile, data: bytes | None = None) -> EncodedSlice:
    packet = np.frombuffer(data or file.data, dtype=np.uint8)
    one = np.zeros(1, dtype=np.int64)
    return EncodedSlice("clip", file.codec, stsd(file.codec), WIDTH, HEIGHT, RGB, packet, one + len(packet), one, one)


def broken(file: ImageFile) -> bytes:
    """A PNG whose header is sound and whose data are not."""
    data = bytearray(file.data)
    at = data.index(b"IDAT") + 30
    data[at : at + 40] = bytes(40)
    return bytes(data)


def test_a_damaged_image_costs_no_other() -> None:
    file = taken()["png_rgb"]
    with pytest.raises(DamagedClipError, match="clip clip is damaged"):
        decode_with_pyav(encoded(file, broken(file)))
    np.testing.assert_array_equal(decode_with_pyav(encoded(file))[0], file.pixels)


def test_what_claims_another_size_is_never_given_to_a_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_decoder, "run_images", lambda *_: pytest.fail("it was decoded"))
    data = bytearray(taken()["png_rgb"].data)
    data[16:24] = (50_000).to_bytes(4, "big") * 2
    with pytest.raises(av.error.InvalidDataError, match="limit is 16384"):
        list(decode_images(stsd("png"), [(bytes(data), 0)]))
    with pytest.raises(av.error.InvalidDataError, match="contradicts its row"):
        list(decode_images(stsd("jpeg"), [(taken()["png_rgb"].data, 0)]))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_no_decoder_turns_a_tiff(orientation: int) -> None:
    """The loader does. OpenCV, which decodes these, turned them once more, and sideways beyond its memory."""
    grey = Image.fromarray(picture()).convert("L")
    dark = encode(ImageOps.invert(grey), "TIFF", exif=exif(orientation))
    entry = dark.index(struct.pack("<HHI", 262, 3, 1))
    white_is_zero = dark[: entry + 8] + b"\0" + dark[entry + 9 :]
    for data, pixels in (
        (planar_tiff(picture(), orientation), picture()),
        (white_is_zero, np.asarray(grey.convert("RGB"))),
        (
            encode(grey.convert("1"), "TIFF", compression="group4", exif=exif(orientation)),
            np.asarray(grey.convert("1").convert("RGB")),
        ),
    ):
        file = ImageFile("tif", "tiff", data, pixels)
        np.testing.assert_array_equal(decode_with_pyav(encoded(file))[0], pixels)


def test_in_a_child_process_the_pixels_are_the_same() -> None:
    with IsolatedDecoder() as decoder:
        for name in ("jpeg_420", "png_bits48", "jpeg2000_rgb"):
            made = np.empty_like(taken()[name].pixels)
            for row, picture in decoder.frames(encoded(taken()[name]), limit_s=60):
                assert row == 0
                FullSizeConverter(RGB)(picture, made.transpose(2, 0, 1))
            np.testing.assert_array_equal(made, taken()[name].pixels)
        with pytest.raises(DamagedClipError):
            list(decoder.frames(encoded(taken()["png_rgb"], broken(taken()["png_rgb"])), limit_s=60))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for name in ("jpeg_420", "png_rgb", "webp_lossy", "bmp_rgb"):
        (folder / f"{name}.{taken()[name].extension}").write_bytes(taken()[name].data)
    sv.pack(folder, folder / "made", images=True, progress=False)
    return folder / "made"


def test_workers_that_are_forked_after_decoding_decode(dataset: Path) -> None:
    clips = sv.ClipDataset(dataset, sampling=sv.Window(1), transform=sv.Transform(layout="THWC", dtype="uint8"))
    here = [clips[row]["video"] for row in range(len(clips))]
    loader = DataLoader(clips, batch_size=1, num_workers=1, multiprocessing_context="fork")
    for mine, theirs in zip(here, loader, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs["video"])[0])


def test_a_thread_keeps_its_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    build = image_decoder.image_pipeline
    monkeypatch.setattr(image_decoder, "image_pipeline", lambda **options: made.append(os.getpid()) or build(**options))
    image_decoder._of_threads.cache_clear()
    for _ in range(3):
        decode_with_pyav(encoded(taken()["jpeg_420"]))
    assert len(made) == 1


def test_the_clip_of_an_image_is_an_mp4_that_ffmpeg_plays(tmp_path: Path) -> None:
    for name in ("jpeg_420", "png_rgb", "tiff_raw"):
        file = taken()[name]
        source = tmp_path / f"{name}.bin"
        source.write_bytes(file.data)
        status = source.stat()
        clip = image_clip(source, file.data, (status.st_size, status.st_mtime_ns)).as_file(tmp_path / f"{name}.mp4")
        with av.open(str(clip.mp4)) as container:
            (frame,) = container.decode(video=0)
        assert (frame.width, frame.height) == (WIDTH, HEIGHT)


def test_without_nvimagecodec_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: object) -> None:
        raise RuntimeError("libnvimgcodec.so: cannot open shared object file")

    monkeypatch.setattr("nvidia.dali.Pipeline.run", run)
    (tmp_path / "one.png").write_bytes(taken()["png_rgb"].data)
    with pytest.raises(InputError, match="pip install nvidia-nvimgcodec"):
        sv.pack(tmp_path / "one.png", tmp_path / "made", progress=False)


def test_an_image_that_does_not_decode_costs_itself_alone(tmp_path: Path) -> None:
    (tmp_path / "good.jpg").write_bytes(taken()["jpeg_420"].data)
    (tmp_path / "bad.png").write_bytes(broken(taken()["png_rgb"]))
    sv.pack(tmp_path, tmp_path / "made", options=sv.PackOptions(decode="none"), progress=False)
    whole = sv.Transform(resize=(8, 8), layout="THWC", dtype="uint8")
    for isolate in (False, True):
        with sv.StreamLoader(
            tmp_path / "made", batch_size=1, sampling=sv.Window(1), transform=whole, device="cpu", on_error="skip",
            max_errors=9, quarantine=tmp_path / f"bad{isolate}", isolate=isolate, last_batch="partial",
        ) as loader:  # fmt: skip
            keys = {sv.Dataset.open(tmp_path / "made").key(int(batch["clip"])) for batch in loader}
        assert keys == {"good"}
        assert "DALI" in "".join(file.read_text() for file in (tmp_path / f"bad{isolate}").iterdir())
