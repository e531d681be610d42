"""The MP4 of a stored clip, written without FFmpeg: real times, an edit list, rotation, any size.

Boxes are those of ISO/IEC 14496-12. `mp4.header` writes the MP4s of slices, which need none of this.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Bool, Int64
from streamvid.mp4 import boxes
from streamvid.video.timestamps import decode_times

_WORD: Final = 1 << 32
_UNIT: Final = 1 << 16
_TURNS: Final = {0: (1, 0, 0, 1), 90: (0, 1, -1, 0), 180: (-1, 0, 0, -1), 270: (0, -1, 1, 0)}
"""a, b, c, d of the display matrix (6.2.2) by degrees clockwise."""


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
    """Everything of a clip's MP4 that comes before its packets: `ftyp`, `moov` and the header of `mdat`.

    Args:
        stsd: the sample description box of the track, header included.
        pts: int64 [packets], presentation times in decode order, in ticks from any origin.
        sizes: int64 [packets], in bytes.
        sync: bool [packets], where players may seek to.
        shown: the first and the end of the ticks that players show, as an edit list says it.
        width, height: of decoded frames, in pixels, before rotation.
        rotation: degrees clockwise that stand them upright: 0, 90, 180 or 270.
        timescale: ticks per second.

    Raises:
        ValueError: times or packets too large for the boxes.
    """
    count = len(pts)
    dts = decode_times(pts)
    # What is left of the last packet's time, so that the track reaches to the end of what is shown.
    steps = np.append(np.diff(dts), max(1, shown[1] - int(dts[-1])))
    offsets = pts - dts
    if max(int(steps.max()), int(offsets.max()), int(sizes.max()), timescale) >= _WORD:
        raise ValueError("its packets, or the times between them, are too large for an MP4")
    duration, length = int(steps.sum()), shown[1] - shown[0]

    tables = [stsd, _full(b"stts", _runs(steps))]
    if offsets.any():
        tables.append(_full(b"ctts", _runs(offsets)))
    if not sync.all():
        tables.append(_full(b"stss", _counted(np.flatnonzero(sync) + 1)))
    tables += [_full(b"stsc", _be32([1, 1, count, 1])), _full(b"stsz", _be32([0, count]), _be32(sizes))]

    mvhd = _timed(
        b"mvhd",
        [0, 0, timescale, length],
        struct.pack(">IHHQ", _UNIT, 0x100, 0, 0),
        _matrix(0, width, height),
        bytes(24),
        _be32([2]),
    )
    tkhd = _timed(
        b"tkhd",
        [0, 0, 1, 0, length],
        bytes(16),
        _matrix(rotation, width, height),
        _be32([width << 16, height << 16]),
        flags=3,  # enabled, in the movie
    )
    mdhd = _timed(b"mdhd", [0, 0, timescale, duration], struct.pack(">HH", 0x55C4, 0))  # language: und
    # The movie's clock is the track's, so that the length of the edit is exact. 1.0 is the speed.
    edit = boxes.full_box(b"elst", struct.pack(">IQqI", 1, length, shown[0] - int(dts[0]), _UNIT), version=1)
    hdlr = _full(b"hdlr", bytes(4), b"vide", bytes(12), b"\0")
    dinf = _box(b"dinf", _full(b"dref", _be32([1]), boxes.full_box(b"url ", flags=1)))
    vmhd = boxes.full_box(b"vmhd", bytes(8), flags=1)

    total = int(sizes.sum())
    wide = total > _WORD - (1 << 20) - 64 * count  # more than what all boxes can take is left below 4 GiB

    def moov(first: int) -> bytes:
        place = _full(b"co64", struct.pack(">IQ", 1, first)) if wide else _full(b"stco", _be32([1, first]))
        minf = _box(b"minf", vmhd, dinf, _box(b"stbl", *tables, place))
        return _box(b"moov", mvhd, _box(b"trak", tkhd, _box(b"edts", edit), _box(b"mdia", mdhd, hdlr, minf)))

    ftyp = _box(b"ftyp", b"isom", _be32([0x200]), b"isomiso2mp41")
    mdat = struct.pack(">I4sQ", 1, b"mdat", 16 + total) if wide else struct.pack(">I4s", 8 + total, b"mdat")
    return ftyp + moov(len(ftyp) + len(moov(0)) + len(mdat)) + mdat


def _timed(kind: bytes, fields: list[int], *rest: bytes, flags: int = 0) -> bytes:
    """A box that begins with creation and modification time and ends its numbers with a duration: 64 bits for these
    where 32 do not hold the duration (version 1)."""
    wide = fields[-1] >= _WORD
    numbers = [
        struct.pack(">Q" if wide and at in (0, 1, len(fields) - 1) else ">I", value) for at, value in enumerate(fields)
    ]
    return boxes.full_box(kind, *numbers, *rest, version=int(wide), flags=flags)


def _matrix(rotation: int, width: int, height: int) -> bytes:
    """The display matrix that turns the picture, and moves it back to where it can be seen (6.2.2)."""
    a, b, c, d = _TURNS[rotation]
    x, y = {0: (0, 0), 90: (height, 0), 180: (width, height), 270: (0, width)}[rotation]
    return struct.pack(
        ">9i", a * _UNIT, b * _UNIT, 0, c * _UNIT, d * _UNIT, 0, x * _UNIT, y * _UNIT, 1 << 30
    )  # fmt: skip


def _runs(values: Int64) -> bytes:
    """Values as (count, value) of each run of equals, behind the number of runs."""
    starts = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    return _counted(np.stack([np.diff(np.append(starts, len(values))), values[starts]], axis=1))


def _counted(rows: Int64) -> bytes:
    return _be32([len(rows)]) + _be32(rows)


def _be32(values: npt.ArrayLike) -> bytes:
    return np.asarray(values, dtype=">u4").tobytes()


def _box(kind: bytes, *parts: bytes) -> bytes:
    payload = b"".join(parts)
    return struct.pack(">I4s", 8 + len(payload), kind) + payload


def _full(kind: bytes, *parts: bytes) -> bytes:
    return boxes.full_box(kind, *parts)
