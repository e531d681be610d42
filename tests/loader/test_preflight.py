"""The preflight check of a GPU run, with a decoder on the CPU in the place of the GPU's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from streamvid.dataset.dataset import Dataset
from streamvid.decode.cpu import decode_with_pyav
from streamvid.errors import InputError
from streamvid.fetch.shard_access import ShardAccess
from streamvid.loader import preflight
from streamvid.loader.preflight import check_decodable, cpu_decoded_clips, probe_slice
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.video.packet_selection import EncodedSlice
from tests.support.clips import write
from tools.clips import Recipe

H264 = Recipe(width=160, height=144, frames=6, gop=6)
RECIPES = {
    "h264": H264,
    "large": replace(H264, width=192),
    "medium": replace(H264, width=176),
    "hevc": replace(H264, codec="hevc"),
    "mjpeg": replace(H264, codec="mjpeg", container="avi", gop=1, b_frames=0),
    "mjpeg_2": replace(H264, codec="mjpeg", container="avi", gop=1, b_frames=0, seed=1),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("preflight")
    (folder / "videos").mkdir()
    for name, recipe in RECIPES.items():
        write(recipe, folder / "videos" / f"{name}.{recipe.container}")
    pack([folder / "videos"], folder / "set", options=PackOptions("any"), workers=1, progress=False)
    return Dataset.open(folder / "set")


class Decoder:
    """In the place of `GpuDecoder`: decodes on the CPU, HEVC too bright by some levels."""

    too_bright = 0

    def __init__(self, **options: Any) -> None:
        pass

    def uses_dali(self, *_: object) -> bool:
        return False

    def decode(self, slices: Sequence[EncodedSlice]) -> list[torch.Tensor]:
        add = [self.too_bright if part.codec == "hevc" else 0 for part in slices]
        frames = [decode_with_pyav(part).astype(np.int16) for part in slices]
        return [torch.from_numpy(one + more) for one, more in zip(frames, add, strict=True)]

    def close(self) -> None:
        pass


def probed(dataset: Dataset, monkeypatch: pytest.MonkeyPatch, *, too_bright: int) -> list[str]:
    """Run the check; returns the sources of the clips that it tried."""
    monkeypatch.setattr(preflight, "GpuDecoder", Decoder)
    monkeypatch.setattr(Decoder, "too_bright", too_bright)
    tried: list[str] = []
    probe = partial(probe_slice, dataset, access=ShardAccess(dataset, cache=None, limit_bytes=1 << 30))

    def note(row: int) -> EncodedSlice:
        tried.append(Path(dataset.clips.source[row]).stem)
        return probe(row)

    check_decodable(dataset, np.arange(len(dataset), dtype=np.int64), device_id=0, probe=note)
    return sorted(tried)


def test_the_smallest_and_the_largest_clip_of_each_gpu_group_are_tried(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probed(dataset, monkeypatch, too_bright=5) == ["h264", "hevc", "large"]


def test_frames_unlike_the_cpus_are_refused(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"cannot decode 1 clips of hevc .* differ from the CPU's by 8 levels"):
        probed(dataset, monkeypatch, too_bright=8)


def test_clips_decoded_on_the_cpu_are_counted(dataset: Dataset) -> None:
    ((codec, why, count),) = cpu_decoded_clips(dataset)
    assert (codec, count) == ("mjpeg", 2)
    assert why


def test_sizes_are_counted_once_for_all_sample_descriptions(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly every clip of a dataset may have a sample description of its own."""
    asked, guarded = [], []
    guard: Any = type("Guard", (), {"prefer": lambda self, _, sizes: guarded.append(dict(sizes)) or []})()
    monkeypatch.setattr(preflight, "shared_guard", lambda: guard)
    clips = dataset.clips
    count = 50 * len(dataset)
    rows = np.tile(np.arange(len(dataset)), 50)
    many = {
        name: value[rows]
        if isinstance(value := getattr(clips, name), np.ndarray)
        else replace(value, codes=value.codes[rows])
        for name in ("codec", "pix_fmt", "width", "height")
    }
    stsds = [clips.stsds[clips.stsd_id[row]] + bytes([n % 256, n // 256]) for n, row in enumerate(rows.tolist())]
    whole: Any = SimpleNamespace(clips=SimpleNamespace(**many, stsd_id=np.arange(count), stsds=stsds))

    class Asking(Decoder):
        def uses_dali(self, *what: object) -> bool:
            asked.append(what)
            return what[0] == "h264"

    decoder: Any = Asking()
    preflight._guard_sizes(whole, np.arange(count, dtype=np.int64), 0, decoder)
    assert len(asked) == 5
    assert guarded == [{("h264", 160, 144): 50, ("h264", 192, 144): 50, ("h264", 176, 144): 50}]
