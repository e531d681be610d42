"""The little of ISO/IEC 14496-12 that slicing needs: find the sample description, and write a small MP4 around packets.

The sample description box (`stsd`) is copied verbatim from the packed clip, so nothing here knows codecs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from streamvid.arrays import Int64

TIMESCALE: Final = 1000
"""Ticks per second in the MP4s written here: one frame a millisecond. Real times live in the frame index."""

_VISUAL_SAMPLE_ENTRY_BYTES: Final = 86
"""Box header and fixed fields of a VisualSampleEntry; its configuration boxes follow."""
_CONFIGURATION_BYTES: Final = {b"avcC": 7, b"hvcC": 22, b"av1C": 4}
"""The least that each holds."""
_CONTAINERS: Final = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts")


def boxes(data: bytes | bytearray | memoryview, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """The boxes in data[start:end] as (type, start of payload, end). Stops at the first that does not fit."""
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        payload = start + 8
        if size == 1 and start + 16 <= end:
            (size,) = struct.unpack_from(">Q", data, start + 8)
            payload = start + 16
        elif size == 0:
            size = end - start
        if size < payload - start or start + size > end:
            return
        yield kind, payload, start + size
        start += size


def sample_description(data: bytes | memoryview) -> bytes:
    """The `stsd` box, header included, of the only video track of an MP4.

    Raises:
        ValueError: no such box, or one that describes more than one kind of sample.
    """
    payload, stop = _find(data, b"stsd")
    if payload < 0:
        raise ValueError("no sample description box in the MP4")
    if stop - payload < 8 or struct.unpack_from(">I", data, payload + 4)[0] != 1:
        raise ValueError("the video changes its format midway (more than one sample description)")
    return bytes(data[payload - 8 : stop])


def limit_edit(data: bytearray, seconds: float) -> bool:
    """Shorten the last entry of the edit list, in place, to the time given. False if there is no edit list.

    ISO/IEC 14496-12, 8.6.6: segment_duration is in units of the movie header's timescale.
    """
    edit, _ = _find(data, b"elst")
    movie, _ = _find(data, b"mvhd")
    if edit < 0 or movie < 0:
        return False
    (timescale,) = struct.unpack_from(">I", data, movie + (20 if data[movie] == 1 else 12))
    (count,) = struct.unpack_from(">I", data, edit + 4)
    wide = data[edit] == 1
    last = edit + 8 + (count - 1) * (20 if wide else 12)
    struct.pack_into(">Q" if wide else ">I", data, last, round(seconds * timescale))
    return True


def _find(data: bytes | bytearray | memoryview, name: bytes) -> tuple[int, int]:
    """Start of the payload and end of the first box of that name on the way to the sample table; (-1, -1) if there
    is none."""
    level = [(0, len(data))]
    while level:
        start, end = level.pop()
        for kind, payload, stop in boxes(data, start, end):
            if kind == name:
                return payload, stop
            if kind in _CONTAINERS:
                level.append((payload, stop))
    return -1, -1


def codec_configuration(stsd: bytes, name: bytes) -> bytes:
    """The payload of a box such as `avcC` inside the sample description's only entry.

    Raises:
        ValueError: there is none, or it is too short to be one.
    """
    entry = 16  # box header, version and flags, entry count
    start = entry + _VISUAL_SAMPLE_ENTRY_BYTES
    for kind, payload, end in boxes(stsd, start, len(stsd)):
        if kind == name:
            if end - payload < _CONFIGURATION_BYTES[name]:
                raise ValueError(f"the {name.decode()} box is too short")
            return stsd[payload:end]
    raise ValueError(f"no {name.decode()} box in the sample description")


def coded_size(stsd: bytes) -> tuple[int, int]:
    """Width and height in the sample description's only entry, in pixels (ISO/IEC 14496-12, 12.1.3).

    Raises:
        ValueError: it is too short to have them.
    """
    if len(stsd) < 16 + _VISUAL_SAMPLE_ENTRY_BYTES:
        raise ValueError("the sample description is too short")
    width, height = struct.unpack_from(">HH", stsd, 16 + 32)
    return width, height


def _box(kind: bytes, *parts: bytes) -> bytes:
    payload = b"".join(parts)
    return struct.pack(">I4s", 8 + len(payload), kind) + payload


def full_box(kind: bytes, *parts: bytes, version: int = 0, flags: int = 0) -> bytes:
    """A box that begins with a version and flags (ISO/IEC 14496-12, 4.2)."""
    return _box(kind, struct.pack(">I", version << 24 | flags), *parts)


_UNITY_MATRIX: Final = struct.pack(">9i", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
_FILE_TYPE: Final = _box(b"ftyp", b"isom", struct.pack(">I", 0x200), b"isomiso2mp41")


def _be32(values: npt.ArrayLike) -> bytes:
    return np.asarray(values, dtype=">u4").tobytes()


def visual_sample_description(entry: bytes, configuration: bytes, *, width: int, height: int) -> bytes:
    """A `stsd` box with one VisualSampleEntry (ISO/IEC 14496-12, 12.1.3).

    Args:
        entry: its four-letter code, such as b"vp08".
        configuration: its configuration box, whole.
        width, height: of the coded frames, in pixels.
    """
    fixed = bytes(6) + struct.pack(
        ">H16xHHIIIH32sHH", 1, width, height, 72 << 16, 72 << 16, 0, 1, bytes(32), 24, 0xFFFF
    )
    return full_box(b"stsd", _be32([1]), _box(entry, fixed, configuration))


def composition_offsets(ranks: Int64) -> Int64:
    """Ticks from a packet's decoding to its presentation, if packet *i* is decoded at tick *i* and shown in the
    order of `ranks`.

    Presentation is moved back as a whole until nothing is shown before it is decoded: no offset is negative, and no
        edit list is needed.

    Args:
        ranks: int64 [packets], a permutation of 0 … packets-1: each packet's place in presentation order.
    """
    offsets = ranks - np.arange(len(ranks), dtype=np.int64)
    return np.asarray(offsets - min(0, int(offsets.min(initial=0))), dtype=np.int64)


def header(
    stsd: bytes,
    sizes: Int64,
    *,
    width: int,
    height: int,
    offsets: Int64 | None = None,
    steps: Int64 | None = None,
    positions: Int64 | None = None,
    timescale: int = TIMESCALE,
) -> bytes:
    """Everything of an MP4 that comes before its packets: `ftyp`, `moov` and the header of `mdat`.

    Only the first packet is marked as a sync sample: a slice holds nothing that could be left out, and DALI, which
    seeks between sync samples by comparing decode times with presentation times, can land one too late where frames
    are reordered.

    Args:
        stsd: sample description box of the track, header included.
        sizes: int64 [packets], bytes, in decode order.
        width, height: of the track, in pixels.
        offsets: int64 [packets], ticks from decoding to presentation, none negative; default: all 0.
        steps: int64 [packets], ticks from each packet's decoding to the next; default: 1.
        positions: int64 [packets], where each packet lies in the payload of `mdat`, in bytes; default: one after
            another. Bytes between packets are in the file and belong to no sample.
        timescale: ticks per second.

    Raises:
        ValueError: too large for an MP4 with 32-bit positions.
    """
    count = len(sizes)
    ones = np.ones(count, dtype=np.int64)
    duration = int(steps.sum()) if steps is not None else count

    if steps is None:
        stts = full_box(b"stts", _be32([1, count, 1]))
    else:
        stts = full_box(b"stts", _be32([count]), _be32(np.stack([ones, steps], axis=1)))
    ctts = b""
    if offsets is not None and offsets.any():
        ctts = full_box(b"ctts", _be32([count]), _be32(np.stack([ones, offsets], axis=1)))
        duration += int(offsets.max())
    stss = full_box(b"stss", _be32([1, 1]))
    # Packets side by side are one chunk; packets with bytes between them are a chunk each.
    chunks = np.zeros(1, dtype=np.int64) if positions is None else positions
    stsc = full_box(b"stsc", _be32([1, 1, count if positions is None else 1, 1]))
    stsz = full_box(b"stsz", _be32([0, count]), _be32(sizes))
    mvhd = full_box(
        b"mvhd",
        _be32([0, 0, timescale, duration]),
        struct.pack(">IHHQ", 0x10000, 0x100, 0, 0),
        _UNITY_MATRIX,
        bytes(24),
        _be32([2]),
    )
    tkhd = full_box(
        b"tkhd",
        _be32([0, 0, 1, 0, duration]),
        bytes(16),
        _UNITY_MATRIX,
        _be32([width << 16, height << 16]),
        flags=3,  # enabled, in the movie
    )
    mdhd = full_box(b"mdhd", _be32([0, 0, timescale, duration]), struct.pack(">HH", 0x55C4, 0))  # language: und
    hdlr = full_box(b"hdlr", bytes(4), b"vide", bytes(12), b"\0")
    dinf = _box(b"dinf", full_box(b"dref", _be32([1]), full_box(b"url ", flags=1)))
    vmhd = full_box(b"vmhd", bytes(8), flags=1)

    def moov(first: int) -> bytes:
        stco = full_box(b"stco", _be32([len(chunks)]), _be32(chunks + first))
        stbl = _box(b"stbl", stsd, stts, ctts, stss, stsc, stsz, stco)
        minf = _box(b"minf", vmhd, dinf, stbl)
        return _box(b"moov", mvhd, _box(b"trak", tkhd, _box(b"mdia", mdhd, hdlr, minf)))

    total = int(sizes.sum()) if positions is None else int((positions + sizes).max())
    first = len(_FILE_TYPE) + len(moov(0)) + 8
    if first + total >= 1 << 32:
        raise ValueError(f"{total} bytes of packets do not fit the 32-bit boxes written here")
    return _FILE_TYPE + moov(first) + struct.pack(">I4s", 8 + total, b"mdat")
