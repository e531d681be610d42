"""Frame indexes from a .packets file: for any bytes, reading gives the written index or an error."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamvid.checksum import crc32c
from streamvid.dataset.frame_indexes import directory_bytes, parse_blocks, parse_directory, parse_index, parse_together
from streamvid.dataset.shard_rows import MAX_TICKS
from streamvid.video.frame_index import FrameIndex
from streamvid.video.index_file import ENTRY, PACKET, encode_index

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
    return parse_both_ways(data, clips_of(INDEX, STORED, 4))


def parse_both_ways(data: bytes, clips: Any) -> FrameIndex:
    """The index alone; before and behind a good one it is the same, or left out, and the good one is not."""
    array = np.frombuffer(data, dtype=np.uint8)
    try:
        alone = parse_index(array, clips, 0)
    except ValueError:
        alone = None
    good = clips_of(INDEX, STORED, 4)
    three = SimpleNamespace(
        **{name: np.concatenate([getattr(good, name), np.repeat(column, 2)]) for name, column in vars(clips).items()}
    )
    found = parse_together({1: array, 0: np.frombuffer(STORED, dtype=np.uint8), 2: array}, cast(Any, three))
    assert sorted(found) == ([0] if alone is None else [0, 1, 2])
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(found[0], name), getattr(INDEX, name))
        for row in (1, 2) if alone is not None else ():
            np.testing.assert_array_equal(getattr(found[row], name), getattr(alone, name))
    return parse_index(array, clips, 0)


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
        index = parse_both_ways(bytes(directory) + rows, clips)
        assert len(index) == len(index.visible) == 3
        assert index.pts.min() >= 0
        assert (index.offset + index.size <= 4).all()


@given(
    st.sampled_from([(ENTRY, 0), *((PACKET, n) for n in range(3))]),
    st.integers(0, 4),
    st.sampled_from([-(2**62), -MAX_TICKS - 1, -1, 0, 1, 2, 3, 4, 5, 8, 9, 16, 24, MAX_TICKS, 2**32 - 1, 2**63 - 1]),
    st.sampled_from([4, 2**32 + 1, 2**63 - 1]),
)
@example((PACKET, 1), 1, 2**63 - 1, 2**63 - 1)
@example((PACKET, 1), 2, 2, 4)
def test_a_false_field_with_right_checksums(
    place: tuple[np.dtype[Any], int], field: int, value: int, mp4_size: int
) -> None:
    kind, number = place
    directory, packets = (
        np.frombuffer(bytearray(part), dtype=dtype) for part, dtype in ((STORED[:24], ENTRY), (STORED[24:], PACKET))
    )
    changed = (directory if kind is ENTRY else packets)[kind.names[field]]
    changed[number] = np.int64(value).astype(changed.dtype)
    if (kind, field) != (ENTRY, 3):
        directory["crc32c"] = crc32c(packets.tobytes())
    clips = clips_of(INDEX, STORED, mp4_size)
    clips.index_crc32c[0] = crc32c(directory.tobytes())
    with contextlib.suppress(ValueError):
        index = parse_both_ways(directory.tobytes() + packets.tobytes(), clips)
        ends = [offset + size for offset, size in zip(index.offset.tolist(), index.size.tolist(), strict=True)]
        assert max(ends) <= mp4_size
        assert sum(index.size.tolist()) <= mp4_size


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
    assert not parse_together({0: stored}, clips), "of one block only"
    with pytest.raises(ValueError, match="checksum of block 4"):
        parse_blocks(directory, stored[start + 28 : stop + 28], clips, 0, block, block + 1)
