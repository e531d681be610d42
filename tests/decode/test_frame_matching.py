"""Which frames come out of a decoder that is given several packets at once: by a decoder that is made up, and loses
frames or hands them out twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.decode.frame_matching import TOGETHER, FrameMatcher, Place, time_of
from streamvid.errors import VideoError

Frame = tuple[int, int]
"""Number of the run, rank."""

MILLISECONDS = (1, 33, 1000, 2**16)


Handed = tuple[int, Frame]
"""A time, and what carries it."""


def handed_out(sent: list[tuple[int, int, int]], number: int, ranks: list[int], step: int) -> list[Handed]:
    """A run's frames in the order in which they come, each with the time that the parser gives it, and what it is."""
    given_at = {ranks[first]: time for first, _, time in sent}
    frames: list[Handed] = []
    for rank in sorted(ranks):
        time = given_at.get(rank, frames[-1][0] + step if frames else step)
        frames.append((time, (number, rank)))
    return frames


def take(arrivals: FrameMatcher, frames: list[Handed]) -> dict[Place | None, Frame]:
    """By where each frame is said to go, what it is."""
    return {arrivals.came(lambda time=time: time): frame for time, frame in frames}  # type: ignore[misc]


def rows_of(ranks: list[int]) -> dict[int, int]:
    """Every second frame is wanted, and goes to a row a hundred higher than its rank."""
    return {rank: 100 + rank for rank in ranks if rank % 2 == 0}


runs = st.lists(st.integers(1, 3 * TOGETHER).flatmap(lambda n: st.permutations(range(n))), min_size=1, max_size=5)


@given(runs, st.sampled_from(MILLISECONDS[:3]), st.booleans(), st.integers(0, 2**21))
def test_all_frames_are_known(ranks: list[list[int]], step: int, exact: bool, first: int) -> None:
    arrivals = FrameMatcher()
    for number, mine in enumerate(ranks, first):
        sent = arrivals.send(number, mine, rows_of(mine), exact=exact)
        assert [n for a, b, _ in sent for n in range(a, b)] == list(range(len(mine)))
        assert all(b - a <= (1 if exact else TOGETHER) for a, b, _ in sent)
        frames = handed_out(sent, number, mine, step)
        found = take(arrivals, frames[::-1] if exact else frames)
        found.pop(None, None)
        assert found == {(number, 100 + rank): (number, rank) for rank in mine if rank % 2 == 0}
        # Until the next one comes, there may be a frame more.
        assert arrivals.certain <= number
        if exact:
            assert arrivals.ended() == 0
    assert arrivals.ended() == 0
    assert arrivals.certain == first + len(ranks)


@given(runs, st.sampled_from(MILLISECONDS), st.data())
def test_no_run_is_certain_whose_frames_are_wrong(ranks: list[list[int]], step: int, data: st.DataObject) -> None:
    """Frames are lost, or come twice, anywhere."""
    arrivals = FrameMatcher()
    sent = {number: arrivals.send(number, mine, rows_of(mine), exact=False) for number, mine in enumerate(ranks)}
    frames = [frame for number, mine in enumerate(ranks) for frame in handed_out(sent[number], number, mine, step)]
    places = data.draw(st.sets(st.integers(0, len(frames) - 1), min_size=1, max_size=2))
    lost = data.draw(st.booleans())
    frames = [frame for n, frame in enumerate(frames) for _ in range((0 if lost else 2) if n in places else 1)]
    found: dict[Place | None, Frame] = {}
    noticed = False
    try:
        for time, frame in frames:
            found[arrivals.came(lambda time=time: time)] = frame  # type: ignore[misc]
        noticed = arrivals.ended() > 0
    except VideoError:
        noticed = True
    assert noticed
    for number, mine in enumerate(ranks):
        if number < arrivals.certain:
            for rank, row in rows_of(mine).items():
                assert found[number, row] == (number, rank)


def test_what_was_expected_of_a_decoder_that_failed_is_forgotten() -> None:
    arrivals = FrameMatcher()
    arrivals.send(1, [0, 1, 2], {0: 5}, exact=False)
    arrivals.forget()
    arrivals.send(2, [0], {0: 7}, exact=False)
    assert arrivals.came(lambda: time_of(2, 0)) == (2, 7)
    assert arrivals.ended() == 0
    with pytest.raises(VideoError, match="more frames"):
        arrivals.came(lambda: time_of(2, 0))


def test_frames_that_nobody_wants_may_be_lost_where_order_does_not_matter() -> None:
    arrivals = FrameMatcher()
    arrivals.send(1, [0, 2, 1], {1: 4, 2: 5}, exact=True)
    assert take(arrivals, [(time_of(1, 2), (1, 2))]) == {(1, 5): (1, 2)}
    assert arrivals.ended() == 1
    assert arrivals.certain == 0
