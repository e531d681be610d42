"""Of heights that DALI's decoder cache mixes up, one is admitted per process: the more frequent, or the first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamvid.dataset.clip_table import Categories
from streamvid.decode import dali_cache_guard
from streamvid.decode.dali_cache_guard import DecoderCacheGuard, misses_cache, mixed_up


@pytest.mark.parametrize("codec", ["h264", "hevc", "vp8", "mpeg4"])
def test_the_first_height_of_a_coded_height_is_admitted(codec: str) -> None:
    guard = DecoderCacheGuard()
    assert guard.admit(0, codec, 1920, 1080)
    assert not guard.admit(0, codec, 1920, 1088)
    # All that are lower than they are coded never find a decoder, so they do not find each other's.
    assert guard.admit(0, codec, 1920, 1084)
    assert guard.admit(0, codec, 1280, 1088)
    assert guard.admit(1, codec, 1920, 1088)
    assert not guard.admit(1, codec, 1920, 1080)


def test_the_more_frequent_height_is_preferred_unless_it_is_decided() -> None:
    guard = DecoderCacheGuard()
    sizes = {("h264", 320, 192): 3, ("h264", 320, 180): 2, ("h264", 320, 184): 2, ("vp9", 320, 180): 1}
    assert guard.prefer(0, sizes) == [("h264", 320, 192)]
    assert guard.prefer(0, {("h264", 320, 192): 9, ("h264", 320, 180): 1}) == [("h264", 320, 192)]
    assert guard.prefer(0, {("hevc", 320, 192): 1, ("hevc", 320, 180): 1}) == [("hevc", 320, 180)]


def test_which_streams_open_a_decoder_each() -> None:
    assert misses_cache("h264", 1920, 1080)
    assert not misses_cache("h264", 1920, 1088)
    assert not misses_cache("vp9", 1920, 1080)


def test_of_a_datasets_clips_the_rarer_height_is_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are asked for once, however many clips have them."""
    asked: list[dict[tuple[str, int, int], int]] = []

    class Guard(DecoderCacheGuard):
        def prefer(self, device_id: int, counts: Any) -> list[tuple[str, int, int]]:
            asked.append(dict(counts))
            return super().prefer(device_id, counts)

    guard = Guard()
    monkeypatch.setattr(dali_cache_guard, "SHARED_GUARD", guard)
    clips = SimpleNamespace(
        codec=Categories(np.tile(np.array([0, 0, 1], dtype=np.int32), 50), ("h264", "vp9")),
        width=np.full(150, 320),
        height=np.array([192, 180, 180] * 50),
    )
    clips.height[3] = 180
    dataset: Any = SimpleNamespace(clips=clips)
    rows = np.arange(149, dtype=np.int64)
    found = mixed_up(dataset, rows, 0)
    assert np.flatnonzero(found).tolist() == [n for n in range(0, 149, 3) if n != 3]
    assert asked == [{("h264", 320, 192): 49, ("h264", 320, 180): 51, ("vp9", 320, 180): 49}]
