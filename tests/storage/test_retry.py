"""Retrying requests: the errors that are retried, for how long, and the messages in the log."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from streamvid.errors import DatasetError, InputError
from streamvid.storage.explain import AccessRefused, MissingFile, StorageUnavailable
from streamvid.storage.retry import REFUSED_SECONDS, SAY_SECONDS, Retry, Trouble
from tests.support.clock import Clock


def failing(*errors: Exception) -> tuple[list[Exception], Callable[[], str]]:
    left = list(errors)

    def attempt() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return left, attempt


def test_a_storage_that_recovers_is_asked_again_after_waits_that_grow() -> None:
    clock = Clock()
    _, attempt = failing(*[StorageUnavailable("away")] * 12)
    assert clock.retry()(attempt) == "done"
    assert len(clock.waits) == 12
    assert clock.waits[0] < 1
    assert max(clock.waits) <= 15
    assert sum(clock.waits[6:]) > 4 * sum(clock.waits[:4])
    assert len(set(clock.waits)) == 12  # jitter


@pytest.mark.parametrize(("error", "limit"), [(StorageUnavailable, 600.0), (AccessRefused, REFUSED_SECONDS)])
def test_the_last_error_is_raised_when_the_time_is_over(error: type[DatasetError], limit: float) -> None:
    clock = Clock()
    _, attempt = failing(*[error("it answers 503; wait.")] * 1000)
    with pytest.raises(error, match=r"it answers 503; wait\. It was tried \d+ times in \d+ s\."):
        clock.retry()(attempt)
    assert clock.now == pytest.approx(limit)


def test_a_process_that_was_stopped_is_as_patient_as_before() -> None:
    """With one attempt under way, which is of an old connection, and fails."""
    clock = Clock()
    left, attempt = failing(*[StorageUnavailable("away")] * 3)

    def stopped() -> str:
        if len(left) == 3:
            clock.now += 5000
        return attempt()

    assert clock.retry()(stopped) == "done"


def test_a_refusal_after_an_outage_has_its_own_time() -> None:
    clock = Clock()
    _, attempt = failing(*[StorageUnavailable("away")] * 20, *[AccessRefused("no")] * 3)
    assert clock.retry()(attempt) == "done"
    assert clock.now > REFUSED_SECONDS


def test_a_refusal_is_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """It may be a mistake, and nobody should wait for half a minute without knowing for what."""
    for error in (AccessRefused("The key is wrong."), MissingFile("a cannot be opened (No such file)")):
        _, attempt = failing(*[error] * 3)
        assert replace(Clock().retry(), retry_missing=True)(attempt) == "done"
    assert [record.getMessage() for record in caplog.records] == [
        "The key is wrong. It is tried for 30 s, with credentials looked up again.",
        "a cannot be opened (No such file). It is tried for 30 s.",
    ]


def test_a_refusal_may_be_final() -> None:
    clock = Clock()
    left, attempt = failing(StorageUnavailable("away"), *[AccessRefused("no")] * 3)
    with pytest.raises(AccessRefused):
        replace(clock.retry(), retry_refused=False)(attempt)
    assert (len(clock.waits), len(left)) == (1, 2)


def test_without_time_it_is_asked_once() -> None:
    left, attempt = failing(*[StorageUnavailable("away")] * 2)
    with pytest.raises(StorageUnavailable, match=r"^away$"):
        Retry(0)(attempt)
    assert len(left) == 1


def test_other_errors_are_not_tried_again() -> None:
    _, attempt = failing(DatasetError("it does not exist"))
    clock = Clock()
    with pytest.raises(DatasetError, match="does not exist"):
        clock.retry()(attempt)
    assert clock.waits == []


def test_what_waits_is_said_every_thirty_seconds(caplog: pytest.LogCaptureFixture) -> None:
    clock, times = Clock(), []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            times.append((clock.now, record.getMessage()))

    handler = Handler(logging.WARNING)
    logger = logging.getLogger("streamvid.storage.retry")
    logger.addHandler(handler)
    try:
        _, attempt = failing(*[StorageUnavailable("Cannot read s3://b/k: 503.")] * 1000)
        with pytest.raises(StorageUnavailable):
            clock.retry(200)(attempt)
    finally:
        logger.removeHandler(handler)
    assert [round(when) for when, _ in times] == [SAY_SECONDS * n for n in range(1, 7)]
    assert all("Cannot read s3://b/k: 503." in said and "for 200 s at most (retry_for)" in said for _, said in times)


def test_half_of_a_thousand_requests_failing_slows_and_does_not_end() -> None:
    """Every round leaves half of them; as some succeed, the time without progress never adds up."""
    clock, asked = Clock(), 0

    def attempt(items: Sequence[int]) -> list[int | Trouble]:
        nonlocal asked
        asked += len(items)
        return [n if (n + k) % 2 else StorageUnavailable("away") for k, n in enumerate(items)]

    def flaky(items: Sequence[int]) -> list[int | Trouble]:
        outcomes = attempt(items)
        if all(isinstance(one, StorageUnavailable) for one in outcomes):
            outcomes[0] = items[0]
        return outcomes

    assert clock.retry(5).each(range(1000), flaky) == list(range(1000))
    assert asked > 1000


def test_waiting_is_given_up_with_an_event() -> None:
    stop = threading.Event()
    asked = threading.Event()
    raised: list[BaseException] = []

    def attempt() -> None:
        asked.set()
        raise StorageUnavailable("away")

    def wait() -> None:
        try:
            Retry().until(stop)(attempt)
        except StorageUnavailable as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    asked.wait()
    stop.set()
    thread.join(60)
    assert len(raised) == 1


@pytest.mark.parametrize("value", [-1, "10", None, float("nan"), float("inf"), True])
def test_the_option_is_checked(value: object) -> None:
    with pytest.raises(InputError, match="retry_for must be a number of seconds"):
        Retry.of(value)  # type: ignore[arg-type]


def test_it_is_picklable() -> None:
    assert pickle.loads(pickle.dumps(Retry(5))) == Retry(5) == Retry.of(5)
