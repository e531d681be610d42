"""Hard videos where they lie, in full and by their tables: the frames of packed ones, one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from streamvid.dataset.dataset import Dataset
from streamvid.inspection.verify import verify
from streamvid.loader.clip_dataset import ClipDataset
from streamvid.packing.index import index
from streamvid.packing.options import PackOptions
from streamvid.packing.pack import pack
from streamvid.sampling.spread import All
from tests.support.clips import hard_clips
from tests.support.packed import make_videos
from tools.clips import Recipe

HARD: Final = hard_clips()
SMALL: Final[dict[str, Any]] = {"width": 64, "height": 64, "frames": 24, "gop": 8}


def fragmented(recipe: Recipe, *flags: str) -> Recipe:
    return replace(recipe, muxer=(("movflags", "+".join(flags)),))


BASE: Final = Recipe(**SMALL)
HEVC: Final = Recipe(codec="hevc", b_frames=3, **SMALL)
VP9: Final = Recipe(codec="vp9", **SMALL)
MPEG4: Final = Recipe(codec="mpeg4", **SMALL)
MJPEG: Final = Recipe(codec="mjpeg", container="mov", **SMALL)
BY_TABLES: Final = {
    "pyramid": replace(BASE, b_frames=7, gop=24),
    "ten_bit": replace(BASE, pix_fmt="yuv420p10le"),
    "portrait_rotated": replace(BASE, width=90, height=160, rotation=90),
    "mirrored": replace(BASE, rotation=630, container="mov"),
    "vfr": replace(BASE, jitter=3),
    "faststart_audio": replace(BASE, audio=True, muxer=(("movflags", "faststart"),)),
    "trimmed": replace(BASE, trim=10, b_frames=3),
    "trimmed_both": replace(BASE, trim=5, trim_end=5, b_frames=3, container="mov"),
    "trimmed_vfr": replace(BASE, jitter=8, trim=9, trim_end=3),
    "two_slices": replace(BASE, params=(("slices", "2"),)),
    "repeated_headers": replace(BASE, params=(("repeat-headers", "1"),)),
    "negative": fragmented(BASE, "negative_cts_offsets"),
    "fragments": fragmented(BASE, "frag_keyframe", "empty_moov"),
    "fragments_behind_moov": fragmented(BASE, "frag_keyframe"),
    "fragments_audio": fragmented(replace(BASE, audio=True), "frag_keyframe", "empty_moov", "default_base_moof"),
    "fragments_dash": fragmented(BASE, "dash"),
    "fragments_each": fragmented(replace(BASE, frames=9), "frag_every_frame", "empty_moov"),
    "fragments_hevc": fragmented(HEVC, "cmaf", "frag_keyframe"),
    "hev1": replace(HEVC, tag="hev1"),
    "cra_and_rasl": replace(HEVC, open_gop=True),
    "cra_trimmed": replace(HEVC, open_gop=True, trim=10, trim_end=3),
    "layers": replace(HEVC, params=(("temporal-layers", "2"),)),
    "hevc_ten_bit": replace(HEVC, pix_fmt="yuv420p10le", colour="bt2020"),
    "vp9": VP9,
    "vp9_superframes": replace(HARD["vp9_hidden_frames"], container="mp4", width=64, height=64),
    "vp9_fragments": fragmented(VP9, "frag_keyframe", "empty_moov"),
    "av1_hidden": Recipe(codec="av1", **SMALL),
    "av1_trimmed": Recipe(codec="av1", trim=3, **SMALL),
    "mpeg4": MPEG4,
    "mpeg4_mov_trimmed": replace(MPEG4, container="mov", trim=5),
    "mjpeg": MJPEG,
    "mjpeg_mp4_full_range": replace(MJPEG, container="mp4", pix_fmt="yuvj422p", full_range=True),
}
IN_FULL: Final = {
    "recovery_points": replace(BASE, open_gop=True, b_frames=3),
    "avc3": replace(BASE, tag="avc3"),
    "mid_gop": replace(BASE, container="mkv", drop=3),
    "vp9_webm": replace(VP9, container="webm", jitter=6),
    "vp8_hidden": replace(HARD["vp8_hidden_frames"], **SMALL),
    "mpeg4_avi": replace(MPEG4, container="avi", b_frames=2),
}


def frames(path: Path) -> dict[str, tuple[np.ndarray[Any, Any], ...]]:
    clips = ClipDataset(Dataset.open(path), sampling=All(), on_error="raise")
    every = zip(clips.dataset.clips.key, (clips[row] for row in range(len(clips))), strict=True)
    return {key: (one["video"].numpy(), one["pts"].numpy()) for key, one in every}


def test_every_frame_is_that_of_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    videos = make_videos(tmp_path / "videos", BY_TABLES | IN_FULL)
    pack(videos, tmp_path / "packed", options=PackOptions("any"), progress=False)
    packed = frames(tmp_path / "packed")
    assert packed.keys() == (BY_TABLES | IN_FULL).keys()
    for fast in (False, True):
        index(videos, tmp_path / f"indexed-{fast}", fast=fast, progress=False)
        ours = frames(tmp_path / f"indexed-{fast}")
        wrong = [
            name
            for name, arrays in packed.items()
            if not (np.array_equal(ours[name][0], arrays[0]) and np.allclose(ours[name][1], arrays[1], atol=1e-6))
        ]
        assert wrong == []
    data = Dataset.open(tmp_path / "indexed-True")
    assert {key for row, key in enumerate(data.clips.key) if (data.index(row).crc32c < 0).all()} == set(BY_TABLES)
    # What tables say is held against all packets, and found to be so.
    assert verify(tmp_path / "indexed-True", decode=True, progress=False).problems == ()
