"""The frame index as bytes: what is written is read again, in whole or in blocks that suffice for their frames."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.video import index_file
from streamvid.video.frame_index import DISPOSABLE, HIDDEN, LEADING, RANDOM_ACCESS, FrameIndex
from streamvid.video.index_file import ENTRY_BYTES, EncodedIndex, IndexDirectory, encode_index

COLUMNS = ("pts", "offset", "size", "flags", "crc32c")
LIMITS = st.integers(3, 12)


@st.composite
def indexes(draw: st.DrawFn) -> FrameIndex:
    """Groups of pictures with reordered, leading and hidden packets, and times that now and then repeat or go back."""
    packets: list[tuple[int, int]] = []
    start = 0
    for group in range(draw(st.integers(1, 8))):
        length = draw(st.integers(1, 9))
        leading = draw(st.integers(0, min(2, length - 1)))
        order = draw(st.permutations(range(leading + 1, length)))
        times = [leading, *range(leading), *order]
        for n, time in enumerate(times):
            flags = RANDOM_ACCESS if n == 0 else LEADING if time < leading else 0
            flags |= draw(st.sampled_from([0, 0, 0, HIDDEN, DISPOSABLE]))
            flags |= HIDDEN if flags & LEADING and not group else 0
            packets.append((start + time, flags))
        start += length - draw(st.sampled_from([0, 0, 0, 1]))
    pts, flags_of = np.array(packets, dtype=np.int64).T
    shown = (flags_of & HIDDEN) == 0
    if not shown.any():
        flags_of[0] &= ~np.int64(HIDDEN)
        shown[0] = True
    count = len(pts)
    crcs = np.where(np.arange(count) % 3, np.arange(count) * 40_503_001 % 2**32, -1)
    return FrameIndex(pts - pts[shown].min(), 7 * np.arange(count), np.full(count, 5), flags_of, crcs)


def opened(encoded: EncodedIndex, packets: int) -> tuple[IndexDirectory, np.ndarray]:
    data = np.frombuffer(encoded.data, dtype=np.uint8)
    head = data[: ENTRY_BYTES * encoded.blocks]
    return IndexDirectory.parse(head, packets=packets, checksum=encoded.crc32c), data


@given(indexes(), LIMITS)
def test_blocks_suffice_for_their_frames(index: FrameIndex, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_file, "BLOCK_PACKETS", limit)
        encoded = encode_index(index)
    directory, data = opened(encoded, len(index))
    assert len(data) == 24 * encoded.blocks + 28 * len(index)
    whole = directory.blocks(data[slice(*directory.span(0, len(directory)))], 0, len(directory))
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(whole, name), getattr(index, name))
    sizes = np.diff(directory.first_packet)
    assert (sizes[:-1] >= limit).all()
    assert (index.flags[directory.first_packet[1:-1]] & RANDOM_ACCESS != 0).all()
    frames = np.arange(len(index.visible))
    blocks = directory.block_of_frame(frames)
    assert (directory.first_packet[blocks] <= index.visible).all()
    assert (index.visible < directory.first_packet[blocks + 1]).all()
    on_screen = np.searchsorted(index.frame_pts, index.frame_pts, side="right") - 1
    np.testing.assert_array_equal(directory.block_at(index.frame_pts), directory.block_of_frame(on_screen))


def test_a_long_clip_is_cut_every_thousand_packets() -> None:
    count = 5000
    access = np.where(np.arange(count) % 48 == 0, RANDOM_ACCESS, 0)
    index = FrameIndex(np.arange(count), np.arange(count), np.ones(count, np.int64), access)
    directory, _ = opened(encode_index(index), count)
    assert directory.first_packet.tolist() == [0, 1008, 2016, 3024, 4032, 5000]
    only_one = FrameIndex(index.pts, index.offset, index.size, np.where(np.arange(count), 0, RANDOM_ACCESS))
    assert encode_index(only_one).blocks == 1


def test_frames_that_lean_on_the_block_before_are_told() -> None:
    """An open group of pictures: its leading pictures are shown first, and refer to the group before."""
    count = 2000
    flags = np.where(np.arange(count) % 500 == 0, RANDOM_ACCESS, 0)
    pts = np.arange(count)
    pts[1000:1003], flags[1001:1003] = [1002, 1000, 1001], LEADING
    directory, _ = opened(encode_index(FrameIndex(pts, pts.copy(), np.ones(count, np.int64), flags)), count)
    assert directory.first_packet.tolist() == [0, 1000, 2000]
    assert directory.open.tolist() == [False, True]
    assert directory.first_pts.tolist() == [0, 1000]


def test_there_is_no_frame_beyond() -> None:
    index = FrameIndex(np.arange(3), np.arange(3), np.ones(3, np.int64), np.array([1, 0, 0]))
    directory, _ = opened(encode_index(index), 3)
    for frame in (-1, 3):
        with pytest.raises(IndexError):
            directory.block_of_frame(np.array([frame]))
