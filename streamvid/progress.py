"""Progress bars on stderr, shown only on a terminal and after two seconds."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

log = logging.getLogger(__name__)

DELAY_S: Final = 2.0
"""Seconds before a bar is shown."""
LOG_S: Final = 60.0
"""Seconds between two progress lines in the log."""


class Progress:
    """A progress bar on stderr, shown after two seconds if stderr is a terminal. A context manager.

    Args:
        what: description beside the bar.
        total: number of items.
        enabled: whether to show anything.
        counted: whether to show "done/total"; False if items are a measure of work, such as bytes.
    """

    def __init__(self, what: str, total: int, *, enabled: bool, counted: bool = True) -> None:
        self._enabled = enabled and sys.stderr.isatty()
        self._started = time.monotonic()
        self._done = 0
        self._running = False
        self._bar = RichProgress(
            TextColumn(what),
            BarColumn(),
            *([MofNCompleteColumn()] if counted else []),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(what, total=total, note="")

    def advance(self, count: int = 1, *, note: str = "") -> None:
        """Count finished items; `note` is shown beside the bar."""
        self._done += count
        if not self._enabled:
            return
        if not self._running and time.monotonic() - self._started >= DELAY_S:
            self._running = True
            self._bar.start()
        self._bar.update(self._task, completed=self._done, note=note)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._running:
            self._bar.stop()


class PackProgress:
    """Progress of a pack: videos, clips, bytes, rate, time left, rejected videos. A context manager.

    A bar on a terminal, and a log line every minute.

    Args:
        videos: number of sources.
        source_bytes: of their files; the time left is estimated by bytes.
        enabled: whether to show anything.
    """

    def __init__(self, videos: int, source_bytes: int, *, enabled: bool) -> None:
        # One more byte per video, so that files of unknown size count.
        self._bar = Progress("packing", source_bytes + videos, enabled=enabled, counted=False)
        self._videos, self._all = 0, videos
        self._clips = self._bytes = self._rejected = 0
        self._began = self._logged = time.monotonic()
        self._new_bytes = 0

    def advance(
        self, videos: int, source_bytes: int, clips: int, clip_bytes: int, rejected: int, *, resumed: bool = False
    ) -> None:
        """Count finished videos and their clips. Those of an earlier run (`resumed`) do not count for the rate."""
        self._videos += videos
        self._clips += clips
        self._bytes += clip_bytes
        self._new_bytes += 0 if resumed else clip_bytes
        self._rejected += rejected
        note = self._note()
        self._bar.advance(videos + source_bytes, note=note)
        now = time.monotonic()
        if now - self._logged >= LOG_S:
            self._logged = now
            log.info("packing: %s", note)

    def _note(self) -> str:
        rate = self._new_bytes / max(time.monotonic() - self._began, 1e-3)
        rejected = f" · {self._rejected:,} rejected" if self._rejected else ""
        return (
            f"{self._videos:,}/{self._all:,} videos · {self._clips:,} clips · {self._bytes / 1e6:,.0f} MB · "
            f"{rate / 1e6:.1f} MB/s{rejected}"
        )

    def __enter__(self) -> PackProgress:
        self._bar.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._bar.__exit__(kind, error, tb)
