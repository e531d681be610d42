"""Items in order, errors in their place, no thread left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.loader.pipeline import Background


def alive(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


@given(st.lists(st.integers() | st.none()), st.integers(1, 5))
def test_items_come_in_order(items: list[int | None], depth: int) -> None:
    background = Background(iter(items), depth=depth, name="items").start()
    assert list(background) == items
    with pytest.raises(StopIteration):
        next(background)
    background.close()
    assert not alive("items")


@given(st.integers(0, 8), st.integers(1, 4))
def test_an_error_comes_after_what_was_made_before_it(before: int, depth: int) -> None:
    def source() -> Iterator[int]:
        yield from range(before)
        raise KeyError("lost")

    background = Background(source(), depth=depth, name="fails").start()
    assert [next(background) for _ in range(before)] == list(range(before))
    with pytest.raises(KeyError, match="lost"):
        next(background)
    with pytest.raises(StopIteration):
        next(background)
    background.close()
    assert not alive("fails")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, MemoryError, GeneratorExit])
def test_no_kind_of_error_is_lost(error: type[BaseException]) -> None:
    class Source:
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            raise error

    background = Background(Source(), depth=1, name="any").start()
    with pytest.raises(error):
        next(background)
    background.close()


def test_a_thread_that_cannot_wait_for_room_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process that gets no memory for the lock that each wait makes. Its consumer would wait for ever."""

    class NoLocks(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            raise RuntimeError("can't allocate lock")

    background = Background(iter(range(9)), depth=2, name="room")
    monkeypatch.setattr(background._queue.not_full, "__class__", NoLocks)
    background.start()
    background._thread.join()
    assert [next(background), next(background)] == [0, 1]
    with pytest.raises(RuntimeError, match="can't allocate lock"):
        next(background)
    background.close()


def test_it_runs_ahead_as_far_as_told_and_no_further() -> None:
    made: list[int] = []
    enough = threading.Event()

    def source() -> Iterator[int]:
        for n in range(100):
            made.append(n)
            if n == 3:
                enough.set()
            yield n

    background = Background(source(), depth=3, name="ahead").start()
    assert enough.wait(120)  # three in the queue, one waiting for room
    assert made == [0, 1, 2, 3]
    assert next(background) == 0
    background.close()
    assert len(made) <= 6


def test_close_ends_the_thread_and_cleans_up_in_it() -> None:
    cleaned: list[str] = []

    def source() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            cleaned.append(threading.current_thread().name)

    background = Background(source(), depth=2, name="cleaned").start()
    assert next(background) == 1
    background.close()
    assert cleaned == ["cleaned"]
    assert not alive("cleaned")
    background.close()
    # What was made in advance may still come, then it ends; it never blocks.
    assert set(background) <= {1}


def test_close_before_the_first_item() -> None:
    background = Background(iter(range(1000)), depth=1, name="unused").start()
    background.close()
    assert not alive("unused")


def test_a_chain_closes_from_its_end() -> None:
    first = Background(iter(range(10**9)), depth=2, name="first").start()
    second = Background((n + 1 for n in first), depth=2, name="second").start()
    assert next(second) == 1
    second.close()
    first.close()
    assert not alive("first")
    assert not alive("second")


def test_an_error_in_the_clean_up_reaches_the_consumer() -> None:
    """A source that ends well but cannot be closed must not leave its consumer waiting."""

    class Source:
        def __iter__(self) -> Iterator[int]:
            return iter([1])

        def close(self) -> None:
            raise OSError("disk full")

    background: Background[int] = Background(Source(), depth=1, name="close").start()  # type: ignore[arg-type]
    got: list[object] = []

    def consume() -> None:
        try:
            got.extend(background)
        except OSError as error:
            got.append(error)

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    consumer.join(120)
    assert not consumer.is_alive(), "the consumer waits for ever"
    assert got[0] == 1
    assert isinstance(got[1], OSError)
