"""The choice of a slice's decoder. Decoding itself is tested in tests/gpu."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from streamvid.bitstream.packets import START_CODE
from streamvid.color.tags import RGB
from streamvid.decode.base import Pending
from streamvid.decode.gpu import GpuDecoder, decode_support
from streamvid.errors import VideoError
from streamvid.video.gpu_support import Route
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from streamvid.workers import START_S
from tests.support.clips import write
from tests.support.field_pictures import write_fields
from tests.support.reference import joined, whole
from tools.clips import Recipe


@pytest.mark.parametrize(
    ("recipe", "route"),
    [
        (Recipe(frames=2), Route.NVDEC),
        (Recipe(frames=2, codec="hevc", height=182), Route.NVDEC),
        (Recipe(frames=2, codec="hevc", pix_fmt="yuv420p10le"), Route.NVDEC),
        (Recipe(frames=2, codec="hevc", pix_fmt="yuv420p10le", height=182), Route.NVDEC),
        (Recipe(frames=2, pix_fmt="yuv420p10le"), Route.CPU),
        (Recipe(frames=2, codec="vp9"), Route.NVDEC),
        (Recipe(frames=2, codec="mjpeg"), Route.CPU),
    ],
)
def test_a_slice_goes_where_its_sample_description_says(recipe: Recipe, route: Route, tmp_path: Path) -> None:
    clip = store_clip(write(recipe, tmp_path / "source.mp4"), tmp_path)
    assert decode_support(clip.codec, clip.stsd, recipe.width, recipe.height, native=False).route is route


def test_vp9_of_odd_sizes_is_decoded_by_cores_beside_the_native_module(tmp_path: Path) -> None:
    """An H200 gave wrong frames of 163x130 and 320x131 by it, and right ones by PyNvVideoCodec."""
    recipe = Recipe(codec="vp9", container="webm", frames=2, width=163, height=131)
    clip = store_clip(write(recipe, tmp_path / "a.webm"), tmp_path)
    assert decode_support("vp9", clip.stsd, 163, 131, native=True).route is Route.CPU
    assert decode_support("vp9", clip.stsd, 163, 131, native=False).route is Route.NVDEC
    assert decode_support("vp9", clip.stsd, 164, 132, native=True).route is Route.NVDEC


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp9"])
def test_a_sample_description_that_cannot_be_read_is_none_for_a_session(codec: str) -> None:
    assert decode_support(codec, START_CODE + b"\xff" * 120, 320, 180, native=False).route is Route.CPU


@pytest.mark.parametrize("codec", ["vp8", "vp9"])
def test_frames_that_change_their_size_are_decoded_by_cores(
    codec: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A session that was opened for larger pictures gives smaller ones as if they were large. The log tells it once."""
    caplog.set_level("INFO", "streamvid")
    parts = []
    for width, height in ((320, 192), (160, 144)):
        recipe = Recipe(codec=codec, container="webm", frames=6, gop=6, width=width, height=height)
        (tmp_path / str(width)).mkdir()
        parts.append(whole(store_clip(write(recipe, tmp_path / str(width) / "a.webm"), tmp_path / str(width))))
    decoder = GpuDecoder(device_id=0, threads=1, max_batch=1, sessions=False)
    decoder.sessions = cast(Any, SimpleNamespace(close=lambda: None, native=True, refuses=lambda encoded: False))
    try:
        in_sessions, _, by_cpu, _ = decoder._divided([parts[0], joined(*parts), replace(parts[1], width=320)], [])
    finally:
        decoder.close()
    assert (in_sessions, by_cpu) == ([0], [1, 2])
    (said,) = (record.getMessage() for record in caplog.records)
    assert "decoded by cores: a session gives all of its frames the size of the first" in said


