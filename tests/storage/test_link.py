"""The limits that follow from the latency and bandwidth of a link, and hedged requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from streamvid.storage import link as link_module
from streamvid.storage.link import MOST_REQUESTS, Link
from tests.support.clock import run_in_no_time


def measured(latency: float, bandwidth: float) -> Link:
    link = Link()
    link.measured(latency, 1 << 20, (1 << 20) / bandwidth)
    return link


def test_requests_at_a_time_follow_the_latency() -> None:
    limits = [measured(latency, 1e8).limit for latency in (0.0001, 0.02, 0.05, 0.2, 5)]
    assert limits == sorted(limits)
    assert limits[0] == 32
    assert limits[2] == 125
    assert limits[-1] == MOST_REQUESTS


@pytest.mark.parametrize(("latency", "begun"), [(0.0001, 4), (0.05, 16), (0.1, 32), (0.2, 62), (5, 64)])
def test_bytes_under_way_follow_the_latency_further_than_requests(latency: float, begun: int) -> None:
    """So that a link of 200 ms is as fast as one of 50, though no more connections are open."""
    link = measured(latency, 1e8)

    async def run() -> None:
        stop = asyncio.Event()
        asked = [asyncio.ensure_future(link.fetch(1 << 20, stop.wait)) for _ in range(MOST_REQUESTS)]
        await asyncio.sleep(0)
        assert begun - 1 <= link.requests <= begun
        stop.set()
        await asyncio.gather(*asked)

    run_in_no_time(run())


def test_gaps_follow_latency_and_bandwidth() -> None:
    assert measured(0.001, 1e8).gap == 1 << 20
    assert measured(0.05, 1e8).gap == pytest.approx(5e6, rel=0.01)
    assert measured(0.2, 1e9).gap == 8 << 20


def test_waiting_for_other_requests_does_not_count_as_latency() -> None:
    """Else more requests at a time would make for more requests at a time."""
    link = measured(0.02, 1e8)
    for _ in range(1000):
        link.measured(1.0, 100, 0.1)
    assert link.latency == 0.02
    for _ in range(1024):
        link.measured(0.1, 100, 0.1)
    assert link.latency == 0.1


def test_short_bodies_say_nothing_of_the_bandwidth() -> None:
    link = measured(0.02, 1e8)
    link.measured(0.02, 1000, 1e-9)
    assert link.bandwidth == pytest.approx(1e8)


class Storage:
    """Answers at once, but for some requests by number, which never come."""

    def __init__(self, lost: set[int], failing: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.lost, self.failing, self.asked, self.cancelled = lost, failing, 0, 0

    async def ask(self) -> int:
        number, self.asked = self.asked, self.asked + 1
        if number in self.lost:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if number in self.failing:
            raise ConnectionError("broken")
        await asyncio.sleep(0)
        return number


@pytest.mark.parametrize("lost", [{150, 250}, {100, 101}], ids=["two", "one and its second request"])
def test_a_request_that_does_not_come_is_made_again_and_the_loser_cancelled(lost: set[int]) -> None:
    storage, link = Storage(lost), Link()

    async def run() -> None:
        for _ in range(300):
            await link.fetch(1000, storage.ask)
        await asyncio.sleep(0)
        assert storage.cancelled == 2

    run_in_no_time(run())
    assert link.requests == 300
    assert link.hedged == 2
    assert storage.asked == 302


def test_one_of_the_first_that_does_not_come_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is known how long they take."""
    monkeypatch.setattr(link_module, "_UNKNOWN_LATE", 0.01)
    storage, link = Storage({3}), Link()

    async def run() -> None:
        for _ in range(10):
            await link.fetch(1000, storage.ask)

    run_in_no_time(run())
    assert link.hedged == 1


