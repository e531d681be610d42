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
    """Never gives a frame of clips named `stuck`: its thread waits in C for a signal that does not come."""

    def frames(
        self, encoded: EncodedSlice, segment: SliceSegment | None = None, *, limit_s: float
    ) -> Iterator[tuple[int, Planes]]:
        if encoded.name == "stuck":
            ctypes.CDLL(None).pause()
        yield from super().frames(encoded, segment, limit_s=limit_s)


class HangsUntilTold(InThreadDecoder):
    """Gives frames of clips named `stuck` after `go`: far too late."""

    go: ClassVar[threading.Event] = threading.Event()

    def frames(
        self, encoded: EncodedSlice, segment: SliceSegment | None = None, *, limit_s: float
    ) -> Iterator[tuple[int, Planes]]:
        if encoded.name == "stuck":
            self.go.wait()
        yield from super().frames(encoded, segment, limit_s=limit_s)
