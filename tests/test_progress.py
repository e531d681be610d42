"""Progress of a pack on a terminal and in the log."""

from __future__ import annotations

import pytest

from streamvid.progress import PackProgress


def test_progress_counts_and_tells_the_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamvid.progress.LOG_S", 0.0)
    with caplog.at_level("INFO", "streamvid"), PackProgress(10, 1000, enabled=True) as progress:
        progress.advance(4, 400, 8, 4_000_000, 1, resumed=True)
        progress.advance(1, 100, 2, 2_000_000, 1)
    assert "5/10 videos · 10 clips · 6 MB" in caplog.text
    assert "2 rejected" in caplog.text
