"""The table of what a GPU decodes (`streamvid.video.gpu_support`) against the GPU itself, at the edges of the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamvid.decode.cpu import decode_with_pyav
from streamvid.decode.dali import DaliDecoder
from streamvid.decode.gpu import GpuDecoder
from streamvid.errors import VideoError
from streamvid.video.gpu_support import Route, support
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from tests.support.clips import write
from tests.support.reference import to_arrays, whole
from tools.clips import Recipe

EDGES = [
    Recipe(frames=6, width=64, height=64),
    Recipe(frames=6, width=4096, height=64),
    Recipe(frames=6, pix_fmt="yuv420p10le"),
    Recipe(frames=6, pix_fmt="yuv422p"),
    Recipe(frames=6, codec="hevc", width=144, height=144),
    Recipe(frames=6, codec="hevc", width=144, height=144, pix_fmt="yuv420p10le"),
    Recipe(frames=6, codec="hevc", width=128, height=128),
    Recipe(frames=6, codec="hevc", gop=1, b_frames=0),
    Recipe(frames=6, codec="vp9", container="webm", width=128, height=128),
    Recipe(frames=6, codec="vp9", container="webm", width=96, height=96),
    Recipe(frames=6, codec="vp8", container="webm", width=64, height=64),
    Recipe(frames=30, codec="vp8", container="webm", hidden=7),
]
IDS = [f"{one.codec}-{one.width}x{one.height}-{one.pix_fmt}-gop{one.gop}" for one in EDGES]


@pytest.mark.parametrize("recipe", EDGES, ids=IDS)
def test_the_table_says_what_this_gpu_decodes(recipe: Recipe, tmp_path: Path) -> None:
    clip = store_clip(write(recipe, tmp_path / f"source.{recipe.container}"), tmp_path)
    row = support(clip.codec, clip.pix_fmt, clip.width, clip.height, traits=clip.traits)
    assert decodes(whole(clip), by_dali=row.route is Route.CPU) == (row.route is not Route.CPU), row


def decodes(encoded: EncodedSlice, *, by_dali: bool) -> bool:
    """Whether this GPU gives the frames that the CPU gives. `GpuDecoder` would leave to the CPU what the table does."""
    decoder = GpuDecoder(device_id=0, threads=2, max_batch=1)
    try:
        if by_dali:
            (frames,) = to_arrays(DaliDecoder(device_id=0, threads=2, max_batch=1).decode([encoded], streams=1))
        else:
            (frames,) = to_arrays(decoder.decode([encoded]))
    except (VideoError, RuntimeError) as error:
        print(error)
        return False
    finally:
        decoder.close()
    return bool(np.abs(frames.astype(np.int16) - decode_with_pyav(encoded)).mean() < 1.5)
