"""Sample descriptions: written, changed, refused."""

from __future__ import annotations

import struct

import pytest

from streamvid.mp4.boxes import box, full_box
from streamvid.mp4.sample_entry import (
    codec_configuration,
    coded_size,
    sample_description,
    visual_sample_description,
    with_coded_size,
)


def test_more_than_one_sample_description_is_refused() -> None:
    two = full_box(b"stsd", struct.pack(">I", 2), bytes(100))
    data = box(b"moov", box(b"trak", box(b"mdia", box(b"minf", box(b"stbl", two)))))
    with pytest.raises(ValueError, match="more than one"):
        sample_description(data)


def test_the_coded_size_can_be_changed() -> None:
    stsd = visual_sample_description(b"avc1", box(b"avcC", bytes(7)), width=64, height=48)
    assert coded_size(stsd) == (64, 48)
    changed = with_coded_size(stsd, 1920, 1080)
    assert coded_size(changed) == (1920, 1080)
    assert with_coded_size(changed, 64, 48) == stsd
    assert codec_configuration(changed, b"avcC") == bytes(7)
