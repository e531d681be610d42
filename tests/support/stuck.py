"""Stand-ins for FFmpeg that hang below Python, as it would: `streamvid.decode.cpu.SliceDecoder`s."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from typing import ClassVar

from streamvid.color.yuv_to_rgb import Planes
from streamvid.decode.cpu import InThreadDecoder, SliceSegment
from streamvid.video.packet_selection import EncodedSlice


class HangsForEver(InThreadDecoder):
    """Never gives a frame of one clip: its thread waits in C for a signal that does not come."""

    clip: ClassVar[str] = "stuck"

    def frames(
        self, encoded: EncodedSlice, segment: SliceSegment | None = None, *, limit_s: float
    ) -> Iterator[tuple[int, Planes]]:
        if encoded.name == self.clip:
            self.hang()
        yield from super().frames(encoded, segment, limit_s=limit_s)

    def hang(self) -> None:
        """Do it."""
        ctypes.CDLL(None).pause()


class HangsOnce(HangsForEver):
    """Only on the first try."""

    hung: ClassVar[threading.Event] = threading.Event()

    def hang(self) -> None:
        """See `HangsForEver`."""
        if not self.hung.is_set():
            self.hung.set()
            super().hang()


class HangsUntilTold(HangsForEver):
    """Until `go`: far too late."""

    go: ClassVar[threading.Event] = threading.Event()

    def hang(self) -> None:
        """See `HangsForEver`."""
        self.go.wait()
