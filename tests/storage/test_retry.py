"""Trying again where a storage is unavailable: how often, after which waits, and when not."""

from __future__ import annotations

import pytest

from streamvid.errors import DatasetError
from streamvid.storage.explain import StorageUnavailable
from streamvid.storage.retry import DELAYS, retrying


def failing(*errors: Exception) -> tuple[list[Exception], object]:
    left = list(errors)

    def attempt() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return left, attempt


def test_a_storage_that_recovers_is_tried_again_after_a_while() -> None:
    waits: list[float] = []
    _, attempt = failing(*[StorageUnavailable("away")] * len(DELAYS))
    assert retrying(attempt, sleep=waits.append) == "done"  # type: ignore[arg-type]
    assert len(waits) == len(DELAYS)
    assert all(0.5 * delay <= wait <= 1.5 * delay for wait, delay in zip(waits, DELAYS, strict=True))


def test_the_last_error_is_raised() -> None:
    left, attempt = failing(*[StorageUnavailable(str(n)) for n in range(len(DELAYS) + 2)])
    with pytest.raises(StorageUnavailable, match=str(len(DELAYS))):
        retrying(attempt, sleep=lambda _: None)  # type: ignore[arg-type]
    assert len(left) == 1


def test_other_errors_are_not_tried_again() -> None:
    _, attempt = failing(DatasetError("it does not exist"))
    with pytest.raises(DatasetError, match="does not exist"):
        retrying(attempt, sleep=lambda _: pytest.fail("waited"))  # type: ignore[arg-type]


def test_waiting_can_be_given_up() -> None:
    left, attempt = failing(*[StorageUnavailable("away")] * 3)
    with pytest.raises(StorageUnavailable):
        retrying(attempt, sleep=lambda _: True)  # type: ignore[arg-type]
    assert len(left) == 2
