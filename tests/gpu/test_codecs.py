"""Every codec that decode sessions take, with its hard properties: seeks are bit for bit a sequential decode by the
same session, and frames those of FFmpeg."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.gpu import GpuDecoder, decode_support
from streamvid.decode.nvdec import NvdecSessionPool, open_session_pool
from streamvid.decode.nvdec_library import native_library
from streamvid.video.gpu_support import Route
from streamvid.video.remux import store_clip
from tests.support import mpeg4
from tests.support.clips import write
from tests.support.field_pictures import Picture, write_fields
from tests.support.reference import slice_of, to_arrays, whole
from tools.clips import Recipe, paint
from tools.clips import write as write_pictures

_HIDDEN = (("auto-alt-ref", "1"), ("lag-in-frames", "25"), ("cpu-used", "5"), ("b", "100k"))
VP8 = Recipe(codec="vp8", container="webm", gop=12)
VP9 = replace(VP8, codec="vp9")
MPEG4 = Recipe(codec="mpeg4", gop=12)
CLIPS = {
    "vp8": VP8,
    "vp8_hidden": replace(VP8, hidden=7),
    "vp8_smallest": replace(VP8, width=48, height=16, number=False),
    "vp9": VP9,
    "vp9_hidden": replace(VP9, frames=96, gop=96, options=_HIDDEN),
    "vp9_odd": replace(VP9, width=321, height=181),
    "vp9_odd_width": replace(VP9, width=163, height=130),
    "vp9_odd_height": replace(VP9, width=320, height=131),
    "mpeg4": MPEG4,
    "mpeg4_open": replace(MPEG4, open_gop=True),
    "mpeg4_coarse": replace(MPEG4, crf=20),
    "mpeg4_avi": replace(MPEG4, container="avi"),
    "mpeg4_odd": replace(MPEG4, width=131, height=97),
    "mpeg4_packets": replace(MPEG4, b_frames=0, options=(("ps", "200"),)),
    "mpeg4_qpel": replace(MPEG4, options=(("flags", "+qpel+mv4"),)),
    "h264_intra": Recipe(gop=1, b_frames=0),
    "h264_could_be_fields": Recipe(gop=12, height=192, params=(("fake-interlaced", "1"),)),
    "hevc_10bit": Recipe(codec="hevc", pix_fmt="yuv420p10le", width=322, height=182, gop=12),
    "hevc_12bit": Recipe(codec="hevc", pix_fmt="yuv420p12le", gop=12),
    "hevc_fields": Recipe(codec="hevc", params=(("interlace", "tff"),), height=192, gop=12, b_frames=0),
}
CONSTRAINED = Recipe(
    width=1920, height=1080, frames=6, gop=34, b_frames=0, open_gop=False, crf=40, seed=442, scene=3,
    params=(
        ("ref", "16"), ("scenecut", "0"), ("slices", "3"), ("8x8dct", "0"), ("cqm", "jvt"), ("constrained-intra", "1"),
        ("deblock", "6,6"), ("qp", "20"), ("nr", "500"), ("weightp", "1"), ("subme", "7"), ("trellis", "0"),
        ("partitions", "all"), ("chroma-qp-offset", "12"), ("aq-mode", "1"), ("fake-interlaced", "1"),
        ("b-pyramid", "normal"), ("b-adapt", "1"), ("weightb", "1"), ("cabac", "1"), ("no-deblock", "0"), ("aud", "1"),
        ("me", "hex"), ("direct", "auto"), ("mixed-refs", "1"), ("sliced-threads", "0"), ("stitchable", "1"),
        ("pic-struct", "1"), ("frame-packing", "3"), ("intra-refresh", "0"),
    ),
)  # fmt: skip
"""H.264 that NVDEC garbles. FFmpeg makes the samples of the encoder."""
INEXACT = {"mpeg4"}
"""Codecs whose inverse transform is not defined bit for bit."""


@pytest.fixture(scope="module")
def pool() -> Iterator[NvdecSessionPool]:
    opened = open_session_pool(0)
    assert opened is not None
    yield opened
    opened.close()


@pytest.mark.parametrize("name", CLIPS)
def test_seeks_are_a_sequential_decode_and_frames_those_of_ffmpeg(
    name: str, pool: NvdecSessionPool, tmp_path: Path
) -> None:
    recipe = CLIPS[name]
    clip = store_clip(write(recipe, tmp_path / f"source.{recipe.container}"), tmp_path)
    route = decode_support(clip.codec, clip.stsd, clip.width, clip.height, native=pool.native).route
    if pool.native and name.startswith("vp9_odd"):
        assert route is Route.CPU
        pytest.skip("cores decode it beside the native module")
    assert route is Route.NVDEC
    (frames,) = to_arrays(pool.submit([whole(clip)], color="auto").result())
    rng = np.random.default_rng(len(name))
    for _ in range(4):
        wanted = [np.sort(rng.choice(len(frames), count, replace=False)) for count in (1, 3, 8, 1)]
        made = to_arrays(pool.submit([slice_of(clip, some) for some in wanted], color="auto").result())
        for some, got in zip(wanted, made, strict=True):
            np.testing.assert_array_equal(got, frames[some])
    far = np.abs(frames.astype(np.int16) - decode_with_pyav(whole(clip), color="auto"))
    print(f"{name}: mean {far.mean():.3f}, largest {far.max()}, of each frame {far.max(axis=(1, 2, 3)).tolist()}")
    if recipe.codec in INEXACT:
        assert far.mean() < 1
        assert far.max() < 16
    else:
        assert far.max() <= 1


@pytest.mark.parametrize(
    "recipe", [CONSTRAINED, Recipe(gop=12, params=(("qp", "0"),))], ids=["constrained", "lossless"]
)
def test_h264_that_nvdec_garbles_is_left_to_cores(recipe: Recipe, pool: NvdecSessionPool, tmp_path: Path) -> None:
    """If this fails as NVDEC no longer garbles it, `session_fault` need not know of it."""
    clip = store_clip(write(recipe, tmp_path / "a.mp4"), tmp_path)
    assert decode_support(clip.codec, clip.stsd, clip.width, clip.height, native=pool.native).route is Route.CPU
    (frames,) = to_arrays(pool.submit([whole(clip)], color="auto").result())
    assert np.abs(frames.astype(np.int16) - decode_with_pyav(whole(clip), color="auto")).max() > 10


@pytest.mark.parametrize(("still", "b_frames"), [(0, 2), (96, 2), (192, 2), (96, 0)])
def test_mpeg4_with_empty_video_packets_is_left_to_cores(
    still: int, b_frames: int, pool: NvdecSessionPool, tmp_path: Path
) -> None:
    clip = store_clip(mpeg4.write_still_above(tmp_path / "a.mp4", still, b_frames=b_frames), tmp_path)
    expected = decode_with_pyav(whole(clip), color="auto")
    (frames,) = to_arrays(pool.submit([whole(clip)], color="auto").result())
    far = int(np.abs(frames.astype(np.int16) - expected).max())
    print(f"still {still}, {b_frames} B-VOPs: {far} levels apart")
    assert (far > 20) is (still == 96 and b_frames > 0)
    decoder = GpuDecoder(device_id=0, threads=2, max_batch=2)
    try:
        (frames,) = to_arrays(decoder.submit([whole(clip)], color="auto").result())
    finally:
        decoder.close()
    assert np.abs(frames.astype(np.int16) - expected).max() < 16


@pytest.mark.parametrize("name", ["mbaff", "fields", "both"])
def test_the_native_module_weaves_fields(name: str, pool: NvdecSessionPool, tmp_path: Path) -> None:
    """As FFmpeg; beside PyNvVideoCodec cores decode such clips (`tests/decode/test_gpu.py`)."""
    if not pool.native:
        pytest.skip("the native module was not built")
    path, recipe = tmp_path / "a.mp4", Recipe(gop=8, height=192, frames=24)
    if name == "mbaff":
        moments = list(paint(replace(recipe, frames=48)))
        for top, bottom in zip(moments[::2], moments[1::2], strict=True):
            top[1::2] = bottom[1::2]
        write_pictures(replace(recipe, params=(("tff", "1"),)), path, moments[::2])
    else:
        kinds: list[Picture] = ["fields", "repeated field"]
        write_fields(path, [*kinds, "frame", *kinds, "frame", "frame", *kinds] if name == "both" else kinds * 8)
    clip = store_clip(path, tmp_path)
    assert decode_support(clip.codec, clip.stsd, clip.width, clip.height, native=True).route is Route.NVDEC
    (expected,) = to_arrays(pool.submit([whole(clip)], color="auto").result())
    assert np.abs(expected.astype(np.int16) - decode_with_pyav(whole(clip), color="auto")).max() <= 1
    rng = np.random.default_rng(1)
    wanted = [np.sort(rng.choice(len(expected), count, replace=False)) for count in (1, 3, 6, 1)]
    made = to_arrays(pool.submit([slice_of(clip, some) for some in wanted], color="auto").result())
    for some, got in zip(wanted, made, strict=True):
        np.testing.assert_array_equal(got, expected[some])


def test_vops_that_are_not_coded_are_no_frames(pool: NvdecSessionPool, tmp_path: Path) -> None:
    vops = mpeg4.encoded(tmp_path)
    clip = store_clip(mpeg4.mux(mpeg4.with_not_coded(vops, [4, 9, 17]), tmp_path / "a.mkv"), tmp_path)
    (frames,) = to_arrays(pool.submit([whole(clip)], color="auto").result())
    far = np.abs(frames.astype(np.int16) - decode_with_pyav(whole(clip), color="auto"))
    print(f"not coded: mean {far.mean():.3f}, largest {far.max()}")
    assert len(frames) == len(vops)
    assert far.mean() < 1
    for wanted in ([5], [4, 6], [18, 23]):
        (got,) = to_arrays(pool.submit([slice_of(clip, wanted)], color="auto").result())
        np.testing.assert_array_equal(got, frames[wanted])


def test_streams_of_one_size_share_a_session(tmp_path: Path) -> None:
    """Whatever came before: MPEG-4 of other tools, or that states no version, VP9 and VP8 with hidden pictures."""
    clips = []
    for name in ("mpeg4", "mpeg4_coarse", "mpeg4_qpel", "mpeg4_open", "vp9", "vp9_hidden", "vp8", "vp8_hidden"):
        (tmp_path / name).mkdir()
        recipe = replace(CLIPS[name], seed=len(name))
        clips.append(store_clip(write(recipe, tmp_path / name / f"a.{recipe.container}"), tmp_path / name))
    vops = [one._replace(data=mpeg4.without_version(one.data)) for one in mpeg4.encoded(tmp_path)]
    clips.append(store_clip(mpeg4.mux(vops, tmp_path / "a.mkv"), tmp_path))
    alone = []
    for clip in clips:
        first = NvdecSessionPool(device_id=0, engines=1, library=native_library())
        alone += to_arrays(first.submit([whole(clip)], color="auto").result())
        first.close()
    shared = NvdecSessionPool(device_id=0, engines=1, library=native_library())
    rng = np.random.default_rng(1)
    for _ in range(4):
        order = rng.permutation(np.repeat(np.arange(len(clips)), 2)).tolist()
        wanted = [np.sort(rng.choice(len(alone[n]), 4, replace=False)) for n in order]
        slices = [slice_of(clips[n], some) for n, some in zip(order, wanted, strict=True)]
        for n, some, got in zip(order, wanted, to_arrays(shared.submit(slices, color="auto").result()), strict=True):
            np.testing.assert_array_equal(got, alone[n][some])
    shared.close()
