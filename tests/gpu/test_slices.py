"""Slices of clips of any structure on NVDEC: every frame is bit for bit that of a sequential decode of the whole clip
by the same decoder, alone and with slices of other clips in one batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamvid.decode.gpu import GpuDecoder, decode_support
from streamvid.decode.nvdec_library import native_library
from streamvid.video.gpu_support import Route, support
from tests.support.packet_selection_cases import Case, cases
from tests.support.reference import slice_of, to_arrays, whole

CODECS = ("h264", "h264", "hevc", "hevc", "vp9", "vp9", "vp8", "mpeg4")
BATCH = 32


def refused(case: Case, *, sessions: bool) -> bool:
    """What the loader does not give to a GPU."""
    clip = case.clip
    intra = len(clip.index.starts) == len(clip.index) > 1
    found = support(clip.codec, clip.pix_fmt, clip.width, clip.height, traits=clip.traits, all_intra=intra)
    by_headers = decode_support(clip.codec, clip.stsd, clip.width, clip.height, native=native_library() is not None)
    return Route.CPU in (found.route, by_headers.route) or (not sessions and found.dali != "")


@pytest.mark.parametrize("sessions", [True, False], ids=["sessions", "dali"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 4))])
def test_frames_of_any_encoder_are_those_of_the_sequential_decode(seed: int, sessions: bool, tmp_path: Path) -> None:
    made = [
        case
        for case in cases(seed, 12, tmp_path, codecs=CODECS, width=192, height=160)
        if not refused(case, sessions=sessions)
    ]
    assert len(made) >= 5
    alone = GpuDecoder(device_id=0, threads=1, max_batch=1, sessions=sessions)
    references = [to_arrays(alone.decode([whole(case.clip)]))[0] for case in made]
    alone.close()
    for case, frames in zip(made, references, strict=True):
        assert len(frames) == len(case.clip.index.visible)
    work = [(n, wanted) for n, case in enumerate(made) for wanted in case.wanted]
    np.random.default_rng(seed).shuffle(work)  # type: ignore[arg-type]
    decoder = GpuDecoder(device_id=0, threads=8, max_batch=BATCH, sessions=sessions)
    try:
        for first in range(0, len(work), BATCH):
            batch = work[first : first + BATCH]
            decoded = to_arrays(decoder.decode([slice_of(made[n].clip, wanted) for n, wanted in batch]))
            for (n, wanted), frames in zip(batch, decoded, strict=True):
                np.testing.assert_array_equal(
                    frames, references[n][wanted], err_msg=f"frames {wanted.tolist()} of {made[n].recipe}"
                )
    finally:
        decoder.close()
