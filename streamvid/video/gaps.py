"""Whether Matroska, WebM, Ogg, GIF and fragmented MP4 files are whole, and AVI, FLV, ASF and MXF up to the last packet
of a track. Behind a gap, as of a download that was not finished or of a lost sector of a disk, FFmpeg's demuxers look
for the next whole part, or end (MP4), and leave frames out without a word."""

from __future__ import annotations

import math
import re
import zlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from streamvid.arrays import Bool, Int64
from streamvid.mp4.boxes import iter_file_boxes
from streamvid.video.mapped import mapped
from streamvid.video.picture_damage import HOLE
from streamvid.video.probe import VideoFile
from streamvid.video.recordings import DAMAGED, track_packets

END_STATED: Final = ("matroska", "mov", "ogg", "gif")
"""FFmpeg's demuxers for containers of which `find_extent` tells where they end."""
_EBML: Final = 0x1A45DFA3
_SEGMENT: Final = 0x18538067
_CLUSTER: Final = 0x1F43B675
_BLOCK_GROUP: Final = 0xA0
_BLOCKS: Final = (0xA1, 0xA3)
_ANYWHERE: Final = (0xEC, 0xBF)
"""Void and CRC-32. All other elements outside of clusters have ids of four bytes."""
_NEXT_CLUSTER: Final = re.compile(_CLUSTER.to_bytes(4, "big"))
_BEGINNING: Final = re.compile(
    _CLUSTER.to_bytes(4, "big") + rb".{1,8}?(?:\xbf\x84.{4})?\xe7(?:\x81\0|\x82\0{2}|\x84\0{4}|\x88\0{8})", re.DOTALL
)
"""A cluster at time 0, perhaps with a checksum before that."""
_BLOCK_HEADER: Final = 3
"""Bytes of a block's time and flags, behind the number of its track (RFC 9559, 10.1)."""
_NEXT_PAGE: Final = re.compile(b"OggS")
_PAGE_HEADER: Final = 27
_FIRST: Final = 2
_LAST: Final = 4
"""Flags of an Ogg page: its stream begins (`_FIRST`), and ends (RFC 3533, 6)."""
_MIRRORED: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_BOX: Final = re.compile(rb"[ -~\xa9][ -~]{3}")
_BOX_HEADER: Final = 8
_MOOF: Final = re.compile(rb"moof....mfhd", re.DOTALL)
_ZEROS: Final = re.compile(rb"\0+")
_NUT: Final = b"nut/multimedia container\0"
_MOVI: Final = re.compile(rb"LIST....movi", re.DOTALL)
_CHUNK: Final = re.compile(rb"[ -~]{4}")
_PADDING: Final = re.compile(rb"(?:.|\0{0,511})(?=\d\d|ix\d\d|idx1|JUNK|LIST|RIFF)", re.DOTALL)
"""Before usual chunks, any byte, or zeros, as of chunks that begin at blocks; but not as many as a lost sector is."""
_TAG: Final = re.compile(rb".{4}[\x08\x09\x0f\x12\x28\x29\x2f\x32]", re.DOTALL)
"""How a tag of FLV begins: with the size of the one before, and its type: audio, video or data, perhaps encrypted."""
_KEY: Final = re.compile(rb"\x06\x0e\x2b\x34.{13}", re.DOTALL)
_RUN_IN: Final = 1 << 16
"""Bytes before the first key of MXF in which there may be something else."""
_PAYLOADS: Final = re.compile(rb"\x82\0\0")
"""How a packet of ASF begins, with data for error correction that corrects nothing. Others are not looked at."""
_FILE_PROPERTIES: Final = re.compile(
    re.escape(bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")) + b".{76}(.{4})(.{4})", re.DOTALL
)
_DATA: Final = re.compile(re.escape(bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c")))


@dataclass(frozen=True)
class Extent:
    """How far a file is whole.

    Attributes:
        end: the byte where its headers say that it ends; `math.inf` if something else follows its last whole part. If
            the file is shorter, it is cut off. 0: they do not say.
        gaps: bytes at which parts are missing, ascending. Behind the last one nothing may follow.
        blocks: int64 [blocks, 2], where the blocks of Matroska begin, behind their size, and their tracks.
    """

    end: float = 0
    gaps: tuple[int, ...] = ()
    blocks: Int64 = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))

    @property
    def ends_in_gap(self) -> bool:
        """Whether something else follows the last whole part, such as zeros of a file that was allocated before it was
        written."""
        return self.end == math.inf


def find_extent(source: Path, container: str) -> Extent:
    """The extent of a file.

    Args:
        container: FFmpeg's demuxer. Of others than `END_STATED` and raw streams, no gaps are known.

    Raises:
        ValueError: the file is several Ogg or NUT files, of which FFmpeg decodes the first alone; or a GIF with a gap.
    """
    if container == "nut" and (second := re.search(_NUT, mapped(source).data[1:])):
        raise _joined("NUT", second.start() + 1)
    if container == "mov":
        return _fragments(source)
    if container in _CHAINS and container != "avi":  # whose chunks may be of any kind, so that any text is one
        return Extent(_CHAINS[container].end(mapped(source).data))
    if container in ("h264", "hevc", "m4v"):
        return Extent(gaps=tuple(hole.start() for hole in HOLE.finditer(mapped(source).data)))
    find = {"matroska": _matroska, "ogg": _ogg, "gif": _gif}.get(container)
    return find(mapped(source).data) if find else Extent()


def before_gaps(source: VideoFile, container: str, position: Int64) -> Bool:
    """bool [packets]: the last packet before each gap that others follow, and before each block of the track that
    FFmpeg leaves out: all up to the next cluster, if it cannot read one of any track. The packet may be damaged, too.

    Args:
        container: as for `find_extent`.
        position: int64 [packets], the bytes at which packets of the track begin, ascending; -1 if unknown.

    Raises:
        ValueError: as `find_extent`.
    """
    found = np.zeros(len(position), dtype=bool)
    if container in _CHAINS:
        known = position if (position >= 0).all() else _positions(source)  # some packets were split, or joined
        missing = _CHAINS[container].gaps(mapped(source.path).data, known)
        position = np.maximum.accumulate(position)
    else:
        extent = find_extent(source.path, container)
        at, track = extent.blocks.T
        left_out = at[np.isin(track, track[np.isin(at, position)]) & ~np.isin(at, position)]
        if len(left_out):  # or empty, or before the first key frame, or joined with the next
            left_out = np.setdiff1d(left_out, _positions(source))
        missing = [*(gap for gap in extent.gaps if gap < position.max(initial=0)), *left_out.tolist()]
    if len(position):
        found[np.maximum(np.searchsorted(position, np.array(missing, dtype=np.int64)) - 1, 0)] = True
    return found


def _positions(source: VideoFile) -> Int64:
    """int64 [packets], the bytes at which FFmpeg's packets of the track begin; -1 if unknown."""
    with source.open() as (container, stream):
        found = (-1 if packet.pos is None else packet.pos for packet in track_packets(container, stream))
        return np.fromiter(found, dtype=np.int64)


@dataclass(frozen=True)
class _Chain:
    """A container whose elements follow each other.

    Attributes:
        packet: how an element begins with which a packet does.
        before: bytes from there to the position that FFmpeg gives the packet.
        open: tells, of a file, where its first element begins, -1 if it is no such chain; and gives a function that
            tells where the element at a byte ends: at that byte, if there is none.
    """

    packet: re.Pattern[bytes]
    before: int
    open: Callable[[memoryview], tuple[int, Callable[[int], int]]]

    def end(self, data: memoryview) -> int:
        """Where the last element before something else ends: behind the file if it is cut off."""
        at, end_of = self.open(data)
        while 0 <= at < len(data) and at < (end := end_of(at)):
            at = end
        return at

    def gaps(self, data: memoryview, position: Int64) -> list[int]:
        """Bytes at which no element leads on to the next packet of a track; `position` as for `before_gaps`."""
        at, end_of = self.open(data)
        places = np.unique(position[position >= self.before]) - self.before
        gaps: list[int] = []
        for place in places.tolist() if at >= 0 else ():
            if not self.packet.match(data, place):  # it begins within an element
                continue
            while at < (end := end_of(at)) <= place:
                at = end
            gaps += [at] * (at != place)
            at = place
        return gaps


def _avi(data: memoryview) -> tuple[int, Callable[[int], int]]:
    """Chunks; of lists, headers alone (Microsoft's AVI RIFF File Reference)."""

    def end(at: int) -> int:
        if (kind := _CHUNK.match(data, at)) is None:
            return at
        if kind[0] in (b"RIFF", b"LIST"):
            return at + 12
        behind = at + 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        padding = _PADDING.match(data, behind)
        return padding.end() if padding else behind + (behind & 1 and not _CHUNK.match(data, behind))

    return (found.start() if (found := _MOVI.search(data)) else -1), end


def _flv(data: memoryview) -> tuple[int, Callable[[int], int]]:
    """Tags, with the sizes of those before (Adobe Flash Video File Format Specification 10.1, E.2 to E.4.1)."""

    def end(at: int) -> int:
        size = int.from_bytes(data[at + 5 : at + 8], "big")
        behind = at + 15 + size
        known = _TAG.match(data, at) or int.from_bytes(data[behind : behind + 4], "big") == 11 + size
        return behind if known else at  # FFmpeg passes over tags of other types

    return int.from_bytes(data[5:9], "big"), end


def _mxf(data: memoryview) -> tuple[int, Callable[[int], int]]:
    """Keys, lengths and values (SMPTE ST 377-1, 6.3)."""

    def end(at: int) -> int:
        if not _KEY.match(data, at):
            return at
        behind = at + 17 + max(0, data[at + 16] - 0x80)
        return behind + (int.from_bytes(data[at + 17 : behind], "big") if behind > at + 17 else data[at + 16])

    return (found.start() if (found := _KEY.search(data, 0, _RUN_IN)) else -1), end


def _asf(data: memoryview) -> tuple[int, Callable[[int], int]]:
    """Packets of one size, in the data object (Advanced Systems Format Specification, 3.2 and 5)."""
    header = min(int.from_bytes(data[16:24], "little"), len(data))
    if (sizes := _FILE_PROPERTIES.search(data, 0, header)) is None or not _DATA.match(data, header):
        return -1, lambda at: at
    least, most = (int.from_bytes(size, "little") for size in sizes.groups())
    return header + 50 if least == most > 0 else -1, lambda at: at + most * (_PAYLOADS.match(data, at) is not None)


_CHAINS: Final = {
    "avi": _Chain(re.compile(rb"\d\d"), 8, _avi),
    "flv": _Chain(_TAG, 4, _flv),
    "mxf": _Chain(_KEY, 0, _mxf),
    "asf": _Chain(_PAYLOADS, 0, _asf),
}


def _joined(kind: str, at: int) -> ValueError:
    return ValueError(
        f"it is several {kind} files that were joined byte by byte, of which FFmpeg decodes the first alone: split it "
        f"(the second begins at byte {at}), or join the files by ffmpeg -f concat"
    )


class _Element(NamedTuple):
    """An element of Matroska: its id, 0 if there can be no such element; and where its data begins and ends, `math.inf`
    if it does not say, as in live recordings."""

    id: int
    begin: int
    end: float


def _element(data: memoryview, at: int) -> _Element:
    """The element at a byte (RFC 8794, 4 to 6)."""
    start = _number_end(data, at)
    begin = _number_end(data, start) if start < len(data) else start + 1
    unknown = (1 << 7 * (begin - start)) - 1
    size = int.from_bytes(data[start:begin], "big") & unknown
    kind, end = int.from_bytes(data[at:start], "big"), math.inf if size == unknown else begin + size
    is_valid = start - at <= 4 and begin - start <= 8 and (end < math.inf or kind in (_SEGMENT, _CLUSTER))
    return _Element(kind if is_valid else 0, begin, end)


def _number_end(data: memoryview, at: int) -> int:
    """Where a number ends: the leading zeros of its first byte count the bytes that follow."""
    return at + 9 - data[at].bit_length()


def _matroska(data: memoryview) -> Extent:
    """The extent of Matroska and WebM: elements that follow each other, those of clusters and block groups as well
    (RFC 9559, 5.1)."""
    at, segment_end, cluster_end = 0, math.inf, -1.0
    gaps: list[int] = []
    blocks = array("q")  # of hours of video, too
    while at < len(data):
        kind, begin, end = _element(data, at)
        if at >= segment_end:
            if kind != _EBML:  # no other file
                break
            segment_end = math.inf
        if begin > len(data):  # the file ends within its header
            at = begin
            break
        fits = end <= cluster_end if at < cluster_end else kind >> 24 or kind in _ANYWHERE
        if kind == _SEGMENT:
            at, segment_end = begin, end
        elif kind == _CLUSTER:
            gaps += [at] * (at < cluster_end < math.inf)
            at, cluster_end = begin, end
        elif not kind or not fits or end > min(segment_end, len(data)):
            cluster = _NEXT_CLUSTER.search(data, at + 1)
            if cluster is None and kind and fits:  # the file ends within it
                at = int(end)
                continue
            if cluster is None:
                return Extent(math.inf, (*gaps, at), _rows(blocks))
            gaps += [at] * (cluster_end >= 0 or not _BEGINNING.match(data, cluster.start()))  # no frames before it
            at, cluster_end = cluster.start(), 0.0
        elif kind == _BLOCK_GROUP:
            at = begin
        else:
            if kind in _BLOCKS and end > begin and end > (behind := _number_end(data, begin)) + _BLOCK_HEADER:
                blocks.extend((begin, int.from_bytes(data[begin:behind], "big")))  # others are empty
            at = int(end)
    return Extent(max(at, segment_end) if segment_end < math.inf else at, tuple(gaps), _rows(blocks))


def _rows(blocks: array[int]) -> Int64:
    return np.array(blocks, dtype=np.int64).reshape(-1, 2)


def _ogg(data: memoryview) -> Extent:
    """The extent of Ogg: pages that follow each other, each with a checksum (RFC 3533, 6)."""
    at, flags, begun = 0, 0, False
    gaps: list[int] = []
    while at + _PAGE_HEADER <= len(data):
        is_page = bytes(data[at : at + 4]) == b"OggS"
        if not is_page and flags & _LAST:
            break
        begin = at + _PAGE_HEADER + data[at + 26]
        end = begin + sum(data[at + _PAGE_HEADER : begin])
        if is_page and end > len(data):
            return Extent(end, tuple(gaps))
        if is_page and begun and data[at + 5] & _FIRST:
            raise _joined("Ogg", at)
        if not is_page or _page_crc(data[at:end]) != int.from_bytes(data[at + 22 : at + 26], "little"):
            gaps.append(at)
            if (page := _NEXT_PAGE.search(data, at + 1)) is None:
                return Extent(math.inf, tuple(gaps))
            at = page.start()
            continue
        flags = data[at + 5]
        at, begun = end, begun or not flags & _FIRST
    is_page = bytes(data[at : at + 4]) == b"OggS"  # of which the header is cut off
    return Extent(at + _PAGE_HEADER * is_page, tuple(gaps))


def _gif(data: memoryview) -> Extent:
    """The extent of GIF: blocks that follow each other up to a trailer (GIF89a, 18 to 27)."""
    at = 13 + (_color_table(data[10]) if len(data) > 10 else 0)
    while at < len(data) and data[at] != 0x3B:
        if data[at] == 0x21:  # an extension
            at += 2
        elif data[at] == 0x2C:  # an image
            at += 11 + _color_table(data[min(at + 9, len(data) - 1)])
        elif zeros := _ZEROS.match(data, at):
            if zeros.end() == len(data):
                return Extent(math.inf)
            at = zeros.end()
            continue
        else:
            raise ValueError(DAMAGED)
        while at < len(data) and data[at]:  # blocks of up to 255 bytes
            at += 1 + data[at]
        at += 1
    return Extent(at)


def _color_table(flags: int) -> int:
    """Bytes of a colour table of GIF, by the flags before it."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _fragments(source: Path) -> Extent:
    """The extent of a fragmented MP4: FFmpeg takes zeros, and what is no box, for a last one that reaches to the
    end."""
    at, length, fragmented = 0, source.stat().st_size, False
    with source.open("rb") as file:
        for kind, payload, end in iter_file_boxes(file, length):
            if end < payload or not _BOX.fullmatch(kind):
                break
            at, fragmented = end, fragmented or kind == b"moof"
    if length - at < _BOX_HEADER or not fragmented:
        return Extent()
    rest = mapped(source)[at:]  # other bytes may be anything, but no fragments
    return Extent(math.inf) if not rest.any() or _MOOF.search(rest.data) else Extent()


def _page_crc(page: memoryview) -> int:
    """The checksum of an Ogg page: zlib's polynomial, but from the highest bit of each byte on, and from 0."""
    mirrored = (bytes(page[:22]) + bytes(4) + bytes(page[26:])).translate(_MIRRORED)
    return int(f"{zlib.crc32(mirrored, 0xFFFFFFFF) ^ 0xFFFFFFFF:032b}"[::-1], 2)
