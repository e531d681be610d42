"""Builds the header of an MP4 around given packets without FFmpeg (ISO/IEC 14496-12): for stored clips, with real
times, an edit list and rotation; and for slices, small MP4s in memory with the packets of one sample.

Packets follow the header in decode order.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from streamvid.arrays import Bool, Int64
from streamvid.mp4.boxes import be32, box, display_matrix, full_box

SLICE_TIMESCALE: Final = 1000
"""Ticks per second of slices, a frame each: decoders must only keep their order. Real times are in the frame index."""
_WORD: Final = 1 << 32
_BOX_BYTES: Final = 1 << 20
_BOX_BYTES_PER_PACKET: Final = 64
"""More than the header takes: with positions below `_WORD` less these, 32 bits hold them."""


def slice_header(
    stsd: bytes, sizes: Int64, *, width: int, height: int, offsets: Int64 | None = None, positions: Int64 | None = None
) -> bytes:
    """The part of a slice's MP4 before its packets: `ftyp`, `moov` and the header of `mdat`.

    Only the first packet is marked as a sync sample, because no packet of a slice can be skipped, and DALI, which seeks
    between sync samples by comparing decode times with presentation times, can land one too late if frames are
    reordered.

    Args:
        stsd: sample description box of the track, header included.
        sizes: int64 [packets], sizes in bytes, in decode order.
        width, height: of the track, in pixels.
        offsets: int64 [packets], ticks from decoding to presentation, none negative; default: all 0.
        positions: int64 [packets], position of each packet in the payload of `mdat`, in bytes; default: contiguous.
            Bytes between packets are in the file, but belong to no sample.
    """
    count = len(sizes)
    duration = count
    tables = [stsd, full_box(b"stts", be32([1, count, 1]))]
    if offsets is not None and offsets.any():
        rows = np.stack([np.ones(count, dtype=np.int64), offsets], axis=1)
        tables.append(full_box(b"ctts", _counted(rows)))
        duration += int(offsets.max())
    tables.append(full_box(b"stss", be32([1, 1])))
    return _header(tables, sizes, (width, height), timescale=SLICE_TIMESCALE, duration=duration, positions=positions)


def composition_offsets(display_order: Int64) -> Int64:
    """Ticks from a packet's decoding to its presentation, if packet *i* is decoded at tick *i*.

    All presentation times are delayed until no frame is shown before it is decoded, so that no offset is negative, and
    no edit list is needed.

    Args:
        display_order: int64 [packets], a permutation of 0 … packets-1: each packet's rank by presentation time.
    """
    offsets = display_order - np.arange(len(display_order), dtype=np.int64)
    return np.asarray(offsets - min(0, int(offsets.min(initial=0))), dtype=np.int64)


def clip_header(
    stsd: bytes,
    *,
    pts: Int64,
    sizes: Int64,
    sync: Bool,
    shown: tuple[int, int],
    width: int,
    height: int,
    rotation: int,
    timescale: int,
) -> bytes:
    """The part of a clip's MP4 before its packets: `ftyp`, `moov` and the header of `mdat`.

    Args:
        stsd: the sample description box of the track, header included.
        pts: int64 [packets], presentation times in decode order, in ticks from any origin.
        sizes: int64 [packets], in bytes.
        sync: bool [packets], the sync samples, which players may seek to.
        shown: begin and end of the edit, in ticks of `pts`: players show the frames with begin <= pts < end.
        width, height: of decoded frames, in pixels, before rotation.
        rotation: one of `boxes.ROTATIONS`.
        timescale: ticks per second.

    Raises:
        ValueError: times or packets are too large for the boxes.
    """
    dts = decode_times(pts)
    # The last step reaches to the end of the edit, so that the track is not shorter than what is shown of it.
    steps = np.append(np.diff(dts), max(1, shown[1] - int(dts[-1])))
    offsets = pts - dts
    if max(int(steps.max()), int(offsets.max()), int(sizes.max()), timescale) >= _WORD:
        raise ValueError("its packets, or the times between them, are too large for an MP4")
    tables = [stsd, full_box(b"stts", _run_lengths(steps))]
    if offsets.any():
        tables.append(full_box(b"ctts", _run_lengths(offsets)))
    if not sync.all():
        tables.append(full_box(b"stss", _counted(np.flatnonzero(sync) + 1)))
    # The movie's timescale is the track's, so that the length of the edit is exact. The media rate is 1.0.
    length = shown[1] - shown[0]
    edit = full_box(b"elst", struct.pack(">IQqI", 1, length, shown[0] - int(dts[0]), 1 << 16), version=1)
    return _header(
        tables,
        sizes,
        (width, height),
        timescale=timescale,
        duration=int(steps.sum()),
        shown=length,
        rotation=rotation,
        edts=box(b"edts", edit),
    )


def decode_times(pts: Int64) -> Int64:
    """Strictly ascending decode times, none after the packet's presentation time.

    They are the sorted presentation times, all of them earlier by the delay that the reordering needs.

    Args:
        pts: int64 [packets], presentation times in decode order.
    """
    ordered = np.sort(pts)
    ramp = np.arange(len(pts), dtype=np.int64)
    rising = np.maximum.accumulate(ordered - ramp) + ramp
    return np.asarray(rising - max(0, int((rising - pts).max())), dtype=np.int64)


def _header(
    tables: list[bytes],
    sizes: Int64,
    size: tuple[int, int],
    *,
    timescale: int,
    duration: int,
    shown: int | None = None,
    rotation: int = 0,
    edts: bytes = b"",
    positions: Int64 | None = None,
) -> bytes:
    """`ftyp`, `moov` and the header of `mdat` of a movie with one video track.

    Args:
        tables: boxes of the sample table before `stsc`.
        sizes: int64 [packets], in bytes.
        size: width and height, in pixels.
        timescale: ticks per second of movie and track.
        duration: duration of the media, in ticks.
        shown: duration of the part that an edit list shows, in ticks; default: all.
        rotation: one of `boxes.ROTATIONS`.
        edts: the box of the edit list, or b"".
        positions: as in `slice_header`.
    """
    width, height = size
    shown = duration if shown is None else shown
    count = len(sizes)
    # Contiguous packets are one chunk; packets with bytes between them are a chunk each.
    chunks = np.zeros(1, dtype=np.int64) if positions is None else positions
    total = int(sizes.sum()) if positions is None else int((positions + sizes).max())
    wide = total > _WORD - _BOX_BYTES - _BOX_BYTES_PER_PACKET * count

    mvhd = _header_box(
        b"mvhd",
        [0, 0, timescale, shown],
        struct.pack(">IHHQ", 1 << 16, 1 << 8, 0, 0),  # rate and volume
        display_matrix(),
        bytes(24),
        struct.pack(">I", 2),  # next_track_ID
    )
    tkhd = _header_box(
        b"tkhd",
        [0, 0, 1, 0, shown],
        bytes(16),
        display_matrix(rotation, width=width, height=height),
        struct.pack(">II", width << 16, height << 16),
        flags=3,  # enabled, in the movie
    )
    mdhd = _header_box(b"mdhd", [0, 0, timescale, duration], struct.pack(">HH", 0x55C4, 0))  # language: und
    hdlr = full_box(b"hdlr", bytes(4), b"vide", bytes(12), b"\0")
    dinf = box(b"dinf", full_box(b"dref", struct.pack(">I", 1), full_box(b"url ", flags=1)))
    vmhd = full_box(b"vmhd", bytes(8), flags=1)
    stsc = full_box(b"stsc", struct.pack(">4I", 1, 1, count if positions is None else 1, 1))
    stsz = full_box(b"stsz", struct.pack(">II", 0, count), be32(sizes))

    # Chunk offsets are the last bytes of `moov`, so that they can be filled in when its size is known.
    width_of_offset = 8 if wide else 4
    table_bytes = width_of_offset * len(chunks)
    chunk_box = full_box(b"co64" if wide else b"stco", struct.pack(">I", len(chunks)), bytes(table_bytes))
    minf = box(b"minf", vmhd, dinf, box(b"stbl", *tables, stsc, stsz, chunk_box))
    moov = box(b"moov", mvhd, box(b"trak", tkhd, edts, box(b"mdia", mdhd, hdlr, minf)))

    ftyp = box(b"ftyp", b"isom", struct.pack(">I", 0x200), b"isomiso2mp41")
    mdat = struct.pack(">I4sQ", 1, b"mdat", 16 + total) if wide else struct.pack(">I4s", 8 + total, b"mdat")
    first = len(ftyp) + len(moov) + len(mdat)
    return ftyp + moov[:-table_bytes] + (chunks + first).astype(f">u{width_of_offset}").tobytes() + mdat


def _header_box(kind: bytes, fields: list[int], *rest: bytes, flags: int = 0) -> bytes:
    """A box `mvhd`, `tkhd` or `mdhd`, whose fields begin with creation and modification time and end with a duration.
    These three have 64 bits (version 1) if 32 are not enough for the duration."""
    wide = fields[-1] >= _WORD
    middle = f"{len(fields) - 3}I"
    layout = f">QQ{middle}Q" if wide else f">II{middle}I"
    return full_box(kind, struct.pack(layout, *fields), *rest, version=int(wide), flags=flags)


def _run_lengths(values: Int64) -> bytes:
    """A table of (count, value) for every run of equal values, preceded by its number of rows."""
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return _counted(np.stack([np.diff(np.append(starts, len(values))), values[starts]], axis=1))


def _counted(rows: Int64) -> bytes:
    return struct.pack(">I", len(rows)) + be32(rows)
