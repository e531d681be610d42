"""A clip's frame index on disk: a directory, then blocks of about 1,000 packets. docs/format.md specifies both.

A block has a contiguous range of frame numbers, so that for a window of an hour-long clip the directory and one or two
blocks are enough. The directory has the checksums of the blocks, and the clip's row has that of the directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from streamvid.arrays import Bool, Int64, UInt8
from streamvid.checksum import crc32c
from streamvid.video.frame_index import HIDDEN, LEADING, FrameIndex

BLOCK_PACKETS: Final = 1000
"""A block has at least so many packets, unless it is the last one."""
CRC_KNOWN: Final = 16
"""A packet's flag, on disk alone: its `crc32c` is of meaning."""
_OPEN: Final = 1
"""A block's flag: frames of its first group of pictures may depend on the block before."""

PACKET: Final = np.dtype([("pts", "<i8"), ("offset", "<i8"), ("size", "<u4"), ("crc32c", "<u4"), ("flags", "<u4")])
ENTRY: Final = np.dtype(
    [("first_pts", "<i8"), ("packets", "<u4"), ("frames", "<u4"), ("crc32c", "<u4"), ("flags", "<u4")]
)
PACKET_BYTES: Final = PACKET.itemsize
ENTRY_BYTES: Final = ENTRY.itemsize


@dataclass(frozen=True)
class EncodedIndex:
    """A clip's frame index as it is stored.

    Attributes:
        data: directory and blocks.
        blocks: number of blocks.
        crc32c: CRC-32C of the directory.
    """

    data: bytes
    blocks: int
    crc32c: int


def encode_index(index: FrameIndex) -> EncodedIndex:
    """The bytes of a frame index, the same for the same index."""
    packets = np.empty(len(index), dtype=PACKET)
    known = index.crc32c >= 0
    packets["pts"], packets["offset"], packets["size"] = index.pts, index.offset, index.size
    packets["crc32c"] = np.where(known, index.crc32c, 0)
    packets["flags"] = index.flags | np.where(known, CRC_KNOWN, 0)
    starts = _block_starts(index)
    ends = np.append(starts[1:], len(index))
    visible = (index.flags & HIDDEN) == 0
    directory = np.zeros(len(starts), dtype=ENTRY)
    directory["first_pts"] = np.minimum.reduceat(np.where(visible, index.pts, np.iinfo(np.int64).max), starts)
    directory["packets"] = ends - starts
    directory["frames"] = np.add.reduceat(visible, starts, dtype=np.int64)
    directory["crc32c"] = [crc32c(packets[start:end].tobytes()) for start, end in zip(starts, ends, strict=True)]
    directory["flags"] = np.where(_open_starts(index, starts), _OPEN, 0)
    head = directory.tobytes()
    return EncodedIndex(head + packets.tobytes(), len(starts), crc32c(head))


def _block_starts(index: FrameIndex) -> Int64:
    """int64 [blocks]: the first packet of each block."""
    if len(index) <= BLOCK_PACKETS:
        return np.zeros(1, dtype=np.int64)
    visible = (index.flags & HIDDEN) == 0
    limits = np.iinfo(np.int64)
    latest = np.maximum.accumulate(np.where(visible, index.pts, limits.min))
    earliest = np.minimum.accumulate(np.where(visible, index.pts, limits.max)[::-1])[::-1]
    access = index.starts[index.starts > 0]
    # Behind the last visible packet none is the earliest, and before the first one none the latest.
    cuts = access[(latest[access - 1] < earliest[access]) & (earliest[access] < limits.max)]
    shown = np.cumsum(visible)
    starts = [0]
    for cut in cuts.tolist():
        before = shown[starts[-1] - 1] if starts[-1] else 0
        if cut - starts[-1] >= BLOCK_PACKETS and shown[cut - 1] > before:
            starts.append(cut)
    return np.array(starts, dtype=np.int64)


def _open_starts(index: FrameIndex, starts: Int64) -> Bool:
    """bool [blocks]: whether a visible packet of each block's first group of pictures is leading."""
    shown_leading = np.cumsum((index.flags & (HIDDEN | LEADING)) == LEADING)
    following = np.searchsorted(index.starts, starts, side="right")
    ends = np.append(index.starts, len(index))[following]
    return np.asarray((starts > 0) & (shown_leading[ends - 1] > shown_leading[starts - 1]))


