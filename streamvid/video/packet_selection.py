"""Selects the fewest packets that decode to given frames of a clip, and the byte ranges to read for them, and checks
the bytes read against the index.

docs/format.md specifies the packets that a frame needs; this implements the rule on arrays, for any number of frames.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from streamvid.arrays import Bool, Int64, UInt8
from streamvid.bitstream import packet_info
from streamvid.bitstream.packets import packets_in
from streamvid.checksum import crc32c
from streamvid.color.tags import Color
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
        return slice_mp4(self.stsd, self.sizes, self.display_order, self.data, size=(self.width, self.height))


def slice_mp4(stsd: bytes, sizes: Int64, display_order: Int64, data: UInt8, *, size: tuple[int, int]) -> UInt8:
    """The MP4 of selected packets, uint8 [bytes], of pictures of a size: width and height."""
    head = slice_header(stsd, sizes, width=size[0], height=size[1], offsets=composition_offsets(display_order))
    return np.concatenate([np.frombuffer(head, dtype=np.uint8), data])


def select_packets(index: FrameIndex, frames: Int64) -> PacketSelection:
    """The fewest packets that decode to frames of one clip; arguments and errors as in `select_each`."""
    return select_each([index], [frames])[0]


def select_each(indexes: Sequence[FrameIndex], frames: Sequence[Int64]) -> list[PacketSelection]:
    """For each of several clips, the fewest packets that decode to the wanted frames.

    All clips share each call of NumPy, because for the few packets of a clip the call itself costs most.

    Args:
        indexes: one per clip.
        frames: for each clip int64 [wanted], frame numbers, ascending, without repeats.

    Raises:
        IndexError: a clip does not have a frame of that number.
        ValueError: there are no frames, or their numbers do not ascend.
    """
    if not indexes:
        return []
    for index, numbers in zip(indexes, frames, strict=True):
        if len(numbers) == 0 or (numbers[1:] <= numbers[:-1]).any():
            raise ValueError("frame numbers must rise, and there must be at least one")
        if numbers[0] < 0 or numbers[-1] >= len(index.visible):
            raise IndexError(f"the clip has {len(index.visible)} frames, asked for {numbers[0]} to {numbers[-1]}")
    # The work grows with the needed GOPs, not with the clips: an index caches results over all packets.
    gops, gop, packet = _needed_gops(indexes, frames)
    counts = gops.last - gops.first + 1
    ends = counts.cumsum()
    begins = ends - counts
    position = np.arange(ends[-1]) + (gops.first - begins).repeat(counts)
    heads, tails = _runs((gops.clip[1:] == gops.clip[:-1]) & (gops.first[1:] == gops.last[:-1] + 1))
    runs = list(zip(gops.clip[heads].tolist(), gops.first[heads].tolist(), gops.last[tails].tolist(), strict=True))

    def column(name: str) -> Int64:
        """int64 [len(position)]."""
        values = [getattr(index, name) for index in indexes]
        return np.concatenate([values[clip][first : last + 1] for clip, first, last in runs])

    flags = column("flags")
    wanted = np.zeros(len(position), dtype=bool)
    wanted[begins[gop] + packet - gops.first[gop]] = True
    droppable = (flags & DISPOSABLE) != 0
    leading = (flags & LEADING) != 0
    may_start = np.ones(len(counts), dtype=bool)
    if leading.any():
        droppable |= leading & (position > gops.last_leading.repeat(counts))
        # A GOP whose leading pictures are kept refers to the GOP before it: decoding cannot start there.
        may_start[1:] = np.add.reduceat(leading & (wanted | ~droppable), begins)[1:] == 0
        may_start[1:] |= gops.clip[1:] != gops.clip[:-1]
    kept = (wanted | ~droppable).nonzero()[0]
    clip = gops.clip.repeat(counts)[kept]
    bounds = clip.searchsorted(np.arange(len(indexes) + 1))

    order = np.lexsort((column("pts")[kept], clip))
    display_order = np.empty(len(kept), dtype=np.int64)
    display_order[order] = np.arange(len(kept)) - bounds[clip]
    shown = wanted[kept][order].nonzero()[0]
    shown -= bounds[clip[shown]]
    start_clip = gops.clip[may_start]
    starts = kept.searchsorted(begins[may_start]) - bounds[start_clip]
    of_packets = (column("offset")[kept], column("size")[kept], display_order, gops.number.repeat(counts)[kept])
    of_each = (bounds[1:] - bounds[:-1]).tolist()
    offsets, sizes, ranks, gop_numbers = (_cut(values, of_each) for values in of_packets)
    positions, checksums = (_cut(values, of_each) for values in (position[kept], column("crc32c")[kept]))
    of_frames, of_starts = _cut(shown, [*map(len, frames)]), _cut(starts, np.bincount(start_clip).tolist())
    every = zip(offsets, sizes, ranks, of_frames, gop_numbers, of_starts, positions, checksums, strict=True)
    return [PacketSelection(*values) for values in every]


def _runs(joined: Bool) -> tuple[Int64, Int64]:
    """The first and the last value of each run; bool [values - 1] says whether each value is joined with the next."""
    cuts = (~joined).nonzero()[0]
    return np.concatenate(([0], cuts + 1)), np.concatenate((cuts, [len(joined)]))


def _cut(values: Int64, sizes: list[int]) -> list[Int64]:
    """Consecutive parts of an array, as views."""
    ends = itertools.accumulate(sizes)
    return [values[end - size : end] for size, end in zip(sizes, ends, strict=True)]


@dataclass(frozen=True)
class _Gops:
    """Groups of pictures (GOPs) of some clips, in ascending order of clips and numbers.

    A GOP is a random access packet and all packets up to the next one; GOP 0 is the packets before the first random
    access packet (usually none).

    Attributes:
        clip: int64 [GOPs], the clip's index in the list.
        number: int64 [GOPs], number of the GOP in the clip.
        first, last: int64 [GOPs], its first and its last packet that is needed, as positions in decode order.
        last_leading: int64 [GOPs], its last leading packet that is wanted, -1 if there is none.
    """

    clip: Int64
    number: Int64
    first: Int64
    last: Int64
    last_leading: Int64


def _needed_gops(indexes: Sequence[FrameIndex], frames: Sequence[Int64]) -> tuple[_Gops, Int64, Int64]:
    """The GOPs on which some frames of clips depend; and for each frame, int64 [frames], the index of its GOP among
    them, and its packet's position in decode order."""
    packets = [index.visible[numbers] for index, numbers in zip(indexes, frames, strict=True)]
    each = list(zip(indexes, packets, strict=True))
    packet = np.concatenate(packets)
    gop = np.concatenate([index.starts.searchsorted(own, "right") for index, own in each])
    leading = (np.concatenate([index.flags[own] for index, own in each]) & LEADING) != 0
    sizes = np.array([len(index.starts) + 1 for index in indexes])
    begins = sizes.cumsum() - sizes  # below, GOPs are numbered over all clips
    key = gop + begins.repeat([*map(len, packets)])
    keys, before = np.unique(key), np.empty(0, dtype=np.int64)
    if leading.any():
        # Leading pictures depend on all of the GOP before their own. Within their own GOP they depend on its random
        # access packet and on earlier leading pictures, and only later leading pictures depend on them.
        before = np.unique(key[leading & (gop > 0)]) - 1
        keys = np.union1d(keys, before)
    place = keys.searchsorted(key)
    clip = begins.searchsorted(keys, "right") - 1
    zero = np.zeros(1, dtype=np.int64)
    starts = np.concatenate([part for index in indexes for part in (zero, index.starts)])
    last, last_leading = np.full((2, len(keys)), -1)
    np.maximum.at(last, place, packet)
    if len(before):
        last[keys.searchsorted(before)] = starts[before + 1] - 1
    np.maximum.at(last_leading, place[leading], packet[leading])
    return _Gops(clip, keys - begins[clip], starts[keys], last, last_leading), place, packet


