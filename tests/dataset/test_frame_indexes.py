"""Frame indexes from a .packets file: the same that was written, or an error, whatever the bytes."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamvid.checksum import crc32c
from streamvid.dataset.frame_indexes import directory_bytes, parse_blocks, parse_directory, parse_index
from streamvid.video.frame_index import FrameIndex
from streamvid.video.index_file import encode_index

COLUMNS = ("pts", "offset", "size", "flags", "crc32c")
INDEX = FrameIndex(np.arange(3), np.arange(3), np.ones(3, np.int64), np.array([1, 0, 0]), np.array([5, -1, 2**32 - 1]))
STORED = encode_index(INDEX).data


def clips_of(index: FrameIndex, data: bytes, mp4_size: int) -> Any:
    blocks = (len(data) - 28 * len(index)) // 24
    return SimpleNamespace(
        packets=np.array([len(index)]),
        mp4_size=np.array([mp4_size]),
        frames=np.array([len(index.visible)]),
        index_size=np.array([len(data)]),
        index_crc32c=np.array([crc32c(data[: 24 * blocks])]),
    )


def parsed(data: bytes) -> FrameIndex:
    return parse_index(np.frombuffer(data, dtype=np.uint8), clips_of(INDEX, STORED, 4), 0)


def test_an_index_is_read_as_it_was_written() -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(parsed(STORED), name), getattr(INDEX, name))


@given(st.integers(0, 8 * len(STORED) - 1))
def test_every_flipped_bit_is_noticed(bit: int) -> None:
    damaged = bytearray(STORED)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError, match="checksum"):
        parsed(bytes(damaged))


@given(st.binary(max_size=300) | st.binary(min_size=84, max_size=84))
@example(b"")
@example(STORED[:-1])
@example(STORED[24:])
def test_any_bytes_with_right_checksums_are_an_index_of_the_clip_or_an_error(rows: bytes) -> None:
    directory = bytearray(STORED[:24])
    directory[16:20] = crc32c(rows).to_bytes(4, "little")
    clips = clips_of(INDEX, STORED, 4)
    clips.index_crc32c[0] = crc32c(directory)
    with contextlib.suppress(ValueError):
        index = parse_index(np.frombuffer(bytes(directory) + rows, dtype=np.uint8), clips, 0)
        assert len(index) == len(index.visible) == 3
        assert index.pts.min() >= 0
        assert (index.offset + index.size <= 4).all()


def test_a_part_of_an_index_is_read_by_its_directory() -> None:
    """A window of a long clip: the directory says which bytes hold its frames, and these are enough."""
    count = 10_000
    whole = FrameIndex(
        np.arange(count), 100 * np.arange(count), np.full(count, 100), np.where(np.arange(count) % 250, 0, 1)
    )
    data = encode_index(whole).data
    clips = clips_of(whole, data, 100 * count)
    stored = np.frombuffer(data, dtype=np.uint8)
    directory = parse_directory(stored[: directory_bytes(clips, 0)], clips, 0)
    assert len(directory) == 10
    (block,) = directory.block_of_frame(np.array([4321])).tolist()
    start, stop = directory.span(block, block + 1)
    assert stop - start == 28_000
    part = parse_blocks(directory, stored[start:stop], clips, 0, block, block + 1)
    frame = 4321 - int(directory.first_frame[block])
    assert (part.frame_pts[frame], part.offset[part.visible[frame]]) == (4321, 432_100)
    with pytest.raises(ValueError, match="checksum of block 4"):
        parse_blocks(directory, stored[start + 28 : stop + 28], clips, 0, block, block + 1)
