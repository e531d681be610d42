"""Threads that compute one at a time, the earliest first."""

from __future__ import annotations

import threading

from streamvid.storage.turn import OneAtATime
from tests.support.clock import soon


def test_the_lowest_number_of_those_that_wait_is_next() -> None:
    lock, order = OneAtATime(), list[int]()
    lock.acquire(0)

    def compute(number: int) -> None:
        lock.acquire(number)
        order.append(number)
        lock.release()

    threads = [threading.Thread(target=compute, args=(number,)) for number in (7, 3, 9, 3, 1)]
    for thread in threads:
        thread.start()
    assert soon(lambda: len(lock._queue) == len(threads))
    assert not order
    lock.release()
    for thread in threads:
        thread.join(120)
    assert order == [1, 3, 3, 7, 9]
    lock.acquire(5)  # nobody holds it
    assert not lock.is_wanted_before(5)
    other = threading.Thread(target=compute, args=(4,))
    other.start()
    assert soon(lambda: lock._queue)
    assert lock.is_wanted_before(5)
    assert not lock.is_wanted_before(4)
    lock.release()
