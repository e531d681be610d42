"""When pictures are shown whose container has decode times alone."""

from __future__ import annotations

import numpy as np
import pytest

from streamvid.arrays import Int64
from streamvid.errors import VideoError
from streamvid.video.output_order import OutputOrder, distinct, ticks_needed
from streamvid.video.timestamps import _times_in_order

CLOCK = np.array([0, 10, 20, 100, 110, 120])


@pytest.mark.parametrize(
    ("delay", "shown"),
    [(0, [0, 10, 20, 100, 110, 120]), (1, [10, 20, 100, 110, 120, 130]), (2, [20, 100, 110, 120, 130, 140])],
)
def test_pictures_are_shown_when_a_decoder_outputs_them(delay: int, shown: list[int]) -> None:
    order = OutputOrder(np.array([0, 2, 1, 3, 5, 4]), delay)
    assert order.shown_at(CLOCK).tolist() == shown
    assert OutputOrder(np.array([0]), delay).shown_at(CLOCK[:1]).tolist() == [delay]


def test_pictures_with_one_time_are_a_tick_apart() -> None:
    def of_reordered(times: Int64) -> Int64:
        return distinct(times, np.arange(len(times))[::-1])

    assert of_reordered(np.array([30, 10, 10, 20, 30, 30, 40])).tolist() == [10, 11, 20, 30, 31, 32, 40]
    for crowded, finer in (([10, 10, 11, 12, 13], 2), ([11, 10, 13, 10, 10, 10, 12], 4)):
        with pytest.raises(ValueError, match="at the same time"):
            of_reordered(np.array(crowded))
        assert ticks_needed(np.array(crowded)) == finer
        assert (np.diff(of_reordered(finer * np.array(crowded))) > 0).all()
    with pytest.raises(ValueError, match="at the same time"):
        of_reordered(np.array([0, 0, 0]))


def test_times_fall_back_only_among_pictures_that_are_reordered() -> None:
    """By a frame they may anywhere: VLC gives the first one of a recording the time of the third."""
    assert distinct(np.array([20, 10, 20, 30]), np.arange(4)).tolist() == [10, 20, 21, 30]
    assert distinct(np.array([0, 30, 20, 10, 40]), np.array([0, 3, 2, 1, 4])).tolist() == [0, 10, 20, 30, 40]
    for packets in ([0, 1, 2, 3, 4], [1, 0, 3, 2, 4]):
        with pytest.raises(VideoError, match="its clock falls back"):
            distinct(np.array([0, 30, 10, 20, 40]), np.array(packets))


def test_times_that_do_not_contradict_the_order_stay() -> None:
    """A decoder may wait for pictures that it might have to reorder, though none are."""
    assert _times_in_order(CLOCK, OutputOrder(np.arange(6), 2)).tolist() == CLOCK.tolist()
    assert _times_in_order(CLOCK, OutputOrder(np.array([0, 2, 1, 3, 5, 4]), 1)).tolist() == [10, 20, 100, 110, 120, 130]
    other = np.array([0, 30, 20, 10, 40, 50])
    assert _times_in_order(other, OutputOrder(np.array([0, 2, 3, 1, 4, 5]), 1)).tolist() == [0, 10, 20, 30, 40, 50]