def byte_ranges(packets: PacketSelection, *, gap: int = GAP_BYTES, waste: float = math.inf) -> Int64:
    """The byte ranges of one clip, int64 [ranges, 2]; arguments as in `byte_ranges_of_each`."""
    return byte_ranges_of_each([packets], gap=gap, waste=waste)[0]


def byte_ranges_of_each(
    selections: Sequence[PacketSelection], *, gap: int = GAP_BYTES, waste: float = math.inf
) -> list[Int64]:
    """The byte ranges of clips' MP4s to read for selections, one per clip.

    Packets with few unwanted bytes between them share a range: gaps of at most `gap` bytes are read over, within GOPs
    always, across GOPs the smallest first, until `waste` is used up. With a `gap` of as many bytes as an object store
    sends during a request's latency, there is at most one request per GOP.

    Args:
        gap: most unwanted bytes to read between two packets.
        waste: most unwanted bytes to read in a clip, as a share of the wanted bytes, such as 0.15. Gaps within GOPs
            count, but are read even if they exceed it.

    Returns:
        for each clip int64 [ranges, 2]: start and end, ascending.
    """
    if not selections:
        return []
    counts = [len(selection.offsets) for selection in selections]
    clip = np.repeat(np.arange(len(counts)), counts)
    same = clip[1:] == clip[:-1]
    start, size, gop = (
        np.concatenate([getattr(selection, name) for selection in selections]) for name in ("offsets", "sizes", "gops")
    )
    if (same & (start[1:] < start[:-1])).any():
        order = np.lexsort((start, clip))
        start, size, gop = start[order], size[order], gop[order]
    end = start + size
    if (same & (start[1:] < end[:-1])).any():
        end = np.concatenate([np.maximum.accumulate(own) for own in _cut(end, counts)])
    between = start[1:] - end[:-1]
    joined = same & (between <= gap)
    if waste != math.inf:
        gaps, own = joined & (between > 0), clip[1:]
        inside = gaps & (gop[1:] == gop[:-1])
        budget = waste * np.bincount(clip, size) - np.bincount(own[inside], between[inside], len(counts))
        across = np.flatnonzero(gaps & ~inside)
        across = across[np.lexsort((between[across], own[across]))]
        spent, of = np.append(0, np.cumsum(between[across])), own[across]
        joined[across[spent[1:] - spent[np.searchsorted(of, of)] > budget[of]]] = False
    first, last = _runs(joined)
    spans = np.stack([start[first], end[last]], axis=1)
    return _cut(spans, np.bincount(clip[first]).tolist())


