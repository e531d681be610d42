"""Progress of a pack on a terminal and in the log."""

from __future__ import annotations

import io
import sys
import time

import pytest

from streamvid.progress import PackProgress, Progress
from tests.support.clock import soon


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamvid.progress.LOG_S", 0.01)
    caplog.set_level("INFO", "streamvid.progress")


def wait_for(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert soon(lambda: text in caplog.text), caplog.text


def test_progress_counts_and_tells_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with PackProgress(10, 1000, enabled=True) as progress:
        # Nothing has finished yet: a video may take hours.
        wait_for("packing: 0/10 videos", caplog)
        progress.advance(4, 400, 8, 4_000_000, 1, resumed=True)
        progress.advance(1, 100, 2, 2_000_000, 1)
        wait_for("5/10 videos · 10 clips · 6 MB", caplog)
    assert "2 rejected" in caplog.text
    caplog.clear()
    time.sleep(0.1)
    assert not caplog.text
    with Progress("verifying", 2000, enabled=True) as bar:
        bar.advance(1000)
        wait_for("verifying: 1,000 of 2,000", caplog)


def test_progress_that_is_not_wanted_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with Progress("verifying", 2000, enabled=False) as bar:
        bar.advance(1000)
        time.sleep(0.1)
    assert not caplog.text


@pytest.mark.parametrize("lasts", [True, False])
def test_a_bar_is_shown_before_the_first_item_has_finished(monkeypatch: pytest.MonkeyPatch, lasts: bool) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr("streamvid.progress.DELAY_S", 0.01 if lasts else 60.0)
    with Progress("drawing", 3, enabled=True):
        assert soon(lambda: not lasts or "drawing" in sys.stderr.getvalue())  # type: ignore[attr-defined]
    assert ("drawing" in sys.stderr.getvalue()) == lasts  # type: ignore[attr-defined]
