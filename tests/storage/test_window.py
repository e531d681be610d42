"""How many bytes are under way at a time, against storages that are bound by their latency or by what they can send."""

from __future__ import annotations

import pytest

from streamvid.storage.window import Window

BODY, MOST = 400_000, 128


def run(window: Window, seconds: float, latency: float, rate: float, size: int = BODY) -> tuple[float, float]:
    """Requests for bodies of a storage that sends so many bytes a second, as many at a time as the window lets in:
    bytes a second that come in the second half, and bytes that are under way on average."""
    now = free = inside = came = 0.0
    ends: list[float] = []
    held = 0.0
    while now < seconds:
        while not ends or (len(ends) < MOST and (len(ends) + 1) * size <= window.size(MOST)):
            free = max(free, now) + size / rate
            ends.append(max(now + latency, free))
        ends.sort()
        inside += len(ends) * size * (ends[0] - now) * (now > seconds / 2)
        now = ends.pop(0)
        window.came(now, size, len(ends) + 1)
        came += size * (now > seconds / 2)
        held = now
    return came / (held / 2), inside / (held / 2)


@pytest.mark.parametrize(("latency", "rate"), [(0.05, 2e8), (0.2, 1e8), (0.01, 1e9)])
def test_what_waits_in_a_storage_that_is_full_is_bounded(latency: float, rate: float) -> None:
    came, inside = run(Window(), 60, latency, rate)
    assert came > 0.9 * rate
    assert inside < 3.2 * max(latency * rate, MOST * (512 << 10) / 32)


def test_a_link_that_only_has_latency_is_filled() -> None:
    came, _ = run(Window(), 60, 0.05, 1e12)
    assert came > 0.9 * MOST * BODY / 0.05


def test_it_follows_a_storage_that_changes() -> None:
    window = Window()
    run(window, 30, 0.05, 1e8)
    narrow = window.size(MOST)
    came, _ = run(window, 120, 0.05, 8e8)
    assert came > 0.85 * 8e8
    assert window.size(MOST) > 2 * narrow


def test_what_comes_while_none_waits_says_nothing() -> None:
    window = Window()
    before = window.size(MOST)
    for n in range(2000):
        window.came(n / 10, BODY, 20)
        if n % 10 == 0:
            window.idle()
    assert window.size(MOST) == before
