"""Of heights that DALI's decoder cache mixes up, one is admitted per process: the more frequent, or the first."""

from __future__ import annotations

import pytest

from streamvid.decode.dali_cache_guard import DecoderCacheGuard, misses_cache


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
