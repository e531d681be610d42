"""Movie fragments of an MP4 (`moof`, ISO/IEC 14496-12, 8.8) as arrays, read strictly; see `streamvid.mp4.reader`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from streamvid.arrays import Bool, Int64
from streamvid.mp4.boxes import iter_boxes
from streamvid.mp4.top_level import require

_NOT_SYNC: Final = 0x0101_0000
"""sample_is_non_sync_sample, and a sample_depends_on of 1 (8.8.3.1)."""
_TRAF: Final = frozenset((b"tfhd", b"tfdt", b"trun", b"sgpd", b"sbgp", b"subs", b"uuid", b"free"))
_TRUN_COLUMNS: Final = (0x100, 0x200, 0x400, 0x800)
"""Flags of sample_duration, sample_size, sample_flags and sample_composition_time_offset, in the order of the table."""
_MAX_SAMPLES: Final = 1 << 20


@dataclass(frozen=True)
class Samples:
    """Samples of a track, in decode order.

    Attributes:
        dts, pts: int64 [samples], in ticks of the track.
        offset, size: int64 [samples], positions in the file and sizes, in bytes.
        sync: bool [samples], the sync samples.
        end: end of the last sample, in ticks.
    """

    dts: Int64
    pts: Int64
    offset: Int64
    size: Int64
    sync: Bool
    end: int

    @classmethod
    def join(cls, parts: Sequence[Samples]) -> Samples:
        """The samples of several fragments."""
        dts, pts, offset, size = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("dts", "pts", "offset", "size")
        )
        return cls(dts, pts, offset, size, np.concatenate([part.sync for part in parts]), parts[-1].end)


@dataclass(frozen=True)
class Defaults:
    """The track's number, and the defaults of `trex` for its samples: duration, size and flags (8.8.3)."""

    track: int
    duration: int
    size: int
    flags: int


def read_defaults(moov: bytes, start: int, end: int, track: int) -> Defaults | None:
    """The defaults for a track in an `mvex` box, whose payload is moov[start:end]; None if there are none, or they are
    invalid."""
    for kind, at, stop in iter_boxes(moov, start, end):
        if kind == b"trex" and stop - at == 24:
            number, description, duration, size, flags = struct.unpack_from(">5I", moov, at + 4)
            if number == track:
                return Defaults(track, duration, size, flags) if description == 1 else None
    return None


def read_fragment(moof: bytes, at: int, defaults: Defaults, clock: int) -> Samples | None:
    """The samples of a track in a fragment; None if there are none.

    Args:
        moof: the payload of the `moof` box.
        at: position of that box in the file.
        clock: end of the track's previous fragment, in ticks.

    Raises:
        NeedsDemuxerError: the fragment is damaged, or has features that are not supported here.
        struct.error, IndexError: a box is too short.
    """
    found: list[Samples] = []
    others = 0
    for kind, start, end in iter_boxes(moof, 0, len(moof)):
        if kind != b"traf":
            continue
        boxes = list(iter_boxes(moof, start, end))
        require((boxes[-1][2] if boxes else start) == end and boxes[0][0] == b"tfhd", "a fragment's broken box")
        require({box[0] for box in boxes} <= _TRAF, "a fragment that is encrypted, or with more in it")
        (head, own) = boxes[0][1], struct.unpack_from(">I", moof, boxes[0][1] + 4)[0] == defaults.track
        if own:
            require(not found, "several parts of a track in a fragment")
            found += _track_fragment(moof, at, boxes, head, defaults, clock, alone=not others)
        others += 1
    return Samples.join(found) if found else None


def _track_fragment(
    moof: bytes,
    at: int,
    boxes: Sequence[tuple[bytes, int, int]],
    head: int,
    defaults: Defaults,
    clock: int,
    *,
    alone: bool,
) -> list[Samples]:
    """The samples of one `traf` (8.8.6 to 8.8.8); `alone`: no other `traf` comes before it."""
    flags = struct.unpack_from(">I", moof, head)[0] & 0xFFFFFF
    fields = struct.Struct(
        ">" + "".join(kind for bit, kind in zip((1, 2, 8, 16, 32), "QIIII", strict=True) if flags & bit)
    )
    values = iter(fields.unpack_from(moof, head + 8))
    base = next(values) if flags & 1 else at
    require(bool(flags & 1) or bool(flags & 0x20000) or alone, "a fragment that lies behind another")
    require(not flags & 2 or next(values) == 1, "a fragment of another description")
    usual = [
        next(values) if flags & bit else default
        for bit, default in ((8, defaults.duration), (16, defaults.size), (32, defaults.flags))
    ]
    for kind, start, _ in boxes:
        if kind == b"tfdt":  # the decode time of the first sample
            (clock,) = struct.unpack_from(">Q" if moof[start] else ">I", moof, start + 4)
            require(clock < 1 << 62, "a time out of range")
    found = []
    following = base
    for kind, start, end in boxes:
        if kind != b"trun":
            continue
        begin, (duration, size, sample_flags, shift) = _run(moof, start, end, (*usual, 0))
        following = following if begin is None else base + begin
        if not len(size):
            continue
        ends = np.cumsum(duration)
        dts = clock + ends - duration
        clock += int(ends[-1])
        offset = following + np.cumsum(size) - size
        following = int(offset[-1] + size[-1])
        found.append(Samples(dts, dts + shift, offset, size, (sample_flags & _NOT_SYNC) == 0, clock))
    return found


def _run(moof: bytes, start: int, end: int, usual: Sequence[int]) -> tuple[int | None, list[Int64]]:
    """A `trun` (8.8.8): where its samples begin, behind the base offset, None for behind the previous run; and a column
    of each of `_TRUN_COLUMNS`, int64 [samples], of `usual` values where the run has none."""
    flags, count = struct.unpack_from(">II", moof, start)
    place, begin, first_flags = start + 8, None, None
    if flags & 1:
        (begin,) = struct.unpack_from(">i", moof, place)
        place += 4
    if flags & 4:
        (first_flags,) = struct.unpack_from(">I", moof, place)
        place += 4
    given = [bit for bit in _TRUN_COLUMNS if flags & bit]
    require(count <= _MAX_SAMPLES and place + 4 * count * len(given) == end, "a run that is not as long as it says")
    table = np.frombuffer(moof, ">u4", count * len(given), place).reshape(count, len(given)).astype(np.int64)
    columns = [
        table[:, given.index(bit)] if bit in given else np.full(count, value, dtype=np.int64)
        for bit, value in zip(_TRUN_COLUMNS, usual, strict=True)
    ]
    if first_flags is not None:
        columns[2][:1] = first_flags
    # Signed, as some files have negative offsets in a box of version 0, too, whose offsets are unsigned.
    columns[3] = np.where(columns[3] >= 1 << 31, columns[3] - (1 << 32), columns[3])
    return begin, columns
