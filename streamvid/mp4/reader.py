"""The sample tables of an MP4 or MOV file (`moov`) as arrays, read without a demuxer, and strictly.

Most files that are packed are not fragmented, and have one video track with one sample description, tables that agree
with each other and with the file, and an edit list that hides nothing. For those `read_track` gives what FFmpeg's
demuxer would, in half of its time. All other files are refused with `NeedsDemuxerError`, and so is every box that is
not known here: files are hostile, and FFmpeg decides what they mean. Boxes and sections are those of ISO/IEC 14496-12.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from streamvid.arrays import Bool, Int64
from streamvid.mp4.boxes import (
    MAX_MOOV_BYTES,
    display_matrix,
    iter_boxes,
    iter_file_boxes,
    read_timescale,
    rotation_of_matrix,
)
from streamvid.mp4.edit_list import parse_edit_list
from streamvid.mp4.sample_entry import ENTRY_BYTES

_HEADERS_BYTES: Final = 64
"""Of the boxes behind the moov, which are asked for with it."""
_REST_BYTES: Final = 1 << 16
"""Bytes behind the packets that are read at once: the moov of some minutes."""
_MAX_BOXES: Final = 1000
"""Top-level boxes of a file."""
_MAX_CONSTANT_SIZE: Final = 1 << 20
"""Packets if all have one size: no table's length bounds their number then."""
_TOP_LEVEL: Final = frozenset((b"ftyp", b"free", b"skip", b"wide", b"mdat", b"moov"))
_NOT_IN_MOOV: Final = frozenset((b"mvex", b"cmov", b"rmra", b"pssh", b"moof"))
_NOT_IN_STBL: Final = frozenset((b"stz2", b"stps", b"senc", b"saiz", b"saio"))
_OTHER_TRACKS: Final = frozenset((b"soun", b"text", b"sbtl", b"subt", b"tmcd", b"meta", b"hint", b"clcp"))
"""Handler types of tracks that FFmpeg never takes for video."""
_ENTRIES: Final = {
    b"avc1": ("h264", b"avcC"),
    b"hvc1": ("hevc", b"hvcC"),
    b"hev1": ("hevc", b"hvcC"),
    b"av01": ("av1", b"av1C"),
}
_UNITY: Final = display_matrix()
_ENTRY_BOXES: Final = frozenset((b"avcC", b"hvcC", b"av1C", b"pasp", b"colr", b"btrt", b"fiel"))


class NeedsDemuxerError(ValueError):
    """A file that is not read by its own tables: it has something that this module does not read, which the message
    names, or is damaged. FFmpeg's demuxer decides which."""


@dataclass(frozen=True)
class VideoTrack:
    """The only video track of an MP4 or MOV file.

    Attributes:
        codec: "h264", "hevc" or "av1".
        stsd: its sample description box, whole, with one entry.
        configuration: the payload of the codec's configuration box in it.
        matrix, full_range: as the entry's `colr` box has them: ITU-T H.273's number of the matrix, and whether levels
            go from 0 to 255; None where it does not say.
        rotation: one of `boxes.ROTATIONS`.
        timescale: ticks per second.
        pts: int64 [packets], presentation times in decode order, in ticks from any origin; no two are the same.
        offset: int64 [packets], positions in the file, rising, without overlap.
        size: int64 [packets], in bytes, above 0.
        sync: bool [packets], the sync samples (8.6.2). The first is one.
        last_duration: ticks until the last packet in decode order is over; 0 if the file does not say.
        has_audio: the file has an audio track, too.
    """

    codec: str
    stsd: bytes
    configuration: bytes
    matrix: int | None
    full_range: bool | None
    rotation: int
    timescale: int
    pts: Int64
    offset: Int64
    size: Int64
    sync: Bool
    last_duration: int
    has_audio: bool


def read_track(file: io.RawIOBase) -> VideoTrack:
    """Read the video track's tables.

    Args:
        file: an MP4 or MOV file, open for reading.

    Raises:
        NeedsDemuxerError: it is none, or one that is not read here.
        OSError: it cannot be read.
    """
    length = file.seek(0, os.SEEK_END)
    moov, media = _top_level(file, length)
    try:
        return _Movie(moov).track(media)
    except (struct.error, IndexError) as error:
        raise NeedsDemuxerError("a box that is too short") from error


