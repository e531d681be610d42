"""The stopwatch counts the time that a task had for its work."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamvid.stopwatch import Stopwatch


@pytest.mark.parametrize(("state", "counted"), [("R", 0.3), ("S", 3.3), ("D", 3.3)])
def test_a_task_that_waits_for_a_core_at_this_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, counted: float
) -> None:
    """The kernel counts that only when it gets one. One that sleeps or waits for a disk is not kept from it."""
    now = [100.0]
    monkeypatch.setattr("streamvid.stopwatch.time.monotonic", lambda: now[0])

    def kernel(ran: float, waited: float, slices: int) -> None:
        (tmp_path / "schedstat").write_text(f"{int(ran * 1e9)} {int(waited * 1e9)} {slices}\n")
        (tmp_path / "stat").write_text(f"7 (a ) name) {state} 1 2 3\n")

    kernel(1.0, 2.0, 50)
    watch = Stopwatch(str(tmp_path))
    now[0] += 0.3
    kernel(1.3, 2.0, 51)
    assert watch.seconds() == pytest.approx(0.3)
    for _ in range(6):
        now[0] += 0.5
        found = watch.seconds()
    assert found == pytest.approx(counted)
    now[0] += 0.2
    kernel(1.5, 5.0, 52)  # it runs again: the wait is counted once
    assert watch.seconds() == pytest.approx(0.5)
