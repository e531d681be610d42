"""The sample tables of an MP4 or MOV file (`moov`) as arrays, read without a demuxer, and strictly.

Most packed files are not fragmented, and have one video track with one sample description, tables that agree with each
other and with the file, and an edit list that hides nothing. For these, `read_track` returns the same as FFmpeg's
demuxer, in half the time. All other files, and unknown boxes, are refused with `NeedsDemuxerError`, since files may be
hostile and FFmpeg defines their meaning. For an index by tables, more features are supported. Boxes and sections are
those of ISO/IEC 14496-12.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from streamvid.arrays import Bool, Int64
from streamvid.mp4.boxes import OpenFile, display_matrix, iter_boxes, read_timescale, rotation_of_matrix
from streamvid.mp4.edit_list import parse_edit_list
from streamvid.mp4.fragments import Samples, read_defaults, read_fragment
from streamvid.mp4.sample_entry import ENTRY_BYTES, codec_of_esds, mjpeg_sample_description
from streamvid.mp4.top_level import NeedsDemuxerError, TopLevel, read_top_level, require

_MAX_CONSTANT_SIZE: Final = 1 << 20
"""Packets if all have one size: no table's length bounds their number then."""
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
_MORE_ENTRIES: Final = (b"vp09", b"mp4v", b"jpeg")
_UNITY: Final = display_matrix()
_ENTRY_BOXES: Final = frozenset((b"avcC", b"hvcC", b"av1C", b"pasp", b"colr", b"btrt", b"fiel", b"vpcC", b"esds"))