@dataclass(frozen=True)
class IndexDirectory:
    """The directory of a frame index: the packets and frames in each block.

    Attributes:
        first_pts: int64 [blocks], presentation time of each block's first frame, in ticks.
        first_packet: int64 [blocks + 1], the number of each block's first packet; last, the number of all packets.
        first_frame: int64 [blocks + 1], likewise for frames.
        crc32c: int64 [blocks], CRC-32C of each block.
        open: bool [blocks], whether frames of its first group of pictures may depend on the previous block.
    """

    first_pts: Int64
    first_packet: Int64
    first_frame: Int64
    crc32c: Int64
    open: Bool

    @classmethod
    def parse(cls, data: UInt8 | bytes, *, packets: int, checksum: int) -> IndexDirectory:
        """Parse and validate a directory.

        Args:
            data: the directory's bytes.
            checksum: its CRC-32C in the clip's row.

        Raises:
            ValueError: the directory is damaged; the message says how.
        """
        if not len(data) or len(data) % ENTRY_BYTES:
            raise ValueError(f"a directory has a multiple of {ENTRY_BYTES} bytes, this one {len(data)}")
        if crc32c(data) != checksum:
            raise ValueError("the checksum of its directory is not the stored one")
        entries = np.frombuffer(data, dtype=ENTRY)
        first_packet, first_frame = np.zeros((2, len(entries) + 1), dtype=np.int64)
        np.cumsum(entries["packets"], out=first_packet[1:])
        np.cumsum(entries["frames"], out=first_frame[1:])
        if entries["frames"].min() < 1 or (entries["packets"] < entries["frames"]).any():
            raise ValueError("a block has no frames, or more frames than packets")
        if first_packet[-1] != packets:
            raise ValueError(f"its blocks hold {first_packet[-1]} packets instead of {packets}")
        first_pts = entries["first_pts"].astype(np.int64)
        if first_pts[0] != 0 or (len(entries) > 1 and (first_pts[1:] <= first_pts[:-1]).any()):
            raise ValueError("its blocks are not in the order of their times, from 0")
        is_open = (entries["flags"] & _OPEN) != 0
        return cls(first_pts, first_packet, first_frame, entries["crc32c"].astype(np.int64), is_open)

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.first_pts)

    def block_of_frame(self, frames: Int64) -> Int64:
        """int64 [frames]: the block that holds each frame. Raises IndexError if the clip has no such frame."""
        count = self.first_frame[-1]
        if len(frames) and (frames.min() < 0 or frames.max() >= count):
            raise IndexError(f"the clip has {count} frames, asked for {frames.min()} to {frames.max()}")
        return np.searchsorted(self.first_frame, frames, side="right") - 1

    def block_at(self, ticks: Int64) -> Int64:
        """int64 [times]: the block that holds the frame on screen at each time in ticks; the first one before 0."""
        return np.maximum(np.searchsorted(self.first_pts, ticks, side="right") - 1, 0)

    def span(self, begin: int, end: int) -> tuple[int, int]:
        """The bytes of the clip's index that blocks [begin, end) take, as (start, end)."""
        head = len(self) * ENTRY_BYTES
        return head + PACKET_BYTES * int(self.first_packet[begin]), head + PACKET_BYTES * int(self.first_packet[end])

    def blocks(self, data: UInt8, begin: int, end: int) -> FrameIndex:
        """The packets of blocks [begin, end); its frame 0 is frame ``first_frame[begin]`` of the clip.

        Args:
            data: uint8, the bytes of `span`.

        Raises:
            ValueError: a block is damaged; the message says how.
        """
        first = self.first_packet[begin : end + 1] - self.first_packet[begin]
        if len(data) != PACKET_BYTES * first[-1]:
            raise ValueError(f"its packets take {len(data)} bytes instead of {PACKET_BYTES * first[-1]}")
        for block, (start, stop) in enumerate(zip(first[:-1].tolist(), first[1:].tolist(), strict=True), begin):
            if crc32c(data[PACKET_BYTES * start : PACKET_BYTES * stop]) != self.crc32c[block]:
                raise ValueError(f"the checksum of block {block} is not the stored one")
        rows = data.view(PACKET)
        flags, crcs = rows["flags"].astype(np.int64), rows["crc32c"].astype(np.int64)
        known = flags & CRC_KNOWN
        if not known.all():
            crcs[known == 0] = -1
        flags ^= known
        index = FrameIndex(
            rows["pts"].astype(np.int64), rows["offset"].astype(np.int64), rows["size"].astype(np.int64), flags, crcs
        )
        self._check(index, begin, end, first)
        return index

    def _check(self, index: FrameIndex, begin: int, end: int, first: Int64) -> None:
        """Raise ValueError unless blocks [begin, end), which begin at packets `first` of the index, have the frames and
        times in the directory."""
        hidden = index.flags & HIDDEN
        for block in range(begin, end):
            part = slice(int(first[block - begin]), int(first[block - begin + 1]))
            shown = index.pts[part] if not hidden[part].any() else index.pts[part][hidden[part] == 0]
            if len(shown) != self.first_frame[block + 1] - self.first_frame[block]:
                raise ValueError("the frames of a block are not as many as the directory says")
            later = block + 1 < len(self.first_pts) and shown.max() >= self.first_pts[block + 1]
            if shown.min() != self.first_pts[block] or later:
                raise ValueError("the times of a block are not those of the directory")
