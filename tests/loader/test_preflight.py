"""The preflight check of a GPU run, with a decoder on the CPU in the place of the GPU's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import streamvid as sv
from streamvid.color.tags import ColorOption
from streamvid.dataset.dataset import Dataset
from streamvid.decode import nvdec
from streamvid.decode.base import Pending
from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.gpu import GpuDecoder
from streamvid.errors import ClipError, InputError, VideoError
from streamvid.fetch.shard_access import ShardAccess
from streamvid.loader import preflight
from streamvid.loader.preflight import ClipRoute, Fallback, cpu_decoded_clips, find_cpu_decoded, probe_slice
from streamvid.packing.options import PackOptions
from streamvid.video.gpu_support import Route, Support
from streamvid.video.packet_selection import EncodedSlice
from tests.support.packed import pack_recipes
from tools.clips import Recipe

H264 = Recipe(width=160, height=144, frames=6, gop=6)
RECIPES = {
    "h264": H264,
    "large": replace(H264, width=192),
    "medium": replace(H264, width=176),
    "hevc": replace(H264, codec="hevc"),
    "intra": replace(H264, gop=1, b_frames=0),
    "av1": replace(H264, codec="av1"),
    "interlaced": replace(H264, params=(("tff", "1"),)),
    "mjpeg": replace(H264, codec="mjpeg", container="avi", gop=1, b_frames=0),
    "mjpeg_2": replace(H264, codec="mjpeg", container="avi", gop=1, b_frames=0, seed=1),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    recipes = {f"{name}.{recipe.container}": recipe for name, recipe in RECIPES.items()}
    packed = pack_recipes(recipes, tmp_path_factory.mktemp("preflight"), options=PackOptions("any"), workers=1)
    return Dataset.open(packed)


class Decoder:
    """In the place of `GpuDecoder`: decodes on the CPU, HEVC too bright by some levels."""

    too_bright = 0

    def __init__(self, **options: Any) -> None:
        pass

    has_sessions, native = True, False

    def route(self, row: Support) -> Route:
        return GpuDecoder.route(SimpleNamespace(sessions=self.has_sessions or None), row)  # type: ignore[arg-type]

    def submit(self, slices: Sequence[EncodedSlice], *, color: ColorOption) -> Pending[list[torch.Tensor]]:
        add = [self.too_bright if part.codec == "hevc" else 0 for part in slices]
        frames = [decode_with_pyav(part, color=color).astype(np.int16) for part in slices]
        return Pending(lambda: [torch.from_numpy(one + more) for one, more in zip(frames, add, strict=True)])

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Check:
    """What the check tried, and gave to the CPU: sources of clips."""

    tried: list[str]
    on_cpu: list[str]
    routes: tuple[ClipRoute, ...]


def checked(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, *, too_bright: int = 0, fallback: Fallback = "cpu"
) -> Check:
    """Run the check."""
    monkeypatch.setattr(preflight, "GpuDecoder", Decoder)
    monkeypatch.setattr(preflight, "load_nvdec", lambda: None)
    monkeypatch.setattr(Decoder, "too_bright", too_bright)
    tried: list[str] = []
    probe = partial(probe_slice, dataset, access=ShardAccess(dataset, cache=None, limit_bytes=1 << 30))
    names = [Path(source).stem for source in dataset.clips.source]

    def note(row: int) -> EncodedSlice:
        tried.append(names[row])
        return probe(row)

    rows = np.arange(len(dataset), dtype=np.int64)
    found = find_cpu_decoded(dataset, rows, device_id=0, probe=note, num_threads=4, fallback=fallback)
    on_cpu = sorted(names[row] for row in np.flatnonzero(found.on_cpu).tolist())
    return Check(sorted(tried), on_cpu, found.table)


def test_the_smallest_and_the_largest_clip_of_each_gpu_group_are_tried(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = checked(dataset, monkeypatch, too_bright=5)
    # One of Motion JPEG is decoded to measure how fast cores are.
    tried = [name for name in found.tried if not name.startswith("mjpeg")]
    assert tried == ["av1", "h264", "hevc", "interlaced", "intra", "large"]  # one of them for the pace of cores


def test_what_the_gpu_lacks_or_gets_wrong_is_decoded_by_cores_with_one_warning(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert checked(dataset, monkeypatch).on_cpu == ["interlaced", "mjpeg", "mjpeg_2"]
    caplog.clear()
    assert checked(dataset, monkeypatch, too_bright=8).on_cpu == ["hevc", "interlaced", "mjpeg", "mjpeg_2"]
    (record,) = caplog.records
    message = record.getMessage()
    assert "4 of 9 clips are decoded by 4 CPU threads" in message
    assert message.count("frames/s") == 3
    assert re.search(r"1 clip of hevc .* differ from the CPU's by 8 levels", message)


@pytest.mark.parametrize("fails", [1, 2])
def test_a_clip_that_the_driver_fails_on_is_tried_once_more(
    fails: int, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, left = Decoder.submit, iter(range(fails))

    def fail(decoder: Decoder, slices: Sequence[EncodedSlice], **options: Any) -> Pending[list[torch.Tensor]]:
        if slices[0].codec == "hevc" and next(left, None) is not None:
            raise VideoError("clip hevc cannot be decoded (CUDA_ERROR_UNKNOWN)")
        return submit(decoder, slices, **options)

    monkeypatch.setattr(Decoder, "submit", fail)
    assert ("hevc" in checked(dataset, monkeypatch).on_cpu) == (fails == 2)


def test_routes_say_how_many_clips_go_where_and_why(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = checked(dataset, monkeypatch, too_bright=8).routes
    assert sum(one.clips for one in routes) == len(dataset)
    found = {(one.kind.split()[0], one.decoder): (one.clips, one.reason) for one in routes}
    assert found["h264", "nvdec"] == (4, "")  # of I-frames alone, too
    assert found["h264", "cpu"] == (
        1,
        "PyNvVideoCodec deinterlaces pictures that are coded in fields; the native module would not",
    )
    assert found["mjpeg", "cpu"] == (2, "a core decodes Motion JPEG faster than the one engine for it")
    assert "differ from the CPU's by 8 levels" in found["hevc", "cpu"][1]
    assert {one.decoder for one in checked(dataset, monkeypatch).routes} == {"nvdec", "dali", "cpu"}
    # What goes to DALI in place of a decode session has a reason, too.
    assert found["av1", "dali"] == (1, "decode sessions are not known to decode it rightly")


def test_without_decode_sessions_dali_decodes_what_it_can_and_cores_the_rest(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Decoder, "has_sessions", False)
    monkeypatch.setattr(preflight, "mixed_up", lambda dataset, rows, device_id: np.zeros(len(rows), dtype=bool))
    found = checked(dataset, monkeypatch)
    assert found.on_cpu == ["interlaced", "intra", "mjpeg", "mjpeg_2"]
    assert {one.decoder for one in found.routes} == {"dali", "cpu"}
    assert sum(one.clips for one in found.routes) == len(dataset)
    reasons = {one.kind.split()[0]: one.reason for one in found.routes if one.decoder == "dali"}
    assert reasons["hevc"] == "PyNvVideoCodec or Triton is missing or does not work"
    assert reasons["av1"] == "decode sessions are not known to decode it rightly"
    why = " ".join(one.reason for one in found.routes if one.decoder == "cpu")
    assert "does not work, and DALI fails on H.264 of I-frames alone" in why


def test_loaders_on_a_cpu_say_so(dataset: Dataset) -> None:
    options: dict[str, Any] = {"sampling": sv.Frames([0]), "transform": sv.Transform(crop=64)}
    with sv.StreamLoader(dataset.path, batch_size=2, device="cpu", **options) as loader:
        routes = loader.routes
    with sv.GpuDataLoader(sv.ClipDataset(dataset.path, **options), batch_size=2, device="cpu") as random_access:
        assert random_access.routes == routes
    assert {one.decoder for one in routes} == {"cpu"}
    assert sum(one.clips for one in routes) == len(dataset)


def test_the_gpu_alone_on_request(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"cannot decode 2 clips of mjpeg .* 1 clip of hevc .* by 8 levels.*device="):
        checked(dataset, monkeypatch, too_bright=8, fallback="error")


def test_a_run_that_needs_nvdec_and_lacks_it_says_so(dataset: Dataset) -> None:
    """Containers without the driver capability `video` have no libnvcuvid; this machine has none either."""
    rows = np.arange(len(dataset), dtype=np.int64)
    probe = partial(probe_slice, dataset, access=ShardAccess(dataset, cache=None, limit_bytes=1 << 30))
    jpeg = np.flatnonzero([codec == "mjpeg" for codec in dataset.clips.codec])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvdec, "_NVDEC_LIBRARY", "libnvcuvid-of-no-driver.so.1")
        with pytest.raises(InputError, match="NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"):
            find_cpu_decoded(dataset, rows, device_id=0, probe=probe, num_threads=1)
        # What no GPU decodes needs none.
        assert find_cpu_decoded(dataset, jpeg, device_id=0, probe=probe, num_threads=1).on_cpu.sum() == 2


@pytest.mark.parametrize("native", [True, False])
def test_clips_decoded_on_the_cpu_are_counted(dataset: Dataset, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields are for cores where the native module of NVDEC was not built."""
    monkeypatch.setattr(preflight, "built_modules", lambda: [Path("nvdec.so")] if native else [])
    found = [(what.split()[0], bool(why), len(rows)) for what, why, rows in cpu_decoded_clips(dataset)]
    assert found == [("mjpeg", True, 2), *([] if native else [("h264", True, 1)])]


def test_damaged_clips_neither_end_the_check_nor_send_their_group_to_the_cpu(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are few of many: the loop meets them where they are streamed."""

    def damaged(*_: object, **__: object) -> list[torch.Tensor]:
        raise VideoError("clip x is damaged")

    monkeypatch.setattr(preflight, "decode_with_pyav", damaged)
    monkeypatch.setattr(Decoder, "submit", damaged)
    assert checked(dataset, monkeypatch).on_cpu == ["interlaced", "mjpeg", "mjpeg_2"]
    assert "at an unknown rate" in caplog.records[-1].getMessage()


def test_a_clip_that_cannot_be_read_does_not_end_the_check(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its frame index is damaged: that, too, is told where it is streamed."""

    def damaged(self: Dataset, rows: Sequence[int], *_: Any, **__: Any) -> Any:
        raise ClipError("its frame index is damaged", row=rows[0], key=self.key(rows[0]))

    monkeypatch.setattr(Dataset, "use_indexes", damaged)
    assert checked(dataset, monkeypatch).on_cpu == ["interlaced", "mjpeg", "mjpeg_2"]
    assert "at an unknown rate" in caplog.records[-1].getMessage()