def _top_level(file: io.RawIOBase, length: int) -> tuple[bytes, Int64]:
    """The payload of `moov`, and int64 [mdats, 2]: where the payload of each `mdat` begins and ends."""
    moov: bytes | None = None
    media: list[tuple[int, int]] = []
    at = 0
    for count, (kind, payload, end) in enumerate(iter_file_boxes(file, length)):
        _require(count < _MAX_BOXES, "very many boxes")
        _require(kind in _TOP_LEVEL and (kind == b"ftyp") == (at == 0), f"a box {kind!r} at {at}")
        _require(payload <= end <= length, f"a box {kind!r} that is cut off")
        if kind == b"mdat":
            media.append((payload, end))
            if moov is None and end < length:  # what comes next is asked for at once, header and all
                file.seek(end)
                file.read(min(length - end, _REST_BYTES))
        elif kind == b"moov":
            _require(moov is None and end - payload <= MAX_MOOV_BYTES, "a second moov, or a huge one")
            file.seek(payload)
            moov = file.read(end - payload + _HEADERS_BYTES)[: end - payload]
            _require(len(moov) == end - payload, "a moov that is cut off")
        at = end
    _require(at == length, "a broken box")
    if moov is None or not media:
        raise NeedsDemuxerError("no moov, or no mdat")
    return moov, np.array(media, dtype=np.int64)


