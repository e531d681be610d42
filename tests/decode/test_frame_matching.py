"""Frames are matched to packets by a mock decoder that drops frames or repeats them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamvid.decode.frame_matching import PACKETS_PER_CALL, Destination, FrameMatcher, timestamp
from streamvid.errors import VideoError

Frame = tuple[int, int]
"""Number of the job, rank."""

MILLISECONDS = (1, 33, 1000, 2**16)


Handed = tuple[int, Frame]
"""A time, and what carries it."""


def handed_out(sent: list[tuple[int, int, int]], number: int, ranks: list[int], step: int) -> list[Handed]:
    """A job's frames in presentation order, each with the timestamp that the parser gives it, and what it is."""
    given_at = {ranks[first]: time for first, _, time in sent}
    frames: list[Handed] = []
    for rank in sorted(ranks):
        time = given_at.get(rank, frames[-1][0] + step if frames else step)
        frames.append((time, (number, rank)))
    return frames


def take(matcher: FrameMatcher, frames: list[Handed]) -> dict[Destination | None, Frame]:
    """Destination that was matched → the frame that it is."""
    return {matcher.match(lambda time=time: time): frame for time, frame in frames}  # type: ignore[misc]


def rows_of(ranks: list[int]) -> dict[int, int]:
    """Every second frame is wanted, and goes to a row a hundred higher than its rank."""
    return {rank: 100 + rank for rank in ranks if rank % 2 == 0}


orders = st.lists(
    st.integers(1, 3 * PACKETS_PER_CALL).flatmap(lambda n: st.permutations(range(n))), min_size=1, max_size=5
)


@given(orders, st.sampled_from(MILLISECONDS[:3]), st.booleans(), st.integers(0, 2**21))
def test_all_frames_are_matched(ranks: list[list[int]], step: int, packet_by_packet: bool, first: int) -> None:
    matcher = FrameMatcher()
    for number, mine in enumerate(ranks, first):
        sent = matcher.expect(number, mine, rows_of(mine), packet_by_packet=packet_by_packet)
        assert [n for a, b, _ in sent for n in range(a, b)] == list(range(len(mine)))
        assert all(b - a <= (1 if packet_by_packet else PACKETS_PER_CALL) for a, b, _ in sent)
        frames = handed_out(sent, number, mine, step)
        found = take(matcher, frames[::-1] if packet_by_packet else frames)
        found.pop(None, None)
        assert found == {(number, 100 + rank): (number, rank) for rank in mine if rank % 2 == 0}
        # Until a frame of the next job comes, there may be one too many.
        assert matcher.confirmed <= number
        if packet_by_packet:
            assert matcher.drain() == 0
    assert matcher.drain() == 0
    assert matcher.confirmed == first + len(ranks)


@given(orders, st.sampled_from(MILLISECONDS), st.data())
def test_no_job_is_confirmed_whose_frames_are_wrong(ranks: list[list[int]], step: int, data: st.DataObject) -> None:
    """Frames are dropped or repeated anywhere."""
    matcher = FrameMatcher()
    sent = {
        number: matcher.expect(number, mine, rows_of(mine), packet_by_packet=False) for number, mine in enumerate(ranks)
    }
    frames = [frame for number, mine in enumerate(ranks) for frame in handed_out(sent[number], number, mine, step)]
    places = data.draw(st.sets(st.integers(0, len(frames) - 1), min_size=1, max_size=2))
    lost = data.draw(st.booleans())
    frames = [frame for n, frame in enumerate(frames) for _ in range((0 if lost else 2) if n in places else 1)]
    found: dict[Destination | None, Frame] = {}
    noticed = False
    try:
        for time, frame in frames:
            found[matcher.match(lambda time=time: time)] = frame  # type: ignore[misc]
        noticed = matcher.drain() > 0
    except VideoError:
        noticed = True
    assert noticed
    for number, mine in enumerate(ranks):
        if number < matcher.confirmed:
            for rank, row in rows_of(mine).items():
                assert found[number, row] == (number, rank)


def test_after_a_reset_nothing_is_expected() -> None:
    matcher = FrameMatcher()
    matcher.expect(1, [0, 1, 2], {0: 5}, packet_by_packet=False)
    matcher.reset()
    matcher.expect(2, [0], {0: 7}, packet_by_packet=False)
    assert matcher.match(lambda: timestamp(2, 0)) == (2, 7)
    assert matcher.drain() == 0
    with pytest.raises(VideoError, match="more frames"):
        matcher.match(lambda: timestamp(2, 0))


def test_unwanted_frames_may_be_missing_where_packets_are_fed_one_by_one() -> None:
    matcher = FrameMatcher()
    matcher.expect(1, [0, 2, 1], {1: 4, 2: 5}, packet_by_packet=True)
    assert take(matcher, [(timestamp(1, 2), (1, 2))]) == {(1, 5): (1, 2)}
    assert matcher.drain() == 1
    assert matcher.confirmed == 0
