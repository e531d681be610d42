"""A part of a clip's frame index: its directory and some blocks. A window of an hour-long clip needs no more.

Its methods give samplers the same results as the whole index. If that needs a block that is not in memory, they raise
`MissingBlocks`; the caller reads the block and calls again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from streamvid.arrays import Int64
from streamvid.video.frame_index import FrameIndex
from streamvid.video.index_file import IndexDirectory
from streamvid.video.packet_selection import PacketSelection, select_packets


class MissingBlocks(BaseException):
    """Blocks are needed that are not in memory, by number. Not an `Exception`, because a user's sampler may catch
    those."""

    def __init__(self, blocks: Iterable[int]) -> None:
        super().__init__()
        self.blocks = tuple(blocks)


@dataclass(frozen=True)
class IndexBlocks:
    """A directory and some of its blocks. All methods may raise MissingBlocks.

    Attributes:
        directory: the directory of the clip's index.
        blocks: some blocks, by number.
    """

    directory: IndexDirectory
    blocks: Mapping[int, FrameIndex]

    @property
    def frames(self) -> int:
        """Number of the clip's frames."""
        return int(self.directory.first_frame[-1])

    @cached_property
    def whole(self) -> FrameIndex:
        """The clip's whole index."""
        return self._joined(np.arange(len(self.directory)))

    def frames_at(self, ticks: Int64) -> Int64:
        """int64 [times]: the frame on screen at each time in ticks; the first one before 0."""
        numbers, times = self._frames(self.directory.block_at(ticks))
        return numbers[np.maximum(np.searchsorted(times, ticks, side="right") - 1, 0)]

    def frames_before(self, ticks: int) -> int:
        """Number of frames that are displayed before a time in ticks."""
        block = int(np.searchsorted(self.directory.first_pts, ticks, side="left")) - 1
        if block < 0:
            return 0
        self._need(np.array([block]))
        within = np.searchsorted(self.blocks[block].frame_pts, ticks, side="left")
        return int(self.directory.first_frame[block] + within)

    def times(self, frames: Int64) -> Int64:
        """int64 [frames]: presentation times of frames, in ticks."""
        numbers, times = self._frames(self.directory.block_of_frame(frames))
        return times[np.searchsorted(numbers, frames)]

    def select(self, frames: Int64) -> PacketSelection:
        """`select_packets` for the whole index; same arguments and errors."""
        directory = self.directory
        blocks = np.unique(directory.block_of_frame(frames))
        # A block begins at a random access packet, whose leading pictures need the previous block.
        blocks = np.union1d(blocks, blocks[directory.open[blocks]] - 1)
        packets, shown = (np.diff(first)[blocks] for first in (directory.first_packet, directory.first_frame))
        behind = directory.first_frame[blocks] - (np.cumsum(shown) - shown)
        place = np.searchsorted(blocks, directory.block_of_frame(frames))
        part = select_packets(self._joined(blocks), frames - behind[place])
        ends = np.cumsum(packets)
        place = np.searchsorted(ends, part.numbers, side="right")
        return replace(part, numbers=part.numbers + (directory.first_packet[blocks] - (ends - packets))[place])

    def _frames(self, blocks: Int64) -> tuple[Int64, Int64]:
        """Of the frames in some blocks their numbers, and their presentation times in ticks, int64 [frames] each."""
        self._need(blocks)
        every, first = np.unique(blocks).tolist(), self.directory.first_frame
        none = np.empty(0, dtype=np.int64)
        numbers = np.concatenate([none, *(np.arange(first[block], first[block + 1]) for block in every)])
        return numbers, np.concatenate([none, *(self.blocks[block].frame_pts for block in every)])

    def _joined(self, blocks: Int64) -> FrameIndex:
        self._need(blocks)
        parts = [self.blocks[block] for block in blocks.tolist()]
        if len(parts) == 1:
            return parts[0]
        columns = ("pts", "offset", "size", "flags", "crc32c")
        return FrameIndex(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))

    def _need(self, blocks: Int64) -> None:
        missing = sorted(set(blocks.tolist()).difference(self.blocks))
        if missing:
            raise MissingBlocks(missing)


AnyIndex = FrameIndex | IndexBlocks
