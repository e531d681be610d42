"""The fewest packets that decode to given frames of a clip, the byte ranges to read for them, and checks of the bytes
that were read against the index.

docs/format.md specifies the packets that a frame needs; this is the same rule for any number of frames at once, on
arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Int64, UInt8
from streamvid.bitstream import packet_info
from streamvid.checksum import crc32c
from streamvid.color.tags import Color
from streamvid.mp4.sample_entry import coded_size
from streamvid.mp4.writer import composition_offsets, slice_header
from streamvid.video.frame_index import DISPOSABLE, LEADING, FrameIndex

GAP_BYTES: Final = 64 << 10
"""Byte ranges with smaller gaps are read as one: on a local disk, reading over a gap costs less than another read."""


@dataclass(frozen=True)
class PacketSelection:
    """The packets of one clip that a decoder needs for the wanted frames, in decode order.

    Attributes:
        offsets, sizes: int64 [packets], position and size of each packet in the clip's MP4, in bytes.
        display_order: int64 [packets], a permutation of 0 … packets-1: each packet's rank by presentation time.
        frames: int64 [wanted], the `display_order` of the wanted frames, ascending.
        gops: int64 [packets], the number of the clip's group of pictures (GOP) that each packet belongs to, ascending.
        starts: int64 [n], packets at which decoding may start, as indices into the selection, ascending; the first is
            0.
        numbers: int64 [packets], each packet's number in the clip, in decode order.
        crc32c: int64 [packets], CRC-32C of each packet; -1 if unknown.
    """

    offsets: Int64
    sizes: Int64
    display_order: Int64
    frames: Int64
    gops: Int64
    starts: Int64
    numbers: Int64
    crc32c: Int64


@dataclass(frozen=True)
class EncodedSlice:
    """Selected packets with their bytes, and the decoder's configuration.

    Attributes:
        name: the clip's key, for error messages.
        codec: as in docs/format.md.
        stsd: the track's sample description box.
        width, height: of decoded frames, in pixels.
        color: matrix, range and siting of decoded samples.
        data: uint8 [bytes], the packets one after another in decode order.
        sizes, display_order, frames: as in `PacketSelection`.
        starts: as in `PacketSelection`; default: only the first packet.
        in_order: whether decoders are known to output frames in `display_order`.
    """

    name: str
    codec: str
    stsd: bytes
    width: int
    height: int
    color: Color
    data: UInt8
    sizes: Int64
    display_order: Int64
    frames: Int64
    starts: Int64 = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    in_order: bool = True

    def to_mp4(self) -> UInt8:
        """The slice as an MP4 file, uint8 [bytes]: the wanted frames are numbers `frames` of it in presentation
        order."""
        return _to_mp4(self.stsd, self.sizes, self.display_order, self.data, size=(self.width, self.height))


def slice(
    index: FrameIndex,
    frames: npt.ArrayLike,
    read: Callable[[int, int], bytes | bytearray | memoryview | UInt8],
    *,
    stsd: bytes,
    gap: int = 64 << 10,
    waste: float = math.inf,
) -> tuple[UInt8, Int64]:
    """Some frames of a clip as a small MP4, for any decoder.

    Args:
        index: the clip's packets.
        frames: numbers of the wanted frames, ascending, without repeats.
        read: returns the bytes [start, end) of the clip's MP4.
        stsd: the clip's sample description box, as in the dataset's column of that name.
        gap, waste: as for `byte_ranges`.

    Returns:
        the MP4, uint8 [bytes], and the numbers of the wanted frames in it, int64 [wanted], in presentation order.

    Raises:
        IndexError: the clip does not have one of the frames.
        ValueError: there are no frames, or their numbers do not rise; `stsd` is damaged; `read` returned more or fewer
            bytes.
    """
    packets = select_packets(index, np.asarray(frames, dtype=np.int64))
    spans = byte_ranges(packets, gap=gap, waste=waste)
    blocks = []
    for start, end in spans.tolist():
        blocks.append(np.frombuffer(read(start, end), dtype=np.uint8))
        if len(blocks[-1]) != end - start:
            raise ValueError(f"asked for bytes {start} to {end} of the clip, got {len(blocks[-1])} bytes")
    data = extract_packets(packets, spans, blocks)
    return _to_mp4(stsd, packets.sizes, packets.display_order, data, size=coded_size(stsd)), packets.frames


def _to_mp4(stsd: bytes, sizes: Int64, display_order: Int64, data: UInt8, *, size: tuple[int, int]) -> UInt8:
    head = slice_header(stsd, sizes, width=size[0], height=size[1], offsets=composition_offsets(display_order))
    return np.concatenate([np.frombuffer(head, dtype=np.uint8), data])


def select_packets(index: FrameIndex, frames: Int64) -> PacketSelection:
    """The fewest packets that decode to `frames`.

    Args:
        frames: int64 [wanted], frame numbers, ascending, without repeats.

    Raises:
        IndexError: a frame number that the clip does not have.
        ValueError: no frames, or numbers that do not rise.
    """
    if len(frames) == 0 or (frames[1:] <= frames[:-1]).any():
        raise ValueError("frame numbers must rise, and there must be at least one")
    if frames[0] < 0 or frames[-1] >= len(index.visible):
        raise IndexError(f"the clip has {len(index.visible)} frames, asked for {frames[0]} to {frames[-1]}")
    if len(index) == 1:  # an image
        zero = np.zeros(1, dtype=np.int64)
        gops = np.full(1, len(index.starts))
        return PacketSelection(index.offset, index.size, zero, zero, gops, zero, zero, index.crc32c)
    # From here on the work grows with the needed GOPs, not with the clip: the index caches results over all packets.
    packets = index.visible[frames]
    gops, first, last, last_leading = _needed_gops(index, packets)

    counts = last - first + 1
    ends = np.cumsum(counts)
    position = np.arange(int(ends[-1])) + np.repeat(first - ends + counts, counts)
    flags = index.flags[position]
    wanted = np.zeros(len(position), dtype=bool)
    wanted[np.searchsorted(position, packets)] = True
    droppable = (flags & DISPOSABLE) != 0
    leading = (flags & LEADING) != 0
    if leading.any():
        droppable |= leading & (position > np.repeat(last_leading, counts))
    kept = np.flatnonzero(wanted | ~droppable)
    chosen = position[kept]
    begins = ends - counts
    starts = np.searchsorted(kept, begins)
    if leading.any():
        # A GOP whose leading pictures are kept refers to the GOP before it: decoding cannot start there.
        refers = np.add.reduceat(leading & (wanted | ~droppable), begins) > 0
        refers[0] = False
        starts = starts[~refers]

    display_order = np.empty(len(chosen), dtype=np.int64)
    display_order[np.argsort(index.pts[chosen], kind="stable")] = np.arange(len(chosen))
    return PacketSelection(
        offsets=index.offset[chosen],
        sizes=index.size[chosen],
        display_order=display_order,
        frames=np.sort(display_order[wanted[kept]]),
        gops=np.repeat(gops, counts)[kept],
        starts=starts,
        numbers=chosen,
        crc32c=index.crc32c[chosen],
    )


def _needed_gops(index: FrameIndex, packets: Int64) -> tuple[Int64, Int64, Int64, Int64]:
    """The groups of pictures (GOPs) on which some packets depend, and the part of each that is needed.

    A GOP is a random access packet and all packets up to the next one; GOP 0 is the packets before the first random
    access packet (usually none).

    Args:
        packets: int64 [wanted], positions in decode order, in any order.

    Returns:
        four arrays, int64 [GOPs], in ascending order of GOPs: its number; its first and its last packet that is needed;
        and its last leading packet that is wanted, -1 if there is none.
    """
    starts = index.starts
    gop = np.searchsorted(starts, packets, side="right")
    if len(gop) > 1:
        order = np.argsort(packets, kind="stable")
        packets, gop = packets[order], gop[order]
    turns = np.flatnonzero(gop[1:] != gop[:-1])
    ends = np.append(turns, len(gop) - 1)
    gops, last = gop[ends], packets[ends]
    last_leading = np.full(len(gops), -1)
    leading = (index.flags[packets] & LEADING) != 0
    if leading.any():
        # Leading pictures depend on all of the GOP before their own. Within their own GOP they depend on its random
        # access packet and on earlier leading pictures, and only later leading pictures depend on them.
        open_gops = gop[leading]
        before = np.unique(open_gops[open_gops > 0]) - 1
        every = np.union1d(gops, before)
        needed = np.full(len(every), -1)
        needed[np.searchsorted(every, gops)] = last
        needed[np.searchsorted(every, before)] = np.append(starts, len(index))[before] - 1
        gops, last = every, needed
        last_leading = np.full(len(gops), -1)
        np.maximum.at(last_leading, np.searchsorted(gops, open_gops), packets[leading])
    first = np.where(gops > 0, starts[gops - 1], 0) if len(starts) else np.zeros(len(gops), dtype=np.int64)
    return gops, first, last, last_leading


def byte_ranges(packets: PacketSelection, *, gap: int = GAP_BYTES, waste: float = math.inf) -> Int64:
    """The byte ranges of the clip's MP4 to read for a selection.

    Packets with few unwanted bytes between them share a range. Within a GOP, that is wherever at most `gap` bytes lie
    between; across GOPs as well, the smallest gaps first, until `waste` is used up. With a `gap` of as many bytes as
    an object store sends during a request's latency, there is at most one request per GOP.

    Args:
        gap: the most unwanted bytes to read between two packets.
        waste: the most unwanted bytes to read in all, as a share of the wanted ones, such as 0.15. Those within GOPs
            count, but are read even if they are more.

    Returns:
        int64 [ranges, 2]: start and end, ascending.
    """
    if len(packets.offsets) == 1:
        begin = int(packets.offsets[0])
        return np.array([[begin, begin + int(packets.sizes[0])]])
    order = np.argsort(packets.offsets, kind="stable")
    start = packets.offsets[order]
    end = np.maximum.accumulate(start + packets.sizes[order])
    between = start[1:] - end[:-1]
    split = between > gap
    if waste != math.inf:
        gop = packets.gops[order]
        apart = np.flatnonzero(~split & (between > 0) & (gop[1:] != gop[:-1]))
        apart = apart[np.argsort(between[apart], kind="stable")]
        inside = between[~split & (gop[1:] == gop[:-1])]
        budget = waste * int(packets.sizes.sum()) - int(inside[inside > 0].sum())
        split[apart[np.cumsum(between[apart]) > budget]] = True
    first = np.flatnonzero(np.concatenate([[True], split]))
    last = np.append(first[1:], len(start)) - 1
    return np.stack([start[first], end[last]], axis=1)


def extract_packets(packets: PacketSelection, spans: Int64, blocks: list[UInt8]) -> UInt8:
    """Take the packets of a selection out of the bytes that were read for it.

    Args:
        spans: int64 [ranges, 2], as `byte_ranges` returns them.
        blocks: uint8, the bytes of each range.

    Returns:
        uint8 [bytes]: the packets one after another, in decode order; may be a view of a block.
    """
    first, size = int(packets.offsets[0]), int(packets.sizes.sum())
    if len(blocks) == 1 and bool((packets.offsets[1:] == packets.offsets[:-1] + packets.sizes[:-1]).all()):
        start = first - int(spans[0, 0])
        return blocks[0][start : start + size]
    block = np.searchsorted(spans[:, 0], packets.offsets, side="right") - 1
    starts = packets.offsets - spans[block, 0]
    # Adjoining packets are copied at once, and as memoryviews, which Python slices and joins faster than arrays.
    adjoining = (packets.offsets[1:] == packets.offsets[:-1] + packets.sizes[:-1]) & (block[1:] == block[:-1])
    firsts = np.flatnonzero(np.concatenate([[True], ~adjoining]))
    lasts = np.append(firsts[1:], len(starts)) - 1
    views = [one.data for one in blocks]
    runs = zip(block[firsts].tolist(), starts[firsts].tolist(), (starts + packets.sizes)[lasts].tolist(), strict=True)
    return np.frombuffer(bytearray().join([views[number][start:end] for number, start, end in runs]), dtype=np.uint8)


def damaged_packet(packets: PacketSelection, data: UInt8) -> int | None:
    """Which packet of a selection is the first whose bytes have not the CRC-32C of the index; None if all have.

    Args:
        data: uint8 [bytes], as `extract_packets` returns it.
    """
    view, start = data.data, 0
    for number, (size, wanted) in enumerate(zip(packets.sizes.tolist(), packets.crc32c.tolist(), strict=True)):
        if wanted >= 0 and crc32c(view[start : start + size]) != wanted:
            return number
        start += size
    return None


def contradiction(codec: str, stsd: bytes, packets: PacketSelection, data: UInt8) -> tuple[int, str] | None:
    """The first packet of a selection that contradicts the index, and how; None if none does.

    Args:
        data: uint8 [bytes], the packets one after another.
    """
    of = packet_info.classifier(codec, stsd)
    ends = np.cumsum(packets.sizes)
    kinds = [of(data.data[end - size : end]) for end, size in zip(ends.tolist(), packets.sizes.tolist(), strict=True)]
    for number, kind in enumerate(kinds):
        if kind.broken:
            return number, "its NAL units do not fit"
        if kind.hidden:
            return number, "it is not displayed, and its container displays it"
    for number in packets.starts.tolist():
        if packets.numbers[number] and not kinds[number].random_access:
            return number, "its container calls it a key frame, and decoding cannot start there"
    if not packet_info.in_output_order(codec, kinds, packets.display_order):
        return 0, "a decoder outputs its pictures in another order than that of their times"
    return None
