"""The frame index of a clip: one row per packet, in decode order. docs/format.md specifies it."""

from __future__ import annotations

import io
from dataclasses import dataclass
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

NPY_HEADER_BYTES: Final = 128


@dataclass(frozen=True)
class FrameIndex:
    """The packets of one clip in decode order.

    Attributes:
        pts: int64 [packets], presentation time in ticks of the clip's time base; 0 is the first visible frame.
        offset: int64 [packets], position of the packet in the clip's mp4, in bytes.
        size: int64 [packets], in bytes.
        flags: int64 [packets], a sum of RANDOM_ACCESS, DISPOSABLE, LEADING and HIDDEN.
    """

    pts: Int64
    offset: Int64
    size: Int64
    flags: Int64

    def __post_init__(self) -> None:
        for name in ("pts", "offset", "size", "flags"):
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
        return self.pts[self.visible]

    @cached_property
    def keyframes(self) -> Int64:
        """int64 [keyframes]: the numbers of the frames at which a decoder may start, ascending."""
        return np.flatnonzero((self.flags[self.visible] & RANDOM_ACCESS) != 0)

    @cached_property
    def starts(self) -> Int64:
        """int64 [random access packets]: their positions in decode order."""
        return np.flatnonzero((self.flags & RANDOM_ACCESS) != 0)

    def to_npy(self) -> bytes:
        """The index as a .npy file: int64 [packets, 4] after a header of 128 bytes."""
        table = np.stack([self.pts, self.offset, self.size, self.flags], axis=1).astype("<i8")
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, table, version=(1, 0))
        data = buffer.getvalue()
        if len(data) != NPY_HEADER_BYTES + table.nbytes:
            raise AssertionError("NumPy wrote a header of another size than docs/format.md specifies")
        return data
