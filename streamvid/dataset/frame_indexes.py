"""A clip's frame index, read from its shard's tar, where it lies beside the video: ``<key>.frames.npy``."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Final

import numpy as np

from streamvid.arrays import Bool, Int64, UInt8
from streamvid.dataset.clip_table import ClipTable, Int32
from streamvid.dataset.shard_rows import MAX_TICKS
from streamvid.video.frame_index import HIDDEN, NPY_HEADER_BYTES, FrameIndex

INDEX_BYTES: Final = 256 << 20
"""Memory for the frame indexes used last, per dataset and process, in bytes."""
_BYTES_PER_PACKET: Final = 48
_BYTES_PER_INDEX: Final = 2000
_MAX_FLAGS: Final = 15


def memory_of(index: FrameIndex) -> int:
    """About how many bytes a frame index takes in memory, with the arrays that it derives and keeps."""
    return _BYTES_PER_INDEX + _BYTES_PER_PACKET * len(index)


def parse_index(data: UInt8, clips: ClipTable, row: int) -> FrameIndex:
    """A clip's frame index, validated against its row; docs/format.md has the rules.

    Args:
        data: uint8, the file.
        clips: the dataset's rows.
        row: the clip.

    Raises:
        ValueError: it is damaged. Says how.
    """
    packets = int(clips.packets[row])
    if len(data) != NPY_HEADER_BYTES + 32 * packets:
        raise ValueError(f"it has {len(data)} bytes, {packets} packets take {NPY_HEADER_BYTES + 32 * packets}")
    if data[:NPY_HEADER_BYTES].tobytes() != _npy_header(packets):
        raise ValueError(f"its .npy header is not that of int64 [{packets}, 4]")
    table = data[NPY_HEADER_BYTES:].view("<i8").reshape(packets, 4)
    pts, offset, size, flags = np.ascontiguousarray(table.T, dtype=np.int64)
    for what, good in packet_rules(pts, offset, size, flags, int(clips.mp4_size[row])).items():
        if not good.all():
            raise ValueError(what)
    if np.count_nonzero((flags & HIDDEN) == 0) != clips.frames[row]:
        raise ValueError("it has not as many visible packets as frames")
    return FrameIndex(pts, offset, size, flags)


def packet_rules(
    pts: Int64, offset: Int64, size: Int64 | Int32, flags: Int64 | UInt8, mp4_size: Int64 | int
) -> dict[str, Bool]:
    """The rules for packets of a frame index: the message for a violation → bool [packets], which packets are valid.

    Args:
        pts, offset, size, flags: [packets], as in `FrameIndex`.
        mp4_size: bytes of the mp4, of each packet's clip or of the one clip.
    """
    visible = (flags & HIDDEN) == 0
    return {
        "a packet does not lie within the mp4": (
            # Not offset + size, which may overflow int64.
            (offset >= 0) & (size >= 1) & (offset <= mp4_size) & (size <= mp4_size - offset)
        ),
        "a packet has an unknown flag": (flags >= 0) & (flags <= _MAX_FLAGS),
        "a packet's time is out of range": (pts >= -MAX_TICKS) & (pts <= MAX_TICKS),
        "a visible packet comes before time 0": ~visible | (pts >= 0),
    }


@lru_cache(maxsize=4096)
def _npy_header(packets: int) -> bytes:
    """The header as NumPy writes it. To compare it takes a hundredth of the time of parsing."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<i8", "fortran_order": False, "shape": (packets, 4)})
    return stream.getvalue()
