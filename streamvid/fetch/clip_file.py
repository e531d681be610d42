"""A clip as an MP4 file: the file in its shard, or, for a clip in place, one made of its packets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from streamvid.arrays import Int64
from streamvid.bitstream.packets import packets_in
from streamvid.checksum import crc32c
from streamvid.dataset.clip_source import ClipSource
from streamvid.errors import DatasetError
from streamvid.fetch.encoded_batch import read_packets
from streamvid.mp4.writer import clip_header
from streamvid.storage.byte_range import ByteRange
from streamvid.video.frame_index import RANDOM_ACCESS, FrameIndex
from streamvid.video.packet_selection import PacketSelection

_CHUNK_BYTES: Final = 32 << 20
"""Read at a time: memory does not grow with the clip, unless a group of pictures is larger."""


class ClipFile:
    """The MP4 of one clip, which has all its packets and shows exactly its frames.

    Args:
        source: the dataset.
        row: the clip.
        sha256: SHA-256 of the MP4; "" if unknown; None: look it up in the dataset.

    Attributes:
        stored: whether the MP4 is stored contiguously in its file, with a known SHA-256.
    """

    def __init__(self, source: ClipSource, row: int, sha256: str | None = None) -> None:
        self._source, self._row = source, row
        self.sha256 = source.sha256(row) if sha256 is None else sha256
        self.stored = bool(self.sha256)
        self._crc32c: Int64 | None = None

    @property
    def index(self) -> FrameIndex:
        """The clip's packets, with their positions in this MP4. All have checksums once the MP4 has been read."""
        found = self._source.index(self._row)
        if self.stored:
            return found
        crc32c = found.crc32c if self._crc32c is None else self._crc32c
        return replace(found, offset=len(self.head) + np.cumsum(found.size) - found.size, crc32c=crc32c)

    @cached_property
    def head(self) -> bytes:
        """The beginning of an MP4 that has to be made, up to the packets. Raises ClipError if no MP4 can hold them."""
        clips, row, index = self._source.clips, self._row, self._source.index(self._row)
        step = int(clips.time_base_num[row])
        try:
            return clip_header(
                clips.stsds[clips.stsd_id[row]],
                pts=index.pts * step,
                sizes=index.size,
                sync=(index.flags & RANDOM_ACCESS) != 0,
                shown=(0, int(clips.duration[row]) * step),
                width=int(clips.width[row]),
                height=int(clips.height[row]),
                rotation=int(clips.rotation[row]),
                timescale=int(clips.time_base_den[row]),
            )
        except ValueError as error:
            raise self._source.clip_error(row, str(error)) from error

    @property
    def size(self) -> int:
        """Size of the MP4 in bytes."""
        if self.stored:
            return int(self._source.clips.mp4_size[self._row])
        return len(self.head) + int(self._source.index(self._row).size.sum())

    def read(self) -> Iterator[memoryview | bytes]:
        """The MP4's bytes in chunks, compared with the checksums that exist. A SHA-256 is compared at the end, so
        publish the file only after the last chunk.

        Raises:
            ClipError: the bytes differ from those that were stored.
            DatasetError: a file cannot be read.
        """
        return self._read_stored() if self.stored else self._read_packets()

    def _read_stored(self) -> Iterator[memoryview]:
        source, row = self._source, self._row
        path, version = source.location(row), source.version(row)
        start = int(source.clips.mp4_offset[row])
        digest = hashlib.sha256()
        for at in range(start, start + self.size, _CHUNK_BYTES):
            wanted = ByteRange(path, at, min(at + _CHUNK_BYTES, start + self.size))
            try:
                (block,) = source.reader.read([wanted], None if version is None else {path: version})
            except DatasetError as error:
                if version is not None:
                    source.raise_file_error(error, {path: row})
                raise source.shard_error(int(source.clips.shard[row]), error) from error
            digest.update(block.data)
            yield block.data
        if digest.hexdigest() != self.sha256:
            raise source.clip_error(row, "its bytes are not those that were stored, by their SHA-256")

    def _read_packets(self) -> Iterator[memoryview | bytes]:
        yield self.head
        yield from self.packets()

    def packets(self) -> Iterator[memoryview]:
        """The bytes of the packets alone, in decode order, in chunks; for an image, that is its file. Errors as in
        `read`."""
        source, row, index = self._source, self._row, self._source.index(self._row)
        crcs = index.crc32c.copy()
        for first, end in _parts(index):
            packets = _all_packets(index, first, end)
            data = read_packets(source, row, packets).data
            stored = packets_in(data, packets.sizes)
            for n in np.flatnonzero(packets.crc32c < 0).tolist():
                crcs[first + n] = crc32c(stored[n])
            yield data.data
        self._crc32c = crcs


def _parts(index: FrameIndex) -> Iterator[tuple[int, int]]:
    """Consecutive packets, as (first, end), of about `_CHUNK_BYTES`. If some have no checksum, each part but the first
    begins at a random access packet, because packets are checked against their bitstream then."""
    begins = np.cumsum(index.size) - index.size
    cuts = index.starts if (index.crc32c < 0).any() else np.arange(len(index))
    first = 0
    while first < len(index):
        after = np.searchsorted(begins[cuts], begins[first] + _CHUNK_BYTES)
        end = int(cuts[after]) if after < len(cuts) else len(index)
        yield first, end
        first = end


def _all_packets(index: FrameIndex, first: int, end: int) -> PacketSelection:
    """All packets of a clip, including packets that no frame needs."""
    numbers = np.arange(first, end, dtype=np.int64)
    pts = index.pts[first:end]
    order: Int64 = np.empty(end - first, dtype=np.int64)
    order[np.argsort(pts, kind="stable")] = np.arange(end - first)
    starts = index.starts[(index.starts >= first) & (index.starts < end)] - first
    return PacketSelection(
        offsets=index.offset[first:end],
        sizes=index.size[first:end],
        display_order=order,
        frames=order[:0],
        gops=np.searchsorted(index.starts, numbers, side="right"),
        starts=np.union1d([0], starts),
        numbers=numbers,
        crc32c=index.crc32c[first:end],
    )
