"""Ranges that several readers want: each is asked for once, by the first that wants it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from streamvid.arrays import UInt8
from streamvid.storage.byte_range import ByteRange, FileVersion
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.range_reader import RangeReader
from streamvid.storage.shared_ranges import SharedRanges
from streamvid.storage.turn import Turn

FILES = {f"s3://bucket/{name}": np.random.default_rng(n).bytes(40_000_000) for n, name in enumerate("ab")}
A, B = FILES


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ByteRange]]:
    """What is fetched: for which step, and which range. Of step 3 it fails."""
    found: list[tuple[int, ByteRange]] = []

    def fetch(self: RangeReader, joined: Sequence[ByteRange], versions: Mapping[str, FileVersion]) -> list[UInt8]:
        found.extend((self.turn.number, one) for one in joined)
        if self.turn.number == 3:
            raise StorageUnavailable("it does not answer")
        return [np.frombuffer(FILES[one.path][one.start : one.end], dtype=np.uint8) for one in joined]

    monkeypatch.setattr(RangeReader, "fetch_joined", fetch)
    return found


def blocks(ranges: Sequence[ByteRange]) -> list[bytes]:
    return [FILES[one.path][one.start : one.end] for one in ranges]


def test_what_is_close_together_is_asked_for_once_by_the_first(asked: list[tuple[int, ByteRange]]) -> None:
    wanted = [
        [ByteRange(A, 0, 100_000), ByteRange(B, 0, 1000)],
        [ByteRange(A, 100_100, 200_000), ByteRange(A, 30_000_000, 30_001_000)],
        [ByteRange(B, 500, 1500), ByteRange(B, 0, 1000)],
    ]
    shared = SharedRanges(RangeReader(), wanted)
    for number, ranges in enumerate(wanted):
        got = shared.reader(number, Turn(number)).read(ranges)
        assert [block.tobytes() for block in got] == blocks(ranges)
    assert asked == [
        (0, ByteRange(A, 0, 200_000)), (0, ByteRange(B, 0, 1500)), (1, ByteRange(A, 30_000_000, 30_001_000)),
    ]  # fmt: skip


def test_later_ones_wait_for_what_an_earlier_one_asks_for(asked: list[tuple[int, ByteRange]]) -> None:
    wanted = [[ByteRange(A, 0, 1000)], [ByteRange(A, 500, 1500)], [ByteRange(B, 0, 10)]]
    shared = SharedRanges(RangeReader(), wanted)
    begun = threading.Event()

    def second() -> list[UInt8]:
        begun.set()
        return shared.reader(1, Turn(1)).read(wanted[1])

    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(second)
        assert begun.wait(120)
        assert shared.reader(2, Turn(2)).read(wanted[2])[0].tobytes() == blocks(wanted[2])[0]
        assert not later.done()
        shared.reader(0, Turn(0)).read(wanted[0])
        assert [block.tobytes() for block in later.result(120)] == blocks(wanted[1])


def test_all_that_wanted_it_have_the_error_of_a_request(asked: list[tuple[int, ByteRange]]) -> None:
    wanted = [[ByteRange(A, 0, 1000)], [ByteRange(A, 500, 1500)]]
    shared = SharedRanges(RangeReader(), wanted)
    for number in (0, 1):
        with pytest.raises(StorageUnavailable, match="does not answer"):
            shared.reader(number, Turn(3)).read(wanted[number])
    assert len(asked) == 1


def test_local_files_are_read_as_ever(tmp_path: Path, asked: list[tuple[int, ByteRange]]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    wanted = [[ByteRange(str(path), 2, 5)], [ByteRange(A, 0, 3), ByteRange(str(path), 0, 2)]]
    shared = SharedRanges(RangeReader(), wanted)
    got = [[block.tobytes() for block in shared.reader(n, Turn()).read(wanted[n])] for n in range(2)]
    assert got == [[b"234"], [FILES[A][:3], b"01"]]