@dataclass(frozen=True)
class VideoTrack:
    """The only video track of an MP4 or MOV file.

    Attributes:
        codec: "h264", "hevc" or "av1"; with `more`, also "vp9", "mpeg4" or "mjpeg".
        stsd: its whole sample description box, with one entry.
        configuration: the payload of the codec's configuration box in `stsd`; empty for the codecs of `more`.
        matrix, full_range: from the entry's `colr` box: ITU-T H.273's number of the matrix, and whether levels go from
            0 to 255; None if it does not have them.
        rotation: one of `boxes.ROTATIONS`.
        timescale: ticks per second.
        pts: int64 [packets], distinct presentation times in decode order, in ticks from any origin.
        offset: int64 [packets], positions in the file, ascending, without overlap.
        size: int64 [packets], sizes in bytes, above 0.
        sync: bool [packets], the sync samples (8.6.2), including the first packet.
        hidden: bool [packets], the packets that an edit list hides.
        last_duration: duration of the last packet in decode order, in ticks; 0 if unknown.
        has_audio: whether the file also has an audio track.
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
    hidden: Bool
    last_duration: int
    has_audio: bool


def read_track(file: OpenFile, *, more: bool = False) -> VideoTrack:
    """Read the video track's tables.

    Args:
        file: an MP4 or MOV file, open for reading.
        more: also support features that packing leaves to FFmpeg: fragments, edits that hide frames, negative
            composition offsets, VP9, MPEG-4 and Motion JPEG.

    Raises:
        NeedsDemuxerError: the file is no MP4 or MOV, or has features that are not supported here.
        OSError: it cannot be read.
    """
    top = read_top_level(file, file.seek(0, os.SEEK_END), fragments=more)
    try:
        return _Movie(top.moov, more).track(top)
    except (struct.error, IndexError) as error:
        raise NeedsDemuxerError("a box that is too short") from error


class _Movie:
    """Parser of a `moov` box.

    Args:
        moov: the box's payload.
        more: as in `read_track`.
    """

    def __init__(self, moov: bytes, more: bool) -> None:
        self._data, self._more = moov, more

    def track(self, file: TopLevel) -> VideoTrack:
        """See `read_track`."""
        top = self._children(0, len(self._data))
        kinds = [kind for kind, _, _ in top]
        refused = _NOT_IN_MOOV - {b"mvex"} if self._more else _NOT_IN_MOOV
        require(not refused.intersection(kinds), "fragments, or a moov that is compressed or encrypted")
        mvex = self._optional(top, b"mvex")
        require(bool(mvex) or not file.fragments, "fragments that are not announced")
        start, end = self._only(top, b"mvhd")
        wide = self._version(start)
        matrix_at = start + (48 if wide else 36)
        is_unity = self._data[matrix_at : matrix_at + 36] == _UNITY
        require(is_unity and end - start >= 100, "a movie's matrix")
        movie_scale = read_timescale(self._data, start)

        videos, handlers = [], set()
        for kind, start, end in top:
            if kind == b"trak":
                trak = self._children(start, end)
                mdia = self._children(*self._only(trak, b"mdia"))
                handler = self._data[self._only(mdia, b"hdlr")[0] + 8 :][:4]
                handlers.add(handler)
                require(handler == b"vide" or handler in _OTHER_TRACKS, f"a track of kind {handler!r}")
                if handler == b"vide":
                    videos.append((trak, mdia))
        require(len(videos) == 1, f"{len(videos)} video tracks")
        trak, mdia = videos[0]
        minf = self._children(*self._only(mdia, b"minf"))
        self._check_reference(self._children(*self._only(minf, b"dinf")))
        stbl = self._children(*self._only(minf, b"stbl"))
        require(not _NOT_IN_STBL.intersection(kind for kind, _, _ in stbl), "packed or encrypted tables")

        start, _ = self._only(mdia, b"mdhd")
        self._version(start)
        timescale = read_timescale(self._data, start)
        require(timescale > 0 and movie_scale > 0, "a timescale of none")

        size = self._sizes(*self._only(stbl, b"stsz"), least=0 if mvex else 1)
        parts = [self._samples(stbl, size)] if len(size) else []
        if mvex:
            parts += self._fragments(*mvex, self._only(trak, b"tkhd")[0], file, parts[0].end if parts else 0)
        require(bool(parts), "no packets")
        found = Samples.join(parts)
        steps = np.diff(found.dts, append=found.end)
        require(int(steps.max()) < 1 << 31, "a gap that no table of an MP4 can have")
        rises = mvex is None or bool((steps[:-1] > 0).all())
        require(rises, "fragments in another order than their times, of which FFmpeg hides some")
        require(bool(found.sync[0]) and int(found.size.min()) > 0, "a start that is no key frame, or an empty packet")
        require(len(np.unique(found.pts)) == len(found.pts), "frames that are shown at the same time")
        _check_places(found.offset, found.size, file.media)
        needed, hidden = self._edited(trak, found, timescale, movie_scale, fragmented=mvex is not None)
        return VideoTrack(
            *self._entry(*self._only(stbl, b"stsd")),
            rotation=self._rotation(*self._only(trak, b"tkhd")),
            timescale=timescale,
            pts=found.pts[needed],
            offset=found.offset[needed],
            size=found.size[needed],
            sync=found.sync[needed],
            hidden=hidden,
            last_duration=int(np.append(found.dts[1:], found.end)[needed][-1] - found.dts[needed][-1]),
            has_audio=b"soun" in handlers,
        )

    def _samples(self, stbl: Sequence[tuple[bytes, int, int]], size: Int64) -> Samples:
        """The samples of the tables, given their sizes."""
        steps = self._steps(*self._only(stbl, b"stts"), len(size))
        dts = np.cumsum(steps) - steps
        pts = dts + self._composition_offsets(stbl, len(size))
        return Samples(dts, pts, self._offsets(stbl, size), size, self._sync(stbl, len(size)), int(steps.sum()))

    def _fragments(self, start: int, end: int, tkhd: int, file: TopLevel, clock: int) -> Iterator[Samples]:
        """The samples of the fragments, which follow the tables' samples at the time `clock`."""
        (number,) = struct.unpack_from(">I", self._data, tkhd + (20 if self._version(tkhd) else 12))
        defaults = read_defaults(self._data, start, end, number)
        if defaults is None:
            raise NeedsDemuxerError("fragments of another track")
        for at, moof in file.fragments:
            if (found := read_fragment(moof, at, defaults, clock)) is not None:
                clock = found.end
                yield found

    def _children(self, start: int, end: int) -> list[tuple[bytes, int, int]]:
        """(type, start of payload, end) of the boxes in data[start:end], which they must fill."""
        found = list(iter_boxes(self._data, start, end))
        require((found[-1][2] if found else start) == end, "a box in a box that does not fit")
        return found

    def _only(self, boxes: Sequence[tuple[bytes, int, int]], name: bytes) -> tuple[int, int]:
        found = self._optional(boxes, name)
        if found is None:
            raise NeedsDemuxerError(f"no box {name!r}")
        return found

    def _optional(self, boxes: Sequence[tuple[bytes, int, int]], name: bytes) -> tuple[int, int] | None:
        found = [(start, end) for kind, start, end in boxes if kind == name]
        require(len(found) <= 1, f"several boxes {name!r}")
        return found[0] if found else None

    def _version(self, start: int, most: int = 1) -> int:
        require(self._data[start] <= most, "a box of a later version")
        return self._data[start]

    def _table(self, start: int, end: int, columns: int, dtype: str = ">u4") -> Int64:
        """int64 [rows, columns]: the table of a full box, after its number of rows; it must fill the box."""
        (count,) = struct.unpack_from(">I", self._data, start + 4)
        width = np.dtype(dtype).itemsize * columns
        require(start + 8 + count * width == end, "a table that is not as long as it says")
        rows = np.frombuffer(self._data, dtype=dtype, count=count * columns, offset=start + 8)
        return np.asarray(rows, dtype=np.int64).reshape(count, columns)

    def _sizes(self, start: int, end: int, *, least: int) -> Int64:
        """int64 [packets]: `stsz` (8.7.3.2)."""
        constant, count = struct.unpack_from(">II", self._data, start + 4)
        if constant:
            require(end - start == 12 and count <= _MAX_CONSTANT_SIZE, "very many packets of one size")
            sizes = np.full(count, constant, dtype=np.int64)
        else:
            sizes = self._table(start + 4, end, 1)[:, 0]
        require(len(sizes) >= least and int(sizes.max(initial=0)) < 1 << 31, "no packets, or huge ones")
        require(int(sizes.min(initial=1)) > 0, "empty packets")
        return sizes

    def _steps(self, start: int, end: int, packets: int) -> Int64:
        """int64 [packets], ticks from decoding to decoding: `stts` (8.6.1.2)."""
        runs = self._table(start, end, 2)
        require(int(runs[:, 0].sum()) == packets and int(runs[:, 1].max()) < 1 << 31, "times of other packets")
        return np.repeat(runs[:, 1], runs[:, 0])

    def _composition_offsets(self, stbl: Sequence[tuple[bytes, int, int]], packets: int) -> Int64:
        """int64 [packets], ticks from decoding to presentation: `ctts` (8.6.1.3)."""
        found = self._optional(stbl, b"ctts")
        if found is None:
            return np.zeros(packets, dtype=np.int64)
        self._version(found[0])
        runs = self._table(*found, 2)
        # Offsets of version 1 are signed, but some files have negative ones in version 0.
        negative = runs[:, 1] >= 1 << 31
        require(int(runs[:, 0].sum()) == packets, "times of other packets")
        require(self._more or not negative.any(), "a negative composition offset")
        return np.repeat(np.where(negative, runs[:, 1] - (1 << 32), runs[:, 1]), runs[:, 0])

    def _sync(self, stbl: Sequence[tuple[bytes, int, int]], packets: int) -> Bool:
        """bool [packets]: `stss` (8.6.2)."""
        found = self._optional(stbl, b"stss")
        if found is None:
            return np.ones(packets, dtype=bool)
        numbers = self._table(*found, 1)[:, 0]
        require(len(numbers) > 0 and numbers[0] == 1, "a start that is no key frame")
        require(bool(np.all(np.diff(numbers) > 0)) and numbers[-1] <= packets, "key frames out of order")
        sync = np.zeros(packets, dtype=bool)
        sync[numbers - 1] = True
        return sync

    def _offsets(self, stbl: Sequence[tuple[bytes, int, int]], size: Int64) -> Int64:
        """int64 [packets], positions in the file: `stsc` and `stco` or `co64` (8.7.4, 8.7.5).

        Args:
            size: int64 [packets], sizes in bytes.
        """
        narrow, wide = self._optional(stbl, b"stco"), self._optional(stbl, b"co64")
        require((narrow is None) != (wide is None), "no chunk offsets, or two boxes of them")
        chunks = self._table(*narrow, 1)[:, 0] if narrow else self._table(*(wide or (0, 0)), 1, ">u8")[:, 0]
        first, per_chunk, description = self._table(*self._only(stbl, b"stsc"), 3).T
        require(len(first) > 0 and first[0] == 1 and int(first[-1]) <= len(chunks), "chunks that are not there")
        require(bool(np.all(np.diff(first) > 0)) and bool(np.all(description == 1)), "chunks of another description")
        runs = np.diff(np.append(first, len(chunks) + 1))
        require(int(per_chunk.min()) > 0 and int((runs * per_chunk).sum()) == len(size), "chunks of other packets")
        counts = np.repeat(per_chunk, runs)
        require(int(chunks.min()) >= 0 and int(chunks.max()) < 1 << 62, "chunks that are not there")
        ends = np.cumsum(counts)
        before = np.cumsum(size) - size
        return np.asarray(np.repeat(chunks - before[ends - counts], counts) + before, dtype=np.int64)

    def _edited(
        self,
        trak: Sequence[tuple[bytes, int, int]],
        found: Samples,
        timescale: int,
        movie_scale: int,
        *,
        fragmented: bool,
    ) -> tuple[slice, Bool]:
        """The packets that the frames shown by an edit list (8.6.6) need, and which of these it hides; none if it only
        delays the track."""
        pts = found.pts
        every = slice(0, len(pts)), np.zeros(len(pts), dtype=bool)
        edts = self._optional(trak, b"edts")
        box = None if edts is None else self._optional(self._children(*edts), b"elst")
        if box is None:
            return every
        edit = parse_edit_list(self._data, *box, movie_scale=movie_scale, scale=timescale)
        if edit is None:
            raise NeedsDemuxerError("several edits, or one at another speed")
        shown = (pts >= edit.begin) & ((pts < edit.end) | (fragmented and edit.end == edit.begin))
        if shown.all():
            return every
        require(self._more and not fragmented and bool(shown.any()), "an edit that hides frames")
        # From the last key frame on that precedes, in decode order and in time, all frames that are shown.
        keys = np.flatnonzero(found.sync)
        before = keys[(keys <= np.argmax(shown)) & (pts[keys] <= pts[shown].min())]
        require(len(before) > 0, "no key frame before what an edit shows")
        needed = slice(int(before[-1]), int(np.flatnonzero(shown)[-1]) + 1)
        return needed, ~shown[needed]

    def _rotation(self, start: int, end: int) -> int:
        at = start + (52 if self._version(start) else 40)
        matrix = struct.unpack_from(">9i", self._data, at)
        found = rotation_of_matrix(*(matrix[n] for n in (0, 1, 3, 4)))
        require(found is not None and at + 36 <= end, "an unusual display matrix")
        return found or 0

    def _check_reference(self, dinf: Sequence[tuple[bytes, int, int]]) -> None:
        """Refuse a data reference (8.7.2) to another file."""
        start, end = self._only(dinf, b"dref")
        entries = self._children(start + 8, end)
        require(len(entries) == 1 and entries[0][0] in (b"url ", b"alis"), "packets in other files")
        require(self._data[entries[0][1] + 3] & 1 == 1, "packets in other files")  # the flag of a self-reference

    def _entry(self, start: int, end: int) -> tuple[str, bytes, bytes, int | None, bool | None]:
        """Codec, whole `stsd`, payload of the codec's configuration box, matrix and full range of `colr`."""
        require(self._version(start, 0) == 0, "a sample description of a later version")
        (count,) = struct.unpack_from(">I", self._data, start + 4)
        require(self._data[start - 4 : start] == b"stsd", "a sample description with a long header")
        entries = self._children(start + 8, end)
        require(count == len(entries) == 1, "more than one sample description")
        kind, at, stop = entries[0]
        require(kind in _ENTRIES or (self._more and kind in _MORE_ENTRIES), f"a sample entry {kind!r}")
        require(at == start + 16, "a sample entry with a long header")
        require(struct.unpack_from(">H", self._data, at + 6) == (1,), "packets in other files")
        inner = self._children(at - 8 + ENTRY_BYTES, stop)
        require({box[0] for box in inner} <= _ENTRY_BOXES, "a sample entry with more in it")
        stsd, colour = self._data[start - 8 : end], self._colour(self._optional(inner, b"colr"))
        if kind in _MORE_ENTRIES:
            codec = "vp9"
            if kind == b"mp4v":
                own = self._only(inner, b"esds")
                codec = codec_of_esds(self._data[own[0] : own[1]])
                require(bool(codec), "another codec")
            elif kind == b"jpeg":
                codec, stsd = "mjpeg", mjpeg_sample_description(stsd)
            return codec, stsd, b"", *colour
        codec, name = _ENTRIES[kind]
        own = self._only(inner, name)
        configuration = self._data[own[0] : own[1]]
        # configurationVersion (ISO/IEC 14496-15, 5.3.3.1 and 8.3.3.1); in av1C after a marker bit.
        require(configuration[:1] == (b"\x81" if codec == "av1" else b"\x01"), "another codec configuration")
        return codec, stsd, configuration, *colour

    def _colour(self, found: tuple[int, int] | None) -> tuple[int | None, bool | None]:
        """matrix_coefficients and full_range_flag (12.1.5): `nclx` has both, QuickTime's `nclc` has no range, and ICC
        profiles (`prof`) are not read."""
        if found is None:
            return None, None
        kind = self._data[found[0] : found[0] + 4]
        require(kind in (b"nclx", b"nclc"), "a colour profile")
        (matrix,) = struct.unpack_from(">H", self._data, found[0] + 8)
        return matrix, bool(self._data[found[0] + 10] >> 7) if kind == b"nclx" else None


def _check_places(offset: Int64, size: Int64, media: Int64) -> None:
    """Refuse packets that are not in a file's `mdat` boxes, in ascending order."""
    require(bool(np.all(offset[1:] >= offset[:-1] + size[:-1])), "packets out of order, or that overlap")
    box = np.searchsorted(media[:, 0], offset, side="right") - 1
    inside = (box >= 0) & (offset + size <= media[box, 1])
    require(bool(inside.all()), "packets that are not there")
