"""The frame index of a clip: one row per packet, in decode order. docs/format.md specifies it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from streamvid.arrays import Int64

RANDOM_ACCESS: Final = 1
"""A decoder may start here."""
DISPOSABLE: Final = 2
"""No other packet depends on this one."""
LEADING: Final = 4
"""After a random access packet in decode order, before it in presentation order."""
HIDDEN: Final = 8
"""Not displayed."""


@dataclass(frozen=True)
class FrameIndex:
    """The packets of one clip in decode order.

    Attributes:
        pts: int64 [packets], presentation time in ticks of the clip's time base; 0 is the first visible frame.
        offset: int64 [packets], position of the packet in the clip's mp4, in bytes.
        size: int64 [packets], size of the packet in bytes.
        flags: int64 [packets], a sum of RANDOM_ACCESS, DISPOSABLE, LEADING and HIDDEN; other bits are ignored.
        crc32c: int64 [packets], CRC-32C of the packet's bytes; -1, the default, if unknown.
    """

    pts: Int64
    offset: Int64
    size: Int64
    flags: Int64
    crc32c: Int64 = field(default_factory=lambda: np.full(0, -1, dtype=np.int64))

    def __post_init__(self) -> None:
        if not len(self.crc32c):
            object.__setattr__(self, "crc32c", np.full(len(self.pts), -1, dtype=np.int64))
        for name in ("pts", "offset", "size", "flags", "crc32c"):
            column = np.asarray(getattr(self, name), dtype=np.int64)
            if column.shape != (len(self.pts),):
                raise ValueError(f"frame index: {name} has shape {column.shape}, pts has {len(self.pts)} rows")
            object.__setattr__(self, name, column)

    def __len__(self) -> int:
        return len(self.pts)

    @cached_property
    def visible(self) -> Int64:
        """int64 [frames]: frame number → position of its packet in decode order."""
        hidden = (self.flags & HIDDEN) != 0
        if not hidden.any():
            return np.argsort(self.pts, kind="stable")
        shown = np.flatnonzero(~hidden)
        return shown[np.argsort(self.pts[shown], kind="stable")]

    @cached_property
    def frame_pts(self) -> Int64:
        """int64 [frames]: presentation time of each visible frame in ticks, ascending."""
        return _read_only(self.pts[self.visible])

    @cached_property
    def keyframes(self) -> Int64:
        """int64 [keyframes]: the numbers of the frames at which a decoder may start, ascending."""
        return _read_only(np.flatnonzero((self.flags[self.visible] & RANDOM_ACCESS) != 0))

    @cached_property
    def starts(self) -> Int64:
        """int64 [random access packets]: their positions in decode order."""
        return np.flatnonzero((self.flags & RANDOM_ACCESS) != 0)


def _read_only(array: Int64) -> Int64:
    """The array, which the functions of users see and must not change: an index is kept for later samples."""
    array.setflags(write=False)
    return array
