"""Renderers: batches in order, one submitted ahead; and that they free their resources."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from streamvid.decode.base import Pending
from streamvid.decode.cpu import CpuDecoder
from streamvid.errors import VideoError
from streamvid.fetch.encoded_batch import EncodedBatch
from streamvid.transform.in_order import decoded_in_order
from streamvid.transform.params import ClipTransform
from streamvid.transform.render import CpuRenderer, DaliRenderer, make_renderer
from streamvid.transform.spec import Transform
from tests.support.views import clip, encoded_batch

BATCH = encoded_batch([clip(8, 8)])


class Source:
    """Batches by number; those up to `read` are there without waiting."""

    def __init__(self, count: int, *, read: int, error: Exception | None = None) -> None:
        self._count, self._read, self._error, self._next = count, read, error, 0

    def ready(self) -> bool:
        return self._next < self._read

    def __next__(self) -> EncodedBatch:
        if self._next == self._count:
            raise self._error or StopIteration
        self._next += 1
        return replace(BATCH, bytes_read=self._next)


def decoded(source: Source, log: list[str]) -> Iterator[int]:
    def submit(batch: EncodedBatch) -> Pending[int]:
        number = batch.bytes_read
        log.append(f"submit {number}")

        def result() -> int:
            log.append(f"result {number}")
            return number

        return Pending(result)

    return decoded_in_order(source, submit)


def test_one_batch_is_submitted_ahead() -> None:
    log: list[str] = []
    assert list(decoded(Source(3, read=9), log)) == [1, 2, 3]
    assert log == ["submit 1", "submit 2", "result 1", "submit 3", "result 2", "result 3"]
    log.clear()
    # No result waits until the next batch has been read.
    assert list(decoded(Source(3, read=0), log)) == [1, 2, 3]
    assert log == ["submit 1", "result 1", "submit 2", "result 2", "submit 3", "result 3"]


def test_the_second_batch_is_submitted_when_it_is_there_while_the_first_is_decoded() -> None:
    """Or threads that are done with their part of the first one wait for the others."""
    log: list[str] = []
    source = Source(3, read=0)

    def submit(batch: EncodedBatch) -> Pending[int]:
        number = batch.bytes_read
        log.append(f"submit {number}")
        asked = iter(range(9))

        def done() -> bool:
            if next(asked) == 3:
                source._read = 9  # read, at last
            return False

        return Pending(lambda: log.append(f"result {number}") or number, done)  # type: ignore[func-returns-value]

    assert list(decoded_in_order(source, submit)) == [1, 2, 3]
    assert log == ["submit 1", "submit 2", "result 1", "submit 3", "result 2", "result 3"]


@pytest.mark.parametrize(("ahead", "begun"), [(0, 2), (1, 2), (101, 3), (200, 3), (201, 4), (10_000, 8)])
def test_small_batches_are_begun_until_they_have_enough_pixels(ahead: int, begun: int) -> None:
    """However many clips make a batch: engines have as much to do while one is handed over."""
    log: list[int] = []
    small: Any = SimpleNamespace(name="small", frames=range(5), height=4, width=5)

    def submit(batch: EncodedBatch) -> Pending[int]:
        number = batch.bytes_read
        log.append(number)
        return Pending(lambda: log.append(-number) or number, lambda: False)  # type: ignore[func-returns-value]

    class Filled(Source):
        def __next__(self) -> EncodedBatch:
            return replace(super().__next__(), slices=[small])

    source = Filled(20, read=99)
    assert list(decoded_in_order(source, submit, ahead_pixels=ahead)) == list(range(1, 21))
    most = [sum(one > 0 for one in log[:n]) - sum(one < 0 for one in log[:n]) for n in range(len(log) + 1)]
    assert max(most) == begun
    assert log.index(-1) == begun


@pytest.mark.parametrize("read", [0, 9])
def test_an_error_comes_behind_the_batches_before_it(read: int) -> None:
    results = decoded(Source(2, read=read, error=ZeroDivisionError()), [])
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"resize": 8, "horizontal_flip": 0.5}, CpuRenderer),
        ({"rotate": 5}, DaliRenderer),
        ({"interpolation": "bicubic", "resize": 8}, DaliRenderer),
    ],
)
def test_renderers_on_the_cpu(options: dict[str, Any], kind: type) -> None:
    spec = ClipTransform(Transform(**options), rotates=False, has_black_frames=False)
    renderer = make_renderer(spec, device_id=None, threads=0, max_batch=1)
    assert isinstance(renderer, kind)
    renderer.close()


def test_a_pipeline_is_freed_with_its_last_reference() -> None:
    """Not by the garbage collector, which may run in a forked process, where DALI's threads are not."""
    spec = ClipTransform(Transform(rotate=5), rotates=False, has_black_frames=False)
    renderer = DaliRenderer(spec, CpuDecoder(threads=1), threads=0, max_batch=1)
    gc.collect()
    gc.disable()
    try:
        pipeline = weakref.ref(renderer._pipeline._pipeline)
        del renderer
        assert pipeline() is None
    finally:
        gc.enable()