class _Movie:
    """Parser of a `moov` box.

    Args:
        moov: its payload.
    """

    def __init__(self, moov: bytes) -> None:
        self._data = moov

    def track(self, media: Int64) -> VideoTrack:
        """See `read_track`."""
        top = self._children(0, len(self._data))
        kinds = [kind for kind, _, _ in top]
        _require(not _NOT_IN_MOOV.intersection(kinds), "fragments, or a moov that is compressed or encrypted")
        start, end = self._only(top, b"mvhd")
        wide = self._version(start)
        matrix_at = start + (48 if wide else 36)
        is_unity = self._data[matrix_at : matrix_at + 36] == _UNITY
        _require(is_unity and end - start >= 100, "a movie's matrix")
        movie_scale = read_timescale(self._data, start)

        videos, handlers = [], set()
        for kind, start, end in top:
            if kind == b"trak":
                trak = self._children(start, end)
                mdia = self._children(*self._only(trak, b"mdia"))
                handler = self._data[self._only(mdia, b"hdlr")[0] + 8 :][:4]
                handlers.add(handler)
                _require(handler == b"vide" or handler in _OTHER_TRACKS, f"a track of kind {handler!r}")
                if handler == b"vide":
                    videos.append((trak, mdia))
        _require(len(videos) == 1, f"{len(videos)} video tracks")
        trak, mdia = videos[0]
        minf = self._children(*self._only(mdia, b"minf"))
        self._check_reference(self._children(*self._only(minf, b"dinf")))
        stbl = self._children(*self._only(minf, b"stbl"))
        _require(not _NOT_IN_STBL.intersection(kind for kind, _, _ in stbl), "packed or encrypted tables")

        start, _ = self._only(mdia, b"mdhd")
        self._version(start)
        timescale = read_timescale(self._data, start)
        _require(0 < timescale < 1 << 31 and movie_scale > 0, "a timescale of none")

        size = self._sizes(*self._only(stbl, b"stsz"))
        steps = self._steps(*self._only(stbl, b"stts"), len(size))
        dts = np.cumsum(steps) - steps
        pts = dts + self._composition_offsets(stbl, len(size))
        _require(len(np.unique(pts)) == len(pts), "frames that are shown at the same time")
        self._check_edit(trak, pts, timescale, movie_scale)
        codec, stsd, configuration, matrix, full_range = self._entry(*self._only(stbl, b"stsd"))
        return VideoTrack(
            codec=codec,
            stsd=stsd,
            configuration=configuration,
            matrix=matrix,
            full_range=full_range,
            rotation=self._rotation(*self._only(trak, b"tkhd")),
            timescale=timescale,
            pts=pts,
            offset=self._offsets(stbl, size, media),
            size=size,
            sync=self._sync(stbl, len(size)),
            last_duration=int(steps[-1]),
            has_audio=b"soun" in handlers,
        )

    def _children(self, start: int, end: int) -> list[tuple[bytes, int, int]]:
        """(type, start of payload, end) of the boxes in data[start:end], which they must fill."""
        found = list(iter_boxes(self._data, start, end))
        _require((found[-1][2] if found else start) == end, "a box in a box that does not fit")
        return found

    def _only(self, boxes: Sequence[tuple[bytes, int, int]], name: bytes) -> tuple[int, int]:
        found = self._optional(boxes, name)
        if found is None:
            raise NeedsDemuxerError(f"no box {name!r}")
        return found

    def _optional(self, boxes: Sequence[tuple[bytes, int, int]], name: bytes) -> tuple[int, int] | None:
        found = [(start, end) for kind, start, end in boxes if kind == name]
        _require(len(found) <= 1, f"several boxes {name!r}")
        return found[0] if found else None

    def _version(self, start: int, most: int = 1) -> int:
        _require(self._data[start] <= most, "a box of a later version")
        return self._data[start]

    def _table(self, start: int, end: int, columns: int, dtype: str = ">u4") -> Int64:
        """int64 [rows, columns]: the table of a full box, after its number of rows; it must fill the box."""
        (count,) = struct.unpack_from(">I", self._data, start + 4)
        width = np.dtype(dtype).itemsize * columns
        _require(start + 8 + count * width == end, "a table that is not as long as it says")
        rows = np.frombuffer(self._data, dtype=dtype, count=count * columns, offset=start + 8)
        return np.asarray(rows, dtype=np.int64).reshape(count, columns)

    def _sizes(self, start: int, end: int) -> Int64:
        """int64 [packets]: `stsz` (8.7.3.2)."""
        constant, count = struct.unpack_from(">II", self._data, start + 4)
        if constant:
            _require(end - start == 12 and count <= _MAX_CONSTANT_SIZE, "very many packets of one size")
            sizes = np.full(count, constant, dtype=np.int64)
        else:
            sizes = self._table(start + 4, end, 1)[:, 0]
        _require(len(sizes) > 0 and int(sizes.min()) > 0 and int(sizes.max()) < 1 << 31, "no packets, or empty ones")
        return sizes

    def _steps(self, start: int, end: int, packets: int) -> Int64:
        """int64 [packets], ticks from decoding to decoding: `stts` (8.6.1.2)."""
        runs = self._table(start, end, 2)
        _require(int(runs[:, 0].sum()) == packets and int(runs[:, 1].max()) < 1 << 31, "times of other packets")
        return np.repeat(runs[:, 1], runs[:, 0])

    def _composition_offsets(self, stbl: Sequence[tuple[bytes, int, int]], packets: int) -> Int64:
        """int64 [packets], ticks from decoding to presentation: `ctts` (8.6.1.3)."""
        found = self._optional(stbl, b"ctts")
        if found is None:
            return np.zeros(packets, dtype=np.int64)
        self._version(found[0])
        runs = self._table(*found, 2)
        # Version 1 has signed offsets, and some files of version 0 have them all the same.
        _require(int(runs[:, 0].sum()) == packets and int(runs[:, 1].max()) < 1 << 31, "a negative composition offset")
        return np.repeat(runs[:, 1], runs[:, 0])

    def _sync(self, stbl: Sequence[tuple[bytes, int, int]], packets: int) -> Bool:
        """bool [packets]: `stss` (8.6.2)."""
        found = self._optional(stbl, b"stss")
        if found is None:
            return np.ones(packets, dtype=bool)
        numbers = self._table(*found, 1)[:, 0]
        _require(len(numbers) > 0 and numbers[0] == 1, "a start that is no key frame")
        _require(bool(np.all(np.diff(numbers) > 0)) and numbers[-1] <= packets, "key frames out of order")
        sync = np.zeros(packets, dtype=bool)
        sync[numbers - 1] = True
        return sync

    def _offsets(self, stbl: Sequence[tuple[bytes, int, int]], size: Int64, media: Int64) -> Int64:
        """int64 [packets], positions in the file: `stsc` and `stco` or `co64` (8.7.4, 8.7.5).

        Args:
            stbl: the boxes of the sample table.
            size: int64 [packets].
            media: as `_top_level` returns it.
        """
        narrow, wide = self._optional(stbl, b"stco"), self._optional(stbl, b"co64")
        _require((narrow is None) != (wide is None), "no chunk offsets, or two boxes of them")
        chunks = self._table(*narrow, 1)[:, 0] if narrow else self._table(*(wide or (0, 0)), 1, ">u8")[:, 0]
        first, per_chunk, description = self._table(*self._only(stbl, b"stsc"), 3).T
        _require(len(first) > 0 and first[0] == 1 and int(first[-1]) <= len(chunks), "chunks that are not there")
        _require(bool(np.all(np.diff(first) > 0)) and bool(np.all(description == 1)), "chunks of another description")
        runs = np.diff(np.append(first, len(chunks) + 1))
        _require(int(per_chunk.min()) > 0 and int((runs * per_chunk).sum()) == len(size), "chunks of other packets")
        counts = np.repeat(per_chunk, runs)
        _require(int(chunks.min()) >= 0 and int(chunks.max()) <= int(media.max()), "chunks that are not there")
        ends = np.cumsum(counts)
        before = np.cumsum(size) - size
        offset = np.repeat(chunks - before[ends - counts], counts) + before
        _require(bool(np.all(offset[1:] >= offset[:-1] + size[:-1])), "packets out of order, or that overlap")
        box = np.searchsorted(media[:, 0], offset, side="right") - 1
        inside = (box >= 0) & (offset + size <= media[box, 1])
        _require(bool(inside.all()), "packets that are not there")
        return np.asarray(offset, dtype=np.int64)

    def _check_edit(self, trak: Sequence[tuple[bytes, int, int]], pts: Int64, timescale: int, movie_scale: int) -> None:
        """Refuse an edit list (8.6.6) that hides frames; one that delays the track hides none."""
        edts = self._optional(trak, b"edts")
        found = None if edts is None else self._optional(self._children(*edts), b"elst")
        if found is None:
            return
        edit = parse_edit_list(self._data, *found, movie_scale=movie_scale, scale=timescale)
        if edit is None:
            raise NeedsDemuxerError("several edits, or one at another speed")
        _require(edit.begin <= int(pts.min()) and int(pts.max()) < edit.end, "an edit that hides frames")

    def _rotation(self, start: int, end: int) -> int:
        at = start + (52 if self._version(start) else 40)
        matrix = struct.unpack_from(">9i", self._data, at)
        found = rotation_of_matrix(*(matrix[n] for n in (0, 1, 3, 4)))
        _require(found is not None and at + 36 <= end, "an unusual display matrix")
        return found or 0

    def _check_reference(self, dinf: Sequence[tuple[bytes, int, int]]) -> None:
        """Refuse a data reference (8.7.2) to another file."""
        start, end = self._only(dinf, b"dref")
        entries = self._children(start + 8, end)
        _require(len(entries) == 1 and entries[0][0] in (b"url ", b"alis"), "packets in other files")
        _require(self._data[entries[0][1] + 3] & 1 == 1, "packets in other files")  # the flag of a self-reference

    def _entry(self, start: int, end: int) -> tuple[str, bytes, bytes, int | None, bool | None]:
        """Codec, whole `stsd`, payload of the codec's configuration box, matrix and full range of `colr`."""
        _require(self._version(start, 0) == 0, "a sample description of a later version")
        (count,) = struct.unpack_from(">I", self._data, start + 4)
        _require(self._data[start - 4 : start] == b"stsd", "a sample description with a long header")
        entries = self._children(start + 8, end)
        _require(count == len(entries) == 1, "more than one sample description")
        kind, at, stop = entries[0]
        _require(kind in _ENTRIES and at == start + 16, f"a sample entry {kind!r}")
        _require(struct.unpack_from(">H", self._data, at + 6) == (1,), "packets in other files")
        codec, name = _ENTRIES[kind]
        inner = self._children(at - 8 + ENTRY_BYTES, stop)
        _require({one[0] for one in inner} <= _ENTRY_BOXES, "a sample entry with more in it")
        own = self._only(inner, name)
        configuration = self._data[own[0] : own[1]]
        # configurationVersion (ISO/IEC 14496-15, 5.3.3.1 and 8.3.3.1); in av1C behind a marker bit.
        _require(configuration[:1] == (b"\x81" if codec == "av1" else b"\x01"), "another codec configuration")
        matrix, full_range = self._colour(self._optional(inner, b"colr"))
        return codec, self._data[start - 8 : end], configuration, matrix, full_range

    def _colour(self, found: tuple[int, int] | None) -> tuple[int | None, bool | None]:
        """matrix_coefficients and full_range_flag (12.1.5): `nclx` has both, QuickTime's `nclc` has no range, and ICC
        profiles (`prof`) are not read."""
        if found is None:
            return None, None
        kind = self._data[found[0] : found[0] + 4]
        _require(kind in (b"nclx", b"nclc"), "a colour profile")
        (matrix,) = struct.unpack_from(">H", self._data, found[0] + 8)
        return matrix, bool(self._data[found[0] + 10] >> 7) if kind == b"nclx" else None


def _require(condition: bool, what: str) -> None:
    """Refuse the file unless the condition holds; `what` names that which is not read here."""
    if not condition:
        raise NeedsDemuxerError(what)
