"""Codes of headers, and of bytes that are none."""

from __future__ import annotations

import pytest

from streamvid.bitstream import packet_info
from streamvid.bitstream.bits import BitReader
from streamvid.mp4.boxes import box
from streamvid.mp4.sample_entry import visual_sample_description


def test_the_longest_code() -> None:
    largest = BitReader((1 << 32 | (1 << 32) - 1).to_bytes(9, "big"))
    assert largest.u(7) == 0  # 65 bits follow
    assert largest.ue() == (1 << 33) - 2
    with pytest.raises(ValueError, match="too many leading zeros"):
        BitReader(bytes(5) + b"\xff").ue()


@pytest.mark.parametrize("content", [0x00, 0x5B])
def test_a_parameter_set_of_megabytes(content: int) -> None:
    """As one flipped bit makes of the slice of an IDR picture: it is read in no time, and not in minutes or hours."""
    units = b"\x67\x64\0\x1f" + bytes([content]) * 1_000_000, b"\x65" + bytes(30)
    of = packet_info.classifier(
        "h264", visual_sample_description(b"avc1", box(b"avcC", b"\1\x64\0\x1f\xff\xe0\0"), width=16, height=16)
    )
    assert of(memoryview(b"".join(len(unit).to_bytes(4, "big") + unit for unit in units))).random_access