def test_an_error_does_not_keep_the_pipeline() -> None:
    """An exception that is kept, or is part of a reference cycle, as in every frame that has it as a variable."""
    spec = ClipTransform(Transform(rotate=5), rotates=False, has_black_frames=False)
    renderer = DaliRenderer(spec, CpuDecoder(threads=1), threads=1, max_batch=1)
    pipeline = weakref.ref(renderer._pipeline._pipeline)
    with pytest.raises(ZeroDivisionError) as caught:
        list(renderer.run(Source(0, read=9, error=ZeroDivisionError()), lambda items: items))
    renderer.close()
    assert pipeline() is None
    assert caught.tb is not None


class Rescue:
    """Gives a batch again, and notes what for."""

    def __init__(self, stale: Collection[int] = ()) -> None:
        self.log: list[tuple[int, str, bool]] = []
        self._stale = stale

    def __call__(self, number: int, cause: Exception | None = None, *, decode: bool = True) -> EncodedBatch:
        self.log.append((number, str(cause or ""), decode))
        return replace(BATCH, number=number, bytes_read=100 + number)

    def is_stale(self, batch: EncodedBatch) -> bool:
        return batch.number in self._stale


class Numbered(Source):
    def __next__(self) -> EncodedBatch:
        batch = super().__next__()
        return replace(batch, number=batch.bytes_read)


@pytest.mark.parametrize("at", ["submit", "result"])
@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_a_batch_that_fails_is_rescued_and_then_decoded_otherwise(at: str, failures: int) -> None:
    """As on a GPU whose driver fails on good clips: submitted again, and then to the CPU."""
    left = failures

    def fail() -> None:
        nonlocal left
        if left:
            left -= 1
            raise VideoError(f"failure {left}")

    def submit(batch: EncodedBatch) -> Pending[int]:
        if batch.number == 2 and at == "submit":
            fail()

        def result() -> int:
            if batch.number == 2 and at == "result":
                fail()
            return batch.bytes_read

        return Pending(result)

    def by_cpu(batch: EncodedBatch) -> Pending[int]:
        def result() -> int:
            fail()
            return -batch.bytes_read

        return Pending(result)

    rescue = Rescue()
    results = decoded_in_order(Numbered(3, read=9), submit, rescue, by_cpu)
    if failures < 3:
        assert list(results) == [1, [2, 102, -102][failures], 3]
    else:
        assert next(results) == 1
        with pytest.raises(VideoError, match="failure 0"):
            next(results)
    assert rescue.log == ([(2, f"failure {failures - 1}", True)] if failures else [])


@pytest.mark.parametrize("failures", [0, 1, 2, 3])
def test_without_a_rescue_it_is_decoded_again_and_then_otherwise(failures: int) -> None:
    """on_error="raise" is of clips, not of drivers."""
    left = failures

    def begin(batch: EncodedBatch, *, sign: int) -> Pending[int]:
        def result() -> int:
            nonlocal left
            if batch.number == 2 and left:
                left -= 1
                raise VideoError(f"failure {left}")
            return sign * batch.bytes_read

        return Pending(result)

    results = decoded_in_order(Numbered(3, read=9), partial(begin, sign=1), None, partial(begin, sign=-1))
    assert next(results) == 1
    if failures < 3:
        assert list(results) == [[2, 2, -2][failures], 3]
    else:
        with pytest.raises(VideoError, match="failure 0"):
            next(results)


def test_a_batch_with_a_clip_that_was_found_bad_since_is_made_anew() -> None:
    """Without trying whether its clips decode."""

    def submit(batch: EncodedBatch) -> Pending[int]:
        return Pending(lambda: batch.bytes_read)

    rescue = Rescue({2})
    assert list(decoded_in_order(Numbered(3, read=9), submit, rescue)) == [1, 102, 3]
    assert rescue.log == [(2, "", False)]
