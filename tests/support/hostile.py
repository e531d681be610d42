"""Replacements of `streamvid.packing.run_local.process_source` in worker processes, which crash, hang or fail."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamvid.decode import isolated
from streamvid.errors import VideoError
from streamvid.packing.options import PreparedClip, RejectedCut
from streamvid.packing.process_source import process_source
from streamvid.packing.source_video import SourceVideo

Prepared = list[PreparedClip | RejectedCut]


def crash_on_two(source: SourceVideo, place: Path, *rest: Any) -> Prepared:
    """Die as a process does in which FFmpeg follows a wild pointer."""
    if "two" in source.name:
        os.kill(os.getpid(), signal.SIGSEGV)
    return process_source(source, place, *rest)


def killed_at_two(source: SourceVideo, place: Path, *rest: Any) -> Prepared:
    """End once as a process does that the kernel kills for want of memory, with a file half written."""
    once = place.parent / "killed"
    if "two" in source.name and not once.exists():
        once.touch()
        place.mkdir()
        (place / "clip.mp4").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    return process_source(source, place, *rest)


def killed_at_every_two(source: SourceVideo, place: Path, *rest: Any) -> Prepared:
    """The same each time."""
    if "two" in source.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return process_source(source, place, *rest)


def few_places(source: SourceVideo, place: Path, *rest: Any) -> Prepared:
    """Reject videos for which more temporary folders are there than one worker's two, and the one being written."""
    if len(list(place.parent.glob("clip-*"))) > 2:
        raise VideoError("too many")
    return process_source(source, place, *rest)


def full_disk(source: SourceVideo, place: Path, *rest: Any) -> Prepared:
    """Find the disk full after the first videos."""
    if source.name == "top.avi":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(place))
    return process_source(source, place, *rest)


def stuck_on_two(source: SourceVideo, place: Path, *rest: Any) -> Prepared:
    """Wait for ever, as a decoder does whose threads wait for each other."""
    if "two" in source.name:
        time.sleep(3600)
    return process_source(source, place, *rest)


def first_is_slowest(source: SourceVideo, place: Path, *rest: Any) -> Prepared:
    """Finish in another order than started."""
    time.sleep(0.3 if source.name == "a/one.mp4" else 0.0)
    return process_source(source, place, *rest)


def die() -> None:
    """End the process at once."""
    os._exit(3)


def die_by(signum: int, *_: object) -> None:
    """End the process by a signal."""
    os.kill(os.getpid(), signum)


def double(number: int) -> int:
    """Do something."""
    return 2 * number


def refuse(text: str) -> None:
    """Raise."""
    raise VideoError(text)


def where() -> int:
    """The process's number."""
    return os.getpid()


def chatter(text: str) -> str:
    """Print, in Python and below it."""
    print(text)
    os.write(1, text.encode())
    return text


def spin() -> None:
    """Compute for ever, and read and write nothing."""
    while True:
        pass


def read_for(seconds: float) -> int:
    """Go on reading for a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        Path("/proc/self/stat").read_bytes()
        time.sleep(0.05)
    return os.getpid()


def sleep(seconds: float) -> int:
    """Take a while."""
    time.sleep(seconds)
    return os.getpid()


def compute(seconds: float, core: int) -> int:
    """Compute for so many seconds of a core that others may use first."""
    os.sched_setaffinity(0, {core})
    os.nice(10)
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return os.getpid()


def count_to(number: int) -> Iterator[int]:
    """Give items."""
    yield from range(number)


def count_and_refuse(number: int) -> Iterator[int]:
    """Give items, and raise."""
    yield from range(number)
    raise VideoError("enough")


_decode_into = isolated._decode_into


def decode_into(memory: int, size: int, encoded: Any, segment: Any) -> Any:
    """In the place of `streamvid.decode.isolated._decode_into`: crash on one clip, and never return from another."""
    if encoded.name == "08":
        os.kill(os.getpid(), signal.SIGSEGV)
    if encoded.name == "13":
        time.sleep(3600)
    return _decode_into(memory, size, encoded, segment)
