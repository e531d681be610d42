"""The times of recordings that were joined."""

from __future__ import annotations

import numpy as np

from streamvid.video.recordings import follow_on


def test_a_part_of_a_single_frame_before_a_leap_of_the_clock() -> None:
    """The usual distance of its frames was NaN, and the video was rejected for that."""
    clock = np.array([*range(50, 72), 2, 83, 84, 85])
    made, parts = follow_on(clock, np.isin(np.arange(len(clock)), [0, 11, 22, 23]), np.ones_like(clock))
    assert parts.tolist() == [22]
    assert made.tolist() == [*range(50, 73), 153, 154, 155]
