"""Matches the frames that a decode session hands out to the packets that were fed to it.

A decoded frame carries the timestamp of its packet. If several packets are fed in one call, only the first has a
timestamp of ours, and NVIDIA's parser invents the others. Frames are therefore matched by presentation order, and the
order is verified: a frame with a known timestamp must be the expected one, and a job is confirmed only by a matching
frame of a later job, or when the decoder is drained with nothing missing. So a dropped or repeated frame is noticed
before the frames after it are delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from streamvid.errors import VideoError

PACKETS_PER_CALL: Final = 8
"""Packets fed to a decoder in one call. Each call releases the GIL and has to win it back from all other threads: with
8 instead of 1, HEVC of 720 rows takes an eighth to a quarter less time (docs/performance.md)."""

Destination = tuple[int, int]
"""Where a frame goes: number of its job, and row in that job's output."""

_RANK_BITS: Final = 24
_PARSER_BITS: Final = 16
"""The parser invents timestamps by adding milliseconds to the last one it got: these low bits keep the sum below the
next timestamp of ours."""
_JOB_NUMBERS: Final = 1 << 20
"""Job numbers wrap around here in timestamps; a decoder holds far fewer jobs at a time."""


class FrameMatcher:
    """The frames that are still expected from one decode session."""

    def __init__(self) -> None:
        # In presentation order: job, destination if wanted, timestamp if it was fed with a call.
        self._expected: deque[tuple[int, Destination | None, int | None]] = deque()
        # Keyed by timestamp, if packets are fed one by one.
        self._by_timestamp: dict[int, Destination] = {}
        self._packet_by_packet = False
        self._last_job = 0
        self.confirmed = 0
        """The number below which all jobs have received all their frames."""

    def expect(
        self,
        job: int,
        display_order: Sequence[int],
        dst_rows: Mapping[int, int],
        *,
        packet_by_packet: bool,
        per_call: int = PACKETS_PER_CALL,
        hidden: Collection[int] = (),
        timed: bool = True,
    ) -> list[tuple[int, int, int]]:
        """Register the frames of a job that is about to be fed.

        Args:
            job: its number, higher than those before.
            display_order: for each packet, in decode order, its rank in presentation order.
            dst_rows: rank of each wanted frame → its row.
            packet_by_packet: feed one packet per call, so that each frame has its timestamp and order does not matter.
                The decoder must be empty.
            per_call: packets per call if not `packet_by_packet`.
            hidden: ranks of the packets that give no frame.
            timed: frames have the timestamps of their packets. If not, frames are matched by order and number alone:
                the decoder must be empty before the job, and be drained after it.

        Returns:
            the calls to make: first packet, end (exclusive), timestamp.
        """
        self._packet_by_packet, self._last_job = packet_by_packet, job
        step = 1 if packet_by_packet else per_call
        if packet_by_packet:
            self._by_timestamp = {timestamp(job, rank): (job, row) for rank, row in dst_rows.items()}
        else:
            known = {rank: timestamp(job, rank) for rank in display_order[::step]} if timed else {}
            wanted = {rank: (job, row) for rank, row in dst_rows.items()}
            self._expected.extend(
                [(job, wanted.get(rank), known.get(rank)) for rank in sorted(set(display_order) - set(hidden))]
            )
        return [
            (first, min(first + step, len(display_order)), timestamp(job, display_order[first]))
            for first in range(0, len(display_order), step)
        ]

    def match(self, get_timestamp: Callable[[], int]) -> Destination | None:
        """The destination of the next frame that the decoder handed out; None if the frame is not wanted.

        Args:
            get_timestamp: reads the frame's timestamp. That is slow in PyNvVideoCodec, so it is called only for frames
                whose timestamp is known.

        Raises:
            VideoError: the frame is not the expected one.
        """
        if self._packet_by_packet:
            return self._by_timestamp.pop(get_timestamp(), None)
        if not self._expected:
            raise VideoError("the decoder returns more frames than it was given packets")
        job, destination, expected = self._expected.popleft()
        if expected is not None:
            if get_timestamp() != expected:
                raise VideoError("the decoder returns frames in another order than their timestamps")
            self.confirmed = job
        return destination

    def drain(self) -> int:
        """End the jobs so far: the decoder was flushed and is empty.

        Returns:
            the number of missing frames (if `packet_by_packet`, of missing wanted ones). If 0, all jobs are confirmed.
        """
        missing = len(self._by_timestamp) if self._packet_by_packet else len(self._expected)
        self.reset()
        if not missing:
            self.confirmed = self._last_job + 1
        return missing

    def reset(self) -> None:
        """Expect no more frames: the decoder was closed."""
        self._expected.clear()
        self._by_timestamp.clear()


def timestamp(job: int, rank: int) -> int:
    """The timestamp that a packet is fed with: unique among the jobs in a decoder, not negative, below 2⁶⁰."""
    return (job % _JOB_NUMBERS << _RANK_BITS | rank) << _PARSER_BITS
