"""Inputs of `fn.readers.webdataset` for a chunk of the plan: index files that name byte ranges of shards, in the plan's
order, and for every sample the MP4 header that makes its ranges a video.

DALI's index format (v1.2, as `wds2idx` writes it) has a line for each sample and in it, for each component, extension,
offset, size and file name. A component need not be a whole tar member: here a sample's components are the byte ranges
of `<key>.mp4` with the packets that its wanted frames need. Samples are in the plan's order, and a shard is listed once
for each run of consecutive samples, because the reader goes through its shards one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from streamvid.arrays import Int64, UInt8
from streamvid.bitstream.image import is_image_entry
from streamvid.mp4.writer import composition_offsets, slice_header
from streamvid.video.packet_selection import EncodedSlice, PacketSelection

TAR_BLOCK: Final = 512
"""`fn.readers.webdataset` accepts only offsets that are a multiple of this."""
MAX_RANGES: Final = 32
"""Most byte ranges of a sample: each is an output of the reader."""


@dataclass(frozen=True)
class VideoSource:
    """One sample, as inputs of reader and decoder.

    Attributes:
        path: local path of the shard; empty for `data`.
        ranges: int64 [ranges, 2], start and end in the shard, in bytes; starts are multiples of `TAR_BLOCK`.
        header: uint8 [bytes], `ftyp`, `moov` and the header of `mdat`; followed by the ranges, an MP4 of the wanted
            packets without edit list or negative timestamps. Empty for an image.
        data: uint8 [bytes], the wanted packets themselves, if no local shard has them.
        begin: bytes of the ranges before the first packet.
    """

    path: str
    ranges: Int64
    header: UInt8
    data: UInt8 | None = None
    begin: int = 0


def video_source(
    path: str, origin: int, packets: PacketSelection, spans: Int64, *, stsd: bytes, width: int, height: int
) -> VideoSource:
    """The ranges of a shard to read for a slice, and the MP4 header that goes before them.

    Args:
        path: local path of the shard.
        origin: offset of the clip's MP4 in the shard, in bytes.
        packets: the clip's wanted packets.
        spans: int64 [spans, 2], byte ranges of the clip's MP4 that hold them, increasing.
        stsd: the clip's sample description box.
        width, height: of the decoded frames, in pixels.
    """
    spans = _merged(spans)
    ranges = origin + spans
    ranges[:, 0] -= ranges[:, 0] % TAR_BLOCK
    # Offset of each range in the payload of mdat, minus its offset in the clip's MP4.
    shift = np.cumsum(ranges[:, 1] - ranges[:, 0]) - (ranges[:, 1] - origin)
    positions = packets.offsets + shift[np.searchsorted(spans[:, 0], packets.offsets, side="right") - 1]
    if is_image_entry(stsd):
        return VideoSource(path, ranges, np.zeros(0, np.uint8), begin=int(positions[0]))
    head = slice_header(
        stsd,
        packets.sizes,
        width=width,
        height=height,
        offsets=composition_offsets(packets.display_order),
        positions=positions,
    )
    return VideoSource(path, ranges, np.frombuffer(head, dtype=np.uint8))


def source_of(encoded: EncodedSlice) -> VideoSource:
    """The source of a slice that has been read, because its shard is no local file; `write_indexes` writes it into
    one."""
    whole = np.array([[0, len(encoded.data)]], dtype=np.int64)
    if is_image_entry(encoded.stsd):
        return VideoSource("", whole, np.zeros(0, np.uint8), encoded.data)
    offsets = composition_offsets(encoded.display_order)
    head = slice_header(encoded.stsd, encoded.sizes, width=encoded.width, height=encoded.height, offsets=offsets)
    return VideoSource("", whole, np.frombuffer(head, dtype=np.uint8), encoded.data)


def _merged(spans: Int64) -> Int64:
    """At most `MAX_RANGES` ranges that cover the spans: those with the fewest bytes between them are joined."""
    if len(spans) <= MAX_RANGES:
        return spans
    gaps = spans[1:, 0] - spans[:-1, 1]
    split = np.sort(np.argsort(-gaps, kind="stable")[: MAX_RANGES - 1])
    return np.stack([spans[np.append(0, split + 1), 0], spans[np.append(split, len(spans) - 1), 1]], axis=1)


@dataclass(frozen=True)
class ReaderFiles:
    """Arguments of `fn.readers.webdataset`.

    Attributes:
        paths: the shards in the order of reading; a shard may come several times.
        index_paths: the index file for each.
        extensions: names of the components; a sample with fewer byte ranges lacks the last ones.
    """

    paths: list[str]
    index_paths: list[str]
    extensions: list[str]


def write_indexes(sources: Sequence[VideoSource], folder: Path, *, spare: int) -> ReaderFiles:
    """Write the index files by which `fn.readers.webdataset` reads these samples in this order.

    Args:
        sources: samples of a chunk.
        folder: an empty folder for them.
        spare: number of samples of one byte to add at the end. The reader works ahead and starts over after its last
            sample: it reads these instead of reading the first batches again.
    """
    runs: list[tuple[str, list[str]]] = []
    sources = _written(sources, folder / "packets")
    for source in sources:
        if not runs or runs[-1][0] != source.path:
            runs.append((source.path, []))
        line = " ".join(f"r{n} {start} {end - start} range" for n, (start, end) in enumerate(source.ranges.tolist()))
        runs[-1][1].append(line)
    runs[-1][1].extend([f"r0 {sources[-1].ranges[0, 0]} 1 spare"] * spare)
    indexes = []
    for number, (_, lines) in enumerate(runs):
        index = folder / f"{number}.idx"
        index.write_text("\n".join([f"v1.2 {len(lines)}", *lines]) + "\n", encoding="ascii")
        indexes.append(str(index))
    most = max(len(source.ranges) for source in sources)
    return ReaderFiles([path for path, _ in runs], indexes, [f"r{n}" for n in range(most)])


def _written(sources: Sequence[VideoSource], path: Path) -> list[VideoSource]:
    """The sources, after writing the data of those that have any into a file."""
    places, at = [], 0
    for source in sources:
        size = 0 if source.data is None else len(source.data)
        places.append(at)
        at += -(-size // TAR_BLOCK) * TAR_BLOCK
    if at:
        with path.open("wb") as file:
            for source, place in zip(sources, places, strict=True):
                if source.data is not None:
                    file.seek(place)
                    file.write(source.data.data)
    return [
        source if source.data is None else replace(source, path=str(path), ranges=source.ranges + place)
        for source, place in zip(sources, places, strict=True)
    ]
