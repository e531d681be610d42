"""What loaders make on a GPU of clips of all matrices, ranges and bit depths, against the standards in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.gpu import GpuDecoder
from streamvid.video.remux import store_clip
from tests.support.clips import write
from tests.support.colored import CASES, TRANSFORMS, ColoredClips, check
from tests.support.reference import to_arrays, whole
from tools.clips import Recipe


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> ColoredClips:
    return ColoredClips(tmp_path_factory.mktemp("clips"))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_pixels_are_those_of_the_standards(name: str, clips: ColoredClips) -> None:
    check(clips, name, device="cuda")


@pytest.mark.parametrize("resize_in", ["yuv", "rgb"])
@pytest.mark.parametrize("color", ["auto", "bt601", "bt709"])
def test_both_devices_agree_on_every_option(color: str, resize_in: str, clips: ColoredClips) -> None:
    transform = sv.Transform(resize=72, dtype="uint8", color=color, resize_in=resize_in)  # type: ignore[arg-type]
    made = []
    for device in ("cpu", "cuda"):
        with sv.StreamLoader(
            clips.path,
            sampling=sv.Frames([0, 1]),
            batch_size=len(CASES),
            transform=transform,
            shuffle=False,
            device=device,
        ) as loader:
            (batch,) = loader
            made.append(batch["video"].cpu().numpy().astype(int))
    off = np.abs(made[0] - made[1])
    print(
        f"{color} {resize_in}: {off.max()} at most, {off.mean():.3f} on average, more than 1 in {(off > 1).mean():.3%}"
    )
    # With DALI's pixels each device rounds in its own way, of 10 bits NVDEC dithers.
    assert (off <= 1).mean() >= (0.999 if color != "bt601" else 0.9)
    assert off.mean() < 1


@pytest.mark.parametrize("codec", ["vp9", "h264"])
def test_what_dali_decodes_is_corrected(codec: str, tmp_path: Path) -> None:
    recipe = Recipe(codec=codec, width=256, height=192, frames=12, colour="bt709")
    clip = store_clip(write(recipe, tmp_path / "a.mp4"), tmp_path)
    decoder = GpuDecoder(device_id=0, threads=2, max_batch=1, sessions=False)
    off = {}
    for color in ("auto", "bt601"):
        (frames,) = to_arrays(decoder.submit([whole(clip)], color=color).result())  # type: ignore[arg-type]
        off[color] = np.abs(frames.astype(int) - decode_with_pyav(whole(clip), color="auto"))
    decoder.close()
    print(f"{codec}: {off['auto'].mean():.2f} on average, {off['bt601'].mean():.2f} uncorrected")
    assert off["auto"].mean() < min(1.5, off["bt601"].mean() / 1.5)
    assert torch.cuda.is_available()
