"""Deadlines by the pace of the run."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import pytest

from streamvid.decode import deadline
from streamvid.decode.deadline import LEAST_S, LateBatches, Pace
from streamvid.video.packet_selection import EncodedSlice
from streamvid.video.remux import store_clip
from tests.support.clips import write
from tests.support.reference import whole
from tools.clips import Recipe

pytestmark = pytest.mark.usefixtures("no_threads_of_other_modules")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> EncodedSlice:
    folder = tmp_path_factory.mktemp("clip")
    return whole(store_clip(write(Recipe(width=96, height=64, frames=24), folder / "a.mp4"), folder))


def test_no_slice_has_less_than_the_least(encoded: EncodedSlice) -> None:
    pace = Pace()
    assert pace.deadline(encoded) == LEAST_S == 10
    pace.add(encoded, 24, 0.001)
    assert pace.deadline(encoded) == 10


def test_it_grows_with_packets_at_the_pace_of_the_same_codec_and_size(encoded: EncodedSlice) -> None:
    pace = Pace()
    for seconds in (50.0, 10.0, 0.1, 10.0, 10.0):  # one that waited for long, and one that was quick
        pace.add(encoded, 10, seconds)
    assert pace.deadline(encoded, 24) == pytest.approx(20 * 24 * 1.0)
    assert pace.deadline(encoded, 48) == pytest.approx(20 * 48 * 1.0)
    for other in (replace(encoded, codec="av1"), replace(encoded, width=960)):
        assert pace.deadline(other) == 10


def test_the_median_that_was_measured(encoded: EncodedSlice) -> None:
    pace = Pace()
    assert pace.measured(encoded) is None
    for seconds in (50.0, 10.0, 0.1):
        pace.add(encoded, 10, seconds)
    assert pace.measured(encoded) == 1.0
    assert pace.measured(replace(encoded, codec="av1")) is None


def test_it_follows_a_machine_that_becomes_slow(encoded: EncodedSlice) -> None:
    pace = Pace()
    for seconds in (*[0.1] * 1000, *[5.0] * 40):
        pace.add(encoded, 1, seconds)
    assert pace.deadline(encoded, 10) == pytest.approx(20 * 10 * 5.0)


def test_large_pictures_have_more_before_any_was_decoded(encoded: EncodedSlice) -> None:
    assert Pace().deadline(replace(encoded, width=3840, height=2160), 300) == pytest.approx(248.8, abs=1)


def test_a_batch_has_the_time_of_its_slices(encoded: EncodedSlice) -> None:
    pace = Pace(least_s=1.0)
    small, large = encoded, replace(encoded, width=4 * encoded.width, height=4 * encoded.height)
    assert pace.deadline_of_all([small]) == pace.deadline(small)
    pace.add_all([small, large], 17.0)
    # By their packets' pixels: 1 s and 16 s.
    assert pace.deadline(small) == pytest.approx(20)
    assert pace.deadline(large) == pytest.approx(320)
    assert pace.deadline_of_all([small, large, small]) == pytest.approx(360)


def test_the_log_names_the_clips_of_a_batch_that_takes_long(caplog: pytest.LogCaptureFixture) -> None:
    names = [f"c{n}" for n in range(10)]
    end = time.monotonic() + 120

    def slow() -> str:
        while not caplog.text and time.monotonic() < end:
            time.sleep(0.01)
        return "done"

    with LateBatches(late_s=0.2) as late:
        assert late.wait_for(slow, names) == "done"
    assert "c0, c1, c2, c3, c4, c5, c6, c7 and 2 more" in caplog.text
    with pytest.raises(ZeroDivisionError), LateBatches(late_s=3600) as late:
        late.wait_for(lambda: 1 // 0, names)
    assert "streamvid-late" not in [one.name for one in threading.enumerate()]
    assert caplog.text.count("is not decoded") == 1


def test_a_loop_ends_while_the_log_hangs() -> None:
    began, free, hung = threading.Event(), threading.Event(), []

    class Hanging(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            began.set()
            hung.append(free.wait(60))

    deadline.log.addHandler(handler := Hanging())
    with LateBatches(late_s=0.01) as late:
        assert late.wait_for(lambda: began.wait(120), ["a"])
    deadline.log.removeHandler(handler)
    assert not hung
    free.set()
    for thread in threading.enumerate():
        if thread.name == "streamvid-late":
            thread.join(60)  # while the test's log is open
