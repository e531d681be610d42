"""A part of an index gives the same results as the whole, or names the missing blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.video import index_file
from streamvid.video.frame_index import FrameIndex
from streamvid.video.index_blocks import IndexBlocks, MissingBlocks
from streamvid.video.index_file import encode_index
from streamvid.video.packet_selection import byte_ranges, select_packets
from tests.video.test_index_file import COLUMNS, LIMITS, indexes, opened

T = TypeVar("T")


def asked(index: FrameIndex, limit: int) -> Callable[[Callable[[IndexBlocks], T]], tuple[T, set[int]]]:
    """Calls a function of an index in blocks until it has those that it needs; gives these, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_file, "BLOCK_PACKETS", limit)
        encoded = encode_index(index)
    directory, data = opened(encoded, len(index))

    def ask(use: Callable[[IndexBlocks], T]) -> tuple[T, set[int]]:
        blocks: dict[int, FrameIndex] = {}
        while True:
            try:
                return use(IndexBlocks(directory, blocks)), set(blocks)
            except MissingBlocks as missing:
                lacking = set(missing.blocks)
            assert lacking
            assert lacking.isdisjoint(blocks)
            for block in lacking:
                part = data[slice(*directory.span(block, block + 1))]
                blocks[block] = directory.blocks(part, block, block + 1)

    return ask


@given(indexes(), LIMITS, st.data())
def test_blocks_answer_as_the_whole_index(index: FrameIndex, limit: int, data: st.DataObject) -> None:
    ask = asked(index, limit)
    pts = index.frame_pts
    ticks = np.array(data.draw(st.lists(st.integers(-3, int(pts[-1]) + 9), min_size=1, max_size=5)))
    found, _ = ask(lambda blocks: blocks.frames_at(ticks))
    np.testing.assert_array_equal(found, np.maximum(np.searchsorted(pts, ticks, side="right") - 1, 0))
    before, used = ask(lambda blocks: blocks.frames_before(int(ticks[0])))
    assert before == np.searchsorted(pts, ticks[0], side="left")
    assert len(used) <= 1
    frames = np.array(sorted(data.draw(st.sets(st.integers(0, len(pts) - 1)))), dtype=np.int64)
    times, _ = ask(lambda blocks: blocks.times(frames))
    np.testing.assert_array_equal(times, pts[frames])
    whole, _ = ask(lambda blocks: blocks.whole)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(whole, name), getattr(index, name))


@given(indexes(), LIMITS, st.data())
def test_blocks_select_the_packets_of_the_whole_index(index: FrameIndex, limit: int, data: st.DataObject) -> None:
    ask = asked(index, limit)
    frames = np.array(sorted(data.draw(st.sets(st.integers(0, len(index.visible) - 1), min_size=1))))
    found, used = ask(lambda blocks: blocks.select(frames))
    wanted = select_packets(index, frames)
    for field in fields(wanted):
        if field.name != "gops":  # numbers of their own, and as many of them
            np.testing.assert_array_equal(getattr(found, field.name), getattr(wanted, field.name), field.name)
    np.testing.assert_array_equal(np.diff(found.gops) > 0, np.diff(wanted.gops) > 0)
    for waste in (0.15, 1.0):
        np.testing.assert_array_equal(byte_ranges(found, gap=11, waste=waste), byte_ranges(wanted, gap=11, waste=waste))
    assert len(used) <= 2 * len(frames)


def test_what_a_clip_has_not() -> None:
    count = 12
    index = FrameIndex(np.arange(count), np.arange(count), np.ones(count, np.int64), np.ones(count, np.int64))
    ask = asked(index, 3)
    for wrong in ([-1], [0, 12]):
        with pytest.raises(IndexError, match="has 12 frames"):
            ask(lambda blocks, wrong=wrong: blocks.select(np.array(wrong)))  # type: ignore[misc]
    for wrong in ([], [3, 3], [4, 2]):
        with pytest.raises(ValueError, match=r"rise|at least one"):
            ask(lambda blocks, wrong=wrong: blocks.select(np.array(wrong, dtype=np.int64)))  # type: ignore[misc]


def test_a_users_except_does_not_end_the_asking() -> None:
    index = FrameIndex(np.arange(9), np.arange(9), np.ones(9, np.int64), np.ones(9, np.int64))

    def careless(blocks: IndexBlocks) -> int:
        try:
            return blocks.frames_before(8)
        except Exception:
            return -1

    assert asked(index, 3)(careless) == (8, {2})
