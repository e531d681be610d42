"""Images on a GPU: upright, near what the CPU decodes, beside videos, and transformed at once as in a loader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("PIL")

import streamvid as sv
from streamvid.color.tags import RGB
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.gpu import GpuDecoder
from streamvid.errors import InputError, VideoError
from streamvid.video.image import image_clip
from streamvid.video.packet_selection import EncodedSlice
from tests.support.clips import write
from tests.support.images import by_orientation, encode, exif, listed, picture, png_of, taken
from tests.support.packed import packing_inline
from tests.transform.test_apply import TRANSFORMS
from tools.clips import Recipe

MEAN, LARGEST = 0.1, 4
"""Levels by which a GPU's JPEG may differ from a CPU's: docs/images.md."""


def encoded(data: bytes, name: str = "clip") -> EncodedSlice:
    clip = image_clip(Path("image"), data)
    packet, one = np.frombuffer(data, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    return EncodedSlice(name, clip.codec, clip.stsd, clip.width, clip.height, RGB, packet, one + len(packet), one, one)


@pytest.fixture(scope="module", autouse=True)
def _nvimagecodec() -> None:
    try:
        decode_with_pyav(encoded(taken()["png_rgb"].data))
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def decoder() -> Iterator[GpuDecoder]:
    made = GpuDecoder(device_id=0, threads=4, max_batch=64, sessions=False)
    yield made
    made.close()


def compared(decoder: GpuDecoder, files: dict[str, bytes]) -> dict[str, tuple[float, int]]:
    """Mean and largest difference in levels between a GPU's pixels and the CPU's, by name."""
    slices = [encoded(data, name) for name, data in files.items()]
    apart = {}
    for one, frames in zip(slices, decoder.decode(slices), strict=True):
        assert frames.is_cuda
        difference = np.abs(frames.cpu().numpy().astype(int) - decode_with_pyav(one))
        apart[one.name] = (float(difference.mean()), int(difference.max()))
    return apart


def test_every_image_is_near_what_the_cpu_decodes(decoder: GpuDecoder, capsys: pytest.CaptureFixture[str]) -> None:
    apart = compared(decoder, {name: file.data for name, file in sorted(taken().items())})
    noisy = picture(480, 640) + np.random.default_rng(0).integers(0, 40, (480, 640, 3), dtype=np.uint8)
    detailed = {
        f"jpeg_{quality}_{name}": encode(noisy, "JPEG", quality=quality, subsampling=sampling)
        for quality in (60, 90)
        for sampling, name in enumerate(("444", "422", "420"))
    }
    detailed |= {f"jpeg_{width}_wide": encode(noisy[:, :width].copy(), "JPEG") for width in range(1, 8)}
    detailed["jpeg2000_lossy"] = encode(noisy, "JPEG2000", quality_mode="rates", quality_layers=[12], irreversible=True)
    of_noise = compared(decoder, detailed)
    with capsys.disabled():
        print("\nimages, GPU against CPU (mean, largest):")
        print(*(f"  {name}: {mean:.3f}, {most}" for name, (mean, most) in (apart | of_noise).items()), sep="\n")
    apart |= of_noise
    assert not {name: found for name, found in apart.items() if found[0] > MEAN or found[1] > LARGEST}


def test_a_damaged_image_is_an_error_and_the_next_batch_is_right(decoder: GpuDecoder) -> None:
    good = encoded(taken()["jpeg_420"].data)
    data = bytearray(taken()["png_rgb"].data)
    at = data.index(b"IDAT") + 30
    data[at : at + 40] = bytes(40)
    with pytest.raises(VideoError):
        decoder.decode([good, encoded(bytes(data))])
    for _, cut, _ in [listed()["cut_jpeg_420"], listed()["cut_jpeg2000_rgb"]]:
        with pytest.raises((VideoError, ValueError)):
            decoder.decode([encoded(cut)])
    (frames,) = decoder.decode([good])
    assert np.abs(frames.cpu().numpy().astype(int) - decode_with_pyav(good)).mean() <= MEAN


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_exif_orientation_stands_upright(form: str, tmp_path: Path) -> None:
    upright = picture(48, 80)
    options = {"quality": 98, "subsampling": 0} if form == "JPEG" else {}
    for number, pixels in by_orientation(upright).items():
        (tmp_path / f"o{number}x.img.{form.lower()}").write_bytes(encode(pixels, form, exif=exif(number), **options))
    with packing_inline():
        sv.pack(tmp_path, tmp_path / "made", images=True, progress=False)
    whole = sv.Transform(layout="THWC", dtype="uint8")
    with sv.StreamLoader(tmp_path / "made", batch_size=8, sampling=sv.Window(1), transform=whole) as loader:
        (batch,) = loader
    assert batch["video"].is_cuda
    assert np.abs(batch["video"][:, 0].cpu().numpy().astype(int) - upright).max() <= (16 if form == "JPEG" else 0)


@pytest.mark.parametrize("isolate", [False, True])
def test_videos_and_images_mix_in_a_batch(isolate: bool, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(Recipe(width=96, height=64, frames=12), tmp_path / "in" / "video.mp4")
    for name in ("jpeg_420", "png_rgb", "tiff_tiff_lzw"):
        (tmp_path / "in" / f"{name}.{taken()[name].extension}").write_bytes(taken()[name].data)
    with packing_inline():
        sv.pack(tmp_path / "in", tmp_path / "made", images=True, progress=False)
    square = sv.Transform(resize=(32, 48), layout="TCHW")
    batches = {}
    for device in ("cuda", "cpu"):
        with sv.StreamLoader(
            tmp_path / "made",
            batch_size=4,
            sampling=sv.Window(1),
            transform=square,
            device=device,
            shuffle=False,
            isolate=isolate,
        ) as loader:
            (batches[device],) = loader
    assert batches["cuda"]["video"].is_cuda
    assert len(batches["cuda"]["video"]) == 4
    apart = (batches["cuda"]["video"].cpu() - batches["cpu"]["video"]).abs()
    assert torch.equal(batches["cuda"]["clip"].cpu(), batches["cpu"]["clip"])
    assert float(apart.mean()) < 0.01


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transform_applied_at_once_gives_what_the_loader_gives(name: str, tmp_path: Path) -> None:
    transform = TRANSFORMS[name]
    for number in range(2):
        pixels = np.roll(picture(), 7 * number, axis=1)
        (tmp_path / f"i{number}x.png").write_bytes(png_of(pixels.astype(np.uint16) * 257))
    with packing_inline():
        sv.pack(tmp_path, tmp_path / "made", images=True, progress=False)
    opened = sv.Dataset.open(tmp_path / "made")
    with sv.StreamLoader(opened, batch_size=1, sampling=sv.Window(1), transform=transform, seed=7) as loader:
        for batch in loader:
            clip = int(batch["clip"])
            pixels = np.roll(picture(), 7 * int(opened.key(clip)[1]), axis=1)
            frames = torch.from_numpy(pixels.copy())[None].cuda()
            one = transform.apply(frames, seed=7, clip=clip)
            assert one.is_cuda
            assert torch.equal(one, batch["video"][0])
            cpu = transform.apply(frames.cpu(), seed=7, clip=clip)
            apart = (cpu.float() - one.cpu().float()).abs()
            print(name, float(apart.mean()), float(apart.max()))