def test_late_requests_of_a_new_size_are_told_by_those_of_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of a run are of many sizes: few of one, and those that are stalled may be the only ones."""
    monkeypatch.setattr(link_module, "_UNKNOWN_LATE", 1000.0)
    storage, link = Storage({40, 41}), Link()

    async def run() -> None:
        for _ in range(40):
            await link.fetch(1000, storage.ask)
        link.requests, link.bytes = 1000, 10**9
        await asyncio.gather(link.fetch(1 << 16, storage.ask), link.fetch(1 << 19, storage.ask))
        await asyncio.sleep(0)

    run_in_no_time(run())
    assert link.hedged == storage.cancelled == 2


def test_requests_of_earlier_steps_go_first() -> None:
    """Of those that wait; and those of one step in the order in which they were asked for."""
    link, order = measured(0.0001, 1e8), list[tuple[int, int]]()

    async def run() -> None:
        stop = asyncio.Event()
        stuck = [asyncio.ensure_future(link.fetch(10, stop.wait)) for _ in range(link.limit)]
        await asyncio.sleep(0)

        def request(turn: int, n: int) -> Awaitable[None]:
            async def ask() -> None:
                order.append((turn, n))

            return link.fetch(10, ask, turn)

        waiting = [asyncio.ensure_future(request(turn, n)) for n, turn in enumerate((5, 3, 9, 3, 0))]
        await asyncio.sleep(0)
        stop.set()
        await asyncio.gather(*stuck, *waiting)

    run_in_no_time(run())
    assert order == [(0, 4), (3, 1), (3, 3), (5, 0), (9, 2)]


def test_late_first_requests_are_told_by_the_time_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_UNKNOWN_LATE", 1000.0)
    monkeypatch.setattr(link_module, "_LOOK", 0.01)
    storage, link = Storage({0}), Link()

    async def run() -> None:
        first = asyncio.ensure_future(link.fetch(1000, storage.ask))
        while not storage.asked:
            await asyncio.sleep(0)
        for _ in range(40):
            await link.fetch(1000, storage.ask)
        await first

    run_in_no_time(run())
    assert link.hedged == storage.cancelled == 1


def test_where_all_are_slow_the_oldest_alone_are_made_again() -> None:
    """And one that stalls afterwards still is, as they have not taken all that may be."""
    link, stop, asked = Link(), asyncio.Event(), list[int]()

    async def run() -> None:
        for _ in range(1000):
            await link.fetch(1000, lambda: asyncio.sleep(0))

        def request(n: int) -> Callable[[], Awaitable[Any]]:
            def ask() -> Awaitable[Any]:
                asked.append(n)
                return stop.wait()

            return ask

        burst = [asyncio.ensure_future(link.fetch(1000, request(n))) for n in range(30)]
        while link.hedged < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        stop.set()
        await asyncio.gather(*burst)

    run_in_no_time(run())
    assert asked[:30] == list(range(30))
    assert set(asked[30:]) == {0, 1, 2}


def test_stalls_of_one_percent_hold_nobody_up() -> None:
    """Who may not be asked a second time at once is later."""
    lost = set(range(300, 3000, 150))
    link = Link()

    def request(number: int) -> Callable[[], Awaitable[None]]:
        # Others of their own accord are somewhat late, and take from the two percent, too.
        tries = iter([60.0 if number in lost else number % 7 / 300 if number % 13 == 5 else 0.0, 0.0])
        return lambda: asyncio.sleep(next(tries))

    async def run() -> None:
        for first in range(0, 3000, 20):
            await asyncio.gather(*(link.fetch(1000, request(first + n)) for n in range(20)))

    run_in_no_time(run())
    assert len(lost) <= link.hedged <= 60


def test_another_event_loop_is_watched_as_well() -> None:
    """After one that ended in the midst of a request."""
    storage, link = Storage({0, 101}), Link()

    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(link.fetch(1000, storage.ask), 0.05)

    async def run() -> None:
        for _ in range(110):
            await link.fetch(1000, storage.ask)

    run_in_no_time(give_up())
    run_in_no_time(run())
    assert link.hedged >= 1


def test_two_percent_are_made_again_at_most() -> None:
    """Of a storage that has become slow for all."""
    link = Link()
    slow = 0.001

    async def ask() -> None:
        await asyncio.sleep(slow)

    async def run() -> None:
        nonlocal slow
        for _ in range(100):
            await link.fetch(1000, ask)
        slow = 0.012
        for _ in range(100):
            await link.fetch(1000, ask)

    run_in_no_time(run())
    assert 0 < link.hedged <= 4


def test_a_request_that_fails_fails_and_the_other_of_two_still_counts() -> None:
    storage, link = Storage({100}, {5, 101}), Link()

    async def run() -> None:
        for number in range(100):
            if number == 5:
                with pytest.raises(ConnectionError):
                    await link.fetch(1000, storage.ask)
            else:
                await link.fetch(1000, storage.ask)
        link.hedged = 0
        fetched = asyncio.ensure_future(link.fetch(1000, storage.ask))
        while storage.asked < 102:
            await asyncio.sleep(0.001)
        link.hedged = 10**6  # no third
        await asyncio.sleep(0.01)
        assert not fetched.done()  # the second has failed: the first is still waited for
        fetched.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetched
        await asyncio.sleep(0)

    run_in_no_time(run())
    assert storage.cancelled == 1


def test_a_cancelled_request_gives_its_place_back() -> None:
    async def run() -> None:
        link = measured(0.0001, 1e8)
        stuck = [asyncio.ensure_future(link.fetch(10, lambda: asyncio.sleep(60))) for _ in range(40)]
        await asyncio.sleep(0.01)
        for one in stuck[:20] + stuck[35:]:
            one.cancel()
        await asyncio.wait_for(link.fetch(10, lambda: asyncio.sleep(0)), 5)
        for one in stuck:
            one.cancel()

    run_in_no_time(run())


def test_a_forked_child_begins_anew() -> None:
    async def full(link: Link) -> None:
        stuck = [asyncio.ensure_future(link.fetch(10, lambda: asyncio.sleep(60))) for _ in range(40)]
        await asyncio.sleep(0.01)
        child = os.fork()
        if not child:
            try:
                asyncio.set_event_loop(None)
                asyncio._set_running_loop(None)
                run_in_no_time(asyncio.wait_for(link.fetch(10, lambda: asyncio.sleep(0)), 5))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        for one in stuck:
            one.cancel()

    run_in_no_time(full(measured(0.0001, 1e8)))