@pytest.mark.parametrize(("native", "on_cpu"), [(True, []), (False, [0, 2]), (None, [0, 2])])
def test_h264_in_fields_is_decoded_by_cores_where_it_would_be_deinterlaced(
    native: bool | None, on_cpu: list[int], tmp_path: Path
) -> None:
    """By PyNvVideoCodec, and by DALI in place of sessions. The second clip could be in fields, and is not."""
    mixed = whole(store_clip(write_fields(tmp_path / "a.mp4", ["fields", "frame", "fields", "frame"], gop=2), tmp_path))
    for name in ("b", "c"):
        (tmp_path / name).mkdir()
    frames = whole(store_clip(write_fields(tmp_path / "b.mp4", ["frame"] * 4), tmp_path / "b"))
    mbaff = Recipe(frames=4, height=192, params=(("tff", "1"),))
    decoder = GpuDecoder(device_id=0, threads=1, max_batch=1, sessions=False)
    if native is not None:
        decoder.sessions = cast(Any, SimpleNamespace(close=lambda: None, native=native, refuses=lambda encoded: False))
    slices = [mixed, frames, whole(store_clip(write(mbaff, tmp_path / "c.mp4"), tmp_path / "c"))]
    try:
        assert decoder._divided(slices, [])[2] == on_cpu
    finally:
        decoder.close()


def test_an_error_waits_for_the_engines_that_still_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = store_clip(write(Recipe(frames=4), tmp_path / "a.mp4"), tmp_path)
    good = whole(clip)
    damaged = replace(good, data=np.zeros_like(good.data))
    waited: list[int] = []
    refused: set[str] = set()

    class Sessions:
        stream, native = None, True

        def submit(self, slices: Sequence[EncodedSlice], targets: object = (), **more: object) -> Pending[list[None]]:
            def wait() -> list[None]:
                waited.append(len(slices))
                return [None] * len(slices)

            return Pending(wait)

        write = submit

        def refuses(self, encoded: EncodedSlice) -> bool:
            return encoded.name in refused

        def close(self) -> None:
            pass

    decoder = GpuDecoder(device_id=0, threads=1, max_batch=2, sessions=False)
    decoder.sessions = cast(Any, Sessions())
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    pictures: Any = SimpleNamespace(
        targets=lambda *given: [None], sinks=lambda numbers: [SimpleNamespace(targets=None)]
    )
    try:
        for begin in (decoder.submit, partial(decoder.write, pictures=pictures, color="auto")):
            with pytest.raises(VideoError, match="damaged"):
                begin([good, damaged], on_cpu=[False, True]).result()
        refused.add(good.name)  # from now on, as the engines have failed
        with pytest.raises(VideoError, match="damaged"):
            decoder.submit([good, damaged], on_cpu=[False, True]).result()
    finally:
        decoder.close()
    assert waited == [1, 1]


def test_a_pipeline_of_images_has_time_to_open_whenever_it_is_needed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine that takes longer than the deadline of a batch: the GPU's pipeline after the CPU's, too."""
    seconds: list[float] = []

    class Images:
        def decode(self, slices: Sequence[EncodedSlice]) -> list[None]:
            if slices[0].name == "damaged":
                raise VideoError("damaged")
            return [None] * len(slices)

    def submit(call: Any, *, limits: Any, overdue: Any) -> Future[None]:
        seconds.append(limits()[0])
        future: Future[None] = Future()
        try:
            future.set_result(call(Images()))
        except VideoError as error:
            future.set_exception(error)
        return future

    def image(codec: str, name: str = "image") -> EncodedSlice:
        one = np.ones(1, dtype=np.int64)
        return EncodedSlice(name, codec, b"", 8, 8, RGB, np.zeros(1, dtype=np.uint8), one, one - 1, one - 1)

    decoder = GpuDecoder(device_id=0, threads=1, max_batch=2, sessions=False)
    monkeypatch.setattr(decoder._images, "submit", submit)
    try:
        for codec in ("png", "png", "jpeg", "jpeg", "png", "jpeg"):
            decoder._submit_images([image(codec)])()
        with pytest.raises(VideoError):
            decoder._submit_images([image("png", "damaged")])()
        decoder._submit_images([image("png")])()
    finally:
        decoder.close()
    assert [limit > START_S for limit in seconds] == [True, False, True, False, False, False, False, True]
