"""Progress on stderr: a bar on a terminal, shown after two seconds; elsewhere a line in the log every minute."""

from __future__ import annotations

import logging
import sys
import threading
import time
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
    """Progress of some items. A context manager.

    A thread of its own shows the bar and writes to the log, so that progress is shown also while a single item takes
    hours.

    Args:
        what: text beside the bar.
        total: number of items.
        enabled: whether to show anything.
        counted: whether to show "done/total"; False if items are a measure of work, such as bytes.
    """

    def __init__(self, what: str, total: int, *, enabled: bool, counted: bool = True) -> None:
        on_terminal = sys.stderr.isatty()
        self._shows_bar, self._logs = enabled and on_terminal, enabled and not on_terminal
        self._what, self._total, self._note = what, total, ""
        self._done = 0
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
        self._ended = threading.Event()
        target = self._show if self._shows_bar else self._log
        self._thread = threading.Thread(target=target, name="streamvid-progress", daemon=True)

    def advance(self, count: int = 1, *, note: str = "") -> None:
        """Count finished items; `note` is shown beside the bar, and in the log in the place of the count."""
        self._done += count
        self._note = note
        if self._shows_bar:
            self._bar.update(self._task, completed=self._done, note=note)

    def _show(self) -> None:
        if not self._ended.wait(DELAY_S):
            self._bar.start()
            self._ended.wait()
            self._bar.stop()

    def _log(self) -> None:
        while not self._ended.wait(LOG_S):
            log.info("%s: %s", self._what, self._note or f"{self._done:,} of {self._total:,}")

    def __enter__(self) -> Progress:
        if self._shows_bar or self._logs:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()


class PackProgress:
    """Progress of a pack: videos, clips, bytes, rate, time left, rejected videos. A context manager.

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
        self._began = time.monotonic()
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
        self._bar.advance(videos + source_bytes, note=self._note())

    def _note(self) -> str:
        rate = self._new_bytes / max(time.monotonic() - self._began, 1e-3)
        rejected = f" · {self._rejected:,} rejected" if self._rejected else ""
        return (
            f"{self._videos:,}/{self._all:,} videos · {self._clips:,} clips · {self._bytes / 1e6:,.0f} MB · "
            f"{rate / 1e6:.1f} MB/s{rejected}"
        )

    def __enter__(self) -> PackProgress:
        self._bar.advance(0, note=self._note())
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()
