"""Images in batches for a GPU, with DALI's CPU decoders in place of the GPU's: in order, whatever their format, and
right again after an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from streamvid.bitstream.image import CODECS, read_header
from streamvid.bitstream.jpeg import fits_nvjpeg
from streamvid.color.tags import RGB
from streamvid.decode import images
from streamvid.decode.gpu import GpuDecoder
from streamvid.decode.images import ImageBatches, is_for_gpu, pipelines_for
from streamvid.errors import VideoError
from streamvid.mp4.sample_entry import visual_sample_description
from streamvid.video.image_decoder import image_pipeline
from streamvid.video.packet_selection import EncodedSlice
from tests.support.images import HEIGHT, WIDTH, encode, picture, taken


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> ImageBatches:
    def on_the_cpu(**options: Any) -> Any:
        return image_pipeline(**{**options, "device_id": None})

    monkeypatch.setattr(images, "image_pipeline", on_the_cpu)
    monkeypatch.setattr(images, "is_for_gpu", lambda header, data: True)
    monkeypatch.setattr(images, "pipelines_for", lambda slices: {True})
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    made = ImageBatches(device_id=0, threads=2, max_batch=3)
    monkeypatch.setattr(made, "_device", torch.device("cpu"))
    return made


def encoded(name: str, *files: bytes, codec: str = "") -> EncodedSlice:
    codec = codec or taken()[name].codec
    stsd = visual_sample_description(CODECS[codec], b"", width=WIDTH, height=HEIGHT)
    packets = files or (taken()[name].data,)
    sizes = np.array([len(one) for one in packets])
    order = np.arange(len(packets))
    data = np.frombuffer(b"".join(packets), dtype=np.uint8)
    return EncodedSlice(name, codec, stsd, WIDTH, HEIGHT, RGB, data, sizes, order, order)


@pytest.mark.parametrize("mixed", [False, True])
def test_batches_come_in_order(batches: ImageBatches, mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `mixed`, some as if by nvJPEG, and others that are copied to the GPU."""
    if mixed:
        monkeypatch.setattr(images, "is_for_gpu", is_for_gpu)
        monkeypatch.setattr(images, "pipelines_for", pipelines_for)
    names = sorted(taken())
    for made, name in zip(batches.decode([encoded(name) for name in names]), names, strict=True):
        frames = made.tensor()
        assert frames.shape == (1, HEIGHT, WIDTH, 3)
        assert np.abs(frames[0].numpy().astype(int) - taken()[name].pixels).max() <= taken()[name].within, name


def test_a_slice_may_have_several_images(batches: ImageBatches) -> None:
    one, other = taken()["png_rgb"], taken()["png_grey"]
    (frames,) = batches.decode([encoded("png_rgb", one.data, other.data)])
    np.testing.assert_array_equal(frames.tensor().numpy(), np.stack([one.pixels, other.pixels]))


def test_after_an_error_the_next_batch_is_right(batches: ImageBatches) -> None:
    data = bytearray(taken()["png_rgb"].data)
    at = data.index(b"IDAT") + 30
    data[at : at + 40] = bytes(40)
    with pytest.raises(VideoError, match="jpeg_420, png_rgb"):
        batches.decode([encoded("jpeg_420"), encoded("png_rgb", bytes(data))])
    with pytest.raises(VideoError, match="contradicts its row"):
        batches.decode([encoded("png_rgb", codec="jpeg")])
    (frames,) = batches.decode([encoded("jpeg_420")])
    np.testing.assert_array_equal(frames.tensor()[0].numpy(), taken()["jpeg_420"].pixels)


def test_nvjpeg_decodes_plain_jpegs_and_no_others() -> None:
    files = {name: file.data for name, file in taken().items()}
    on_gpu = {name for name, data in files.items() if is_for_gpu(read_header(data), data)}
    assert on_gpu == {f"jpeg_{name}" for name in ("420", "422", "444", "grey", "progressive", "restarts")}
    # Of up to two columns of chroma, libjpeg-turbo does not interpolate.
    assert [fits_nvjpeg(encode(picture(8, width), "JPEG")) for width in (4, 5)] == [False, True]


@pytest.mark.parametrize("isolate", [False, True])
def test_images_are_decoded_in_child_processes_if_told(isolate: bool) -> None:
    """But for JPEGs, which the GPU decodes."""
    decoder = GpuDecoder(device_id=0, threads=1, max_batch=3, sessions=False, isolate=isolate)
    slices = [encoded(name) for name in ("jpeg_420", "tiff_tiff_lzw", "png_rgb")]
    try:
        _, _, by_cpu, by_dali = decoder._divided(slices, [])
    finally:
        decoder.close()
    assert (by_cpu, by_dali) == (([1, 2], [0]) if isolate else ([], [0, 1, 2]))
