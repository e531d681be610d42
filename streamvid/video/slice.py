"""The fewest packets that decode to the frames somebody wants, and where their bytes lie.

docs/format.md says which packets a frame needs; this is the same rule for any number of frames at once, on arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamvid.video import mp4
from streamvid.video.index import DISPOSABLE, HIDDEN, LEADING, RANDOM_ACCESS, FrameIndex, Int64

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Slice:
    """Packets of one clip that decode to the wanted frames.

    Attributes:
        offsets, sizes: int64 [packets], where each packet lies in the clip's mp4, in decode order.
        ranks: int64 [packets], each packet's place in presentation order among those of the slice.
        frames: int64 [wanted], the places in presentation order of the wanted frames, rising.
        plain: every packet decodes to one frame that is shown; false if some are hidden.
    """

    offsets: Int64
    sizes: Int64
    ranks: Int64
    frames: Int64
    plain: bool


@dataclass(frozen=True)
class EncodedSlice:
    """A slice with its bytes: all that a decoder needs.

    Attributes:
        name: the clip's key, for error messages.
        codec: as in docs/format.md.
        stsd: the track's sample description box.
        width, height: of decoded frames, in pixels.
        full_range: luma from 0 to 255 rather than 16 to 235 (8 bit).
        data: uint8 [bytes], the packets one after another in decode order.
        sizes, ranks, frames, plain: as in `Slice`.
    """

    name: str
    codec: str
    stsd: bytes
    width: int
    height: int
    full_range: bool
    data: Bytes
    sizes: Int64
    ranks: Int64
    frames: Int64
    plain: bool

    def to_mp4(self) -> Bytes:
        """The slice as an MP4 file, uint8 [bytes]: frame *i* of `frames` is its frames[i]-th frame in presentation
        order."""
        offsets = mp4.composition_offsets(self.ranks)
        head = mp4.header(self.stsd, self.sizes, width=self.width, height=self.height, offsets=offsets)
        return np.concatenate([np.frombuffer(head, dtype=np.uint8), self.data])


def minimal(index: FrameIndex, frames: Int64) -> Slice:
    """The fewest packets that decode to `frames`.

    Args:
        index: the clip's packets.
        frames: int64 [wanted], frame numbers, rising, without repeats.

    Raises:
        IndexError: a frame number that the clip does not have.
        ValueError: no frames, or numbers that do not rise.
    """
    if len(frames) == 0 or np.any(np.diff(frames) <= 0):
        raise ValueError("frame numbers must rise, and there must be at least one")
    if frames[0] < 0 or frames[-1] >= len(index.visible):
        raise IndexError(f"the clip has {len(index.visible)} frames, asked for {frames[0]} to {frames[-1]}")
    packets = index.visible[frames]
    wanted = np.zeros(len(index), dtype=bool)
    wanted[packets] = True

    # GOP number of each packet: 0 is what comes before the first random access point (usually nothing).
    gop = np.cumsum((index.flags & RANDOM_ACCESS) != 0)
    count = int(gop[-1]) + 1
    position = np.arange(len(index))
    leading = (index.flags & LEADING) != 0

    last_needed = np.full(count, -1)
    np.maximum.at(last_needed, gop[packets], packets)
    # A wanted leading picture depends on the GOP before its own, up to that GOP's end.
    wanted_leading = packets[leading[packets]]
    open_gops = np.unique(gop[wanted_leading])
    last_of_gop = np.searchsorted(gop, np.arange(count), side="right") - 1
    before = open_gops[open_gops > 0] - 1
    last_needed[before] = last_of_gop[before]
    # Leading pictures depend on leading ones before them alone, and nothing but leading ones depends on them.
    last_leading = np.full(count, -1)
    np.maximum.at(last_leading, gop[wanted_leading], wanted_leading)

    droppable = ((index.flags & DISPOSABLE) != 0) | (leading & (position > last_leading[gop]))
    chosen = np.flatnonzero((position <= last_needed[gop]) & (wanted | ~droppable))

    ranks = np.empty(len(chosen), dtype=np.int64)
    ranks[np.argsort(index.pts[chosen], kind="stable")] = np.arange(len(chosen))
    return Slice(
        offsets=index.offset[chosen],
        sizes=index.size[chosen],
        ranks=ranks,
        frames=np.sort(ranks[wanted[chosen]]),
        plain=not np.any(index.flags[chosen] & HIDDEN),
    )


def ranges(part: Slice, *, gap: int) -> Int64:
    """Byte ranges of the clip's mp4 that hold the slice's packets.

    Args:
        part: the slice.
        gap: ranges with at most this many unwanted bytes between them are read as one.

    Returns:
        int64 [ranges, 2]: start and end, in rising order.
    """
    order = np.argsort(part.offsets, kind="stable")
    start = part.offsets[order]
    end = np.maximum.accumulate(start + part.sizes[order])
    first = np.concatenate([[True], start[1:] > end[:-1] + gap])
    last = np.append(np.flatnonzero(first)[1:] - 1, len(start) - 1)
    return np.stack([start[first], end[last]], axis=1)


def gather(part: Slice, spans: Int64, blocks: list[Bytes]) -> Bytes:
    """Cut the slice's packets out of what was read.

    Args:
        part: the slice.
        spans: int64 [ranges, 2], start and end of each block in the clip's mp4, rising.
        blocks: the bytes of each range, uint8.

    Returns:
        uint8 [bytes]: the packets one after another, in decode order.
    """
    block = np.searchsorted(spans[:, 0], part.offsets, side="right") - 1
    starts = part.offsets - spans[block, 0]
    out = np.empty(int(part.sizes.sum()), dtype=np.uint8)
    # Packets that lie side by side are copied at once.
    adjoining = (part.offsets[1:] == part.offsets[:-1] + part.sizes[:-1]) & (block[1:] == block[:-1])
    firsts = np.flatnonzero(np.concatenate([[True], ~adjoining]))
    lengths = np.add.reduceat(part.sizes, firsts)
    written = 0
    for number, start, length in zip(block[firsts].tolist(), starts[firsts].tolist(), lengths.tolist(), strict=True):
        out[written : written + length] = blocks[number][start : start + length]
        written += length
    return out
