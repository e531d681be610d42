"""GpuDataLoader and ClipDataset on a GPU: a StreamLoader's batches on the same device, and Motion JPEG. Slices through
DALI Proxy: a GpuDataLoader's frames."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, default_collate

import streamvid as sv
from streamvid.decode.cpu import decode_with_pyav
from streamvid.packing.options import PackOptions
from tests.examples.test_dali_proxy import load_example, numbers
from tests.support.batches import assert_same
from tests.support.packed import pack_recipes
from tools.clips import Recipe, hard_recipes

HARD = hard_recipes()
NAMES = ["h264", "hevc", "vp9", "h264_vfr", "hevc_open_gop", "h264_rotated_90", "h264_five_frames", "mjpeg_avi"]
OPTIONS: dict[str, Any] = {
    "sampling": sv.Window(6, fps=10), "seed": 3,
    "transform": sv.Transform(resize=(96, 128), horizontal_flip=0.5, brightness=0.3),
}  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    recipes = {name: HARD[name] for name in NAMES}
    options: dict[str, Any] = {"shard_size": 200_000, "options": PackOptions("any")}
    return str(pack_recipes(recipes, tmp_path_factory.mktemp("proxy"), **options))


@pytest.mark.parametrize(
    ("num_workers", "start"), [(0, None), (2, "fork"), pytest.param(1, "spawn", marks=pytest.mark.full)]
)
def test_batches_are_those_of_a_stream_loader(dataset: str, num_workers: int, start: Any) -> None:
    ds = sv.ClipDataset(dataset, **OPTIONS)
    with (
        sv.StreamLoader(dataset, batch_size=3, shuffle=False, device="cuda", **OPTIONS) as stream,
        sv.GpuDataLoader(
            ds, batch_size=3, num_workers=num_workers, multiprocessing_context=start, device="cuda"
        ) as proxy,
    ):  # fmt: skip
        for _ in range(2):
            for got, expected in zip(proxy, stream, strict=True):
                assert got["video"].is_cuda
                assert_same(got, expected)


def test_motion_jpeg_beside_other_codecs_is_decoded_on_the_cpu(dataset: str, caplog: pytest.LogCaptureFixture) -> None:
    ds = sv.ClipDataset(dataset, transform=sv.Transform(resize=(96, 128), layout="THWC", dtype="uint8"))
    items = [sv.At("mjpeg_avi", frames=[0, 3]), sv.At("h264", frames=[5]), sv.At("mjpeg_avi", frames=[1])]
    with sv.GpuDataLoader(ds, batch_size=3, sampler=items, num_workers=1, device="cuda") as proxy:
        (batch,) = proxy
    assert "1 clip of mjpeg Baseline yuv420p such as mjpeg_avi (a core decodes Motion JPEG faster" in caplog.text
    assert batch["mask"].tolist() == [[True, True], [True, False], [True, False]]
    for place, item in enumerate(items):
        alone = ds[item]["video"]
        difference = (batch["video"][place, : len(alone)].cpu().float() - alone.float()).abs().mean()
        assert difference < 6, item  # resized on another device; other frames differ by more
    plain = sv.ClipDataset(sv.Subset(dataset, keys=["mjpeg_avi"]))
    with sv.GpuDataLoader(plain, batch_size=1, sampler=[items[0]], device="cuda") as proxy:
        (batch,) = proxy
    np.testing.assert_array_equal(
        batch["video"][0].cpu().numpy(), decode_with_pyav(plain.encoded(items[0]), color="auto")
    )


@pytest.mark.full
@pytest.mark.parametrize("start", [pytest.param("fork", marks=pytest.mark.full), "spawn"])
def test_a_plain_data_loader_beside_cuda(dataset: str, start: str) -> None:
    """Workers that decode and transform on the CPU, started by a process that has used CUDA, and DALI on it."""
    ds = sv.ClipDataset(dataset, **OPTIONS)
    expected = [default_collate([ds[i] for i in range(first, first + 4)]) for first in (0, 4)]
    with sv.StreamLoader(dataset, batch_size=3, device="cuda", **OPTIONS) as stream:
        batches = iter(stream)
        next(batches)
        loader = DataLoader(ds, batch_size=4, num_workers=2, multiprocessing_context=start)
        for got, wanted in zip(loader, expected, strict=True):
            assert_same(got, wanted)


def test_slices_through_dali_proxy(tmp_path: Path) -> None:
    """`examples/dali_proxy.py`, with numbers, keys and frames of a sampler's own, on clips of two codecs."""
    base = Recipe(width=320, height=192, frames=40, gop=12)
    pack_recipes({"0": base, "1": replace(base, codec="hevc", seed=1), "2": replace(base, seed=2)}, tmp_path)
    clips = sv.ClipDataset(
        tmp_path / "set", sampling=sv.Window(6, stride=4), seed=2,
        transform=sv.Transform(resize=(96, 96), dtype="float32", layout="CFHW"),
    )  # fmt: skip
    sampler: list[Any] = [
        2,
        0,
        "1",
        sv.At(1, frames=[3, 39, 4, 3, 0, 11]),
        0,
        sv.At(0, seconds=[0, 0.3, 0.6, 0.3, 1, 0]),
    ]
    made = load_example().batches(clips, sampler, batch_size=2, workers=2, side=96, device="cuda")
    with sv.GpuDataLoader(clips, batch_size=2, sampler=sampler, device="cuda") as ours:
        for got, wanted in zip(made, ours, strict=True):
            assert got["video"].is_cuda
            assert got["video"].shape == (2, 3, 6, 96, 96)
            assert numbers(got["video"], (320, 192)) == numbers(wanted["video"], (320, 192))
            # Resized, and converted to RGB, by DALI and by us.
            assert (255 * (got["video"] - wanted["video"])).abs().mean() < 6
            for name in ("clip", "mask", "pts", "label"):
                assert got[name].tolist() == wanted[name].tolist(), name
