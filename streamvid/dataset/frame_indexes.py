"""Parses a clip's frame index, or a part of it, from its shard's .packets file, and validates it against the clip's
row."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from streamvid.arrays import UInt8
from streamvid.checksum import crc32c
from streamvid.dataset.clip_table import ClipTable
from streamvid.dataset.shard_rows import MAX_TICKS
from streamvid.video.frame_index import HIDDEN, FrameIndex
from streamvid.video.index_blocks import AnyIndex, IndexBlocks
from streamvid.video.index_file import CRC_KNOWN, ENTRY, ENTRY_BYTES, PACKET, PACKET_BYTES, IndexDirectory

INDEX_BYTES: Final = 256 << 20
"""Memory for the frame indexes used last, per dataset and process, in bytes."""
WHOLE_BYTES: Final = 128 << 10
"""Longer indexes are read by blocks: about 4,600 packets, which come faster than a directory and then a block."""
_BYTES_PER_PACKET: Final = 56
_BYTES_PER_INDEX: Final = 2000


def memory_of(index: AnyIndex) -> int:
    """Approximate size of a frame index in memory, in bytes, with the derived arrays that it keeps."""
    if isinstance(index, IndexBlocks):
        return _BYTES_PER_PACKET * len(index.directory) + sum(map(memory_of, index.blocks.values()))
    return _BYTES_PER_INDEX + _BYTES_PER_PACKET * len(index)


def spans_to_read(
    clips: ClipTable, row: int, known: AnyIndex | None, blocks: Collection[int], *, whole: bool
) -> list[tuple[int, int]]:
    """The byte ranges of a clip's index, as (start, end), that `with_parts` takes.

    Args:
        clips: the dataset's rows.
        row: the clip.
        known: the part of its index that is in memory; None: none.
        blocks: the wanted blocks; if empty, the beginning of the index.
        whole: whether the beginning is the whole index, however long.
    """
    if isinstance(known, IndexBlocks):
        return [known.directory.span(block, block + 1) for block in blocks]
    size = int(clips.index_size[row])
    return [(0, size if whole or size <= WHOLE_BYTES else directory_bytes(clips, row))]


def with_parts(
    clips: ClipTable, row: int, known: AnyIndex | None, blocks: Collection[int], parts: list[UInt8]
) -> AnyIndex:
    """A clip's index with the parts from `spans_to_read` added; arguments as there.

    Raises:
        ValueError: the index is damaged; the message says how.
    """
    if isinstance(known, IndexBlocks):
        read = {
            block: parse_blocks(known.directory, part, clips, row, block, block + 1)
            for block, part in zip(blocks, parts, strict=True)
        }
        return IndexBlocks(known.directory, {**known.blocks, **read})
    if len(parts[0]) == clips.index_size[row]:
        return parse_index(parts[0], clips, row)
    return IndexBlocks(parse_directory(parts[0], clips, row), {})


def directory_bytes(clips: ClipTable, row: int) -> int:
    """Bytes of the directory with which a clip's frame index begins."""
    return int(clips.index_size[row]) - PACKET_BYTES * int(clips.packets[row])


def parse_directory(data: UInt8, clips: ClipTable, row: int) -> IndexDirectory:
    """The directory of a clip's frame index, validated against its row.

    Args:
        data: uint8 [directory_bytes].
        clips: the dataset's rows.
        row: the clip.

    Raises:
        ValueError: the index is damaged; the message says how.
    """
    directory = IndexDirectory.parse(data, packets=int(clips.packets[row]), checksum=int(clips.index_crc32c[row]))
    if directory.first_frame[-1] != clips.frames[row]:
        raise ValueError("its number of visible packets is not its number of frames")
    return directory


