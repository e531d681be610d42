"""Stand-ins for an FFmpeg that hangs: `streamvid.decode.cpu.SliceDecoder`s."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from streamvid.color.picture import Picture
from streamvid.decode.cpu import InThreadDecoder
from streamvid.decode.slice_frames import SliceSegment
from streamvid.video.packet_selection import EncodedSlice

_go = threading.Event()
_stuck: list[threading.Thread] = []


class Hangs(InThreadDecoder):
    """Gives no frame of one clip before `wake_all`."""

    clip: ClassVar[str] = "stuck"

    def frames(
        self, encoded: EncodedSlice, segment: SliceSegment | None = None, **options: Any
    ) -> Iterator[tuple[int, Picture]]:
        if encoded.name == self.clip:
            self.hang()
        yield from super().frames(encoded, segment, **options)

    def hang(self) -> None:
        """Do it."""
        _stuck.append(threading.current_thread())
        _go.wait()


class HangsOnce(Hangs):
    """Only on the first try of all."""

    def hang(self) -> None:
        """See `Hangs`."""
        if not _stuck:
            super().hang()


def wake_all() -> None:
    """Let the threads that hang go on, far too late, and end."""
    _go.set()
    for thread in _stuck:
        thread.join(timeout=120)
        assert not thread.is_alive()
    _stuck.clear()
    _go.clear()


@contextmanager
def woken() -> Iterator[None]:
    """Leaves no thread that hangs."""
    try:
        yield
    finally:
        wake_all()
