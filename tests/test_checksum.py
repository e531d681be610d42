"""streamvid/checksum.py."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.checksum import Checksum, crc32c, ffmpeg_crc32c


@pytest.mark.parametrize("function", [crc32c, ffmpeg_crc32c()])
def test_known_values(function: object) -> None:
    """Those of RFC 3720, B.4, and the check value that catalogues of CRCs give for the digits."""
    assert callable(function)
    assert function(b"123456789") == 0xE3069283
    assert function(bytes(32)) == 0x8A9136AA
    assert function(b"\xff" * 32) == 0x62A8AB43
    assert function(bytes(range(32))) == 0x46DD794E
    assert function(b"") == 0


@given(st.binary(max_size=2000))
def test_both_ways_agree_with_the_definition(data: bytes) -> None:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    assert ffmpeg_crc32c()(data) == crc32c(data) == state ^ 0xFFFFFFFF


def test_a_view_of_an_array_is_taken() -> None:
    array = np.arange(3000, dtype=np.int64).view(np.uint8)
    assert crc32c(array.data[5:2000]) == ffmpeg_crc32c()(array[5:2000]) == crc32c(array[5:2000].tobytes())


@pytest.mark.parametrize("function", [crc32c, ffmpeg_crc32c()])
def test_a_packet_is_checked_without_giving_the_gil_away(function: Checksum) -> None:
    """A thread that gives it away for each packet waits for it as often, while NVDEC's threads have work."""
    turns, began, ended = [0], threading.Event(), False

    def count() -> None:
        began.set()
        while not ended:
            turns[0] += 1
            time.sleep(0)  # gives it back

    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    packet = bytes(2000)
    try:
        thread.start()
        began.wait()
        sys.setswitchinterval(1000.0)  # nobody takes it from who has it
        time.sleep(0.05)  # ends a wait of the former interval
        before = turns[0]
        for _ in range(2000):
            function(packet)
        assert turns[0] == before
    finally:
        ended = True
        sys.setswitchinterval(interval)
        thread.join()
