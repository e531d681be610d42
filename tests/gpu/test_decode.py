"""Frames from NVDEC: bit for bit those of a sequential decode of the whole clip on the same GPU, and the right ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.gpu import GpuDecoder
from streamvid.video.remux import store_clip
from streamvid.video.stored_clip import StoredClip
from tests.support.clips import write
from tests.support.reference import slice_of, to_arrays, whole
from tools.clips import Recipe, hard_recipes, read_frame_number

HARD = hard_recipes()
ON_GPU = [
    "h264", "h264_pyramid", "h264_no_b", "h264_one_gop", "h264_slices", "h264_cuts", "h264_full_range", "h264_portrait",
    "h264_2997", "h264_five_frames", "h264_mkv", "h264_ts", "h264_avi_b_frames", "h264_vfr", "h264_trimmed",
    "hevc", "hevc_10bit", "hevc_open_gop", "hevc_intra", "hevc_temporal_layers", "hevc_vfr", "hevc_ts",
    "vp9", "vp9_vfr", "vp8", "mpeg4",
]  # fmt: skip

QUICK = ("h264_pyramid", "h264_one_gop", "hevc_10bit", "hevc_open_gop", "vp9", "vp8")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in ON_GPU]


def stored(name: str, folder: Path) -> tuple[Recipe, StoredClip]:
    recipe = HARD[name]
    inner = folder / name
    inner.mkdir()
    return recipe, store_clip(write(recipe, inner / f"source.{recipe.container}"), inner)


def stock(clip: StoredClip) -> npt.NDArray[np.uint8]:
    """The whole stored mp4 by fn.decoders.video, without any of our slicing."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=1, num_threads=1, device_id=0, prefetch_queue_depth=1)
    def graph() -> object:
        return fn.decoders.video(fn.external_source(name="mp4", ndim=1), device="mixed")

    pipe = graph()
    pipe.build()
    pipe.feed_input("mp4", [np.fromfile(clip.mp4, dtype=np.uint8)])
    (out,) = pipe.run()
    return to_arrays(out)[0]


@pytest.mark.parametrize("name", NAMES)
def test_slices_give_the_frames_of_a_sequential_decode(name: str, tmp_path: Path) -> None:
    recipe, clip = stored(name, tmp_path)
    shown = recipe.shown()
    decoder = GpuDecoder(device_id=0, threads=4, max_batch=32)
    (reference,) = to_arrays(decoder.decode([whole(clip)]))
    if not (clip.index.flags & 8).any():
        np.testing.assert_array_equal(reference, stock(clip))
    rng = np.random.default_rng(len(name))
    picks = [
        np.sort(rng.choice(len(shown), int(rng.integers(1, min(8, len(shown)) + 1)), replace=False)) for _ in range(20)
    ]
    slices = [slice_of(clip, pick) for pick in picks]
    for pick, part, frames in zip(picks, slices, to_arrays(decoder.decode(slices)), strict=True):
        np.testing.assert_array_equal(frames, reference[pick])
        assert [read_frame_number(frame) for frame in frames] == [shown[n] for n in pick]
        # Another decoder, other rounding; but the same picture, in the same colours.
        difference = np.abs(frames.astype(np.int16) - decode_with_pyav(part))
        assert difference.mean() < 1.5
        assert difference.max() <= 8


@pytest.mark.full
def test_batches_of_mixed_clips_over_and_over(tmp_path: Path) -> None:
    """Codecs and sizes side by side, in changing order, through one decoder: nothing depends on what came before."""
    names = ["h264", "hevc", "hevc_10bit", "vp9", "h264_portrait", "h264_2997", "hevc_open_gop", "h264_mkv"]
    clips = {name: stored(name, tmp_path)[1] for name in names}
    alone = {
        name: to_arrays(GpuDecoder(device_id=0, threads=1, max_batch=1).decode([whole(clip)]))[0]
        for name, clip in clips.items()
    }
    decoder = GpuDecoder(device_id=0, threads=4, max_batch=16)
    rng = np.random.default_rng(0)
    held = []
    for _ in range(12):
        batch = [(str(name), np.sort(rng.choice(40, 4, replace=False))) for name in rng.choice(names, 16)]
        held.append((batch, decoder.decode([slice_of(clips[name], pick) for name, pick in batch])))
        # Batches that are still held must not change when the next ones are decoded.
        for older, frames in held[-3:]:
            for (name, pick), got in zip(older, to_arrays(frames), strict=True):
                np.testing.assert_array_equal(got, alone[name][pick])
