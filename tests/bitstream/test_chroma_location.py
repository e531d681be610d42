"""Chroma locations as encoders write them."""

from __future__ import annotations

from pathlib import Path

from streamvid.video.remux import store_clip
from tools.clips import Recipe, write


def test_nothing_said(tmp_path: Path) -> None:
    clip = store_clip(write(Recipe(codec="h264", frames=4), tmp_path / "a.mp4"), tmp_path)
    assert clip.chroma_location == "unknown"
