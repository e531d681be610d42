"""Clips that DALI is known to decode wrongly are refused, with their keys; others are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import streamvid as sv
from streamvid.dali_engine.support import check_decodable
from streamvid.dataset.dataset import Dataset
from streamvid.errors import InputError
from streamvid.packing.options import PackOptions
from tests.support.packed import pack_recipes
from tools.clips import Recipe

H264 = Recipe(width=320, height=192, frames=6, gop=6)
VP9 = replace(H264, codec="vp9", container="webm")
_ALT_REF = (("auto-alt-ref", "1"), ("lag-in-frames", "25"), ("cpu-used", "5"), ("b", "100k"))
RECIPES = {
    "h264": H264,
    "h264_2": replace(H264, seed=1),
    "hevc": replace(H264, codec="hevc"),
    "hevc_10bit": replace(H264, codec="hevc", pix_fmt="yuv420p10le"),
    "vp9": VP9,
    "vp8": replace(VP9, codec="vp8"),
    # Coded with 192 rows as those above are.
    "h264_180": replace(H264, height=180),
    "h264_intra": replace(H264, gop=1, b_frames=0),
    "h264_444": replace(H264, pix_fmt="yuv444p"),
    "vp9_odd": replace(VP9, width=161, height=145),
    "vp9_hidden": replace(VP9, frames=96, gop=96, options=_ALT_REF),
    "vp8_hidden": replace(VP9, codec="vp8", frames=20, hidden=7),
    "mjpeg": replace(VP9, codec="mjpeg", container="avi"),
    # DALI's pixels of these are wrong on a GPU, without an error.
    "h264_fields": replace(H264, params=(("tff", "1"),)),
    "h264_cropped": replace(H264, params=(("crop-rect", "64,16,0,0"),)),
    "mpeg4": replace(H264, codec="mpeg4", b_frames=0),
    "mpeg4_b_vops": replace(H264, codec="mpeg4"),
}
ON_CPU = {"vp9", "vp9_odd", "vp9_hidden", "vp8", "mjpeg"}
ON_GPU = {"h264", "h264_2", "hevc", "hevc_10bit", "vp9", "vp8", "mpeg4"}
A_GPU = 99
"""No other test's: the guard of DALI's decoder cache remembers what it let in, by GPU."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    recipes = {f"{name}.{recipe.container}": recipe for name, recipe in RECIPES.items()}
    packed = pack_recipes(recipes, tmp_path_factory.mktemp("support"), options=PackOptions("any"), workers=1)
    return sv.Dataset.open(packed)


@pytest.mark.parametrize(("device_id", "decodable"), [(None, ON_CPU), (A_GPU, ON_GPU)])
def test_clips_that_dali_does_not_decode_are_refused_by_name(
    dataset: Dataset, device_id: int | None, decodable: set[str]
) -> None:
    rows = {dataset.clips.source[row].rpartition(".")[0]: row for row in range(len(dataset))}
    assert set(rows) == set(RECIPES)
    check_decodable(dataset, np.array(sorted(rows[name] for name in decodable)), device_id=device_id)
    for name in set(rows) - decodable:
        together = np.array(sorted(rows[other] for other in {*decodable, name}))
        with pytest.raises(InputError) as error:
            check_decodable(dataset, together, device_id=device_id)
        message = str(error.value)
        assert f"1 clip of {RECIPES[name].codec} " in message
        assert f"such as {dataset.key(rows[name])} (" in message
        assert 'engine="default"' in message
        assert "\n" not in message


def test_refusals_name_their_reasons(dataset: Dataset) -> None:
    with pytest.raises(InputError) as error:
        check_decodable(dataset, np.arange(len(dataset)), device_id=A_GPU)
    for words in (
        "4:2:0",
        "odd width",
        "non-displayed pictures",
        "non-displayed packets",
        "Motion JPEG",
        "I-frames alone",
        "decoder cache",
    ):
        assert words in str(error.value)