def extract_packets(packets: PacketSelection, spans: Int64, blocks: list[UInt8]) -> UInt8:
    """Take the packets of one clip's selection out of the bytes that were read for it; see `extract_each`."""
    return extract_each([packets], [spans], [blocks])[0]


def extract_each(
    selections: Sequence[PacketSelection], spans: Sequence[Int64], blocks: Sequence[Sequence[UInt8]]
) -> list[UInt8]:
    """Take the packets of selections out of the bytes that were read for them.

    Args:
        selections: one per clip.
        spans: for each clip int64 [ranges, 2], as `byte_ranges_of_each` returns them.
        blocks: for each clip the bytes of each range, uint8.

    Returns:
        for each clip uint8 [bytes]: its packets one after another, in decode order; may be a view of a block.
    """
    if not selections:
        return []
    counts, ranges = [len(selection.offsets) for selection in selections], np.array([len(own) for own in spans])
    block = (ranges.cumsum() - ranges).repeat(counts)
    for own, selection, many in zip(_cut(block, counts), selections, spans, strict=True):
        if len(many) > 1:
            own += np.searchsorted(many[:, 0], selection.offsets, side="right") - 1
    offset, size = (
        np.concatenate([getattr(selection, name) for selection in selections]) for name in ("offsets", "sizes")
    )
    # Adjoining packets are copied at once, and as memoryviews, which Python slices and joins faster than arrays.
    first, last = _runs((offset[1:] == offset[:-1] + size[:-1]) & (block[1:] == block[:-1]))
    start = offset - np.concatenate(spans)[block, 0]
    every = [part for own in blocks for part in own]
    runs = zip(block[first].tolist(), start[first].tolist(), (start + size)[last].tolist(), strict=True)
    found = []
    for count in np.bincount(np.repeat(np.arange(len(counts)), counts)[first]).tolist():
        parts = [(every[number], begin, end) for number, begin, end in itertools.islice(runs, count)]
        if count == 1:
            found.append(parts[0][0][parts[0][1] : parts[0][2]])
        else:
            whole = bytearray().join([source.data[begin:end] for source, begin, end in parts])
            found.append(np.frombuffer(whole, dtype=np.uint8))
    return found


def damaged_packet(packets: PacketSelection, data: UInt8) -> int | None:
    """The first packet of a selection whose CRC-32C differs from the index; None if there is none.

    Args:
        data: uint8 [bytes], as `extract_packets` returns it.
    """
    wanted = packets.crc32c.tolist()
    found = [*map(crc32c, packets_in(data, packets.sizes))] if max(wanted, default=-1) >= 0 else []
    if found == wanted:
        return None
    return next((n for n, checksum in enumerate(found) if wanted[n] >= 0 and checksum != wanted[n]), None)


def contradiction(codec: str, stsd: bytes, packets: PacketSelection, data: UInt8) -> tuple[int, str] | None:
    """The first packet of a selection whose bitstream contradicts the index, and how; None if none does.

    Args:
        data: uint8 [bytes], the packets one after another.
    """
    kinds = [*map(packet_info.classifier(codec, stsd), packets_in(data, packets.sizes))]
    for number, kind in enumerate(kinds):
        if kind.broken:
            return number, "its NAL units do not fit"
        if kind.several:
            return number, "it holds several pictures, and its container shows it as one"
        if kind.adds_grain:
            return number, "decoders add film grain to its pictures, by messages that other packets do not have"
        if kind.hidden or kind.drops_prior:
            return number, "its container displays a picture that a decoder does not output"
    for number in packets.starts.tolist():
        if packets.numbers[number] and not kinds[number].random_access:
            return number, "its container calls it a key frame, and decoding cannot start there"
    if not packet_info.in_output_order(codec, kinds, packets.display_order):
        return 0, "a decoder outputs its pictures in another order than that of their times"
    return None