def parse_blocks(
    directory: IndexDirectory, data: UInt8, clips: ClipTable, row: int, begin: int, end: int
) -> FrameIndex:
    """Blocks [begin, end) of a clip's frame index, of which its frame 0 is frame ``directory.first_frame[begin]``.

    Args:
        directory: the directory of the clip's index.
        data: uint8, the bytes of ``directory.span(begin, end)``.
        clips, row: the clip.
        begin, end: numbers of the blocks.

    Raises:
        ValueError: a block is damaged, or contradicts the clip's row; the message says how.
    """
    index = directory.blocks(data, begin, end)
    mp4_size = int(clips.mp4_size[row])
    # No sum of offset and size: it may overflow int64.
    if index.offset.min() < 0 or index.size.min() < 1 or (index.size > mp4_size - index.offset).any():
        raise ValueError("a packet does not lie within the mp4")
    # Overlapping packets would take far more memory than the bytes that are read for them.
    if index.size.sum() > mp4_size:
        raise ValueError("its packets have more bytes than the mp4")
    # No visible packet comes before time 0, as no block does.
    if index.pts.min() < -MAX_TICKS or index.pts.max() > MAX_TICKS:
        raise ValueError("a packet's time is out of range")
    return index


def parse_index(data: UInt8, clips: ClipTable, row: int) -> FrameIndex:
    """A clip's whole frame index, validated against its row; docs/format.md has the rules.

    Args:
        data: uint8 [index_size], the directory and all blocks.
        clips: the dataset's rows.
        row: the clip.

    Raises:
        ValueError: the index is damaged; the message says how.
    """
    size = directory_bytes(clips, row)
    directory = parse_directory(data[:size], clips, row)
    return parse_blocks(directory, data[size:], clips, row, 0, size // ENTRY_BYTES)


def parse_together(data: Mapping[int, UInt8], clips: ClipTable) -> dict[int, FrameIndex]:
    """The whole frame indexes of several clips, by row, validated together with NumPy. The result has only valid
    indexes of one block; others are left to `parse_index`, which also raises their errors.

    Args:
        data: uint8 [index_size] of clips, by row; those of other sizes are left out.
        clips: the dataset's rows.
    """
    rows = np.fromiter(data, dtype=np.int64, count=len(data))
    sizes, counts = clips.index_size[rows].astype(np.int64), clips.packets[rows].astype(np.int64)
    fits = (
        (sizes == ENTRY_BYTES + PACKET_BYTES * counts) & (counts > 0) & (sizes == [len(part) for part in data.values()])
    )
    rows, counts = rows[fits], counts[fits]
    if not len(rows):
        return {}
    parts = [data[row] for row in rows.tolist()]
    entries = np.concatenate([part[:ENTRY_BYTES] for part in parts]).view(ENTRY)
    packets = np.concatenate([part[ENTRY_BYTES:] for part in parts]).view(PACKET)
    good = clips.index_crc32c[rows] == [crc32c(part[:ENTRY_BYTES]) for part in parts]
    good &= entries["crc32c"] == [crc32c(part[ENTRY_BYTES:]) for part in parts]
    good &= (entries["packets"] == counts) & (entries["frames"] == clips.frames[rows]) & (entries["first_pts"] == 0)
    flags, checksums = packets["flags"].astype(np.int64), packets["crc32c"].astype(np.int64)
    known = flags & CRC_KNOWN
    columns = np.stack(
        [packets["pts"], packets["offset"], packets["size"], flags ^ known, np.where(known, checksums, -1)]
    )
    pts, offset, size = columns[:3]
    room = clips.mp4_size[rows].repeat(counts) - offset  # an overflow makes the offset negative
    bad = (offset < 0) | (size < 1) | (size > room) | (pts < -MAX_TICKS) | (pts > MAX_TICKS)
    begins = counts.cumsum() - counts
    shown = (flags & HIDDEN) == 0
    good &= ~np.logical_or.reduceat(bad, begins) & (np.add.reduceat(size, begins) <= clips.mp4_size[rows])
    good &= (np.add.reduceat(shown, begins, dtype=np.int64) == entries["frames"]) & (entries["frames"] > 0)
    good &= np.minimum.reduceat(np.where(shown, pts, MAX_TICKS + 1), begins) == 0
    return {
        row: FrameIndex(*columns[:, begin : begin + count].copy())
        for row, begin, count, fine in zip(rows.tolist(), begins.tolist(), counts.tolist(), good.tolist(), strict=True)
        if fine
    }
