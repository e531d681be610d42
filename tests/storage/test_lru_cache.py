"""The values used last, within a limit, from many threads and after a fork."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from streamvid.storage.lru_cache import LruCache


def test_those_not_used_for_longest_make_room() -> None:
    cache: LruCache[str, bytes] = LruCache(10, len)
    for key in "abc":
        cache.put(key, bytes(3))
    assert cache.get("a") == bytes(3)
    cache.put("d", bytes(4))
    assert [cache.get(key) is not None for key in "abcd"] == [True, False, True, True]
    cache.put("e", bytes(100))
    assert [cache.get(key) is not None for key in "acde"] == [False, False, False, True], "the last is always kept"
    cache.put("f", b"x")
    assert [cache.get(key) is not None for key in "ef"] == [False, True]


def test_the_first_value_of_a_key_stays() -> None:
    cache: LruCache[int, str] = LruCache(2)
    assert (cache.put(1, "one"), cache.put(1, "other"), cache.get(1)) == ("one", "one", "one")


def test_a_value_that_is_dropped_makes_room() -> None:
    cache: LruCache[str, bytes] = LruCache(10, len)
    cache.put("a", bytes(6))
    cache.drop("a")
    cache.drop("none")
    cache.put("b", bytes(4))
    cache.put("c", bytes(6))
    assert [cache.get(key) is not None for key in "abc"] == [False, True, True]


def test_threads_agree_on_the_size() -> None:
    cache: LruCache[int, bytes] = LruCache(50, len)

    def work(start: int) -> None:
        for n in range(2000):
            key = (start + n * 7) % 40
            assert len(cache.get(key) or cache.put(key, bytes(1 + key % 9))) == 1 + key % 9

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert cache._total == sum(map(len, cache._values.values())) <= 50


def test_a_child_may_be_forked_while_another_thread_holds_the_lock() -> None:
    cache: LruCache[str, str] = LruCache(2)
    cache.put("a", "there")
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with cache._usable_lock():
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if not child:
        ok = cache.get("a") is None and cache.put("a", "new") == cache.get("a") == "new"
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    done.set()
    thread.join()
    assert cache.get("a") == "there"
