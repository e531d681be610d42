"""A progress bar that stays away unless somebody is watching and there is something to wait for."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

DELAY_S: Final = 2.0


class Progress:
    """Counts items on stderr: a bar appears after two seconds, if stderr is a terminal. A context manager."""

    def __init__(self, what: str, total: int, *, enabled: bool) -> None:
        self._enabled = enabled and sys.stderr.isatty()
        self._started = time.monotonic()
        self._done = 0
        self._running = False
        self._bar = RichProgress(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(what, total=total, note="")

    def advance(self, count: int = 1, *, note: str = "") -> None:
        """Count more items; `note` is shown beside the bar."""
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
