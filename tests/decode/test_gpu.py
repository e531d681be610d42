"""Which decoder a slice goes to. The decoding itself: tests/gpu."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamvid.bitstream.nal import START_CODE
from streamvid.decode.gpu import decode_route
from streamvid.video.gpu_support import Route
from streamvid.video.remux import store_clip
from tests.support.clips import write
from tools.clips import Recipe


@pytest.mark.parametrize(
    ("recipe", "route"),
    [
        (Recipe(frames=2), Route.NVDEC),
        (Recipe(frames=2, codec="hevc", height=182), Route.NVDEC),
        (Recipe(frames=2, codec="hevc", pix_fmt="yuv420p10le"), Route.NVDEC),
        (Recipe(frames=2, codec="hevc", pix_fmt="yuv420p10le", height=182), Route.DALI),
        (Recipe(frames=2, pix_fmt="yuv420p10le"), Route.CPU),
        (Recipe(frames=2, codec="vp9"), Route.DALI),
        (Recipe(frames=2, codec="mjpeg"), Route.CPU),
    ],
)
def test_a_slice_goes_where_its_sample_description_says(recipe: Recipe, route: Route, tmp_path: Path) -> None:
    clip = store_clip(write(recipe, tmp_path / "source.mp4"), tmp_path)
    assert decode_route(clip.codec, clip.stsd, recipe.width, recipe.height) is route


def test_a_sample_description_that_cannot_be_read_is_none_for_a_session() -> None:
    assert decode_route("h264", START_CODE, 320, 180) is Route.CPU
